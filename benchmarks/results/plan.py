"""What is run: the table of results, the planner's study, and the preset with one part removed.

A run has a plain key, and a hash of all its settings: what is asked for with other settings is
another run, even under the same key. Parts share runs wherever they ask for the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from bgtplanner.planning.schedules import Hindsight
from bgtplanner.runs.config import INDIFFERENT, Config, load_config

PRESET = "recommended"
DATASETS = {"ml-100k": "ML-100K", "filmtrust": "FilmTrust", "ml-1m": "ML-1M"}
SEEDS = (0, 1, 2, 3, 4)
FEWER = (0, 1, 2)  # where a run takes long
ROUNDS = 100
RIVALS = ("uniform", "adpml", "adap", "hong", "two-phase", "bgt")
WITHOUT_PRIVACY = {"ml-100k": 0.2017, "filmtrust": 0.2905, "ml-1m": 0.2006}
"""RMSE of the paper's model without privacy, as the paper reports it."""


class Place(NamedTuple):
    """Under which circumstances: the data, and what protects them."""

    dataset: str
    trust: str
    mechanism: str
    epsilon: float

    @property
    def guarantee(self) -> str:
        """In words, without the data set."""
        noise = "" if self.mechanism == "gaussian" else f", {self.mechanism}"
        return f"{self.trust}, epsilon {self.epsilon:g}{noise}"

    @property
    def settings(self) -> dict[str, Any]:
        """As config keys."""
        return {
            "data.dataset": self.dataset,
            "privacy.trust": self.trust,
            "privacy.mechanism": self.mechanism,
            "privacy.epsilon": self.epsilon,
        }


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of one policy, schedule or ablation."""

    place: Place
    name: str
    seed: int
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """By which it is known."""
        place = self.place
        where = f"{place.dataset} {place.trust} {place.mechanism} epsilon={place.epsilon:g}"
        return f"{where} {self.name} seed={self.seed}"

    @cached_property
    def config(self) -> Config:
        """All settings."""
        own = {**self.place.settings, "run.seed": self.seed, **self.settings}
        return load_config(preset=PRESET, settings=own)

    @cached_property
    def mark(self) -> str:
        """A hash of all settings that decide what comes out."""
        tree = self.config.model_dump(mode="json")
        for key in INDIFFERENT:
            section, name = key.split(".")
            tree[section].pop(name)
        text = json.dumps(_rounded(tree), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def group(self) -> tuple[Any, ...]:
        """Runs of a group are compiled once, if one process has them all."""
        config = self.config
        compiled = (config.model, config.biases, config.factorization)
        return (*self.place[:3], self.seed, repr(compiled))


@dataclass(frozen=True, kw_only=True)
class Target:
    """What the RMSE should come to: at most so much, or so much less than something's.

    Attributes:
        at_most: The largest value or difference.
        less: Name of what is subtracted, seed by seed: ``user_mean``, ``client_alone`` or none.
        every_seed: Whether it is for each seed, and not for the mean only.
    """

    at_most: float
    less: str | None = None
    every_seed: bool = False

    def __str__(self) -> str:
        if self.less is None:
            return f"at most {self.at_most:.4f}"
        whom = self.less.replace("_", " ")
        if self.every_seed and not self.at_most:
            return f"never worse than {whom}"
        return f"{whom} less {-self.at_most:.4f}"


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """What is promised, and what should come out on each data set."""

    trust: str
    epsilon: float
    mechanism: str = "gaussian"
    targets: Mapping[str, Target] = field(default_factory=dict)

    def place(self, dataset: str) -> Place:
        return Place(dataset, self.trust, self.mechanism, self.epsilon)


_MEAN, _ALONE = "user_mean", "client_alone"
TABLE = (
    TableRow(
        trust="secagg",
        epsilon=10.0,
        targets={
            "ml-100k": Target(at_most=0.1925),
            "filmtrust": Target(at_most=-0.005, less=_MEAN),
            "ml-1m": Target(at_most=0.1865),
        },
    ),
    TableRow(
        trust="secagg",
        epsilon=1.0,
        targets={
            "ml-100k": Target(at_most=-0.005, less=_MEAN),
            "filmtrust": Target(at_most=-0.003, less=_MEAN),
            "ml-1m": Target(at_most=-0.003, less=_ALONE),
        },
    ),
    TableRow(
        trust="local",
        epsilon=10.0,
        mechanism="privunit",  # what the preset takes there
        targets={
            "ml-100k": Target(at_most=-0.001, less=_MEAN),
            "filmtrust": Target(at_most=0.0, less=_MEAN, every_seed=True),
            "ml-1m": Target(at_most=-0.0003, less=_ALONE),
        },
    ),
)
EXTRA = (TableRow(trust="local", epsilon=10.0),)
"""Rows without targets, for comparison."""


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """The preset with something removed. A policy's name as name: the run of that policy."""

    name: str
    label: str
    settings: Mapping[str, Any]


_OFF = 1e6  # shrinkage that leaves nothing
_POPULARITY = {"biases.popularity_shrinkage": _OFF}
_QUALITY = {"biases.quality_shrinkage": _OFF}
ABLATIONS = (
    Ablation(
        name="no-leanings",
        label="users' leanings, both",
        settings={**_POPULARITY, **_QUALITY},
    ),
    Ablation(
        name="no-popularity-leaning",
        label="users' leaning towards popularity",
        settings=_POPULARITY,
    ),
    Ablation(name="no-quality-leaning", label="users' leaning towards quality", settings=_QUALITY),
    Ablation(
        name="unequal-uploads", label="uploads of equal length", settings={"privacy.clip": 10.0}
    ),
    Ablation(
        name="uniform",
        label="the planner (`uniform` instead)",
        settings={"planning.policy": "uniform"},
    ),
    Ablation(
        name="gradients",
        label="the model (`factorization`, trained by gradients, `uniform`)",
        settings={"model.name": "factorization", "planning.policy": "uniform"},
    ),
)
OWN_VIEW = Ablation(
    name="no-own-view",
    label="a client's own view of items",
    settings={"biases.item_shrinkage": _OFF, "biases.known_item_shrinkage": _OFF},
)


class Cell(NamedTuple):
    """A place, and the seeds with which it is studied."""

    place: Place
    seeds: tuple[int, ...]


class Removal(NamedTuple):
    """An ablation at a place."""

    ablation: Ablation
    place: Place
    seeds: tuple[int, ...]


PARTS = ("table", "planner", "ablation", "constants")
CONSTANTS = {
    "bgt own": "ours",
    "bgt repaired": "repaired",
    "bgt paper": "as printed",
    "bgt authors": "as coded",
}
"""The paper's planner in all its forms, by name of the run."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """All that is asked for.

    Attributes:
        table: Rows of the table of results.
        datasets: Its data sets.
        seeds: Its seeds.
        cells: Of the planner's study.
        removals: Of the ablation.
        rivals: Policies that the planner is compared with.
        rounds: Of every run.
        settings: For all runs.
    """

    table: tuple[TableRow, ...]
    datasets: tuple[str, ...]
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]
    removals: tuple[Removal, ...]
    rivals: tuple[str, ...] = RIVALS
    rounds: int = ROUNDS
    settings: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def planner(self) -> str:
        """The policy of the preset."""
        return load_config(preset=PRESET).planning.policy

    @cached_property
    def schedules(self) -> dict[str, list[float]]:
        """Fixed schedules by name; the best of them is hindsight's."""
        found = Hindsight.candidates(self.rounds)
        return {name: weights.tolist() for name, weights in found.items()}

    @property
    def sound(self) -> list[Place]:
        """Where the forms of the paper's planner are compared."""
        rows = [row for row in self.table if (row.trust, row.mechanism) == ("secagg", "gaussian")]
        return [row.place(dataset) for row in rows for dataset in self.datasets]

    @property
    def others(self) -> tuple[str, ...]:
        """Rivals that are not the planner itself."""
        return tuple(name for name in self.rivals if name != self.planner)

    @cached_property
    def _made(self) -> dict[tuple[Place, str, int], Run]:
        return {}  # their settings take a while to put together

    def run(self, place: Place, name: str, seed: int) -> Run:
        """A run by the name of its policy, schedule or ablation."""
        if (place, name, seed) not in self._made:
            self._made[place, name, seed] = self._make(place, name, seed)
        return self._made[place, name, seed]

    def _make(self, place: Place, name: str, seed: int) -> Run:
        own = dict(self.settings)
        known = {entry.name: entry.settings for entry in (*ABLATIONS, OWN_VIEW)}
        if name in known:
            own |= known[name]
        elif name in self.schedules:
            weights = self.schedules[name]
            own |= {"planning.policy": "fixed", "planning.options": {"weights": weights}}
        elif name in CONSTANTS:
            policy, constants = name.split()
            own |= {"planning.policy": policy, "planning.constants": constants}
        else:
            own |= {"planning.policy": name}
        return Run(place=place, name=name, seed=seed, settings=own)

    def runs(self, parts: Iterable[str] = PARTS) -> list[Run]:
        """Every run of these parts, once."""
        found = {run.key: run for part in parts for run in self.runs_of(part)}
        return list(found.values())

    def runs_of(self, part: str) -> Iterator[Run]:
        """The runs that a part is made of."""
        if part == "table":
            for row in self.table:
                for dataset in self.datasets:
                    for seed in self.seeds:
                        yield self.run(row.place(dataset), self.planner, seed)
        elif part == "planner":
            for place, seeds in self.cells:
                for seed in seeds:
                    for name in (self.planner, *self.others, *self.schedules):
                        yield self.run(place, name, seed)
        elif part == "constants":
            for place in self.sound:
                for seed in self.seeds:
                    for name in ("uniform", *CONSTANTS):
                        yield self.run(place, name, seed)
        else:
            for ablation, place, seeds in self.removals:
                for seed in seeds:
                    yield self.run(place, self.planner, seed)
                    yield self.run(place, ablation.name, seed)

    def only(self, datasets: Sequence[str]) -> Study:
        """The same for some of the data sets."""
        return replace(
            self,
            datasets=tuple(name for name in self.datasets if name in datasets),
            cells=tuple(cell for cell in self.cells if cell.place.dataset in datasets),
            removals=tuple(one for one in self.removals if one.place.dataset in datasets),
        )


def whole() -> Study:
    """All of it."""
    small = [
        Cell(Place(dataset, trust, mechanism, epsilon), SEEDS)
        for dataset in ("ml-100k", "filmtrust")
        for trust in ("secagg", "local")
        for mechanism in ("gaussian", "laplace")
        for epsilon in (0.5, 1.0, 3.0, 10.0, 20.0)
    ]
    large = [
        Cell(Place("ml-1m", trust, "gaussian", epsilon), FEWER)
        for trust in ("secagg", "local")
        for epsilon in (1.0, 10.0)
    ]
    removals = [
        Removal(ablation, Place(dataset, "secagg", "gaussian", epsilon), SEEDS)
        for dataset in ("ml-100k", "filmtrust")
        for epsilon in (10.0, 1.0)
        for ablation in ABLATIONS
    ]
    view = Removal(OWN_VIEW, Place("ml-1m", "secagg", "gaussian", 10.0), FEWER)
    return Study(
        table=(*TABLE, *EXTRA),
        datasets=tuple(DATASETS),
        seeds=SEEDS,
        cells=(*small, *large),
        removals=(*removals, view),
    )


def quick() -> Study:
    """A corner of each part, on made-up ratings, with two rounds: to see that it works."""
    place = Place("synthetic", "secagg", "gaussian", 10.0)
    seeds = (0, 1)
    return Study(
        table=TABLE[:1],
        datasets=("synthetic",),
        seeds=seeds,
        cells=(Cell(place, seeds),),
        removals=tuple(Removal(ablation, place, seeds) for ablation in ABLATIONS[3:5]),
        rivals=("uniform", "adpml"),
        rounds=2,
        settings={
            "federation.rounds": 2,
            "synthetic.clients": 60,
            "synthetic.items": 30,
            "synthetic.ratings_per_client": 12,
        },
    )


def _rounded(tree: Any) -> Any:
    """The same with numbers to ten digits: other machines' logarithms differ in the last ones."""
    if isinstance(tree, dict):
        return {name: _rounded(value) for name, value in tree.items()}
    if isinstance(tree, list):
        return [_rounded(value) for value in tree]
    return float(f"{tree:.10g}") if isinstance(tree, float) else tree
