"""Many runs at once: every data set with every mechanism, policy and seed, in one folder.

::

    grid.json                                   what was asked for
    <dataset>/<mechanism>/<policy>/seed-<s>/    one run folder each, as `run` makes them

A cell that has its ``summary.json`` is never run again, and nothing but that and its settings is
read of it; one that was interrupted is resumed. Seeds come last to their end: first all cells with
the first seed, then all with the second, so that an unfinished grid says something about each.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar

import bgtplanner
from bgtplanner.errors import ConfigError, InterruptedRunError, RunFolderError, StorageError
from bgtplanner.experiments.cells import (
    BACKENDS,
    Cell,
    Outcome,
    check_backend,
    one_by_one,
    outcome_of,
    side_by_side,
)
from bgtplanner.experiments.config import Config, load_config
from bgtplanner.experiments.store import RunFolder
from bgtplanner.planning.catalog import policy_named
from bgtplanner.recsys.datasets import dataset_info
from bgtplanner.text import MOST_BYTES_OF_SETTINGS, read_bytes

__all__ = [
    "AXES",
    "BACKENDS",
    "Asked",
    "Cell",
    "GridObserver",
    "Outcome",
    "Request",
    "parse_seeds",
    "read_asked",
    "read_grid",
    "run_grid",
    "write_asked",
    "write_whole",
]

_SCHEMA = 1
_TOO_MUCH = (ArithmeticError, RecursionError)
AXES = {
    "data.dataset": "--dataset",
    "privacy.mechanism": "--mechanism",
    "planning.policy": "--policy",
    "run.seed": "--seeds",
}
"""Config keys that every grid varies by flags of their own."""

# Where a run is carried out and how often it is saved does not change what comes of it.
_INDIFFERENT = {"data": {"data_dir"}, "run": {"device", "checkpoint_every"}}


class Asked(Protocol):
    """What a grid is made of, and the command and the file by which it is known."""

    command: ClassVar[str]
    file: ClassVar[str]

    def cells(self) -> dict[Cell, Config]:
        """Every cell with its settings, in the order in which they are run."""
        ...

    def write(self, out: Path) -> None:
        """Note in the folder what is asked for."""
        ...


Wanted = TypeVar("Wanted", bound=Asked)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be compared. A policy without limit needs no mechanism: it is run once.

    Attributes:
        datasets: Names of data sets, or ``csv:PATH``.
        mechanisms: Out of ``gaussian``, ``laplace``, ``privunit``, ``none``.
        policies: Names of policies, or ``package.module:Class``.
        seeds: Of the runs.
        preset: ``recommended`` or ``paper``.
        settings: Config keys for all cells, such as ``{"federation.rounds": 50}``.
        baseline: The policy that all others are compared with; by default the first that is
            neither ``bgt`` nor ``unlimited``.
    """

    datasets: tuple[str, ...] = ("demo",)
    mechanisms: tuple[str, ...] = ("gaussian",)
    policies: tuple[str, ...] = ("bgt", "uniform", "adpml", "adap", "unlimited")
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    preset: str = "recommended"
    settings: Mapping[str, Any] = field(default_factory=dict)
    baseline: str | None = None

    command: ClassVar[str] = "compare"
    file: ClassVar[str] = "grid.json"

    def cells(self) -> dict[Cell, Config]:
        """Every cell with its settings, in the order in which they are run.

        Raises:
            ConfigError: If any of them cannot be run, naming the flag.
        """
        for name, values in (
            ("--dataset", self.datasets),
            ("--mechanism", self.mechanisms),
            ("--policy", self.policies),
            ("--seeds", self.seeds),
        ):
            ConfigError.unless(bool(values), name, list(values), "at least one")
        for key in self.settings:
            if key in AXES:
                raise ConfigError(f"--set {key}: in a comparison this is given by {AXES[key]}")
        for name, check, values in (
            ("--dataset", dataset_info, self.datasets),
            ("--policy", policy_named, self.policies),
        ):
            for value in values:
                _checked(name, check, value)
        known = self.baseline is None or self.baseline in self.policies
        ConfigError.unless(
            known, "--baseline", self.baseline, f"one of {', '.join(self.policies)}"
        )
        return {
            cell: load_config(
                preset=self.preset,
                settings={
                    **self.settings,
                    "data.dataset": cell.dataset,
                    "privacy.mechanism": cell.mechanism,
                    "planning.policy": cell.policy,
                    "run.seed": cell.seed,
                },
            )
            for seed in dict.fromkeys(self.seeds)
            for dataset in dict.fromkeys(self.datasets)
            for mechanism, policy in self.pairs()
            for cell in [Cell(dataset=dataset, mechanism=mechanism, policy=policy, seed=seed)]
        }

    def pairs(self) -> list[tuple[str, str]]:
        """Which policies are run with which mechanisms."""
        limited = [policy for policy in dict.fromkeys(self.policies) if policy != "unlimited"]
        noisy = [name for name in dict.fromkeys(self.mechanisms) if name != "none"]
        free = "unlimited" in self.policies
        if limited and not noisy:
            raise ConfigError(
                f"--policy = {limited[0]!r}: expected unlimited, for --mechanism none"
            )
        if "none" in self.mechanisms and not free:
            raise ConfigError("--mechanism = 'none': expected with --policy unlimited")
        pairs = [(mechanism, policy) for mechanism in noisy for policy in limited]
        return [*pairs, ("none", "unlimited")] if free else pairs

    @property
    def against(self) -> str | None:
        """The baseline, given or by default; None where there is nothing to compare with."""
        if self.baseline is not None or len(self.policies) < 2:
            return self.baseline
        others = [name for name in self.policies if name not in ("bgt", "unlimited")]
        return others[0] if others else self.policies[1]

    @classmethod
    def read(cls, out: Path) -> Self | None:
        """What was asked for in a folder before, or None if nothing was.

        Raises:
            RunFolderError: If the folder has a ``grid.json`` that cannot be read.
        """
        return read_asked(out / cls.file, cls._of_tree)

    @classmethod
    def _of_tree(cls, tree: Mapping[str, Any]) -> Self:
        known = {entry.name for entry in fields(cls)}
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in tree.items()
            if name in known
        }
        return cls(**values)

    def write(self, out: Path) -> None:
        """Note in the folder what is asked for."""
        write_asked(out / self.file, asdict(self))


def read_asked(file: Path, of_tree: Callable[[Mapping[str, Any]], Wanted]) -> Wanted | None:
    """What was asked for before by this file, checked; None if there is no such file.

    Raises:
        RunFolderError: If it cannot be read.
    """
    try:
        tree = json.loads(read_bytes(file, MOST_BYTES_OF_SETTINGS))
        if tree["schema"] != _SCHEMA:
            raise RunFolderError(
                f"{file}: written by another version (schema {tree['schema']}); this one "
                f"reads schema {_SCHEMA}. Use that version, or choose another folder with --out"
            )
        found = of_tree(tree)
        found.cells()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except RunFolderError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, *_TOO_MUCH) as error:
        raise RunFolderError(
            f"{file}: cannot be read: {error}; delete it and say anew what is wanted"
        ) from error
    return found


def write_asked(file: Path, asked: Mapping[str, Any]) -> None:
    """Note what is asked for, so that :func:`read_asked` finds it."""
    tree = {"schema": _SCHEMA, "version": bgtplanner.__version__, **asked}
    write_whole(file, json.dumps(tree, indent=2) + "\n")


class _Clock:
    """How long the rest will take: what cells of the same data set took, or any, side by side."""

    def __init__(self, todo: Sequence[Cell], jobs: int, before: Iterable[Outcome]) -> None:
        self._todo = dict.fromkeys(todo)
        self._jobs = jobs
        self._taken: dict[str, list[float]] = {}
        for outcome in before:
            seconds = (outcome.summary or {}).get("seconds_total")
            if isinstance(seconds, int | float):
                self._taken.setdefault(outcome.cell.dataset, []).append(float(seconds))

    def finished(self, outcome: Outcome) -> None:
        self._todo.pop(outcome.cell, None)
        if outcome.error is None:
            # A cell that was resumed took longer than it did now.
            whole = (outcome.summary or {}).get("seconds_total", 0.0)
            seconds = max(outcome.seconds, float(whole))
            self._taken.setdefault(outcome.cell.dataset, []).append(seconds)

    def left(self) -> float | None:
        if not self._taken:
            return None
        every = [seconds for taken in self._taken.values() for seconds in taken]
        each = {name: sum(taken) / len(taken) for name, taken in self._taken.items()}
        mean = sum(every) / len(every)
        total = sum(each.get(cell.dataset, mean) for cell in self._todo)
        return total / min(self._jobs, max(1, len(self._todo)))


class GridObserver(Protocol):
    """Somebody who watches a grid."""

    def grid_started(self, total: int, finished: int, left: float | None) -> None:
        """So many cells are to be run, some are finished already; `left` seconds are estimated."""
        ...

    def cell_round(self, cell: Cell, done: int, total: int) -> None:
        """A cell that is run in this process has one more round."""
        ...

    def cell_finished(self, outcome: Outcome, left: float | None) -> None:
        """A cell is done or has failed; about `left` seconds remain for the others."""
        ...


def run_grid(
    request: Asked,
    out: Path,
    *,
    jobs: int = 1,
    backend: str = "loky",
    observer: GridObserver | None = None,
) -> list[Outcome]:
    """Run all cells that are not finished, and say what came of each.

    Args:
        request: What is to be run.
        out: Folder of the grid. On a cluster it must be the same for all machines.
        jobs: How many cells at a time.
        backend: One of :data:`BACKENDS`.
        observer: Somebody to tell about every cell.

    Raises:
        ConfigError: If something cannot be run, before anything is.
        InterruptedRunError: If it was stopped from outside; the same call goes on.
    """
    ConfigError.unless(jobs >= 1, "--jobs", jobs, "at least 1")
    ConfigError.unless(backend in BACKENDS, "--backend", backend, f"one of {', '.join(BACKENDS)}")
    cells = request.cells()
    _check_folder(out, request)
    outcomes = {cell: found for cell in cells if (found := _finished(cell, cells[cell], out))}
    todo = [cell for cell in cells if cell not in outcomes]
    alone = jobs == 1 and backend == "loky"
    if not alone:
        check_backend(backend)
    _make_folder(out)
    request.write(out)
    clock = _Clock(todo, jobs, outcomes.values())
    if observer is not None:
        observer.grid_started(len(cells), len(outcomes), clock.left())
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
            f"stopped with {done} of {len(cells)} cells finished; go on with: "
            f"bgtplanner {request.command} --out {shlex.quote(str(out))}"
        )
    return [outcomes[cell] for cell in cells]


def read_grid(request: Asked, out: Path) -> list[Outcome]:
    """What came of the cells that are finished; nothing is run, and nothing is written."""
    return [
        outcome_of(cell, out / cell.place)
        for cell in request.cells()
        if (out / cell.place / "summary.json").exists()
    ]


def _finished(cell: Cell, config: Config, out: Path) -> Outcome | None:
    """The outcome of a finished cell; None for one that is to be run.

    Raises:
        ConfigError: If the folder holds a run with other settings.
    """
    folder = RunFolder(out / cell.place)
    if not (folder.path / "config.toml").exists():
        return None
    folder.notes()
    different = sorted(_differences(folder.config(), config))
    if different:
        raise ConfigError(
            f"--out {out}: {cell.name} was run there with other settings "
            f"({', '.join(different[:3])}); choose another folder"
        )
    if not (folder.path / "summary.json").exists():
        return None
    return outcome_of(cell, folder.path)


def _differences(one: Config, other: Config) -> Iterator[str]:
    mine, theirs = one.model_dump(), other.model_dump()
    if mine["preset"] != theirs["preset"]:
        yield "preset"
    for section, values in mine.items():
        if section == "preset":
            continue
        for key, value in values.items():
            if value != theirs[section][key] and key not in _INDIFFERENT.get(section, ()):
                yield f"{section}.{key}"


def _check_folder(out: Path, request: Asked) -> None:
    """Only an empty folder, or one of such a grid: others hold somebody's work."""
    try:
        if out.exists() and not (out / request.file).exists() and any(out.iterdir()):
            kind = {"compare": "comparison"}.get(request.command, request.command)
            raise ConfigError(
                f"--out {out}: holds other things than a {kind}; choose an empty folder"
            )
    except OSError as error:
        raise ConfigError(
            f"--out {out}: cannot be used: {error.strerror}; choose another folder"
        ) from error


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError.of(out, error, "choose another folder with --out") from error


def write_whole(path: Path, text: str) -> None:
    """Replace a file as a whole, or leave it as it was."""
    beside = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise StorageError.of(path, error, "give the same command again") from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds as a user writes them.

    Raises:
        ConfigError: If that is not what they are.

    Example:
        >>> parse_seeds("0-2,7")
        (0, 1, 2, 7)
    """
    found: dict[int, None] = {}
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        fits = low.isascii() and low.isdigit() and len(low) < 11
        fits &= not dash or (high.isascii() and high.isdigit() and len(high) < 11)
        ConfigError.unless(fits, "--seeds", text, "such as 0-4 or 0,1,2")
        first, last = int(low), int(high) if dash else int(low)
        ConfigError.unless(0 <= last - first < 10_000, "--seeds", text, "such as 0-4 or 0,1,2")
        found |= dict.fromkeys(range(first, last + 1))
    return tuple(found)


def _checked(flag: str, check: Callable[[str], object], value: str) -> None:
    try:
        check(value)
    except ConfigError as error:
        raise ConfigError(f"{flag}: {error}") from error
