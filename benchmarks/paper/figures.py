"""The paper's sensitivity studies: a table that fits a page, and pictures beside it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.paper.plan import DATASETS, MECHANISMS, SEEDS, Figure, Job
from benchmarks.paper.results import Results
from benchmarks.paper.table import NOTHING, not_run, short, table
from bgtplanner.experiments.cells import folder_name
from bgtplanner.experiments.comparison import Estimate
from bgtplanner.experiments.grid import write_whole
from bgtplanner.experiments.sweeps import Sensitivity, in_words
from bgtplanner.experiments.table2 import EPSILON
from bgtplanner.report.sensitivity import picture

Lines = dict[tuple[str, str, str], dict[str, Estimate]]
_SHOWN = "ml-100k"  # the picture that is on the page itself, if it is there


def figure_part(figure: Figure, results: Results, docs: Path) -> str | None:
    """The table of a figure; its pictures are written into ``figures/`` beside the page."""
    sweeps = results.sweeps.get(figure.name, [])
    if not sweeps:
        return None
    *fixed, shown = sweeps[0].sweep.studies[0].axes
    names = list(
        dict.fromkeys(
            in_words(value)
            for found in sweeps
            for axis in found.sweep.studies[0].axes
            if axis.key == shown.key
            for value in axis.values
        )
    )
    rows = [["", f"policy \\ {shown.key}", *names, "range", "deviation"]]
    pictures: dict[tuple[str, str], str] = {}
    seeds: set[int] = set()
    for found in sweeps:
        for (dataset, mechanism, policy), line in _lines(found, shown.key).items():
            place = pictures.get((dataset, mechanism))
            if place is None:
                place = _draw(figure, found, dataset, mechanism, docs)
                pictures[dataset, mechanism] = place
            means = [one.mean for one in line.values()]
            spread = [one.std for one in line.values() if one.std is not None]
            seeds |= {one.seeds for one in line.values()}
            title = f"{DATASETS.get(dataset, dataset)} {MECHANISMS.get(mechanism, mechanism)}"
            cells = [short(line[name].mean) if name in line else NOTHING for name in names]
            cells.append(short(max(means) - min(means)))
            cells.append(short(statistics.median(spread)) if spread else NOTHING)
            rows.append([f"[{title}]({place})", policy, *cells])
    held = "".join(f" at `{axis.key}` = {_held(axis.values)}" for axis in fixed)
    number = f"{min(seeds)} to {max(seeds)} seeds" if len(seeds) > 1 else _plural(max(seeds))
    alt = next((place for place in pictures if place[0] == _SHOWN), next(iter(pictures)))
    lines = [
        f"RMSE of the best round{held}, mean of {number}; *range* is from the lowest to the "
        "highest of a row, *deviation* the median standard deviation over seeds. The links lead "
        "to pictures, with F1" + (" and all budgets." if fixed else "."),
        table(rows),
        f"![{DATASETS.get(alt[0], alt[0])}, {alt[1]}]({pictures[alt]})",
    ]
    known = {dataset for dataset, _ in pictures}
    lines += not_run(
        [Job(part=figure, dataset=name, seeds=SEEDS) for name in DATASETS if name not in known]
    )
    return "\n\n".join(lines)


def _lines(found: Sensitivity, key: str) -> Lines:
    """Estimates by value, of every data set, mechanism and policy; at the table's budget."""
    metric, _ = found.reported
    lines: Lines = {}
    for point, row in found.rows():
        others = {name: value for name, value in point.values.items() if name != key}
        fixed = {axis.key: _held(axis.values) for axis in point.study.axes if axis.key in others}
        estimate = row.figures[metric]
        if estimate is not None and key in point.values and others == fixed:
            name = in_words(point.values[key])
            lines.setdefault((row.dataset, row.mechanism, row.policy), {})[name] = estimate
    return lines


def _held(values: Sequence[object]) -> object:
    """Which value of a setting the table is about: the paper's budget, else the first."""
    return next((value for value in values if value == EPSILON), values[0])


def _draw(figure: Figure, found: Sensitivity, dataset: str, mechanism: str, docs: Path) -> str:
    """Draw a picture; its place as seen from the page."""
    place = f"figures/{figure.figure}-{folder_name(dataset)}-{mechanism}.svg"
    path = docs.parent / place
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = picture(found, dataset, mechanism).splitlines()
    write_whole(path, "\n".join(line.rstrip() for line in lines) + "\n")
    return place


def _plural(number: int) -> str:
    return f"{number} seed{'s' if number != 1 else ''}"
