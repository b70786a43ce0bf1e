"""Compare policies: run all cells of a study, one by one or side by side, and sum them up.

A cell that has a ``summary.json`` is never run again, and only that file and its settings are
read; a cell that was interrupted is resumed. An error in a cell is the outcome of that cell, and
does not affect the others.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import shlex
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from bgtplanner.arguments import as_path, as_settings, as_whole, refuse_unless
from bgtplanner.cores import cores
from bgtplanner.data.ratings import Ratings
from bgtplanner.errors import BGTPlannerError, ConfigError, InterruptedRunError, StorageError
from bgtplanner.models.learner import Learner
from bgtplanner.planning.policy import Policy
from bgtplanner.planning.registry import POLICIES
from bgtplanner.runs import run as runner
from bgtplanner.runs.assembly import Given, model_given, policy_named
from bgtplanner.runs.config import Config, differences
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.interrupts import stop_requests
from bgtplanner.runs.observers import Observer
from bgtplanner.runs.prepared import Prepared
from bgtplanner.runs.statistics import Comparison, Outcome, finished_cells, outcome_of, summed_up
from bgtplanner.runs.study import Cell, Study, default_policies
from bgtplanner.runs.tables import write_tables

Tell = Callable[[Cell, int, int], None]
"""Called with a cell, its number of finished rounds, and the number of all its rounds."""


class Objects(NamedTuple):
    """Objects that were given in Python in place of names, for all cells of a study.

    Attributes:
        ratings: By the name under which the study has them.
        given: The model.
        policies: Classes, which other processes may not be able to import.
    """

    ratings: Mapping[str, Ratings] = MappingProxyType({})
    given: Given = Given()
    policies: tuple[type[Policy], ...] = ()


class StudyObserver(Protocol):
    """Observes a study; about `left` seconds remain."""

    def study_started(self, total: int, finished: int, left: float | None) -> None:
        """The study has `total` cells, `finished` of them already."""

    def cell_round(self, cell: Cell, done: int, total: int) -> None:
        """A cell that runs in this process has finished another round."""

    def cell_finished(self, outcome: Outcome, left: float | None) -> None:
        """A cell is done or has failed."""


def compare(
    ratings: Ratings | str | Iterable[Ratings | str] = "demo",
    policies: type[Policy] | str | Iterable[type[Policy] | str] | None = None,
    *,
    model: Learner | str | None = None,
    mechanisms: str | Iterable[str] = "gaussian",
    seeds: int | Iterable[int] = range(5),
    preset: str = "recommended",
    epsilon: float | None = None,
    rounds: int | None = None,
    settings: Mapping[str, Any] | None = None,
    baseline: str | None = None,
    out: Path | str | None = None,
    jobs: int = 1,
    observer: StudyObserver | None = None,
) -> Comparison:
    """Run every policy on every data set, with every mechanism and seed, and compare them.

    A cell that fails is listed in `failed` of the result, and does not stop the others.

    Args:
        ratings: Ratings, or the name of a data set or ``csv:PATH``; one or several.
        policies: Names, ``package.module:Class`` or classes of policies, one or several; by
            default that of a run, and others that it is usually compared with.
        model: The model of all runs, as in :func:`simulate`.
        mechanisms: Names such as ``gaussian`` and ``laplace``; ``unlimited`` runs once, without.
        seeds: Seeds of the split and of everything that is drawn at random.
        preset: ``recommended`` or ``paper``.
        epsilon: Budget of each client over the whole run.
        rounds: How many rounds each run has.
        settings: Any other config keys, such as ``{"server.learning_rate": 0.02}``.
        baseline: The policy that the others are compared with.
        out: Folder for the runs and tables. Called again with the same folder, it runs only
            what is not finished. By default nothing is kept.
        jobs: How many cells to run at a time: processes on this machine, or wherever joblib's
            ``parallel_config`` says, such as a Dask cluster that shares the folder.
        observer: Is told about every cell.

    Raises:
        ConfigError: If a cell cannot be run; raised before anything is run.
        InterruptedRunError: If it was stopped from outside; the same call continues.

    Example:
        >>> found = compare("demo", "unlimited", seeds=0, rounds=2)
        >>> found.rows[0].policy, found.rows[0].figures["rmse_final"].seeds
        ('unlimited', 1)
    """
    own, model_of_all = model_given(model)
    single = {"privacy.epsilon": epsilon, "federation.rounds": rounds}
    own |= {key: of for key, of in single.items() if of is not None} | as_settings(settings)
    every = _several("ratings", ratings, Ratings | str, runner.RATINGS)
    names = [one if isinstance(one, str) else one.name for one in every]
    objects = {one.name: one for one in every if isinstance(one, Ratings)}
    for name in objects:
        expected = "a name of their own for each: Ratings.from_arrays(..., name=...)"
        refuse_unless(names.count(name) == 1, "ratings", name, expected)
    if policies is None:
        policies = default_policies(preset, own)
    kind = "names or classes of policies; an object can plan a single run only"
    chosen = _several("policies", policies, type | str, kind)
    study = Study(
        datasets=tuple(names),
        mechanisms=_several("mechanisms", mechanisms, str, "names of mechanisms"),
        policies=tuple(str(policy_named(policy)) for policy in chosen),
        seeds=tuple(as_whole("seeds", seed, 0) for seed in _several("seeds", seeds, object, "")),
        preset=preset,
        settings=own,
        baseline=baseline,
        given=tuple(objects),
    )
    classes = tuple(policy for policy in chosen if isinstance(policy, type))
    kept = None if out is None else as_path("out", out)
    with tempfile.TemporaryDirectory(prefix="bgtplanner-") as temporary:
        place = kept or Path(temporary)
        done = run_study(
            study,
            place,
            jobs=jobs,
            observer=observer,
            objects=Objects(objects, model_of_all, classes),
        )
        found = replace(summed_up(study, done), folder=kept)
        write_tables(found, place)
    return found


def _several(name: str, given: Any, kind: Any, expected: str) -> tuple[Any, ...]:
    """What was given as one or as several, after checking that each is of its kind."""
    one = isinstance(given, Ratings | str | type) or not isinstance(given, Iterable)
    found = (given,) if one else tuple(given)
    for entry in found:
        refuse_unless(isinstance(entry, kind), name, entry, expected)
    return found


def run_study(
    study: Study,
    out: Path,
    *,
    jobs: int = 1,
    observer: StudyObserver | None = None,
    objects: Objects | None = None,
) -> list[Outcome]:
    """Run all cells that are not finished, and return the outcomes of all cells.

    Raises:
        ConfigError: If a cell cannot be run; raised before anything is run.
        InterruptedRunError: If it was stopped from outside; the same call continues.
    """
    jobs, objects = as_whole("--jobs", jobs, 1), objects or Objects()
    cells = study.cells()
    _check_folder(out, study)
    begun = [cell for cell, config in cells.items() if check_settings(cell, config, out)]
    outcomes = finished_cells(begun, out)
    todo = {cell: config for cell, config in cells.items() if cell not in outcomes}
    for cell in todo:
        POLICIES[cell.policy]
        if cell.dataset in study.given and cell.dataset not in objects.ratings:
            raise ConfigError(
                f"--out {out}: the ratings {cell.dataset!r} were given in Python; continue there: "
                "bgtplanner.compare(ratings, ..., out=...)"
            )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError.of(out, error, "choose another folder with --out") from error
    study.write(out)

    def left() -> float | None:
        """About how many seconds the other cells will take, if they are like those so far."""
        taken = [of.summary.get("seconds_total", 0.0) for of in outcomes.values() if of.summary]
        remaining = len(cells) - len(outcomes)
        return fmean(taken) * remaining / min(jobs, max(1, remaining)) if taken else None

    if observer is not None:
        observer.study_started(len(cells), len(outcomes), left())
    tell = None if observer is None else observer.cell_round
    with contextlib.closing(run_cells(todo, out, jobs=jobs, tell=tell, objects=objects)) as found:
        for outcome in found:
            outcomes[outcome.cell] = outcome
            if observer is not None:
                observer.cell_finished(outcome, left())
    if len(outcomes) < len(cells):
        done = sum(outcome.summary is not None for outcome in outcomes.values())
        raise InterruptedRunError(
            f"stopped with {done} of {len(cells)} cells finished; continue with: "
            f"bgtplanner {study.command} --out {shlex.quote(str(out))}"
        )
    return [outcomes[cell] for cell in cells]


def check_settings(cell: Cell, config: Config, out: Path) -> bool:
    """Return whether a cell was begun, after checking that it has the same settings.

    Raises:
        ConfigError: If the folder holds a run with other settings.
    """
    folder = RunFolder(out / cell.place)
    if not (folder.path / "config.toml").exists():
        return False
    folder.notes()
    different = sorted(differences(folder.config(), config))
    if different:
        raise ConfigError(
            f"--out {out}: {cell.name} was run there with other settings "
            f"({', '.join(different[:3])}); choose another folder"
        )
    return True


def _check_folder(out: Path, study: Study) -> None:
    """Raise ConfigError unless the folder is empty or holds a study of the same kind."""
    before = Study.read(out)
    try:
        others = before is None and out.exists() and any(out.iterdir())
    except OSError as error:
        raise ConfigError(
            f"--out {out}: cannot be used: {error.strerror}; choose another folder"
        ) from error
    if others or (before is not None and before.kind != study.kind):
        raise ConfigError(
            f"--out {out}: holds something other than a {study.kind}; choose an empty folder"
        )


def run_cells(
    cells: Mapping[Cell, Config],
    out: Path,
    *,
    jobs: int = 1,
    tell: Tell | None = None,
    objects: Objects | None = None,
) -> Generator[Outcome, None, None]:
    """Run cells, one by one in this process or `jobs` at a time, until one is interrupted.

    Those in other processes learn of a request to stop through a file, and save their state.
    """
    objects, study = objects or Objects(), secrets.token_hex(8)
    if jobs == 1:
        with contextlib.ExitStack() as stack:
            stack.callback(_latest.clear)
            stop = stack.enter_context(stop_requests(active=True))
            for cell, config in cells.items():
                outcome = _run_cell(cell, config, out, study, objects, tell=tell)
                if outcome is not None:
                    yield outcome
                if outcome is None or stop.is_set():
                    return
        return
    flag, left = out.absolute() / ".stop", dict(cells)
    flag.unlink(missing_ok=True)
    with contextlib.ExitStack() as stack:
        stack.callback(flag.unlink, missing_ok=True)
        stop = stack.enter_context(stop_requests(active=True, also=flag.touch))
        while left and not stop.is_set():
            run = functools.partial(_run_elsewhere, out.absolute(), flag, jobs, study)
            yield from _side_by_side(left, run, jobs, stop.is_set, objects)


def _side_by_side(
    left: dict[Cell, Config],
    run: Callable[[Cell, Config, Objects], Outcome | None],
    jobs: int,
    stopped: Callable[[], bool],
    objects: Objects,
) -> Iterator[Outcome]:
    """Run cells from `left` until there are none, or until a process dies.

    Then all cells that were running have failed; the others are still in `left`.
    """
    import joblib

    running: set[Cell] = set()

    def tasks() -> Iterator[Any]:
        while left and not stopped():
            cell = next(iter(left))
            config = left.pop(cell)
            running.add(cell)
            ratings = {name: of for name, of in objects.ratings.items() if name == cell.dataset}
            yield joblib.delayed(run)(cell, config, objects._replace(ratings=ratings))

    parallel = joblib.Parallel(
        jobs, return_as="generator_unordered", pre_dispatch="n_jobs", batch_size=1
    )
    try:
        with contextlib.closing(parallel(tasks())) as outcomes:
            for outcome in outcomes:
                if outcome is not None:
                    running.remove(outcome.cell)
                    yield outcome
    except Exception as error:
        if stopped():  # a process that was told to stop breaks the whole pool
            return
        if not running:
            raise
        lost = f"its process died ({type(error).__name__}); was there enough memory?"
        yield from [Outcome(cell=cell, error=lost) for cell in running]


def _run_elsewhere(
    out: Path, flag: Path, jobs: int, study: str, cell: Cell, config: Config, objects: Objects
) -> Outcome | None:
    """Run a cell in another process, which lives on for the next ones."""
    os.environ["NPROC"] = str(max(1, cores() // jobs))  # JAX reads it when it starts
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Processes that share an accelerator must not take all of its memory at once.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    for policy in objects.policies:
        POLICIES.named(policy)  # here, too
    return _run_cell(cell, config, out, study, objects, stop=flag.exists)


def _run_cell(
    cell: Cell,
    config: Config,
    out: Path,
    study: str,
    objects: Objects,
    *,
    tell: Tell | None = None,
    stop: Callable[[], bool] | None = None,
) -> Outcome | None:
    """Run a cell, or resume it; None if it was stopped from outside."""
    begun, place = time.perf_counter(), out / cell.place
    ratings, given = objects.ratings.get(cell.dataset), objects.given
    observer = None if tell is None else _CellObserver(cell, tell)
    try:
        if (place / "config.toml").exists():
            runner.resume(place, ratings=ratings, model=given.model, observer=observer, stop=stop)
        else:
            data = functools.partial(shared_data, study, ratings=ratings)
            runner.execute(config, data=data, given=given, out=place, observer=observer, stop=stop)
        outcome = outcome_of(cell, place)
    except (InterruptedRunError, KeyboardInterrupt):
        return None
    except Exception as error:  # of any kind: the other cells do not depend on this one
        text = " ".join(str(error).split())
        if not isinstance(error, BGTPlannerError):
            text = f"{type(error).__name__}: {text}"[:300]
        outcome = Outcome(cell=cell, error=text)
    return replace(outcome, seconds=time.perf_counter() - begun)


class _CellObserver(Observer):
    """Reports the rounds of a cell to the study."""

    def __init__(self, cell: Cell, tell: Tell) -> None:
        self.cell, self.tell = cell, tell

    def round(self, record: Mapping[str, Any], total: int) -> None:
        self.tell(self.cell, record["round"] + 1, total)


def data_of(config: Config) -> str:
    """All settings that decide what a run is trained and tested on."""
    settings = [config.data.model_dump(mode="json"), config.synthetic.model_dump(mode="json")]
    return json.dumps([*settings, config.run.seed, config.federation.rounds], sort_keys=True)


_latest: dict[tuple[str, str], Prepared] = {}  # the data of the latest cell


def shared_data(study: str, config: Config, ratings: Ratings | None = None) -> Prepared:
    """The data of a cell: most often those of the one before.

    Reading and splitting them, and scoring what needs no training, takes as long as the rounds of
    a small cell. Files are read again in another `study`, since they may have changed.
    """
    key = (study, data_of(config))
    data = _latest.get(key)
    if data is None:
        _latest.clear()  # first of all: two large data sets may not fit
        data = _latest[key] = Prepared(config, ratings)
    return data
