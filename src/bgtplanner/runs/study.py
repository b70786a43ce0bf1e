"""A study: data sets x mechanisms x policies x seeds, and any settings that are varied.

A comparison is a study that varies nothing else; a sweep also varies settings. A study has one
folder::

    study.json                                              what was requested
    <dataset>/<mechanism>/<policy>/seed-<s>/                a run folder for each cell, or
    <key=value,...>/<dataset>/<mechanism>/<policy>/seed-<s>/  if settings are varied

A cell that has a ``summary.json`` is never run again, and only that file and its settings are
read; a cell that was interrupted is resumed. An error in a cell is the outcome of that cell, and
does not affect the others.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shlex
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

import bgtplanner
from bgtplanner.arguments import as_whole
from bgtplanner.data.datasets import dataset_info
from bgtplanner.errors import (
    BGTPlannerError,
    ConfigError,
    InterruptedRunError,
    RunFolderError,
    StorageError,
)
from bgtplanner.planning.registry import POLICIES
from bgtplanner.runs import run as runner
from bgtplanner.runs.config import GONE, Config, differences, load_config
from bgtplanner.runs.folder import RunFolder, write_whole
from bgtplanner.runs.loop import stop_requests
from bgtplanner.text import MOST_BYTES_OF_SETTINGS, read_bytes

AXES = {
    "data.dataset": "--dataset",
    "privacy.mechanism": "--mechanism",
    "planning.policy": "--policy",
    "run.seed": "--seeds",
}
"""Config keys that every study varies, with their flags."""

_SCHEMA = 2  # in schema 1, of 0.2, varied settings were lists of axes
_FILE = "study.json"


def in_words(value: Any) -> str:
    """A value as it is written in the names of folders and in tables.

    Example:
        >>> in_words("sgd"), in_words(0.5), in_words({"gamma": 7})
        ('sgd', '0.5', '{"gamma":7}')
    """
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def folder_name(name: str, signs: str = "-_") -> str:
    """A valid folder name; a hash keeps it unique if characters had to be replaced."""
    plain = "".join(letter if letter.isalnum() or letter in signs else "-" for letter in name)
    if plain == name and len(name) <= 60:
        return name
    return f"{plain[-40:].strip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parse seeds as they are written on the command line.

    Example:
        >>> parse_seeds("0-2,7")
        (0, 1, 2, 7)
    """
    found: list[int] = []
    for part in text.split(","):
        ends = re.fullmatch(r" *([0-9]{1,10})(?:-([0-9]{1,10}))? *", part)
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends else (1, 0)
        ConfigError.unless(0 <= last - first < 10_000, "--seeds", text, "such as 0-4 or 0,1,2")
        found += range(first, last + 1)
    return tuple(dict.fromkeys(found))


def parse_grid(texts: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    """Parse every ``section.key=value,value`` of ``--vary``; values are TOML, or else plain text.

    Example:
        >>> parse_grid(["privacy.epsilon=5,10", "server.optimizer=sgd,adam"])
        {'privacy.epsilon': (5, 10), 'server.optimizer': ('sgd', 'adam')}
    """
    grid: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        key, _, listed = text.partition("=")
        if (key := key.strip()) in grid:
            raise ConfigError(f"--vary {key}: given twice; write {key}=V1,V2,...")
        try:
            values = tomllib.loads(f"values = [{listed}]")["values"]
            json.dumps(values, allow_nan=False)
        except (tomllib.TOMLDecodeError, RecursionError):
            values = [part.strip() for part in listed.split(",")]
        except (TypeError, ValueError):  # TOML has dates and NaN, settings have not
            values = []
        grid[key] = tuple({in_words(value): value for value in values}.values())
        if not all(key.partition(".")) or not grid[key] or "" in grid[key]:
            raise ConfigError(
                f"--vary {text}: expected SECTION.KEY=V1,V2,..., such as privacy.epsilon=5,10,20"
            )
    return grid


@dataclass(frozen=True)
class Cell:
    """One run of a study. In a sweep, `variant` names the varied settings and their values."""

    dataset: str
    mechanism: str
    policy: str
    seed: int
    variant: str = ""

    @property
    def name(self) -> str:
        """The name of the cell in messages."""
        name = f"{self.dataset} {self.mechanism} {self.policy} seed {self.seed}"
        return f"{name}, {self.variant}" if self.variant else name

    @property
    def place(self) -> Path:
        """Its run folder, relative to that of the study."""
        names = (self.dataset, self.mechanism, self.policy)
        above = [folder_name(self.variant, "-_=.,")] if self.variant else []
        return Path(*above, *map(folder_name, names), f"seed-{self.seed}")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a cell: the figures of its ``summary.json``, or why it failed.

    `seconds` says how long it took just now; 0 if it was finished before.
    """

    cell: Cell
    summary: Mapping[str, Any] | None = None
    error: str | None = None
    seconds: float = 0.0


Progress = Callable[[Outcome | None, int, int], None]
"""Called with None at the start, then with the outcome of every cell that is run; also with how
many cells are done, and how many there are."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """What is to be run and compared. ``unlimited`` needs no mechanism, and is run once.

    Attributes:
        policies: Names of policies, or ``package.module:Class``.
        settings: Config keys for all cells, such as ``{"federation.rounds": 50}``.
        baseline: The policy that all others are compared with; by default ``uniform``, or the
            first that is neither a planner nor ``unlimited``.
        variations: Grids of varied settings, each the values of its keys; all combinations of
            one are run, then those of the next. A comparison has none.
    """

    datasets: tuple[str, ...] = ("demo",)
    mechanisms: tuple[str, ...] = ("gaussian",)
    policies: tuple[str, ...] = ("bgt", "uniform", "early", "late", "adpml", "adap", "unlimited")
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    preset: str = "recommended"
    settings: Mapping[str, Any] = field(default_factory=dict)
    baseline: str | None = None
    variations: tuple[Mapping[str, tuple[Any, ...]], ...] = ()

    @property
    def kind(self) -> str:
        """``sweep`` if settings are varied, else ``comparison``; the name of its tables."""
        return "sweep" if self.variations else "comparison"

    @property
    def against(self) -> str | None:
        """The baseline, given or by default; None if there is nothing to compare with."""
        if self.baseline is not None or len(self.policies) < 2:
            return self.baseline
        others = (name for name in self.policies if name not in ("bgt", "unlimited"))
        # An even schedule is what planning has to beat.
        return "uniform" if "uniform" in self.policies else next(others, self.policies[1])

    @property
    def objective(self) -> str:
        """What its runs plan for, and are compared by: ``served`` or ``last``."""
        planned = load_config(preset=self.preset).planning.objective
        return str(self.settings.get("planning.objective", planned))

    @property
    def noisy(self) -> list[str]:
        """The mechanisms that add noise."""
        return [name for name in dict.fromkeys(self.mechanisms) if name != "none"]

    def pairs(self) -> list[tuple[str, str]]:
        """Which mechanisms are run with which policies."""
        limited = [policy for policy in dict.fromkeys(self.policies) if policy != "unlimited"]
        free = [("none", "unlimited")] * ("unlimited" in self.policies)
        if "none" in self.mechanisms and not free:
            raise ConfigError("--mechanism = 'none': expected with --policy unlimited")
        # Where no mechanism adds noise, the config refuses what is limited.
        return [*itertools.product(self.noisy or ["none"], limited), *free]

    def points(self) -> dict[str, dict[str, Any]]:
        """Every combination of varied values by its name; that of a comparison is empty."""
        found = {}
        for grid in self.variations or ({},):
            for values in itertools.product(*grid.values()):
                varied = dict(zip(grid, values, strict=True))
                name = ",".join(f"{key}={in_words(value)}" for key, value in varied.items())
                found[name] = varied
        return found

    def cells(self) -> dict[Cell, Config]:
        """Every cell with its settings, in the order in which they are run.

        All cells with the first seed come first, then all with the second, so that an unfinished
        study has results for each policy.

        Raises:
            ConfigError: If one of them cannot be run; names the flag.
        """
        self._check()
        found = {}
        axes = (dict.fromkeys(self.seeds), self.points().items(), self.datasets, self.pairs())
        for seed, (name, varied), dataset, (mechanism, policy) in itertools.product(*axes):
            own = (dataset, mechanism, policy, seed)
            try:
                settings = {**self.settings, **varied, **dict(zip(AXES, own, strict=True))}
                config = load_config(preset=self.preset, settings=settings)
            except ConfigError as error:
                raise ConfigError(f"--vary {name}: {error}" if varied else str(error)) from error
            found[Cell(*own, variant=name)] = config
        return found

    def _check(self) -> None:
        """Refuse mistakes that are not in a single setting."""
        own = (self.datasets, self.mechanisms, self.policies, self.seeds)
        for flag, values in zip(AXES.values(), own, strict=True):
            ConfigError.unless(bool(values), flag, list(values), "at least one")
        varied = dict.fromkeys((key for grid in self.variations for key in grid), "--vary")
        for key, flag in (dict.fromkeys(self.settings, "--set") | varied).items():
            if key in AXES:
                raise ConfigError(f"{flag} {key}: this is given by {AXES[key]}")
            if flag == "--vary" and key in self.settings:
                raise ConfigError(f"--vary {key}: also given by --set; choose one of them")
        try:
            for name in self.datasets:
                dataset_info(name)
        except ConfigError as error:
            raise ConfigError(f"--dataset: {error}") from error
        known, expected = (None, *self.policies), f"one of {', '.join(self.policies)}"
        ConfigError.unless(self.baseline in known, "--baseline", self.baseline, expected)

    @classmethod
    def read(cls, out: Path) -> Self | None:
        """The study that was requested in a folder, by this version or an earlier one, if any.

        Raises:
            RunFolderError: If there is one, but it cannot be read.
        """
        file = out / _FILE
        try:
            tree = json.loads(read_bytes(file, MOST_BYTES_OF_SETTINGS))
            if tree["schema"] not in (1, _SCHEMA) or tree["version"].startswith("0.1."):
                raise ValueError(f"written by another version, {tree['version']}")
            tree["settings"] = {key: of for key, of in tree["settings"].items() if key not in GONE}
            tree["variations"] = [
                {axis["key"]: axis["values"] for axis in grid["axes"]} if "axes" in grid else grid
                for grid in tree["variations"]
            ]
            found = TypeAdapter(cls).validate_python(tree)
            found.cells()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except Exception as error:  # a damaged file makes the reader fail in many ways
            said = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
            then = "choose another folder, or delete it and request the study again"
            raise RunFolderError(f"{file}: cannot be read: {said}; {then}") from error
        return found

    def write(self, out: Path) -> None:
        """Write the request into the folder."""
        tree = {"schema": _SCHEMA, "version": bgtplanner.__version__, **asdict(self)}
        write_whole(out / _FILE, json.dumps(tree, indent=2) + "\n")


def finished_cells(cells: Iterable[Cell], out: Path) -> list[Outcome]:
    """The outcomes of those cells that are finished, from their summaries alone."""
    found = []
    for cell in cells:
        try:
            if summary := RunFolder(out / cell.place).read("summary.json", "~"):
                found.append(Outcome(cell=cell, summary=summary))
        except RunFolderError as error:
            found.append(Outcome(cell=cell, error=" ".join(str(error).split())))
    return found


def run_study(
    study: Study, out: Path, *, jobs: int = 1, progress: Progress | None = None
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
    study.write(out)

    progress = progress or (lambda *_: None)
    progress(None, len(outcomes), len(cells))
    for outcome in run_cells(todo, out, jobs=jobs):
        outcomes[outcome.cell] = outcome
        progress(outcome, len(outcomes), len(cells))
    if len(outcomes) < len(cells):
        done = sum(outcome.summary is not None for outcome in outcomes.values())
        then = f"continue with: bgtplanner compare --out {shlex.quote(str(out))}"
        raise InterruptedRunError(f"stopped with {done} of {len(cells)} cells finished; {then}")
    return [outcomes[cell] for cell in cells]


def check_settings(cell: Cell, config: Config, out: Path) -> None:
    """Refuse a cell that was begun with other settings."""
    folder, different = RunFolder(out / cell.place), list[str]()
    if (folder.path / "config.toml").exists():
        folder.notes()
        different = sorted(differences(folder.config(), config))
    if different:
        other = f"was run there with other settings ({', '.join(different[:3])})"
        raise ConfigError(f"--out {out}: {cell.name} {other}; choose another folder")


def run_cells(cells: Mapping[Cell, Config], out: Path, *, jobs: int = 1) -> Iterator[Outcome]:
    """Run cells, `jobs` at a time, until all are done or a request to stop arrives.

    Ctrl-C reaches the other processes, too; each saves the state of its cell. If a process dies,
    most often for want of memory, it raises InterruptedRunError.
    """
    import joblib

    run = joblib.delayed(_run_cell)
    threads = max(1, joblib.cpu_count() // jobs) if jobs > 1 else None
    how = {"return_as": "generator_unordered", "pre_dispatch": "n_jobs", "batch_size": 1}
    with stop_requests(active=True) as stop:
        todo = itertools.takewhile(lambda _: not stop.is_set(), cells.items())
        tasks = (run(*cell, out.absolute(), threads) for cell in todo)
        try:
            for outcome in joblib.Parallel(jobs, **how)(tasks):
                if outcome is None:
                    stop.set()
                else:
                    yield outcome
        except Exception as error:
            if not stop.is_set():  # who is told to stop between two cells breaks the whole pool
                died = f"a process died ({type(error).__name__}); was there enough memory?"
                raise InterruptedRunError(f"{died} The same call continues") from error


def _run_cell(cell: Cell, config: Config, out: Path, threads: int | None) -> Outcome | None:
    """Run a cell, or resume it; None if it was stopped from outside."""
    if threads is not None:  # in another process, which shares the machine
        os.environ["NPROC"] = str(threads)  # JAX reads it when it starts
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    begun, place = time.perf_counter(), out / cell.place
    try:
        if (place / "config.toml").exists():
            runner.resume(place, trust_code=True)
        else:
            runner.execute(config, out=place)
        (outcome,) = finished_cells([cell], out)
    except (InterruptedRunError, KeyboardInterrupt):
        return None
    except Exception as error:  # of any kind: the other cells do not depend on this one
        text = " ".join(str(error).split())
        if not isinstance(error, BGTPlannerError):
            text = f"{type(error).__name__}: {text}"[:300]
        outcome = Outcome(cell=cell, error=text)
    return replace(outcome, seconds=time.perf_counter() - begun)
