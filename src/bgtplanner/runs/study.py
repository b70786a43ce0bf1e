"""A study: data sets x mechanisms x policies x seeds, and any settings that are varied.

A comparison is a study that varies nothing else; a sweep also varies settings. A study has one
folder::

    study.json                                              what was requested
    <dataset>/<mechanism>/<policy>/seed-<s>/                a run folder for each cell, or
    <key=value,...>/<dataset>/<mechanism>/<policy>/seed-<s>/  if settings are varied
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import TypeAdapter, ValidationError

import bgtplanner
from bgtplanner.data.datasets import dataset_info
from bgtplanner.errors import ConfigError, RunFolderError
from bgtplanner.planning.registry import POLICIES
from bgtplanner.runs.config import BEFORE, Config, differences, load_config
from bgtplanner.runs.folder import write_whole
from bgtplanner.text import MOST_BYTES_OF_SETTINGS, read_bytes

AXES = {
    "data.dataset": "--dataset",
    "privacy.mechanism": "--mechanism",
    "planning.policy": "--policy",
    "run.seed": "--seeds",
}
"""Config keys that every study varies, with their flags."""

_SCHEMA = 1
_FILE = "study.json"
_UNREADABLE = (
    *(OSError, LookupError, TypeError, AttributeError, ArithmeticError),
    *(ValueError, RecursionError),  # what JSON and pydantic refuse
)


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


def default_policies(preset: str, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The policies of a comparison that names none: the default of a run, and others.

    Example:
        >>> default_policies("recommended", {})
        ('bgt', 'uniform', 'early', 'late', 'adpml', 'adap', 'unlimited')
    """
    model = {key: settings[key] for key in ("model.name",) if key in settings}
    own = load_config(preset=preset, settings=model).planning.policy
    others = ("bgt", "uniform", "early", "late", "adpml", "adap", "unlimited")
    return tuple(dict.fromkeys((own, *others)))


@dataclass(frozen=True, kw_only=True)
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
class Axis:
    """A setting and its values.

    Attributes:
        key: Config key.
        values: Its values, without repetition.
        along: Config keys that follow it in proportion, rounded, unless they are given.
    """

    key: str
    values: tuple[Any, ...]
    along: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Variation:
    """Settings that are varied together, in all combinations.

    Attributes:
        axes: The varied settings; the first is the horizontal axis of pictures.
        settings: Further settings, unless they are given otherwise.
    """

    axes: tuple[Axis, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def keys(self) -> list[str]:
        """The config keys that are varied."""
        return [axis.key for axis in self.axes]


class Point(NamedTuple):
    """One combination of the values of varied settings, and the comparison with these values."""

    name: str
    values: Mapping[str, Any]
    study: Study


@dataclass(frozen=True, kw_only=True)
class Study:
    """What is to be run and compared. ``unlimited`` needs no mechanism, and is run once.

    Attributes:
        datasets: Names of data sets, or ``csv:PATH``.
        mechanisms: Names: ``gaussian``, ``laplace``, ``privunit``, ``none``.
        policies: Names of policies, or ``package.module:Class``; by default
            :func:`default_policies`.
        seeds: Seeds of the runs.
        preset: ``recommended`` or ``paper``.
        settings: Config keys for all cells, such as ``{"federation.rounds": 50}``.
        baseline: The policy that all others are compared with; by default ``uniform``, or the
            first that is neither a planner nor ``unlimited``.
        variations: Settings that are varied, one variation after the other; none in a comparison.
        figure: Name of the ready-made sweep, if it is one.
        older: Whether it was requested before the preset's model was `tastes`; cells that name no
            model have `biases` then, and `factorization` without privacy.
        given: Names of data sets that were given as ratings in Python.
    """

    datasets: tuple[str, ...] = ("demo",)
    mechanisms: tuple[str, ...] = ("gaussian",)
    policies: tuple[str, ...] = None  # type: ignore[assignment]  # never None after __post_init__
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    preset: str = "recommended"
    settings: Mapping[str, Any] = field(default_factory=dict)
    baseline: str | None = None
    variations: tuple[Variation, ...] = ()
    figure: str | None = None
    older: bool = False
    given: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.policies is None:
            object.__setattr__(self, "policies", default_policies(self.preset, self.settings))

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
        if "uniform" in self.policies:  # an even schedule: what planning has to beat
            return "uniform"
        others = [name for name in self.policies if name not in ("bgt", "unlimited")]
        return others[0] if others else self.policies[1]

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
        """Which policies are run with which mechanisms."""
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

    def places(self) -> list[tuple[str, str]]:
        """Pairs of data set and mechanism that are shown separately.

        What needs no mechanism is shown with every mechanism.
        """
        limited = any(name != "unlimited" for name in self.policies)
        kinds = self.noisy if limited else ["none"]
        return list(itertools.product(dict.fromkeys(self.datasets), kinds))

    def points(self) -> Iterator[Point]:
        """Every combination of varied values; a comparison has a single, empty one."""
        for variation in self.variations or (Variation(),):
            for values in itertools.product(*(axis.values for axis in variation.axes)):
                varied = dict(zip(variation.keys, values, strict=True))
                follow = {
                    key: round(share * varied[axis.key])
                    for axis in variation.axes
                    for key, share in axis.along.items()
                }
                settings = {**variation.settings, **follow, **self.settings, **varied}
                # A copy, because a key may lead into a table that is the value of another key.
                alone = replace(self, settings=copy.deepcopy(settings), variations=(), figure=None)
                name = ",".join(f"{key}={in_words(value)}" for key, value in varied.items())
                yield Point(name, varied, alone)

    def cells(self) -> dict[Cell, Config]:
        """Every cell with its settings, in the order in which they are run.

        All cells with the first seed come first, then all with the second, so that an unfinished
        study has results for each policy.

        Raises:
            ConfigError: If one of them cannot be run; names the flag.
        """
        self._check()
        flag = "--vary" if self.figure is None else f"--figure {self.figure}:"
        for keys, key in ((one.keys, key) for one in self.variations for key in one.keys):
            if key in AXES:
                raise ConfigError(f"{flag} {key}: this is given by {AXES[key]}")
            if key in self.settings:
                raise ConfigError(f"{flag} {key}: also given by --set; choose one of them")
            if keys.count(key) > 1:
                raise ConfigError(f"{flag} {key}: given twice; write {key}=V1,V2,...")
        found: dict[Cell, Config] = {}
        for point in self.points():
            try:
                found |= point.study._configs(point.name)
            except ConfigError as error:
                self._configs()  # the error may have nothing to do with what is varied
                raise ConfigError(f"{flag} {point.name}: {error}") from error
        turn = {seed: number for number, seed in enumerate(dict.fromkeys(self.seeds))}
        return dict(sorted(found.items(), key=lambda entry: turn[entry[0].seed]))

    def _configs(self, variant: str = "") -> dict[Cell, Config]:
        """The cells of one combination, with their settings."""
        found = {}
        older = self.older and self.preset == "recommended"
        for seed, dataset, (mechanism, policy) in itertools.product(
            self.seeds, self.datasets, self.pairs()
        ):
            cell = Cell(
                dataset=dataset, mechanism=mechanism, policy=policy, seed=seed, variant=variant
            )
            own = dict(zip(AXES, (dataset, mechanism, policy, seed), strict=True))
            model = "factorization" if mechanism == "none" else "biases"
            settings = ({"model.name": model} if older else {}) | dict(self.settings) | own
            found[cell] = load_config(preset=self.preset, settings=settings)
        return found

    def _check(self) -> None:
        """Refuse mistakes that do not depend on a varied setting."""
        own = (self.datasets, self.mechanisms, self.policies, self.seeds)
        for flag, values in zip(AXES.values(), own, strict=True):
            ConfigError.unless(bool(values), flag, list(values), "at least one")
        for key in self.settings:
            if key in AXES:
                raise ConfigError(f"--set {key}: this is given by {AXES[key]}")
        flag = "--dataset"
        try:
            for name in self.datasets:
                if name not in self.given:
                    dataset_info(name)
            flag = "--policy"
            for name in self.policies:
                if name not in POLICIES.gone:  # of an older study, which is only read
                    POLICIES[name]
        except ConfigError as error:
            raise ConfigError(f"{flag}: {error}") from error
        known = self.baseline is None or self.baseline in self.policies
        expected = f"one of {', '.join(self.policies)}"
        ConfigError.unless(known, "--baseline", self.baseline, expected)

    @classmethod
    def read(cls, out: Path) -> Self | None:
        """The study that was requested in a folder, by this version or an earlier one.

        Returns:
            None if there is none.

        Raises:
            RunFolderError: If there is one, but it cannot be read.
        """
        file = out / _FILE
        try:
            tree = json.loads(read_bytes(file, MOST_BYTES_OF_SETTINGS))
            if tree["schema"] != _SCHEMA:
                raise RunFolderError(
                    f"{file}: written by another version (schema {tree['schema']}); this one "
                    f"reads schema {_SCHEMA}. Use that version, or choose another folder with "
                    "--out"
                )
            # What the version that wrote it did not know is as it was then, for added cells, too.
            known = tree.get("knows", ())
            older = differences(load_config(), load_config(settings=BEFORE))
            before = {key: value for key, value in older.items() if key not in known}
            tree["settings"] = before | tree.get("settings", {})
            tree.setdefault("older", "tastes" not in known)
            found = TypeAdapter(cls).validate_python(tree)
            found.cells()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except RunFolderError:
            raise
        except _UNREADABLE as error:
            said = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
            raise RunFolderError(
                f"{file}: cannot be read: {said}; delete it, and request the study again"
            ) from error
        return found

    def write(self, out: Path) -> None:
        """Write the request into the folder."""
        tree = {"schema": _SCHEMA, "version": bgtplanner.__version__, **asdict(self)}
        tree["knows"] = [*BEFORE, "tastes"]
        write_whole(out / _FILE, json.dumps(tree, indent=2) + "\n")
