"""Watch a run from outside: the protocol of observers, and what they are told.

An object that implements :class:`Observer` can be passed to `simulate`, `resume` or `execute`. It
is told what ``rounds.jsonl`` records: no rating, no item, nothing that was not released. For
ready-made ones, see :mod:`bgtplanner.trackers`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from bgtplanner.data.split import Split
from bgtplanner.runs.assembly import accountant_of
from bgtplanner.runs.config import Config
from bgtplanner.runs.result import Result
from bgtplanner.runs.summary import readings


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


class Several(Observer):
    """Tells several observers, one after the other."""

    def __init__(self, *observers: Observer) -> None:
        self.observers = observers

    def _tell(self, event: str, *what: Any) -> None:
        for observer in self.observers:
            getattr(observer, event)(*what)

    def started(self, config: Config, split: Split, first: int) -> None:
        self._tell("started", config, split, first)

    def round(self, record: Mapping[str, Any], total: int) -> None:
        self._tell("round", record, total)

    def finished(self, result: Result) -> None:
        self._tell("finished", result)


class Tracker(Observer):
    """Records a run in another system; if that fails, the run continues without it.

    Attributes:
        where: Where the records can be found.
        trouble: Why it gave up, if it did.
    """

    where = ""
    trouble: str | None = None
    _config: Config | None = None

    def started(self, config: Config, split: Split, first: int) -> None:
        del split  # a tracker never sees the ratings
        self._config = config
        self._guarded(self.begin, config, first)

    def round(self, record: Mapping[str, Any], total: int) -> None:
        del total
        if self._config is not None:
            self._guarded(self.note, figures_of(record, self._config), record["round"] + 1)

    def finished(self, result: Result) -> None:
        self._guarded(self.end, result.summary)

    def close(self) -> None:
        """Close the tracker, whatever happened; the run may be unfinished."""
        self._guarded(self.release)

    def begin(self, config: Config, first: int) -> None:
        """The run starts at round `first`."""

    def note(self, figures: Mapping[str, float], step: int) -> None:
        """Record the figures of a round."""

    def end(self, summary: Mapping[str, Any]) -> None:
        """The run is done."""

    def release(self) -> None:
        """Nothing more will come."""

    def _guarded(self, method: Callable[..., None], *arguments: Any) -> None:
        if self.trouble is None:
            try:
                method(*arguments)
            except Exception as error:  # of any kind: hours of training are worth more
                self.trouble = " ".join(f"{type(error).__name__}: {error}".split())[:200]


def figures_of(record: Mapping[str, Any], config: Config) -> dict[str, float]:
    """The finite figures of a round, by their names in ``rounds.jsonl``.

    Further ones are ``epsilon_spent``, ``left`` of the class that has most, and what the policy
    had predicted for the level that it chose.

    Example:
        >>> from bgtplanner.runs.config import load_config
        >>> config = load_config(settings={"privacy.mechanism": "none"})
        >>> figures_of({"rmse": 0.2, "loss": float("nan")}, config)
        {'rmse': 0.2}
    """
    figures = {name: of for name, of in record.items() if name != "round"}
    figures["left"] = max(record.get("left") or [], default=None)
    predicted, level = (record.get("why") or {}).get("predicted") or (), record.get("level")
    if level is not None and level < len(predicted):
        figures["predicted_reward"] = predicted[level]
    if config.privacy.mechanism != "none":
        read = readings(accountant_of(config).name, config.privacy.delta, [record])
        figures["epsilon_spent"] = None if read is None else float(read.max())
    return {
        name: float(value)
        for name, value in figures.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
