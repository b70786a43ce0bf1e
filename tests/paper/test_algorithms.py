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


def test_it_runs_on_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["round", "level", "epsilon", "RMSE"]
    assert 60 < len(lines) <= 101
    assert sum(float(line.split()[2]) for line in lines[1:]) == pytest.approx(50.0, abs=1.0)
