"""Forecasts that are made up, for tests of who plans by them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bgtplanner.planning.bgt import BGTPlanner
from bgtplanner.planning.policy import LedgerPolicy

Floats = NDArray[np.float64]


def left(policy: LedgerPolicy) -> Floats:
    """The most that anybody of each class of budgets has left."""
    of_client, classes = policy.ledger.left(), len(policy.budgets.classes)
    members = (of_client[policy.budgets.class_of_client == index] for index in range(classes))
    return np.array([one.max(initial=0.0) for one in members])


@dataclass
class Made:
    """A learner that knows exactly what a charge would bring.

    Attributes:
        most: What any amount of precision would bring.
        half: The precision that brings half of it.
        power: How precision grows with a charge; 2: it falls when a charge is split.
        steps: In how many paid rounds it learns best.
        unit: The precision of a charge of 1.
        joining: By how much the precision of a payment grows with each round that it waits.
        lists: The precision that makes lists half as useful as the best; None: there are none.
        learned: The precision that was bought so far.
        brings: What payments show that was brought so far, with its error, by measure.
    """

    most: float = 0.1
    half: float = 1.0
    power: float = 1.0
    steps: int = 0
    unit: float = 1.0
    joining: float = 0.0
    lists: float | None = None
    learned: float = 0.0
    brings: dict[str, tuple[float, float]] = field(default_factory=dict)

    def left(self) -> Floats:
        return np.array([np.inf])

    def precision(self, charges: Floats) -> float:
        return float(self.unit * np.mean(charges**self.power))

    def pooled(self, after: Floats) -> Floats:
        return np.asarray(1.0 + self.joining * after)

    def came(self) -> dict[str, tuple[float, float]]:
        return self.brings

    def gain(self, precision: Floats) -> dict[str, Floats]:
        total = self.learned + np.asarray(precision, dtype=np.float64)
        gains = {"ratings": self.most * total / (total + self.half)}
        return gains if self.lists is None else gains | {"lists": total / (total + self.lists)}


class ByForecast(BGTPlanner):
    """Always with the same forecast, whatever was paid."""

    forecast = Made(half=0.01, steps=3)
