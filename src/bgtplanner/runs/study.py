"""A study: data sets x mechanisms x policies x seeds, and any settings that are varied.

A comparison is a study that varies nothing else; a sweep also varies settings. A study has one
folder::

    study.json                                              what was requested
    <dataset>/<mechanism>/<policy>/seed-<s>/                a run folder for each cell, or
    <key=value,...>/<dataset>/<mechanism>/<policy>/seed-<s>/  if settings are varied
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

import bgtplanner
from bgtplanner.data.datasets import dataset_info
from bgtplanner.errors import ConfigError, RunFolderError
from bgtplanner.runs.config import GONE, Config, load_config
from bgtplanner.runs.folder import write_whole
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
        key = key.strip()
        if key in grid:
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
class Study:
    """What is to be run and compared. ``unlimited`` needs no mechanism, and is run once.

    Attributes:
        policies: Names of policies, or ``package.module:Class``.
        settings: Config keys for all cells, such as ``{"federation.rounds": 50}``.
        baseline: The policy that all others are compared with; by default ``uniform``, or the
            first that is neither a planner nor ``unlimited``.
        variations: Grids of varied settings, each the values of its keys; all combinations of
            one are run, then those of the next. A comparison has none.
        given: Names of data sets that were given as ratings in Python.
    """

    datasets: tuple[str, ...] = ("demo",)
    mechanisms: tuple[str, ...] = ("gaussian",)
    policies: tuple[str, ...] = ("bgt", "uniform", "early", "late", "adpml", "adap", "unlimited")
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    preset: str = "recommended"
    settings: Mapping[str, Any] = field(default_factory=dict)
    baseline: str | None = None
    variations: tuple[Mapping[str, tuple[Any, ...]], ...] = ()
    given: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """``sweep`` if settings are varied, else ``comparison``; the name of its tables."""
        return "sweep" if self.variations else "comparison"

    @property
    def command(self) -> str:
        """The command that runs and continues it."""
        return "sweep" if self.variations else "compare"

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
        free = "unlimited" in self.policies
        if limited and not self.noisy:
            raise ConfigError(
                f"--policy = {limited[0]!r}: expected unlimited, for --mechanism none"
            )
        if "none" in self.mechanisms and not free:
            raise ConfigError("--mechanism = 'none': expected with --policy unlimited")
        pairs = [(mechanism, policy) for mechanism in self.noisy for policy in limited]
        return [*pairs, ("none", "unlimited")] if free else pairs

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
            cell = Cell(*own, variant=name)
            try:
                settings = {**self.settings, **varied, **dict(zip(AXES, own, strict=True))}
                found[cell] = load_config(preset=self.preset, settings=settings)
            except ConfigError as error:
                raise ConfigError(f"--vary {name}: {error}" if varied else str(error)) from error
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
            for name in set(self.datasets) - set(self.given):
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
            raise RunFolderError(
                f"{file}: cannot be read: {said}; choose another folder, or delete it and request "
                "the study again"
            ) from error
        return found

    def write(self, out: Path) -> None:
        """Write the request into the folder."""
        tree = {"schema": _SCHEMA, "version": bgtplanner.__version__, **asdict(self)}
        write_whole(out / _FILE, json.dumps(tree, indent=2) + "\n")
