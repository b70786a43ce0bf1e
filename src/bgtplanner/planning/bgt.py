"""BGTplanner: predictor, constrainer and allocator behind ask and tell (paper, Algorithms 1, 3).

Levels are shares of the budget, the same for every class of clients: a level costs each client a
fixed part of its whole budget. Rewards and contexts are standardised. The price is in the unit of
the rewards and is kept up to date by replaying the latest contexts. There are levels below an even
share, and one that skips the round. The initial stage only tries each level once. The paper's own
constants and formulas are in :mod:`bgtplanner.paper.planners`.

The sign of the penalty that the paper prints rewards spending; the sign here penalises it (Han et
al. 2023): score = predicted reward + price * (allowance - cost).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from bgtplanner.errors import ConfigError
from bgtplanner.planning.allocator import LevelPolicy, gamma_growing, probabilities
from bgtplanner.planning.constrainer import Constrainer
from bgtplanner.planning.given import context_of, floats
from bgtplanner.planning.plan import Floats, Plan
from bgtplanner.planning.policy import Choice
from bgtplanner.planning.predictor import Predictor

__all__ = ["BGTPlanner"]

_REPLAYED = 32  # latest contexts that the price is updated by
_REFRESH = 8  # number of rounds after which their rewards are predicted again
_LARGEST = 1e90  # larger rewards count as this much: their squares must be finite


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
        self.charges = self._charges_of_levels()
        self.process = Predictor(**(self._process if self.predictor is None else self.predictor))
        self._position, self._usual = self._positions()
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
        self.keep(context)
        if self.round < self._tried * self.initial_rounds:
            level = int(self.skip) + self.round // self.initial_rounds
            return self.choice(level, "trying out every level")
        number = self.charges.shape[1]
        predicted = self._predict(context[None])[0]
        unit = self._reward_unit()
        costs, allowance = np.where(left[:, None] > 0, self._costs, 0.0), self._allowance()
        self._replay(context, predicted, unit, costs, allowance)
        prices = self.constrainer.prices()
        price = prices @ costs
        score = predicted / unit + prices @ allowance - price
        gamma = gamma_growing(number, self.round) if self.gamma is None else self.gamma
        chance = probabilities(score, gamma)
        level = int(min(np.searchsorted(chance.cumsum(), self._generator.random()), number - 1))
        return self.choice(
            level, "drawn by score", charges=self.charges.max(axis=0), predicted=predicted,
            price=price * unit, score=score * unit, probability=chance,
        )  # fmt: skip

    def learn(self, plan: Plan, reward: float | None) -> None:
        """Teach the predictor what the round brought."""
        context, level = self._contexts.pop(plan.round, np.zeros(0)), plan.level or 0
        if reward is not None and not plan.skip:
            inputs, usual = np.append(self._position[level], context), self._usual[level]
            reward = min(max(reward, -_LARGEST), _LARGEST)
            self.process.observe(
                inputs, time=plan.round, reward=reward / usual, doubt=1 / usual**2
            )

    def state_dict(self) -> dict[str, Any]:
        """Return everything it is and has learned, as plain data that JSON can hold."""
        return super().state_dict() | {
            "predictor": self.process.state_dict(),
            "constrainer": self.constrainer.state_dict(),
            "latest": [context.tolist() for context in self._latest],
            "expected": self._expected.tolist(),
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        super()._load(state)
        self.process.load_state_dict(state["predictor"])
        self.constrainer.load_state_dict(state["constrainer"])
        self._latest.extend(context_of(row) for row in state["latest"])
        shape = (len(self._latest), self.charges.shape[1])
        self._expected = floats("state: expected", state["expected"], shape)
        self.check_widths(*self._latest)

    def width(self) -> int | None:
        """Return the length of the contexts that the predictor was taught, if there are any."""
        if len(self.process):
            return len(self.process.length_scales) - 1
        return len(self._latest[0]) if self._latest else super().width()

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
        first, number = int(self.skip), self.charges.shape[1]
        real = number - first
        inputs = np.empty((len(contexts) * real, 1 + contexts.shape[1]))
        inputs[:, 0] = np.tile(self._position[first:], len(contexts))
        inputs[:, 1:] = np.repeat(contexts, real, axis=0)
        expected = np.zeros((len(contexts), number))  # a skipped round brings nothing
        means = self.process.expect(inputs, time=self.round)
        expected[:, first:] = means.reshape(len(contexts), real) * self._usual[first:]
        return expected

    def _replay(
        self, context: Floats, predicted: Floats, unit: float, costs: Floats, allowance: Floats
    ) -> None:
        """Update the price by replaying the latest contexts."""
        begun = len(self._latest) > 0
        self._latest.append(context)
        self._expected = np.vstack([self._expected, predicted])[-_REPLAYED:]
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
