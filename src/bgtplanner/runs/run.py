"""Run a simulation from start to end, resume one, or load a finished one."""

from __future__ import annotations

import functools
import math
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bgtplanner.arguments import as_path, as_settings, refuse_unless
from bgtplanner.data.ratings import Ratings
from bgtplanner.errors import RunFolderError
from bgtplanner.federation.compilation import use_compilation_cache
from bgtplanner.federation.result import RoundResult
from bgtplanner.federation.simulation import Simulation
from bgtplanner.models.learner import Learner
from bgtplanner.models.metrics import HEADLINE, METRICS, lists_of, shown
from bgtplanner.planning.policy import Policy
from bgtplanner.planning.registry import POLICIES
from bgtplanner.runs import assembly, summary
from bgtplanner.runs.config import Config, load_config
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.loop import Observer, Run
from bgtplanner.runs.result import Result

RATINGS = "Ratings, a table with named columns, or the name of a data set"


class _Simulated(Run):
    """A run in simulation: the ratings, how they are split, and their mark by a secret key."""

    engine: Simulation

    def __init__(
        self, config: Config, ratings: Ratings | None, key: str, observer: Observer | None
    ) -> None:
        self.ratings = ratings = assembly.ratings_of(config) if ratings is None else ratings
        self.split = assembly.split_of(config, ratings)
        self.mark = assembly.fingerprint_of(self.split, key)
        federation = assembly.federation_of(
            config, ratings.n_items, clients=ratings.n_clients, implicit=ratings.implicit
        )
        seed, device = config.run.seed, config.run.device
        simulation = Simulation(federation, self.split, seed=seed, device=device)
        super().__init__(config, simulation, observer)
        self.checkpoint_every = config.run.checkpoint_every
        ranks = HEADLINE in shown(config.preset)
        self._ranked_in = summary.rounds_to_rank(config.federation.rounds) if ranks else []

    @functools.cached_property
    def facts(self) -> dict[str, Any]:
        """What is known before the first round; computed only if it is needed."""
        train = self.split.train
        return summary.facts_of(self.config, train.n_clients, train.n_items, self.split)

    def step(self) -> RoundResult | None:
        return self.engine.step() if self.planned is None else super().step()

    def inspected(self, index: int) -> dict[str, float]:
        """The NDCG@10 of the lists after some of the rounds, if it is shown."""
        if index not in self._ranked_in:
            return {}
        lists = lists_of(self.engine.rank, self.split.train, self.split.test)
        value = float(METRICS[HEADLINE].of(lists))
        return {HEADLINE: value} if math.isfinite(value) else {}

    def train(self, folder: RunFolder | None = None, *, go_on: bool = False) -> Result:
        """Play all rounds, or all after the checkpoint, and return what came of them."""
        config, split, self.folder = self.config, self.split, folder
        ledger = None
        if config.private:
            path = None if folder is None else folder.path / "ledger.sqlite"
            self.planned = assembly.coordinator_of(config, self.engine, self.mark, path)
            ledger = self.planned.ledger
        with self:
            if go_on:
                self.go_on()
            if self.observer is not None:
                self.observer.started(config, split, self.engine.next_round)
            seconds, records = self.carry_out(), self.records
            found = summary.summarise(config, self.facts, records, seconds, self.spending(split))
            alone, goal = found["rmse_client_alone"], config.planning.goal
            found |= summary.tested(self.engine, split, records, alone, goal, ledger)
            result = Result(
                summary=found,
                rounds=records,
                held=self.ratings,
                folder=None if folder is None else folder.path,
                simulation=self.engine,
                config=config,
            )
            if folder is not None:
                result.write_to(folder)
                folder.forget()
            if self.observer is not None:
                self.observer.finished(result)
            return result


def simulate(
    ratings: Ratings | str | Any = "demo",
    *,
    model: type[Learner] | str | None = None,
    policy: type[Policy] | str | None = None,
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
            a class.
        policy: A name, ``package.module:Class``, or a class.
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
        ratings = assembly.ratings_from(ratings, as_settings(settings))
    refuse_unless(isinstance(ratings, Ratings | str), "ratings", ratings, RATINGS)
    held = ratings if isinstance(ratings, Ratings) else None
    named = {
        "data.dataset": ratings if held is None else held.name,
        "privacy.epsilon": epsilon,
        "privacy.mechanism": mechanism,
        "federation.rounds": rounds,
        "run.seed": seed,
    }
    chosen = assembly.classes_given(model, policy)
    chosen |= {key: value for key, value in named.items() if value is not None}
    return execute(
        load_config(preset=preset, settings=chosen | as_settings(settings)),
        ratings=held,
        out=None if out is None else as_path("out", out),
        overwrite=overwrite,
        observer=observer,
    )


def execute(
    config: Config,
    *,
    ratings: Ratings | None = None,
    out: Path | str | None = None,
    overwrite: bool = False,
    observer: Observer | None = None,
) -> Result:
    """Run what the config says, from the first round; see :func:`simulate`."""
    if out is not None:
        RunFolder(Path(out)).check_free(overwrite)  # before minutes are spent on loading
    use_compilation_cache()
    key = secrets.token_hex(16)
    run = _Simulated(config, ratings, key, observer)
    if out is None:
        return run.train()
    if config.private:  # refuse before writing
        ledger = assembly.ledger_of(config, run.ratings.n_clients)
        assembly.policy_of(config, ledger).state_dict()
    noted: dict[str, Any] = {"data": run.mark, "key": key, "facts": run.facts}
    noted["people"] = assembly.people_of(run.ratings)
    with RunFolder.create(out, config, overwrite=overwrite, **noted) as folder:
        return run.train(folder)


def resume(
    path: Path | str,
    *,
    ratings: Ratings | None = None,
    model: type[Learner] | None = None,
    policy: type[Policy] | None = None,
    trust_code: bool = False,
    observer: Observer | None = None,
) -> Result:
    """Resume a run; it ends as if it had never been interrupted, bit for bit.

    Ratings that were given in Python are given again. Code that the folder names by its address
    runs only with `trust_code`, or if it is that of the model or of the policy that is given.

    Raises:
        RunFolderError: If the folder, its checkpoint or the ratings do not fit together, or if
            its policy no longer exists.
    """
    with RunFolder.open(as_path("path", path)) as folder:
        notes, config = folder.notes(), folder.config()
        if folder.deployed:
            go_on = folder.resume_command
            raise RunFolderError(f"{path}: a run on real machines; continue with: {go_on}")
        if folder.summary() is not None:
            folder.forget()  # if the process that finished it was killed just before
            return load(path, ratings=ratings)
        if (name := config.planning.policy) in POLICIES.gone:
            why = f"the policy {name} {POLICIES.gone[name]}"
            raise RunFolderError(f"{path}: cannot be resumed; start a new run ({why})")
        _check_code(folder, config, model, policy, trust_code)
        use_compilation_cache()
        begun = Result(summary={}, rounds=[], folder=folder.path, config=config, held=ratings)
        run = _Simulated(config, begun.ratings, notes.get("key", ""), observer)
        if run.mark != notes.get("data"):
            others = f"the ratings of '{run.ratings.name}' are not those it was started with"
            raise RunFolderError(f"{path}: {others}; bring them back, or start a new run")
        return run.train(folder, go_on=True)


def _check_code(
    folder: RunFolder, config: Config, model: Any, policy: Any, trust_code: bool
) -> None:
    """Refuse to run strange code, and to go on with another model or policy."""
    stated = assembly.classes_given(model, policy)
    named = {"model.name": config.model.name, "planning.policy": config.planning.policy}
    if any(stated.get(key, of) != of for key, of in named.items()):
        problem = "it was started with another model or policy; give that one"
        raise RunFolderError(f"{folder.path}: {problem}")
    code = [of for key, of in named.items() if ":" in of and key not in stated]
    if code and not trust_code:
        then = "If you trust whoever made the folder, give --trust-code, or trust_code=True"
        raise RunFolderError(f"{folder.path}: names code to run, {' and '.join(code)}. {then}")


def load(path: Path | str, *, ratings: Ratings | str | None = None) -> Result:
    """Load a finished run, to predict and recommend. Nothing in the folder is changed or run.

    Args:
        path: The run folder.
        ratings: If they were given in Python; or where they are now, such as ``csv:PATH``.

    Raises:
        RunFolderError: If the run is not finished.
    """
    folder = RunFolder(as_path("path", path))
    folder.notes()  # refuses what another version has written
    found, config = folder.summary(), folder.config()
    if folder.deployed:
        ask = "which have the ratings; ask a client there: bgtplanner recommend CLIENT_FOLDER"
        raise RunFolderError(f"{path}: a run on real machines, {ask}")
    if found is None:
        raise RunFolderError(f"{path}: not finished; continue with: {folder.resume_command}")
    fits = ratings is None or isinstance(ratings, Ratings | str)
    refuse_unless(fits, "ratings", ratings, RATINGS)
    held = ratings if isinstance(ratings, Ratings) else None
    moved = {} if ratings is held else {"dataset": ratings}
    if not Path(config.data.data_dir or ".").is_dir():  # the environment may say where it is now
        moved["data_dir"] = None
    return Result(
        summary=found,
        rounds=folder.rounds(),
        folder=folder.path,
        config=config.model_copy(update={"data": config.data.model_copy(update=moved)}),
        held=held,
    )
