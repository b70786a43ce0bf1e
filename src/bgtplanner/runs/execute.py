"""Run a study: all cells that are not finished, one at a time or several in parallel.

A cell that has a ``summary.json`` is never run again, and only that file and its settings are
read; a cell that was interrupted is resumed.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Protocol

from bgtplanner.arguments import as_whole
from bgtplanner.errors import ConfigError, InterruptedRunError, StorageError
from bgtplanner.runs.cells import (
    BACKENDS,
    Cell,
    Objects,
    Outcome,
    check_backend,
    one_by_one,
    outcome_of,
    side_by_side,
)
from bgtplanner.runs.config import Config, check_policy, differences
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.study import Study

__all__ = ["StudyObserver", "check_settings", "read_study", "run_study"]


class _Clock:
    """Estimates how long the rest will take, from the times of cells with the same data set."""

    def __init__(self, todo: Sequence[Cell], jobs: int, before: Iterable[Outcome]) -> None:
        self._todo, self._jobs = dict.fromkeys(todo), jobs
        self._taken: dict[str, list[float]] = {}
        for outcome in before:
            self.finished(outcome)

    def finished(self, outcome: Outcome) -> None:
        self._todo.pop(outcome.cell, None)
        if outcome.summary is not None:  # a resumed cell took longer than just now
            whole = float(outcome.summary.get("seconds_total", 0.0))
            taken = self._taken.setdefault(outcome.cell.dataset, [])
            taken.append(max(outcome.seconds, whole))

    def left(self) -> float | None:
        if not self._taken:
            return None
        mean = fmean(seconds for taken in self._taken.values() for seconds in taken)
        each = {name: fmean(taken) for name, taken in self._taken.items()}
        total = sum(each.get(cell.dataset, mean) for cell in self._todo)
        return total / min(self._jobs, max(1, len(self._todo)))


class StudyObserver(Protocol):
    """Observes a study."""

    def study_started(self, total: int, finished: int, left: float | None) -> None:
        """The study has `total` cells, `finished` of them already; about `left` seconds remain."""
        ...

    def cell_round(self, cell: Cell, done: int, total: int) -> None:
        """A cell that runs in this process has finished another round."""
        ...

    def cell_finished(self, outcome: Outcome, left: float | None) -> None:
        """A cell is done or has failed; about `left` seconds remain for the others."""
        ...


def run_study(
    study: Study,
    out: Path,
    *,
    jobs: int = 1,
    backend: str = "loky",
    observer: StudyObserver | None = None,
    objects: Objects | None = None,
) -> list[Outcome]:
    """Run all cells that are not finished, and return the outcomes of all cells.

    On a cluster, all machines must share the folder.

    Raises:
        ConfigError: If a cell cannot be run; raised before anything is run.
        InterruptedRunError: If it was stopped from outside; the same call continues.
    """
    jobs, objects = as_whole("--jobs", jobs, 1), objects or Objects()
    ConfigError.unless(backend in BACKENDS, "--backend", backend, f"one of {', '.join(BACKENDS)}")
    cells = study.cells()
    _check_folder(out, study)
    begun = [cell for cell, config in cells.items() if check_settings(cell, config, out)]
    outcomes = _finished(begun, out)
    todo = [cell for cell in cells if cell not in outcomes]
    for cell in todo:
        check_policy(cell.policy)
        if cell.dataset in study.given and cell.dataset not in objects.ratings:
            raise ConfigError(
                f"--out {out}: the ratings {cell.dataset!r} were given in Python; continue there: "
                "bgtplanner.compare(ratings, ..., out=...)"
            )
    alone = jobs == 1 and backend == "loky"
    if not alone:
        check_backend(backend)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError.of(out, error, "choose another folder with --out") from error
    study.write(out)
    clock = _Clock(todo, jobs, outcomes.values())
    if observer is not None:
        observer.study_started(len(cells), len(outcomes), clock.left())
    with contextlib.closing(
        one_by_one(todo, cells, out, None if observer is None else observer.cell_round, objects)
        if alone
        else side_by_side(todo, cells, out, backend, jobs, objects)
    ) as results:
        for outcome in results:
            if outcome.interrupted:
                continue
            outcomes[outcome.cell] = outcome
            clock.finished(outcome)
            if observer is not None:
                observer.cell_finished(outcome, clock.left())
    if len(outcomes) < len(cells):
        done = sum(outcome.summary is not None for outcome in outcomes.values())
        raise InterruptedRunError(
            f"stopped with {done} of {len(cells)} cells finished; continue with: "
            f"bgtplanner {study.command} --out {shlex.quote(str(out))}"
        )
    return [outcomes[cell] for cell in cells]


def read_study(study: Study, out: Path) -> list[Outcome]:
    """The outcomes of the finished cells; nothing is run or written."""
    return list(_finished(study.cells(), out).values())


def _finished(cells: Iterable[Cell], out: Path) -> dict[Cell, Outcome]:
    places = {cell: out / cell.place for cell in cells}
    done = {cell: at for cell, at in places.items() if (at / "summary.json").exists()}
    return {cell: outcome_of(cell, at) for cell, at in done.items()}


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
    try:
        before = Study.read(out)
        if before is None:
            others = out.exists() and any(out.iterdir())
        else:
            others = before.kind != study.kind
    except OSError as error:
        raise ConfigError(
            f"--out {out}: cannot be used: {error.strerror}; choose another folder"
        ) from error
    if others:
        raise ConfigError(
            f"--out {out}: holds something other than a {study.kind}; choose an empty folder"
        )
