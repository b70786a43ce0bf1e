"""Train on all ratings, for a model file that can be published: real noise, nothing held out."""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import bgtplanner
from bgtplanner.arguments import as_path, as_settings, refuse_unless
from bgtplanner.data.catalogue import Catalogue, read_items
from bgtplanner.data.datasets import DATASETS, path_of
from bgtplanner.data.ratings import Ratings
from bgtplanner.data.split import Split
from bgtplanner.errors import (
    BudgetExceeded,
    ConfigError,
    LedgerError,
    RunFolderError,
    StorageError,
)
from bgtplanner.federation.central import CentralTraining
from bgtplanner.federation.compilation import use_compilation_cache
from bgtplanner.federation.coordinator import Coordinator
from bgtplanner.models.learner import Learner, model_of
from bgtplanner.privacy.accountants import TICK
from bgtplanner.privacy.budget import Budget
from bgtplanner.privacy.randomness import SeededNoise
from bgtplanner.published.model import Model
from bgtplanner.runs.assembly import Given, coordinator_of, federation_of, model_given
from bgtplanner.runs.config import Config, load_config
from bgtplanner.runs.folder import read_arrays, write_arrays
from bgtplanner.runs.loop import Observer, Run
from bgtplanner.runs.prepared import fingerprint_of, ratings_from, ratings_of
from bgtplanner.runs.publish import guarantee_of, not_private
from bgtplanner.runs.settings import TRAINING

Public = Literal["catalogue", "scale"]

_FIXED: dict[str, Any] = {
    "data.initial_share": 1.0,  # nothing arrives later
    "privacy.mechanism": "gaussian",
    "privacy.trust": "secagg",  # the sum is noised once, as whoever is trusted does
    "federation.most_dropouts": 0.0,
    "federation.most_colluders": 0.0,
    "federation.after_budget": "stop",
    "planning.objective": "last",  # what counts is the model that is published
    "planning.reward": "released",
    "planning.context": "released",
}
"""Settings that a training has and that cannot be chosen."""

Progress = Callable[[int, int, float], None]


def train(
    ratings: Any,
    *,
    items: Any = None,
    scale: tuple[float, float] | str | None = None,
    clicks: bool = False,
    assume_public: Sequence[Public] = (),
    epsilon: float = TRAINING["privacy.epsilon"],
    model: Learner | str | None = None,
    ledger: Path | str | None = "auto",
    out: Path | str | None = None,
    overwrite: bool = False,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Model:
    """Train on all ratings and return a model that may be published.

    Args:
        ratings: The path of a table, the name of a data set, a frame, or ratings.
        items: The public catalogue: the path of a table of items, or a catalogue.
        scale: The smallest and the largest rating there can be, such as ``(1, 5)``.
        clicks: Whether there are no ratings, only clicks, plays or purchases.
        assume_public: What may be read off the ratings although it reveals something about
            people: ``catalogue``, which items occur, and ``scale``. The model then says so.
        epsilon: What all trainings with this ledger together may reveal about a person.
        model: ``tastes``, ``biases``, ``factorization``, or a learner.
        ledger: The file that counts what was spent; by default beside the ratings. With None,
            nothing is counted beyond this training, and the model says so.
        out: The model file to write. An interrupted training goes on from the state beside it.
        overwrite: Whether to replace it, and to begin anew. What was spent stays spent.
        seed: Makes the noise repeatable, for experiments: the model says that it is not private.
        settings: Other config keys, such as ``{"privacy.delta": 1e-6}``; these win.
        progress: Is called with the round, the number of rounds, and the share that was spent.

    Example:
        >>> made = train("demo", ledger=None, settings={"federation.rounds": 2})
        >>> len(made.recommend({}, top=3))
        3
    """
    stated, given = model_given(model)
    named = {"data.dataset": "demo", **TRAINING, "privacy.epsilon": epsilon}
    if isinstance(ratings, str | Path):
        known = str(ratings) in DATASETS or path_of(str(ratings)) is not None
        named["data.dataset"] = str(ratings) if known else f"csv:{ratings}"
    if isinstance(items, str | Path):
        named["data.items"] = str(items)
    if scale is not None:
        named["data.scale"] = scale if isinstance(scale, str) else ":".join(map(str, scale))
    if clicks:
        named["data.rating_column"] = "none"
    if seed is not None:
        named["run.seed"] = seed
    chosen = named | stated | as_settings(settings)
    for key in _FIXED.keys() & chosen.keys():
        raise ConfigError(f"{key}: is fixed in a training; leave it out, or use `run`")
    unscaled = not clicks or chosen.get("data.scale") is None
    ConfigError.unless(unscaled, "scale", chosen.get("data.scale"), "nothing: clicks have none")
    config = load_config(preset="recommended", settings=chosen | _FIXED)
    use_compilation_cache()
    if isinstance(ratings, str | Path):
        data, items = ratings_of(config), None if isinstance(items, str | Path) else items
    else:
        data = ratings if isinstance(ratings, Ratings) else ratings_from(ratings, chosen)
    if items is not None:
        data = data.with_catalogue(items if isinstance(items, Catalogue) else read_items(items))
    assumed = _assumed(data, assume_public)
    target = None if out is None else as_path("out", out)
    if target is not None and target.exists() and not overwrite:
        raise RunFolderError(f"--out {target}: exists; name another file, or give --overwrite")
    if ledger == "auto":
        ledger = _ledger_path(ratings, config, target)
    file = None if target is None else _State(target.with_name(f"{target.name}.state"))
    if file is not None and overwrite:
        file.path.unlink(missing_ok=True)
    observer = None if progress is None else _Progress(progress)
    training = _Training(config, data, given, ledger, seed, observer)
    with contextlib.closing(training):
        made = training.carried_out(file, assumed)
    if file is not None and target is not None:
        made.save(target)
        file.path.unlink(missing_ok=True)
    return made


def _assumed(ratings: Ratings, assume_public: Sequence[str]) -> list[str]:
    """Return what was read off the ratings and is assumed to be public; refuse the rest."""
    unknown = [name for name in assume_public if name not in ("catalogue", "scale")]
    expected = "catalogue or scale"
    ConfigError.unless(not unknown, "assume_public", ",".join(unknown), expected)
    if ratings.name in DATASETS and not ratings.public >= {"scale"}:
        ratings = replace(ratings, public=ratings.public | {"scale"})  # known to everybody
    flags = {"catalogue": "--items items.csv", "scale": "--scale LOW:HIGH"}
    read = [name for name in flags if name not in ratings.public]
    for name in read:
        if name not in assume_public:
            raise ConfigError(
                f"the {name} would be read off the ratings, and shows something about people: "
                f"give {flags[name]}, or say --assume-public {name} if everybody may know it"
            )
    return read


def _ledger_path(ratings: Any, config: Config, out: Path | None) -> Path | None:
    """Return where the ledger is by default: beside the ratings, or beside the model."""
    path = path_of(config.data.dataset)
    if isinstance(ratings, str | Path) and path is not None:
        return Path(f"{path}.ledger.sqlite")
    return None if out is None else Path(f"{out}.ledger.sqlite")


class _Progress(Observer):
    """Tells a function how far a training is."""

    def __init__(self, tell: Progress) -> None:
        self._tell = tell

    def round(self, record: Mapping[str, Any], total: int) -> None:
        self._tell(record["round"] + 1, total, 1.0 - max(record["left"]))


class _State:
    """The file beside a model from which an interrupted training goes on.

    It is readable by its owner alone, since it holds what clients would keep to themselves, and
    goes when the model is there. Training again would be another release: so a round that is in
    the ledger and not in this file is paid for again.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.mark = path, b""

    @property
    def resume_command(self) -> str:
        """What continues the training."""
        return f"the same command. Until then, {self.path} holds private data"

    def append_round(self, record: Mapping[str, Any]) -> None:
        """Keep no record: nobody looks at it."""

    def keep_rounds(self, number: int) -> list[dict[str, Any]]:
        """Return the records of earlier rounds: none."""
        del number
        return []

    def write_checkpoint(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Replace the file."""
        try:
            write_arrays(self.path, {**arrays, "mark": np.frombuffer(self.mark, np.uint8)})
        except OSError as error:
            raise StorageError.of(self.path, error, "the same command goes on") from error

    def checkpoint(self) -> dict[str, NDArray[Any]] | None:
        """Return what was written last, if this is the same training; None if nothing was."""
        arrays = read_arrays(self.path)
        if arrays is not None and arrays.pop("mark", np.zeros(0)).tobytes() != self.mark:
            raise RunFolderError(
                f"{self.path}: a training with other settings or other ratings was interrupted "
                "here; go on with those, or begin anew with --overwrite"
            )
        return arrays


class _Training(Run):
    """A training in progress: the ratings, the ledger that pays, and the state to go on from."""

    engine: CentralTraining
    planned: Coordinator

    def __init__(
        self,
        config: Config,
        ratings: Ratings,
        given: Given,
        ledger: Path | str | None,
        seed: int | None,
        observer: Observer | None,
    ) -> None:
        nothing = ratings.take(np.zeros(0, dtype=np.int64))
        split = Split(train=ratings, test=nothing, arrival=np.zeros(len(ratings), dtype=np.int32))
        refuse_unless(len(ratings) > 0, "ratings", ratings, "at least one rating")
        implicit, clients = ratings.implicit, ratings.n_clients
        federation = federation_of(
            config, ratings.n_items, given.model, clients=clients, implicit=implicit
        )
        if type(federation.model).publishes is Learner.publishes:  # before anything is spent
            name = config.model.name
            raise ConfigError(f"--model {name}: publishes no model file; use tastes or biases")
        engine = CentralTraining(federation, split, seed=config.run.seed, device=config.run.device)
        if seed is not None:
            engine.noise = SeededNoise(seed)
        super().__init__(config, engine, observer)
        self.checkpoint_every = 1  # a round that is played again is paid for again
        self.ratings, self.seeded, self.has_book = ratings, seed is not None, ledger is not None
        self.mark = fingerprint_of(split)
        self.planned = self._coordinator(None if ledger is None else Path(ledger))

    def _coordinator(self, ledger: Path | None) -> Coordinator:
        """Put policy and ledger around the training, under a name that was never used.

        So a round that was reserved and whose outcome was lost is paid for again: it would be
        another release, with noise of its own.
        """
        try:
            once = secrets.token_hex(16)  # no hash of the ratings: who has the ledger could guess
            planned = coordinator_of(self.config, self.engine, once, ledger)
        except OSError as error:
            raise StorageError.of(f"--ledger {ledger}", error, "name another file") from error
        labels = [str(of).encode() for of in self.ratings.user_labels.tolist()]
        whose = planned.ledger.fingerprint(*labels).hex()[:16]
        for row in planned.ledger.history():
            name = str(row.get("run", ""))
            if name.startswith("train-") and name.split("-")[1] != whose:
                planned.ledger.close()
                raise LedgerError(
                    f"{ledger}: is the ledger of other people; name another file with --ledger, "
                    "or train with the same people"
                )
        planned.run = planned.policy.run = f"train-{whose}-{secrets.token_hex(8)}"
        return planned

    def carried_out(self, state: _State | None, assumed: Sequence[str]) -> Model:
        """Play all rounds, or all after the saved state, and return the model."""
        if state is not None:
            settings = self.config.model_dump(mode="json")
            state.mark = json.dumps([settings, self.mark], sort_keys=True).encode()
            self.go_on(state)
        ledger, ratings, engine = self.planned.ledger, self.ratings, self.engine
        if engine.next_round == 0 and float(ledger.left().max()) <= TICK:
            raise BudgetExceeded(
                "the budget in the ledger is spent by earlier trainings: nothing more may be "
                "released about these people, whatever the model is for",
                charge=ledger.accountant.capacity(ledger.budgets.classes[0]), left=0.0,
            )  # fmt: skip
        self.carry_out(state)
        budget, spent = ledger.budgets.classes[0], float(ledger.epsilon_spent().max())
        promise = not_private(ratings.n_clients)
        if not self.seeded:
            promise = guarantee_of(
                Budget(max(budget.epsilon, spent), budget.delta), ledger.accountant,
                ledger.neighbours, people=ratings.n_clients, assumed=assumed,
                counted=self.has_book,
            )  # fmt: skip
        if self.has_book:
            promise |= {"epsilon_spent": spent, "ledger_head": str(ledger.head)}
        trained = {"model": self.config.model.name, "rounds": engine.next_round}
        return model_of(
            engine.federation.model, engine.state.shared, engine.state.memory, ratings,
            learned=engine.learned, guarantee=promise,
            training={"bgtplanner": bgtplanner.__version__, **trained},
        )  # fmt: skip
