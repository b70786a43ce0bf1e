"""The adversary knows all but one person's ratings, and tries every history that it could be.

He has what may be passed on: a finished run folder, or what a training releases. He wins if the
true history fits and no other one does. The variants without a defence, in which he always wins,
show that he knows where to look.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.special import ndtr

from bgtplanner import Ratings, load_model, simulate, train
from bgtplanner.data.split import Split
from bgtplanner.federation.central import CentralTraining
from bgtplanner.privacy.conversions import gdp_capacity
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.privacy.mechanisms import mechanism_named
from bgtplanner.privacy.randomness import SystemNoise
from bgtplanner.runs.assembly import federation_of, fingerprint_of, ratings_of, split_of
from bgtplanner.runs.config import load_config
from bgtplanner.runs.folder import RunFolder

SETTINGS = {
    "synthetic.clients": 12, "synthetic.items": 25, "synthetic.ratings_per_client": 6,
    "data.initial_share": 1.0, "model.name": "biases", "run.device": "cpu",
}  # fmt: skip
VALUES = np.array([0.2, 0.4, 0.6, 0.8, 1.0], dtype=np.float32)


class Secret(NamedTuple):
    """One person's ratings that a run has learned from, and all that the first three could be."""

    split: Split
    rows: Any
    candidates: Any

    def histories(self) -> Any:
        """Return the ratings under every candidate, the true one among them."""
        true = self.split.train.value[self.rows]
        rest = np.repeat(true[None, self.candidates.shape[1] :], len(self.candidates), axis=0)
        return np.concatenate([self.candidates, rest], axis=1)


def secrets(folder: Path) -> Iterator[Secret]:
    """Yield what is to be found out about each person; all else can be looked up."""
    config = RunFolder(folder).config()
    split = split_of(config, ratings_of(config))
    for person in range(split.train.n_users):
        rows = np.flatnonzero(split.train.user == person)
        known = [VALUES] * min(len(rows), 3)
        yield Secret(split, rows, np.array(list(itertools.product(*known)), dtype=np.float32))


def numbers_in(folder: Path) -> Any:
    """Return, sorted, all numbers in the files: in words, and at every place in their bytes."""
    found = []
    for content in (file.read_bytes() for file in folder.iterdir()):
        words = re.findall(r"-?\d+\.\d+(?:e-?\d+)?", content.decode("latin-1"))
        found.append(np.array(words, dtype=np.float64))
        for size in (4, 8):
            for at in range(size):
                end = at + (len(content) - at) // size * size
                found.append(np.frombuffer(content[at:end], f"<f{size}"))
    with np.errstate(invalid="ignore"):  # most bytes are no numbers
        every = np.concatenate([of.astype(np.float64) for of in found])
    return np.sort(every[np.isfinite(every)])


def states(secret: Secret, folder: Path) -> Any:
    """Return level and leanings under every candidate: ridge regression on what was released."""
    model, train = load_model(folder / "run.model"), secret.split.train
    items = train.item[secret.rows]
    released = model.released[items].astype(np.float64)
    table = np.stack([np.ones(len(items)), released[:, 1], released[:, 0]], axis=1)
    named = ("level_shrinkage", "popularity_shrinkage", "quality_shrinkage")
    normal = table.T @ table + np.diag([model.settings[name] for name in named])
    beyond = secret.histories() - model.settings["mean"] - released[:, 0]
    return np.linalg.solve(normal, table.T @ beyond.T).T


def marks(secret: Secret, folder: Path) -> list[bool]:
    """Return for every candidate whether a hash of it is in the folder, with the key if it is."""
    config, train = (folder / "config.toml").read_text(), secret.split.train
    stated = re.search(r'key = "(\w+)"', config)
    content = b"".join(file.read_bytes() for file in folder.iterdir())
    found = []
    for history in secret.histories():
        value = train.value.copy()
        value[secret.rows] = history
        guess = replace(secret.split, train=replace(train, value=value))
        keys = ("", stated[1]) if stated else ("",)
        found.append(any(fingerprint_of(guess, key).encode() in content for key in keys))
    return found


def won(folder: Path) -> tuple[float, float]:
    """Return the share of people whose ratings are found, by a state or by a hash."""
    numbers, games, by_state, by_hash = numbers_in(folder), 0, 0, 0
    for secret in secrets(folder):
        near = states(secret, folder)
        first, last = (np.searchsorted(numbers, near + by) for by in (-2e-8, 2e-8))
        true = (secret.histories() == secret.split.train.value[secret.rows]).all(axis=1)
        by_state += np.array_equal((last > first).all(axis=1), true)
        by_hash += np.array_equal(marks(secret, folder), true)
        games += 1
    return by_state / games, by_hash / games


@pytest.mark.parametrize("defended", [True, False])
def test_a_finished_folder(
    defended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the defence, it keeps what resuming needs: everybody's state, and a hash."""
    if not defended:
        monkeypatch.setattr(RunFolder, "forget", lambda _: None)
    simulate("synthetic", rounds=3, epsilon=500, settings=SETTINGS, out=tmp_path / "run")
    by_state, by_hash = won(tmp_path / "run")
    assert (by_state, by_hash) == (0, 0) if defended else by_state > 0.8 and by_hash == 1


def test_the_ledger_of_a_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds its key, so nothing that follows from the ratings may go into its hashes."""
    hashed: list[set[bytes]] = []
    original = Ledger.fingerprint

    def fingerprint(self: Ledger, *parts: bytes) -> bytes:
        hashed[-1] |= {part for part in parts if b"epsilon" in part}  # what the release is of
        return original(self, *parts)

    monkeypatch.setattr(Ledger, "fingerprint", fingerprint)
    for _ in range(2):
        hashed.append(set())
        few: Any = {"settings": {"federation.rounds": 1, "model.name": "biases"}}
        train("demo", ledger=None, seed=1, **few)
    assert all(hashed)
    assert not hashed[0] & hashed[1], "the same ratings, and the same settings"


@pytest.mark.parametrize("epsilon", [1.0, 3.0, None])
def test_what_a_training_releases(epsilon: float | None) -> None:
    """He knows all other uploads to the bit, and names the history that is nearest to the rest.

    With K histories, he may be right 1 / K of the time, and more by the total variation between
    two of them: 2 Phi(mu / 2) - 1, where mu is twice that of the whole budget (replace-one).
    """
    generator = np.random.default_rng(0)
    item = np.concatenate([generator.choice(6, 3, replace=False) for _ in range(20)])
    value = generator.choice([1.0, 3.0, 5.0], 60)
    config = load_config(settings={"privacy.mechanism": "gaussian", "model.name": "tastes"})
    clip, mu = 0.1, gdp_capacity(1.0 if epsilon is None else epsilon, 1e-5) ** 0.5
    scale, kind = clip / mu, mechanism_named("gaussian")

    def uploaded(items: Any, ratings: Any) -> Any:
        item[-3:], value[-3:] = items, ratings
        labels = [f"i{of}" for of in range(6)]
        table = Ratings.from_arrays(
            np.repeat(np.arange(20), 3), [labels[of] for of in item], value, items=labels,
            scale=(1, 5),
        )  # fmt: skip
        nothing = table.take(np.zeros(0, np.int64))
        split = Split(train=table, test=nothing, arrival=np.zeros(60, np.int32))
        federation = federation_of(config, 6, clients=20)
        return CentralTraining(federation, split, seed=0)._sums(clip, scale)[1]

    histories = [
        (items, ratings)
        for items in itertools.combinations(range(6), 3)
        for ratings in ((1, 3, 5), (5, 3, 1))
    ]
    sums = np.stack([uploaded(*history) for history in histories])
    right, games = 0, 400
    for game in range(games):
        truth = game % len(sums)
        heard = sums[truth]
        if epsilon is not None:
            heard = kind.randomise(heard[None], SystemNoise(), scale=scale, bound=clip, charge=0.0)
        right += int(((sums - heard) ** 2).sum(axis=1).argmin()) == truth
    if epsilon is None:
        assert right == games
        return
    allowed = 1 / len(sums) + 2 * ndtr(mu) - 1
    assert right / games <= allowed + 4 * (allowed * (1 - allowed) / games) ** 0.5
