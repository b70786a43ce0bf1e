"""The course of a run, as its pictures show it: figures by round, and those of the summary."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgtplanner.models.references import REFERENCES

__all__ = ["Course", "Curve"]


class Curve(NamedTuple):
    """A metric that is shown by round; the entries are those of the metric."""

    name: str
    label: str
    better: str
    unit: str


class Course(ABC):
    """The course of a run.

    Attributes:
        summary: The figures of the whole run, or those of an unfinished run so far.
        rounds: One mapping per round.
    """

    summary: Mapping[str, Any]
    rounds: Sequence[Mapping[str, Any]]

    @property
    @abstractmethod
    def total(self) -> int:
        """How many rounds are planned."""

    @property
    @abstractmethod
    def participation(self) -> float:
        """Share of the clients that a round asks."""

    @property
    @abstractmethod
    def curves(self) -> Sequence[Curve]:
        """The metrics that are shown by round."""

    @abstractmethod
    def epsilon(self) -> NDArray[np.float64] | None:
        """Epsilon spent after each round, ``[rounds, classes]``; None if it was not recorded."""

    @property
    def scored(self) -> bool:
        """Whether it is known how good the model is."""
        return self.summary.get("rmse_final") is not None

    @property
    def private(self) -> bool:
        """Whether there was a budget to spend."""
        return bool(self.summary.get("mechanism", "none") != "none" and self.rounds)

    @property
    def references(self) -> dict[str, str]:
        """The reference predictors that have a figure, by key, with their names."""
        rmse = {key: self.summary.get(f"rmse_{key}") for key in REFERENCES}
        found = {key: name for key, name in REFERENCES.items() if rmse[key] is not None}
        if "user_mean" in found and rmse["user_mean"] == rmse["client_alone"]:
            del found["user_mean"]  # with one user per client the two are the same
        return found

    @property
    def steps(self) -> list[int]:
        """Numbers of the rounds, from 1."""
        return [record["round"] + 1 for record in self.rounds]

    def column(self, key: str) -> list[Any]:
        """The value of each round under a key."""
        return [record.get(key) for record in self.rounds]

    def left(self) -> NDArray[np.float64]:
        """Share of the budget that is left after each round, ``[rounds, classes]``."""
        shares = [share or [] for share in self.column("left")]
        most = max(map(len, shares), default=0)
        return np.array([share if len(share) == most else [np.nan] * most for share in shares])

    def class_epsilons(self) -> list[float]:
        """The budget of each class of clients."""
        if classes := self.summary.get("classes"):
            return [entry["epsilon"] for entry in classes]
        known = self.summary.get("class_epsilons") or [self.summary.get("epsilon")]
        return [epsilon for epsilon in known if epsilon is not None]

    def gains(self, by: str) -> list[Mapping[str, Any]]:
        """The gains of groups of clients, by ``ratings`` or by ``budget``; empty if unknown."""
        return list((self.summary.get("gains") or {}).get(by) or [])
