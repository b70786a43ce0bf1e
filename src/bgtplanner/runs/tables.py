"""The tables of a study: plain rows of text for terminal, page, notebook and Markdown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, product
from pathlib import Path

from bgtplanner.models.metrics import METRICS
from bgtplanner.models.references import REFERENCES
from bgtplanner.paper.table2 import NAMES
from bgtplanner.runs.folder import write_whole
from bgtplanner.runs.statistics import Comparison, Estimate, Row, metric_of
from bgtplanner.runs.study import Variation, in_words
from bgtplanner.text import visible

_NOTHING = "–"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table, independent of where it is shown.

    Attributes:
        title: What it shows.
        columns: Column headings; the first column is text, the others are figures.
        note: How to read it.
        groups: Its rows, by the name of their group.
    """

    title: str
    columns: Sequence[str]
    note: str = ""
    groups: dict[str, list[list[str]]] = field(default_factory=dict)

    def add(self, group: str, cells: list[str]) -> None:
        """Add a row to its group."""
        self.groups.setdefault(group, []).append(cells)


def tables_of(found: Comparison, *, planned: bool = False) -> Iterator[Table]:
    """The tables of a study, in order: for a sweep, one per variation.

    With `planned`, only those that have the error by which policies are compared.
    """
    pairs = [  # 80 columns have room for two metrics
        keys[number : number + 2]
        for _, group in groupby(found.reported, when)
        for keys in [list(group)]
        for number in range(0, len(keys), 2)
    ]
    if planned:
        pairs = [keys for keys in pairs if found.error in keys] or pairs[:1]
    for variation, keys in product(found.study.variations or (Variation(),), pairs):
        yield _means(found, variation, keys)
    if found.study.variations:
        return
    if any(row.figures[found.error] is not None for row in found.differences):
        yield from (_differences(found, keys) for keys in pairs)
    if any(row.paper is not None for row in found.rows):
        yield _beside_the_paper(found)


def when(key: str) -> str:
    """Of which rounds a compared figure is."""
    if key not in METRICS and key.endswith("_served"):
        return "mean over all rounds, as served"
    best = key not in METRICS and key.endswith("_best")
    return "best round on the test set, as in the paper" if best else "last round"


def group_name(dataset: str, mechanism: str) -> str:
    """The heading for a data set and the mechanism that protected the uploads."""
    return f"{dataset}, {'no privacy' if mechanism == 'none' else mechanism}"


def _means(found: Comparison, variation: Variation, metrics: Sequence[str]) -> Table:
    """Means over seeds; in a sweep the varied settings replace the intervals."""
    keys, labels = variation.keys, [METRICS[metric_of(key)].label for key in metrics]
    spread = {"sd": "std"} if keys else {"sd": "std", "±95 %": "half"}
    meaning = "mean and standard deviation"
    if not keys:
        meaning = "mean, standard deviation, half the t-interval"
    heads = [head for label in labels for head in (label, *spread)]
    table = Table(
        title=f"{' x '.join(keys) or ' and '.join(labels)} ({when(metrics[0])})",
        columns=("policy", *(key.rpartition(".")[2] for key in keys), "n", *heads),
        note=f"n: seeds finished of those requested; {meaning}.",
    )
    for row in found.rows_of(variation) if keys else found.rows:
        keys_of = metrics if row.reference else ["rmse_final"]
        ours = next((of for key in keys_of if (of := row.figures[key]) is not None), None)
        if row.reference and ours is None:
            continue  # it does not rank, or only ranks
        cells = [REFERENCES[row.policy] if row.reference else row.policy]
        cells += [in_words(row.varied[key]) for key in keys]
        cells.append(f"{_seeds(ours)}/{row.asked}")
        for key in metrics:
            if ours is None:
                cells += ["failed", *("" for _ in spread)]
            else:
                names = ["mean", *spread.values()]
                values = [getattr(row.figures[key], name, None) for name in names]
                cells += [_figure(value, _form(key)) for value in values]
        group = f"{row.dataset}, for reference" if row.reference else _group(row)
        table.add(group, cells)
    return table


def _differences(found: Comparison, keys: Sequence[str]) -> Table:
    """Differences from the baseline, with half the width of their intervals."""
    labels = [METRICS[metric_of(key)].label for key in keys]
    better = " and a ".join(
        f"{METRICS[metric_of(key)].better} {METRICS[metric_of(key)].label}" for key in keys
    )
    table = Table(
        title=f"Difference from {found.study.against}, paired by seed ({when(keys[0])})",
        columns=("policy", "n", *(head for label in labels for head in (label, "±95 %"))),
        note=f"A {better} {'are' if len(keys) > 1 else 'is'} better. "
        "* marks an interval that excludes zero.",
    )
    for row in found.differences:
        cells = [row.policy, _seeds(row.figures[keys[0]])]
        for key in keys:
            cells += _difference(row.figures[key], _form(key))
        table.add(_group(row), cells)
    return table


def _beside_the_paper(found: Comparison) -> Table:
    own = ("data.data_dir", "run.", "privacy.epsilon")  # they do not depart from the paper
    names = [key for key in found.study.settings if not key.startswith(own)]
    other = f" Run with other settings than the preset: {', '.join(names)}." if names else ""
    table = Table(
        title="Beside the paper's Table 2",
        columns=("policy", "RMSE", "paper", "diff.", "F1", "paper", "diff."),
        note="Ours is the mean over seeds of the best round; the difference is ours minus the "
        f"paper's.{other}",
    )
    for row in found.rows:
        if row.paper is not None:
            cells = [f"{row.policy} ({NAMES[row.policy]})"]
            for key, theirs in (("rmse_best", row.paper.rmse), ("f1_best", row.paper.f1)):
                ours = row.figures[key]
                cells += [_figure(None if ours is None else ours.mean), _figure(theirs)]
                cells.append(_figure(row.minus_paper(key), "+.4f"))
            table.add(_group(row), cells)
    return table


def _group(row: Row) -> str:
    return group_name(row.dataset, row.mechanism)


def _seeds(found: Estimate | None) -> str:
    return str(0 if found is None else found.seeds)


def _figure(value: float | None, form: str = ".4f") -> str:
    return _NOTHING if value is None else f"{value:{form}}"


def _form(key: str) -> str:
    """How figures are written: four digits, but lists have fewer that matter."""
    metric = METRICS[metric_of(key)]
    return ".4f" if metric.sums else f".{metric.digits}f"


def _difference(found: Estimate | None, form: str) -> list[str]:
    if found is None or found.half is None:
        return [_figure(None if found is None else found.mean, f"+{form}"), _NOTHING]
    visible = float(f"{found.mean:{form}}") != 0  # a difference that rounds to zero gets no star
    mark = "*" if visible and abs(found.mean) > found.half else " "
    return [_figure(found.mean, f"+{form}"), _figure(found.half, form) + mark]


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
    for table in tables_of(found):
        columns = ["data set", *table.columns]
        marks = ["---", "---", *["---:"] * (len(table.columns) - 1)]
        lines += [f"## {in_markdown(table.title)}", "", _piped(columns), _piped(marks)]
        lines += [
            _piped([group, *cells]) for group, rows in table.groups.items() for cells in rows
        ]
        lines += ["", in_markdown(table.note), ""]
    for axis in (axis for variation in study.variations for axis in variation.axes):
        lines += [
            f"{as_code(key)} is {share:g} of {as_code(axis.key)}.\n"
            for key, share in axis.along.items()
            if key not in study.settings
        ]
    if found.failed:
        failed = [f"- {in_markdown(f'{of.cell.name}: {of.error}')}" for of in found.failed]
        lines += ["## Failed", "", *failed, ""]
    return "\n".join(lines)


def in_markdown(text: str) -> str:
    """Text for Markdown: no tag, no link, no line break."""
    shown = visible(text).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`\[\]])", r"\\\1", shown)


def as_code(text: str) -> str:
    """Text as inline code in Markdown."""
    return f"`{visible(text).replace('`', chr(39))}`"


def _piped(cells: Iterable[str]) -> str:
    return f"| {' | '.join(in_markdown(cell.strip().replace('|', '/')) for cell in cells)} |"
