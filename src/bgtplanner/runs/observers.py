"""Watch a run from outside: the protocol of observers, and what they are told.

An object that implements :class:`Observer` can be passed to `simulate`, `resume` or `execute`. It
is told what ``rounds.jsonl`` records: no rating, no item, nothing that was not released.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from bgtplanner.data.split import Split
from bgtplanner.runs.config import Config
from bgtplanner.runs.result import Result


class RoundObserver(Protocol):
    """Observes the rounds of a run, in simulation or on real machines."""

    def round(self, record: Mapping[str, Any], total: int) -> None:
        """A round is over."""


class Observer(RoundObserver, Protocol):
    """Observes a simulated run; a subclass overrides only the methods that it needs."""

    def started(self, config: Config, split: Split, first: int) -> None:
        """The data are ready; training starts at round `first`."""
        del config, split, first

    def finished(self, result: Result) -> None:
        """The run is done."""
        del result
