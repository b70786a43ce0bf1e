"""The baselines: their schedules, exactly."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from bgtplanner.errors import ConfigError
from bgtplanner.paper.baselines import Adap, Adpml
from bgtplanner.planning.plan import Plan
from bgtplanner.planning.policy import Policy
from bgtplanner.planning.schedules import (
    Early,
    Fixed,
    Hong,
    Late,
    Random,
    TwoPhase,
    Unlimited,
)
from bgtplanner.privacy.budget import Budget

BUDGET = Budget(10.0, 1e-5)
RULES = ["gaussian/gdp", "laplace/either"]


def played(policy: Policy, reward: float = 0.01) -> list[Plan]:
    plans = []
    while (plan := policy.ask()) is not None:
        policy.tell(plan, reward)
        plans.append(plan)
    return plans


def charges_of(policy: Policy) -> list[float]:
    return [plan.charge for plan in played(policy)]


# ---- uniform, fixed


@pytest.mark.parametrize("accountant", RULES)
def test_fixed_keeps_the_proportions_and_uses_the_budget_up(accountant: str) -> None:
    weights = [1.0, 0.0, 2.0, 5.0]
    policy = Fixed(BUDGET, 3, weights=weights, accounting=accountant)
    charges = np.array(charges_of(policy))
    np.testing.assert_allclose(charges / charges[0], weights, rtol=1e-9)
    assert policy.ledger.left().max() < 1e-4 * charges[0]


# ---- early, late


@pytest.mark.parametrize("accountant", RULES)
@pytest.mark.parametrize(
    ("rounds", "payments", "at"),
    [
        (100, 5, [0, 1, 5, 14, 38]),
        (12, 5, [0, 1, 2, 3, 6]),  # the first ones would fall into one round
        (3, 5, [0, 1, 2]),
    ],
)
def test_early_pays_equal_parts_soon(
    accountant: str, rounds: int, payments: int, at: list[int]
) -> None:
    policy = Early(BUDGET, 3, rounds=rounds, payments=payments, accounting=accountant)
    charges = np.array(charges_of(policy))
    assert np.flatnonzero(charges).tolist() == at
    np.testing.assert_allclose(charges[at], charges[0], rtol=1e-9)
    assert policy.share_left() == pytest.approx(0, abs=1e-4)


@pytest.mark.parametrize("accountant", RULES)
@pytest.mark.parametrize(
    ("rounds", "options", "shares"),
    [
        (10, {}, [0.06, 0, 0, 0, 0, 0, 0, 0.94 / 3, 0.94 / 3, 0.94 / 3]),
        (6, {"payments": 1, "first": 0.5}, [0.5, 0, 0, 0, 0, 0.5]),
        (6, {"payments": 2, "first": 0.0}, [0, 0, 0, 0, 0.5, 0.5]),
        (3, {}, [1 / 3, 1 / 3, 1 / 3]),  # there is no time before the last rounds
    ],
)
def test_late_saves_for_the_last_rounds(
    accountant: str, rounds: int, options: dict[str, Any], shares: list[float]
) -> None:
    policy = Late(BUDGET, 3, rounds=rounds, accounting=accountant, **options)
    charges = np.array(charges_of(policy))
    np.testing.assert_allclose(charges / charges.sum(), shares, rtol=1e-6)
    assert policy.share_left() == pytest.approx(0, abs=1e-4)


# ---- random


def test_random_draws_every_level_from_its_range() -> None:
    policy = Random(BUDGET, 3, rounds=100, seed=1)
    even = policy.accountant.even_charge
    np.testing.assert_allclose(
        policy.charges[0], np.linspace(even(BUDGET, 100), even(BUDGET, 70), 5), rtol=1e-12
    )
    plans = played(policy)
    assert {plan.level for plan in plans} == set(range(5))
    assert 70 <= len(plans) <= 100
    assert plans[0].why.probability == (0.2,) * 5


# ---- adpml


@pytest.mark.parametrize(
    ("shape", "lasts", "spent"), [("geometric", 7, 9.82), ("saturating", 4, 9.05)]
)
def test_adpml_taken_literally_is_over_after_a_few_rounds(
    shape: Any, lasts: int, spent: float
) -> None:
    policy = Adpml(BUDGET, 3, rounds=100, shape=shape, accounting="laplace/basic")
    charges = charges_of(policy)
    steps = np.arange(lasts)
    curve = 0.9**-steps if shape == "geometric" else 10 - 9 * 0.9**steps
    np.testing.assert_allclose(charges[:lasts], curve, rtol=1e-9)
    assert round(sum(charges[:lasts]), 2) == spent
    assert len(charges) == lasts + 1  # and one more with what is left
    assert charges[-1] == pytest.approx(10 - sum(charges[:lasts]))


# ---- adap


def test_adap_begins_with_six_times_the_clip() -> None:
    plan = Adap(BUDGET, 3, rounds=9, clip=2.0).ask()
    assert plan is not None
    assert plan.noise_std == pytest.approx(6.0 * 2.0)
    assert plan.noise_multiplier == pytest.approx(3.0)
    assert plan.charge == pytest.approx(1 / 9)


def test_adap_takes_less_noise_after_three_gains_in_a_row() -> None:
    policy = Adap(Budget(1000.0, 1e-5), 3, rounds=20, decay=0.5)
    noise = []
    for reward in (0.1, 0.1, 0.1, -0.1, 0.1, None, 0.1, 0.1, 0.1, 0.1):
        plan = policy.ask()
        assert plan is not None
        noise.append(plan.noise_std)
        policy.tell(plan, reward)
    assert noise == pytest.approx([6.0] * 3 + [3.0] * 6 + [1.5])
    assert policy._sigma == pytest.approx(0.75)


def test_the_clip_of_adap_follows_the_last_average() -> None:
    policy = Adap(BUDGET, 3, rounds=9, factor=2.0)
    for norm, clip in ((0.25, 0.5), (float("nan"), 0.5), (0.0, 0.5), (3.0, 6.0)):
        policy.saw(norm)
        plan = policy.ask()
        assert plan is not None
        assert plan.clip == clip
        assert plan.noise_std == pytest.approx(6.0 * clip)
        assert plan.charge == pytest.approx(1 / 9)
    again = Adap.from_state(policy.state_dict())
    assert again.clip == 6.0


def test_every_client_of_adap_can_have_a_clip_of_its_own() -> None:
    policy = Adap(BUDGET, 3, rounds=9, clip=2.0, factor=2.0)
    policy.saw(np.array([0.25, np.nan, 1e30]))
    for planner in (policy, Adap.from_state(json.loads(json.dumps(policy.state_dict())))):
        plan = planner.ask()
        assert plan is not None
        assert np.asarray(plan.clip)[:, 0] == pytest.approx([0.5, 2.0, 1e9])
        assert np.asarray(plan.noise_std)[:, 0] == pytest.approx([3.0, 12.0, 6e9])
        assert plan.charge == pytest.approx(1 / 9)  # the noise grows with the clip
        assert plan.noise_multiplier == pytest.approx(3.0)
        one = plan.of(0)
        assert (one.clip, one.noise_std) == pytest.approx((0.5, 3.0))
        planner.tell(plan)


# ---- refusals


def test_without_privacy_there_is_no_noise() -> None:
    plan = Unlimited(Budget(1.0, 1e-5), 3, rounds=2, clip=0.5).ask()
    assert plan is not None
    assert (plan.clip, plan.noise_multiplier, plan.noise_std) == (0.5, 0.0, 0.0)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (Fixed, "weights", [[1.0]]),
        (Fixed, "weights", [0.0, 0.0]),
        (Fixed, "weights", [1.0, -1.0]),
        (Early, "payments", 1.5),
        (Late, "payments", 0),
        (Late, "first", 1.0),
        (Hong, "decay", 1.0),
        (TwoPhase, "switch", float("nan")),
        (TwoPhase, "ratio", float("inf")),
        (Random, "levels", 1001),
        (Random, "min_rounds", 6),
        (Adpml, "smallest", 11.0),
        (Adpml, "rate", 0.0),
        (Adpml, "shape", "round"),
        (Adpml, "mode", "both"),
        (Adap, "noise_multiplier", 0.0),
        (Adap, "decay", 1.1),
        (Adap, "factor", 0.0),
        (Unlimited, "clip", float("nan")),
    ],
)
def test_bad_options_are_named(kind: Any, name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name} = "):
        kind(BUDGET, 3, **({} if kind is Fixed else {"rounds": 5}), **{name: value})
