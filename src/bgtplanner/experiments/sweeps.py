"""What settings do: a grid with some of them varied, and the paper's sensitivity studies by name.

::

    vary.json                                               what was asked for
    <key=value,...>/<dataset>/<mechanism>/<policy>/seed-<s>/  one run folder each

It is a grid like that of a comparison, carried out by the same
:func:`~bgtplanner.experiments.grid.run_grid`: finished cells are never run again.
"""

from __future__ import annotations

import copy
import itertools
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from bgtplanner.errors import ConfigError
from bgtplanner.experiments.cells import Cell, Outcome
from bgtplanner.experiments.comparison import Comparison, Row, summed_up
from bgtplanner.experiments.config import Config, parse_assignment
from bgtplanner.experiments.grid import AXES, Request, read_asked, write_asked
from bgtplanner.text import csv_text

__all__ = [
    "FIGURES",
    "Axis",
    "Point",
    "Sensitivity",
    "Study",
    "Sweep",
    "evaluate",
    "figure_named",
    "in_words",
    "parse_axis",
]

_BUDGETS = (5, 10, 15, 20)

FIGURES = ("budget", "min-rounds", "rounds", "small")
"""The paper's sensitivity studies. Its grids cannot be read off its text: these are ours."""


def in_words(value: Any) -> str:
    """A value as names of folders and tables have it.

    Example:
        >>> in_words("sgd"), in_words(0.5), in_words({"gamma": 7})
        ('sgd', '0.5', '{"gamma":7}')
    """
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A setting and the values that it takes.

    Attributes:
        key: Config key.
        values: Without repetition.
        along: Config keys that follow it in proportion, rounded, unless they are given.
    """

    key: str
    values: tuple[Any, ...]
    along: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Study:
    """Settings that are varied together, each with each.

    Attributes:
        axes: What is varied; pictures have the first from left to right.
        settings: What holds throughout, unless it is given otherwise.
    """

    axes: tuple[Axis, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Point:
    """One combination of values, to be compared as any other grid."""

    study: Study
    values: Mapping[str, Any]
    request: Request

    @property
    def name(self) -> str:
        """Its folder, more or less: what is varied, and how."""
        return ",".join(f"{key}={in_words(value)}" for key, value in self.values.items())


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What is to be varied.

    Attributes:
        base: Data sets, mechanisms, policies and seeds of every combination, and what all share.
        studies: One after the other.
        figure: Name of the ready-made sweep that this is.
    """

    base: Request
    studies: tuple[Study, ...]
    figure: str | None = None

    command: ClassVar[str] = "sweep"
    file: ClassVar[str] = "vary.json"

    def points(self) -> Iterator[Point]:
        """Every combination, study by study."""
        given = self.base.settings
        for study in self.studies:
            for values in itertools.product(*(axis.values for axis in study.axes)):
                varied = dict(zip((axis.key for axis in study.axes), values, strict=True))
                follow = {
                    key: round(share * varied[axis.key])
                    for axis in study.axes
                    for key, share in axis.along.items()
                }
                # A copy: keys may lead into tables that are values of other keys.
                settings = copy.deepcopy({**study.settings, **follow, **given, **varied})
                request = replace(self.base, settings=settings)
                yield Point(study=study, values=varied, request=request)

    def cells(self) -> dict[Cell, Config]:
        """Every cell with its settings; first all with the first seed, as in a comparison.

        Raises:
            ConfigError: If any of them cannot be run, naming the flag.
        """
        flag = "--vary" if self.figure is None else f"--figure {self.figure}:"
        for study in self.studies:
            keys = [axis.key for axis in study.axes]
            for key in keys:
                if key in AXES:
                    raise ConfigError(f"{flag} {key}: this is given by {AXES[key]}")
                if key in self.base.settings:
                    raise ConfigError(f"{flag} {key}: given by --set too; choose one of them")
                if keys.count(key) > 1:
                    raise ConfigError(f"{flag} {key}: given twice; write {key}=V1,V2,...")
        found: dict[Cell, Config] = {}
        for point in self.points():
            try:
                cells = point.request.cells()
            except ConfigError as error:
                self.base.cells()  # it may have nothing to do with what is varied
                raise ConfigError(f"{flag} {point.name}: {error}") from error
            found |= {replace(cell, variant=point.name): of for cell, of in cells.items()}
        turn = {seed: number for number, seed in enumerate(dict.fromkeys(self.base.seeds))}
        return dict(sorted(found.items(), key=lambda entry: turn[entry[0].seed]))

    @classmethod
    def read(cls, out: Path) -> Self | None:
        """What was asked for in a folder before, or None if nothing was.

        Raises:
            RunFolderError: If the folder has a ``vary.json`` that cannot be read.
        """
        return read_asked(out / cls.file, cls._of_tree)

    @classmethod
    def _of_tree(cls, tree: Mapping[str, Any]) -> Self:
        listed = ("datasets", "mechanisms", "policies", "seeds")
        base = tree["base"] | {name: tuple(tree["base"][name]) for name in listed}
        studies = tuple(
            Study(
                axes=tuple(
                    Axis(**(axis | {"values": tuple(axis["values"])})) for axis in study["axes"]
                ),
                settings=study["settings"],
            )
            for study in tree["studies"]
        )
        return cls(base=Request(**base), studies=studies, figure=tree["figure"])

    def write(self, out: Path) -> None:
        """Note in the folder what is asked for."""
        write_asked(out / self.file, asdict(self))


def parse_axis(text: str) -> Axis:
    """``section.key=value,value`` of ``--vary``; the values as TOML has them, else as plain text.

    Raises:
        ConfigError: If that is not what it is.

    Example:
        >>> parse_axis("privacy.epsilon=5,10").values
        (5, 10)
        >>> parse_axis("server.optimizer=sgd,adam").values
        ('sgd', 'adam')
    """
    wrong = ConfigError(
        f"--vary {text}: expected SECTION.KEY=V1,V2,..., such as privacy.epsilon=5,10,20"
    )
    key, equals, listed = text.partition("=")
    key = key.strip()
    if not equals or "." not in key or not all(key.split(".")) or not listed.strip():
        raise wrong
    try:
        tree = tomllib.loads(f"values = [{listed}]")
    except (ValueError, RecursionError):
        tree = {}
    if list(tree) == ["values"]:
        values = tree["values"]
    else:
        values = [parse_assignment(f"{key}={part}")[1] for part in listed.split(",")]
    try:
        json.dumps(values, allow_nan=False)
        distinct = {in_words(value): value for value in values}
    except (TypeError, ValueError, RecursionError) as error:
        raise wrong from error
    if not distinct or "" in distinct:
        raise wrong
    return Axis(key=key, values=tuple(distinct.values()))


def figure_named(name: str, preset: str = "paper") -> tuple[tuple[str, ...], tuple[Study, ...]]:
    """The policies and the studies of a ready-made sweep.

    Args:
        name: One of :data:`FIGURES`.
        preset: The predictor's settings that are not varied are those of this preset.

    Raises:
        ConfigError: If there is none of that name.

    Example:
        >>> policies, studies = figure_named("budget")
        >>> policies, studies[0].axes[0].values
        (('bgt', 'adpml', 'adap', 'uniform'), (5, 10, 15, 20))
    """
    ConfigError.unless(name in FIGURES, "--figure", name, f"one of {', '.join(FIGURES)}")
    budget = Axis(key="privacy.epsilon", values=_BUDGETS)
    if name == "budget":
        return ("bgt", "adpml", "adap", "uniform"), (Study(axes=(budget,)),)
    if name == "min-rounds":
        least = Axis(key="planning.min_rounds", values=(50, 60, 70, 80, 90))
        return ("bgt",), (Study(axes=(budget, least)),)
    paper = preset == "paper"
    if name == "rounds":
        # The preset's 70 of 100 rounds would leave 50 rounds no choice: the share is kept.
        along = {"planning.min_rounds": 0.7} if paper else {}
        rounds = Axis(key="federation.rounds", values=(50, 75, 100, 150), along=along)
        return ("bgt",), (Study(axes=(budget, rounds)),)
    length = 0.2 if paper else 4.0
    plain: dict[str, tuple[float, ...]] = {
        "planning.levels": (3, 5, 7, 9),
        "planning.options.initial_rounds": (3, 5, 7),
        "planning.context_size": (3, 5, 10),
        "planning.options.gamma": (0.7, 7, 70, 700),
    }
    # The paper's planner takes them as they are, ours has a predictor with settings of its own.
    under = "planning.options" if paper else "planning.options.predictor"
    predictor = {"fit": True, "noise": 3.0, "length_scale": length}
    settings = {} if paper else {"planning.options.predictor": predictor}
    kernel: dict[str, tuple[float, ...]] = {
        f"{under}.length_scale": (length / 2, length, 2 * length, 4 * length),
        f"{under}.forgetting": (0.0001, 0.001, 0.01, 0.1),
    }
    single = [Study(axes=(Axis(key=key, values=values),)) for key, values in plain.items()]
    single += [
        Study(axes=(Axis(key=key, values=values),), settings=settings)
        for key, values in kernel.items()
    ]
    return ("bgt",), tuple(single)


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """What a sweep has shown: of every combination, what a comparison shows."""

    sweep: Sweep
    points: Sequence[tuple[Point, Comparison]]

    @property
    def failed(self) -> list[Outcome]:
        """The cells that failed."""
        return [outcome for _, of in self.points for outcome in of.failed]

    @property
    def reported(self) -> tuple[str, str]:
        """The metrics to look at: the best round as the paper has it, else the last."""
        return self.points[0][1].reported

    def rows(self) -> Iterator[tuple[Point, Row]]:
        """Means over seeds of every policy, in every combination."""
        for point, comparison in self.points:
            for row in comparison.rows:
                if not row.reference:
                    yield point, row

    def as_json(self) -> dict[str, Any]:
        """All of it, for machines."""
        return {
            "request": asdict(self.sweep),
            "reported": list(self.reported),
            "cells": sum(len(comparison.outcomes) for _, comparison in self.points),
            "rows": [
                {
                    "varied": dict(point.values),
                    "dataset": row.dataset,
                    "mechanism": row.mechanism,
                    "policy": row.policy,
                    "asked": row.asked,
                    "figures": {
                        metric: None if found is None else asdict(found)
                        for metric, found in row.figures.items()
                    },
                }
                for point, row in self.rows()
            ],
            "failed": [
                asdict(outcome.cell) | {"folder": str(outcome.cell.place), "error": outcome.error}
                for outcome in self.failed
            ],
        }

    def as_csv(self) -> str:
        """One line a metric, with a column for every key that is varied anywhere."""
        keys = list(dict.fromkeys(key for point, _ in self.points for key in point.values))
        places = ("dataset", "mechanism", "policy")
        figures = ("seeds", "mean", "std", "low", "high")
        lines: list[dict[str, Any]] = []
        for point, row in self.rows():
            varied = {key: in_words(value) for key, value in point.values.items()}
            place = {name: getattr(row, name) for name in places}
            for metric, found in row.figures.items():
                line = {"seeds": 0} if found is None else asdict(found)
                lines.append(varied | place | {"metric": metric} | line)
        return csv_text([*keys, *places, "metric", *figures], lines)


def evaluate(sweep: Sweep, outcomes: Sequence[Outcome]) -> Sensitivity:
    """Means and deviations of the cells that are done, combination by combination."""
    by_name: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        by_name.setdefault(outcome.cell.variant, []).append(outcome)
    points = [
        (point, summed_up(point.request, by_name.get(point.name, []))) for point in sweep.points()
    ]
    return Sensitivity(sweep=sweep, points=points)
