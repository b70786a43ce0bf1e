"""Watch a run from outside: the protocol, and what there is to tell.

Whoever implements :class:`Observer` can be handed to `simulate`, `resume` or the runner's
`execute`. What it is told is what ``rounds.jsonl`` has: no rating, no item, nothing that was
not released. :mod:`bgtplanner.integrations.trackers` has ready ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

from bgtplanner.data.split import Split
from bgtplanner.models.metrics import of_ratings
from bgtplanner.runs.assembly import rule_of
from bgtplanner.runs.config import Config
from bgtplanner.runs.summary import Result, readings

__all__ = ["Observer", "RoundObserver", "Several", "Tracker", "figures_of"]


class RoundObserver(Protocol):
    """Somebody who watches the rounds of a run, in simulation or on real machines."""

    def round(self, record: Mapping[str, Any], total: int) -> None:
        """A round is over."""
        ...


class Observer(RoundObserver, Protocol):
    """Somebody who watches a simulated run from its beginning to its end."""

    def searching(self, name: str, number: int, total: int) -> None:
        """Before a run with ``hindsight``: the schedule that is tried now."""
        ...

    def started(self, config: Config, split: Split, first: int) -> None:
        """The data are ready; training goes on from round `first`."""
        ...

    def finished(self, result: Result) -> None:
        """The run is done."""
        ...


class Tracker(Observer, Protocol):
    """An observer that keeps what it is told somewhere else.

    Attributes:
        where: Where that is, as one would look for it.
        trouble: Why it gave up, if it did.
    """

    where: str
    trouble: str | None

    def close(self) -> None:
        """Let go, whatever happened; the run may not be done."""
        ...


class Several:
    """Tells several observers, one after the other."""

    def __init__(self, *observers: Observer) -> None:
        self.observers = observers

    def searching(self, name: str, number: int, total: int) -> None:
        for observer in self.observers:
            observer.searching(name, number, total)

    def started(self, config: Config, split: Split, first: int) -> None:
        for observer in self.observers:
            observer.started(config, split, first)

    def round(self, record: Mapping[str, Any], total: int) -> None:
        for observer in self.observers:
            observer.round(record, total)

    def finished(self, result: Result) -> None:
        for observer in self.observers:
            observer.finished(result)


def figures_of(record: Mapping[str, Any], config: Config) -> dict[str, float]:
    """The figures of a round under the names that trackers show; only finite numbers.

    Example:
        >>> from bgtplanner.runs.config import load_config
        >>> config = load_config(settings={"privacy.mechanism": "none"})
        >>> figures_of({"rmse": 0.2, "loss": float("nan")}, config)
        {'quality/rmse': 0.2}
    """
    why, level = record.get("why") or {}, record.get("level")

    def chosen(name: str) -> float | None:
        values = why.get(name) or ()
        return values[level] if level is not None and level < len(values) else None

    named = {
        **{f"quality/{name}": record.get(name) for name in of_ratings()},
        "training/loss": record.get("loss"),
        "training/ratings": record.get("ratings"),
        "training/seconds": record.get("seconds"),
        **{f"clients/{name}": record.get(name) for name in ("clients", "paid", "late", "dropped")},
        "budget/charge": record.get("charge"),
        "budget/left": max(record.get("left") or [], default=None),
        "budget/epsilon_spent": _reading(record, config),
        **{f"noise/{name}": record.get(name) for name in ("released_norm", "noise_norm")},
        "noise/multiplier": record.get("noise_multiplier"),
        "planner/level": level,
        "planner/reward": record.get("reward"),
        "planner/predicted_reward": chosen("predicted"),
        "planner/price": chosen("price"),
    }
    return {
        name: float(value)
        for name, value in named.items()
        if value is not None and math.isfinite(value)
    }


def _reading(record: Mapping[str, Any], config: Config) -> float | None:
    if config.privacy.mechanism == "none":
        return None
    read = readings(rule_of(config).name, config.privacy.delta, [record])
    return None if read is None else float(read.max())
