"""What has been run: the summaries of finished cells, and nothing else of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.paper.plan import DATASETS, FIGURES, MECHANISMS, READINGS, SEEDS, Reading
from benchmarks.provenance import of_one_code
from bgtplanner.runs.assembly import ratings_of, split_of
from bgtplanner.runs.config import load_config
from bgtplanner.runs.folder import write_whole
from bgtplanner.runs.statistics import Comparison, Estimate, estimate, summed_up
from bgtplanner.runs.study import Outcome, Study, finished_cells

_HALVES = "half.json"
PROVENANCE = "provenance.json"
Summaries = Mapping[int, Mapping[str, Any]]


class Results:
    """The finished cells below a runs folder.

    Attributes:
        settings: Of every reading and data set, what was set otherwise than by the preset.
        sweeps: By name of the figure; one for each folder that has something finished.
        provenances: Of the runs in each folder, which code, libraries and machine they are of.
    """

    def __init__(self, runs: Path) -> None:
        self.sweeps: dict[str, list[Comparison]] = {}
        self.provenances: dict[str, list[Mapping[str, Any]]] = {}
        self.settings: dict[tuple[Reading, str], Mapping[str, Any]] = {}
        self._halves = _halves(runs)
        self._cells: dict[tuple[str, str, str], dict[int, Mapping[str, Any]]] = {}
        for reading in READINGS:
            for asked, outcomes in self._read(runs / reading.name):
                self._add(reading.name, outcomes)
                for dataset in asked.datasets:
                    self.settings[reading, dataset] = asked.settings
        for figure in FIGURES:
            found = [summed_up(*each) for each in self._read(runs / figure.name)]
            if found:
                self.sweeps[figure.name] = sorted(found, key=_first_dataset)

    def _add(self, reading: str, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            place = (reading, outcome.cell.dataset, outcome.cell.mechanism)
            self._cells.setdefault(place, {})[outcome.cell.seed] = outcome.summary or {}

    def _read(self, folder: Path) -> Iterator[tuple[Study, list[Outcome]]]:
        """What was asked for in a folder and those in it, with what is finished."""
        below = sorted(entry for entry in folder.glob("*") if entry.is_dir())
        for place in (folder, *below):
            asked = Study.read(place)
            if asked is None or not (outcomes := finished(asked, place)):
                continue
            for outcome in outcomes:
                noted = place / outcome.cell.place / PROVENANCE
                mine = self.provenances.setdefault(folder.name, [])
                mine.append(json.loads(noted.read_text()) if noted.exists() else {})
            yield asked, outcomes

    def of(self, reading: Reading, dataset: str, mechanism: str) -> Summaries:
        """The summaries of one cell by seed. FedSGD, which has no noise, stands under Gaussian."""
        if reading.policy == "unlimited":
            if mechanism != "gaussian":
                return {}
            mechanism = "none"
        return self._cells.get((reading.name, dataset, mechanism), {})

    def figure(self, reading: Reading, dataset: str, mechanism: str, name: str) -> Estimate | None:
        """Mean and deviation over seeds of one figure of the summaries."""
        found = self.of(reading, dataset, mechanism).values()
        return estimate([summary[name] for summary in found if summary.get(name) is not None])

    def best(self, reading: Reading, dataset: str, mechanism: str, kind: str) -> float | None:
        """Mean over seeds of RMSE or F1 of the best round."""
        found = self.figure(reading, dataset, mechanism, f"{kind}_best")
        return None if found is None else found.mean

    def reference(self, dataset: str, name: str) -> Estimate | None:
        """Of a predictor that shares nothing: by seed the same in every cell."""
        if name == "rmse_half":
            return estimate(self._halves.get(dataset, []))
        by_seed: dict[int, float] = {}
        for (_, where, _), found in self._cells.items():
            if where == dataset:
                for seed, summary in found.items():
                    by_seed.setdefault(seed, summary[name])
        return estimate(list(by_seed.values()))

    def number(self, dataset: str, name: str) -> int | None:
        """How many clients or items the data set has."""
        for (_, where, _), found in self._cells.items():
            for summary in found.values():
                if where == dataset and name in summary:
                    return int(summary[name])
        return None

    @property
    def columns(self) -> list[tuple[str, str]]:
        """Data sets and mechanisms of which there is anything, in the table's order."""
        return [(name, kind) for name in self.datasets for kind in MECHANISMS]

    @property
    def datasets(self) -> list[str]:
        """The table's data sets of which there is anything."""
        known = {dataset for (_, dataset, _), found in self._cells.items() if found}
        return [name for name in DATASETS if name in known]

    def provenance(self, *parts: Any) -> str:
        """Return of which commit and machine some runs are; runs of different code are refused."""
        found = [one for part in parts for one in self.provenances.get(part.name, [])]
        return f"Of {of_one_code(found)} ({len(found):,} runs)."

    def complete(self, readings: Iterable[Reading] = READINGS) -> bool:
        """Whether these readings are there, with every seed, on the table's data sets."""
        return all(
            len(self.of(reading, dataset, mechanism)) >= len(SEEDS)
            for reading in readings
            for dataset in DATASETS
            for mechanism in reading.mechanisms
        )


def write_halves(runs: Path, datasets: Sequence[str], seeds: Sequence[int]) -> None:
    """Note the RMSE of predicting 0.5 everywhere, which no run has in its summary."""
    found = _halves(runs)
    for name in datasets:
        if len(found.get(name, [])) < len(seeds):
            found[name] = [_half(name, seed) for seed in seeds]
    write_whole(runs / _HALVES, json.dumps(found, indent=1) + "\n")


def _half(dataset: str, seed: int) -> float:
    config = load_config(preset="paper", settings={"data.dataset": dataset, "run.seed": seed})
    values = split_of(config, ratings_of(config)).test.value.astype(np.float64)
    return float(np.sqrt(np.mean((values - 0.5) ** 2)))


def _halves(runs: Path) -> dict[str, list[float]]:
    path = runs / _HALVES
    found: dict[str, list[float]] = json.loads(path.read_text()) if path.exists() else {}
    return found


def finished(asked: Study, out: Path) -> list[Outcome]:
    """The cells in a folder that are done, by their summaries."""
    return [found for found in finished_cells(asked.cells(), out) if found.summary]


def _first_dataset(found: Comparison) -> int:
    order = [*DATASETS, *found.study.datasets]
    return order.index(found.study.datasets[0])
