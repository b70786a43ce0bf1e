"""The best schedule for what is left of the budget, by a forecast of what charges bring.

A learner that adds up rounds by their precision can say what more precision would bring, from
what was released and from public constants alone (:class:`Forecast`). What a payment brings is
used in all rounds that follow, so early payments serve people longer. Three things speak for
paying in parts, or later: ratings keep arriving, and what was uploaded early does not know them;
the first upload is computed with parameters that know nothing yet; and the first part of the
precision may bring less than the next, since noise drowns it. One speaks for paying at once: with
some mechanisms, two charges of one half buy less precision than one whole (with Laplace noise,
half as much). So about a hundred schedules are compared, all of them together: how many payments
there are, when the first is made, how they are spread, and whether they fall.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from bgtplanner.planning.arguments import Floats
from bgtplanner.planning.objective import Objective

_STALE = 0.5  # share of a gain that is lost where none of the ratings is known, by its square
_SETTLING = 0.2  # share of a gain that is lost if all is paid at once by a learner of 3 steps
_REVISED = 0.3  # by how much a forecast has to change for a new plan
_COUNTS = (1, 2, 3, 4, 5, 6, 8)  # of payments
_DELAYS = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7)  # of the first payment, as shares of the rounds
_POINTS = 96  # moments at which a schedule is evaluated, at most
_SMALLEST = 1e-5  # share of what is left: smaller payments are taken for nothing
_SHARES = np.geomspace(_SMALLEST, 1.0, 24)
_FALLS = (1e-5, 1e5)  # that rewards can be compared with
_GRID = 40  # values of the precision at which the forecast is asked for
_TINY = 1e-300

Payments = list[list[float]]
"""Rounds, and what is paid in each of them."""


class Forecast(Protocol):
    """What a learner expects, from releases and public constants alone."""

    steps: int
    """In how many paid rounds it learns best, where splitting a charge costs nothing."""

    def left(self) -> Floats:
        """Return the most that a client of each class of budgets can be asked to pay now."""

    def precision(self, charges: Floats) -> float:
        """Return 1 / noise variance of a round that costs each class of budgets this.

        Those who have less left than others of their class pay the same share of it.
        """

    def pooled(self, after: Floats) -> Floats:
        """Return by which factor precision grows, as more clients join, so many rounds later."""

    def gain(self, precision: Floats) -> Floats:
        """Return the fall of the error below that of a client alone, for several added sums."""

    def split(self) -> dict[str, float]:
        """Return how what is left is best divided between the parts of an upload, by name."""


@dataclass
class Agenda:
    """What was paid by forecast, and when the next payment is due.

    Attributes:
        paid: The payments made: in which round, and which precision it bought.
        next: The round before which nothing further is decided.
        until: The round before which the last payment is repeated, for clients not invited yet.
        share: The share of what was left that the last payment was.
        plan: The payments that are to come: rounds, and shares of what is left by then.
        promised: The forecast that the plan was made by.
        decided: Whether it was decided that the budget is worth spending, or not.
    """

    remembers: ClassVar = ("paid", "next", "until", "share", "plan", "promised", "decided")
    paid: Payments = field(default_factory=list)
    next: int = 0
    until: int = 0
    share: float = 1.0
    plan: Payments = field(default_factory=list)
    promised: float = 0.0
    decided: bool = False

    def pay(self, now: int, precision: float, stride: int, share: float) -> None:
        """Note a payment, which takes so many rounds."""
        self.paid.append([now, precision])
        self.share, self.until = share, now + stride
        self.next = max(self.until, int(self.plan[0][0])) if self.plan else self.until

    def holds(self, now: int, promised: float) -> bool:
        """Return whether the plan has a payment now, and the forecast is about the same."""
        due = bool(self.plan) and self.plan[0][0] <= now
        return due and abs(promised - self.promised) <= _REVISED * self.promised


class Offers(NamedTuple):
    """Shares of what is left, what each is worth if paid now, and what the rest is worth later."""

    levels: Floats
    now: Floats
    later: Floats


class Outlook:
    """What the rest of the budget is worth, by forecast, and how it is best spent.

    Args:
        left: The charge that is left to plan with, for each class of budgets.
        paid: The payments that were made before the present round, `now`.
        growth: By which factor the ratings are expected to grow over all rounds.
        stride: The number of rounds that a payment takes, where not everyone is invited to each.

    Attributes:
        gain: What the best schedule is worth beyond spending nothing more.
        joining: Whether more clients are expected.
        promised: The relative fall of the error, in the end, if the best schedule is followed.
    """

    def __init__(
        self,
        forecast: Forecast,
        left: Floats,
        *,
        now: int,
        rounds: int,
        objective: Objective,
        paid: Sequence[Sequence[float]] = (),
        growth: float = 2.0,
        stride: int = 1,
    ) -> None:
        self._now = now
        weights = objective.weights(rounds)[now:]
        begins = int((weights > 0).argmax()) // stride  # people are served from then on
        at, self.schedules = schedules(max(1, -(-(rounds - now) // stride)), begins)
        self._moments = at * stride
        starts = np.minimum(self._moments.astype(np.int64), len(weights) - 1)
        self._weights = np.add.reduceat(weights, starts)
        self._settling = _SETTLING * forecast.steps / 3

        bought = np.array([forecast.precision(share * left) for share in _SHARES])
        before = np.array([precision for _, precision in paid])
        # In a unit of its own: whatever the clip is, squares are neither 0 nor infinite.
        unit = max(float(bought[-1]), float(before.sum()), _TINY)
        bought, before = np.maximum(bought / unit, 1e-150), before / unit
        grid = np.geomspace(bought[0], bought[-1] * 100.0, _GRID)
        gains = np.maximum.accumulate(forecast.gain(np.append(0.0, grid * unit)))
        self.known, self._gains = float(gains[0]), gains[1:]
        self._grid, self._bought = np.log(grid), np.log(bought)

        rates = (growth - 1.0) / max(rounds - 1, 1)
        self._ratings = 1.0 + rates * (now + self._moments)
        self._pooled = forecast.pooled(self._moments)
        self.joining = bool(self._pooled[-1] > 1.0)
        known = 1.0 + rates * np.array([float(one) for one, _ in paid])
        # Sums over the payments made: precision, its squares, and times the ratings known.
        self._before = before.sum(), (before**2).sum(), (before * known).sum()

        self.values = self._values(self.schedules)
        """What each schedule is worth: the mean gain over what is to come, by the objective."""
        self.nothing = float(self._values(np.zeros((1, len(at))))[0])
        self.gain = float(self.values.max()) - self.nothing
        best = self.schedules[int(self.values.argmax())][None]
        self.promised = float(self.gains(best)[0, -1])

    def _values(self, shares: Floats) -> Floats:
        return np.asarray(self.gains(shares) @ self._weights)

    def gains(self, shares: Floats) -> Floats:
        """Return the relative fall of the error after each moment, ``[schedules, moments]``."""
        logs = np.log(np.maximum(shares, _SMALLEST))
        added = np.exp(np.interp(logs, np.log(_SHARES), self._bought)) * self._pooled
        added = np.where(shares < _SMALLEST, 0.0, added)
        parts = added, added**2, added * self._ratings
        total, squares, seen = (
            start + part.cumsum(axis=1) for start, part in zip(self._before, parts, strict=True)
        )
        whole = np.maximum(total, _TINY)
        payments = np.maximum(whole**2 / np.maximum(squares, _TINY), 1.0)
        stale = 1.0 - seen / whole / self._ratings
        kept = (1.0 - self._settling / payments) * (1.0 - _STALE * stale**2)
        new = np.maximum(total - self._before[0], 0.0)
        found = np.interp(np.log(np.maximum(new, _TINY)), self._grid, self._gains)
        found = np.where(new > 0, np.maximum(found, self.known), self.known)
        return np.asarray(np.where(total > 0, found * kept, 0.0))

    def plan(self, level: float) -> Payments:
        """Return the payments to come, by the best schedule that begins with this share now."""
        fits = self.schedules[:, 0] == level
        best = self.schedules[int(np.where(fits, self.values, -np.inf).argmax())]
        left = 1.0 - np.append(0.0, best.cumsum()[:-1])
        return [
            [self._now + int(self._moments[at]), float(min(best[at] / left[at], 1.0))]
            for at in np.flatnonzero(best)
            if at > 0
        ]

    def offers(self, planned: Sequence[Sequence[float]] = ()) -> Offers:
        """Return what schedules begin with, and a plan that was made before if one is due now."""
        rows, values = self.schedules, self.values
        if planned:
            row, left = np.zeros((1, len(self._weights))), 1.0
            for at, share in planned:
                place = int(np.searchsorted(self._moments, at - self._now))
                row[0, min(place, len(self._weights) - 1)] += left * share
                left *= 1.0 - share
            rows, values = np.vstack([rows, row]), np.append(values, self._values(row))
        levels = np.unique(rows[:, 0])
        total = np.array([values[rows[:, 0] == level].max() for level in levels])
        now = self._values(self._only_now(levels))
        return Offers(levels, now - self.nothing, total - now)

    def fall(self, share: float) -> float:
        """Return by how much the error falls at once if this share is paid now; above 0."""
        before, after = self.gains(self._only_now(np.array([0.0, share])))[:, 0]
        return float(np.clip(after - before, *_FALLS))

    def _only_now(self, levels: Floats) -> Floats:
        shares = np.zeros((len(levels), len(self._weights)))
        shares[:, 0] = levels
        return shares


@lru_cache(maxsize=512)
def schedules(rounds: int, begins: int) -> tuple[Floats, Floats]:
    """Return the schedules among which the best is sought, for this many rounds that are left.

    They are moments, as rounds from now, of which the first is 0; and the share of what is left
    that is paid at each of them, ``[schedules, moments]``. People are served from `begins` on.
    """
    few = min(rounds, _POINTS // 2)
    moments = np.unique(
        np.concatenate(
            [
                np.geomspace(1, rounds, few).astype(np.int64) - 1,
                np.linspace(0, rounds - 1, few).astype(np.int64),
                np.arange(max(0, rounds - max(_COUNTS)), rounds),
                [begins],
            ]
        )
    )
    found: list[tuple[NDArray[Any], NDArray[Any]]] = []  # when, and how much
    delays = {0, 1, 2, begins, *(int(rounds * part) for part in _DELAYS)}
    for delay in sorted(delay for delay in delays if delay < rounds):
        for count in (count for count in _COUNTS if count <= rounds - delay):
            even, rest = np.ones(count), rounds - delay
            spread = delay + np.geomspace(1, rest, count + 1)[:-1] - 1
            found += [(spread, even), (spread, 0.8 ** np.arange(count))]
            if delay == 0:
                found.append((np.arange(count) * rest / count, even))
    for count in (count for count in _COUNTS if count <= rounds):
        found.append((np.arange(rounds - count, rounds), np.ones(count)))
    rows = np.zeros((len(found), len(moments)))
    for row, (at, charges) in zip(rows, found, strict=True):
        places = np.searchsorted(moments, np.minimum(at, rounds - 1))
        np.add.at(row, places, charges / charges.sum())
    _, first = np.unique(rows, axis=0, return_index=True)
    return moments.astype(np.float64), rows[np.sort(first)]
