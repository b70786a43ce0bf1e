"""Forecasts that are made up, for tests of who plans by them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

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
        can_pay: The most that anybody has left, per class; None: any amount.
        lists: The precision that makes lists half as useful as the best; None: there are none.
        learned: The precision that was bought so far.
        asked: How often it was asked for anything.
    """

    most: float = 0.1
    half: float = 1.0
    power: float = 1.0
    steps: int = 0
    unit: float = 1.0
    joining: float = 0.0
    can_pay: Floats | None = None
    lists: float | None = None
    learned: float = 0.0
    curve: Callable[[Floats], Floats] | None = None
    asked: list[str] = field(default_factory=list)

    def left(self) -> Floats:
        self.asked.append("left")
        return np.array([np.inf]) if self.can_pay is None else self.can_pay

    def precision(self, charges: Floats) -> float:
        self.asked.append("precision")
        return float(self.unit * np.mean(charges**self.power))

    def pooled(self, after: Floats) -> Floats:
        self.asked.append("pooled")
        return np.asarray(1.0 + self.joining * after)

    def gain(self, precision: Floats) -> dict[str, Floats]:
        self.asked.append("gain")
        total = self.learned + np.asarray(precision, dtype=np.float64)
        curve = (
            (lambda of: self.most * of / (of + self.half)) if self.curve is None else self.curve
        )
        gains = {"ratings": np.asarray(curve(total))}
        return gains if self.lists is None else gains | {"lists": total / (total + self.lists)}
