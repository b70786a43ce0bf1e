"""BGTplanner: predictor, constrainer and allocator behind ask and tell (paper, Algorithms 1, 3).

The predictor says what a charge brings, the constrainer what it would bring in other rounds, and
the allocator decides. Where the learner makes forecasts, whole schedules are compared, and nothing
can be learned by drawing (:mod:`bgtplanner.planning.forecasting`). Where there are only contexts
and rewards, a round has levels that it may cost; a Gaussian process learns what they bring, and a
level is drawn by its score. Where nothing is known, charges are even, or grow towards the end.

The sign of the penalty that the paper prints rewards spending; the sign here penalises it (Han et
al. 2023): score = predicted reward + price * (allowance - cost).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from bgtplanner.errors import ConfigError
from bgtplanner.planning.allocator import LevelPolicy, probabilities
from bgtplanner.planning.arguments import Floats, number, whole
from bgtplanner.planning.constrainer import Constrainer
from bgtplanner.planning.forecasting import Agenda, Forecast, Outlook
from bgtplanner.planning.objective import Kind, Objective
from bgtplanner.planning.plan import Explanation, Plan
from bgtplanner.planning.policy import Choice
from bgtplanner.planning.predictor import Predictor
from bgtplanner.planning.schedules import fitted, least_noise, noise_counts

_REPLAYED, _REFRESH = 32, 8  # contexts that the price is updated by; rounds between predictions
_LARGEST = 1e90  # larger rewards count as this much: their squares must be finite
_CONTRACTS = math.log(4.0)  # by how much all steps shrink what was there at first, in logarithms


@dataclass(kw_only=True, eq=False, repr=False)
class BGTPlanner(LevelPolicy):
    """Plan the charge of each round by its predicted reward and by the price of budget.

    Args:
        levels: The number of levels, A.
        min_rounds: The fewest rounds that the budget may be spent in, which sets the dearest
            level. By default an eighth of `rounds`.
        cheapest: The cheapest level, in even shares; with `skip`, there is one that costs nothing.
        initial_rounds: How often each level up to two even shares is tried at first, T0.
        gamma: How strongly the best level is preferred; None: 64 A sqrt(t), since exploration
            costs about (A - 1) / gamma, and a smooth process is known far better than theory says.
        radius: The largest price of the dearest level, over the size of the rewards; by default
            `rounds` over the rounds that the budget lasts for at that level. 0: budget is free.
        predictor: Options of :class:`bgtplanner.planning.predictor.Predictor`.
        objective: What is planned for; see :class:`bgtplanner.planning.objective.Objective`, also
            for `traffic`.
        growth: By which factor the ratings are expected to grow over all rounds; public knowledge.
    """

    levels: int = 5
    cheapest: float = 0.5
    skip: bool = True
    initial_rounds: int = 1
    gamma: float | None = None
    radius: float | None = None
    predictor: Mapping[str, Any] | None = None
    objective: Kind = "served"
    traffic: Sequence[float] | None = None
    growth: float = 2.0

    forecasts: ClassVar[bool] = True
    remembers = (
        *LevelPolicy.remembers, "process", "constrainer", "note", "_agenda",
        "_latest", "_replayed",
    )  # fmt: skip
    _salt: ClassVar[int] = 0xB67
    _fewest: ClassVar[float] = 1 / 8
    _tries: ClassVar[float] = 2.1  # even shares: dearer levels are not part of the initial stage
    _process: ClassVar[Mapping[str, Any]] = {"fit": True, "length_scale": 4.0, "noise": 3.0}

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("initial_rounds", self.initial_rounds, 1)
        number("gamma", self.gamma or 0.0, 0.0)
        number("growth", self.growth, 1, 1e6)
        number("cheapest", self.cheapest, 1e-9, 1)
        ConfigError.unless(isinstance(self.skip, bool), "skip", self.skip, "true or false")
        first, cheapest = int(self.skip), self.cheapest * self._even
        levels = whole("levels", self.levels, 1, 1000)
        grid = self._grid(cheapest, cheapest if levels == 1 else self._dearest, levels)
        self.charges = np.hstack([np.zeros((len(grid), first)), grid])
        self._goal = Objective(self.objective, self.traffic)
        stride = math.ceil(min(1.0 / self.participation - 1e-9, self.rounds))
        self._agenda = Agenda(stride=stride)
        self.process = Predictor(**(self._process if self.predictor is None else self.predictor))
        self._position, self._usual = self._positions()
        self._usual[:first] = 0.0  # a skipped round brings nothing
        self._tried = int((self.charges[0, first:] <= self._tries * self._even[0]).sum())
        shares = np.stack([self.share_of(row) for row in self.charges.T], axis=1)
        self._unit = shares.max(axis=1)  # costs are measured in units of the dearest level
        self._costs = shares / self._unit[:, None]
        # A round brings at most one unit of reward, so the budget is worth at most this.
        most = float((self.expected(self.rounds) * self._unit).max())
        radius = most if self.radius is None else self.radius
        self.constrainer = Constrainer(resources=len(shares), radius=radius, step=0.1)
        # The latest contexts, and what is predicted in each of them.
        self._latest, self._replayed = (deque[Floats](maxlen=_REPLAYED) for _ in range(2))

    def choose(self, context: Floats, left: Floats) -> Choice | None:
        """Decide by forecast, by rewards, or by a schedule where nothing is known."""
        if self.forecast is not None:
            return self._by_forecast(self.forecast, left)
        return self._by_rewards(context, left) if len(context) else self._by_schedule()

    def learn(self, plan: Plan, reward: float | None) -> None:
        """Teach the predictor what the round brought."""
        if self.forecast is not None and not plan.skip:
            self._agenda.learn(self.forecast, plan.round)
            self.note = self._agenda.in_words(plan.round + 1, self.rounds, self._goal)
        context = self._contexts.pop(plan.round, None)
        if reward is None or plan.skip or context is None:  # by schedule there is none to keep
            return
        usual, position = (float(of[plan.level or 0]) for of in (self._usual, self._position))
        reward = min(max(reward, -_LARGEST), _LARGEST) / usual
        inputs = [position, *context.tolist()]
        self.process.observe(inputs, time=plan.round, reward=reward, variance=usual**-2)

    def _by_schedule(self) -> Choice:
        """Charge an even share, or what leaves the least noise if only the last round counts."""
        served = self.objective == "served"
        share = "an even" if served else "a growing"
        why = Explanation(f"{share} share: nothing is known about the rounds")
        return Choice(self._even if served else self._growing[self.round], why=why)

    @cached_property
    def _growing(self) -> Floats:
        rate = min(_CONTRACTS / self.rounds, 1.0)
        return fitted(self, least_noise(self, noise_counts(self._goal.weights(self.rounds), rate)))

    def _by_rewards(self, context: Floats, left: Floats) -> Choice:
        """Draw a level by what it was found to bring; at first, try the levels in turn."""
        self.keep(context)
        if self.round < self._tried * self.initial_rounds:
            level = int(self.skip) + self.round // self.initial_rounds
            return self.choice(level, "trying out every level")
        predicted = self._predict(context[None])[0]
        unit = self._reward_unit()
        costs, allowance = np.where(left[:, None] > 0, self._costs, 0.0), self._allowance()
        self._update_price(context, predicted, unit, costs, allowance)
        prices = self.constrainer.prices()
        price = prices @ costs
        score = predicted / unit + prices @ allowance - price
        growing = 64.0 * len(score) * math.sqrt(self.round + 1.0)
        chance = probabilities(score, growing if self.gamma is None else self.gamma)
        return self.drawn(chance, predicted=predicted, price=price * unit, score=score * unit)

    def _grid(self, low: Floats, high: Floats, levels: int) -> Floats:
        """Return the charges of the levels that are not free: they grow by a constant factor."""
        return np.asarray(np.geomspace(low, high, levels, axis=1))

    def _positions(self) -> tuple[Floats, Floats]:
        """Return each level's coordinate for the predictor, and its usual reward.

        The usual reward grows with the charge and saturates, 2c / (1 + c) for c even shares; the
        process learns the factor by which rewards differ from it. Until then an even share is
        best: the planner begins as the uniform schedule and departs from it on evidence.
        """
        shares = self.charges[0] / self._even[0]  # equal ratios are equal steps
        return np.log2(np.maximum(shares, shares[int(self.skip)])), 2 * shares / (1 + shares)

    def _predict(self, contexts: Floats) -> Floats:
        """Return the expected reward of every level per context, ``[contexts, levels]``."""
        return self._usual * self.process.expect(self._position, contexts, time=self.round)

    def _reward_unit(self) -> float:
        """Return the size of the rewards seen so far."""
        mean, spread = self.process.reward_scale()
        return max(abs(mean) + 2 * spread, 1e-12)

    def _allowance(self) -> Floats:
        """Return what a round may cost from here on: remaining budget over remaining rounds."""
        remaining = self.expected(self.rounds - self.round)
        return np.asarray(self.share_left() / (remaining * self._unit))

    def _update_price(
        self, context: Floats, predicted: Floats, unit: float, costs: Floats, allowance: Floats
    ) -> None:
        """Update the price by replaying the latest contexts."""
        begun = len(self._latest) > 0
        self._latest.append(context)
        self._replayed.append(predicted)
        if begun and self.round % _REFRESH == 0:
            self._replayed = deque(self._predict(np.stack(self._latest)), maxlen=_REPLAYED)
        self.constrainer.replay(
            np.stack(self._replayed) / unit, costs, allowance,
            steps=4 if begun else 100, rate=self.constrainer.step,
        )  # fmt: skip

    def _by_forecast(self, forecast: Forecast, left: Floats) -> Choice:
        """Pay what the schedule that is followed says, after a look whether to follow another."""
        agenda, now, nothing = self._agenda, self.round, np.zeros(len(self._even))
        left = np.minimum(left, forecast.left())
        if now < agenda.until:  # a payment takes several rounds if not all clients are invited
            why = Explanation("the same payment, by other clients")
            return Choice(agenda.share * left, why=why, proportional=True)
        if not left.any():
            return Choice(nothing, why=Explanation("no one who can be asked has any budget left"))
        if now >= agenda.revised:
            outlook = Outlook(
                forecast, left, agenda, now=now, rounds=self.rounds, objective=self._goal,
                growth=self.growth,
            )  # fmt: skip
            agenda.follow(outlook)
            self.note = agenda.in_words(now, self.rounds, self._goal)
        share, then = agenda.due(now), agenda.next(now)
        if not share:
            saving = "it would bring next to nothing" if then is None else f"for round {then + 1}"
            return Choice(nothing, why=Explanation(f"keeping what is left: {saving}"))
        agenda.pay(now, forecast.precision(share * left), share)
        fall = tuple(of for name, of in agenda.promised.items() if name == "ratings")
        why = Explanation(f"{share:.0%} of what is left", forecast=fall)
        return Choice(share * left, why=why, proportional=True)
