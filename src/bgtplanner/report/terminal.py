"""A run or a study on a terminal of 80 columns: a live line, and a small table at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from bgtplanner.models.metrics import shown
from bgtplanner.report import verdict
from bgtplanner.report.guarantee import guarantee
from bgtplanner.report.screen import duration, print_table, words
from bgtplanner.text import Table

if TYPE_CHECKING:  # for annotations only: this file must work without the simulator
    from bgtplanner.data.split import Split
    from bgtplanner.runs.config import Config
    from bgtplanner.runs.result import Result
    from bgtplanner.runs.statistics import Outcome


class _View:
    """What both kinds of progress share: a console, and at most one live line."""

    def __init__(self, console: Console, verbosity: int = 0) -> None:
        self.console, self.verbosity = console, verbosity
        self._live: Progress | None = None

    def _say(self, *parts: str | tuple[str, str]) -> None:
        if self.verbosity >= 0:
            self.console.print(words(*parts), highlight=False)

    def _open(self, total: int, done: int) -> None:
        """Show a line at the bottom of a terminal; elsewhere nothing."""
        if self.console.is_terminal and self.verbosity == 0 and done < total:
            text = TextColumn("{task.description}", markup=False)
            left = TimeRemainingColumn(compact=True)
            columns = (MofNCompleteColumn(), BarColumn(bar_width=20), text, left)
            self._live = Progress(*columns, console=self.console, transient=True)
            self._live.add_task("", total=total, completed=done)
            self._live.start()

    def _show(self, state: str, done: int | None = None) -> None:
        if self._live is not None:
            self._live.update(self._live.task_ids[0], description=state, completed=done)

    def close(self) -> None:
        """Remove the live line, whatever happened."""
        if self._live is not None:
            self._live.stop()
            self._live = None


class RunProgress(_View):
    """Observer that shows the user how a run is going.

    On a terminal it is a live line; elsewhere a plain line after every quarter of the rounds.

    Args:
        console: Where to write, and nowhere else: standard output can be kept for data.
        verbosity: -1 for nothing at all, 0 as described, 1 for a line per round and all details.
    """

    def started(self, config: Config, split: Split, first: int) -> None:
        """Print the data and the settings."""
        self._first, self._preset, train = first, config.preset, split.train
        self._begun = 0.0
        self._say(
            (train.name, "bold"),
            f": {train.n_clients:,} clients, {train.n_items:,} items, {len(train):,} ratings to "
            f"train on, {len(split.test):,} to test",
        )
        privacy, total = config.privacy, config.federation.rounds
        how = "no privacy (mechanism none)"
        if privacy.mechanism != "none":
            budget = "several budgets" if privacy.budgets else f"epsilon {privacy.epsilon:g}"
            how = f"{budget}, {privacy.mechanism}, {privacy.trust}, {privacy.relation}, "
            how += config.planning.policy
        self._say(f"{config.model.name}, {total} rounds, seed {config.run.seed}, {how}")
        again = f"continuing after round {first}" if first else ""
        for note in filter(None, [*train.notes, again]):
            self._say(note)
        self._open(total, first)

    def round(self, record: Mapping[str, Any], total: int) -> None:
        """Move the bar, or print a line when one is due."""
        done = record["round"] + 1
        if done == self._first + 1:  # compilation is over: from here on the pace is steady
            self._begun = time.perf_counter()
        said = "  ".join(
            f"{metric.label} {metric.in_words(record.get(name))}"
            for name, metric in shown(self._preset).items()
            if metric.sums
        )
        if self._live is not None:
            left = record.get("left") or []
            self._show(said + (f"  budget left {max(left):.0%}" if left else ""), done)
        elif self.verbosity > 0 or 4 * done // total != 4 * (done - 1) // total:
            steady, rest = done - self._first - 1, ""
            if steady > 0 and done < total:
                pace = (time.perf_counter() - self._begun) / steady
                rest = _left(pace * (total - done))
            self._say(f"round {done}/{total}  {said}{rest}")

    def finished(self, result: Result) -> None:
        """Print the results: on one screen, or with all details if they were wanted."""
        self.close()
        if self.verbosity < 0:
            return
        summary, whole = result.summary, self.verbosity > 0
        self._say()
        labels, rows, best = verdict.scores(summary, judged=not whole)
        cells = [("", [name, *figures]) for name, figures in rows]
        table = Table("", ["predictor", *labels], cells, bold=best)
        print_table(self.console, table, gap=1 if whole else 2)
        said = verdict.about_scores(summary) if whole else [verdict.target_in_words(summary) or ""]
        if any(said):
            self._say(" ".join(said))
        # The most important lines come last: the gain, the guarantee, what was spent.
        took = f"{summary['rounds_run']} rounds in {summary['seconds_total']:.1f} s."
        rest = " ".join([*verdict.lead(summary), took])
        self._say((verdict.headline(summary), "bold"), f" {rest}")
        if summary.get("planner_note") and (whole or verdict.nothing_learned(summary)):
            self._say(f"Planner {summary['planner_note']}.")
        for line in guarantee(summary, short=not whole):
            self._say(line)


class StudyProgress(_View):
    """Shows how a study is going: as a live line on a terminal, and as one line per cell."""

    def __call__(self, outcome: Outcome | None, done: int, total: int, left: float | None) -> None:
        """Print how many cells there are, then what came of each, and how much time is left."""
        if outcome is None:
            before = f", {done} of them finished before" if done else ""
            self._say(f"{total} cells{before}{_left(left)}")
            self._open(total, done)
            return
        said: list[str | tuple[str, str]] = [f"{done}/{total}  {outcome.cell.name}: "]
        if outcome.summary is None:
            said += [("failed", "red"), f": {outcome.error or ''}"]
        else:
            error = outcome.summary[verdict.planned_key(outcome.summary)]
            said += [f"RMSE {error:.4f}, {duration(outcome.seconds)}"]
        rest = _left(left) if done < total else ""
        self._show(rest.removeprefix(", "), done)
        self._say(*said, rest)


def _left(seconds: float | None) -> str:
    return "" if seconds is None else f", about {duration(seconds)} left"
