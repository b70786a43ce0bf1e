"""Run a simulation from start to end, resume one, or load a finished one."""

from __future__ import annotations

import contextlib
import functools
import math
import secrets
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bgtplanner.arguments import as_path, as_settings, refuse_unless
from bgtplanner.data.ratings import Ratings
from bgtplanner.errors import RunFolderError
from bgtplanner.federation.compilation import use_compilation_cache
from bgtplanner.federation.result import RoundResult
from bgtplanner.federation.simulation import Simulation
from bgtplanner.models.learner import Learner
from bgtplanner.models.metrics import HEADLINE, METRICS, lists_of, shown
from bgtplanner.models.references import references
from bgtplanner.planning.policy import Policy
from bgtplanner.planning.registry import POLICIES
from bgtplanner.runs.assembly import (
    Given,
    coordinator_of,
    described,
    federation_of,
    ledger_of,
    model_given,
    policy_named,
    policy_of,
)
from bgtplanner.runs.config import Config, load_config
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.gains import gains_of
from bgtplanner.runs.loop import Observer, Run
from bgtplanner.runs.prepared import Prepared, people_of, ratings_from
from bgtplanner.runs.result import Result
from bgtplanner.runs.summary import (
    about_ratings,
    alone_by_round,
    as_served,
    classes_of,
    facts_of,
    lists_served,
    ranking_of,
    rounds_to_rank,
    spending_of,
    summarise,
)

RATINGS = "Ratings, a table with named columns, or the name of a data set"


def simulate(
    ratings: Ratings | str | Any = "demo",
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
        ratings: Ratings, a table with named columns such as a DataFrame, or the name of a data
            set, or the path of a table.
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
    if isinstance(ratings, Mapping) or hasattr(ratings, "columns"):
        ratings = ratings_from(ratings, as_settings(settings))
    refuse_unless(isinstance(ratings, Ratings | str), "ratings", ratings, RATINGS)
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
    result = execute(
        load_config(preset=preset, settings={**chosen, **as_settings(settings)}),
        ratings=ratings if isinstance(ratings, Ratings) else None,
        given=given,
        out=None if out is None else as_path("out", out),
        overwrite=overwrite,
        observer=observer,
    )
    if not result.ratings.implicit and np.ptp(result.ratings.value) == 0:
        name = result.ratings.name
        warnings.warn(f"{name}: all ratings are the same; there is nothing to learn", stacklevel=2)
    return result


def execute(
    config: Config,
    *,
    ratings: Ratings | None = None,
    given: Given | None = None,
    out: Path | str | None = None,
    overwrite: bool = False,
    observer: Observer | None = None,
) -> Result:
    """Run what the config says, from the first round; see :func:`simulate`."""
    if out is not None:
        RunFolder(Path(out)).check_free(overwrite)  # before minutes are spent on loading
    use_compilation_cache()
    key, given = secrets.token_hex(16), given or Given()
    prepared = Prepared(config, ratings, key)
    run = _Run(config, prepared, given, observer)
    if out is None:
        return run.train()
    if config.privacy.mechanism != "none" and given.policy is None:  # refuse before writing
        policy_of(config, ledger_of(config, prepared.ratings.n_clients)).state_dict()
    noted: dict[str, Any] = {"data": prepared.mark, "key": key, "given": list(given.names)}
    noted |= {"people": people_of(prepared.ratings), "facts": run.facts}
    with RunFolder.create(out, config, overwrite=overwrite, **noted) as folder:
        return run.train(folder)


def resume(
    path: Path | str,
    *,
    ratings: Ratings | None = None,
    model: Learner | None = None,
    policy: Policy | None = None,
    trust_code: bool = False,
    observer: Observer | None = None,
) -> Result:
    """Resume a run; it ends as if it had never been interrupted, bit for bit.

    What was given in Python is given again: the ratings, the learner, and the policy in its state
    before the first round. Code that the folder names by its address runs only with `trust_code`.

    Raises:
        RunFolderError: If the folder, its checkpoint or the ratings do not fit together, or if
            its policy no longer exists.
    """
    with RunFolder.open(as_path("path", path)) as folder:
        notes, config, given = folder.notes(), folder.config(), Given(model, policy, folder.given)
        if notes.get("saved"):
            raise RunFolderError(f"{path}: a finished run, saved without its ledger; load it")
        if folder.deployed:
            go_on = folder.resume_command
            raise RunFolderError(f"{path}: a run on real machines; continue with: {go_on}")
        if folder.summary() is not None:
            folder.forget()  # if the process that finished it was killed just before
            return load(path, ratings=ratings)
        if (name := config.planning.policy) in POLICIES.gone:
            why = f"the policy {name} {POLICIES.gone[name]}"
            raise RunFolderError(f"{path}: cannot be resumed; start a new run ({why})")
        _check_given(folder, config, given, trust_code)
        use_compilation_cache()
        begun = Result(summary={}, rounds=[], folder=folder.path, config=config, held=ratings)
        prepared = Prepared(config, begun.ratings, notes.get("key", ""))
        if prepared.mark != notes.get("data"):
            raise RunFolderError(
                f"{path}: the ratings of '{prepared.ratings.name}' are not those it was started "
                "with; bring them back, or start a new run"
            )
        return _Run(config, prepared, given, observer).train(folder, go_on=True)


def load(
    path: Path | str,
    *,
    ratings: Ratings | str | None = None,
    data_dir: str | None = None,
    model: Learner | None = None,
) -> Result:
    """Load a finished run, to predict and recommend. Nothing in the folder is changed or run.

    Args:
        path: The run folder, or one that :meth:`Result.save` has written.
        ratings: If they were given in Python; or where they are now, such as ``csv:PATH``.
        data_dir: The folder where data sets are now, if it has moved.
        model: The learner, if it was given in Python, of a folder of 0.2.

    Raises:
        RunFolderError: If the run is not finished.
    """
    folder = RunFolder(as_path("path", path))
    if (folder.path / "study.json").exists():
        raise RunFolderError(f"{path}: holds a study; read it with bgtplanner.load_study")
    folder.notes()  # refuses what another version has written
    summary, config = folder.summary(), folder.config()
    if folder.deployed:
        raise RunFolderError(
            f"{path}: a run on real machines, which have the ratings; ask a client there: "
            "bgtplanner recommend CLIENT_FOLDER"
        )
    if summary is None:
        raise RunFolderError(f"{path}: not finished; continue with: {folder.resume_command}")
    fits = ratings is None or isinstance(ratings, Ratings | str)
    refuse_unless(fits, "ratings", ratings, RATINGS)
    held = ratings if isinstance(ratings, Ratings) else None
    moved = {} if ratings is held else {"dataset": ratings}
    if data_dir is not None:
        moved["data_dir"] = str(as_path("data_dir", data_dir))
    return Result(
        summary=summary,
        rounds=folder.rounds(),
        folder=folder.path,
        config=config.model_copy(update={"data": config.data.model_copy(update=moved)}),
        given=folder.given,
        held=held,
        learner=model,
    )


def _check_given(folder: RunFolder, config: Config, given: Given, trust_code: bool) -> None:
    """Refuse to resume without the objects that were given, with others, or with strange code."""
    missing = [name for name in given.names if getattr(given, name) is None]
    addresses = {"model": config.model.name, "policy": config.planning.policy}
    code = [of for name, of in addresses.items() if ":" in of and getattr(given, name) is None]
    if missing:
        arguments = ", ".join(f"{name}=..." for name in missing)
        raise RunFolderError(
            f"{folder.path}: its {' and '.join(missing)} was given in Python; continue there: "
            f"resume(path, {arguments})"
        )
    if code and not trust_code:
        raise RunFolderError(
            f"{folder.path}: names code to run, {' and '.join(code)}. If you trust whoever made "
            "the folder, give --trust-code, or trust_code=True"
        )
    policy_named(given.policy)  # refuses what is none
    if given.model is not None:
        tree: dict[str, Any] = config.model_dump()
        for key, value in described(given.model)[0].items():
            section, _, name = key.partition(".")
            if tree[section].get(name, {}) != value:
                other = "it was started with another model; give that one"
                raise RunFolderError(f"{folder.path}: {other}")


class _Run(Run):
    """A run in simulation."""

    engine: Simulation

    def __init__(
        self, config: Config, prepared: Prepared, given: Given, observer: Observer | None
    ) -> None:
        self.prepared, self.given, ratings = prepared, given, prepared.ratings
        clients, implicit = ratings.n_clients, ratings.implicit
        simulation = Simulation(
            federation_of(
                config, ratings.n_items, given.model, clients=clients, implicit=implicit
            ),
            prepared.split,
            seed=config.run.seed,
            device=config.run.device,
            validation=config.planning.validation_share if config.validates else 0.0,
        )
        super().__init__(config, simulation, observer)
        ranks = HEADLINE in shown(config.preset)
        self._ranked_in = rounds_to_rank(config.federation.rounds) if ranks else []

    @functools.cached_property
    def facts(self) -> dict[str, Any]:
        """What is known before the first round; computed only if it is needed."""
        about, split = about_ratings(self.prepared.ratings), self.prepared.split
        return facts_of(self.config, about, references(split.train, split.test))

    def step(self) -> RoundResult | None:
        if self.planned is not None:
            return super().step()
        return self.engine.rest() if self.reached else self.engine.step()

    def inspected(self, index: int) -> dict[str, float]:
        """The NDCG@10 of the lists after some of the rounds, if it is shown."""
        if index not in self._ranked_in:
            return {}
        split = self.prepared.split
        value = float(METRICS[HEADLINE].of(lists_of(self.engine.rank, split.train, split.test)))
        return {HEADLINE: value} if math.isfinite(value) else {}

    def train(self, folder: RunFolder | None = None, *, go_on: bool = False) -> Result:
        """Play all rounds, or all after the checkpoint, and return what came of them."""
        config, data = self.config, self.prepared
        if config.privacy.mechanism != "none":
            path = None if folder is None else folder.path / "ledger.sqlite"
            self.planned = coordinator_of(
                config, self.engine, data.mark, path, policy=self.given.policy
            )
        with contextlib.closing(self):
            if folder is not None and go_on:
                self.go_on(folder)
            if self.observer is not None:
                self.observer.started(config, data.split, self.engine.next_round)
            seconds = self.carry_out(folder)
            result = Result(
                summary=self._summary(seconds),
                rounds=self.records,
                held=data.ratings,
                folder=None if folder is None else folder.path,
                simulation=self.engine,
                config=config,
                given=self.given.names,
            )
            if folder is not None:
                result.write_to(folder)
                folder.forget()
            if self.observer is not None:
                self.observer.finished(result)
            return result

    def _summary(self, seconds: float) -> dict[str, Any]:
        """The figures of the finished run."""
        split, number, goal = self.prepared.split, len(self.records), self.config.planning.goal
        predicted = self.engine.predict(split.test.user, split.test.item)
        spending, budgets = None, None
        if self.planned is not None:
            ledger = self.planned.ledger
            spending = spending_of(self.config, ledger, split, self.records)
            spending["planner_note"] = self.planned.policy.note
            if len(ledger.budgets.classes) > 1:
                budgets = ledger.budgets
                spending["classes"] = classes_of(ledger, split.test, predicted)
        found = summarise(self.config, self.facts, self.records, seconds, spending)
        found["learned"] = self.engine.learned
        found |= ranking_of(self.engine, split)
        found["gains"] = gains_of(split, predicted, number - 1, budgets)
        found[f"{HEADLINE}_served"] = lists_served(goal, self.records, found.get(HEADLINE))
        alone = alone_by_round(split, number, found["rmse_client_alone"])
        return found | {"rmse_client_alone_served": as_served(goal, alone or [])}
