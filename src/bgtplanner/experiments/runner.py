"""Carry out a run: prepare, train round by round, checkpoint, sum up; or go on with one."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bgtplanner.errors import (
    ConfigError,
    DataError,
    InterruptedRunError,
    RunFolderError,
    TrainingDivergedError,
)
from bgtplanner.experiments.assembly import check_planning, federation_of, planned_of
from bgtplanner.experiments.config import Config, load_config
from bgtplanner.experiments.interrupts import stop_requests
from bgtplanner.experiments.results import (
    Result,
    classes_of,
    facts_of,
    most_spent,
    reached_target,
    spending_of,
    summarise,
)
from bgtplanner.experiments.store import RunFolder
from bgtplanner.experiments.tracking import Observer
from bgtplanner.federation.planned import PlannedRound, PlannedRounds
from bgtplanner.federation.simulation import RoundRecord, Simulation
from bgtplanner.planning.baselines import Hindsight
from bgtplanner.planning.policy import LedgerPolicy, Policy
from bgtplanner.privacy.journal import Head
from bgtplanner.recsys.alone import references
from bgtplanner.recsys.metrics import Metrics
from bgtplanner.recsys.ratings import Ratings
from bgtplanner.recsys.sources import dataset_info, load_ratings
from bgtplanner.recsys.split import Split, deal_users, split_ratings
from bgtplanner.recsys.synthetic import synthetic_ratings

__all__ = [
    "Observer",
    "Result",
    "execute",
    "load",
    "ratings_of",
    "resume",
    "simulate",
    "split_of",
]


_FIGURES = frozenset(
    {*Metrics._fields, "round", "loss", "clients", "ratings", "seconds"}
)  # of a round


def simulate(
    ratings: Ratings | str = "demo",
    *,
    model: str | None = None,
    mechanism: str | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    preset: str = "recommended",
    settings: Mapping[str, Any] | None = None,
    out: Path | str | None = None,
    overwrite: bool = False,
    observer: Observer | None = None,
) -> Result:
    """Train a federated recommender and say how good it got.

    Args:
        ratings: Ratings, or the name of a data set.
        model: ``biases``, ``factorization`` or ``fedgnn``.
        mechanism: What protects the uploads: ``gaussian``, ``laplace``,
            ``privunit`` or ``none``.
        rounds: How many rounds.
        seed: Of the split and of all that is drawn at random.
        preset: ``recommended`` or ``paper``.
        settings: Any other config keys, such as ``{"server.learning_rate": 0.02}``.
        out: Run folder to write; by default nothing is written.
        overwrite: Replace a run that is in that folder.
        observer: Somebody to tell about every round.

    Example:
        >>> result = simulate("demo", rounds=5)
        >>> result.summary["rmse_final"] < result.summary["rmse_constant"]
        True
    """
    named = {
        "data.dataset": ratings.name if isinstance(ratings, Ratings) else ratings,
        "model.name": model,
        "privacy.mechanism": mechanism,
        "federation.rounds": rounds,
        "run.seed": seed,
    }
    chosen = {key: value for key, value in named.items() if value is not None}
    config = load_config(preset=preset, settings={**chosen, **(settings or {})})
    given = ratings if isinstance(ratings, Ratings) else None
    return execute(config, ratings=given, out=out, overwrite=overwrite, observer=observer)


def execute(
    config: Config,
    *,
    ratings: Ratings | None = None,
    out: Path | str | None = None,
    overwrite: bool = False,
    observer: Observer | None = None,
) -> Result:
    """Run what the config says, from the first round."""
    if out is not None:
        RunFolder(Path(out)).check_free(overwrite)  # before minutes are spent on loading
    ratings = ratings_of(config) if ratings is None else ratings
    run = _Run(_with_schedule(config, ratings, observer), ratings, observer)
    if out is None:
        run.open_ledger(None)
        return run.train()
    mark = _fingerprint(run.split)
    if run.config.privacy.mechanism != "none":
        check_planning(run.config, ratings.n_clients)  # before there is a folder
    with RunFolder.create(
        out, config, fingerprint=mark, facts=run.facts, overwrite=overwrite
    ) as folder:
        run.open_ledger(folder)
        with contextlib.closing(run):
            return run.train(folder)


def resume(
    path: Path | str, *, ratings: Ratings | None = None, observer: Observer | None = None
) -> Result:
    """Go on with a run; it ends as if it had never been interrupted, bit for bit.

    Args:
        path: The run folder.
        ratings: What it was started with, where that was given in Python.
        observer: Somebody to tell about every round.

    Raises:
        RunFolderError: If the folder, its checkpoint or the ratings do not fit together.
    """
    with RunFolder.open(path) as folder:
        config = folder.config()
        ratings = _ratings_of_folder(path, config, "resume") if ratings is None else ratings
        run = _Run(_with_schedule(config, ratings, observer), ratings, observer)
        if _fingerprint(run.split) != folder.notes().get("data"):
            raise RunFolderError(
                f"{path}: the ratings of '{config.data.dataset}' are not those it was started "
                "with; bring those back, or start a new run"
            )
        run.open_ledger(folder)
        with contextlib.closing(run):
            checkpoint = folder.checkpoint()
            if checkpoint is not None:
                run.restore(checkpoint)
            run.records = folder.keep_rounds(run.simulation.next_round)
            if any(not record.keys() >= _FIGURES for record in run.records):
                raise RunFolderError(f"{path}: a line of rounds.jsonl lacks some of its figures")
            return run.train(folder)


def load(path: Path | str, *, ratings: Ratings | None = None) -> Result:
    """A finished run again, to predict, recommend or export with.

    Args:
        path: The run folder.
        ratings: What it was started with, where that was given in Python.

    Raises:
        RunFolderError: If the run is not finished, or was started with other ratings.
    """
    folder = RunFolder(Path(path))
    notes, summary = folder.notes(), folder.summary()
    if summary is None:
        raise RunFolderError(f"{path}: not finished; go on with: {folder.resume_command}")
    config = folder.config()
    ratings = _ratings_of_folder(path, config, "load") if ratings is None else ratings
    run = _Run(config, ratings, None)
    checkpoint = folder.checkpoint()
    if _fingerprint(run.split) != notes.get("data") or checkpoint is None:
        raise RunFolderError(
            f"{path}: has no checkpoint, or the ratings of '{config.data.dataset}' are not those "
            "it was started with; bring both back, or run it anew"
        )
    run.restore(checkpoint)
    return Result(
        summary=summary,
        rounds=folder.rounds(),
        ratings=ratings,
        folder=folder.path,
        simulation=run.simulation,
    )


def _ratings_of_folder(path: Path | str, config: Config, call: str) -> Ratings:
    try:
        return ratings_of(config)
    except (ConfigError, DataError) as error:
        raise RunFolderError(
            f"{path}: its ratings cannot be loaded by name ({error}). If they were given "
            f"in Python, go on there: {call}(path, ratings=...)"
        ) from error


def _with_schedule(config: Config, ratings: Ratings, observer: Observer | None) -> Config:
    """For ``hindsight``, the best fixed schedule there is, found by trying all on the test set."""
    if config.planning.policy != "hindsight" or "weights" in config.planning.options:
        return config
    every = Hindsight.candidates(config.federation.rounds)
    best, least = config, math.inf
    for number, (name, weights) in enumerate(every.items(), start=1):
        if observer is not None:
            observer.searching(name, number, len(every))
        options = config.planning.options | {"weights": weights.tolist()}
        planning = config.planning.model_copy(update={"options": options})
        tried = config.model_copy(update={"planning": planning})
        run = _Run(tried, ratings, None)
        run.open_ledger(None)
        error = run.train().summary["rmse_final"]
        if error < least:
            best, least = tried, error
    return best


def ratings_of(config: Config) -> Ratings:
    """The ratings that a config names."""
    data = config.data
    if data.dataset == "synthetic":
        ratings = synthetic_ratings(**config.synthetic.model_dump(), seed=config.run.seed)
    else:
        ratings = load_ratings(
            data.dataset,
            data_dir=data.data_dir,
            seed=config.run.seed,
            duplicates=data.duplicates,
            delimiter=data.delimiter,
            header=data.header,
            user=data.user_column,
            item=data.item_column,
            rating=data.rating_column,
            time=data.time_column,
            client=data.client_column,
            scale=data.scale,
        )
    if data.clients is not None:
        ratings = deal_users(ratings, data.clients, seed=config.run.seed)
    return ratings


def split_of(config: Config, ratings: Ratings) -> Split:
    """The ratings divided as the config says.

    Raises:
        DataError: If there are too few to train on some and test on others.
    """
    within = config.data.split
    if within == "auto":
        within = "user"
        with contextlib.suppress(ConfigError):  # ratings given in Python have any name
            within = dataset_info(config.data.dataset).split_within
    split = split_ratings(
        ratings,
        seed=config.run.seed,
        rounds=config.federation.rounds,
        train_share=config.data.train_share,
        within=within,
        initial_share=config.data.initial_share,
    )
    if not len(split.test) or not len(split.train):
        raise DataError(
            f"{ratings.name}: too few ratings to hold out a test set "
            f"({len(split.train)} for training, {len(split.test)} for the test); give more, or "
            "another data.train_share"
        )
    return split


class _Run:
    """A run in progress: the simulation, and what is known of its past."""

    def __init__(self, config: Config, ratings: Ratings, observer: Observer | None) -> None:
        self.config = config
        self.ratings = ratings
        self.observer = observer
        self.records: list[dict[str, Any]] = []
        self.seconds_before = 0.0
        self.split = split_of(config, ratings)
        self.simulation = Simulation(
            federation_of(config, ratings.n_items),
            self.split,
            seed=config.run.seed,
            device=config.run.device,
            validation=config.planning.validation_share if config.validates else 0.0,
        )
        self.planned: PlannedRounds | None = None

    @functools.cached_property
    def facts(self) -> dict[str, Any]:
        """What is known before the first round; whoever only predicts can do without."""
        beside = references(self.split.train, self.split.test)
        return facts_of(self.config, self.ratings, beside)

    def open_ledger(self, folder: RunFolder | None) -> None:
        """Get ready to plan and pay, where something is to be paid."""
        if self.config.privacy.mechanism != "none":
            path = None if folder is None else folder.path / "ledger.sqlite"
            mark = _fingerprint(self.split)
            self.planned = planned_of(self.config, self.simulation, mark, path)

    def close(self) -> None:
        """Let go of the ledger."""
        if self.planned is not None:
            self.planned.ledger.close()

    def restore(self, checkpoint: dict[str, NDArray[Any]]) -> None:
        """Go on from a checkpoint, if it is one of this run."""
        total = self.config.federation.rounds
        for name, most in (("seconds", math.inf), ("next_round", total)):
            entry = checkpoint.get(name, np.zeros(()))
            if entry.shape != () or entry.dtype.kind not in "iuf" or not 0 <= entry <= most:
                raise RunFolderError(f"checkpoint entry '{name}' is not one of this run")
        self.seconds_before = float(checkpoint.pop("seconds", np.zeros(())))
        planned = checkpoint.pop("planned", None)
        self.simulation.restore(checkpoint)
        if self.planned is not None:
            try:
                state = json.loads(bytes(np.asarray(planned, dtype=np.uint8)))
                self.planned.ledger.check_head(Head.parse(state.pop("head")))
                self.planned.load_state_dict(state)
            except (TypeError, ValueError, KeyError) as error:
                message = "checkpoint entry 'planned' is not one of this run"
                raise RunFolderError(message) from error

    def _arrays(self, seconds: float) -> dict[str, NDArray[Any]]:
        """All that a later process needs to go on."""
        arrays = self.simulation.arrays() | {"seconds": np.asarray(seconds)}
        if self.planned is not None:
            state = self.planned.state_dict() | {"head": str(self.planned.ledger.head)}
            arrays["planned"] = np.frombuffer(json.dumps(state).encode(), dtype=np.uint8)
        return arrays

    def _step(self) -> dict[str, Any] | None:
        begun = time.perf_counter()
        if self.planned is None:
            record = self.simulation.step()
            return _as_json(record) | {"seconds": time.perf_counter() - begun}
        played = self.planned.step()
        if played is None:
            return None
        plan = _plan_as_json(played, self.planned.policy)
        if isinstance(self.planned.policy, LedgerPolicy):
            # By the policy's ledger: the durable one knows of later rounds that are played again.
            plan["spent"] = most_spent(self.planned.policy.ledger)
        seconds = time.perf_counter() - begun
        return _as_json(played.record) | plan | {"seconds": seconds}

    def train(self, folder: RunFolder | None = None) -> Result:
        total, every = self.config.federation.rounds, self.config.run.checkpoint_every
        simulation = self.simulation
        if self.observer is not None:
            self.observer.started(self.config, self.split, simulation.next_round)
        started = time.perf_counter()

        def seconds() -> float:
            return self.seconds_before + time.perf_counter() - started

        with stop_requests(active=folder is not None) as stop:
            while simulation.next_round < total and not self._reached():
                record = self._step()
                if record is None:
                    if folder is not None and self.records:
                        folder.write_checkpoint(self._arrays(seconds()))
                    break
                self._check(record)
                self.records.append(record)
                stopping = stop.is_set()  # once: a request from here on is for the next round
                if folder is not None:
                    folder.append_round(record)
                    due = simulation.next_round % every == 0 or simulation.next_round == total
                    if due or stopping or self._reached():
                        folder.write_checkpoint(self._arrays(seconds()))
                if self.observer is not None:
                    self.observer.round(record, total)
                over = simulation.next_round == total or self._reached()
                if stopping and folder is not None and not over:
                    raise InterruptedRunError(
                        f"stopped after round {simulation.next_round} of {total}; go on with: "
                        f"{folder.resume_command}"
                    )
        if not self.records:
            raise ConfigError("the budget pays for no round at all; give a larger --epsilon")
        spending = None
        if self.planned is not None:
            ledger, test = self.planned.ledger, self.split.test
            spending = spending_of(self.config, ledger, self.split, self.records)
            spending["planner_note"] = getattr(self.planned.policy, "note", None)
            if len(ledger.budgets.classes) > 1:
                predicted = simulation.predict(test.user, test.item)
                spending["classes"] = classes_of(ledger, test, predicted)
        result = Result(
            summary=summarise(self.config, self.facts, self.records, seconds(), spending),
            rounds=self.records,
            ratings=self.ratings,
            folder=None if folder is None else folder.path,
            simulation=simulation,
        )
        if folder is not None:
            folder.write_summary(result.summary)
        if self.observer is not None:
            self.observer.finished(result)
        return result

    def _reached(self) -> bool:
        return bool(reached_target(self.config, self.records))

    def _check(self, record: Mapping[str, Any]) -> None:
        if not (math.isfinite(record["loss"]) and math.isfinite(record["rmse"])):
            raise TrainingDivergedError(
                f"training diverged in round {record['round'] + 1}: the loss is no longer a "
                f"number. Try a smaller server.learning_rate "
                f"(now {self.config.server.learning_rate:g})"
            )


def _as_json(record: RoundRecord) -> dict[str, Any]:
    return {
        "round": record.round,
        **record.metrics._asdict(),
        "loss": record.loss,
        "clients": record.clients,
        "ratings": record.ratings,
    }


def _plan_as_json(played: PlannedRound, policy: Policy) -> dict[str, Any]:
    """What was planned and paid, for ``rounds.jsonl``; nothing that was not released."""
    plan, seen = played.plan, played.seen
    released = None
    if len(seen.aggregate) and math.isfinite(seen.noise_std):
        released = float(np.linalg.norm(seen.aggregate))
    entry: dict[str, Any] = {
        "charge": 0.0 if plan is None or not played.paid else plan.charge,
        "charges": [] if plan is None else plan.charge_by_class.tolist(),
        "paid": played.paid,
        "late": played.late,
        "dropped": played.record.dropped,
        "level": None if plan is None else plan.level,
        "clip": None if plan is None else plan.clip,
        "noise_multiplier": None if plan is None or plan.skip else plan.noise_multiplier,
        "released_norm": released,
        "noise_norm": None
        if released is None
        else seen.noise_std * math.sqrt(len(seen.aggregate)),
        "reward": played.reward,
        "left": policy.share_left().tolist() if isinstance(policy, LedgerPolicy) else [],
    }
    if played.validated is not None:
        rmse, upper = played.validated
        entry |= {"validation_rmse": rmse, "validation_upper": upper}
    if plan is not None:
        why = plan.why._asdict()
        entry["why"] = {  # lists, as the file has them
            name: value if isinstance(value, str) else list(value)
            for name, value in why.items()
            if value
        }
    return entry


def _fingerprint(split: Split) -> str:
    """One hash over all that a run is trained and tested on."""
    digest = hashlib.sha256()
    for part in (split.train, split.test):
        for array in (part.user, part.item, part.value, part.client_of_user):
            digest.update(np.ascontiguousarray(array).tobytes())
    digest.update(split.arrival.tobytes())
    return digest.hexdigest()
