"""What a plan says to each client, and what its numbers can and cannot be taken for."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bgtplanner.errors import ConfigError
from bgtplanner.planning.bgt import BGTPlanner
from bgtplanner.planning.plan import GROUPS, Plan, in_groups, noise_of
from bgtplanner.planning.schedules import Uniform
from bgtplanner.privacy.accountants import ACCOUNTANTS, TICK, accountant_named
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Ledger

EPSILONS = [1.0, 10.0, 10.0, 3.0]
CLIENTS = len(EPSILONS)
UNEQUAL = Budgets.per_client(EPSILONS, 1e-5)
NAMES = ("charge", "clip", "noise_multiplier", "noise_scale", "noise_std")


def asked(planner: Any) -> Plan:
    plan = planner.ask()
    assert plan is not None
    return plan


def column_of(plan: Plan, name: str) -> Any:
    return np.broadcast_to(getattr(plan, name), (len(plan.participants), 1))[:, 0]


# ---- whose numbers they are


@pytest.mark.parametrize(
    "accountant", [name for name, accountant in ACCOUNTANTS.items() if accountant.sound]
)
def test_each_client_has_its_own_clip_and_noise(accountant: str) -> None:
    plan = asked(Uniform(UNEQUAL, rounds=7, accounting=accountant, clip=0.5))
    alone = [
        asked(Uniform(Budget(epsilon, 1e-5), 1, rounds=7, accounting=accountant, clip=0.5))
        for epsilon in EPSILONS
    ]
    for name in NAMES:
        assert column_of(plan, name).tolist() == [getattr(own, name) for own in alone]
    for client, own in enumerate(alone):
        assert plan.of(client) == (True, *(getattr(own, name) for name in NAMES))
    assert plan.noise_std.shape == (CLIENTS, 1)
    assert plan.clip == 0.5


@pytest.mark.parametrize("trust", ["local", "secagg"])
def test_equal_budgets_have_plain_numbers(trust: Any) -> None:
    plan = asked(Uniform(Budget(5.0, 1e-5), 10**6, rounds=7, trust=trust))
    assert all(type(getattr(plan, name)) is float for name in NAMES)


def test_who_takes_no_part_has_infinite_noise() -> None:
    ledger = Ledger.in_memory(UNEQUAL, "laplace/basic")
    ledger.reserve(1.0, run="other", round=0, clients=[0])
    plan = asked(Uniform(ledger=ledger, rounds=3, clip=0.5))
    assert plan.participants.tolist() == [False, True, True, True]
    assert plan.of(0) == (False, 0.0, 0.5, math.inf, math.inf, math.inf)
    assert column_of(plan, "charge")[0] == 0
    assert np.isinf(column_of(plan, "noise_std")).tolist() == [True, False, False, False]
    assert np.isinf(column_of(plan, "noise_scale")).tolist() == [True, False, False, False]
    together = asked(Uniform(ledger=ledger, rounds=3, clip=0.5, trust="secagg"))
    assert together.of(0)[:4] == (False, 0.0, 0.0, math.inf)
    assert column_of(together, "clip")[0] == 0
    assert math.isfinite(float(together.noise_std))


@given(
    accountant=st.sampled_from(["gaussian/gdp", "laplace/basic"]),
    charges=st.lists(st.floats(1e-9, 1e4), min_size=1, max_size=5),
    clip=st.floats(1e-3, 1e3),
    about=st.sampled_from(
        [("local", "replace-one"), ("secagg", "replace-one"), ("secagg", "replace-special")]
    ),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_rounding_never_makes_a_release_cost_more(
    accountant: str, charges: list[float], clip: float, about: tuple[str, Any]
) -> None:
    """In exact arithmetic: what clip and noise really cost is no more than the whole ticks."""
    noise = noise_of(accountant_named(accountant), about[0], clip, np.array(charges), about[1])
    apart = 1 if about[1] == "replace-special" else 2
    power = 2 if accountant == "gaussian/gdp" else 1
    for charge, bound, scale in zip(charges, noise.clip, noise.scale, strict=True):
        cost = (apart * Fraction(bound) / Fraction(scale)) ** power
        assert cost <= math.ceil(charge / TICK) * Fraction(TICK)
        assert float(cost) == pytest.approx(charge, rel=1e-4)


def test_under_secure_aggregation_who_pays_less_clips_harder() -> None:
    plan = asked(Uniform(UNEQUAL, rounds=7, accounting="laplace/basic", clip=0.5, trust="secagg"))
    np.testing.assert_allclose(plan.clip, np.array([[0.05], [0.5], [0.5], [0.15]]), rtol=1e-12)
    assert plan.neighbours == "replace-special"
    assert plan.noise_std == pytest.approx(2**0.5 * 0.5 / (10 / 7))
    local = asked(Uniform(UNEQUAL, rounds=7, accounting="laplace/basic", clip=0.5))
    assert local.neighbours == "replace-one"
    assert 2 * plan.noise_std == np.min(local.noise_std)


# ---- rewards and contexts


@pytest.mark.parametrize(
    "context",
    [
        "1.5",
        [[1.0], [2.0, 3.0]],
        np.zeros((2, 2)),
        [10**400],
        [1.0, -math.inf],
        np.array(["2020-01-01"], dtype="datetime64[D]"),
    ],
)
def test_a_context_is_a_row_of_numbers(context: Any) -> None:
    planner = BGTPlanner(UNEQUAL, rounds=3)
    with pytest.raises(ConfigError, match=r"^context = .*: expected finite numbers, in one row$"):
        planner.ask(context)
    assert (planner.ledger.spent() == 0).all()
    assert planner.round == 0


# ---- charges in groups


@pytest.mark.parametrize("number", [1, 63, 64, 2000])
def test_in_groups_nobody_pays_more_than_its_own_charge(number: int) -> None:
    generator = np.random.default_rng(number)
    own = generator.permutation(np.repeat(10.0 ** generator.uniform(-5, 1, number), 2))
    clients = generator.random(2 * number) < 0.8
    clients[own.argmax()] = True
    charges, index = in_groups(own, clients)
    pays = charges[index]
    assert len(charges) <= 1 + GROUPS
    assert charges[0] == 0
    assert not pays[~clients].any()
    assert (pays <= own).all()
    most = own[clients].max()
    asked = clients & (own >= most / 1024)
    assert (pays[asked] >= (own if number <= GROUPS else 0.89 * own)[asked]).all()
    assert not pays[own < most / 1024].any()
    assert np.array_equal(pays[asked] > 0, own[asked] > 0)
