"""What payments brought, against what was forecast: how far a forecast is off, and what is so.

The noise of a payment is new, so it tests what was sent out before: an estimate of what that was
worth has no bias, and a known standard error. A hypothesis is ruled out if, over all payments so
far, it is further from what came than noise and a public allowance explain. A true one is ruled
out with the chance `ERROR` at most, over all hypotheses and all tests together, of which test t
has the share 1 / t(t + 1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from bgtplanner.planning.arguments import Floats

ERROR = 0.01
_ALLOWED = 0.25  # share of a forecast by which it may be off for other reasons than noise
_DOUBT = 0.5  # standard deviation of what comes over what is forecast, before anything came


class Evidence:
    """What came of all payments so far; `foreseen` is what the next one is held against."""

    remembers: ClassVar = ("foreseen", "sums", "ruled_out", "tests")

    def __init__(self) -> None:
        self.foreseen: dict[str, float] = {}  # by hypothesis, whose name begins with the measure
        self.sums: dict[str, list[float]] = {}  # of 1, what came, what was foreseen, by precision
        self.ruled_out: list[str] = []
        self.tests = 0

    def test(self, came: Mapping[str, tuple[float, float]]) -> None:
        """Hold estimates of what came, and their errors, against what was foreseen."""
        self.tests += 1
        chance = ERROR / (self.tests * (self.tests + 1)) / max(len(self.foreseen), 1)
        far = math.sqrt(2.0 * math.log(2.0 / chance))  # bounds the tails of Gaussian noise
        wrong = []
        for name, gain in self.foreseen.items():
            brought, error = came.get(name.split()[0], (0.0, 0.0))
            if 0 < error < math.inf:
                now = zip(self.sums.get(name, [0.0] * 3), (1.0, brought, gain), strict=True)
                self.sums[name] = sums = [old + new / error**2 for old, new in now]
                explained = far * math.sqrt(sums[0]) + _ALLOWED * sums[2]
                wrong += [name] if abs(sums[1] - sums[2]) > explained else []
        for measure in came:
            under = {name for name in self.foreseen if name.startswith(measure)}
            if under - {*wrong, *self.ruled_out}:  # otherwise it is the forecast that is wrong
                new = under.intersection(wrong).difference(self.ruled_out)
                self.ruled_out += sorted(new)

    def seen(self, measure: str) -> tuple[float, float, float] | None:
        """Return what came and its error, and what was forecast; means over the payments."""
        of = next((of for name, of in self.sums.items() if name.startswith(measure)), None)
        return None if of is None else (of[1] / of[0], of[0] ** -0.5, of[2] / of[0])

    def ratios(self, measure: str) -> Floats:
        """Return what comes over what is forecast: the mean, and two deviations around it."""
        came, error, forecast = self.seen(measure) or (0.0, 1.0, 0.0)
        deviation = ((forecast / error) ** 2 + _DOUBT**-2) ** -0.5  # with a public prior at 1
        mean = 1.0 + deviation**2 * (came - forecast) * forecast / error**2
        return np.array([mean, mean - 2.0 * deviation, mean + 2.0 * deviation])
