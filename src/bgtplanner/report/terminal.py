"""A run as it looks on a terminal: progress while it goes on, a small table when it is done."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from bgtplanner.report.blocks import bar, sparkline
from bgtplanner.report.guarantee import guarantee
from bgtplanner.report.progress import LiveTable
from bgtplanner.report.screen import words

if TYPE_CHECKING:  # only their names: this file must do without the simulator
    from bgtplanner.data.split import Split
    from bgtplanner.runs.config import Config
    from bgtplanner.runs.summary import Result

__all__ = ["RunView", "description_view", "summary_table"]


class RunView:
    """Tells the user how a run is going.

    On a terminal: a live table. Elsewhere: a plain line every tenth of the way. It writes to the
    given console only, so that standard output can be kept for data.

    Args:
        console: Where to write.
        verbosity: -1 for nothing but the end, 0 as described, 1 for a line every round.
    """

    def __init__(self, console: Console, verbosity: int = 0) -> None:
        self.console = console
        self.verbosity = verbosity
        self._live: LiveTable | None = None
        self._begun = 0.0
        self._first = 0

    def searching(self, name: str, number: int, total: int) -> None:
        """Say which schedule is tried."""
        if self.verbosity >= 0:
            text = f"hindsight: trying schedule {number} of {total} ({name} rounds)"
            self.console.print(words(text), highlight=False)

    def started(self, config: Config, split: Split, first: int) -> None:
        """Say what is about to be trained on what."""
        self._first = first
        if self.verbosity < 0:
            return
        train = split.train
        self.console.print(
            words(
                (train.name, "bold"),
                f": {train.n_clients:,} clients, {train.n_items:,} items, {len(train):,} ratings "
                f"to train on, {len(split.test):,} to test",
            ),
            highlight=False,
        )
        self.console.print(
            words(
                f"{config.model.name}, {config.federation.rounds} rounds, seed "
                f"{config.run.seed}, {_privacy(config)}"
            ),
            highlight=False,
        )
        if first:
            self.console.print(f"going on after round {first}", highlight=False)
        if self.console.is_terminal and self.verbosity == 0:
            self._live = LiveTable(self.console, config.federation.rounds, first)

    def round(self, record: Mapping[str, Any], total: int) -> None:
        """Move the bar, or print a line when one is due."""
        done = record["round"] + 1
        if done == self._first + 1:  # compiled by now: from here on the pace is steady
            self._begun = time.perf_counter()
        if self._live is not None:
            self._live.round(record)
            return
        score = f"RMSE {record['rmse']:.4f}  F1 {record['f1']:.3f}"
        due = self.verbosity > 0 or done % max(1, total // 10) == 0 or done == total
        if self.verbosity >= 0 and due:
            steady = done - self._first - 1
            left = ""
            if steady > 0 and done < total:
                pace = (time.perf_counter() - self._begun) / steady
                left = f", about {pace * (total - done):.0f} s left"
            self.console.print(f"round {done}/{total}  {score}{left}", highlight=False)

    def close(self) -> None:
        """Take the live table away, whatever happened."""
        if self._live is not None:
            self._live.close()
            self._live = None

    def finished(self, result: Result) -> None:
        """Print the table that the run was for."""
        self.close()
        if self.verbosity < 0:
            return
        summary = result.summary
        for name, values in _curves(result.rounds).items():
            self.console.print(f"{name:<14} {sparkline(values)}", highlight=False)
        self.console.print(summary_table(summary))
        for entry in summary.get("classes") or []:
            self.console.print(
                f"epsilon {entry['epsilon']:g}: {entry['clients']:,} clients, spent at most "
                f"{entry['epsilon_spent_max']:.3g}, RMSE {entry['rmse_final'] or 0:.4f}",
                highlight=False,
            )
        if summary.get("target") is not None:
            reached = "reached" if summary["target_reached"] else "not reached"
            self.console.print(f"Target RMSE {summary['target']:g}: {reached}.", highlight=False)
        # What matters comes last: what came out, what is guaranteed, what was spent.
        together, alone = summary["rmse_final"], summary["rmse_client_alone"]
        better = "lower" if together <= alone else "higher"
        gain = f"{100 * abs(1 - together / alone):.1f} % " if alone else ""
        self.console.print(
            words(
                ("Learning together", "bold"),
                f": error {gain}{better} than a client alone. "
                f"{summary['rounds_run']} rounds in {summary['seconds_total']:.1f} s.",
            ),
            highlight=False,
        )
        if summary.get("planner_note"):
            self.console.print(words(f"Planner {summary['planner_note']}."), highlight=False)
        for line in guarantee(summary):
            self.console.print(words(line), highlight=False)


def _curves(rounds: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """What is worth a curve; a budget only where there was one."""
    curves = {
        "RMSE by round": [record["rmse"] for record in rounds],
        "F1 by round": [record["f1"] for record in rounds],
    }
    if rounds and all(record.get("left") for record in rounds):
        curves["budget left"] = [1.0, *(max(record["left"]) for record in rounds)]
    return curves


def _privacy(config: Config) -> str:
    privacy = config.privacy
    if privacy.mechanism == "none":
        return "no privacy (mechanism none)"
    budget = f"epsilon {privacy.epsilon:g}" if privacy.budgets is None else "several budgets"
    return f"{budget}, {privacy.mechanism}, {privacy.trust}, {config.planning.policy}"


def summary_table(summary: Mapping[str, Any]) -> Table:
    """The result between the predictors that share nothing."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("predictor")
    table.add_column("RMSE", justify="right")
    table.add_column("F1", justify="right")
    rows = [
        ("one constant for all", summary["rmse_constant"], summary["f1_constant"]),
        ("each user's own mean", summary["rmse_user_mean"], summary["f1_user_mean"]),
        ("each client alone", summary["rmse_client_alone"], summary["f1_client_alone"]),
        (f"{summary['model']}, last round", summary["rmse_final"], summary["f1_final"]),
    ]
    for name, rmse, f1 in rows:
        style = "bold" if name.endswith("last round") else ""
        table.add_row(words(name), f"{rmse:.4f}", f"{f1:.3f}", style=style)
    if summary["preset"] == "paper":
        table.add_row(
            "best round (on the test set, as the paper reports)",
            f"{summary['rmse_best']:.4f}",
            f"{summary['f1_best']:.3f}",
        )
    return table


def description_view(console: Console, facts: Mapping[str, Any]) -> None:
    """A data set's facts in a few lines, with a histogram of its ratings."""
    users, items = facts["ratings_per_user"], facts["ratings_per_item"]
    silent = facts["users_without_ratings"]
    console.print(
        words(
            (facts["dataset"], "bold"),
            f": {facts['ratings']:,} ratings by {facts['users']:,} users ({silent} without any) "
            f"on {facts['items']:,} items",
        ),
        highlight=False,
    )
    lines = [
        f"clients            {facts['clients']:,}",
        f"density            {100 * facts['density']:.2f} %",
        f"ratings per user   {users['min']} to {users['max']}, median {users['median']:g}",
        f"ratings per item   {items['min']} to {items['max']}, median {items['median']:g}",
        f"split              {facts['train']:,} to train on, {facts['test']:,} to test",
    ]
    console.print("\n".join(lines), highlight=False)
    largest = max(facts["histogram"].values(), default=1)
    for value, count in facts["histogram"].items():
        console.print(
            f"  {value:>6}  {bar(count / largest)}  {count:,}", highlight=False, markup=False
        )
    console.print(
        f"Predicting a constant has RMSE {facts['rmse_constant']:.4f} (on 0 to 1), each user's "
        f"mean {facts['rmse_user_mean']:.4f}, each client alone "
        f"{facts['rmse_client_alone']:.4f}.",
        highlight=False,
    )
