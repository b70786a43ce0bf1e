"""The paper's planner with every step as in the authors' published code.

It is for comparison, not for use: ``--policy benchmarks.paper.as_coded:AsCoded`` from a checkout.
It differs from the text (:class:`bgtplanner.paper.planners.AsPrinted`) in these places:

==================  ======================================  =====================================
what                as printed                              as coded
==================  ======================================  =====================================
levels              A, from epsilon/T up to epsilon/T_min   the same range in A steps, without
                                                            its upper end
initial stage       from the cheapest level up              from the dearest level down
kernel              exp(-|z - z'| / (2 s^2))                exp(-|z - z'|^2 / (2 s^2))
age of a record     in rounds                               in records told since
noise of a reward   sigma^2 on the diagonal                 sigma^2 in every entry
mean                as it is                                rounded to 4 decimals
E(T0)               of a predictor that was taught all      of one that was taught the round in
                    of the initial stage                    question and those before it
programme           a mixture of levels for each of T0      every level taken or not in each of
                    contexts, by its mean cost              T0 rounds, by the sum of their costs;
                                                            A predictions of the first rounds
multipliers         in the ball of radius Lambda; at        on the simplex, with a slack; at
                    first anywhere in it                    first all equal; Lambda is left out
allowance           epsilon/T                               what the initial stage has left over
                                                            the number of rounds after it
score               mean - (allowance - cost) lambda        mean + (allowance - cost) lambda
slope of the dual   cost - allowance                        allowance - cost
==================  ======================================  =====================================

The authors' code checks the budget after the round and overspends; here, too, the ledger refuses
what does not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.special import softmax

from bgtplanner.paper.algorithms import SIGMA, Record, kernel, margin, radius, scores
from bgtplanner.paper.planners import LARGEST, AsPrinted
from bgtplanner.planning.allocator import probabilities
from bgtplanner.planning.arguments import Floats
from bgtplanner.planning.policy import Choice


@dataclass(kw_only=True, eq=False, repr=False)
class AsCoded(AsPrinted):
    """Every step as in the authors' published code.

    The code has one budget only. Where budgets differ, each class has its own cost and allowance,
    and the programme limits every class by the smallest budget, as in the text.

    Example:
        >>> from bgtplanner import Budget
        >>> planner = AsCoded(Budget(10, 1e-5), clients=943, rounds=3, seed=0)
        >>> plan = planner.ask([160.0, 60.0])
        >>> plan.level, plan.why.note
        (4, 'trying out every level')
    """

    _fewest: ClassVar[float] = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        steps = np.arange(self.levels) / self.levels
        self.charges = self._even[:, None] + np.outer(self._dearest - self._even, steps)
        shares = np.stack([self.share_of(row) for row in self.charges.T], axis=1)
        self.given = self.given._replace(costs=self.given.totals[:, None] * shares)

    def choose(self, context: Floats, left: Floats) -> Choice | None:
        """Try the levels from the dearest down; then draw one by its score."""
        del left
        self.keep(context := np.clip(context, -LARGEST, LARGEST))
        levels, turn = self.charges.shape[1], self.round // self.initial_rounds
        if turn < levels:
            return self.choice(levels - 1 - turn, "trying out every level")
        if turn == levels:
            level = int(self._generator.integers(levels))
            return self.choice(level, "any level: estimating what budget is worth")
        if self.radius is None:
            self._begin()
        costs, multipliers = self.given.costs, self.multipliers[: len(self.given.totals)]
        mean = self._after(self.records, context)
        beta = scores(mean, self._allowance, costs, multipliers, sign=1.0)
        chance = probabilities(beta, self.given.gamma)
        return self.drawn(chance, predicted=mean, price=multipliers @ costs, score=beta)

    def update(self, level: int) -> None:
        """Take one step on the simplex, by what a round has cost."""
        slope = self._allowance - self.given.costs[:, level]
        logs = np.log(np.maximum(self.multipliers, 1e-300))
        self.multipliers = np.asarray(softmax(logs - self.step * np.append(slope, 0.0)))

    def _after(self, records: Sequence[Record], context: Floats) -> Floats:
        """Predict from some records, for the round that comes right after them."""
        levels = np.arange(float(self.charges.shape[1]))
        if not records:
            return np.zeros(len(levels))
        z = np.stack([np.append(float(level), x) for _, level, x, _ in records])
        asked = np.column_stack([levels, np.tile(context, (len(levels), 1))])
        when, now = np.arange(float(len(records))), np.full(len(levels), float(len(records)))
        among, near = (
            kernel(inputs, at, z, when, self.given.s, self.given.alpha, power=2)
            for inputs, at in ((z, when), (asked, now))
        )
        rewards = np.array([one[3] for one in records])
        return np.asarray(np.round(near @ np.linalg.solve(among + SIGMA**2, rewards), 4))

    def _look_back(self) -> tuple[float, float]:
        def expected(at: int) -> float:
            """Return the prediction for a round that the predictor was just taught."""
            _, level, context, _ = self.records[at]
            return float(self._after(self.records[: at + 1], context)[level])

        predicted = np.zeros(self.charges.shape[1])
        bound = self._planned_from - self.initial_rounds
        rounds = [int(one[0]) for one in self.records]
        errors = [
            expected(at) - self.records[at][3]
            for at, round_ in enumerate(rounds)
            if bound <= round_ < self._planned_from
        ]
        error = float(np.sum(np.square(errors))) / self.initial_rounds
        clients = float(self.given.each.sum())
        slack = margin(error, len(predicted), self.given.T, self.given.T0, clients)
        first = [at for at, round_ in enumerate(rounds) if round_ < bound][: len(predicted)]
        predicted[: len(first)] = [expected(at) for at in first]
        limit = self.given.totals.min() / self.given.T + 2 * slack
        return _yes_or_no(predicted, self.given.costs, limit, self.initial_rounds), slack

    def _begin(self) -> None:
        self.radius = radius(self.given, *self._look_back())  # the code does not use it
        rounds_left = self.expected(self.rounds - self._planned_from)
        self._allowance = self.share_left() * self.given.totals / rounds_left
        self.multipliers = np.append(self.given.each, 1.0) / (self.given.each.sum() + 1)


def _yes_or_no(predicted: Floats, costs: Floats, limit: float, rounds: int) -> float:
    """Return the best mean reward of rounds in each of which every level is taken or not.

    The predicted reward and the cost of a level are the same in all rounds, so what matters is in
    how many rounds it is taken: a whole number per level.
    """
    unit = float(np.abs(predicted).max()) or 1.0
    found = milp(
        -predicted / unit,
        integrality=np.ones(len(predicted)),
        bounds=Bounds(0, rounds),
        constraints=LinearConstraint(costs, ub=limit),
        options={"mip_rel_gap": 0.0},
    )
    if found.x is None:
        return 0.0
    return float(predicted @ np.rint(found.x) / rounds)
