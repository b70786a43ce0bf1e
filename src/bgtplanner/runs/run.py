"""Run a simulation from start to end, resume one, or load a finished one."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bgtplanner.arguments import as_path, as_settings, refuse_unless
from bgtplanner.data.catalogue import ItemsFormat
from bgtplanner.data.datasets import dataset_info, load_ratings, with_items
from bgtplanner.data.ratings import Ratings
from bgtplanner.data.split import Split, Within, deal_users, split_ratings
from bgtplanner.data.synthetic import synthetic_ratings
from bgtplanner.errors import ConfigError, DataError, RunFolderError, TrainingDivergedError
from bgtplanner.federation.compilation import use_compilation_cache
from bgtplanner.federation.result import RoundResult
from bgtplanner.federation.simulation import Simulation
from bgtplanner.models.learner import MODELS, Learner
from bgtplanner.models.metrics import METRICS, lists_of, shown
from bgtplanner.models.references import References, references
from bgtplanner.planning.policy import Policy
from bgtplanner.planning.registry import POLICIES
from bgtplanner.runs.assembly import check_planning, coordinator_of, described, federation_of
from bgtplanner.runs.config import Config, check_policy, load_config
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.gains import gains_of
from bgtplanner.runs.loop import Run
from bgtplanner.runs.observers import Observer
from bgtplanner.runs.recommending import example_users, examples_of, number_of_examples
from bgtplanner.runs.result import Result
from bgtplanner.runs.saving import found_again, saved_ratings
from bgtplanner.runs.summary import (
    about_ratings,
    alone_by_round,
    as_served,
    classes_of,
    facts_of,
    lists_served,
    ranking_of,
    rankings_beside,
    rounds_to_rank,
    spending_of,
    summarise,
)

__all__ = [
    "RATINGS",
    "Given",
    "Observer",
    "Prepared",
    "Result",
    "execute",
    "fingerprint_of",
    "load",
    "model_given",
    "policy_named",
    "ratings_of",
    "resume",
    "simulate",
    "split_of",
]


_LISTS = "ndcg_at_10"  # measured in some of the rounds, too
_LOST = 1e6  # no parameter that predicts ratings from 0 to 1 is anywhere near

RATINGS = "Ratings, or the name of a data set; of a table: Ratings.from_frame(table)"
"""What stands for ratings in a call."""


class Given(NamedTuple):
    """Objects that were given in Python in place of a name.

    Attributes:
        model: A learner.
        policy: A policy, in its state before the first round.
        names: Those that the settings alone do not determine.
    """

    model: Learner | None = None
    policy: Policy | None = None
    names: tuple[str, ...] = ()


class Prepared:
    """Ratings as runs use them, and what can be said of them without any training.

    Runs whose settings differ in the model, the mechanism or the policy can share it: it only
    depends on the data, the seed and the number of rounds.
    """

    def __init__(self, config: Config, ratings: Ratings) -> None:
        self.ratings, self.split = ratings, split_of(config, ratings)
        self._alone: dict[int, list[float] | None] = {}

    @functools.cached_property
    def mark(self) -> str:
        """A hash of all that a run is trained and tested on."""
        return fingerprint_of(self.split)

    @functools.cached_property
    def references(self) -> References:
        """The scores of what needs no one else."""
        return references(self.split.train, self.split.test)

    @functools.cached_property
    def rankings(self) -> dict[str, float]:
        """The scores of the rankings that need no model."""
        return rankings_beside(self.split)

    def alone(self, rounds: int, last: float | None) -> list[float] | None:
        """The error of a client alone after each of so many rounds; `last` is that of the end."""
        if rounds not in self._alone:
            self._alone[rounds] = alone_by_round(self.split, rounds, last)
        return self._alone[rounds]


def simulate(
    ratings: Ratings | str = "demo",
    *,
    model: Learner | str | None = None,
    policy: Policy | type[Policy] | str | None = None,
    epsilon: float | None = None,
    mechanism: str | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    preset: str = "recommended",
    settings: Mapping[str, Any] | None = None,
    out: Path | str | None = None,
    overwrite: bool = False,
    observer: Observer | None = None,
) -> Result:
    """Train a federated recommender and return the result.

    Args:
        ratings: Ratings, or the name of a data set, ``csv:PATH`` or ``parquet:PATH``.
        model: ``tastes``, ``biases``, ``factorization``, ``fedgnn``, ``package.module:Class``, or
            a learner.
        policy: A name, ``package.module:Class``, a class, or a policy made for these clients.
        epsilon: Budget of each client over the whole run.
        mechanism: What protects the uploads: ``gaussian``, ``laplace``, ``privunit`` or ``none``.
        rounds: How many rounds.
        seed: Seed of the split and of everything that is drawn at random.
        preset: ``recommended`` or ``paper``.
        settings: Any other config keys, such as ``{"server.learning_rate": 0.02}``.
        out: Run folder to write; by default nothing is written.
        overwrite: Whether to replace a run in that folder.
        observer: Is told about every round.

    Example:
        >>> result = simulate("demo", rounds=5)
        >>> result.summary["rmse_final"] < result.summary["rmse_constant"]
        True
    """
    refuse_unless(isinstance(ratings, Ratings | str), "ratings", ratings, RATINGS)
    fits = observer is None or all(hasattr(observer, of) for of in ("started", "round"))
    refuse_unless(fits, "observer", observer, "an object that inherits from Observer")
    said, given = model_given(model)
    named: dict[str, Any] = said | {
        "data.dataset": ratings.name if isinstance(ratings, Ratings) else ratings,
        "privacy.epsilon": epsilon,
        "privacy.mechanism": mechanism,
        "federation.rounds": rounds,
        "run.seed": seed,
        "planning.policy": policy_named(policy),
    }
    if policy is not None and not isinstance(policy, str | type):
        given = given._replace(policy=policy, names=(*given.names, "policy"))
    chosen = {key: value for key, value in named.items() if value is not None}
    config = load_config(preset=preset, settings={**chosen, **as_settings(settings)})
    own = ratings if isinstance(ratings, Ratings) else None
    out = None if out is None else as_path("out", out)
    result = execute(
        config, ratings=own, given=given, out=out, overwrite=overwrite, observer=observer
    )
    if not result.ratings.implicit and np.ptp(result.ratings.value) == 0:
        name = result.ratings.name
        warnings.warn(f"{name}: all ratings are the same; there is nothing to learn", stacklevel=2)
    return result


def model_given(model: Learner | str | None) -> tuple[dict[str, Any], Given]:
    """The settings that a model in Python stands for, and the object if it is one.

    Raises:
        ConfigError: If it is not a model.
    """
    if model is None or isinstance(model, str):
        return {"model.name": model} if model is not None else {}, Given()
    if isinstance(model, type):
        raise ConfigError(
            f"model = the class {model.__name__}: expected an object, such as {model.__name__}()"
        )
    said, whole = described(model)
    return said, Given(model=model, names=() if whole else ("model",))


def policy_named(policy: Policy | type[Policy] | str | None) -> str | None:
    """The name of a policy that was given by its name, as a class or as an object.

    Raises:
        ConfigError: If it is not a policy.
    """
    if policy is None or isinstance(policy, str):
        return policy
    return POLICIES.named(policy if isinstance(policy, type) else type(policy))


def execute(
    config: Config,
    *,
    ratings: Ratings | None = None,
    data: Callable[[Config], Prepared] | None = None,
    given: Given | None = None,
    out: Path | str | None = None,
    overwrite: bool = False,
    observer: Observer | None = None,
    lists: bool = True,
    stop: Callable[[], bool] | None = None,
) -> Result:
    """Run what the config says, from the first round.

    Args:
        config: The settings.
        ratings: The ratings, if not those that the config names.
        data: Instead of them, returns what runs with the same data, seed and number of rounds
            share.
        given: Objects in place of names.
        out: Run folder to write; by default nothing is written.
        overwrite: Whether to replace a run in that folder.
        observer: Is told about every round.
        lists: Whether to score the lists that users would be shown, too.
        stop: Asked after every round whether to stop, besides Ctrl-C.
    """
    if out is not None:
        RunFolder(Path(out)).check_free(overwrite)  # before minutes are spent on loading
    use_compilation_cache()
    given = given or Given()
    if data is not None:
        prepared = data(config)
    else:
        prepared = Prepared(config, ratings_of(config) if ratings is None else ratings)
    run = _Run(config, prepared, observer, given, lists=lists, stop=stop)
    if out is None:
        run.open_ledger(None)
        return run.train()
    if config.privacy.mechanism != "none":
        clients = prepared.ratings.n_clients
        check_planning(config, clients, given.policy)  # before there is a folder
    with RunFolder.create(
        out,
        config,
        fingerprint=prepared.mark,
        facts=run.facts,
        overwrite=overwrite,
        given=given.names,
    ) as folder:
        run.open_ledger(folder)
        with contextlib.closing(run):
            return run.train(folder)


def resume(
    path: Path | str,
    *,
    ratings: Ratings | None = None,
    model: Learner | None = None,
    policy: Policy | None = None,
    observer: Observer | None = None,
    stop: Callable[[], bool] | None = None,
) -> Result:
    """Resume a run; it ends as if it had never been interrupted, bit for bit.

    Args:
        path: The run folder.
        ratings: The ratings that it was started with, if they were given in Python.
        model: The learner, likewise.
        policy: The policy, likewise, in its state before the first round.
        observer: Is told about every round.
        stop: Asked after every round whether to stop, besides Ctrl-C.

    Raises:
        RunFolderError: If the folder, its checkpoint or the ratings do not fit together, or if
            its policy no longer exists.
    """
    use_compilation_cache()
    fits = ratings is None or isinstance(ratings, Ratings)
    refuse_unless(fits, "ratings", ratings, "Ratings")
    with RunFolder.open(as_path("path", path)) as folder:
        if folder.saved:
            raise RunFolderError(f"{path}: a finished run, saved without its ledger; load it")
        if folder.deployed:
            raise RunFolderError(
                f"{path}: a run on real machines; continue with: {folder.resume_command}"
            )
        config = folder.config()
        given = _given_again(folder, config, "resume", model, policy)
        try:
            check_policy(config.planning.policy)
        except ConfigError as error:
            raise RunFolderError(
                f"{path}: cannot be resumed; start a new run ({error})"
            ) from error
        ratings = _ratings_of_folder(folder, config, "resume") if ratings is None else ratings
        data = Prepared(config, ratings)
        run = _Run(config, data, observer, given, stop=stop)
        if data.mark != folder.notes().get("data"):
            raise RunFolderError(
                f"{path}: the ratings of '{config.data.dataset}' are not those it was started "
                "with; bring them back, or start a new run"
            )
        run.open_ledger(folder)
        with contextlib.closing(run):
            checkpoint = folder.checkpoint()
            if checkpoint is not None:
                run.restore(checkpoint)
            run.records = folder.keep_rounds(run.simulation.next_round)
            return run.train(folder)


def load(
    path: Path | str,
    *,
    ratings: Ratings | str | None = None,
    data_dir: str | None = None,
    model: Learner | None = None,
    unfinished: bool = False,
) -> Result:
    """Load a finished run, to predict, recommend or export. Nothing in the folder is changed.

    It works from any folder and after the run folder has moved: a table of ratings that was
    named by a relative path is looked for here, where it was, and beside the run folder.

    Args:
        path: The run folder, or one that :meth:`Result.save` has written.
        ratings: The ratings that it was started with, if they were given in Python; or where
            they are now, such as ``csv:PATH``, if the file has moved.
        data_dir: The folder where data sets are now, if it has moved.
        model: The learner, if it was given in Python.
        unfinished: Whether a run that is not finished may be loaded, as of its last checkpoint.
            It can go on at the same time.

    Raises:
        RunFolderError: If the run is not finished, or was started with other ratings.
    """
    expected = "Ratings, or where they are now, such as csv:PATH"
    fits = ratings is None or isinstance(ratings, Ratings | str)
    refuse_unless(fits, "ratings", ratings, expected)
    data_dir = None if data_dir is None else str(as_path("data_dir", data_dir))
    use_compilation_cache()
    folder = RunFolder(as_path("path", path))
    if (folder.path / "study.json").exists():
        raise RunFolderError(f"{path}: holds a study; read it with bgtplanner.load_study")
    notes, summary = folder.notes(), folder.summary(whole=True)
    if summary is None and not unfinished:
        raise RunFolderError(f"{path}: not finished; continue with: {folder.resume_command}")
    if folder.deployed:
        raise RunFolderError(
            f"{path}: a run on real machines, which have the ratings; ask a client there: "
            "bgtplanner recommend CLIENT_FOLDER"
        )
    config = folder.config()
    given = _given_again(folder, config, "load", model)
    checkpoint = folder.checkpoint()
    if summary is None and checkpoint is None:
        raise RunFolderError(
            f"{path}: not finished, without a checkpoint yet; try again after round "
            f"{config.run.checkpoint_every}, or continue with: {folder.resume_command}"
        )
    if not isinstance(ratings, Ratings):
        places = {"dataset": ratings, "data_dir": data_dir}
        moved = {name: place for name, place in places.items() if place is not None}
        own = None if moved else saved_ratings(folder)
        now = config.model_copy(update={"data": config.data.model_copy(update=moved)})
        ratings = _ratings_of_folder(folder, now, "load") if own is None else own
    data = Prepared(config, ratings)
    run = _Run(config, data, None, given)
    if data.mark != notes.get("data") or checkpoint is None:
        raise RunFolderError(
            f"{path}: has no checkpoint, or the ratings of '{ratings.name}' are not those "
            "it was started with; bring both back, or run it again"
        )
    # What the server remembers is for training alone; earlier versions remembered less.
    fresh = run.simulation.arrays().items()
    run.restore({name: of for name, of in fresh if name.startswith("memory/")} | checkpoint)
    done = run.simulation.next_round
    return Result(
        summary=notes.get("facts", {}) if summary is None else summary,
        rounds=folder.rounds(done) if summary is None else folder.rounds(whole=True),
        ratings=ratings,
        folder=folder.path,
        simulation=run.simulation,
        unfinished=(done, config.federation.rounds) if summary is None else None,
        config=config,
        given=folder.given,
    )


def _given_again(
    folder: RunFolder,
    config: Config,
    call: str,
    model: Learner | None,
    policy: Policy | None = None,
) -> Given:
    """The objects given now, after checking that none is missing, and that the model is the same.

    Raises:
        RunFolderError: If one is missing, or the model has other settings.
    """
    given = Given(model, policy)
    needed = [name for name in folder.given if (call, name) != ("load", "policy")]
    if missing := [name for name in needed if getattr(given, name) is None]:
        arguments = ", ".join(f"{name}=..." for name in missing)
        raise RunFolderError(
            f"{folder.path}: its {' and '.join(missing)} was given in Python; continue there: "
            f"{call}(path, {arguments})"
        )
    if policy is not None:
        POLICIES.named(type(policy))
    if model is not None:
        MODELS.named(type(model))
        there: dict[str, Any] = config.model_dump()
        for key, value in described(model)[0].items():
            section, _, name = key.partition(".")
            if there[section].get(name, {}) != value:
                raise RunFolderError(
                    f"{folder.path}: it was started with another model; give that one"
                )
    return given


def _ratings_of_folder(folder: RunFolder, config: Config, call: str) -> Ratings:
    try:
        return ratings_of(found_again(config, folder))
    except (ConfigError, DataError) as error:
        moved = " If the file has moved, give it with --ratings csv:PATH." * (call == "load")
        raise RunFolderError(
            f"{folder.path}: its data cannot be loaded by name ({error}).{moved} If they were "
            f"given in Python, continue there: {call}(path, ratings=...)"
        ) from error


def ratings_of(config: Config) -> Ratings:
    """Load the ratings that a config names, with their catalogue."""
    data = config.data
    words = tuple(name.strip() for name in (data.items_words or "").split(",") if name.strip())
    columns = ItemsFormat(item=data.items_column, words=words)
    how: dict[str, Any] = {"items_format": None if columns == ItemsFormat() else columns}
    if data.dataset == "synthetic":
        made = synthetic_ratings(
            **config.synthetic.model_dump(), seed=config.run.seed, catalogue=data.items == "auto"
        )
        info = dataset_info(data.dataset)
        ratings = with_items(made, info, data.items, unknown=data.unknown_items, **how)
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
            items=data.items,
            unknown_items=data.unknown_items,
            **how,
        )
    if data.clients is not None:
        ratings = deal_users(ratings, data.clients, seed=config.run.seed)
    return ratings


def split_of(config: Config, ratings: Ratings) -> Split:
    """Split the ratings as the config says.

    Raises:
        DataError: If there are too few ratings for a training set and a test set, or no times.
    """
    data = config.data
    within: Within
    if data.split == "auto":
        within = "user"
        with contextlib.suppress(ConfigError):  # ratings given in Python may have any name
            within = dataset_info(data.dataset).split_within
    else:
        within = data.split
    split = split_ratings(
        ratings,
        seed=config.run.seed,
        rounds=config.federation.rounds,
        train_share=data.train_share,
        within=within,
        leave_last=data.leave_last,
        initial_share=data.initial_share,
        arrival=data.arrival,
    )
    if not len(split.test) or not len(split.train):
        raise DataError(
            f"{ratings.name}: too few ratings to hold out a test set "
            f"({len(split.train)} for training, {len(split.test)} for the test); give more, or "
            "another data.train_share"
        )
    return split


class _Run(Run):
    """A run in simulation."""

    simulation: Simulation
    observer: Observer | None

    def __init__(
        self,
        config: Config,
        prepared: Prepared,
        observer: Observer | None,
        given: Given,
        *,
        lists: bool = True,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        self.prepared, self.given, self.lists = prepared, given, lists
        ratings, self.split = prepared.ratings, prepared.split
        federation = federation_of(
            config,
            ratings.n_items,
            given.model,
            clients=ratings.n_clients,
            implicit=ratings.implicit,
        )
        simulation = Simulation(
            federation,
            self.split,
            seed=config.run.seed,
            device=config.run.device,
            devices=config.run.devices,
            validation=config.planning.validation_share if config.validates else 0.0,
        )
        super().__init__(config, simulation, observer, stop)
        ranks = lists and _LISTS in shown(config.preset)
        self._ranked_in = set(rounds_to_rank(config.federation.rounds) if ranks else ())

    @functools.cached_property
    def facts(self) -> dict[str, Any]:
        """What is known before the first round; computed only if it is needed."""
        about = about_ratings(self.prepared.ratings)
        return facts_of(self.config, about, self.prepared.references)

    def open_ledger(self, folder: RunFolder | None) -> None:
        """Open the ledger and make the coordinator, unless there is no mechanism."""
        if self.config.privacy.mechanism != "none":
            path = None if folder is None else folder.path / "ledger.sqlite"
            self.planned = coordinator_of(
                self.config, self.simulation, self.prepared.mark, path, policy=self.given.policy
            )

    def step(self) -> RoundResult | None:
        if self.planned is not None:
            return super().step()
        begun = time.perf_counter()
        played = self.simulation.rest() if self.reached() else self.simulation.step()
        return replace(played, seconds=time.perf_counter() - begun)

    def train(self, folder: RunFolder | None = None) -> Result:
        """Play all remaining rounds, and return what came of them."""
        if self.observer is not None:
            self.observer.started(self.config, self.split, self.simulation.next_round)
        seconds, ratings = self.carry_out(folder), self.prepared.ratings
        result = Result(
            summary=self._summary(seconds),
            rounds=self.records,
            ratings=ratings,
            folder=None if folder is None else folder.path,
            simulation=self.simulation,
            config=self.config,
            given=self.given.names,
        )
        if folder is not None:
            users = example_users(ratings, number_of_examples(self.config) if self.lists else 0)
            lists = examples_of(ratings, self.simulation, users)
            if lists is not None:
                folder.write_examples(lists)
            folder.write_summary(result.summary)
        if self.observer is not None:
            self.observer.finished(result)
        return result

    def _summary(self, seconds: float) -> dict[str, Any]:
        """The figures of the finished run."""
        test, number, goal = self.split.test, len(self.records), self.config.planning.goal
        predicted = functools.cache(lambda: self.simulation.predict(test.user, test.item))
        spending, budgets = None, None
        if self.planned is not None:
            ledger = self.planned.ledger
            spending = spending_of(self.config, ledger, self.split, self.records)
            spending["planner_note"] = self.planned.policy.note
            if len(ledger.budgets.classes) > 1:
                budgets = ledger.budgets
                spending["classes"] = classes_of(ledger, test, predicted())
        found = summarise(self.config, self.facts, self.records, seconds, spending)
        found["learned"] = self.simulation.learned
        if self.lists:
            found |= ranking_of(self.simulation, self.split, self.prepared.rankings)
            found["gains"] = gains_of(self.split, predicted(), number - 1, budgets)
        found[f"{_LISTS}_served"] = lists_served(goal, self.records, found.get(_LISTS))
        alone = self.prepared.alone(number, found["rmse_client_alone"])
        served = None if alone is None else as_served(goal, alone)
        return found | {"rmse_client_alone_served": served}

    def measured(self, index: int) -> dict[str, float]:
        """The NDCG@10 of the lists after some of the rounds, if it is shown."""
        if index not in self._ranked_in:
            return {}
        lists = lists_of(self.simulation.rank, self.split.train, self.split.test)
        value = float(METRICS[_LISTS].of(lists))
        return {_LISTS: value} if math.isfinite(value) else {}

    def check(self) -> None:
        """End a run whose model is lost; whether it is, what was released says, not a test."""
        shared = self.simulation.state.shared
        parts = [np.asarray(part) for part in (shared.items, shared.dense)]
        if not all((np.abs(part) < _LOST).all() for part in parts):  # NaN is not, either
            raise TrainingDivergedError(
                f"training diverged in round {self.simulation.next_round}: the model's parameters "
                f"grow without end. Try a smaller server.learning_rate "
                f"(now {self.config.server.learning_rate:g})"
            )


def fingerprint_of(split: Split) -> str:
    """A hash of all that a run is trained and tested on: ratings, and features of items."""
    digest = hashlib.sha256()
    for part in (split.train, split.test):
        for array in (part.user, part.item, part.value, part.client_of_user):
            digest.update(np.ascontiguousarray(array).tobytes())
    digest.update(split.arrival.tobytes())
    if (catalogue := split.train.catalogue) is not None:
        digest.update("\0".join((*catalogue.labels, *catalogue.names)).encode())
        digest.update(np.ascontiguousarray(catalogue.features).tobytes())
    return digest.hexdigest()
