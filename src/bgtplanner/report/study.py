"""What is shown of a study: its progress, its tables and headline, its files."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from bgtplanner.errors import MissingExtraError
from bgtplanner.report.outcome import on_the_scale, planned_key
from bgtplanner.report.screen import words
from bgtplanner.report.view import Tile
from bgtplanner.runs.folder import write_whole
from bgtplanner.runs.statistics import Comparison, Outcome, Row
from bgtplanner.runs.study import Cell, Study, folder_name, in_words
from bgtplanner.runs.tables import group_name, tables_of, write_tables
from bgtplanner.text import visible

__all__ = [
    "Comparison",
    "StudyView",
    "cut",
    "duration",
    "headline",
    "need_pictures",
    "picture",
    "scale_of",
    "short_key",
    "tables",
    "tiles",
    "write_files",
]

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
    """Write the tables to a folder, for a sweep with pictures.

    Returns:
        The names of the pictures.
    """
    study, drawn = found.study, {}
    for dataset, mechanism in study.places() if study.variations else ():
        name = f"{folder_name(dataset)}-{mechanism}.svg"
        write_whole(out / name, picture(found, dataset, mechanism))
        drawn[name] = f"{dataset}, {mechanism}"
    write_tables(found, out, [(title, name) for name, title in drawn.items()])
    return list(drawn)


def picture(found: Comparison, dataset: str, mechanism: str) -> str:
    """Every metric over the first key of each variation, as SVG for any background."""
    need_pictures(found.study)
    from bgtplanner.report.drawing import as_file
    from bgtplanner.report.study_plots import sweep_picture

    return as_file(sweep_picture(found, dataset, mechanism))


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
    for sheet in tables_of(found, planned=planned):
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
            for first, *cells in rows:
                named = words(f"  {cut(first, _WIDEST - 2)}")
                table.add_row(named, *(words(cut(cell)) for cell in cells))
        # Not as parts of the table, which may be narrow: they would be broken to its width.
        yield Group(words((sheet.title, "italic")), table, words((sheet.note, "dim italic")))


def cut(name: str, most: int = _LONGEST) -> str:
    """Shorten a long name to its end, which says most: a file in a path, a class in a module."""
    name = visible(name)
    return name if len(name) <= most else f"…{name[1 - most :]}"


def short_key(key: str) -> str:
    """A config key without its section."""
    return key.rpartition(".")[2]


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
