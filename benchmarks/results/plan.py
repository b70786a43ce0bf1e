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

import numpy as np
from numpy.typing import NDArray

from bgtplanner.runs.config import INDIFFERENT, Config, load_config

Floats = NDArray[np.float64]
PRESET = "recommended"
DATASETS = {
    "ml-100k": "ML-100K",
    "ml-1m-users": "ML-1M, 6,040 clients",
    "ml-1m": "ML-1M, 605 clients",
    "filmtrust": "FilmTrust",
}
SEEDS = (0, 1, 2, 3, 4)
FEWER = (0, 1, 2)  # where a run takes long
ROUNDS = 100
RIVALS = ("uniform", "adpml", "adap", "hong", "two-phase", "early", "late", "random", "paper")
OBJECTIVES = {"served": "rmse_served", "last": "rmse_final"}
"""What the planner can plan for, and the figure by which it is judged then."""


class Place(NamedTuple):
    """Under which circumstances: the data, and what protects them."""

    dataset: str
    trust: str
    mechanism: str
    epsilon: float
    neighbours: str = "replace-one"
    arrival: str = "random"

    @property
    def guarantee(self) -> str:
        """In words, without the data set."""
        if self.mechanism == "none":
            return "without privacy"
        noise = "" if self.mechanism == "gaussian" else f", {self.mechanism}"
        relation = "" if self.trust == "local" else f", {self.neighbours}"
        order = "" if self.arrival == "random" else ", in real order"
        return f"{self.trust}, epsilon {self.epsilon:g}{noise}{relation}{order}"

    @property
    def settings(self) -> dict[str, Any]:
        """As config keys."""
        told = {"data.dataset": self.dataset, "privacy.mechanism": self.mechanism}
        if self.mechanism == "none":
            return told | {"model.name": "tastes", "federation.rounds": 10}
        return told | {
            "privacy.trust": self.trust,
            "privacy.epsilon": self.epsilon,
            "privacy.neighbours": self.neighbours,
            "data.arrival": self.arrival,
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
        where += "" if place.neighbours == "replace-one" else f" {place.neighbours}"
        where += "" if place.arrival == "random" else f" {place.arrival}"
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
        compiled = (config.model, config.biases, config.factorization, config.tastes)
        return (*self.place[:3], self.seed, repr(compiled))


class TableRow(NamedTuple):
    """What is promised in a row of the table of results."""

    trust: str
    epsilon: float
    mechanism: str = "gaussian"
    neighbours: str = "replace-special"

    def place(self, dataset: str) -> Place:
        return Place(dataset, self.trust, self.mechanism, self.epsilon, self.neighbours)


TABLE = (
    TableRow("secagg", 10.0),
    TableRow("secagg", 1.0),
    TableRow("secagg", 10.0, neighbours="replace-one"),
    TableRow("secagg", 1.0, neighbours="replace-one"),
    TableRow("local", 10.0, "privunit", "replace-one"),  # what the preset takes there
    TableRow("secagg", 1.0, "none"),
)


class Ablation(NamedTuple):
    """The preset with something removed. A policy's name as name: the run of that policy."""

    name: str
    label: str
    settings: Mapping[str, Any]


_OFF = 1e6  # shrinkage that leaves nothing
_LEANINGS = {"tastes.popularity_shrinkage": _OFF, "tastes.quality_shrinkage": _OFF}
BIASES = {"model.name": "biases", "data.items": "none"}
"""The model with which the planner and the paper's constants are studied."""
ABLATIONS = (
    Ablation("no-features", "item features", {"data.items": "none"}),
    Ablation("no-tastes", "axes of taste", {"tastes.axes": 0}),
    Ablation("no-popularity", "popularity in the ranking", {"tastes.popularity_weight": 0.0}),
    Ablation("no-history", "what was picked before, in the ranking", {"tastes.boldness": 0.0}),
    Ablation("no-leanings", "users' leanings towards popularity and quality", _LEANINGS),
    Ablation(
        "biases", "the model (`biases` instead: no features, no tastes, ranked by rating)", BIASES
    ),
    Ablation("uniform", "the planner (`uniform` instead)", {"planning.policy": "uniform"}),
)


_SOUND = [("secagg", "gaussian", epsilon, "replace-one", "random") for epsilon in (10.0, 1.0)]


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

    @property
    def planners(self) -> dict[str, str]:
        """The planner's runs by what they plan for."""
        return {objective: f"{self.planner} {objective}" for objective in OBJECTIVES}

    @cached_property
    def schedules(self) -> dict[str, list[float]]:
        """Fixed schedules by name; the best of them is hindsight's."""
        found = candidates(self.rounds)
        return {name: weights.tolist() for name, weights in found.items()}

    @property
    def sound(self) -> list[Place]:
        """Where the forms of the paper's planner are compared."""
        return [cell.place for cell in self.cells if cell.place[1:] in _SOUND]

    @cached_property
    def _made(self) -> dict[tuple[Place, str, int], Run]:
        return {}  # their settings take a while to put together

    def run(self, place: Place, name: str, seed: int) -> Run:
        """A run by the name of its ablation; ``full`` for none."""
        if (place, name, seed) not in self._made:
            known = {entry.name: entry.settings for entry in ABLATIONS}
            own = {"planning.objective": "last", **self.settings, **known.get(name, {})}
            run = Run(place=place, name=name, seed=seed, settings=own)
            self._made[place, name, seed] = run
        return self._made[place, name, seed]

    def planned(self, place: Place, name: str, seed: int) -> Run:
        """A run of the planner's study, by the name of its policy or schedule."""
        if (place, f"planned {name}", seed) not in self._made:
            self._made[place, f"planned {name}", seed] = self._make(place, name, seed)
        return self._made[place, f"planned {name}", seed]

    def _make(self, place: Place, name: str, seed: int) -> Run:
        own = {**self.settings, **BIASES}
        if name in self.schedules:
            weights = self.schedules[name]
            own |= {"planning.policy": "fixed", "planning.options": {"weights": weights}}
        elif name in self.planners.values():
            own |= {"planning.objective": name.split()[1]}
        elif name == "bgt authors":
            own |= {"planning.policy": "benchmarks.paper.as_coded:AsCoded"}
        elif name in CONSTANTS or name == "paper":
            form = "repaired" if name == "paper" else name.split()[1]
            own |= {"planning.policy": "bgt", "planning.constants": form}
        else:
            own |= {"planning.policy": name}
        return Run(place=place, name=f"planned {name}", seed=seed, settings=own)

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
                        yield self.run(row.place(dataset), "full", seed)
        elif part == "planner":
            for place, seeds in self.cells:
                for seed in seeds:
                    for name in (*self.planners.values(), *self.rivals, *self.schedules):
                        yield self.planned(place, name, seed)
        elif part == "constants":
            for place in self.sound:
                for seed in self.seeds:
                    for name in ("uniform", *CONSTANTS):
                        yield self.planned(place, name, seed)
        else:
            for ablation, place, seeds in self.removals:
                for seed in seeds:
                    yield self.run(place, "full", seed)
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
    noises = (("secagg", "gaussian"), ("secagg", "laplace"), ("local", "privunit"))
    small = [
        Cell(Place(dataset, trust, mechanism, epsilon, "replace-one", arrival), SEEDS)
        for dataset, arrival in (
            ("ml-100k", "random"),
            ("ml-100k", "time"),
            ("filmtrust", "random"),
        )
        for trust, mechanism in noises
        for epsilon in (0.5, 1.0, 3.0, 10.0, 20.0)
    ]
    large = [
        Cell(Place("ml-1m", trust, mechanism, epsilon), FEWER)
        for trust, mechanism in noises
        for epsilon in (1.0, 10.0)
    ]
    removals = [
        Removal(ablation, Place(dataset, "secagg", "gaussian", epsilon, "replace-special"), seeds)
        for dataset, seeds in (("ml-100k", SEEDS), ("ml-1m-users", FEWER), ("filmtrust", SEEDS))
        for epsilon in (10.0, 1.0)
        for ablation in ABLATIONS
    ]
    return Study(
        table=TABLE,
        datasets=tuple(DATASETS),
        seeds=SEEDS,
        cells=(*small, *large),
        removals=tuple(removals),
    )


def quick() -> Study:
    """A corner of each part, on made-up ratings, with two rounds: to see that it works."""
    place = Place("synthetic", "secagg", "gaussian", 10.0)
    special, seeds = place._replace(neighbours="replace-special"), (0, 1)
    return Study(
        table=TABLE[:1],
        datasets=("synthetic",),
        seeds=seeds,
        cells=(Cell(place, seeds),),
        removals=tuple(Removal(ablation, special, seeds) for ablation in ABLATIONS[:2]),
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


def candidates(rounds: int) -> dict[str, Floats]:
    """Return fixed schedules by name: early, late, geometric, lumped and in two steps."""
    after = np.arange(rounds) / rounds
    found = {"even": np.ones(rounds), "falling": np.exp(-5 * after)}
    found["harmonic"] = 1 / np.arange(1.0, rounds + 1)
    for share in (50, 80):
        rest = np.full(rounds, (1 - share / 100) / max(rounds - 1, 1))
        found[f"{share} % first"] = np.append(share / 100, rest[1:])
    for count in (1, 2, 3, 5, 8):
        found[f"{count} early"] = _at(rounds, np.geomspace(1, rounds, count + 1)[:-1] - 1)
    found["3 first"] = _at(rounds, np.arange(3.0))
    for count in (1, 3):
        found[f"{count} last"] = _at(rounds, rounds - 1 - np.arange(float(count)))
    for count in (3, 10, 30):
        # The last round of each stretch, so that all ratings that have arrived are used.
        ends = np.ceil(np.arange(1, count + 1) * rounds / count) - 1
        found[f"{count} spread"] = _at(rounds, ends)
        found[f"{count} growing"] = _at(rounds, ends, np.geomspace(0.1, 1.0, count))
    return found


def _at(rounds: int, places: Floats, charges: Floats | float = 1.0) -> Floats:
    """Return a schedule that pays in some rounds only; what is there twice is added up."""
    weights = np.zeros(rounds)
    np.add.at(weights, np.clip(places.astype(np.int64), 0, rounds - 1), charges)
    return weights
