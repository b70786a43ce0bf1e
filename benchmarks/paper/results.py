"""What has been run: the summaries of finished cells, and nothing else of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from benchmarks.paper.plan import (
    DATASETS,
    FIGURES,
    GRIDS,
    MECHANISMS,
    METHODS,
    SEEDS,
    TABLE,
    Method,
)
from bgtplanner.experiments.cells import Outcome, outcome_of
from bgtplanner.experiments.comparison import Estimate, estimate
from bgtplanner.experiments.grid import Asked, Request
from bgtplanner.experiments.sweeps import Sensitivity, Sweep, evaluate

Summaries = Mapping[int, Mapping[str, Any]]
Read = TypeVar("Read", Request, Sweep)


class Place(NamedTuple):
    """Where a cell stands: which grid, data set, mechanism and policy."""

    grid: str
    dataset: str
    mechanism: str
    policy: str


class Results:
    """The finished cells below a runs folder.

    Attributes:
        settings: Of every grid and data set, what was set otherwise than by the preset.
        sweeps: By name of the figure; one for each folder that has something finished.
    """

    def __init__(self, runs: Path) -> None:
        self.settings: dict[tuple[str, str], Mapping[str, Any]] = {}
        self.sweeps: dict[str, list[Sensitivity]] = {}
        self._cells: dict[Place, dict[int, Mapping[str, Any]]] = {}
        for grid in GRIDS:
            for request, outcomes in _read(runs / grid.name, Request):
                self._add(grid.name, request, outcomes)
        for figure in FIGURES:
            found = [evaluate(*each) for each in _read(runs / figure.name, Sweep)]
            if found:
                self.sweeps[figure.name] = sorted(found, key=_first_dataset)

    def _add(self, grid: str, request: Request, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            cell = outcome.cell
            self.settings[grid, cell.dataset] = request.settings
            place = Place(grid, cell.dataset, cell.mechanism, cell.policy)
            self._cells.setdefault(place, {})[cell.seed] = outcome.summary or {}

    def of(self, method: Method, dataset: str, mechanism: str) -> Summaries:
        """The summaries of one cell by seed. What needs no mechanism is there for all."""
        kind = "none" if method.policy == "unlimited" else mechanism
        return self._cells.get(Place(method.grid, dataset, kind, method.policy), {})

    def figure(self, method: Method, dataset: str, mechanism: str, name: str) -> Estimate | None:
        """Mean and deviation over seeds of one figure of the summaries."""
        found = self.of(method, dataset, mechanism).values()
        return estimate([summary[name] for summary in found if summary.get(name) is not None])

    def reference(self, dataset: str, name: str) -> Estimate | None:
        """Of a predictor that shares nothing: by seed the same in every cell."""
        by_seed: dict[int, float] = {}
        for place, found in self._cells.items():
            if place.dataset == dataset:
                for seed, summary in found.items():
                    by_seed.setdefault(seed, summary[name])
        return estimate(list(by_seed.values()))

    def clients(self, dataset: str) -> int | None:
        """How many clients the data set has."""
        for place, found in self._cells.items():
            for summary in found.values():
                if place.dataset == dataset and "clients" in summary:
                    return int(summary["clients"])
        return None

    @property
    def columns(self) -> list[tuple[str, str]]:
        """Data sets and mechanisms of which there is anything, in the table's order."""
        known = {place.dataset for place, found in self._cells.items() if found}
        return [(name, kind) for name in DATASETS if name in known for kind in MECHANISMS]

    @property
    def datasets(self) -> list[str]:
        """The data sets of which there is anything."""
        return list(dict.fromkeys(dataset for dataset, _ in self.columns))

    def complete(self) -> bool:
        """Whether all of the table is there, with every seed; other readings may be missing."""
        return all(
            len(self.of(method, dataset, mechanism)) >= len(SEEDS)
            for method in METHODS
            if method.grid == TABLE
            for dataset in DATASETS
            for mechanism in MECHANISMS
        )


def finished(asked: Asked, out: Path) -> list[Outcome]:
    """The cells in a folder that are done, by their summaries."""
    places = {cell: out / cell.place for cell in asked.cells()}
    done = [cell for cell, place in places.items() if (place / "summary.json").exists()]
    return [found for cell in done if (found := outcome_of(cell, places[cell])).summary]


def _read(folder: Path, kind: type[Read]) -> Iterator[tuple[Read, list[Outcome]]]:
    """What was asked for in a folder and those in it, with what is finished."""
    below = sorted(entry for entry in folder.glob("*") if entry.is_dir())
    for place in (folder, *below):
        asked = kind.read(place)
        if asked is not None and (outcomes := finished(asked, place)):
            yield asked, outcomes


def _first_dataset(found: Sensitivity) -> int:
    order = [*DATASETS, *found.sweep.base.datasets]
    return order.index(found.sweep.base.datasets[0])
