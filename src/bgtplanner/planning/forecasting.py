"""Which schedule is played for what is left of the budget, by a forecast of what charges bring.

A learner that adds up rounds by their precision can say what more precision would bring
(:class:`Forecast`). What a payment brings is used in all rounds that follow, so early payments
serve people longer. Against that, ratings and people are still to come, an upload that is computed
with parameters that know nothing yet is worth less, and with some mechanisms two charges of one
half buy less precision than one whole.

How much each of these weighs is not known, forecasts have been wrong by a factor of seven, and
what is good for ratings may be bad for lists. So every schedule is valued under every
:class:`Hypothesis`. It is *admissible* if it is nowhere worth less than the schedule that is
followed so far, at first the even one. Of these, the one with the least regret is played: it falls
short of the best schedule of each hypothesis by as little as possible. By induction nobody is
served worse than by even charges, under any of the hypotheses, as far as the forecasts hold.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from bgtplanner.planning.arguments import Floats
from bgtplanner.planning.evidence import Evidence
from bgtplanner.planning.objective import Objective

UNNOTICED = 0.0005
"""A share of the error that nobody notices: .0001 of an error of .2. It counts as nothing."""

_WORTH = {"ratings": 1.0, "lists": 1 / 8}
"""What the gains of each measure are worth.

.0015 of the error and .012 of the best lists' use (.0003 of .2, .003 of .25) are noticed alike.
"""

_IN_WORDS = {
    "ratings": "an error {:.1%} ({:.1%} to {:.1%}) below a client's own",
    "lists": "{:.0%} ({:.0%} to {:.0%}) of the use that the best lists have",
}
_LATE, _EARLY = 0.15, 0.4  # of the budget within a quarter of the rounds: not about even
_NEEDS = (1.0, 1 / 8, 1 / 3, 3.0)  # times the precision that a gain takes by forecast
_STALE = 0.5  # share of a gain that is lost where none of the ratings is known, by its square
_FAST = 0.2, 1.0  # share lost after one payment of a learner of 3 steps, and its fall with them
_SLOW = 0.12, 1 / 3  # the same where people have few ratings (54,000 ratings of 16,000 people)
_TURNS = (0.25, 1.0), (1.0, 2.0)  # the same for lists, where tastes are found step by step, and
# make up a quarter of what lists are good for, or all of it
_STEPS = 3  # of a learner of ratings alone
_COUNTS = (2, 3, 4, 5, 6, 8)  # of single payments
_DELAYS = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7)  # of the first payment, as shares of the rounds
_POINTS = 48  # moments at which a schedule is evaluated, about
_SHARES = np.geomspace(1e-8, 1.0, 25)
_GRID = 80  # values of the precision at which the forecast is asked for
_TINY = 1e-300

Plan = list[list[float]]
"""Stretches of rounds with equal payments: the first, the last, and their weight in all."""


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

    def gain(self, precision: Floats) -> Mapping[str, Floats]:
        """Return what several added sums bring, for each measure of what people are shown.

        ``ratings``: the fall of the error below that of a client alone, as a share of it;
        ``lists``: their usefulness beyond that of lists drawn at random, as a share of that of
        the best lists.
        """

    def came(self) -> Mapping[str, tuple[float, float]]:
        """Return what was sent before a payment was worth, and its standard error, by measure."""

    def split(self) -> dict[str, float]:
        """Return how what is left is best divided between the parts of an upload, by name."""


class Hypothesis(NamedTuple):
    """One way in which things may be.

    Attributes:
        measure: What counts: ratings or lists.
        needs: How much precision a gain takes, over what it takes by forecast: how strong
            popularity, quality and tastes are, and how far the forecast is off.
        convergence: Share of a gain that is lost after one payment, and the power of the number
            of payments by which this falls.
        growth: By which factor the ratings grow over all rounds.
        joins: Which share of the clients that are expected to join does.
    """

    measure: str
    needs: float
    convergence: tuple[float, float]
    growth: float
    joins: float = 1.0

    @property
    def tested(self) -> str:
        """Return what payments can test of it, as a name."""
        return f"{self.measure} {self.needs:g} {self.convergence}"


def hypotheses(
    measures: Iterable[str], steps: int, growth: float, joining: bool = False
) -> list[Hypothesis]:
    """Return what is not ruled out; the first is the forecast at its word."""
    rates = {
        "ratings": [(_FAST[0] * steps / _STEPS, _FAST[1]), _SLOW] if steps else [(0.0, 1.0)],
        "lists": _TURNS if steps > _STEPS else [(0.0, 1.0)],
    }
    grows = dict.fromkeys([growth, 1.0, growth**1.5])
    return [
        Hypothesis(measure, *of)
        for measure in measures
        for of in itertools.product(_NEEDS, rates[measure], grows, (1.0, 0.0)[: 1 + joining])
    ]


@dataclass
class Agenda:
    """What was paid by forecast, and the plan that is followed.

    Attributes:
        paid: The payments made: in which round, which precision it bought, and its share of all.
        until: The round before which the last payment is repeated, for clients not invited yet.
        share: The share of what was left that the last payment was.
        plan: The payments that are to come.
        revised: The round before which the plan is not looked at again.
        promised: What the plan is to bring in the end, by measure.
        over_even: What it brings more than even charges, at least and at most, by hypothesis.
        stride: The number of rounds that a payment takes.
        slack: By how much another plan may be worth less than this one; halved with each new plan,
            so that all of them together lose nothing that is noticed.
        evidence: What came of the payments.
    """

    remembers: ClassVar = (
        "paid", "until", "share", "plan", "revised", "promised", "over_even", "stride", "slack",
        "evidence",
    )  # fmt: skip
    paid: Plan = field(default_factory=list)
    until: int = 0
    share: float = 1.0
    plan: Plan = field(default_factory=list)
    revised: int = 0
    promised: dict[str, float] = field(default_factory=dict)
    over_even: dict[str, list[float]] = field(default_factory=dict)
    stride: int = 1
    slack: float = UNNOTICED / 2
    evidence: Evidence = field(default_factory=Evidence)

    def due(self, now: int) -> float:
        """Return the share of what is left that the plan pays in a round."""
        return self.within(now, now + 1)

    def within(self, now: int, end: int) -> float:
        """Return the share of what is left that the plan pays from a round to before another."""
        left, soon = 0.0, 0.0
        for first, last, weight in self.plan:
            whole = (last - first) // self.stride + 1
            before, then = (
                min(max(-(-(at - first) // self.stride), 0), whole) / whole for at in (now, end)
            )
            left, soon = left + weight * (1.0 - before), soon + weight * (then - before)
        return min(soon / left, 1.0) if soon > 0 else 0.0

    def next(self, now: int) -> int | None:
        """Return the next round, after this one, with a payment; None if there is none."""
        rounds = [max(first, now + 1) for first, last, _ in self.plan if last > now]
        return int(min(rounds)) if rounds else None

    def follow(self, outlook: Outlook) -> None:
        """Follow the safest schedule; none if nothing brings anything that is noticed."""
        row = outlook.safest()
        if not self.plan:  # from then on, nothing is followed that is worth less
            self.over_even = outlook.over_even(row)
        self.plan = [] if outlook.worthless else outlook.plan(row)
        self.promised = {} if outlook.worthless else outlook.promised(row)
        self.slack, self.revised = self.slack / 2, 2 * outlook.now + 1

    def pay(self, now: int, precision: float, share: float) -> None:
        """Note a payment."""
        self.paid.append([now, precision, share * self.left])
        self.share, self.until = share, now + self.stride

    def learn(self, forecast: Forecast, now: int) -> None:
        """Test the payments before the latest one by it, and foresee what it brings itself."""
        came, bought = forecast.came(), [precision for _, precision, _ in self.paid]
        if not came or self.paid[-1][0] != now:  # it failed, or goes on with other clients
            return
        self.evidence.test(came)
        gains = forecast.gain(np.append(0.0, bought[-1] / np.array(_NEEDS)))
        number = sum(bought) ** 2 / sum(of**2 for of in bought)  # of payments, if all were equal
        self.evidence.foreseen = {
            of.tested: float(max(gains[of.measure][[0, 1 + _NEEDS.index(of.needs)]]))
            * (1.0 - of.convergence[0] * number ** -of.convergence[1])
            for of in hypotheses(gains, forecast.steps, 1.0)
            if of.convergence != _TURNS[1]  # what tastes are worth to people, no payment shows
        }

    @property
    def left(self) -> float:
        """The share of the budget that is left, of a client that was there from the start."""
        return max(1.0 - sum(share for *_, share in self.paid), 0.0)

    def in_words(self, now: int, rounds: int, objective: Objective) -> str:
        """Say in a sentence what is planned, why, and what is expected of it."""
        if not self.plan:
            return f"abstained: nothing would change an error by {UNNOTICED:.2%}"
        soon, served = max(rounds // 4, 1), objective.kind == "served"
        share = sum(paid for at, _, paid in self.paid if at < soon)
        share += self.left * self.within(now, max(soon, now))
        plan = "spends about evenly, since nothing else is sure to be as good"
        if share > _EARLY:
            why = "since what is known soon serves people longer"
            plan = f"spends {share:.0%} of the budget within {soon} of {rounds} rounds, {why}"
        elif share < _LATE:
            why = "for ratings and people still to come" if served else "as only the end counts"
            plan = f"keeps {1 - share:.0%} of the budget beyond round {soon} of {rounds}, {why}"
        promised = {of: gain * self.evidence.ratios(of) for of, gain in self.promised.items()}
        bands = [_IN_WORDS[of].format(*gain.clip(0.0, 1.0)) for of, gain in promised.items()]
        aim = f"aimed at {'all rounds' if served else 'the last round'}: {plan}"
        return f"{aim}; expects {' and '.join(bands)}. {self._compared()}"

    def _compared(self) -> str:
        """Say what the plan gains over even charges, and what came of its forecast so far."""
        said = []
        for name, (least, most) in self.over_even.items():
            gain = f"{name} gain {least:+.1%} to {most:+.1%} over even charges, by hypothesis"
            if (seen := self.evidence.seen(name)) is not None:
                came, error, forecast = seen
                gain += f"; {came:.1%} ± {2 * error:.1%} came where {forecast:.1%} was forecast"
            said.append(gain.capitalize())
        return ". ".join([*said, f"Hypotheses ruled out: {len(self.evidence.ruled_out)}"])


class Schedules(NamedTuple):
    """Schedules for the rounds that are left; the first row is the even one.

    Attributes:
        moments: Rounds from now at which stretches of rounds begin; the first is 0.
        shares: Of what is left, that is paid in each stretch, ``[schedules, moments]``.
        payments: In how many equal payments.
    """

    moments: Floats
    shares: Floats
    payments: Floats


class Outlook:
    """What schedules for the rest of the budget are worth, under every hypothesis.

    Args:
        left: The charge that is left to plan with, for each class of budgets.
        agenda: What was paid before the present round, `now`, and the plan followed so far.
        growth: By which factor the ratings are expected to grow over all rounds.

    Attributes:
        schedules: Those that were compared. The first is what is followed so far, or even.
        values: What each is worth under each hypothesis, ``[hypotheses, schedules]``: the mean
            gain over what is to come, by the objective.
        regret: By how much each schedule falls short of the best, at most.
        admissible: Which of them are nowhere worse than the first.
        worthless: Whether no schedule brings anything that is noticed, whatever is true.
    """

    def __init__(
        self, forecast: Forecast, left: Floats, agenda: Agenda, *, now: int, rounds: int,
        objective: Objective, growth: float = 2.0,
    ) -> None:  # fmt: skip
        weights = objective.weights(rounds)[now:]
        self.now, self._stride = now, agenda.stride
        begins = int((weights > 0).argmax()) // self._stride  # people are served from then on
        slots = max(1, -(-(rounds - now) // self._stride))
        found = schedules(slots, begins)
        self._moments = found.moments * self._stride
        starts = np.minimum(self._moments.astype(np.int64), len(weights) - 1)
        self._weights = np.add.reduceat(weights, starts)
        self._sizes = np.diff(np.append(found.moments, slots))
        if (followed := self._followed(agenda)) is not None:
            both = zip(followed, (found.shares, found.payments), strict=True)
            found = Schedules(found.moments, *(np.vstack(of) for of in both))
        self.schedules = found

        bought = np.array([forecast.precision(share * left) for share in _SHARES])
        before = np.array([precision for _, precision, _ in agenda.paid])
        # In a unit of its own: whatever the clip is, squares are neither 0 nor infinite.
        unit = max(float(bought[-1]), float(before.sum()), _TINY)
        bought, before = np.maximum(bought / unit, 1e-150), before / unit
        grid = np.geomspace(bought[0], bought[-1] * 1600.0, _GRID)
        self._gains = {
            measure: np.maximum.accumulate(_WORTH[measure] * gains)
            for measure, gains in forecast.gain(np.append(0.0, grid * unit)).items()
        }
        self._grid, self._bought = np.log(grid), np.log(bought)
        self._pooled = forecast.pooled(self._moments)
        joining = bool((self._pooled > 1.0).any())
        self.hypotheses = [
            of for of in hypotheses(self._gains, forecast.steps, growth, joining)
            if of.tested not in agenda.evidence.ruled_out
        ]  # fmt: skip
        self._paid = before, np.array([float(at) for at, *_ in agenda.paid])
        self._rounds = rounds

        gained = list(self._gained(found.shares, found.payments))
        self._in_the_end = [gains[:, -1] for gains in gained]
        self.values = np.stack([gains @ self._weights for gains in gained])
        best, all_rounds = self.values.max(axis=1, keepdims=True), self._weights.sum()
        self.regret = (best - self.values).max(axis=0)
        least = self.values[:, :1] - agenda.slack * all_rounds
        self.admissible = (self.values >= least).all(axis=0)
        self.worthless = bool((best <= UNNOTICED * all_rounds).all())

    def safest(self) -> int:
        """Return the admissible schedule that falls short of the best by as little as possible."""
        return int(np.where(self.admissible, self.regret, np.inf).argmin())

    def promised(self, row: int) -> dict[str, float]:
        """Return what a schedule brings in the end by forecast, for each measure."""
        under = [*zip(self.hypotheses, self._in_the_end, strict=True)]
        under.reverse()  # the first of each measure takes the forecast at its word
        return {of.measure: float(gains[row]) / _WORTH[of.measure] for of, gains in under}

    def over_even(self, row: int) -> dict[str, list[float]]:
        """Return what a schedule gains over the first, at least and at most, by measure."""
        more = (self.values[:, row] - self.values[:, 0]) / self._weights.sum()
        of = np.array([hypothesis.measure for hypothesis in self.hypotheses])
        return {
            name: [float(more[of == name].min() / worth), float(more[of == name].max() / worth)]
            for name, worth in _WORTH.items()
            if (of == name).any()
        }

    def plan(self, row: int) -> Plan:
        """Return the payments of a schedule."""
        shares, payments = self.schedules.shares[row], self.schedules.payments[row]
        firsts = self.now + self._moments
        return [
            [int(firsts[at]), int(firsts[at] + (max(payments[at], 1) - 1) * self._stride), share]
            for at, share in enumerate(shares.tolist())
            if share > 0
        ]

    def _followed(self, agenda: Agenda) -> tuple[Floats, Floats] | None:
        """Return what is left of a plan, as shares and numbers of payments at the moments."""
        edges = np.append(self._moments, self._moments[-1] + self._sizes[-1] * self._stride)
        shares, payments = np.zeros((2, len(self._moments)))
        for first, last, weight in agenda.plan:
            at = np.arange(first, last + 1, agenda.stride) - self.now
            number, _ = np.histogram(at[at >= 0], edges)
            shares += weight * number / len(at)
            payments += number
        total = float(shares.sum())
        return (shares / total, np.maximum(payments, 1.0)) if total > 0 else None

    def _gained(self, shares: Floats, payments: Floats) -> Iterator[Floats]:
        """Yield what each schedule has gained after each moment, under each hypothesis."""
        each = np.log(np.maximum(shares / np.maximum(payments, 1.0), _SHARES[0]))
        alone = np.exp(np.interp(each, np.log(_SHARES), self._bought)) * payments
        alone = np.where(shares > 0, alone, 0.0)
        before, at = self._paid
        found, kept = {}, {}
        for measure, needs, convergence, growth, joins in self.hypotheses:
            added = alone * (1.0 + joins * (self._pooled - 1.0))
            new = added.cumsum(axis=1)
            if (measure, needs, joins) not in found:
                known, *more = self._gains[measure]
                logs = np.log(np.maximum(new / needs, _TINY))
                gains = np.interp(logs, self._grid, more)
                gains = np.where(new > 0, np.maximum(gains, known), known)
                found[measure, needs, joins] = np.where(before.sum() + new > 0, gains, 0.0)
            if (convergence, growth, joins) not in kept:
                whole = np.maximum(before.sum() + new, _TINY)
                squares = (added**2 / np.maximum(payments, 1.0)).cumsum(axis=1)
                squares += (before**2).sum()
                number = np.maximum(whole**2 / np.maximum(squares, _TINY), 1.0)
                rate = (growth - 1.0) / max(self._rounds - 1, 1)
                ratings = 1.0 + rate * (self.now + self._moments)
                seen = (before * (1.0 + rate * at)).sum() + (added * ratings).cumsum(axis=1)
                stale = 1.0 - seen / whole / ratings
                lost = convergence[0] * number ** -convergence[1]
                kept[convergence, growth, joins] = (1.0 - lost) * (1.0 - _STALE * stale**2)
            yield found[measure, needs, joins] * kept[convergence, growth, joins]


@lru_cache(maxsize=512)
def schedules(rounds: int, begins: int) -> Schedules:
    """Return the schedules among which one is sought, for this many rounds that are left.

    There are even, falling and growing charges, for all rounds or from later on; a few rounds in
    the beginning or in the end; a few single payments; and each of them mixed with the even one.
    People are served from `begins` on.
    """
    few = min(rounds, _POINTS if rounds <= _POINTS else _POINTS // 2)
    ends = np.arange(max(0, rounds - max(_COUNTS)), rounds)
    early = np.geomspace(1, rounds, few).astype(np.int64) - 1
    spread = np.linspace(0, rounds - 1, few).astype(np.int64)
    moments = np.unique(np.concatenate([early, spread, ends, [begins]]))
    sizes = np.diff(np.append(moments, rounds)).astype(np.float64)
    middle = moments + (sizes - 1) / 2
    rows: list[Floats] = [sizes]  # what is paid at each moment
    single: list[Floats] = []  # when single payments are made

    delays = {0, begins, *(int(rounds * part) for part in _DELAYS)}
    lasting = 2 ** np.arange(int(rounds).bit_length())
    for delay in sorted(delay for delay in delays if delay < rounds):
        there, age = moments >= delay, np.maximum(middle - delay, 0.0) + 1.0
        powers = (0.0, -0.5, -1.0, -2.0, 0.5, 1.0, 2.0, 4.0) if delay in (0, begins) else (0.0,)
        rows += [np.where(there, sizes * age**power, 0.0) for power in powers]
        if delay in (0, begins):
            rows += [np.where(there, np.clip(delay + k - moments, 0, sizes), 0.0) for k in lasting]
            for count in (count for count in _COUNTS if count <= rounds - delay):
                single.append(delay + np.geomspace(1, rounds - delay, count + 1)[:-1] - 1)
                single.append(delay + np.arange(count) * (rounds - delay) / count)
    rows += [np.clip(moments + sizes - (rounds - k), 0.0, sizes) for k in lasting]
    shares = np.array([row / row.sum() for row in rows])
    payments = np.where(shares > 0, sizes, 0.0)
    points = np.zeros((len(single), len(moments)))
    for row, at in enumerate(single):
        places = np.searchsorted(moments, np.minimum(at, rounds - 1), side="right") - 1
        np.add.at(points[row], places, 1.0 / len(at))
    shares, payments = np.vstack([shares, points]), np.vstack([payments, points > 0])
    shares = np.vstack([shares, (shares + shares[:1]) / 2])
    payments = np.vstack([payments, np.broadcast_to(sizes, payments.shape)])
    return Schedules(moments.astype(np.float64), shares, payments)
