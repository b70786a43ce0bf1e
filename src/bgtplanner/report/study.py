"""What is shown of a study: its progress, its tables and headline, its files."""

from __future__ import annotations

import importlib.util
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, product
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from bgtplanner.errors import MissingExtraError
from bgtplanner.models.metrics import METRICS
from bgtplanner.models.references import REFERENCES
from bgtplanner.paper.table2 import NAMES
from bgtplanner.report.outcome import on_the_scale, planned_key
from bgtplanner.report.screen import words
from bgtplanner.report.view import Tile
from bgtplanner.runs.cells import Cell, Outcome, folder_name, metric_of
from bgtplanner.runs.folder import write_whole
from bgtplanner.runs.statistics import Comparison, Estimate, Row
from bgtplanner.runs.study import Study, Variation, in_words
from bgtplanner.text import visible

__all__ = [
    "Comparison",
    "Sheet",
    "StudyView",
    "as_code",
    "cut",
    "duration",
    "group_name",
    "headline",
    "in_markdown",
    "markdown",
    "need_pictures",
    "picture",
    "scale_of",
    "sheets",
    "short_key",
    "tables",
    "tiles",
    "when",
    "write_files",
]

_NOTHING = "–"
_WIDEST = 27  # room for names in 80 columns
_LONGEST = 12  # room for a value


def need_pictures(study: Study) -> None:
    """Check, before hours are spent, that the pictures of a sweep can be drawn.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    if study.variations and importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError("report", "The pictures of a sweep")


def write_files(found: Comparison, out: Path) -> list[str]:
    """Write ``comparison.json``, ``.csv`` and ``.md``, or for a sweep ``sweep.*`` and pictures.

    Returns:
        The names of the pictures.
    """
    study, drawn = found.study, {}
    for dataset, mechanism in study.places() if study.variations else ():
        name = f"{folder_name(dataset)}-{mechanism}.svg"
        write_whole(out / name, picture(found, dataset, mechanism))
        drawn[name] = f"![{in_markdown(f'{dataset}, {mechanism}')}]({name})\n"
    text = json.dumps(found.as_json(), indent=2, allow_nan=False) + "\n"
    write_whole(out / f"{study.kind}.json", text)
    write_whole(out / f"{study.kind}.csv", found.as_csv())
    write_whole(out / f"{study.kind}.md", "\n".join([markdown(found), *drawn.values()]))
    return list(drawn)


def picture(found: Comparison, dataset: str, mechanism: str) -> str:
    """Every metric over the first key of each variation, as SVG for any background."""
    need_pictures(found.study)
    from bgtplanner.report.drawing import as_file
    from bgtplanner.report.study_plots import sweep_picture

    return as_file(sweep_picture(found, dataset, mechanism))


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A table, independent of where it is shown.

    Attributes:
        title: What it shows.
        columns: Column headings; the first column is text, the others are figures.
        note: How to read it.
        groups: Rows by the name of their group.
    """

    title: str
    columns: Sequence[str]
    note: str = ""
    groups: dict[str, list[list[str]]] = field(default_factory=dict)

    def add(self, row: Row, cells: list[str], place: str = "") -> None:
        """Add a row to its group."""
        self.groups.setdefault(place or group_name(row.dataset, row.mechanism), []).append(cells)


def sheets(found: Comparison, *, planned: bool = False) -> Iterator[Sheet]:
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
    if any(entry.figures[found.error] is not None for entry in found.differences):
        yield from (_apart(found, keys) for keys in pairs)
    if any(row.paper is not None for row in found.rows):
        yield _beside_the_paper(found)


def when(key: str) -> str:
    """Of which rounds a compared figure is."""
    if key in METRICS:
        return "last round"
    if key.endswith("_served"):
        return "mean over all rounds, as served"
    return "best round on the test set, as in the paper" if key.endswith("_best") else "last round"


def _label(key: str) -> str:
    return METRICS[metric_of(key)].label


def _apart(found: Comparison, keys: Sequence[str]) -> Sheet:
    """Differences from the baseline, with half the width of their intervals."""
    better = " and ".join(f"a {METRICS[metric_of(key)].better} {_label(key)}" for key in keys)
    verb = "are" if len(keys) > 1 else "is"
    sheet = Sheet(
        title=f"Difference from {found.study.against}, paired by seed ({when(keys[0])})",
        columns=("policy", "n", *(head for key in keys for head in (_label(key), "±95 %"))),
        note=f"A{better[1:]} {verb} better. * marks an interval that excludes zero."
        + (_unlike(found.differences) if keys[0] == found.reported[0] else ""),
    )
    for entry in found.differences:
        cells = [_marked(entry), _seeds(entry.figures[keys[0]])]
        for key in keys:
            cells += _difference(entry.figures[key], _form(key))
        sheet.add(entry, cells)
    return sheet


def _beside_the_paper(found: Comparison) -> Sheet:
    sheet = Sheet(
        title="Beside the paper's Table 2",
        columns=("policy", "RMSE", "paper", "diff.", "F1", "paper", "diff."),
        note="Ours is the mean over seeds of the best round; the difference is ours minus the "
        "paper's." + _changed(found.study),
    )
    for row in found.rows:
        if row.paper is not None:
            cells = [f"{row.policy} ({NAMES[row.policy]})"]
            for key, theirs in (("rmse_best", row.paper.rmse), ("f1_best", row.paper.f1)):
                minus = row.minus_paper(key)
                cells += [*_mean(row.figures[key], ["mean"]), _figure(theirs)]
                cells.append(_figure(minus, "+.4f"))
            sheet.add(row, cells)
    return sheet


def _means(found: Comparison, variation: Variation, metrics: Sequence[str]) -> Sheet:
    """Means over seeds; in a sweep the varied settings replace the intervals."""
    keys, labels = variation.keys, [_label(key) for key in metrics]
    spread, said = (
        {"sd": "std", "±95 %": "half"},
        "mean, standard deviation, half the t-interval",
    )
    if keys:
        spread, said = {"sd": "std"}, "mean and standard deviation"
    heads = [head for label in labels for head in (label, *spread)]
    sheet = Sheet(
        title=f"{' x '.join(keys) or ' and '.join(labels)} ({when(metrics[0])})",
        columns=("policy", *map(short_key, keys), "n", *heads),
        note=f"n: seeds finished of those requested; {said}."
        + (_unlike(found.rows) if metrics[0] == found.reported[0] else ""),
    )
    for row in found.rows_of(variation) if keys else found.rows:
        keys_of = metrics if row.reference else ["rmse_final"]
        ours = next((of for key in keys_of if (of := row.figures[key]) is not None), None)
        if row.reference and ours is None:
            continue  # it does not rank, or only ranks
        cells = [REFERENCES[row.policy] if row.reference else _marked(row)]
        cells += [cut(in_words(row.varied[key])) for key in keys]
        cells.append(f"{_seeds(ours)}/{row.asked}")
        for key in metrics:
            if ours is None and not row.reference:
                cells += ["failed", *("" for _ in spread)]
            else:
                cells += _mean(row.figures[key], ["mean", *spread.values()], _form(key))
        sheet.add(row, cells, f"{row.dataset}, for reference" if row.reference else "")
    return sheet


def _marked(row: Row) -> str:
    return f"{row.policy} †" if row.unlike else row.policy


def _unlike(rows: Iterable[Row]) -> str:
    """What the mark at a policy says: in what it differs from most others."""
    said = {
        row.policy: ", ".join(f"{key} {in_words(of)}" for key, of in row.unlike.items())
        for row in rows
        if row.unlike
    }
    every = "; ".join(f"{policy} has {how}" for policy, how in said.items())
    return f" † differs in more than the policy: {every}." if every else ""


def _changed(study: Study) -> str:
    """A sentence that names the settings which may differ from the paper's."""
    own = ("data.data_dir", "run.", "privacy.epsilon")
    names = [key for key in study.settings if not key.startswith(own)]
    return f" Run with other settings than the preset: {', '.join(names)}." if names else ""


def group_name(dataset: str, mechanism: str) -> str:
    """The heading for a data set and the mechanism that protected the uploads."""
    return f"{dataset}, {'no privacy' if mechanism == 'none' else mechanism}"


def _seeds(found: Estimate | None) -> str:
    return str(0 if found is None else found.seeds)


def _figure(value: float | None, form: str = ".4f") -> str:
    return _NOTHING if value is None else f"{value:{form}}"


def _form(key: str) -> str:
    """How figures are written: four digits, but lists have fewer that matter."""
    metric = METRICS[metric_of(key)]
    return ".4f" if metric.sums else f".{metric.digits}f"


def _mean(found: Estimate | None, names: Iterable[str], form: str = ".4f") -> list[str]:
    return [_figure(getattr(found, name, None), form) for name in names]


def _difference(found: Estimate | None, form: str) -> list[str]:
    if found is None or found.half is None:
        return [_figure(None if found is None else found.mean, f"+{form}"), _NOTHING]
    visible = float(f"{found.mean:{form}}") != 0  # a difference that rounds to zero gets no star
    mark = "*" if visible and abs(found.mean) > found.half else " "
    return [_figure(found.mean, f"+{form}"), _figure(found.half, form) + mark]


def headline(found: Comparison) -> str:
    """Which policy has the lowest error, and where, or at which values of what is varied."""
    groups: dict[str, list[tuple[float, Row]]] = {}
    for row in found.rows:
        value = row.figures[found.error]
        if not row.reference and row.mechanism != "none" and value is not None:
            name = group_name(row.dataset, row.mechanism)
            groups.setdefault(name, []).append((value.mean, row))
    best = {name: min(rows, key=lambda entry: entry[0]) for name, rows in groups.items()}
    if found.study.variations:
        keys = ", ".join(dict.fromkeys(key for of in found.study.variations for key in of.keys))
        if not best:
            return f"Effect of {keys}: no cell is finished yet."
        error, row = min(best.values(), key=lambda entry: entry[0])
        at = ", ".join(f"{key} = {in_words(value)}" for key, value in row.varied.items())
        how = f"RMSE {error:.4f}{_as_served(found)}{_raw(found, row, error)}"
        said = f"the lowest error, {how}, is that of {row.policy} at {at}."
        return f"Effect of {keys}: {said}"
    contested = [name for name, rows in groups.items() if len(rows) > 1]
    if not contested:
        count = len(found.outcomes)
        return f"{count} {'cell is' if count == 1 else 'cells are'} finished."
    if len(contested) == 1:
        error, row = best[contested[0]]
        return (
            f"{row.policy} has the lowest mean error of {len(groups[contested[0]])} policies on "
            f"{contested[0]}: RMSE {error:.4f}{_as_served(found)}{_raw(found, row, error)}"
            f"{_below_alone(found, row, error)}."
        )
    wins = Counter(best[name][1].policy for name in contested).most_common()
    others = ", ".join(f"{name} in {won}" for name, won in wins[1:])
    rest = f" ({others})" if others else ""
    policy, times = wins[0]
    return f"{policy} has the lowest mean error in {times} of {len(contested)} settings{rest}."


def scale_of(found: Comparison, dataset: str) -> Mapping[str, Any]:
    """The scale of a data set's ratings, under ``scale``, as a summary has it."""
    every = (of.summary for of in found.outcomes if of.cell.dataset == dataset and of.summary)
    return next(({"scale": summary.get("scale")} for summary in every), {})


def _raw(found: Comparison, row: Row, error: float) -> str:
    raw = on_the_scale(scale_of(found, row.dataset), error)
    return "" if raw is None else f" ({raw})"


def _as_served(found: Comparison) -> str:
    return " as served" if found.error.endswith("_served") else ""


def _below_alone(found: Comparison, best: Row, error: float) -> str:
    for row in found.rows:
        alone = row.figures[found.error]
        if row.policy == "client_alone" and row.dataset == best.dataset and alone is not None:
            share = error / alone.mean - 1 if alone.mean else 0.0
            side = "below" if share <= 0 else "above"
            return f", {100 * abs(share):.1f} % {side} a client alone"
    return ""


def tiles(found: Comparison, cells: int) -> list[Tile]:
    """How many cells are finished, how many seeds there are, and what failed."""
    done, seeds = len(found.outcomes), len(set(found.study.seeds))
    said = "intervals are over these" if seeds > 1 else "one says nothing about chance"
    tiles = [
        Tile("Cells finished", f"{done} of {cells}", "one run each", warn=done < cells),
        Tile("Seeds", str(seeds), said, warn=seeds < 2),
    ]
    apart = [
        (value.mean, value.half)
        for entry in found.differences
        if entry.policy != "unlimited"
        and (value := entry.figures[found.error]) is not None
        and value.half is not None
    ]
    if found.study.variations:
        number = sum(1 for _ in found.study.points())
        tiles.append(Tile("Combinations", str(number), "of the settings varied"))
    elif apart:
        worse = sum(mean > half for mean, half in apart)
        better = sum(mean < -half for mean, half in apart)
        rest = f"of {len(apart)} differences, at 95 %; the rest could be chance"
        name = f"Against {found.study.against}"
        tiles.append(Tile(name, f"{better} better, {worse} worse", rest))
    if found.failed:
        tiles.append(Tile("Failed", str(len(found.failed)), "the reasons are below", warn=True))
    return tiles


def tables(found: Comparison, *, planned: bool = False) -> Iterator[Group]:
    """The sheets as tables for a terminal, at most 80 columns wide: long headings are broken."""
    for sheet in sheets(found, planned=planned):
        table = Table(box=None, pad_edge=False, header_style="bold")
        for number, head in enumerate(sheet.columns):
            table.add_column(
                words(head.replace("_", "_\n"), keep="\n"),
                justify="right" if number else "left",
                no_wrap=True,
                overflow="ellipsis",
                max_width=None if number else _WIDEST,
            )
        for group, rows in sheet.groups.items():
            table.add_row(words((cut(group, _WIDEST), "bold")))
            for row in rows:
                first = words(f"  {cut(row[0], _WIDEST - 2)}")
                table.add_row(first, *(words(cell) for cell in row[1:]))
        # Not as parts of the table, which may be narrow: they would be broken to its width.
        yield Group(words((sheet.title, "italic")), table, words((sheet.note, "dim italic")))


def cut(name: str, most: int = _LONGEST) -> str:
    """Shorten a long name to its end, which says most: a file in a path, a class in a module."""
    name = visible(name)
    return name if len(name) <= most else f"…{name[1 - most :]}"


def short_key(key: str) -> str:
    """A config key without its section."""
    return key.rpartition(".")[2]


def markdown(found: Comparison) -> str:
    """The sheets as Markdown, with what was requested and what failed."""
    study = found.study
    settings = "".join(
        f", {as_code(f'{key} = {in_words(of)}')}" for key, of in study.settings.items()
    )
    seeds = ", ".join(map(str, study.seeds))
    asked = f"Preset {as_code(study.preset)}, seeds {seeds}{settings}."
    lines = [f"# {study.kind.capitalize()}", "", asked, ""]
    for sheet in sheets(found):
        lines += _sheet_lines(sheet)
    for axis in (axis for variation in study.variations for axis in variation.axes):
        lines += [
            f"{as_code(key)} is {share:g} of {as_code(axis.key)}.\n"
            for key, share in axis.along.items()
            if key not in study.settings
        ]
    if found.failed:
        said = [f"- {in_markdown(f'{of.cell.name}: {of.error}')}" for of in found.failed]
        lines += ["## Failed", "", *said, ""]
    return "\n".join(lines)


def in_markdown(text: str) -> str:
    """Escape text for Markdown: no tag, no link, no line break."""
    shown = visible(text).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`\[\]])", r"\\\1", shown)


def as_code(text: str) -> str:
    """Text as inline code in Markdown."""
    return f"`{visible(text).replace('`', chr(39))}`"


def _sheet_lines(sheet: Sheet) -> list[str]:
    """A sheet as lines of Markdown."""
    columns = ["data set", *sheet.columns]
    marks = ["---", "---", *["---:"] * (len(sheet.columns) - 1)]
    lines = [f"## {in_markdown(sheet.title)}", "", _piped(columns), _piped(marks)]
    for group, rows in sheet.groups.items():
        lines += [_piped([group, *row]) for row in rows]
    return [*lines, "", in_markdown(sheet.note), ""]


def _piped(cells: Iterable[str]) -> str:
    return f"| {' | '.join(in_markdown(cell.strip().replace('|', '/')) for cell in cells)} |"


def duration(seconds: float) -> str:
    """A duration in words.

    Example:
        >>> duration(42), duration(400), duration(9000)
        ('42 s', '7 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class StudyView:
    """Shows how a study is going: as a live line on a terminal, else as one line per cell."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self.console, self.quiet = console, quiet
        self._live: Progress | None = None
        self._task: Any = None
        self._done = self._total = 0
        self._told = False

    def study_started(self, total: int, finished: int, left: float | None) -> None:
        """Print how many cells there are."""
        self._done, self._total = finished, total
        if self.quiet:
            return
        before = f", {finished} of them finished before" if finished else ""
        self.console.print(f"{total} cells{before}{_left(left)}", highlight=False)
        self._told = left is not None
        if self.console.is_terminal and finished < total:
            self._live = Progress(
                MofNCompleteColumn(),
                BarColumn(bar_width=20),
                TextColumn("{task.description}", markup=False),
                TextColumn("{task.fields[left]}"),
                console=self.console,
                transient=True,
            )
            self._live.start()
            self._task = self._live.add_task("", total=total, completed=finished, left="")

    def cell_round(self, cell: Cell, done: int, total: int) -> None:
        """Show the round of the current cell."""
        if self._live is not None:
            where = f"{cut(cell.name, 34)}, {done}/{total}"
            self._live.update(self._task, description=where)

    def cell_finished(self, outcome: Outcome, left: float | None) -> None:
        """Print the result of a cell, and how long the others will take."""
        self._done += 1
        if self.quiet:
            return
        said: list[str | tuple[str, str]] = [f"{outcome.cell.name}: "]
        if outcome.summary is None:
            said += [("failed", "red"), f": {outcome.error or ''}"]
        else:
            error = outcome.summary[planned_key(outcome.summary)]
            said += [f"RMSE {error:.4f}, {duration(outcome.seconds)}"]
        rest = "" if self._done >= self._total else _left(left)
        if self._live is None:
            count = f"{self._done}/{self._total}  "
            self.console.print(words(count, *said, rest), highlight=False)
            return
        self._live.update(self._task, completed=self._done, left=rest.removeprefix(", "))
        if outcome.summary is None or not self._told:
            self.console.print(words(*said, rest), highlight=False)
            self._told = self._told or outcome.summary is not None

    def close(self) -> None:
        """Remove the live line, whatever happened."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def _left(seconds: float | None) -> str:
    return "" if seconds is None else f", about {duration(seconds)} left"
