"""The tables of a study: plain rows of text for terminal, page, notebook and Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from bgtplanner.models.metrics import METRICS
from bgtplanner.models.references import REFERENCES
from bgtplanner.runs.folder import write_whole
from bgtplanner.runs.statistics import Comparison, Estimate, Row, metric_of
from bgtplanner.runs.study import in_words
from bgtplanner.text import Table, as_code, in_markdown


def tables_of(found: Comparison, *, planned: bool = False) -> Iterator[Table]:
    """The tables of a study, in order: for a sweep, one per grid of varied settings.

    With `planned`, only those that have the error by which policies are compared.
    """
    same = [list(group) for _, group in groupby(found.reported, when)]
    # 80 columns have room for two metrics.
    pairs = [keys[at : at + 2] for keys in same for at in range(0, len(keys), 2)]
    if planned:
        pairs = [keys for keys in pairs if found.error in keys] or pairs[:1]
    note = "n: seeds finished of those requested; mean, standard deviation"
    for grid in map(list, found.study.variations):
        rows = [row for row in found.rows if list(row.varied) == grid and not row.reference]
        for keys in pairs:
            yield _table(" x ".join(grid), rows, keys, {"sd": "std"}, f"{note}.", grid)
    if found.study.variations:
        return
    for keys in pairs:
        spread, whole = {"sd": "std", "±95 %": "half"}, f"{note}, half the t-interval."
        yield _table(" and ".join(_labels(keys)), found.rows, keys, spread, whole)
    if not any(row.figures[found.error] for row in found.differences):
        return
    for keys in pairs:
        sides = [METRICS[metric_of(key)].better for key in keys]
        better = " and a ".join(map(" ".join, zip(sides, _labels(keys), strict=True)))
        note = f"A {better} {'are' if len(keys) > 1 else 'is'} better. "
        note += "* marks an interval that excludes zero."
        title = f"Difference from {found.study.against}, paired by seed"
        yield _table(title, found.differences, keys, {"±95 %": "half"}, note)


def when(key: str) -> str:
    """Of which rounds a compared figure is."""
    if key not in METRICS and key.endswith("_served"):
        return "mean over all rounds, as served"
    best = key not in METRICS and key.endswith("_best")
    return "best round on the test set, as in the paper" if best else "last round"


def group_name(dataset: str, mechanism: str) -> str:
    """The heading for a data set and the mechanism that protected the uploads."""
    return f"{dataset}, {'no privacy' if mechanism == 'none' else mechanism}"


def _labels(metrics: Sequence[str]) -> list[str]:
    return [METRICS[metric_of(key)].label for key in metrics]


def _table(
    title: str,
    rows: Sequence[Row],
    metrics: Sequence[str],
    spread: Mapping[str, str],
    note: str,
    grid: Sequence[str] = (),
) -> Table:
    """Figures of rows, each with its `spread`: by heading, the attribute of an estimate."""
    lines = []
    for row in rows:
        wanted = metrics if row.reference else ["rmse_final"]
        ours = next((of for key in wanted if (of := row.figures[key]) is not None), None)
        if row.reference and ours is None:
            continue  # it does not rank, or only ranks
        cells = [REFERENCES[row.policy] if row.reference else row.policy]
        cells += [in_words(row.varied[key]) for key in grid]
        cells.append(f"{0 if ours is None else ours.seeds}" + f"/{row.asked}" * bool(row.asked))
        for key in metrics:
            of = row.figures[key]
            if ours is None and row.asked:
                cells += ["failed", *("" for _ in spread)]
            else:
                ends = [_figure(getattr(of, name, None), key) for name in spread.values()]
                cells += [_figure(getattr(of, "mean", None), key, "+" * bool(row.baseline)), *ends]
                cells[-1] += _star(of, cells[-2]) if row.baseline else ""
        name = f"{row.dataset}, for reference"
        lines.append((name if row.reference else group_name(row.dataset, row.mechanism), cells))
    heads = ["policy", *(key.rpartition(".")[2] for key in grid), "n"]
    heads += [head for label in _labels(metrics) for head in (label, *spread)]
    return Table(f"{title} ({when(metrics[0])})", heads, lines, note)


def _figure(value: float | None, key: str, sign: str = "") -> str:
    """A figure with four digits, but lists have fewer that matter; a dash if there is none."""
    metric = METRICS[metric_of(key)]
    return "–" if value is None else f"{value:{sign}.{4 if metric.sums else metric.digits}f}"


def _star(difference: Estimate | None, mean: str) -> str:
    """Mark an interval that excludes zero, unless the difference rounds to zero."""
    if difference is None or difference.half is None:
        return ""
    return "*" if float(mean) != 0 and abs(difference.mean) > difference.half else " "


def write_tables(found: Comparison, out: Path) -> None:
    """Write the tables to a folder: ``comparison.json``, ``.csv`` and ``.md``, or ``sweep.*``."""
    text = json.dumps(found.as_json(), indent=2, allow_nan=False) + "\n"
    write_whole(out / f"{found.study.kind}.json", text)
    write_whole(out / f"{found.study.kind}.csv", found.as_csv())
    write_whole(out / f"{found.study.kind}.md", markdown(found))


def markdown(found: Comparison) -> str:
    """The tables as Markdown, with what was requested and what failed."""
    study = found.study
    own = [as_code(f"{key} = {in_words(value)}") for key, value in study.settings.items()]
    seeds = ", ".join(map(str, study.seeds))
    lines = [f"# {study.kind.capitalize()}", ""]
    lines += [", ".join([f"Preset {as_code(study.preset)}", f"seeds {seeds}", *own]) + ".", ""]
    lines += [table.as_markdown("data set") for table in tables_of(found)]
    if found.failed:
        failed = [f"- {in_markdown(f'{of.cell.name}: {of.error}')}" for of in found.failed]
        lines += ["## Failed", "", *failed, ""]
    return "\n".join(lines)
