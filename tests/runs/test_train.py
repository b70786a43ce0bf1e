"""Training for a model file: all ratings, real noise, a ledger, nothing private in the file."""

from __future__ import annotations

import os
import signal
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgtplanner import Ratings, load_model, simulate, train
from bgtplanner.data.split import Split
from bgtplanner.data.synthetic import synthetic_ratings
from bgtplanner.errors import (
    BudgetExceeded,
    ConfigError,
    InterruptedRunError,
    LedgerError,
    RunFolderError,
    StorageError,
)
from bgtplanner.federation.central import CentralTraining
from bgtplanner.models.bias import Biases
from bgtplanner.models.interactions import laid_out
from bgtplanner.privacy.accountants import accountant_named, guessed_right
from bgtplanner.privacy.budget import Budget
from bgtplanner.privacy.conversions import gdp_capacity
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.runs.assembly import federation_of, split_of
from bgtplanner.runs.config import load_config
from bgtplanner.runs.train import guarantee_of
from bgtplanner.signing import public_key

FEW = {"federation.rounds": 3}


def people(number: int = 60, seed: int = 0) -> Ratings:
    sizes: Any = {"clients": number, "items": 24, "ratings_per_client": 8}
    return synthetic_ratings(**sizes, seed=seed, catalogue=True)


def table(path: Path, ratings: Ratings) -> Path:
    """Write ratings and their items as an owner has them."""
    raw = np.round(ratings.to_raw(ratings.value)).astype(int)
    lines = [f"u{u},i{i},{r}" for u, i, r in zip(ratings.user, ratings.item, raw, strict=True)]
    path.write_text("\n".join(["user,item,rating", *lines]) + "\n")
    items = ["item,title,genre"] + [f"i{at},Film {at},{'ab'[at % 2]}" for at in range(26)]
    (path.parent / "items.csv").write_text("\n".join(items) + "\n")
    return path


def owned(tmp_path: Path, **more: Any) -> Any:
    return {
        "ratings": table(tmp_path / "ratings.csv", people()), "items": tmp_path / "items.csv",
        "scale": (1, 5), "settings": FEW, **more,
    }  # fmt: skip


def test_from_a_table_to_a_list_of_a_stranger(tmp_path: Path) -> None:
    made = train(**owned(tmp_path, out=tmp_path / "films.model"), key=bytes(32))
    signer = bytes.fromhex(public_key(bytes(32)))
    found = load_model(tmp_path / "films.model", signer=signer)
    assert sorted(found.items) == sorted(f"i{at}" for at in range(26))
    rows = found.recommend({"i1": 5, "i3": 1}, top=30)
    assert len(rows) == 24
    assert rows == made.recommend({"i1": 5, "i3": 1}, top=30)
    promise = found.guarantee
    assert (promise["private"], promise["epsilon"], promise["people"]) == (True, 3.0, 60)
    assert promise["neighbours"] == "replace-special"
    assert promise["epsilon_other_reading"] > 3.0
    assert promise["not_accounted"] == []
    assert 0 < promise["epsilon_spent"] <= 3.0
    assert not (tmp_path / "films.model.state").exists()
    assert (tmp_path / "ratings.csv.ledger.sqlite").exists()


def test_nothing_is_read_off_the_ratings_unless_it_is_said(tmp_path: Path) -> None:
    asked = owned(tmp_path)
    for missing, flag in (("items", "--items"), ("scale", "--scale")):
        with pytest.raises(ConfigError, match=flag):
            train(**(asked | {missing: None}))
    made = train(**(asked | {"items": None}), assume_public=["catalogue"])
    assert made.guarantee["not_accounted"] == ["catalogue of the ratings"]
    with pytest.raises(ConfigError, match="ratings"):
        train(**asked, assume_public=["ratings"])  # type: ignore[list-item]


def test_a_second_training_is_charged_to_the_same_people(tmp_path: Path) -> None:
    asked = owned(tmp_path)
    train(**asked)
    with pytest.raises(BudgetExceeded):
        train(**asked)
    table(tmp_path / "ratings.csv", people(59))
    with pytest.raises(BudgetExceeded):
        train(**asked)
    text = table(tmp_path / "ratings.csv", people()).read_text()
    (tmp_path / "ratings.csv").write_text(text.replace("\nu", "\nv"))
    with pytest.raises(LedgerError, match="other people"):
        train(**asked)
    (tmp_path / "ratings.csv").write_text(text.replace("u1,", "u1000,"))
    made = train(**asked)  # a renamed person counts as new
    assert made.training["people"] == {
        "before": 0, "joined": 61, "returned": 1, "left": 2, "take_part": 1, "without_budget": 59,
    }  # fmt: skip
    made = train(**asked, ledger=None)
    assert "other trainings on the same ratings" in made.guarantee["not_accounted"]


def test_the_noise_is_real_unless_it_is_seeded_and_one_rating_is_enough() -> None:
    asked: Any = {"ratings": people(), "ledger": None, "settings": FEW,
                  "assume_public": ["catalogue", "scale"]}  # fmt: skip
    first, second = train(**asked), train(**asked)
    assert not np.array_equal(first.released, second.released)
    seeded = [train(**asked, seed=4) for _ in range(2)]
    np.testing.assert_array_equal(seeded[0].released, seeded[1].released)
    assert seeded[0].guarantee["private"] is False
    for refused in ({"settings": {"privacy.trust": "local"}}, {"model": "fedgnn"}):
        with pytest.raises(ConfigError):
            train(**(asked | refused))
    by_name = asked | {"ratings": "demo", "seed": 1}
    assert train(**(by_name | {"continue_from": train(**by_name)})).training["trainings"] == 2
    assert len(train(**(asked | {"ratings": people().take(np.arange(1))})).items) == 24
    with pytest.raises(ConfigError, match="at least one"):
        train(**(asked | {"ratings": people().take(np.arange(0))}))


def test_a_round_that_was_lost_is_paid_for_again(tmp_path: Path) -> None:
    more = {"out": tmp_path / "a.model", "settings": {"federation.rounds": 5}}
    asked = owned(tmp_path) | more

    def stop(done: int, *_: Any) -> None:
        if done == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    def crash(done: int, total: int, spent: float) -> None:
        if spent > 0:
            raise KeyError

    with pytest.raises(InterruptedRunError, match="private"):
        train(**asked, progress=stop)
    with pytest.raises(KeyError):
        train(**asked, progress=crash)
    state = tmp_path / "a.model.state"
    assert stat.S_IMODE(state.stat().st_mode) == 0o600
    with Ledger.open(tmp_path / "ratings.csv.ledger.sqlite", read_only=True) as ledger:
        before = float(ledger.left().max())
    with pytest.raises(RunFolderError):
        train(**(asked | {"epsilon": 2.9}))
    seen: list[int] = []
    made = train(**asked, progress=lambda done, total, spent: seen.append(done))
    assert seen[0] > 2, "it goes on"
    assert made.learned
    assert not state.exists()
    with Ledger.open(tmp_path / "ratings.csv.ledger.sqlite", read_only=True) as ledger:
        assert float(ledger.left().max()) <= before
        assert float(ledger.epsilon_spent().max()) <= 3.0
    with pytest.raises(RunFolderError, match="exists"):
        train(**asked)
    for out in (Path(), Path(os.devnull)):
        with pytest.raises(RunFolderError, match="exists"):
            train(**(asked | {"out": out}), overwrite=True)


def test_nothing_is_spent_where_no_model_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file"):
        train(**owned(tmp_path), out=tmp_path / "nowhere" / "a.model")
    with Ledger.open(tmp_path / "ratings.csv.ledger.sqlite", read_only=True) as ledger:
        assert ledger.spent().max() == 0


@pytest.mark.parametrize("played", [False, True], ids=["stars", "plays"])
def test_the_published_model_ranks_as_the_simulation_does(played: bool) -> None:
    given = people(80)
    if played:  # more of one game than of another; a list goes by what was played
        hours = np.random.default_rng(0).integers(1, 50, len(given))
        clicks = Ratings.from_arrays(given.user, given.item, hours, feedback="clicks")
        given = clicks.with_catalogue(given.catalogue)
    result = simulate(given, rounds=3, seed=1, epsilon=50.0)
    engine, ratings = result.simulation, result.ratings
    assert engine is not None
    made, known = result.model, split_of(result.config, ratings).train
    scores = engine.rank(np.arange(80))
    predicted = engine.predict(np.repeat(np.arange(80), 24), np.tile(np.arange(24), 80))
    for user in range(0, 80, 9):
        mine = known.user == user
        pairs = zip(known.item[mine], known.value[mine], strict=True)
        history = {ratings.item_labels[i]: float(ratings.to_raw(v)) for i, v in pairs}
        rows = made.recommend(history, top=24)
        places = [int(np.flatnonzero(ratings.item_labels == row.item)[0]) for row in rows]
        assert len(places) == 24 - len(history)
        ranks = scores[user, places]
        assert (np.diff(ranks) <= 1e-4).all(), "in the order of the simulation"
        if played:
            continue
        raw = ratings.to_raw(predicted.reshape(80, 24)[user, places])
        np.testing.assert_allclose([row.predicted for row in rows], raw, atol=1e-3)


CLIP, WHOLE = 0.1, people(40)


def sums(
    rows: Any, learner: Any = None, chunk: int | None = None, clip: Any = CLIP
) -> tuple[Any, Any, int]:
    """What users keep, the sum of bounded uploads, and how many of these were no numbers."""
    config = load_config(settings={"privacy.mechanism": "gaussian", "model.name": "tastes"})
    ratings = WHOLE.take(rows)
    nothing, arrival = WHOLE.take(rows & False), np.zeros(len(ratings), np.int32)
    split = Split(train=ratings, test=nothing, arrival=arrival)
    federation = federation_of(config, WHOLE.n_items, clients=40)
    federation = federation if learner is None else replace(federation, model=learner)
    engine = CentralTraining(federation, split, seed=0)
    if chunk is not None:
        engine._known = laid_out(ratings, block=4, chunk=chunk)
        assert engine._known.chunks > 3
    return engine._sums(clip, 0.3)


def test_sums_are_bounded_by_the_clip_and_exact() -> None:
    """Whoever is exchanged for nothing moves the sum by at most the clip, on its grid."""
    kept, everyone, dropped = sums(WHOLE.user >= 0)
    assert dropped == 0
    for whole, by_chunks in zip((kept, everyone), sums(WHOLE.user >= 0, chunk=64), strict=False):
        np.testing.assert_allclose(by_chunks, whole, rtol=0, atol=1e-5)
    for who in (0, 7, 39):
        moved = everyone - sums(WHOLE.user != who)[1]
        assert 0.9 * CLIP < np.sqrt((moved**2).sum()) <= CLIP
        steps = moved * 2.0**26
        np.testing.assert_array_equal(steps, np.rint(steps))


def test_who_has_paid_less_or_nothing_moves_the_sum_by_less_or_nothing() -> None:
    without = sums(WHOLE.user != 7)[1]
    for share, chunk in ((1 / 8, None), (1 / 8, 64), (0.0, 64)):
        own = np.where(np.arange(40) == 7, CLIP * share, CLIP)
        moved = sums(WHOLE.user >= 0, chunk=chunk, clip=own)[1] - without
        length = np.sqrt((moved**2).sum())
        assert 0.9 * CLIP * share < length + 1e-9 <= CLIP * share + 1e-4


@dataclass(frozen=True)
class Broken(Biases):
    """The first client's upload is no number."""

    def train(self, *known: Any) -> Any:
        made = super().train(*known)
        rows = made.upload.rows.at[0].set(np.nan)
        return made._replace(upload=made.upload._replace(rows=rows))


def test_an_upload_that_is_no_number_is_left_out_and_counted() -> None:
    _, total, dropped = sums(WHOLE.user >= 0, Broken())
    assert dropped == 1
    np.testing.assert_allclose(total, sums(WHOLE.user > 0, Biases())[1], rtol=0, atol=1e-5)


def test_how_often_a_guess_can_be_right() -> None:
    """By simulation: two normal distributions that are mu apart."""
    mu = float(gdp_capacity(3.0, 1e-5)) ** 0.5
    drawn = np.random.default_rng(0).normal(size=200_000)
    right = 0.5 * ((drawn < mu / 2).mean() + (drawn + mu >= mu / 2).mean())
    assert guessed_right(3.0, 1e-5, "gaussian") == pytest.approx(right, abs=0.005)
    assert 0.63 < guessed_right(3.0, 1e-5, "gaussian") < 0.65
    pure = guarantee_of(Budget(3.0), accountant_named("privunit/either"), "replace-one", people=9)
    assert "at most 96 times in 100" in " ".join(pure["sentences"])  # e^3 / (1 + e^3)
