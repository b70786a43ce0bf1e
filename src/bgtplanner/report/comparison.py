"""A comparison to look at: progress over its grid, tables for terminals and for Markdown."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from bgtplanner.experiments.cells import Cell, Outcome
from bgtplanner.experiments.comparison import Comparison, Estimate, summed_up
from bgtplanner.experiments.grid import GridObserver, Request, run_grid, write_whole
from bgtplanner.experiments.sweeps import in_words
from bgtplanner.experiments.table2 import NAMES
from bgtplanner.report.screen import words
from bgtplanner.text import visible

__all__ = [
    "Comparison",
    "GridView",
    "Sheet",
    "as_code",
    "asked_line",
    "compare",
    "comparison_tables",
    "duration",
    "failed_lines",
    "in_markdown",
    "markdown",
    "sheet_lines",
    "sheets",
    "tables",
    "write_files",
]

_NOTHING = "–"
_WIDEST = 27  # what 80 columns leave for names
_LABELS = {
    "constant": "one constant for all",
    "user_mean": "each user's own mean",
    "client_alone": "each client alone",
}


def compare(
    datasets: str | Iterable[str] = "demo",
    policies: str | Iterable[str] = ("bgt", "uniform", "adpml", "adap", "unlimited"),
    *,
    mechanisms: str | Iterable[str] = "gaussian",
    seeds: Iterable[int] = range(5),
    preset: str = "recommended",
    epsilon: float | None = None,
    settings: Mapping[str, Any] | None = None,
    baseline: str | None = None,
    out: Path | str | None = None,
    jobs: int = 1,
    backend: str = "loky",
    observer: GridObserver | None = None,
) -> Comparison:
    """Run every policy on every data set, with every mechanism and seed, and compare them.

    A cell of the grid that fails is in the result's `failed` and does not stop the others.

    Args:
        datasets: Names of data sets, or ``csv:PATH``.
        policies: Names of policies, or ``package.module:Class``.
        mechanisms: Out of ``gaussian`` and ``laplace``; ``unlimited`` is run once, without.
        seeds: Of the split and of all that is drawn at random.
        preset: ``recommended`` or ``paper``.
        epsilon: What a client may spend in all.
        settings: Any other config keys, such as ``{"federation.rounds": 50}``.
        baseline: The policy that the others are compared with.
        out: Folder for the runs and tables. Called again with the same folder, only what is not
            finished is run. By default nothing is kept.
        jobs: How many cells at a time.
        backend: ``loky`` for processes here; ``ray`` or ``dask``.
        observer: Somebody to tell about every cell.

    Raises:
        ConfigError: If something cannot be run, before anything is.
        InterruptedRunError: If it was stopped from outside; the same call goes on.

    Example:
        >>> found = compare("demo", "unlimited", seeds=[0], settings={"federation.rounds": 2})
        >>> found.rows[0].policy, found.rows[0].figures["rmse_final"].seeds
        ('unlimited', 1)
    """
    given = dict(settings or {})
    if epsilon is not None:
        given["privacy.epsilon"] = epsilon
    request = Request(
        datasets=_names(datasets),
        mechanisms=_names(mechanisms),
        policies=_names(policies),
        seeds=tuple(seeds),
        preset=preset,
        settings=given,
        baseline=baseline,
    )
    if out is None:
        with tempfile.TemporaryDirectory(prefix="bgtplanner-") as folder:
            found = run_grid(request, Path(folder), jobs=jobs, backend=backend, observer=observer)
            return summed_up(request, found)
    found = run_grid(request, Path(out), jobs=jobs, backend=backend, observer=observer)
    comparison = summed_up(request, found)
    write_files(comparison, Path(out))
    return comparison


def _names(given: str | Iterable[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def write_files(comparison: Comparison, out: Path) -> None:
    """Write ``comparison.json``, ``.csv`` and ``.md`` into a folder."""
    text = json.dumps(comparison.as_json(), indent=2, allow_nan=False) + "\n"
    write_whole(out / "comparison.json", text)
    write_whole(out / "comparison.csv", comparison.as_csv())
    write_whole(out / "comparison.md", markdown(comparison))


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A table before it is known where it will be shown.

    Attributes:
        title: What it shows.
        columns: Heads of its columns; the first is text, the others are figures.
        groups: Rows under the name of their group.
        note: What is to be known about it.
    """

    title: str
    columns: Sequence[str]
    groups: dict[str, list[list[str]]] = field(default_factory=dict)
    note: str = ""


def sheets(comparison: Comparison) -> Iterator[Sheet]:
    """What is to be shown, one after the other."""
    rmse, f1 = comparison.reported
    best = rmse.endswith("best")
    when = "best round by the test set, as the paper reports" if best else "last round"
    figures = Sheet(
        title=f"Error and F1 ({when})",
        columns=("policy", "n", "RMSE", "sd", "±95 %", "F1", "sd", "±95 %"),
        note="n seeds done of those asked for; mean, standard deviation, half of the t-interval.",
    )
    for row in comparison.rows:
        cells = [_LABELS.get(row.policy, row.policy) if row.reference else row.policy]
        ours = row.figures[rmse]
        cells.append(f"{0 if ours is None else ours.seeds}/{row.asked}")
        failed = ours is None and not row.reference
        for metric in (rmse, f1):
            found = row.figures[metric]
            cells += ["failed", "", ""] if failed else _figures(found)
        group = f"{row.dataset}, "
        group += "no sharing" if row.reference else _mechanism(row.mechanism)
        figures.groups.setdefault(group, []).append(cells)
    yield figures
    if any(entry.figures[rmse] is not None for entry in comparison.differences):
        against = comparison.request.against
        apart = Sheet(
            title=f"Difference to {against}, seed by seed",
            columns=("policy", "n", "RMSE", "±95 %", "F1", "±95 %"),
            note="A lower RMSE and a higher F1 are better. * marks intervals without zero.",
        )
        for entry in comparison.differences:
            found = entry.figures[rmse]
            cells = [entry.policy, str(0 if found is None else found.seeds)]
            for metric in (rmse, f1):
                cells += _difference(entry.figures[metric])
            group = f"{entry.dataset}, {_mechanism(entry.mechanism)}"
            apart.groups.setdefault(group, []).append(cells)
        yield apart
    if any(row.paper is not None for row in comparison.rows):
        beside = Sheet(
            title="Beside the paper's Table 2",
            columns=("policy", "RMSE", "paper", "diff.", "F1", "paper", "diff."),
            note="Ours is the mean over seeds of the best round; the difference is ours less its."
            + _changed(comparison.request),
        )
        for row in comparison.rows:
            if row.paper is None:
                continue
            cells = [f"{row.policy} ({NAMES[row.policy]})"]
            for metric, theirs in (("rmse_best", row.paper.rmse), ("f1_best", row.paper.f1)):
                ours, minus = row.figures[metric], row.minus_paper(metric)
                cells.append(_NOTHING if ours is None else f"{ours.mean:.4f}")
                cells += [f"{theirs:.4f}", _NOTHING if minus is None else f"{minus:+.4f}"]
            group = f"{row.dataset}, {_mechanism(row.mechanism)}"
            beside.groups.setdefault(group, []).append(cells)
        yield beside


def _changed(request: Request) -> str:
    """What is not as the paper has it, or is at least given anew."""
    own = ("data.data_dir", "run.", "privacy.epsilon")
    names = [key for key in request.settings if not key.startswith(own)]
    return f" Run with other settings than the preset's: {', '.join(names)}." if names else ""


def _mechanism(name: str) -> str:
    return "no privacy" if name == "none" else name


def _figures(found: Estimate | None) -> list[str]:
    if found is None:
        return [_NOTHING] * 3
    rest = [_NOTHING if value is None else f"{value:.4f}" for value in (found.std, found.half)]
    return [f"{found.mean:.4f}", *rest]


def _difference(found: Estimate | None) -> list[str]:
    if found is None:
        return [_NOTHING] * 2
    if found.half is None:
        return [f"{found.mean:+.4f}", _NOTHING]
    visible = abs(found.mean) >= 0.00005  # what rounds to zero is marked by no star
    mark = "*" if visible and abs(found.mean) > found.half else " "
    return [f"{found.mean:+.4f}", f"{found.half:.4f}{mark}"]


def comparison_tables(comparison: Comparison) -> Iterator[Table]:
    """The tables for a terminal, 80 columns wide at most."""
    yield from tables(sheets(comparison))


def tables(shown: Iterable[Sheet]) -> Iterator[Table]:
    """Sheets as tables for a terminal."""
    for sheet in shown:
        table = Table(
            title=words(sheet.title),
            caption=words(sheet.note),
            box=None,
            pad_edge=False,
            header_style="bold",
            title_justify="left",
            caption_justify="left",
        )
        for number, head in enumerate(sheet.columns):
            table.add_column(
                words(head, keep="\n"),
                justify="right" if number else "left",
                no_wrap=True,
                overflow="ellipsis",
                max_width=None if number else _WIDEST,
            )
        for group, rows in sheet.groups.items():
            table.add_row(words((_shortened(group, _WIDEST), "bold")))
            for row in rows:
                first = words(f"  {_shortened(row[0], _WIDEST - 2)}")
                table.add_row(first, *(words(cell) for cell in row[1:]))
        yield table


def _shortened(name: str, most: int) -> str:
    """The end of a long name says most: of a path, and of a class in its module."""
    name = visible(name)
    return name if len(name) <= most else f"…{name[1 - most :]}"


def markdown(comparison: Comparison) -> str:
    """The same tables as Markdown, with what was asked for and what failed."""
    request = comparison.request
    lines = ["# Comparison", "", asked_line(request), ""]
    for sheet in sheets(comparison):
        lines += sheet_lines(sheet)
    if comparison.failed:
        lines += failed_lines(comparison.failed)
    return "\n".join(lines)


def asked_line(request: Request) -> str:
    """Preset, seeds and settings of all cells, as a line of Markdown."""
    settings = "".join(
        f", {as_code(f'{key} = {in_words(of)}')}" for key, of in request.settings.items()
    )
    seeds = ", ".join(map(str, request.seeds))
    return f"Preset {as_code(request.preset)}, seeds {seeds}{settings}."


def failed_lines(failed: Iterable[Outcome]) -> list[str]:
    """What failed and why, as lines of Markdown."""
    said = [f"- {in_markdown(f'{outcome.cell.name}: {outcome.error}')}" for outcome in failed]
    return ["## Failed", "", *said, ""]


def in_markdown(text: str) -> str:
    """Text that Markdown takes for nothing else: no tag, no link, no new line."""
    shown = visible(text).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`\[\]])", r"\\\1", shown)


def as_code(text: str) -> str:
    """Text between the marks that Markdown has for code."""
    return f"`{visible(text).replace('`', chr(39))}`"


def sheet_lines(sheet: Sheet) -> list[str]:
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
    """A length of time as one says it.

    Example:
        >>> duration(42), duration(400), duration(9000)
        ('42 s', '7 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class GridView:
    """Tells the user how a grid is going: on a terminal a live line, elsewhere a line a cell.

    Args:
        console: Where to write.
        quiet: Write nothing at all.
    """

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self.console = console
        self.quiet = quiet
        self._live: Progress | None = None
        self._task: Any = None
        self._done = 0
        self._total = 0
        self._told = False

    def grid_started(self, total: int, finished: int, left: float | None) -> None:
        """Say how much there is to do."""
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
        """Say where the present cell is."""
        if self._live is not None:
            where = f"{_shortened(cell.name, 34)}, {done}/{total}"
            self._live.update(self._task, description=where)

    def cell_finished(self, outcome: Outcome, left: float | None) -> None:
        """Say what came of a cell, and how long the others will take."""
        self._done += 1
        if self.quiet:
            return
        said: list[str | tuple[str, str]] = [f"{outcome.cell.name}: "]
        if outcome.summary is None:
            said += [("failed", "red"), f": {outcome.error or ''}"]
        else:
            said += [f"RMSE {outcome.summary['rmse_final']:.4f}, {duration(outcome.seconds)}"]
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
        """Take the live line away, whatever happened."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def _left(seconds: float | None) -> str:
    return "" if seconds is None else f", about {duration(seconds)} left"
