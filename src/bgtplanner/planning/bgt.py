"""BGTplanner: predictor, constrainer and allocator behind ask and tell (paper, Algorithms 1, 3).

Where the learner can forecast what a charge brings, from releases and public constants alone, the
planner starts from that. Predictor: the forecast, times a factor that the Gaussian process learns
from rewards, if there are any. Constrainer: the price of a level is what its charge would bring
later, by the best schedule for the rest of the budget (:mod:`bgtplanner.planning.forecasting`),
solved anew after each release. Allocator: levels are drawn by their scores; where no rewards are
told nothing can be learned by drawing, so the best level is taken.

In a loop that it knows nothing about, there are no forecasts. If it is not shown a context either,
no round can be told from another beforehand: it follows an even schedule, or one that grows if the
last round is what counts (noise in the last rounds of a training run is what remains). With a
context, it learns from rewards which rounds are worth more: levels are shares of the budget, the
same for every class of clients, and there are levels below an even share, and one that skips the
round. Rewards and contexts are standardised. The price is in the unit of the rewards and is kept
up to date by replaying the latest contexts. The initial stage only tries each level once. The
paper's own constants and formulas are in :mod:`bgtplanner.paper.planners`.

The sign of the penalty that the paper prints rewards spending; the sign here penalises it (Han et
al. 2023): score = predicted reward + price * (allowance - cost).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np

from bgtplanner.errors import ConfigError
from bgtplanner.planning.allocator import LevelPolicy, gamma_growing, probabilities, said
from bgtplanner.planning.arguments import Floats, number
from bgtplanner.planning.constrainer import Constrainer
from bgtplanner.planning.forecasting import Agenda, Forecast, Programme
from bgtplanner.planning.objective import Kind, Objective
from bgtplanner.planning.plan import Explanation, Plan
from bgtplanner.planning.policy import Choice
from bgtplanner.planning.predictor import Predictor
from bgtplanner.planning.schedules import fitted
from bgtplanner.privacy.accountants import TICK

_REPLAYED = 32  # latest contexts that the price is updated by
_REFRESH = 8  # number of rounds after which their rewards are predicted again
_LARGEST = 1e90  # larger rewards count as this much: their squares must be finite
_PROBE = 0.06  # share of the budget that is paid to learn what the rest is worth
_GROWS = 4.0  # by which factor charges grow where only the last round counts
_NEGLIGIBLE = 0.005  # times `worthwhile`: the mean gain from which on a payment is asked for
_GOALS = {"served": "all rounds", "last": "the last round"}
_CLEARLY = 2.0  # times `worthwhile`: a forecast of so much needs no probe


@dataclass(kw_only=True, eq=False, repr=False)
class BGTPlanner(LevelPolicy):
    """Plan the charge of each round by its predicted reward and by the price of budget.

    Args:
        levels: The number of levels, A; or the levels themselves, in even shares of `rounds`.
        min_rounds: The fewest rounds that the budget may be spent in: the dearest level costs an
            even share of that many rounds. By default an eighth of `rounds`.
        cheapest: The cheapest level, in even shares of `rounds`: a value below 1 leaves room to
            spend more in other rounds.
        spacing: Whether the levels are evenly spaced or grow by a constant factor.
        skip: Whether there is a level that skips the round.
        initial_rounds: How often each level up to two even shares is tried at first, T0.
        gamma: How strongly the best level is preferred: a number, or None for one that grows with
            the rounds.
        radius: The largest price of the dearest level, relative to the size of the rewards; by
            default `rounds` over the number of rounds that the budget would last for at that
            level. With 0 the budget is free.
        step: Step size of mirror descent, as a share of the allowance; by default 0.1.
        predictor: Options of :class:`bgtplanner.planning.predictor.Predictor`.
        objective: Plan for the error that is ``served`` over all rounds, or for the ``last``
            round; this and what follows is for learners that make forecasts.
        traffic: How many people are served in each round, in any unit; see
            :class:`bgtplanner.planning.objective.Objective`.
        growth: By which factor the ratings are expected to grow over all rounds; public knowledge.
        worthwhile: The smallest relative fall of the error that is worth the budget. Where less is
            forecast, the budget is kept.

    Example:
        >>> from bgtplanner import Budget
        >>> planner = BGTPlanner(Budget(10, 1e-5), clients=943, rounds=3, seed=0)
        >>> spent = 0.0
        >>> while (plan := planner.ask()) is not None:
        ...     spent += plan.charge
        ...     planner.tell(plan, reward=0.01)
        >>> spent <= planner.accountant.capacity(Budget(10, 1e-5))
        True
    """

    levels: int | Sequence[float] = 5
    min_rounds: int | None = None
    cheapest: float = 0.5
    spacing: Literal["linear", "geometric"] = "geometric"
    skip: bool = True
    initial_rounds: int = 1
    gamma: float | None = None
    radius: float | None = None
    step: float | None = None
    predictor: Mapping[str, Any] | None = None
    objective: Kind = "served"
    traffic: Sequence[float] | None = None
    growth: float = 2.0
    worthwhile: float = 0.0025

    forecasts: ClassVar[bool] = True
    _follows_schedule: ClassVar[bool] = True  # where it knows nothing about the rounds
    _salt: ClassVar[int] = 0xB67
    _fewest: ClassVar[float] = 1 / 8
    _dearest: ClassVar[float] = 2.1  # even shares: dearer levels are not part of the initial stage
    _process: ClassVar[Mapping[str, Any]] = {"fit": True, "length_scale": 4.0, "noise": 3.0}

    def __post_init__(self) -> None:
        super().__post_init__()
        unless, gamma = ConfigError.unless, self.gamma
        fits = isinstance(self.skip, bool | np.bool_)
        unless(fits, "skip", self.skip, "true or false")
        unless(self.initial_rounds >= 1, "initial_rounds", self.initial_rounds, "at least 1")
        unless(gamma is None or bool(0 <= gamma < np.inf), "gamma", gamma, "0 or more, or None")
        self.skip = bool(self.skip)
        self.growth = number("growth", self.growth, 1.0, 1e6)
        self.worthwhile = number("worthwhile", self.worthwhile, 0.0, 1.0)
        self._goal = Objective(self.objective, self.traffic)
        self._agenda = Agenda()
        self.charges = self._charges_of_levels()
        self.process = Predictor(**(self._process if self.predictor is None else self.predictor))
        self._position, self._usual = self._positions()
        self._usual[: int(self.skip)] = 0.0  # a skipped round brings nothing
        tried = self.charges[0, int(self.skip) :] <= self._dearest * self._even[0]
        self._tried = int(tried.sum())
        shares = np.stack([self.share_of(row) for row in self.charges.T], axis=1)
        self._unit = shares.max(axis=1)  # costs are measured in units of the dearest level
        self._costs = shares / self._unit[:, None]
        # A round brings at most one unit of reward, so the budget is worth at most this.
        most = float((self.expected(self.rounds) * self._unit).max())
        self.constrainer = Constrainer(
            resources=len(shares),
            radius=most if self.radius is None else self.radius,
            step=self._usual_step() if self.step is None else self.step,
        )
        self._latest: deque[Floats] = deque(maxlen=_REPLAYED)
        self._expected = np.zeros((0, self.charges.shape[1]))  # predicted rewards in each of them

    def choose(self, context: Floats, left: Floats) -> Choice | None:
        """Draw a level by its score; at first, try the levels in turn."""
        if self.forecast is not None:
            return self._by_forecast(self.forecast, context, left)
        if self._follows_schedule and not len(context):
            return self._by_schedule()
        self.keep(context)
        if self.round < self._tried * self.initial_rounds:
            level = int(self.skip) + self.round // self.initial_rounds
            return self._by_left(self.choice(level, "trying out every level"))
        predicted = self._predict(context[None])[0]
        unit = self._reward_unit()
        costs, allowance = self._costs, self._allowance()
        if not left.all():
            costs = np.where(left[:, None] > 0, costs, 0.0)
        self._replay(context, predicted, unit, costs, allowance)
        prices = self.constrainer.prices()
        price = prices @ costs
        score = predicted / unit + prices @ allowance - price
        chance = probabilities(score, self._gamma(len(score)))
        choice = self.choice(
            self.drawn(chance), "drawn by score", charges=self.charges.max(axis=0),
            predicted=predicted, price=price * unit, score=score * unit, probability=chance,
        )  # fmt: skip
        return self._by_left(choice)

    def learn(self, plan: Plan, reward: float | None) -> None:
        """Teach the predictor what the round brought."""
        context = self._contexts.pop(plan.round, None)
        expected = self._agenda.expected.pop(str(plan.round), None)
        if reward is None or plan.skip or context is None:  # by schedule there is none to keep
            return
        if expected is None:
            level = plan.level or 0
            usual = float(self._usual[level])
            expected = [float(self._position[level]), usual, 1 / usual]
        position, usual, unsure = expected
        reward = min(max(reward, -_LARGEST), _LARGEST)
        inputs = [position, *context.tolist()]
        self.process.observe(inputs, time=plan.round, reward=reward / usual, variance=unsure**2)

    def _state(self) -> dict[str, Any]:
        return super()._state() | {
            "predictor": self.process.state_dict(),
            "constrainer": self.constrainer.state_dict(),
            "latest": [context.tolist() for context in self._latest],
            "expected": self._expected.tolist(),
            "agenda": asdict(self._agenda),
            "abstained": self.abstained,
            "note": self.note,
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        super()._load(state)
        self.process.load_state_dict(state["predictor"])
        self.constrainer.load_state_dict(state["constrainer"])
        self._latest.extend(np.array(row, dtype=np.float64) for row in state["latest"])
        shape = len(self._latest), self.charges.shape[1]
        self._expected = np.array(state["expected"], dtype=np.float64).reshape(shape)
        self._agenda = Agenda(**state["agenda"])
        self.abstained, self.note = state["abstained"], state["note"]

    def _by_left(self, choice: Choice) -> Choice:
        """Return the choice with charges in proportion to what each client has left.

        The mean client of a class pays what was chosen.
        """
        left = self.own_left()
        if left is None or not np.count_nonzero(choice.charges):
            return choice
        rate = choice.charges / np.maximum(self.left(), TICK)
        return choice._replace(own_charges=rate[self.budgets.class_of_client] * left)

    def _by_schedule(self) -> Choice:
        """Charge an even share, or one that grows if the last round is what counts."""
        rest = self.rounds - self.round
        if self.objective == "served":
            why = Explanation("an even share: nothing is known about the rounds")
            return Choice(self._even, why=why, own_charges=self.own_part(self.expected(rest)))
        why = Explanation("a growing share: nothing is known about the rounds")
        charges = self._growing[self.round]
        grown = self.accountant.sum_ticks(self._growing[self.round :, 0])[self._binding]
        parts = max(1, math.ceil(self.participation * grown.sum() / grown[0] - 1e-9))
        return Choice(charges, why=why, own_charges=self.own_part(parts))

    @cached_property
    def _growing(self) -> Floats:
        past = np.arange(self.rounds) / max(self.rounds - 1, 1)
        return fitted(self, _GROWS**past)

    def _by_forecast(self, forecast: Forecast, context: Floats, left: Floats) -> Choice | None:
        """Pay what the best schedule for the rest of the budget says, or wait, or stop for good.

        Once a payment is planned for a later round nothing is released until then, so nothing has
        to be computed either.
        """
        agenda, now = self._agenda, self.round
        if self.abstained:
            return None
        nothing = np.zeros(len(self.budgets.classes))
        if now < agenda.until:  # a payment takes several rounds if not all clients are invited
            charges, own = np.array(agenda.charges), self._own(forecast, agenda.share)
            why = Explanation("the same payment, by other clients")
            return Choice(charges, why=why, own_charges=own)
        if now < agenda.next:
            return Choice(nothing, why=Explanation(self._saving(agenda.next)))
        left = np.minimum(left, forecast.left())
        if not left.any():
            return Choice(nothing, why=Explanation("no one who can be asked has any budget left"))
        stride = math.ceil(min(1.0 / self.participation - 1e-9, self.rounds))
        programme = Programme(
            forecast, left, now=now, rounds=self.rounds, objective=self._goal,
            paid=agenda.paid, growth=self.growth, stride=stride,
        )  # fmt: skip
        begun, promised = bool(agenda.paid), programme.promised
        if not agenda.decided and (begun or promised >= _CLEARLY * self.worthwhile):
            agenda.decided = True
            self._decide(max(promised, agenda.promised))  # a probe may say next to nothing
            if self.abstained:
                return None
        if not begun:
            agenda.promised = promised
        share, level, why = _PROBE, None, Explanation("a probe", forecast=(promised,))
        if begun or (agenda.decided and self.objective == "served") or self.rounds == 1:
            if programme.gain < _NEGLIGIBLE * self.worthwhile:
                agenda.next = now + max(1, self.rounds // 20)
                return Choice(
                    nothing, why=Explanation("what is left would bring next to nothing now")
                )
            share, level, why = self._draw(programme, context, float(left.max()))
        if not share:
            return Choice(nothing, level, why=why)
        self.keep(context)
        charges = share * left
        agenda.pay(now, charges, forecast.precision(charges), stride, share)
        fall = programme.fall(share)
        unsure = float(np.clip(programme.fall(1.0) / fall, 1.0, 1e5))
        agenda.expected[str(now)] = [float(np.log2(share)), fall, unsure]
        return Choice(charges, level, why=why, own_charges=self._own(forecast, share))

    def _own(self, forecast: Forecast, share: float) -> Floats | None:
        """Return this share of what each client has left; None if all of a class have the same.

        So those who joined late, or were invited less often, pay more. Under ``secagg`` that also
        buys the most precision: charges of one client add up as lengths do, so the sum over
        clients is the longest if all are divided between the rounds in the same proportions.
        """
        left = self.own_left()
        if left is None:
            return None
        return share * np.minimum(left, forecast.left()[self.budgets.class_of_client])

    def _draw(
        self, programme: Programme, context: Floats, left: float
    ) -> tuple[float, int, Explanation]:
        """Return the share of what is left that is paid now, as a level, and why."""
        agenda, promised = self._agenda, programme.promised
        # What is known about the rounds to come has hardly changed: a plan that was made is kept.
        kept = not len(self.process) and not programme.joining
        kept = kept and agenda.holds(self.round, promised)
        offers = programme.offers(agenda.plan if kept else ())
        factors, usual = self._factors(context, offers.levels)
        predicted, later = factors * offers.now, usual * offers.later
        score = predicted + later
        chance = np.zeros(len(score))
        best = np.searchsorted(offers.levels, agenda.plan[0][1]) if kept else score.argmax()
        chance[best] = 1.0
        if len(self.process):  # without rewards there is nothing to learn from other levels
            unit = max(abs(float(score.max())), 1e-12)
            chance = probabilities(score / unit, self._gamma(len(score)))
        level = self.drawn(chance)
        share = float(offers.levels[level])
        if kept:
            agenda.plan.pop(0)
        else:
            agenda.plan, agenda.promised = programme.plan(share), promised
        note = f"{share:.0%} of what is left: forecast of an error {promised:.1%} lower"
        if not share:
            agenda.next = int(agenda.plan[0][0]) if agenda.plan else self.rounds
            note = self._saving(agenda.next)
        # The price of a level: what its charge would bring later, if nothing is paid now.
        why = said(
            note, charges=offers.levels * left, predicted=predicted, price=later[0] - later,
            score=score, probability=chance,
        )  # fmt: skip
        return share, level, why._replace(forecast=(promised,))

    def _gamma(self, levels: int) -> float:
        return gamma_growing(levels, self.round) if self.gamma is None else self.gamma

    def _saving(self, until: int) -> str:
        if until < self.rounds:
            return f"saving for round {until + 1}"
        return "keeping what is left: it would bring next to nothing"

    def _factors(self, context: Floats, levels: Floats) -> tuple[Floats, float]:
        """Return by which factor rewards differ from the forecast: per level, and as usual."""
        if not len(self.process):
            return np.ones(len(levels)), 1.0
        usual = max(self.process.reward_scale()[0], 1e-12)
        places = np.log2(np.maximum(levels, 1e-9))
        expected = self.process.expect(places, context[None], time=self.round)[0]
        return np.maximum(expected, 0.0), usual

    def _decide(self, promised: float) -> None:
        """Decide once whether the budget is worth spending at all."""
        self.abstained = promised < self.worthwhile
        self.note = (
            f"abstained: spending the rest would lower the error by {promised:.2%}, less than the "
            f"{self.worthwhile:.2%} that is worth it"
            if self.abstained
            else f"aimed at {_GOALS[self.objective]}: forecast of an error {promised:.1%} "
            "below a client's own"
        )

    def _charges_of_levels(self) -> Floats:
        unless, levels = ConfigError.unless, self.levels
        listed = None if isinstance(levels, int | np.integer) else np.asarray(levels, float)
        number = int(levels) if listed is None else listed.size  # type: ignore[arg-type]
        unless(1 <= number <= 1000, "levels", levels, "1 to 1000")
        unless(bool(0 < self.cheapest <= 1), "cheapest", self.cheapest, "above 0, at most 1")
        fits = self.spacing in ("linear", "geometric")
        unless(fits, "spacing", self.spacing, "linear or geometric")
        low, high = self.cheapest * self._even, self.dearest(self.min_rounds)
        if listed is not None:
            rising = bool((np.diff(listed) > 0).all() and listed[0] > 0 and listed[-1] < np.inf)
            unless(rising, "levels", listed.tolist(), "rising positive even shares")
            grid = self._even[:, None] * listed
        elif number == 1:
            grid = low[:, None]
        else:
            space = np.linspace if self.spacing == "linear" else np.geomspace
            grid = np.asarray(space(low, high, number, axis=1))
        return np.hstack([np.zeros((len(low), 1)), grid]) if self.skip else grid

    def _positions(self) -> tuple[Floats, Floats]:
        """Return each level's coordinate for the predictor, and its usual reward.

        The usual reward grows with the charge and saturates, 2c / (1 + c) for c even shares; the
        process learns the factor by which rewards differ from it. Until then an even share is
        best: the planner begins as the uniform schedule and departs from it on evidence.
        """
        shares = self.charges[0] / self._even[0]
        usual = 2 * shares / (1 + shares)
        # The logarithm of the charge: equal ratios are equal steps.
        return np.log2(np.maximum(shares, shares[int(self.skip)])), usual

    def _predict(self, contexts: Floats) -> Floats:
        """Return the expected reward of every level per context, ``[contexts, levels]``."""
        return self._usual * self.process.expect(self._position, contexts, time=self.round)

    def _replay(
        self,
        context: Floats,
        predicted: Floats,
        unit: float,
        costs: Floats,
        allowance: Floats,
    ) -> None:
        """Update the price by replaying the latest contexts."""
        begun = len(self._latest) > 0
        self._latest.append(context)
        if len(self._expected) < _REPLAYED:
            self._expected = np.vstack([self._expected, predicted])
        else:
            self._expected[:-1], self._expected[-1] = self._expected[1:], predicted
        if begun and self.round % _REFRESH == 0:
            self._expected = self._predict(np.stack(self._latest))
        self.constrainer.replay(
            self._expected / unit, costs, allowance,
            steps=4 if begun else 100, rate=self.constrainer.step,
        )  # fmt: skip

    def _allowance(self) -> Floats:
        """Return what a round may cost from here on: remaining budget over remaining rounds."""
        remaining = self.expected(self.rounds - self.round)
        return np.asarray(self.share_left() / (remaining * self._unit))

    def _reward_unit(self) -> float:
        """Return the size of the rewards seen so far."""
        mean, spread = self.process.reward_scale()
        return max(abs(mean) + 2 * spread, 1e-12)

    def _usual_step(self) -> float:
        return 0.1
