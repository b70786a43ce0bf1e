"""Train on all ratings, for a model file that can be published: real noise, nothing held out."""

from __future__ import annotations

import io
import json
import os
import secrets
import zipfile
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
from bgtplanner.durable import replace_file
from bgtplanner.errors import (
    BudgetExceeded,
    ConfigError,
    InterruptedRunError,
    LedgerError,
    RunFolderError,
    StorageError,
    TrainingDivergedError,
)
from bgtplanner.federation.central import CentralTraining
from bgtplanner.federation.compilation import begin_run, use_compilation_cache
from bgtplanner.federation.coordinator import Coordinator
from bgtplanner.models.learner import Learner, model_of
from bgtplanner.privacy.accountants import TICK
from bgtplanner.privacy.budget import Budget
from bgtplanner.privacy.ledger import Head
from bgtplanner.privacy.randomness import SeededNoise
from bgtplanner.published.model import Model
from bgtplanner.runs.assembly import (
    Given,
    coordinator_of,
    federation_of,
    model_given,
)
from bgtplanner.runs.config import Config, load_config
from bgtplanner.runs.interrupts import stop_requests
from bgtplanner.runs.prepared import fingerprint_of, ratings_from, ratings_of
from bgtplanner.runs.publish import guarantee_of
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

_LOST = 1e6  # no parameter that predicts ratings from 0 to 1 is anywhere near
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
    book = _ledger_path(ratings, config, target) if ledger == "auto" else ledger
    training = _Training(config, data, given, None if book is None else Path(book), target, seed)
    try:
        if overwrite and training.state is not None:
            training.state.unlink(missing_ok=True)
        made = training.carried_out(progress, assumed)
        if target is not None:
            made.save(target)
            training.finished()
        return made
    finally:
        training.close()


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


class _Training:
    """A training in progress: the ratings, the ledger that pays, and the state to resume from."""

    def __init__(
        self,
        config: Config,
        ratings: Ratings,
        given: Given,
        ledger: Path | None,
        out: Path | None,
        seed: int | None,
    ) -> None:
        begin_run()
        self.config, self.ratings, self.seed = config, ratings, seed
        self.state = None if out is None else Path(f"{out}.state")
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
        self.engine = CentralTraining(
            federation, split, seed=config.run.seed, device=config.run.device
        )
        if seed is not None:
            self.engine.noise = SeededNoise(seed)
        self.mark = fingerprint_of(split)
        self.has_book = ledger is not None
        self.planned = self._coordinator(ledger)

    def _coordinator(self, ledger: Path | None) -> Coordinator:
        """Put policy and ledger around the training, under a name that was never used.

        So a round that was reserved and whose outcome was lost is paid for again: it would be
        another release, with noise of its own.
        """
        try:
            planned = coordinator_of(self.config, self.engine, self.mark, ledger)
        except OSError as error:
            raise StorageError.of(f"--ledger {ledger}", error, "name another file") from error
        labels = [str(of) for of in self.ratings.user_labels.tolist()]
        whose = planned.ledger.fingerprint(*(of.encode() for of in labels)).hex()[:16]
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

    def close(self) -> None:
        """Close the ledger."""
        self.planned.ledger.close()

    def finished(self) -> None:
        """Delete the state: it holds what clients would keep to themselves."""
        if self.state is not None:
            self.state.unlink(missing_ok=True)

    def carried_out(self, progress: Progress | None, assumed: Sequence[str]) -> Model:
        """Play all rounds, or all after the saved state, and return the model."""
        self._go_on()
        planned, engine, rounds = self.planned, self.engine, self.config.federation.rounds
        ledger = planned.ledger
        capacity = ledger.accountant.capacity(ledger.budgets.classes[0])
        if engine.next_round == 0 and float(ledger.left().max()) <= TICK:
            raise BudgetExceeded(
                "the budget in the ledger is spent by earlier trainings: nothing more may be "
                "released about these people, whatever the model is for",
                charge=capacity, left=0.0,
            )  # fmt: skip
        with stop_requests(active=self.state is not None) as asked:
            while engine.next_round < rounds:
                played = planned.step()
                if played is None:
                    break
                self._check()
                self._save()
                spent = 1.0 - float(ledger.left().max()) / capacity
                if progress is not None:
                    progress(engine.next_round, rounds, spent)
                if asked.is_set() and engine.next_round < rounds:
                    raise InterruptedRunError(
                        f"stopped after round {engine.next_round}; the same command goes on from "
                        f"here. Until then, {self.state} holds private data"
                    )
        return self._model(assumed)

    def _check(self) -> None:
        shared = self.engine.state.shared
        if not all((np.abs(np.asarray(of)) < _LOST).all() for of in shared):
            raise TrainingDivergedError("training diverged: try a smaller server.learning_rate")

    def _model(self, assumed: Sequence[str]) -> Model:
        ledger, ratings = self.planned.ledger, self.ratings
        budget = ledger.budgets.classes[0]
        spent = float(ledger.epsilon_spent().max())
        promise = guarantee_of(
            Budget(max(budget.epsilon, spent), budget.delta), ledger.accountant,
            ledger.neighbours, people=ratings.n_clients, trust="central",
            seeded=self.seed is not None, assumed=assumed, ledger=self.has_book,
        )  # fmt: skip
        if self.has_book:
            promise |= {"epsilon_spent": spent, "ledger_head": str(ledger.head)}
        engine, version = self.engine, bgtplanner.__version__
        name, rounds = self.config.model.name, engine.next_round
        return model_of(
            engine.federation.model, engine.state.shared, engine.state.memory, ratings,
            learned=engine.learned, guarantee=promise,
            training={"bgtplanner": version, "model": name, "rounds": rounds},
        )  # fmt: skip

    # ---- the state between two processes

    def _save(self) -> None:
        """Write what resuming needs, for the owner's eyes only: it holds private data."""
        if self.state is None:
            return
        planned = self.planned.state_dict() | {"head": str(self.planned.ledger.head)}
        texts = {"planned": json.dumps(planned), "mark": self._mark()}
        coded = {name: np.frombuffer(of.encode(), np.uint8) for name, of in texts.items()}
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **self.engine.arrays(), **coded)
        old = os.umask(0o077)
        try:
            replace_file(self.state, buffer.getvalue())
        except OSError as error:
            raise StorageError.of(str(self.state), error, "the same command goes on") from error
        finally:
            os.umask(old)

    def _mark(self) -> str:
        """Return what must be the same when a training goes on: settings and ratings."""
        return json.dumps([self.config.model_dump(mode="json"), self.mark], sort_keys=True)

    def _go_on(self) -> None:
        """Restore the saved state, if there is one."""
        if self.state is None or not self.state.exists():
            return
        try:
            with np.load(self.state, allow_pickle=False) as stored:
                arrays: dict[str, NDArray[Any]] = {name: stored[name] for name in stored.files}
            planned = json.loads(bytes(arrays.pop("planned")))
            mark = bytes(arrays.pop("mark")).decode()
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise RunFolderError(
                f"{self.state}: cannot be read; delete it, or begin anew with --overwrite"
            ) from error
        if mark != self._mark():
            raise RunFolderError(
                f"{self.state}: a training with other settings or other ratings was interrupted "
                "here; go on with those, or begin anew with --overwrite"
            )
        self.planned.ledger.check_head(Head.parse(planned.pop("head")))
        name = self.planned.run
        self.engine.restore(arrays)
        self.planned.load_state_dict(planned)
        self.planned.run = self.planned.policy.run = name
