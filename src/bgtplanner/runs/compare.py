"""Compare policies: run all cells of a study, one by one or side by side, and sum them up.

A cell that has a ``summary.json`` is never run again, and only that file and its settings are
read; a cell that was interrupted is resumed. An error in a cell is the outcome of that cell, and
does not affect the others.
"""

from __future__ import annotations

import itertools
import os
import shlex
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from bgtplanner.arguments import as_path, as_settings, as_whole, refuse_unless
from bgtplanner.data.ratings import Ratings
from bgtplanner.errors import BGTPlannerError, ConfigError, InterruptedRunError, StorageError
from bgtplanner.models.learner import Learner
from bgtplanner.planning.policy import Policy
from bgtplanner.planning.registry import POLICIES
from bgtplanner.runs import run as runner
from bgtplanner.runs.assembly import Given, model_given, policy_named
from bgtplanner.runs.config import Config, differences
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.loop import stop_requests
from bgtplanner.runs.statistics import Comparison, Outcome, finished_cells, summed_up
from bgtplanner.runs.study import Cell, Study
from bgtplanner.runs.tables import write_tables

Progress = Callable[[Outcome | None, int, int], None]
"""Called with None at the start, then with the outcome of every cell that is run; also with how
many cells are done, and how many there are."""


class Objects(NamedTuple):
    """Objects that were given in Python in place of names, for all cells of a study."""

    ratings: Mapping[str, Ratings]
    given: Given
    policies: tuple[type[Policy], ...]

    def of(self, cell: Cell) -> Objects:
        """Those that one cell needs: other processes get no ratings of other data sets."""
        own = {name: of for name, of in self.ratings.items() if name == cell.dataset}
        return self._replace(ratings=own)


_BY_NAME = Objects({}, Given(), ())


def compare(
    ratings: Ratings | str | Iterable[Ratings | str] = "demo",
    policies: type[Policy] | str | Iterable[type[Policy] | str] = Study.policies,
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
    progress: Progress | None = None,
) -> Comparison:
    """Run every policy on every data set, with every mechanism and seed, and compare them.

    Of `ratings`, `policies` (names, ``package.module:Class`` or classes), `mechanisms` and `seeds`
    there may be one or several; what is not explained here is as in :func:`simulate`. A cell that
    fails is listed in `failed` of the result, and does not stop the others.

    Runs and tables are kept in `out`, if it is given; called again with the same folder, it runs
    only what is not finished. `jobs` cells run at a time: processes on this machine, or wherever
    joblib's ``parallel_config`` says, such as a Dask cluster that shares the folder. `progress` is
    called with the outcome of every cell, how many are done, and how many there are.

    Raises:
        ConfigError: If a cell cannot be run; raised before anything is run.
        InterruptedRunError: If it was stopped from outside; the same call continues.

    Example:
        >>> found = compare("demo", "unlimited", seeds=0, rounds=2)
        >>> found.rows[0].policy, found.rows[0].figures["rmse_final"].seeds
        ('unlimited', 1)
    """
    own, given = model_given(model)
    single = {"privacy.epsilon": epsilon, "federation.rounds": rounds}
    own |= {key: of for key, of in single.items() if of is not None} | as_settings(settings)
    every = _several("ratings", ratings, Ratings | str, runner.RATINGS)
    names = [one if isinstance(one, str) else one.name for one in every]
    objects = {one.name: one for one in every if isinstance(one, Ratings)}
    for name in objects:
        expected = "a name of their own for each: Ratings.from_arrays(..., name=...)"
        refuse_unless(names.count(name) == 1, "ratings", name, expected)
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
    every_object = Objects(objects, given, tuple(of for of in chosen if isinstance(of, type)))
    kept = None if out is None else as_path("out", out)
    with tempfile.TemporaryDirectory(prefix="bgtplanner-") as temporary:
        place = kept or Path(temporary)
        outcomes = run_study(study, place, jobs=jobs, progress=progress, objects=every_object)
        found = replace(summed_up(study, outcomes), folder=kept)
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
    progress: Progress | None = None,
    objects: Objects = _BY_NAME,
) -> list[Outcome]:
    """Run all cells that are not finished, and return the outcomes of all cells.

    Raises:
        ConfigError: If a cell cannot be run; raised before anything is run.
        InterruptedRunError: If it was stopped from outside; the same call continues.
    """
    jobs, cells, before = as_whole("--jobs", jobs, 1), study.cells(), Study.read(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        if (any(out.iterdir()) and before is None) or (before and before.kind != study.kind):
            raise ConfigError(
                f"--out {out}: holds something other than a {study.kind}; choose an empty folder"
            )
    except OSError as error:
        raise StorageError.of(f"--out {out}", error, "choose another folder") from error
    for cell, config in cells.items():
        check_settings(cell, config, out)
    outcomes = {of.cell: of for of in finished_cells(cells, out)}
    todo = {cell: config for cell, config in cells.items() if cell not in outcomes}
    for cell in todo:
        POLICIES[cell.policy]  # one that is gone can be read, but not run
        if cell.dataset in study.given and cell.dataset not in objects.ratings:
            raise ConfigError(
                f"--out {out}: the ratings {cell.dataset!r} were given in Python; continue there: "
                "bgtplanner.compare(ratings, ..., out=...)"
            )
    study.write(out)

    progress = progress or (lambda *_: None)
    progress(None, len(outcomes), len(cells))
    for outcome in run_cells(todo, out, jobs=jobs, objects=objects):
        outcomes[outcome.cell] = outcome
        progress(outcome, len(outcomes), len(cells))
    if len(outcomes) < len(cells):
        done = sum(outcome.summary is not None for outcome in outcomes.values())
        raise InterruptedRunError(
            f"stopped with {done} of {len(cells)} cells finished; continue with: "
            f"bgtplanner {study.command} --out {shlex.quote(str(out))}"
        )
    return [outcomes[cell] for cell in cells]


def check_settings(cell: Cell, config: Config, out: Path) -> None:
    """Raise ConfigError if a cell was begun with other settings."""
    folder = RunFolder(out / cell.place)
    if not (folder.path / "config.toml").exists():
        return
    folder.notes()
    different = sorted(differences(folder.config(), config))
    if different:
        raise ConfigError(
            f"--out {out}: {cell.name} was run there with other settings "
            f"({', '.join(different[:3])}); choose another folder"
        )


def run_cells(
    cells: Mapping[Cell, Config],
    out: Path,
    *,
    jobs: int = 1,
    objects: Objects = _BY_NAME,
) -> Iterator[Outcome]:
    """Run cells, `jobs` at a time, until all are done or a request to stop arrives.

    Ctrl-C reaches the other processes, too; each saves the state of its cell. If a process dies,
    most often for want of memory, it raises InterruptedRunError.
    """
    import joblib

    run, threads = (
        joblib.delayed(_run_cell),
        max(1, joblib.cpu_count() // jobs) if jobs > 1 else None,
    )
    how = {"return_as": "generator_unordered", "pre_dispatch": "n_jobs", "batch_size": 1}
    with stop_requests(active=True) as stop:
        todo = itertools.takewhile(lambda _: not stop.is_set(), cells.items())
        tasks = (run(*cell, out.absolute(), objects.of(cell[0]), threads) for cell in todo)
        try:
            for outcome in joblib.Parallel(jobs, **how)(tasks):
                if outcome is None:
                    stop.set()
                else:
                    yield outcome
        except Exception as error:
            if not stop.is_set():  # who is told to stop between two cells breaks the whole pool
                raise InterruptedRunError(
                    f"a process died ({type(error).__name__}); was there enough memory? The same "
                    "call continues"
                ) from error


def _run_cell(
    cell: Cell, config: Config, out: Path, objects: Objects, threads: int | None
) -> Outcome | None:
    """Run a cell, or resume it; None if it was stopped from outside."""
    if threads is not None:  # in another process, which shares the machine
        os.environ["NPROC"] = str(threads)  # JAX reads it when it starts
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    begun, place = time.perf_counter(), out / cell.place
    ratings, given = objects.ratings.get(cell.dataset), objects.given
    try:
        for policy in objects.policies:
            POLICIES.named(policy)  # another process may not be able to import it
        if (place / "config.toml").exists():
            runner.resume(place, ratings=ratings, model=given.model, trust_code=True)
        else:
            runner.execute(config, ratings=ratings, given=given, out=place)
        (outcome,) = finished_cells([cell], out)
    except (InterruptedRunError, KeyboardInterrupt):
        return None
    except Exception as error:  # of any kind: the other cells do not depend on this one
        text = " ".join(str(error).split())
        if not isinstance(error, BGTPlannerError):
            text = f"{type(error).__name__}: {text}"[:300]
        outcome = Outcome(cell=cell, error=text)
    return replace(outcome, seconds=time.perf_counter() - begun)
