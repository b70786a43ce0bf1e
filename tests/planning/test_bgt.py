"""The planner as a whole: its levels, its two stages, the sign of its penalty."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bgtplanner.errors import ConfigError
from bgtplanner.paper.planners import Repaired
from bgtplanner.planning.bgt import BGTPlanner
from bgtplanner.planning.plan import Plan
from bgtplanner.privacy.budget import Budget, Budgets

BUDGET = Budget(10.0, 1e-5)


def played(policy: BGTPlanner, seed: int = 0, rounds: int = 10**6) -> list[Plan]:
    generator = np.random.default_rng(seed)
    plans: list[Plan] = []
    while len(plans) < rounds and (plan := policy.ask(generator.normal(size=2))) is not None:
        policy.tell(plan, float(0.01 * generator.normal()))
        plans.append(plan)
    return plans


# ---- levels


@pytest.mark.parametrize("kind", [BGTPlanner, Repaired])
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("cheapest", [0.25, 1.0])
def test_levels_reach_from_end_to_end(kind: Any, skip: bool, cheapest: float) -> None:
    budgets = Budgets.per_client([1.0, 10.0], 1e-5)
    planner = kind(budgets, rounds=100, min_rounds=70, levels=4, skip=skip, cheapest=cheapest)
    assert planner.charges.shape == (2, 4 + skip)
    for row, budget in zip(planner.charges, budgets.classes, strict=True):
        if skip:
            assert row[0] == 0.0
        real = row[int(skip) :]
        assert real[0] == pytest.approx(cheapest * planner.accountant.even_charge(budget, 100))
        assert real[-1] == pytest.approx(planner.accountant.even_charge(budget, 70))
        steps = np.diff(real) if kind is Repaired else real[1:] / real[:-1]
        np.testing.assert_allclose(steps, steps[0])


# ---- what it explains


@pytest.mark.parametrize("kind", [BGTPlanner, Repaired])
@pytest.mark.parametrize("skip", [False, True])
def test_what_it_says_adds_up(kind: type[BGTPlanner], skip: bool) -> None:
    options: dict[str, Any] = {"initial_rounds": 1, "min_rounds": 4, "cheapest": 0.5}
    budgets = Budgets.per_client([1.0, 10.0], 1e-5)
    planner = kind(budgets, rounds=30, skip=skip, gamma=5.0, **options)
    drawn = [plan for plan in played(planner) if plan.why.probability]
    assert drawn
    for plan in drawn:
        why = plan.why
        assert sum(why.probability) == pytest.approx(1.0)
        constant = np.array(why.score) - np.array(why.predicted) + np.array(why.price)
        np.testing.assert_allclose(constant, constant[0], atol=1e-9)
        assert why.charges == tuple(planner.charges.max(axis=0))
        assert int(np.argmax(why.probability)) == int(np.argmax(why.score))
        if skip:
            assert (why.predicted[0], why.price[0], why.charges[0]) == (0.0, 0.0, 0.0)
        assert (np.diff(why.price) >= 0).all()  # dearer levels are dearer


# ---- refusals


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("levels", 1001),
        ("min_rounds", 6),
        ("cheapest", 0.0),
        ("cheapest", float("nan")),
        ("initial_rounds", 0),
        ("gamma", -1.0),
        ("gamma", float("nan")),
        ("radius", -1.0),
        ("radius", float("nan")),
    ],
)
def test_bad_options_are_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name} = "):
        BGTPlanner(BUDGET, 3, **({"rounds": 5} | {name: value}))
