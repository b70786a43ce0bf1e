"""The tables of a study: plain rows of text for terminal, page, notebook and Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
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


def when(key: str) -> str:
    """Of which rounds a compared figure is."""
    if key not in METRICS and key.endswith("_served"):
        return "mean over all rounds, as served"
    best = key not in METRICS and key.endswith("_best")
    return "best round on the test set, as in the paper" if best else "last round"


def group_name(dataset: str, mechanism: str) -> str:
    """The heading for a data set and the mechanism that protected the uploads."""
    return f"{dataset}, {'no privacy' if mechanism == 'none' else mechanism}"


def _label(key: str) -> str:
    return METRICS[metric_of(key)].label


def _table(
    title: str, rows: Sequence[Row], metrics: Sequence[str], note: str, grid: Sequence[str] = ()
) -> Table:
    """A table of rows: the values of varied settings, then figures with their intervals."""
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
            cells += _figure(row.figures[key], key, row)
        name = f"{row.dataset}, for reference"
        lines.append((name if row.reference else group_name(row.dataset, row.mechanism), cells))
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
    mean, half = (
        f"{found.mean:{sign}{form}}",
        "–" if found.half is None else f"{found.half:{form}}",
    )
    if row.baseline and found.half is not None:  # a difference that rounds to zero gets no star
        half += "*" if float(mean) != 0 and abs(found.mean) > found.half else " "
    return [mean, half]


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
