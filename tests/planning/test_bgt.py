"""The planner as a whole: its levels, its two stages, the sign of its penalty."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bgtplanner.errors import ConfigError
from bgtplanner.paper.algorithms import linear_programme
from bgtplanner.paper.planners import Repaired
from bgtplanner.planning.bgt import BGTPlanner
from bgtplanner.planning.plan import Plan
from bgtplanner.planning.predictor import Predictor
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


# ---- the paper


def test_the_radius_comes_from_all_rounds_of_the_initial_stage() -> None:
    """Errors are those of predictions made beforehand; the programme knows all 30 rewards."""
    planner = Repaired(BUDGET, 943, rounds=100, seed=3)
    before = Predictor(standardize=False, noise=0.1)
    generator = np.random.default_rng(0)
    contexts, errors, radii = [], [], []
    for at in range(30):
        context = 0.1 * generator.normal(size=2)
        plan = planner.ask(context)
        assert plan is not None
        reward = float(generator.normal())
        inputs = np.append(float(plan.level or 0) + 1, context)
        if at >= 25:
            contexts.append(context)
            errors.append((float(before.predict(inputs, time=at)[0]) - reward) ** 2)
        radii.append(planner.constrainer.radius)
        planner.tell(plan, reward)
        before.observe(inputs, time=at, reward=reward)
    margin = float(np.sqrt(5 * np.mean(errors) + 4 * np.log(100 * 943) / 5))  # eq. 9d
    asked = np.array([[level + 1.0, *context] for context in contexts for level in range(5)])
    predicted = before.predict(asked, time=30).reshape(5, 5)
    costs = planner.charges[0] / planner.charges[0, -1]
    limit = planner.charges[0, 0] / planner.charges[0, -1]  # an even share, in the dearest level
    best = linear_programme(
        predicted, costs[None], np.array([limit + 2 * margin / planner._unit[0]])
    )
    assert len(set(radii)) == 1  # not before the last of them was told
    expected = (best + margin) / limit
    assert planner.constrainer.radius == pytest.approx(expected, rel=1e-9)
    assert planner.constrainer.radius != pytest.approx(margin / limit, rel=0.01)


# ---- the default


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
