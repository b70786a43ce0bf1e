"""The planner as printed, beside a plain restatement of it, number by number.

The restatement below knows nothing of the package: one multiplier for each client, a matrix that
is inverted, a programme that is solved by its dual. It is given what was drawn at random (levels,
and the first multipliers), and nothing else.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bgtplanner.paper.algorithms import dual_step, first_multipliers
from bgtplanner.paper.planners import AsPrinted
from bgtplanner.planning.plan import Plan
from bgtplanner.privacy.budget import Budgets

Floats = NDArray[np.float64]

T, A, T0 = 100, 5, 5
S, ALPHA, SIGMA = 0.2, 0.001, 0.1
EQUAL = [10.0] * 943
UNEQUAL = [10.0, 3.0, 10.0, 10.0, 3.0, 20.0, 10.0]
DEAR = [4000.0] * 6  # so dear that the programme cannot afford the best levels


def near(round_: int) -> Floats:
    """Contexts that come back: the predictor has something to go by."""
    return 0.15 * np.array([math.sin(round_ / 4), math.cos(round_ / 3)])


def far(round_: int) -> Floats:
    """Singular values as on ML-100K: every round is a stranger."""
    return np.array([160.0, 60.0, 50.0, 40.0, 30.0]) + round_ * np.array([0.9, 0.5, 0.4, 0.2, 0.1])


def reward_of(level: int, round_: int) -> float:
    """Falls over the rounds, better for dearer levels, sometimes negative."""
    return 0.05 / (1 + round_ / 20) + 0.01 * level + 0.03 * math.sin(1.7 * round_)


class Game:
    """A whole game of a policy, with what it said and what it had after each round."""

    def __init__(self, epsilons: list[float], context: Any) -> None:
        budgets = Budgets.per_client(epsilons, 1e-5)
        self.policy = AsPrinted(
            budgets, rounds=T, min_rounds=70, accounting="laplace/basic", seed=2
        )
        self.class_of_client = budgets.class_of_client
        self.plans: list[Plan] = []
        self.first: Floats | None = None  # multipliers before the first of them was updated
        self.after: list[Floats] = []
        while (plan := self.policy.ask(context(len(self.plans)))) is not None:
            if self.first is None and plan.why.score:
                self.first = self.policy.multipliers[: len(budgets.classes)]
            self.policy.tell(plan, reward_of(plan.level or 0, plan.round))
            self.plans.append(plan)
            self.after.append(self.policy.multipliers[: len(budgets.classes)])
        self.levels = [plan.level or 0 for plan in self.plans]
        self.rewards = [reward_of(level, at) for at, level in enumerate(self.levels)]
        self.contexts = [context(at) for at in range(len(self.plans))]

    def by_class(self, each: Floats) -> Floats:
        """Sum over the clients of every class."""
        return np.bincount(self.class_of_client, weights=each)


def inverse_gap(scores: list[float], gamma: float) -> list[float]:
    best = max(range(len(scores)), key=scores.__getitem__)
    chances = [1 / (len(scores) + gamma * (scores[best] - score)) for score in scores]
    chances[best] = 1 - sum(chances[:best]) - sum(chances[best + 1 :])
    return chances


def margin(error: float, clients: int) -> float:
    return math.sqrt(A * error + 4 * math.log(T * clients) / T0)


def check(plan: Plan, means: Any, scores: list[float], clients: int) -> None:
    gamma = 2 * math.sqrt(A * T / ((clients + 2) * math.log(T)))
    np.testing.assert_allclose(plan.why.predicted, means, rtol=0, atol=1e-9)
    np.testing.assert_allclose(plan.why.score, scores, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(plan.why.probability, inverse_gap(scores, gamma), atol=1e-9)


GAMES = pytest.mark.parametrize(
    ("epsilons", "context"),
    [(EQUAL, near), (EQUAL, far), (UNEQUAL, near), (DEAR, near)],
    ids=["equal", "far", "unequal", "dear"],
)


def best_mixture(rewards: Floats, costs: Floats, limit: float) -> float:
    """Of one level's mixture for each row, by the dual: its least value lies at a breakpoint."""
    gaps = (rewards[:, :, None] - rewards[:, None, :]).ravel()
    with np.errstate(divide="ignore", invalid="ignore"):
        breaks = gaps / np.tile((costs[:, None] - costs).ravel(), len(rewards))
    tried = np.append(breaks[np.isfinite(breaks) & (breaks > 0)], 0.0)
    return float(
        min(price * limit + (rewards - price * costs).max(axis=1).mean() for price in tried)
    )


@GAMES
def test_every_number_of_a_game_as_printed(epsilons: list[float], context: Any) -> None:
    game = Game(epsilons, context)
    totals, clients = np.array(epsilons), len(epsilons)
    # C_u(a): evenly from epsilon / T to epsilon / T_min, both included.
    costs = np.stack([total / T + np.arange(A) / (A - 1) * (total / 70 - total / T)
                      for total in totals])  # fmt: skip
    every = np.array([[level, *x] for level, x in zip(game.levels, game.contexts, strict=True)])

    def mean(level: int, now: int, taught: int) -> float:
        seen, when = every[:taught], np.arange(taught)
        z = np.array([level, *game.contexts[now]])
        between = np.linalg.norm(seen[:, None] - seen[None], axis=2)
        matrix = (1 - ALPHA) ** (np.abs(when[:, None] - when) / 2)
        matrix = matrix * np.exp(-between / (2 * S**2)) + SIGMA**2 * np.eye(taught)
        row = (1 - ALPHA) ** (np.abs(now - when) / 2)
        row = row * np.exp(-np.linalg.norm(seen - z, axis=1) / (2 * S**2))
        return float(row @ np.linalg.inv(matrix) @ np.array(game.rewards[:taught]))

    assert game.levels[: A * T0] == [level for level in range(A) for _ in range(T0)]
    stage = range(A * T0, (A + 1) * T0)
    predicted = np.array([[mean(a, t, 30) for a in range(A)] for t in stage])
    error = np.mean([(predicted[t - 25, game.levels[t]] - game.rewards[t]) ** 2 for t in stage])
    slack = margin(float(error), clients)
    limit = totals.min() / T + 2 * slack
    optimum = best_mixture(predicted, costs[totals.argmax()], limit)  # the dearest client's binds
    radius = T / totals.min() * (optimum + slack)
    assert game.policy.radius == pytest.approx(radius, rel=1e-9)
    if epsilons is DEAR:
        assert optimum < predicted.max(axis=1).mean() - 1e-4

    assert game.first is not None
    assert 0 < game.first.sum() <= radius
    # Any split of a class's sum among its clients will do: nobody can see the difference.
    uneven = np.random.default_rng(0).uniform(0.5, 1.5, clients)
    shares = uneven / game.by_class(uneven)[game.class_of_client]
    multipliers = game.first[game.class_of_client] * shares
    step = 2 * math.log(clients) / math.sqrt(T)
    for t in range(30, len(game.plans)):
        means = [mean(a, t, t) for a in range(A)]
        scores = [means[a] - (totals / T - costs[:, a]) @ multipliers for a in range(A)]
        check(game.plans[t], means, scores, clients)
        np.testing.assert_allclose(game.plans[t].why.charges, costs.max(axis=0))
        slope = -(totals / T - costs[:, game.levels[t]])
        multipliers = multipliers * np.exp(-step * slope)
        multipliers *= min(1.0, radius / multipliers.sum())
        np.testing.assert_allclose(game.after[t], game.by_class(multipliers), rtol=1e-9)
    assert len(game.plans) >= 70


def test_a_step_of_the_paper_s_multipliers_is_the_minimiser_that_is_printed() -> None:
    """<slope, l> + B(l, before) / step over the ball, beside many other points of the ball."""
    generator, step = np.random.default_rng(1), 0.22
    for slope in ([0.3, 0.2], [-0.9, 0.1], [-0.5, -0.7]):  # the last two leave the ball
        before = np.array([2.0, 1.5])
        after = dual_step(before, np.array(slope), step, 4.0)

        def value(point: Floats, slope: Any = slope, before: Any = before) -> Any:
            divergence = (point * np.log(point / before) - point + before).sum(axis=-1)
            return point @ np.array(slope) + divergence / step

        assert after.sum() <= 4.0 * (1 + 1e-12)
        others = 4.0 * generator.dirichlet([1.0, 1.0, 1.0], 20_000)[:, :2]
        close = np.abs(after + generator.normal(0, 1e-3, (20_000, 2)))
        others = np.vstack([others, close[close.sum(axis=1) <= 4.0]])
        assert value(after) <= value(others).min() + 1e-12


def test_the_first_multipliers_of_the_paper_lie_anywhere_in_the_ball() -> None:
    """The flat distribution over the ball, summed by class: a Dirichlet of their numbers."""
    draw, each = np.random.default_rng(0), np.array([1.0, 2.0])
    found = [first_multipliers(draw, 5.0, each) / 5.0 for _ in range(4000)]
    # Means 1/4 and 2/4, variances m (1 - m) / 5: within seven standard errors.
    np.testing.assert_allclose(np.mean(found, axis=0), [0.25, 0.5], atol=7 * 0.224 / 4000**0.5)
    np.testing.assert_allclose(np.var(found, axis=0), [0.0375, 0.05], rtol=0.15)


def test_it_ends_with_all_of_the_budget_spent_and_no_more() -> None:
    game = Game(EQUAL, near)
    wished = [game.policy.charges[0, level] for level in game.levels]
    paid = [plan.charge for plan in game.plans]
    assert paid[:-1] == wished[:-1]  # only the last is capped
    assert sum(wished) > 10.0
    assert sum(paid) == pytest.approx(10.0, abs=1e-9)
    assert sum(paid) <= 10.0
