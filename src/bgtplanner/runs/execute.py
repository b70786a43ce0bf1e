"""Carry out a study: run what is not finished, one cell at a time or several side by side.

A cell that has its ``summary.json`` is never run again, and nothing but that and its settings is
read of it; one that was interrupted is resumed.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Protocol

from bgtplanner.errors import ConfigError, InterruptedRunError, StorageError
from bgtplanner.runs.cells import (
    BACKENDS,
    Cell,
    Outcome,
    check_backend,
    one_by_one,
    outcome_of,
    side_by_side,
)
from bgtplanner.runs.config import Config, differences
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.study import Study

__all__ = ["StudyObserver", "check_settings", "read_study", "run_study"]


class _Clock:
    """How long the rest will take: what cells of the same data set took, or any, side by side."""

    def __init__(self, todo: Sequence[Cell], jobs: int, before: Iterable[Outcome]) -> None:
        self._todo, self._jobs = dict.fromkeys(todo), jobs
        self._taken: dict[str, list[float]] = {}
        for outcome in before:
            self.finished(outcome)

    def finished(self, outcome: Outcome) -> None:
        self._todo.pop(outcome.cell, None)
        if outcome.summary is not None:  # a cell that was resumed took longer than it did now
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
    """Somebody who watches a study."""

    def study_started(self, total: int, finished: int, left: float | None) -> None:
        """So many cells are to be run, some are finished already; `left` seconds are estimated."""
        ...

    def cell_round(self, cell: Cell, done: int, total: int) -> None:
        """A cell that is run in this process has one more round."""
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
) -> list[Outcome]:
    """Run all cells that are not finished, and say what came of each.

    On a cluster the folder must be the same for all machines.

    Raises:
        ConfigError: If something cannot be run, before anything is.
        InterruptedRunError: If it was stopped from outside; the same call goes on.
    """
    ConfigError.unless(jobs >= 1, "--jobs", jobs, "at least 1")
    ConfigError.unless(backend in BACKENDS, "--backend", backend, f"one of {', '.join(BACKENDS)}")
    cells = study.cells()
    _check_folder(out, study)
    begun = [cell for cell, config in cells.items() if check_settings(cell, config, out)]
    outcomes = {
        cell: outcome_of(cell, out / cell.place)
        for cell in begun
        if (out / cell.place / "summary.json").exists()
    }
    todo = [cell for cell in cells if cell not in outcomes]
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
        one_by_one(todo, cells, out, None if observer is None else observer.cell_round)
        if alone
        else side_by_side(todo, cells, out, backend, jobs)
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
    """What came of the cells that are finished; nothing is run, and nothing is written."""
    return [
        outcome_of(cell, out / cell.place)
        for cell in study.cells()
        if (out / cell.place / "summary.json").exists()
    ]


def check_settings(cell: Cell, config: Config, out: Path) -> bool:
    """See that what was begun of a cell has its settings; return whether anything was.

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
    """Only an empty folder, or one of such a study: others hold somebody's work."""
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
            f"--out {out}: holds other things than a {study.kind}; choose an empty folder"
        )
