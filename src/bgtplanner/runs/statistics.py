"""The statistics of a study: means over seeds, their intervals, and paired differences.

Intervals are Student's t at 95 % over seeds. They cover the variation of the split, the noise and
the initial state, and nothing more. Differences are paired by seed, because cells with the same
seed share their split.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from scipy.special import stdtrit

from bgtplanner.arguments import as_path
from bgtplanner.errors import RunFolderError
from bgtplanner.models.metrics import HEADLINE, METRICS, shown
from bgtplanner.models.references import REFERENCES
from bgtplanner.paper.table2 import EPSILON, Published, published
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.record import OF_EVERY_RUN
from bgtplanner.runs.study import Cell, Point, Study, Variation, in_words
from bgtplanner.text import csv_text, visible

_COLUMNS = (
    *("kind", "dataset", "mechanism", "policy", "baseline", "metric"),
    *("seeds", "mean", "std", "low", "high", "paper", "minus_paper"),
)
_Summaries = Mapping[int, Mapping[str, Any]]  # by seed
_Place = tuple[str, str, str]  # data set, mechanism, policy


def compared() -> list[str]:
    """The keys of ``summary.json`` that are compared: as served, of the last and the best round.

    They include what is only shown with some other preset.
    """
    found = []
    for name in METRICS:
        metric = METRICS[name]
        if metric.shown:
            found += [f"{name}_final", f"{name}_best"] if metric.sums else [name]
            if metric.unit == "ratings" or name == HEADLINE:
                found.append(f"{name}_served")
    return found


def metric_of(key: str) -> str:
    """The metric of such a key."""
    if key in METRICS:
        return key
    return key.removesuffix("_final").removesuffix("_best").removesuffix("_served")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a cell.

    Attributes:
        cell: The cell.
        summary: The figures of its ``summary.json``, if it is finished.
        error: Why it failed, if it did.
        seconds: How long it took just now; 0 if it was finished before.
    """

    cell: Cell
    summary: Mapping[str, Any] | None = None
    error: str | None = None
    seconds: float = 0.0


def outcome_of(cell: Cell, place: Path) -> Outcome:
    """The outcome of a finished cell, from its summary."""
    try:
        summary = RunFolder(place).read("summary.json", OF_EVERY_RUN)
    except RunFolderError as error:
        return Outcome(cell=cell, error=" ".join(str(error).split()))
    if summary is None:
        return Outcome(cell=cell, error=f"{place}: has no summary.json; run it again")
    return Outcome(cell=cell, summary=summary)


def finished_cells(cells: Iterable[Cell], out: Path) -> dict[Cell, Outcome]:
    """The outcomes of those cells that are finished; nothing is run or written."""
    places = {cell: out / cell.place for cell in cells}
    done = {cell: at for cell, at in places.items() if (at / "summary.json").exists()}
    return {cell: outcome_of(cell, at) for cell, at in done.items()}


def read_study(study: Study, out: Path) -> list[Outcome]:
    """The outcomes of the finished cells of a study."""
    return list(finished_cells(study.cells(), out).values())


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over seeds with its interval; one seed gives no interval.

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
        dataset: The data set.
        mechanism: What protected the uploads; ``none`` if nothing did.
        policy: Name of the policy, or one of :data:`~bgtplanner.models.references.REFERENCES`.
        figures: By key of the summary; None if no seed is finished.
        varied: The varied settings, with their values here.
        reference: Whether it is a predictor that shares nothing.
        asked: Number of seeds requested.
        paper: What the paper reports, if that can be compared.
        baseline: The policy whose figures were subtracted, seed by seed; empty if none was.
    """

    dataset: str
    mechanism: str
    policy: str
    figures: Mapping[str, Estimate | None]
    varied: Mapping[str, Any] = field(default_factory=dict)
    reference: bool = False
    asked: int = 0
    paper: Published | None = None
    baseline: str = ""

    def minus_paper(self, key: str) -> float | None:
        """Our mean minus the paper's figure. The paper reports the best round."""
        ours, theirs = self.figures[key], getattr(self.paper, metric_of(key), None)
        if ours is None or theirs is None or not key.endswith("_best"):
            return None
        return float(ours.mean - theirs)

    def as_json(self) -> dict[str, Any]:
        """The row as JSON."""
        tree = asdict(self)
        if self.baseline:
            return {name: of for name, of in tree.items() if name not in _OF_ROWS}
        del tree["baseline"]
        if self.paper is not None:
            minus = {f"{of}_difference": self.minus_paper(f"{of}_best") for of in ("rmse", "f1")}
            tree["paper"] = self.paper._asdict() | minus
        return tree


_OF_ROWS = ("reference", "asked", "paper")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The results of a study.

    Attributes:
        study: What was requested.
        outcomes: The outcome of every cell.
        rows: Means over seeds, for each combination of varied settings and each data set.
        differences: Differences from the baseline, over the seeds that both have.
        folder: Where its runs are, if they were kept.

    A notebook shows it as a table with a picture. It can be pickled. If ``compare`` was given
    ``out``, ``bgtplanner.load_study`` reads it from that folder.
    """

    study: Study
    outcomes: Sequence[Outcome]
    rows: Sequence[Row]
    differences: Sequence[Row]
    folder: Path | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        study, failed = self.study, len(self.failed)
        names = [", ".join(dict.fromkeys(of)) for of in (study.datasets, study.policies)]
        kind = type(self).__name__ if not study.variations else f"{type(self).__name__} of a sweep"
        cells = f"{len(self.outcomes) - failed} of {len(self.outcomes)} runs finished"
        where = "" if self.folder is None else f", in {self.folder}"
        return visible(f"{kind}({': '.join(names)}; {cells}{where})")

    def _repr_html_(self) -> str:
        from bgtplanner.report.notebook import study_as_html

        return study_as_html(self)

    @property
    def failed(self) -> list[Outcome]:
        """The cells that failed."""
        return [outcome for outcome in self.outcomes if outcome.error is not None]

    @property
    def reported(self) -> tuple[str, ...]:
        """The figures to show, those that were planned for first.

        With the paper's preset they are those of the best round. Otherwise they are of the last
        round and as people were served; NDCG@10 and the error, which are known for both, first.
        """
        paper, names = self.study.preset == "paper", shown(self.study.preset)
        known = [key for key in self.known if metric_of(key) in names]
        if paper:
            return tuple(key for key in known if not key.endswith(("_final", "_served")))
        served = [key for key in known if key.endswith("_served")]
        both = [*map(metric_of, served), HEADLINE] if served else []
        last = [key for key in known if not key.endswith(("_best", "_served"))]
        last.sort(key=lambda key: metric_of(key) not in both)
        return tuple(served + last if self.error in served else last + served)

    @property
    def known(self) -> list[str]:
        """The compared figures that any row has; runs of earlier versions do not have all."""
        keys = compared()
        ours = [row for row in self.rows if not row.reference]
        return [key for key in keys if any(row.figures[key] for row in ours)] or keys

    @property
    def error(self) -> str:
        """The figure by which policies are compared: the RMSE that was planned for.

        With the paper's preset it is that of the best round, by which the paper compares. Where
        earlier versions have not noted what people were served, it is that of the last round.
        """
        if self.study.preset == "paper":
            return "rmse_best"
        served = self.study.objective == "served" and "rmse_served" in self.known
        return "rmse_served" if served else "rmse_final"

    def rows_of(self, variation: Variation) -> list[Row]:
        """The rows of the policies in every combination of a variation."""
        keys = variation.keys
        return [row for row in self.rows if list(row.varied) == keys and not row.reference]

    def as_json(self) -> dict[str, Any]:
        """Everything as JSON."""
        return {
            "request": asdict(self.study),
            "baseline": self.study.against,
            "objective": self.study.objective,
            "reported": list(self.reported),
            "cells": len(self.outcomes),
            "rows": [row.as_json() for row in self.rows],
            "differences": [row.as_json() for row in self.differences],
            "failed": [
                asdict(outcome.cell) | {"folder": str(outcome.cell.place), "error": outcome.error}
                for outcome in self.failed
            ],
        }

    def as_csv(self) -> str:
        """Everything as CSV, one line per metric; kind is policy, reference or difference.

        The varied settings come first, one column per key.
        """
        keys = dict.fromkeys(key for one in self.study.variations for key in one.keys)
        lines: list[dict[str, Any]] = []
        for row in (*self.rows, *self.differences):
            place: dict[str, Any] = {key: in_words(value) for key, value in row.varied.items()}
            place |= {name: getattr(row, name) for name in ("dataset", "mechanism", "policy")}
            kind = "difference" if row.baseline else "reference" if row.reference else "policy"
            place |= {"kind": kind, "baseline": row.baseline}
            for key in self.known:
                found = row.figures[key]
                if found is None and row.reference:
                    continue  # it does not rank, or only ranks
                line = place | {"metric": key} | ({"seeds": 0} if found is None else asdict(found))
                if (minus := row.minus_paper(key)) is not None:
                    line |= {"minus_paper": minus, "paper": getattr(row.paper, metric_of(key))}
                lines.append(line)
        return csv_text([*keys, *_COLUMNS], lines)


def load_study(path: Path | str) -> Comparison:
    """Load the results of a study from its folder, with all runs that are finished.

    Only summaries are read, so neither the ratings nor the models have to be there.

    Raises:
        RunFolderError: If the folder does not hold a study.
    """
    place = as_path("path", path)
    study = Study.read(place)
    if study is None:
        raise RunFolderError(
            f"{place}: does not hold a study; give the folder of 'bgtplanner compare --out', or "
            "load a single run with bgtplanner.load"
        )
    return replace(summed_up(study, read_study(study, place)), folder=place)


def summed_up(study: Study, outcomes: Sequence[Outcome]) -> Comparison:
    """The means, intervals and differences of the finished cells."""
    values: dict[str, dict[_Place, dict[int, Mapping[str, Any]]]] = {}
    for outcome in outcomes:
        if outcome.summary is not None:
            cell = outcome.cell
            variant = values.setdefault(cell.variant, {})
            variant.setdefault(_place(cell), {})[cell.seed] = outcome.summary
    rows: list[Row] = []
    differences: list[Row] = []
    for point in study.points():
        here = values.get(point.name, {})
        for dataset in dict.fromkeys(study.datasets):
            rows += _rows(point, dataset, here)
            differences += _differences(point, dataset, here)
    return Comparison(study=study, outcomes=outcomes, rows=rows, differences=differences)


def _place(cell: Cell) -> _Place:
    return cell.dataset, cell.mechanism, cell.policy


def _means(summaries: Iterable[Mapping[str, Any]], reference: str = "") -> dict[str, Any]:
    """The estimate of every compared figure, from the summaries that have it."""
    every = list(summaries)
    found = {}
    for key in compared():
        name = f"{metric_of(key)}_{reference}" if reference else key
        served = f"{name}_served"
        if (
            reference
            and key.endswith("_served")
            and all(of.get(served) is not None for of in every)
        ):
            name = served  # others are the same in every round, or not known for all
        found[key] = estimate([of[name] for of in every if of.get(name) is not None])
    return found


def _rows(point: Point, dataset: str, values: Mapping[_Place, _Summaries]) -> Iterator[Row]:
    """Rows of the policies, then of the predictors that share nothing."""
    common: dict[str, Any] = {
        "dataset": dataset,
        "asked": len(set(point.study.seeds)),
        "varied": point.values,
    }
    by_seed: dict[int, Mapping[str, Any]] = {}
    for mechanism, policy in point.study.pairs():
        done = values.get((dataset, mechanism, policy), {})
        by_seed = {**done, **by_seed}
        paper = _published(point.study, dataset, mechanism, policy)
        figures = _means(done.values())
        yield Row(mechanism=mechanism, policy=policy, figures=figures, paper=paper, **common)
    # For a seed these are the same in every cell, so any cell will do.
    for name in REFERENCES:
        figures = _means((by_seed[seed] for seed in sorted(by_seed)), name)
        if name == "popularity_released" or not any(figures.values()):
            continue  # what was released depends on the policy
        yield Row(mechanism="none", policy=name, figures=figures, reference=True, **common)


def _differences(point: Point, dataset: str, values: Mapping[_Place, _Summaries]) -> Iterator[Row]:
    """Every policy minus the baseline; a policy without a mechanism is compared in each."""
    baseline = point.study.against
    if baseline is None:
        return
    for mechanism in point.study.noisy:
        places = {
            policy: (dataset, "none" if policy == "unlimited" else mechanism, policy)
            for policy in point.study.policies
        }
        theirs = values.get(places.pop(baseline), {})
        for policy, place in places.items():
            ours = values.get(place, {})
            apart = [_minus(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
            yield Row(
                dataset=dataset, mechanism=mechanism, policy=policy, baseline=baseline,
                figures=_means(apart), varied=point.values,
            )  # fmt: skip


def _minus(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, float]:
    known = [key for key in compared() if None not in (ours.get(key), theirs.get(key))]
    return {key: ours[key] - theirs[key] for key in known}


def _published(study: Study, dataset: str, mechanism: str, policy: str) -> Published | None:
    """The paper's figure, if the settings are the paper's."""
    settings = study.settings
    same = settings.get("privacy.epsilon", EPSILON) == EPSILON
    if study.preset != "paper" or not same or settings.get("privacy.budgets") is not None:
        return None
    return published(dataset, mechanism, policy)
