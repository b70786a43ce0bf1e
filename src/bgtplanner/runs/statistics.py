"""The statistics of a study: means over seeds, their intervals, and paired differences.

Intervals are Student's t at 95 % over seeds. They cover the variation of the split, the noise and
the initial state, and nothing more. Differences are paired by seed, because cells with the same
seed share their split.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from scipy.special import stdtrit

from bgtplanner.arguments import as_path
from bgtplanner.errors import RunFolderError
from bgtplanner.models.metrics import HEADLINE, METRICS, shown
from bgtplanner.models.references import REFERENCES
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.record import OF_EVERY_RUN
from bgtplanner.runs.study import Cell, Study, in_words
from bgtplanner.text import csv_text, visible

_COLUMNS = ("kind", "dataset", "mechanism", "policy", "baseline", "metric",
            "seeds", "mean", "std", "low", "high")  # fmt: skip


def compared() -> list[str]:
    """The keys of ``summary.json`` that are compared: as served, of the last and the best round.

    They include what is only shown with some other preset.
    """
    found = []
    for name in [of for of in METRICS if METRICS[of].shown]:
        found += [f"{name}_final", f"{name}_best"] if METRICS[name].sums else [name]
        found += [f"{name}_served"] * (METRICS[name].unit == "ratings" or name == HEADLINE)
    return found


def metric_of(key: str) -> str:
    """The metric of such a key."""
    return key if key in METRICS else key.rpartition("_")[0]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a cell: the figures of its ``summary.json``, or why it failed.

    `seconds` says how long it took just now; 0 if it was finished before.
    """

    cell: Cell
    summary: Mapping[str, Any] | None = None
    error: str | None = None
    seconds: float = 0.0


def finished_cells(cells: Iterable[Cell], out: Path) -> list[Outcome]:
    """The outcomes of those cells that are finished, from their summaries alone."""
    found = []
    for cell in cells:
        try:
            summary = RunFolder(out / cell.place).read("summary.json", OF_EVERY_RUN)
        except RunFolderError as error:
            found.append(Outcome(cell=cell, error=" ".join(str(error).split())))
        else:
            found += [] if summary is None else [Outcome(cell=cell, summary=summary)]
    return found


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over seeds, its standard deviation (with n - 1), and the ends of its 95 % t-interval.

    One seed gives neither deviation nor interval.
    """

    seeds: int
    mean: float
    std: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def half(self) -> float | None:
        """Half the width of the interval."""
        return None if self.high is None else self.high - self.mean


def estimate(values: Sequence[float]) -> Estimate | None:
    """Mean, standard deviation and interval of values; None if there are none.

    Example:
        >>> estimate([1.0, 2.0, 3.0]).std
        1.0
    """
    if not values:
        return None
    number, mean = len(values), statistics.fmean(values)
    if number < 2:
        return Estimate(seeds=number, mean=mean)
    std = statistics.stdev(values)
    half = float(stdtrit(number - 1, 0.975)) * std / math.sqrt(number)
    return Estimate(seeds=number, mean=mean, std=std, low=mean - half, high=mean + half)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One policy or reference predictor over all seeds, or a difference between two policies.

    Attributes:
        mechanism: What protected the uploads; ``none`` if nothing did.
        figures: By key of the summary; None if no seed is finished.
        varied: The varied settings, with their values here.
        reference: Whether it is a predictor that shares nothing.
        asked: Number of seeds requested.
        baseline: The policy whose figures were subtracted, seed by seed; empty if none was.
    """

    dataset: str
    mechanism: str
    policy: str
    figures: Mapping[str, Estimate | None]
    varied: Mapping[str, Any] = field(default_factory=dict)
    reference: bool = False
    asked: int = 0
    baseline: str = ""

    @property
    def kind(self) -> str:
        """What it is: ``policy``, ``reference`` or ``difference``."""
        return "difference" if self.baseline else "reference" if self.reference else "policy"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The results of a study, over all seeds.

    Attributes:
        study: What was requested.
        outcomes: The outcome of every cell.
        rows: Means, for each combination of varied settings and each data set.
        differences: Differences from the baseline, over the seeds that both have.
        folder: Where its runs are, if they were kept; ``bgtplanner.load_study`` reads it again.
    """

    study: Study
    outcomes: Sequence[Outcome]
    rows: Sequence[Row]
    differences: Sequence[Row]
    folder: Path | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        study, failed = self.study, len(self.failed)
        names = [", ".join(dict.fromkeys(of)) for of in (study.datasets, study.policies)]
        kind = "Comparison of a sweep" if study.variations else "Comparison"
        cells = f"{len(self.outcomes) - failed} of {len(self.outcomes)} runs finished"
        where = "" if self.folder is None else f", in {self.folder}"
        return visible(f"{kind}({': '.join(names)}; {cells}{where})")

    def __str__(self) -> str:
        from bgtplanner.report.page import as_tables

        return as_tables(self)

    def _repr_html_(self) -> str:
        from bgtplanner.report.page import as_html

        return as_html(self)

    @property
    def failed(self) -> list[Outcome]:
        """The cells that failed."""
        return [outcome for outcome in self.outcomes if outcome.error is not None]

    @property
    def known(self) -> list[str]:
        """The compared figures that any row has."""
        ours = [row.figures for row in self.rows if not row.reference]
        return [key for key in compared() if any(of[key] for of in ours)] or compared()

    @property
    def error(self) -> str:
        """The figure by which policies are compared: the RMSE that was planned for.

        With the paper's preset it is that of the best round, by which the paper compares.
        """
        if self.study.preset == "paper":
            return "rmse_best"
        return "rmse_served" if self.study.objective == "served" else "rmse_final"

    @property
    def reported(self) -> tuple[str, ...]:
        """The figures to show, those that were planned for first.

        With the paper's preset they are those of the best round. Otherwise they are of the last
        round and as people were served; what is known for both first.
        """
        preset, planned = self.study.preset, self.error.endswith("_served")
        hidden = ("_final", "_served") if preset == "paper" else ("_best",)
        keys = [key for key in self.known if metric_of(key) in shown(preset)]
        both = {metric_of(key) for key in keys if key.endswith("_served")}

        def rank(key: str) -> tuple[bool, bool]:
            return key.endswith("_served") != planned, metric_of(key) not in both

        return tuple(sorted((key for key in keys if not key.endswith(hidden)), key=rank))

    def as_json(self) -> dict[str, Any]:
        """Everything as JSON."""
        return {
            "request": asdict(self.study),
            "baseline": self.study.against,
            "objective": self.study.objective,
            "reported": list(self.reported),
            "cells": len(self.outcomes),
            "rows": [*map(asdict, self.rows)],
            "differences": [*map(asdict, self.differences)],
            "failed": [
                asdict(outcome.cell) | {"folder": str(outcome.cell.place), "error": outcome.error}
                for outcome in self.failed
            ],
        }

    def as_csv(self) -> str:
        """Everything as CSV, one line per metric; kind is policy, reference or difference.

        The varied settings come first, one column per key.
        """
        keys = dict.fromkeys(key for grid in self.study.variations for key in grid)
        lines: list[dict[str, Any]] = []
        for row in (*self.rows, *self.differences):
            place: dict[str, Any] = {key: in_words(value) for key, value in row.varied.items()}
            place |= {name: getattr(row, name) for name in _COLUMNS[:5]}
            for key in self.known:
                if (found := row.figures[key]) is not None:
                    lines.append(place | {"metric": key} | asdict(found))
                elif not row.reference:  # some references only predict, some only rank
                    lines.append(place | {"metric": key, "seeds": 0})
        return csv_text([*keys, *_COLUMNS], lines)


def load_study(path: Path | str) -> Comparison:
    """Load the results of a study from its folder, with all runs that are finished.

    Only summaries are read, so neither the ratings nor the models have to be there.
    """
    place = as_path("path", path)
    if (study := Study.read(place)) is None:
        raise RunFolderError(
            f"{place}: does not hold a study; give the folder of 'bgtplanner compare --out', or "
            "load a single run with bgtplanner.load"
        )
    return replace(summed_up(study, finished_cells(study.cells(), place)), folder=place)


def summed_up(study: Study, outcomes: Sequence[Outcome]) -> Comparison:
    """The means, intervals and differences of the finished cells."""
    done: dict[tuple[str, ...], dict[int, Mapping[str, Any]]] = {}
    for outcome in outcomes:
        if outcome.summary is not None:
            cell = outcome.cell
            place = (cell.variant, cell.dataset, cell.mechanism, cell.policy)
            done.setdefault(place, {})[cell.seed] = outcome.summary
    rows: list[Row] = []
    differences: list[Row] = []
    places = itertools.product(study.points().items(), dict.fromkeys(study.datasets))
    for (name, varied), dataset in places:
        runs = {pair: done.get((name, dataset, *pair), {}) for pair in study.pairs()}
        where: dict[str, Any] = {"dataset": dataset, "varied": varied}
        asked = where | {"asked": len(set(study.seeds))}
        for (mechanism, policy), of in runs.items():
            figures = _means(of.values())
            rows.append(Row(mechanism=mechanism, policy=policy, figures=figures, **asked))
        # For a seed the references are the same in every cell, so any cell will do.
        every = {seed: summary for of in runs.values() for seed, summary in of.items()}
        for key in REFERENCES:
            figures = _means([every[seed] for seed in sorted(every)], key)
            # What was released depends on the policy.
            if key != "popularity_released" and any(figures.values()):
                beside = Row(mechanism="none", policy=key, figures=figures, **asked)
                rows.append(replace(beside, reference=True))
        for mechanism in study.noisy if (baseline := study.against) else ():
            # A policy without a mechanism is compared in each.
            kinds = {of: "none" if of == "unlimited" else mechanism for of in study.policies}
            theirs = runs[kinds.pop(str(baseline)), str(baseline)]
            for policy, kind in kinds.items():
                ours = runs[kind, policy]
                figures = _means([_minus(ours[of], theirs[of]) for of in ours if of in theirs])
                apart = Row(mechanism=mechanism, policy=policy, figures=figures, **where)
                differences.append(replace(apart, baseline=str(baseline)))
    return Comparison(study=study, outcomes=outcomes, rows=rows, differences=differences)


def _minus(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, float]:
    known = [key for key in compared() if None not in (ours.get(key), theirs.get(key))]
    return {key: ours[key] - theirs[key] for key in known}


def _means(summaries: Iterable[Mapping[str, Any]], reference: str = "") -> dict[str, Any]:
    """The estimate of every compared figure, from the summaries that have it."""
    every, found = list(summaries), {}
    for key in compared():
        name = f"{metric_of(key)}_{reference}" if reference else key
        served = f"{name}_served"  # other references are the same in every round
        if key.endswith("_served") and all(of.get(served) is not None for of in every):
            name = served
        found[key] = estimate([of[name] for of in every if of.get(name) is not None])
    return found
