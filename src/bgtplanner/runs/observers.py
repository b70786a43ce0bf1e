"""Watch a run from outside: what observers are told is what ``rounds.jsonl`` records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from bgtplanner.data.split import Split
    from bgtplanner.runs.config import Config
    from bgtplanner.runs.result import Result


class Observer(Protocol):
    """Observes a run; a subclass overrides only the methods that it needs.

    It sees no rating, no item, nothing that was not released. A run on real machines only has
    rounds.
    """

    def started(self, config: Config, split: Split, first: int) -> None:
        """The data are ready; training starts at round `first`."""
        del config, split, first

    def round(self, record: Mapping[str, Any], total: int) -> None:
        """A round is over."""

    def finished(self, result: Result) -> None:
        """The run is done."""
        del result
