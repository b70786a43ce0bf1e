"""Algorithms 1 to 3 as plain functions, played to the end beside the planner that calls them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from bgtplanner.paper import algorithms
from bgtplanner.paper.algorithms import Given, bgtplanner, main
from bgtplanner.paper.planners import AsPrinted
from bgtplanner.privacy.budget import Budgets

Floats = NDArray[np.float64]
T, LEVELS, T0 = 60, 3, 4


def seen(t: int) -> NDArray[np.float64]:
    return np.array([np.sin(t / 4), np.cos(t / 3)])


@pytest.mark.parametrize("epsilons", [[10.0] * 5, [3.0, 10.0, 10.0, 20.0]])
def test_a_whole_game_is_that_of_the_planner(epsilons: Sequence[float]) -> None:
    budgets = Budgets.per_client(epsilons, 1e-5)
    planner = AsPrinted(
        budgets, rounds=T, min_rounds=40, levels=LEVELS, initial_rounds=T0,
        accounting="laplace/basic", seed=3,
    )  # fmt: skip
    totals = np.array([budget.epsilon for budget in budgets.classes])
    each = np.bincount(budgets.class_of_client).astype(float)
    given = Given(
        totals, each, algorithms.budget_levels(totals, T, 40, LEVELS), T, T0,
        algorithms.gamma(LEVELS, T, len(epsilons)),
    )  # fmt: skip

    def play(t: int, level: int) -> float:
        return 0.05 / (1 + t / 20) + 0.01 * level

    draw = np.random.Generator(np.random.PCG64([3, AsPrinted._salt]))
    game = bgtplanner(given, draw, seen, play)
    plans = []
    for t, level, _, reward in game:
        plan = planner.ask(seen(t))
        assert plan is not None
        assert (plan.round, plan.level) == (t, level)
        if plan.why.score:
            means = algorithms.predicted(given, game[:t], seen(t), t)
            np.testing.assert_allclose(plan.why.predicted, means, rtol=0, atol=1e-9)
        planner.tell(plan, reward)
        plans.append(plan)
    assert len(plans) > 40
    assert sum(bool(plan.why.score) for plan in plans) > 20


def test_the_variance_is_that_of_the_joint_distribution() -> None:
    z, when = np.random.default_rng(0).normal(size=(6, 2)), np.arange(6.0)
    among = algorithms.kernel(z[:5], when[:5], z[:5], when[:5], 1.0, 0.01)
    near = algorithms.kernel(z[5:], when[5:], z[:5], when[:5], 1.0, 0.01)
    whole = np.block([[among + algorithms.SIGMA**2 * np.eye(5), near.T], [near, np.eye(1)]])
    expected = 1 / np.linalg.inv(whole)[-1, -1]
    assert algorithms.posterior_variance(near, among) == pytest.approx([expected])


def test_it_runs_on_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["round", "level", "epsilon", "RMSE"]
    assert 60 < len(lines) <= 101
    assert sum(float(line.split()[2]) for line in lines[1:]) == pytest.approx(50.0, abs=1.0)


@pytest.mark.parametrize("seed", range(20))
def test_prices_are_the_slopes_of_the_optimum(seed: int) -> None:
    generator = np.random.default_rng([seed, 1])
    rewards = generator.uniform(0, 1, (6, 4))
    costs = np.sort(generator.uniform(0.0, 1.0, (2, 4)), axis=1)
    costs[:, 0] = 0.0
    allowance = generator.uniform(0.1, 0.6, 2)
    found = algorithms.linear_programme(rewards, costs, allowance)
    steps = 1e-7 * np.eye(2)
    slopes = [
        (
            algorithms.linear_programme(rewards, costs, allowance + step)[0]
            - algorithms.linear_programme(rewards, costs, allowance - step)[0]
        )
        / 2e-7
        for step in steps
    ]
    np.testing.assert_allclose(found[1], slopes, atol=1e-6)
    assert (found[1] >= 0).all()
