"""The results of a study: means over seeds, their intervals, paired differences, and tables.

Intervals are Student's t at 95 % over seeds. They cover the variation of the split, the noise and
the initial state, and nothing more. Differences are paired by seed, because cells with the same
seed share their split.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from scipy.special import stdtrit

from bgtplanner.arguments import as_path, as_settings, as_whole, refuse_unless
from bgtplanner.errors import RunFolderError
from bgtplanner.models.learner import Learner
from bgtplanner.models.metrics import HEADLINE, METRICS, shown
from bgtplanner.models.references import REFERENCES
from bgtplanner.planning.policy import Policy
from bgtplanner.runs.assembly import classes_given
from bgtplanner.runs.folder import write_whole
from bgtplanner.runs.study import Outcome, Progress, Study, finished_cells, in_words, run_study
from bgtplanner.text import Table


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


def when(key: str) -> str:
    """Of which rounds a compared figure is."""
    if key.endswith("_served"):
        return "mean over all rounds, as served"
    return "best round on the test set, as in the paper" if key.endswith("_best") else "last round"


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over seeds, its deviation (n - 1), and its 95 % t-interval; one seed has neither."""

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
    number, mean, interval = len(values), statistics.fmean(values), dict[str, float]()
    if number > 1:
        std = statistics.stdev(values)
        half = float(stdtrit(number - 1, 0.975)) * std / math.sqrt(number)
        interval = {"std": std, "low": mean - half, "high": mean + half}
    return Estimate(seeds=number, mean=mean, **interval)


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
    def group(self) -> str:
        """The data set, and the mechanism that protected the uploads, as tables name them."""
        how = "no privacy" if self.mechanism == "none" else self.mechanism
        return f"{self.dataset}, {'for reference' if self.reference else how}"


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
        from bgtplanner.report.terminal import as_text

        return f"{as_text(tables_of(self, planned=True))}\n\n{self.headline}".rstrip()

    @property
    def headline(self) -> str:
        """Which policies have lower errors than the baseline, and not by chance; of no sweep."""
        against, wins = self.study.against, dict[str, list[tuple[float, str]]]()
        for row in () if self.study.variations else self.differences:
            value = row.figures[self.error]
            if value is not None and row.policy != "unlimited":
                sure = value.half is not None and value.mean < -value.half
                wins.setdefault(row.group, []).extend([(value.mean, row.policy)] if sure else [])
        if not any(wins.values()):
            none = f"No policy has an error below that of {against} by more than could be chance."
            return none if wins else ""
        best = Counter(min(of)[1] for of in wins.values() if of).most_common()
        said = ", ".join(f"{name} in {number} of {len(wins)} settings" for name, number in best)
        return f"Lower errors than {against}'s, and not by chance: {said}."

    @property
    def failed(self) -> list[Outcome]:
        """The cells that failed."""
        return [outcome for outcome in self.outcomes if outcome.error is not None]

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
        ours = [row.figures for row in self.rows if not row.reference]
        known = [key for key in compared() if any(of[key] for of in ours)] or compared()
        keys = [key for key in known if metric_of(key) in shown(preset)]
        both = {metric_of(key) for key in keys if key.endswith("_served")}
        keys = [key for key in keys if not key.endswith(hidden)]
        keys.sort(key=lambda key: metric_of(key) not in both)
        return tuple(sorted(keys, key=lambda key: key.endswith("_served") != planned))

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


def compare(
    ratings: str | Iterable[str] = "demo",
    policies: type[Policy] | str | Iterable[type[Policy] | str] = Study.policies, *,
    model: type[Learner] | str | None = None, mechanisms: str | Iterable[str] = "gaussian",
    seeds: int | Iterable[int] = 5, preset: str = "recommended",
    epsilon: float | None = None, rounds: int | None = None,
    settings: Mapping[str, Any] | None = None, baseline: str | None = None,
    out: Path | str | None = None, jobs: int = 1, progress: Progress | None = None,
) -> Comparison:  # fmt: skip
    """Run every policy on every data set, with every mechanism and seed, and compare them.

    Of `ratings` (names of data sets, or paths of tables), `policies` (names,
    ``package.module:Class`` or classes) and `mechanisms` there may be one or several; two `seeds`
    are 0 and 1. What is not explained here is as in :func:`simulate`. A cell that fails is listed
    in `failed` of the result, and does not stop the others.

    Runs and tables are kept in `out`, if it is given; called again with the same folder, it runs
    only what is not finished. `jobs` cells run at a time: processes on this machine, or wherever
    joblib's ``parallel_config`` says, such as a Dask cluster that shares the folder. `progress` is
    called with the outcome of every cell, how many are done, and how many there are.

    Raises:
        ConfigError: If a cell cannot be run; raised before anything is run.
        InterruptedRunError: If it was stopped from outside; the same call continues.

    Example:
        >>> found = compare("demo", "unlimited", seeds=1, rounds=2)
        >>> found.rows[0].policy, found.rows[0].figures["rmse_final"].seeds
        ('unlimited', 1)
    """
    own = classes_given(model)
    single = {"privacy.epsilon": epsilon, "federation.rounds": rounds}
    own |= {key: of for key, of in single.items() if of is not None} | as_settings(settings)
    several = range(seeds) if isinstance(seeds, int) else seeds
    chosen = _several("policies", policies, str | type, "names or classes of policies")
    study = Study(
        datasets=_several("ratings", ratings, str, "names of data sets, or paths of tables"),
        mechanisms=_several("mechanisms", mechanisms, str, "names of mechanisms"),
        policies=tuple(classes_given(policy=of)["planning.policy"] for of in chosen),
        seeds=tuple(as_whole("seeds", seed, 0) for seed in _several("seeds", several, object, "")),
        preset=preset,
        settings=own,
        baseline=baseline,
    )
    kept = None if out is None else as_path("out", out)
    with tempfile.TemporaryDirectory(prefix="bgtplanner-") as temporary:
        place = kept or Path(temporary)
        outcomes = run_study(study, place, jobs=jobs, progress=progress)
        found = replace(summed_up(study, outcomes), folder=kept)
        write_tables(found, place)
    return found


def _several(name: str, given: Any, kind: Any, expected: str) -> tuple[Any, ...]:
    """What was given as one or as several, after checking that each is of its kind."""
    one = isinstance(given, str | type) or not isinstance(given, Iterable)
    found = (given,) if one else tuple(given)
    refuse_unless(all(isinstance(entry, kind) for entry in found), name, given, expected)
    return found


def load_study(path: Path | str) -> Comparison:
    """Load the results of a study from its folder, with all runs that are finished.

    Only summaries are read, so neither the ratings nor the models have to be there.
    """
    place = as_path("path", path)
    if (study := Study.read(place)) is None:
        give = "give the folder of 'bgtplanner compare --out', or load a run with bgtplanner.load"
        raise RunFolderError(f"{place}: does not hold a study; {give}")
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
                pairs = [(ours[of], theirs[of]) for of in ours if of in theirs]
                figures = _means([
                    {key: one[key] - two[key] for key in compared()
                     if None not in (one.get(key), two.get(key))}
                    for one, two in pairs
                ])  # fmt: skip
                apart = Row(mechanism=mechanism, policy=policy, figures=figures, **where)
                differences.append(replace(apart, baseline=str(baseline)))
    return Comparison(study=study, outcomes=outcomes, rows=rows, differences=differences)


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


def tables_of(found: Comparison, *, planned: bool = False) -> Iterator[Table]:
    """The tables of a study, in order: for a sweep, one per grid of varied settings.

    With `planned`, only those that have the error by which policies are compared.
    """
    same = [list(group) for _, group in itertools.groupby(found.reported, when)]
    # 80 columns have room for two metrics.
    pairs = [keys[at : at + 2] for keys in same for at in range(0, len(keys), 2)]
    if planned:
        pairs = [keys for keys in pairs if found.error in keys] or pairs[:1]
    note = "n: seeds finished of those requested; mean and half its 95 % t-interval."
    for grid in map(list, found.study.variations):
        rows = [row for row in found.rows if list(row.varied) == grid and not row.reference]
        yield from (_table(" x ".join(grid), rows, keys, note, grid) for keys in pairs)
    if found.study.variations:
        return
    yield from (_table(" and ".join(map(_label, keys)), found.rows, keys, note) for keys in pairs)
    title = f"Difference from {found.study.against}, paired by seed"
    note = "Mean and half its 95 % t-interval; * marks one that excludes zero. Better is"
    for keys in pairs if any(row.figures[found.error] for row in found.differences) else ():
        better = ", ".join(f"a {METRICS[metric_of(key)].better} {_label(key)}" for key in keys)
        yield _table(title, found.differences, keys, f"{note} {better}.")


def _label(key: str) -> str:
    return METRICS[metric_of(key)].label


def _table(
    title: str, rows: Sequence[Row], metrics: Sequence[str], note: str, grid: Sequence[str] = ()
) -> Table:
    """A table of rows: the values of varied settings, then figures with their intervals."""
    lines = []
    for row in rows:
        wanted = metrics if row.reference else ["rmse_final", *metrics]
        ours = next((of for key in wanted if (of := row.figures[key]) is not None), None)
        if row.reference and ours is None:
            continue  # it does not rank, or only ranks
        cells = [REFERENCES[row.policy] if row.reference else row.policy]
        cells += [in_words(row.varied[key]) for key in grid]
        cells.append(f"{0 if ours is None else ours.seeds}" + f"/{row.asked}" * bool(row.asked))
        for key in metrics:
            cells += _figure(row.figures[key], key, row)
        lines.append((row.group, cells))
    heads = ["policy", *(key.rpartition(".")[2] for key in grid), "n"]
    heads += [head for label in map(_label, metrics) for head in (label, "±95 %")]
    return Table(f"{title} ({when(metrics[0])})", heads, lines, note)


def _figure(found: Estimate | None, key: str, row: Row) -> list[str]:
    """A mean and half its interval, with four digits, but lists have fewer that matter."""
    if found is None:
        done = row.reference or row.baseline or row.figures["rmse_final"]
        return ["–" if done else "failed", ""]
    metric, sign = METRICS[metric_of(key)], "+" if row.baseline else ""
    form = f".{4 if metric.sums else metric.digits}f"
    if found.half is None:
        return [f"{found.mean:{sign}{form}}", "–"]
    mean, half = f"{found.mean:{sign}{form}}", f"{found.half:{form}}"
    if row.baseline:  # a difference that rounds to zero gets no star
        half += "*" if float(mean) != 0 and abs(found.mean) > found.half else " "
    return [mean, half]


def write_tables(found: Comparison, out: Path) -> None:
    """Write the figures to a folder: ``comparison.json`` or ``sweep.json``."""
    text = json.dumps(found.as_json(), indent=2, allow_nan=False) + "\n"
    write_whole(out / f"{found.study.kind}.json", text)
