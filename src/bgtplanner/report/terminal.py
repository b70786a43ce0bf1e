"""A run on a terminal: a few live lines while it runs, and a small table when it is done."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from bgtplanner.models.metrics import Metric, shown
from bgtplanner.report.blocks import bar, sparkline
from bgtplanner.report.guarantee import guarantee, in_short
from bgtplanner.report.outcome import (
    Scores,
    about_scores,
    error_in_words,
    gain_in_words,
    gained,
    is_served,
    lists_in_words,
    nothing_learned,
    scores_of,
    target_in_words,
    unit_of,
    what_helps,
)
from bgtplanner.report.screen import words

if TYPE_CHECKING:  # for annotations only: this file must work without the simulator
    from bgtplanner.data.split import Split
    from bgtplanner.runs.config import Config
    from bgtplanner.runs.result import Result

__all__ = ["LiveTable", "RunProgress", "description_view", "summary_table"]

_MOST_CLASSES = 3


class RunProgress:
    """Observer that shows the user how a run is going.

    On a terminal it is a live table; elsewhere it prints a plain line after every quarter of the
    rounds. It writes only to the given console, so that standard output can be kept for data.

    Args:
        console: Where to write.
        verbosity: -1 for nothing at all, 0 as described, 1 for a line per round and all details.
    """

    def __init__(self, console: Console, verbosity: int = 0) -> None:
        self.console = console
        self.verbosity = verbosity
        self._live: LiveTable | None = None
        self._preset = ""
        self._begun = 0.0
        self._first = 0
        self._told = False

    def compiling(self) -> None:
        """Say why nothing moves, once; a live table has a word for it."""
        told, self._told = self._told, True  # before it is said: two threads may come at once
        if not told and self._live is None:
            self._say("compiling: the first round takes the longest")

    def _say(self, *parts: str | tuple[str, str]) -> None:
        if self.verbosity >= 0:
            self.console.print(words(*parts), highlight=False)

    def started(self, config: Config, split: Split, first: int) -> None:
        """Print the data and the settings."""
        self._first, self._preset, train = first, config.preset, split.train
        self._say(
            (train.name, "bold"),
            f": {train.n_clients:,} clients, {train.n_items:,} items, {len(train):,} ratings to "
            f"train on, {len(split.test):,} to test",
        )
        self._say(
            f"{config.model.name}, {config.federation.rounds} rounds, seed {config.run.seed}, "
            f"{_privacy(config)}"
        )
        from bgtplanner.runs.config import departures

        if other := departures(config):
            self._say(other)
        for note in train.notes:
            self._say(note)
        if first:
            self._say(f"continuing after round {first}")
        if self.console.is_terminal and self.verbosity == 0:
            self._live = LiveTable(self.console, config.federation.rounds, first, config.preset)

    def round(self, record: Mapping[str, Any], total: int) -> None:
        """Move the bar, or print a line when one is due."""
        done = record["round"] + 1
        if done == self._first + 1:  # compilation is over: from here on the pace is steady
            self._begun = time.perf_counter()
        if self._live is not None:
            self._live.round(record)
            return
        score = "  ".join(
            f"{metric.label} {metric.in_words(record.get(name))}"
            for name, metric in _in_rounds(self._preset).items()
        )
        due = self.verbosity > 0 or 4 * done // total != 4 * (done - 1) // total
        if due:
            steady = done - self._first - 1
            left = ""
            if steady > 0 and done < total:
                pace = (time.perf_counter() - self._begun) / steady
                left = f", about {pace * (total - done):.0f} s left"
            self._say(f"round {done}/{total}  {score}{left}")

    def close(self) -> None:
        """Remove the live table, whatever happened."""
        if self._live is not None:
            self._live.close()
            self._live = None

    def finished(self, result: Result) -> None:
        """Print the results: on one screen, or with all details if a line per round was wanted."""
        self.close()
        if self.verbosity < 0:
            return
        summary, whole = result.summary, self.verbosity > 0
        if whole:
            for name, values in _curves(result.rounds, summary["preset"]).items():
                self._say(f"{name:<14} {sparkline(values)}")
            self.console.print(summary_table(summary))
            self._say(" ".join(about_scores(summary)))
            for entry in summary.get("classes") or []:
                self._say(
                    f"epsilon {entry['epsilon']:g}: {entry['clients']:,} clients, spent at most "
                    f"{entry['epsilon_spent_max']:.3g}, RMSE {entry['rmse_final'] or 0:.4f}"
                )
        else:
            self._say()
            self.console.print(summary_table(summary, whole=False))
        if (target := target_in_words(summary)) is not None:
            self._say(target)
        # The most important lines come last: the gain, the guarantee, what was spent.
        self._say(*_gain(summary))
        if summary.get("planner_note") and (whole or nothing_learned(summary)):
            self._say(f"Planner {summary['planner_note']}.")
        for line in guarantee(summary) if whole else in_short(summary):
            self._say(line)


def _gain(summary: Mapping[str, Any]) -> list[str | tuple[str, str]]:
    """What learning together brought, what was planned for first."""
    served, lists, known = is_served(summary), lists_in_words(summary), gained(summary)
    said: list[str | tuple[str, str]] = [("Learning together", "bold")]
    if nothing_learned(summary):
        return [("Nothing was learned from others", "bold"), f". {what_helps(summary)}"]
    error = f"the error {'was' if served else 'is'} {gain_in_words(summary)} than that of a "
    beside = ""
    if known is not None and unit_of(summary):
        both = [error_in_words(summary, value) for value in known]
        beside = f" ({both[0].split()[0]} instead of {both[1]})"
    had = "" if lists is None else f"; lists {'had' if served else 'have'} {lists}"
    said += [f": {'over all rounds, ' if served else ''}{error}client alone{beside}{had}."]
    better = (summary.get("gains") or {}).get("better")
    said += [] if better is None else [f" Better off: {100 * better:.0f} % of the clients."]
    return [*said, f" {summary['rounds_run']} rounds in {summary['seconds_total']:.1f} s."]


def _in_rounds(preset: str) -> dict[str, Metric]:
    """The metrics that are shown while a run goes on."""
    return {name: metric for name, metric in shown(preset).items() if metric.sums}


def _curves(rounds: Sequence[Mapping[str, Any]], preset: str) -> dict[str, list[float]]:
    """The curves to print; one of the budget only if there was one."""
    curves: dict[str, Any] = {
        f"{metric.label} by round": values
        for name, metric in _in_rounds(preset).items()
        if None not in (values := [record.get(name) for record in rounds])
    }
    if rounds and all(record.get("left") for record in rounds):
        curves["budget left"] = [1.0, *(max(record["left"]) for record in rounds)]
    return curves


def _privacy(config: Config) -> str:
    privacy = config.privacy
    if privacy.mechanism == "none":
        return "no privacy (mechanism none)"
    budget = f"epsilon {privacy.epsilon:g}" if privacy.budgets is None else "several budgets"
    how = f"{privacy.mechanism}, {privacy.trust}, {privacy.relation}"
    return f"{budget}, {how}, {config.planning.policy}"


def summary_table(summary: Mapping[str, Any], *, whole: bool = True) -> Table:
    """The results as a table; unless it is to be `whole`, only with what they are judged by."""
    scores = scores_of(summary) if whole else _judged(summary)
    # With all metrics there is room for one space between columns.
    table = Table(
        box=None, pad_edge=False, header_style="bold", padding=(0, 0 if whole else 1, 0, 1)
    )
    table.add_column("predictor")
    for label in scores.labels:
        table.add_column(words(label), justify="right", no_wrap=True)
    for name, figures, ours in scores.rows:
        table.add_row(words(name), *figures, style="bold" if ours else "")
    return table


def _judged(summary: Mapping[str, Any]) -> Scores:
    """The result, and beside it a client alone and what is popular."""
    every = scores_of(summary)
    if summary["preset"] == "paper":
        return every
    alone = f"each client alone{', as served' * is_served(summary)}"
    names = {alone, "popularity, not private"}
    if alone not in {name for name, _, _ in every.rows}:
        names.add("each client alone")
    names |= {name for name, _, _ in every.rows if name.startswith(f"{summary['model']}, ")}
    return every.narrowed({"RMSE", unit_of(summary), "NDCG@10"}, names)


class LiveTable:
    """The table that a terminal shows during a run, and that is removed at the end."""

    def __init__(
        self, console: Console, total: int, first: int, preset: str = "recommended"
    ) -> None:
        self._preset = preset
        self._records: list[Mapping[str, Any]] = []
        self._progress = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(compact=True),
        )
        self._task = self._progress.add_task("", total=total, completed=first, state="compiling")
        self._live = Live(self, console=console, transient=True, refresh_per_second=8)
        self._live.start()

    def round(self, record: Mapping[str, Any]) -> None:
        """Add a round."""
        self._records.append(record)
        self._progress.update(self._task, completed=record["round"] + 1, state="")

    def close(self) -> None:
        """Remove the table."""
        self._live.stop()

    def __rich__(self) -> Group:
        """The current view; rich calls this several times per second."""
        return Group(self._progress, self.table()) if self._records else Group(self._progress)

    def table(self) -> Table:
        """The newest figures, each with its history in one line."""
        records, last = self._records, self._records[-1]
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis")
        for name, metric in _in_rounds(self._preset).items():
            curve = sparkline((record[name] for record in records), 32)
            table.add_row(metric.label, Text(metric.in_words(last[name]), style="bold"), curve)
        left = last.get("left") or []
        for number, share in enumerate(left[:_MOST_CLASSES]):
            name = "budget left" if len(left) == 1 else f"left, class {number + 1}"
            table.add_row(name, f"{share:.0%}", bar(share, 32))
        if "charge" in last:
            table.add_row("this round", f"{last['charge']:.3g}", words(_decision(last)))
        if last.get("paid"):
            late = f", {last['late']:,} too late" if last.get("late") else ""
            table.add_row(
                "clients", f"{last['clients']:,}", f"of {last['paid']:,} that paid{late}"
            )
        return table


def _decision(record: Mapping[str, Any]) -> str:
    """What the policy chose and why, in a few words."""
    why, level = record.get("why") or {}, record.get("level")
    parts = [] if level is None else [f"level {level}"]
    parts += [str(why["note"])] if why.get("note") else []
    predicted, price = why.get("predicted") or (), why.get("price") or ()
    if level is not None and level < min(len(predicted), len(price)):
        parts.append(f"predicts {predicted[level]:.2g}, price {price[level]:.2g}")
    return ", ".join(parts)


def _catalogue(facts: Mapping[str, Any] | None, public: bool) -> str:
    """What a catalogue has, in one line, and a line for each column that is no feature."""
    if facts is None:
        return "labels" if public else "none: the items are those that occur in the ratings"
    kinds = ", ".join(f"{name} {number}" for name, number in facts["kinds"].items())
    line = f"{facts['items']:,} items, {facts['titles']:,} titles, {facts['features']:,} features"
    rest = [f"{'':<18} left out: {text}" for text in facts["left_out"]]
    return "\n".join([f"{line} ({kinds})" if kinds else line, *rest])


def description_view(console: Console, facts: Mapping[str, Any]) -> None:
    """Print the facts about a data set, with a histogram of its ratings."""
    spread = "{min} to {max}, median {median:g}"
    rows = {
        "clients": f"{facts['clients']:,}",
        "density": f"{100 * facts['density']:.2f} %",
        "ratings per user": spread.format(**facts["ratings_per_user"]),
        "ratings per item": spread.format(**facts["ratings_per_item"]),
        "split": f"{facts['train']:,} to train on, {facts['test']:,} to test",
        "times": "known" if facts["times"] else "none",
        "catalogue": _catalogue(facts["catalogue"], "catalogue" in facts["public"]),
    }
    largest = max(facts["histogram"].values(), default=1)
    lines: list[str | tuple[str, str]] = [
        (facts["dataset"], "bold"),
        f": {facts['ratings']:,} ratings by {facts['users']:,} users "
        f"({facts['users_without_ratings']} without any) on {facts['items']:,} items "
        f"({facts['items_without_ratings']:,} without any)\n",
        *(f"{note}\n" for note in facts["notes"]),
        *(f"{name:<18} {of}\n" for name, of in rows.items()),
        *(
            f"  {value:>6}  {bar(count / largest)}  {count:,}\n"
            for value, count in facts["histogram"].items()
        ),
        f"Predicting a constant has RMSE {facts['rmse_constant']:.4f} (on 0 to 1), each user's "
        f"mean {facts['rmse_user_mean']:.4f}, each client alone "
        f"{facts['rmse_client_alone']:.4f}.",
    ]
    console.print(words(*lines, keep="\n"), highlight=False)
