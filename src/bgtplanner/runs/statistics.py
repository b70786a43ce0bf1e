"""What a study has shown: means over seeds, how sure they are, and what sets policies apart.

Intervals are Student's t at 95 % over seeds: how much the split, the noise and the start vary, and
nothing more. Differences are taken seed by seed, since cells with the same seed share their split.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from scipy.stats import t as student

from bgtplanner.paper.table2 import EPSILON, Published, published
from bgtplanner.runs.cells import METRICS, REFERENCES, Outcome
from bgtplanner.runs.study import Point, Study, Variation, in_words
from bgtplanner.text import csv_text

__all__ = [
    "Comparison",
    "Difference",
    "Estimate",
    "Row",
    "estimate",
    "summed_up",
]

_COLUMNS = (
    "kind",
    "dataset",
    "mechanism",
    "policy",
    "baseline",
    "metric",
    "seeds",
    "mean",
    "std",
    "low",
    "high",
    "paper",
    "minus_paper",
)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over seeds, and how sure it is. One seed says nothing about that.

    Attributes:
        seeds: How many values it is the mean of.
        mean: Their mean.
        std: Their standard deviation, with n - 1.
        low: Lower end of the 95 % t-interval of the mean.
        high: Its upper end.
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
    """Mean, deviation and interval of some values; None if there are none.

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
    half = float(student.ppf(0.975, number - 1)) * std / math.sqrt(number)
    return Estimate(seeds=number, mean=mean, std=std, low=mean - half, high=mean + half)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One policy, or one predictor that shares nothing, over all seeds.

    Attributes:
        dataset: The data set.
        mechanism: What protected the uploads; ``none`` for what sends none.
        policy: Name of the policy, or one of :data:`~bgtplanner.runs.cells.REFERENCES`.
        reference: Whether it is one of those.
        asked: Number of seeds asked for.
        figures: By metric; None where no seed is done.
        paper: What the paper reports, where it does and where that can be compared.
        varied: Settings that are varied, with their values here.
    """

    dataset: str
    mechanism: str
    policy: str
    reference: bool
    asked: int
    figures: Mapping[str, Estimate | None]
    paper: Published | None = None
    varied: Mapping[str, Any] = field(default_factory=dict)

    def minus_paper(self, metric: str) -> float | None:
        """Our mean less the paper's figure. The paper reports the best round."""
        ours = self.figures[metric]
        if self.paper is None or ours is None or not metric.endswith("_best"):
            return None
        theirs = self.paper.rmse if metric == "rmse_best" else self.paper.f1
        return ours.mean - theirs


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A policy less the baseline, seed by seed. A lower RMSE and a higher F1 are better."""

    dataset: str
    mechanism: str
    policy: str
    baseline: str
    figures: Mapping[str, Estimate | None]
    varied: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What a study has shown.

    Attributes:
        study: What was asked for.
        outcomes: What came of every cell.
        rows: Means over seeds: for each combination of varied settings, data set by data set.
        differences: To the baseline, over the seeds that both have.
    """

    study: Study
    outcomes: Sequence[Outcome]
    rows: Sequence[Row]
    differences: Sequence[Difference]

    @property
    def failed(self) -> list[Outcome]:
        """The cells that failed."""
        return [outcome for outcome in self.outcomes if outcome.error is not None]

    @property
    def reported(self) -> tuple[str, str]:
        """The metrics to look at: the best round as the paper has it, else the last."""
        when = "best" if self.study.preset == "paper" else "final"
        return f"rmse_{when}", f"f1_{when}"

    def rows_of(self, variation: Variation) -> list[Row]:
        """The policies' rows in every combination of settings that are varied together."""
        keys = variation.keys
        return [row for row in self.rows if list(row.varied) == keys and not row.reference]

    def as_json(self) -> dict[str, Any]:
        """All of it, for machines."""
        rows = []
        for row in self.rows:
            paper = None
            if row.paper is not None:
                paper = row.paper._asdict() | {
                    "rmse_difference": row.minus_paper("rmse_best"),
                    "f1_difference": row.minus_paper("f1_best"),
                }
            rows.append(asdict(row) | {"paper": paper})
        return {
            "request": asdict(self.study),
            "baseline": self.study.against,
            "reported": list(self.reported),
            "cells": len(self.outcomes),
            "rows": rows,
            "differences": [asdict(entry) for entry in self.differences],
            "failed": [
                asdict(outcome.cell) | {"folder": str(outcome.cell.place), "error": outcome.error}
                for outcome in self.failed
            ],
        }

    def as_csv(self) -> str:
        """One line for each metric; kind is policy, reference or difference.

        What is varied comes first, a column for each key.
        """
        keys = dict.fromkeys(key for one in self.study.variations for key in one.keys)
        lines: list[dict[str, Any]] = []
        entries: list[Row | Difference] = [*self.rows, *self.differences]
        for entry in entries:
            place: dict[str, Any] = {key: in_words(value) for key, value in entry.varied.items()}
            place |= {name: getattr(entry, name) for name in ("dataset", "mechanism", "policy")}
            if isinstance(entry, Difference):
                place |= {"kind": "difference", "baseline": entry.baseline}
            else:
                place["kind"] = "reference" if entry.reference else "policy"
            for metric, found in entry.figures.items():
                line = place | {"metric": metric}
                line |= {"seeds": 0} if found is None else asdict(found)
                if isinstance(entry, Row) and (minus := entry.minus_paper(metric)) is not None:
                    line["minus_paper"] = minus
                    line["paper"] = getattr(entry.paper, metric.removesuffix("_best"))
                lines.append(line)
        return csv_text([*keys, *_COLUMNS], lines)


_Values = Mapping[tuple[str, str, str], Mapping[int, Mapping[str, Any]]]


def summed_up(study: Study, outcomes: Sequence[Outcome]) -> Comparison:
    """Means, intervals and differences of the cells that are done."""
    values: dict[str, dict[tuple[str, str, str], dict[int, Mapping[str, Any]]]] = {}
    for outcome in outcomes:
        if outcome.summary is not None:
            cell = outcome.cell
            here = values.setdefault(cell.variant, {})
            place = here.setdefault((cell.dataset, cell.mechanism, cell.policy), {})
            place[cell.seed] = outcome.summary
    rows: list[Row] = []
    differences: list[Difference] = []
    for point in study.points():
        here = values.get(point.name, {})
        for dataset in dict.fromkeys(study.datasets):
            rows += _rows(point, dataset, here)
            differences += _differences(point, dataset, here)
    return Comparison(study=study, outcomes=outcomes, rows=rows, differences=differences)


def _rows(point: Point, dataset: str, values: _Values) -> Iterator[Row]:
    """The policies, and then the predictors that share nothing."""
    row = functools.partial(
        Row, dataset=dataset, asked=len(set(point.study.seeds)), varied=point.values
    )
    by_seed: dict[int, Mapping[str, Any]] = {}
    for mechanism, policy in point.study.pairs():
        done = values.get((dataset, mechanism, policy), {})
        by_seed = {**done, **by_seed}
        yield row(
            mechanism=mechanism,
            policy=policy,
            reference=False,
            figures={m: estimate([summary[m] for summary in done.values()]) for m in METRICS},
            paper=_published(point.study, dataset, mechanism, policy),
        )
    # Those are by seed the same in every cell, so any will do.
    for name in REFERENCES:
        found = {
            kind: estimate([by_seed[seed][f"{kind}_{name}"] for seed in sorted(by_seed)])
            for kind in ("rmse", "f1")
        }
        yield row(
            mechanism="none",
            policy=name,
            reference=True,
            figures={metric: found[metric.partition("_")[0]] for metric in METRICS},
        )


def _differences(point: Point, dataset: str, values: _Values) -> Iterator[Difference]:
    """Every policy against the baseline; what needs no mechanism, in each of them."""
    baseline = point.study.against
    if baseline is None:
        return
    for mechanism in point.study.noisy:
        by_policy = {
            policy: values.get(
                (dataset, "none" if policy == "unlimited" else mechanism, policy), {}
            )
            for policy in point.study.policies
        }
        theirs = by_policy.pop(baseline, {})
        for policy, ours in by_policy.items():
            both = [seed for seed in ours if seed in theirs]
            yield Difference(
                dataset=dataset,
                mechanism=mechanism,
                policy=policy,
                baseline=baseline,
                figures={
                    metric: estimate([ours[seed][metric] - theirs[seed][metric] for seed in both])
                    for metric in METRICS
                },
                varied=point.values,
            )


def _published(study: Study, dataset: str, mechanism: str, policy: str) -> Published | None:
    """The paper's figure, where the settings are the paper's."""
    settings = study.settings
    same = settings.get("privacy.epsilon", EPSILON) == EPSILON
    if study.preset != "paper" or not same or settings.get("privacy.budgets") is not None:
        return None
    return published(dataset, mechanism, policy)
