"""A run in a few live lines of a terminal: how far, how good, what is left, what was decided."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from bgtplanner.report.blocks import bar, sparkline
from bgtplanner.report.screen import words

__all__ = ["LiveTable"]

_MOST_CLASSES = 3


class LiveTable:
    """What a terminal shows while a run goes on, and takes away when it ends.

    Args:
        console: Where; a terminal.
        total: How many rounds there are to be.
        first: How many are done already.
    """

    def __init__(self, console: Console, total: int, first: int) -> None:
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
        """Take in one more round."""
        self._records.append(record)
        self._progress.update(self._task, completed=record["round"] + 1, state="")

    def close(self) -> None:
        """Take it away."""
        self._live.stop()

    def __rich__(self) -> Group:
        """As it looks now; rich asks for it a few times a second."""
        return Group(self._progress, self.table()) if self._records else Group(self._progress)

    def table(self) -> Table:
        """The newest figures, with their past in a line each."""
        records, last = self._records, self._records[-1]
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis")
        for name, key, digits in (("RMSE", "rmse", 4), ("F1", "f1", 3)):
            curve = sparkline((record[key] for record in records), 32)
            table.add_row(name, Text(f"{last[key]:.{digits}f}", style="bold"), curve)
        left = last.get("left") or []
        for number, share in enumerate(left[:_MOST_CLASSES]):
            name = "budget left" if len(left) == 1 else f"left, class {number + 1}"
            table.add_row(name, f"{share:.0%}", bar(share, 32))
        if "charge" in last:
            table.add_row("this round", f"{last['charge']:.3g}", words(_decision(last)))
        if last.get("paid"):
            late = f", {last['late']:,} too late" if last.get("late") else ""
            table.add_row("clients", f"{last['clients']:,}", f"of {last['paid']:,} paid{late}")
        return table


def _decision(record: Mapping[str, Any]) -> str:
    """What the policy chose, and why, in a few words."""
    why, level = record.get("why") or {}, record.get("level")
    parts = [] if level is None else [f"level {level}"]
    parts += [str(why["note"])] if why.get("note") else []
    predicted, price = why.get("predicted") or (), why.get("price") or ()
    if level is not None and level < min(len(predicted), len(price)):
        parts.append(f"expects {predicted[level]:.2g}, price {price[level]:.2g}")
    return ", ".join(parts)
