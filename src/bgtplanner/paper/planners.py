"""The paper's planner, as it is printed and with its formulas repaired.

They are for comparison, not for use. Both have the paper's two stages and constants, with which
levels are drawn almost uniformly. :class:`AsPrinted` plays :mod:`bgtplanner.paper.algorithms`
round by round; ``docs/paper.md`` says what is wrong with its formulas. :class:`Repaired` is the
package's own planner with the paper's constants. (Every step as in the authors' code, which
differs from the text in most formulas, is ``benchmarks.paper.as_coded:AsCoded`` in a checkout.)

Epsilon is what adds up under the accountant: a release's own epsilon in the paper's setting. The
paper has one multiplier per client. All clients of a class pay the same, so their multipliers
change by the same factor in every step, and the score depends only on their sum: only this sum is
kept, per class. One difference remains: a round is paid for before it is played, and the ledger
refuses what does not fit. The last charge is capped at what is left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from bgtplanner.paper import algorithms
from bgtplanner.paper.algorithms import Given, Record
from bgtplanner.planning.allocator import LevelPolicy, probabilities
from bgtplanner.planning.arguments import Floats, number, whole
from bgtplanner.planning.bgt import BGTPlanner
from bgtplanner.planning.constrainer import Constrainer
from bgtplanner.planning.plan import Plan
from bgtplanner.planning.policy import Choice

LARGEST = 1e90  # larger rewards and contexts count as this much: squares must be finite


@dataclass(kw_only=True, eq=False, repr=False)
class AsPrinted(LevelPolicy):
    """Every formula of the paper as it is printed, including the wrong signs.

    Args:
        levels: The number of levels, A, from epsilon/T up to epsilon/T_min; T_min is
            `min_rounds`, by default 70 % of `rounds`.
        initial_rounds: How often each level is tried at first, T0.
        gamma: How strongly the best level is preferred; by default 2 sqrt(A T / ((U + 2) log T)).
        length_scale: The kernel's s.
        forgetting: The kernel's alpha.
    """

    levels: int = 5
    initial_rounds: int = 5
    gamma: float | None = None
    length_scale: float = 0.2
    forgetting: float = 0.001

    label: ClassVar[str] = "paper, as printed"
    remembers = (*LevelPolicy.remembers, "records", "radius", "multipliers", "_allowance")
    _salt: ClassVar[int] = 0x117
    _fewest: ClassVar[float] = 0.7

    def __post_init__(self) -> None:
        super().__post_init__()
        levels = whole("levels", self.levels, 1, 1000)
        usual = algorithms.gamma(levels, self.rounds, len(self.budgets))
        shares_of_rise = np.linspace(0.0, 1.0, levels)
        self.charges = self._even[:, None] + np.outer(self._dearest - self._even, shares_of_rise)
        lasts = self.expected(self.rounds)
        totals = lasts * self._even  # what adds up under the accountant
        shares = np.stack([self.share_of(row) for row in self.charges.T], axis=1)
        each = np.bincount(self.budgets.class_of_client, minlength=len(totals))
        self.given = Given(
            totals, np.maximum(each, 1e-300), totals[:, None] * shares, lasts,
            whole("initial_rounds", self.initial_rounds, 1, 10**9),
            usual if self.gamma is None else number("gamma", self.gamma, 0.0),
            number("length_scale", self.length_scale, 1e-6, 1e6),
            number("forgetting", self.forgetting, 1e-6, 0.999),
        )  # fmt: skip
        self.step = float(2 * np.log(len(self.budgets)) / np.sqrt(self.rounds))
        self.records: list[Record] = []
        self.radius: float | None = None
        """Lambda; None until the initial stage is over."""
        self.multipliers = np.ones(len(totals))
        """The sum of the multipliers per class."""
        self._allowance = totals / lasts

    def choose(self, context: Floats, left: Floats) -> Choice | None:
        """Try the levels in the initial stage; then draw one by its score."""
        del left  # what does not fit is capped by the caller
        context = np.clip(context, -LARGEST, LARGEST)
        self.keep(context)
        levels, turn = self.charges.shape[1], self.round // self.initial_rounds
        if turn < levels:
            return self.choice(turn, "trying out every level")
        if turn == levels:
            level = int(self._generator.integers(levels))
            return self.choice(level, "any level: estimating what budget is worth")
        if self.radius is None:
            self.radius = algorithms.radius(
                self.given, *algorithms.look_back(self.given, self.records)
            )
            self.multipliers = algorithms.first_multipliers(
                self._generator, self.radius, self.given.each
            )
        costs, multipliers = self.given.costs, self.multipliers
        mean = algorithms.predicted(self.given, self.records, context, self.round)
        beta = algorithms.scores(mean, self._allowance, costs, multipliers)
        chance = probabilities(beta, self.given.gamma)
        return self.drawn(chance, predicted=mean, price=-multipliers @ costs, score=beta)

    def learn(self, plan: Plan, reward: float | None) -> None:
        """Record what the round brought, and update the multipliers by what it cost."""
        context, level = self._contexts.pop(plan.round, np.zeros(0)), plan.level or 0
        if reward is not None:
            reward = min(max(reward, -LARGEST), LARGEST)
            self.records.append((plan.round, level, context, reward))
        if self.radius is not None and plan.round >= self._planned_from:
            self.update(level)

    def update(self, level: int) -> None:
        """Take one dual step, by what a round has cost."""
        slope, most = self.given.costs[:, level] - self._allowance, self.radius or 0.0
        self.multipliers = algorithms.dual_step(self.multipliers, slope, self.step, most)

    @property
    def _planned_from(self) -> int:
        """The first round after the initial stage."""
        return (self.levels + 1) * self.initial_rounds


@dataclass(kw_only=True, eq=False, repr=False)
class Repaired(BGTPlanner):
    """The planner with the paper's constants: A = 5, T0 = 5, s = 0.2, alpha = 0.001.

    All levels are tried in turn; then T0 rounds play levels at random, and the linear programme
    over these sets the radius. By default the dearest level costs an even share of 70 % of the
    rounds.
    """

    cheapest: float = 1.0
    skip: bool = False
    initial_rounds: int = 5

    label: ClassVar[str] = "paper, formulas repaired"
    forecasts: ClassVar[bool] = False
    remembers = (*BGTPlanner.remembers, "_trials")
    _fewest: ClassVar[float] = 0.7
    _tries: ClassVar[float] = np.inf
    _process: ClassVar[Mapping[str, Any]] = {"standardize": False, "noise": 0.1}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gamma is None:
            self.gamma = algorithms.gamma(self.levels, self.rounds, len(self.budgets))
        self.constrainer.step = float(2 * np.log(2) / np.sqrt(self.rounds))
        self._trials: list[tuple[Floats, float]] = []  # contexts, and squared errors

    def choose(self, context: Floats, left: Floats) -> Choice | None:
        """Draw any level in the second part of the initial stage; then plan as usual."""
        if not self._is_trial(self.round):
            return self._by_rewards(context, left)
        self.keep(context)
        first = int(self.skip)
        level = first + int(self._generator.integers(self.charges.shape[1] - first))
        return self.choice(level, "any level: estimating what budget is worth")

    def learn(self, plan: Plan, reward: float | None) -> None:
        """Teach the predictor, and update the price by what was spent."""
        level = plan.level or 0
        trial = self._is_trial(plan.round) and reward is not None and not plan.skip
        if trial:  # the error of the prediction made before the reward was seen
            context = self._contexts.get(plan.round, np.zeros(0))
            inputs = np.append(self._position[level], context)
            expected = float(self.process.predict(inputs, time=plan.round)[0])
            seen = min(max(reward or 0.0, -LARGEST), LARGEST)
            self._trials.append((context, (expected - seen) ** 2))
        super().learn(plan, reward)
        if trial and not self._is_trial(plan.round + 1):
            self._set_radius()
        self.constrainer.update(self._costs[:, level], self._allowance())

    def _grid(self, low: Floats, high: Floats, levels: int) -> Floats:
        """Return the paper's levels, evenly spaced."""
        return np.linspace(low, high, levels, axis=1)

    def _positions(self) -> tuple[Floats, Floats]:
        """Return the paper's raw index, 1 to A, and raw rewards."""
        levels = self.charges.shape[1]
        return np.arange(1.0, levels + 1), np.ones(levels)

    def _update_price(self, *_: Any) -> None:
        """Do nothing: the price takes one step per round, by what the round cost."""

    def _reward_unit(self) -> float:
        return 1.0

    def _is_trial(self, index: int) -> bool:
        """Whether a round belongs to the second part of the paper's initial stage."""
        first = self._tried * self.initial_rounds
        return first <= index < first + self.initial_rounds

    def _set_radius(self) -> None:
        """Set the paper's radius, from all rounds of its initial stage."""
        allowance = 1 / (self.expected(self.rounds) * self._unit)
        error, clients = float(np.mean([error for _, error in self._trials])), len(self.budgets)
        margin = algorithms.margin(error, self._tried, self.rounds, self.initial_rounds, clients)
        predicted = self._predict(np.stack([seen for seen, _ in self._trials]))
        limits = allowance + 2 * margin / self._unit
        best = algorithms.linear_programme(predicted, self._costs, limits)
        radius = max(best + margin, 0.0) / float(allowance.min())
        step = self.constrainer.step
        self.constrainer = Constrainer(resources=len(allowance), radius=radius, step=step)
