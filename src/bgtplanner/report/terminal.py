"""A terminal of 80 columns: a safe console, tables, and how a run or a study is going.

Text from outside cannot set colours or erase lines here.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from bgtplanner.models.metrics import shown
from bgtplanner.report import verdict
from bgtplanner.report.verdict import guarantee
from bgtplanner.text import Table, visible

if TYPE_CHECKING:  # for annotations only: this file must work without the simulator
    from bgtplanner.data.split import Split
    from bgtplanner.runs.config import Config
    from bgtplanner.runs.result import Result
    from bgtplanner.runs.study import Outcome

_WIDEST = 27  # room for a name in 80 columns


class Screen(Console):
    """A console that prints every string literally: no markup, no emoji, no control codes."""

    def __init__(self, *, stderr: bool = False, **options: Any) -> None:
        plain = {"markup": False, "emoji": False, "highlight": False}
        super().__init__(stderr=stderr, **(plain | options))

    def render_str(self, text: str, **options: Any) -> Text:
        """Make a string safe; every string passes through here, also those in table cells."""
        return super().render_str(visible(text, keep="\n"), **options)


def print_table(console: Console, table: Table) -> None:
    """Print a table in at most 80 columns: long headings are broken, long names cut."""
    grid = Grid(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for number, head in enumerate(table.columns):
        justify: Any = "right" if number else "left"
        heading = head.replace("_", "_\n")
        grid.add_column(heading, justify=justify, no_wrap=True, overflow="ellipsis")
    for group, rows in groupby(table.rows, key=lambda row: row[0]):
        if group:
            grid.add_row(_cut(group, _WIDEST), style="bold")
        for _, (name, *cells) in rows:
            first = f"  {_cut(name, _WIDEST - 2)}" if group else name
            grid.add_row(first, *cells, style="bold" if name == table.bold else "")
    if table.title:
        console.print(table.title, style="italic")
    console.print(grid)
    if table.note:
        console.print(table.note, style="dim italic")


def _cut(name: str, most: int) -> str:
    """Shorten a long name to its end, which says most: a file in a path, a class in a module."""
    name = visible(name)
    return name if len(name) <= most else f"…{name[1 - most :]}"


def as_text(tables: Iterable[Table]) -> str:
    """Return tables as they are printed on a terminal of 80 columns."""
    screen = Screen(file=io.StringIO(), width=80, color_system=None)
    for table in tables:
        print_table(screen, table)
        screen.print()
    return str(cast(io.StringIO, screen.file).getvalue()).rstrip()


class _View:
    """A console, and at most one live line at its bottom; if it is quiet, it prints nothing."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self.console, self.quiet = console, quiet
        self._live = console.is_terminal and not quiet

    def _say(self, text: str = "", style: str = "") -> None:
        if not self.quiet:
            self.close()
            self.console.print(text, style=style)

    def _show(self, said: str, done: int, total: int) -> None:
        """Show how far it is: in the live line, or else in a line after every quarter of all."""
        line = f"round {done}/{total}  {said}"
        if self._live:
            self.console.print(f"{line[:79]:<79}", end="\r")
        elif 4 * done // total != 4 * (done - 1) // total:
            self._say(line)

    def close(self) -> None:
        """Remove the live line, whatever happened."""
        if self._live:
            self.console.print(" " * 79, end="\r")


class RunProgress(_View):
    """Observer that shows how a run is going.

    On a terminal it is a live line; elsewhere a plain line after every quarter of the rounds.
    """

    def started(self, config: Config, split: Split, first: int) -> None:
        """Print the data and the settings."""
        self._preset, train = config.preset, split.train
        self._say(
            f"{train.name}: {train.n_clients:,} clients, {train.n_items:,} items, {len(train):,} "
            f"ratings to train on, {len(split.test):,} held out"
        )
        privacy, total = config.privacy, config.federation.rounds
        how = "no privacy (mechanism none)"
        if privacy.mechanism != "none":
            budget = "several budgets" if privacy.budgets else f"epsilon {privacy.epsilon:g}"
            how = f"{budget}, {privacy.mechanism}, {privacy.trust}, {privacy.relation}, "
            how += config.planning.in_words(total)
        self._say(f"{config.model.name}, {total} rounds, seed {config.run.seed}, {how}")
        for note in [*train.notes, *([f"continuing after round {first}"] if first else [])]:
            self._say(note)

    def round(self, record: Mapping[str, Any], total: int) -> None:
        """Print a line when one is due."""
        done = record["round"] + 1
        said = "  ".join(
            f"{metric.label} {metric.in_words(record.get(name))}"
            for name, metric in shown(self._preset).items()
            if metric.sums
        )
        if self._live and record.get("left"):
            said += f"  budget left {max(record['left']):.0%}"
        self._show(said, done, total)

    def finished(self, result: Result) -> None:
        """Print the results on one screen; the page of the run has all details."""
        self.close()
        if self.quiet:
            return
        summary = result.summary
        print_table(self.console, verdict.scores(summary, judged=True))
        if result.verdict is not None:
            self._say(f"By releases alone: {result.verdict.headline}")
        # The most important lines come last: the gain, the guarantee, what was spent.
        headline, *rest = verdict.verdict(summary)
        took = f"{summary['rounds_run']} rounds in {summary['seconds_total']:.1f} s."
        self._say(headline, "bold")
        self._say(" ".join([*rest, took]))
        if summary.get("planner_note"):
            self._say(f"Planner {summary['planner_note'].partition('. ')[0]}.")
        for line in guarantee(summary, short=True):
            self._say(line)


class TrainingProgress(_View):
    """Shows how a training is going: as a live line on a terminal, else after every quarter."""

    def __call__(self, done: int, total: int, spent: float) -> None:
        """Say how far it is, and what is spent."""
        self._show(f"{spent:.0%} of the budget spent", done, total)


class StudyProgress(_View):
    """Shows how a study is going: as one line per cell."""

    def __call__(self, outcome: Outcome | None, done: int, total: int) -> None:
        """Print how many cells there are, then what came of each."""
        if outcome is None:
            before = f", {done} of them finished before" if done else ""
            self._say(f"{total} cells{before}")
            return
        said = f"failed: {outcome.error or ''}"
        if outcome.summary is not None:
            error = outcome.summary[verdict.planned_key(outcome.summary)]
            said = f"RMSE {error:.4f}, {outcome.seconds:.0f} s"
        self._say(f"{done}/{total}  {outcome.cell.name}: {said}")
