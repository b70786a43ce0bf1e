"""Our numbers against those of dp-accounting, which were made by other people in another way.

Its exact Gaussian formulas and its Renyi accountant must agree with ours. Its privacy loss
distributions (PLD) are the tightest figures there are for charges fixed in advance: what we read
off may lie above them, for our rules also cover charges chosen as one goes along, but never below.
PLD figures are rounded up on a grid of losses and come out too large by up to a step of it (1e-3
here; for a step of 1e-5, which takes too long for all of them, the comparisons hold as well).
"""

from __future__ import annotations

import functools
import math
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting import gaussian_mechanism, pld, rdp
from dp_accounting.pld import privacy_loss_distribution

from bgtplanner.paper.accounting import client_level
from bgtplanner.planning.schedules import Uniform
from bgtplanner.privacy.accountants import ACCOUNTANTS, accountant_named, to_ticks
from bgtplanner.privacy.budget import Budget
from bgtplanner.privacy.conversions import (
    ORDERS,
    gdp_capacity,
    gdp_epsilon,
    renyi_capacity,
    renyi_epsilon,
)
from bgtplanner.privacy.privunit import epsilon_of

PLD_STEP = 1e-3
EPSILONS = [0.05, 1.0, 5.0, 10.0, 20.0, 60.0]
DELTAS = [1e-9, 1e-5, 1e-2]


def event(mechanism: str, multiplier: float, count: int) -> dp_accounting.DpEvent:
    kind = {"gaussian": dp_accounting.GaussianDpEvent, "laplace": dp_accounting.LaplaceDpEvent}
    return dp_accounting.SelfComposedDpEvent(kind[mechanism](multiplier), count)


def of_bits(releases: tuple[tuple[str, float, int], ...], delta: float) -> float:
    """The same for randomised bits: no release of a pure epsilon is worse than one.

    By their distributions, for dp-accounting's accountant takes a bit as one, however often it is
    composed.
    """
    found = privacy_loss_distribution.identity(PLD_STEP)
    for _, multiplier, count in releases:
        lie = 1 / (1 + math.exp(float(epsilon_of(0.5 / multiplier))))
        bit = privacy_loss_distribution.from_randomized_response(
            2 * lie, 2, value_discretization_interval=PLD_STEP
        )
        found = found.compose(bit.self_compose(count))
    return float(found.get_epsilon_for_delta(delta))


def binomial_delta(epsilon: float, pure: float, count: int) -> float:
    """Delta of randomised bits of one epsilon, exactly (Kairouz, Oh and Viswanath 2015)."""
    truth = 1 / (1 + math.exp(-pure))
    return sum(
        math.comb(count, right)
        * truth**right
        * (1 - truth) ** (count - right)
        * max(0.0, 1 - math.exp(epsilon - (2 * right - count) * pure))
        for right in range(count + 1)
    )


@functools.cache
def tight(releases: tuple[tuple[str, float, int], ...], delta: float) -> float:
    """Epsilon of all of these releases together, by their privacy loss distributions.

    No loss of a release of Laplace or PrivUnit exceeds its pure epsilon, so neither does the sum.
    """
    if releases[0][0] == "privunit":
        epsilon = of_bits(releases, delta)
    else:
        relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
        accountant = pld.PLDAccountant(relation, value_discretization_interval=PLD_STEP)
        for mechanism, multiplier, count in releases:
            accountant.compose(event(mechanism, multiplier, count))
        epsilon = float(accountant.get_epsilon(delta))
    pure = sum(
        number * (float(epsilon_of(0.5 / scale)) if kind == "privunit" else 1 / scale)
        for kind, scale, number in releases
    )
    return epsilon if releases[0][0] == "gaussian" else min(epsilon, pure)


# ---- equal


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_gaussian_capacity_is_the_exact_one(epsilon: float, delta: float) -> None:
    sigma = gaussian_mechanism.get_sigma_gaussian(epsilon, delta)
    ours = float(gdp_capacity(epsilon, delta))
    assert ours == pytest.approx(1 / sigma**2, rel=1e-9)
    assert ours < 1 / sigma**2  # rounded to the safe side


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("sigma", [0.2, 0.9, 4.0, 30.0])
def test_the_gaussian_reading_is_the_exact_one(sigma: float, delta: float) -> None:
    theirs = gaussian_mechanism.get_epsilon_gaussian(sigma, delta)
    assert float(gdp_epsilon(sigma**-2, delta)) == pytest.approx(theirs, rel=1e-9)


def test_our_renyi_orders_are_their_default_ones() -> None:
    np.testing.assert_allclose(rdp.RdpAccountant().orders, ORDERS, rtol=1e-12)


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize(("multiplier", "rounds"), [(1.0, 1), (5.0, 100), (0.7, 3), (60.0, 40)])
def test_the_renyi_rule_reads_what_their_accountant_reads(
    multiplier: float, rounds: int, delta: float
) -> None:
    accountant = rdp.RdpAccountant(ORDERS)
    accountant.compose(event("gaussian", multiplier, rounds))
    theirs = accountant.get_epsilon(delta)
    accountant = accountant_named("gaussian/rdp")
    spent = to_ticks(accountant.charge(multiplier)) * rounds
    assert float(accountant.epsilon([spent], delta)) == pytest.approx(theirs, rel=1e-6)
    assert float(renyi_epsilon(rounds / (2 * multiplier**2), delta)) == pytest.approx(
        theirs, rel=1e-6
    )


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("epsilon", EPSILONS[1:])
def test_the_renyi_capacity_is_what_their_accountant_just_allows(
    epsilon: float, delta: float
) -> None:
    rho = float(renyi_capacity(epsilon, delta))
    for share, below in ((1.0, True), (1 + 1e-6, False)):
        accountant = rdp.RdpAccountant(ORDERS)
        accountant.compose(dp_accounting.GaussianDpEvent(1 / math.sqrt(2 * rho * share)))
        assert (accountant.get_epsilon(delta) <= epsilon) == below


# ---- never below the tight figure


@pytest.mark.parametrize("rounds", [1, 10, 100, 400])
@pytest.mark.parametrize("epsilon", [1.0, 10.0])
@pytest.mark.parametrize(
    "name", [name for name, accountant in ACCOUNTANTS.items() if accountant.sound]
)
def test_a_spent_budget_is_never_more_than_it_says(name: str, epsilon: float, rounds: int) -> None:
    accountant, budget = accountant_named(name), Budget(epsilon, 1e-5)
    multiplier = float(accountant.noise_multiplier(accountant.even_charge(budget, rounds)))
    least = tight(((accountant.mechanism, multiplier, rounds),), budget.delta)
    rounding = PLD_STEP * (rounds if accountant.mechanism == "privunit" else 1)
    assert least <= epsilon + rounding
    if accountant.mechanism == "privunit":
        assert (
            binomial_delta(epsilon, accountant.even_charge(budget, rounds), rounds) <= budget.delta
        )
    # And not wastefully less, for the rules we use unless told otherwise.
    if name == "gaussian/gdp":
        assert least == pytest.approx(epsilon, abs=PLD_STEP)
    if name == "laplace/either":
        assert least >= epsilon * 0.7
    if name == "laplace/zcdp":
        assert least >= epsilon * 0.85


@pytest.mark.parametrize(
    "name", ["laplace/basic", "laplace/filter", "laplace/either", "laplace/zcdp"]
)
def test_uneven_laplace_charges_read_no_less_than_they_are(name: str) -> None:
    accountant = accountant_named(name)
    for releases in (((5.0, 10), (20.0, 100)), ((1.0, 2), (50.0, 1000)), ((0.4, 1), (3.0, 5))):
        spent = sum(accountant.sum_ticks(accountant.charge(x)) * count for x, count in releases)
        for delta in (1e-8, 1e-5, 1e-3):
            reading = float(accountant.epsilon(spent, delta))
            exact = tight(tuple(("laplace", x, count) for x, count in releases), delta)
            assert reading >= exact - PLD_STEP


@pytest.mark.parametrize("delta", [1e-8, 1e-5])
@pytest.mark.parametrize("blocks", [1, 8, 56])
@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_many_blocks_of_one_client_read_no_less_than_they_are(
    mechanism: str, blocks: int, delta: float
) -> None:
    found = client_level(mechanism, [20.0, 30.0], [[blocks], [2 * blocks]], delta)
    releases = tuple((mechanism, x, 3 * blocks) for x in (20.0, 30.0))
    exact = tight(releases, delta)
    assert found.epsilon >= exact - PLD_STEP
    assert found.epsilon <= exact * 1.25
    if mechanism == "gaussian":
        assert found.epsilon == pytest.approx(exact, abs=PLD_STEP)
    else:
        assert found.pure == pytest.approx(3 * blocks * (1 / 20 + 1 / 30))


# ---- the two neighbouring relations; their noise multipliers are over the clip

RELATIONS = dp_accounting.NeighboringRelation


@pytest.mark.parametrize("neighbours", ["replace-special", "replace-one"])
@pytest.mark.parametrize(("epsilon", "rounds"), [(1.0, 1), (10.0, 100), (0.3, 7)])
def test_gaussian_noise_is_enough_for_the_relation_that_it_is_for(
    neighbours: Any, epsilon: float, rounds: int
) -> None:
    """A planner's own noise over its own clip, read by theirs under both relations."""
    planner = Uniform(
        Budget(epsilon, 1e-5), 5, rounds=rounds, clip=0.25, trust="secagg", neighbours=neighbours
    )
    theirs = {
        name: pld.PLDAccountant(relation, value_discretization_interval=PLD_STEP)
        for name, relation in (
            ("replace-special", RELATIONS.REPLACE_SPECIAL),
            ("replace-one", RELATIONS.REPLACE_ONE),
        )
    }
    over_clip = set()
    while (plan := planner.ask()) is not None:
        over_clip.add(float(plan.noise_std) / float(plan.clip))
        planner.tell(plan)
    assert max(over_clip) < 1.001 * min(over_clip)  # the last round may take a few ticks more
    for accountant in theirs.values():
        accountant.compose(event("gaussian", min(over_clip), rounds))
    assert theirs[neighbours].get_epsilon(1e-5) == pytest.approx(epsilon, abs=2e-3)
    assert planner.ledger.epsilon_spent()[0] == pytest.approx(epsilon, rel=1e-6)
    (other,) = set(theirs) - {neighbours}
    ours = planner.ledger.epsilon_other_reading()[0]
    assert theirs[other].get_epsilon(1e-5) == pytest.approx(ours, abs=2e-3)
    promised = planner.accountant.other_promise(Budget(epsilon, 1e-5), neighbours)
    assert promised == pytest.approx(ours, rel=1e-6)


@pytest.mark.parametrize("name", ["gaussian/gdp", "gaussian/rdp"])
def test_the_other_reading_of_gaussian_noise_is_theirs(name: str) -> None:
    accountant = accountant_named(name)
    for multiplier, count in ((1.0, 1), (5.0, 40), (0.6, 3)):  # over the clip, against nothing
        spent = count * accountant.sum_ticks(accountant.charge(multiplier))
        ours = accountant.epsilon(spent, 1e-5, other_than="replace-special")
        assert ours is not None
        theirs: Any = pld.PLDAccountant(RELATIONS.REPLACE_ONE, value_discretization_interval=1e-3)
        theirs.compose(event("gaussian", multiplier, count))
        exact = float(theirs.get_epsilon(1e-5))
        if name == "gaussian/gdp":
            assert float(ours) == pytest.approx(exact, abs=2e-3)
        else:
            assert exact - 2e-3 <= float(ours) <= 1.25 * exact
            by_orders: Any = rdp.RdpAccountant(ORDERS, RELATIONS.ADD_OR_REMOVE_ONE)
            by_orders.compose(event("gaussian", multiplier / 2, count))
            assert float(ours) == pytest.approx(by_orders.get_epsilon(1e-5), rel=1e-6)


@pytest.mark.parametrize("name", ["laplace/basic", "laplace/filter", "laplace/zcdp"])
def test_the_other_reading_of_laplace_noise_is_no_less_than_theirs(name: str) -> None:
    """Theirs takes no replacements for Laplace noise: two clips apart is half the multiplier."""
    accountant = accountant_named(name)
    for multiplier, count in ((1.0, 1), (20.0, 60), (4.0, 10)):
        spent = count * accountant.sum_ticks(accountant.charge(multiplier))
        for neighbours, by in (("replace-special", 2.0), ("replace-one", 0.5)):
            ours = accountant.epsilon(spent, 1e-5, other_than=neighbours)  # type: ignore[arg-type]
            assert ours is not None
            exact = tight((("laplace", multiplier / by, count),), 1e-5)
            assert float(ours) >= exact - PLD_STEP * count
            if name == "laplace/basic":
                assert float(ours) == pytest.approx(count * by / multiplier, rel=1e-9)
    theirs: Any = pld.PLDAccountant(RELATIONS.REPLACE_SPECIAL)
    theirs.compose(event("laplace", 2.0, 1))
    planned = Uniform(
        Budget(0.5, 1e-5), 2, rounds=1, accounting="laplace/basic", clip=0.25, trust="secagg"
    ).ask()
    assert planned is not None
    assert float(planned.noise_scale) / float(planned.clip) == pytest.approx(2.0, rel=1e-9)
    assert theirs.get_epsilon(1e-9) == pytest.approx(0.5, abs=1e-3)
