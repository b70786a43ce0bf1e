"""What the table of rules says, and sums that are exact to the last tick."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from bgtplanner.privacy.accountants import (
    ACCOUNTANTS,
    CEILING,
    TICK,
    accountant_named,
    default_accountant,
    to_ticks,
)
from bgtplanner.privacy.budget import Budget

TABLE = {
    "gaussian/gdp": ("gaussian", True, (1,)),
    "gaussian/rdp": ("gaussian", True, (1,)),
    "laplace/basic": ("laplace", True, (1,)),
    "laplace/filter": ("laplace", True, (1,)),
    "laplace/either": ("laplace", True, (1, 2)),
    "privunit/either": ("privunit", True, (1, 2)),
    "gaussian/authors": ("gaussian", False, (1,)),
}


def test_every_rule_is_for_its_mechanism_and_says_whether_it_is_sound() -> None:
    found = {
        name: (accountant.mechanism, accountant.sound, accountant.powers)
        for name, accountant in ACCOUNTANTS.items()
    }
    assert {name: found[name] for name in TABLE} == TABLE
    assert [name for name, accountant in ACCOUNTANTS.items() if not accountant.sound] == [
        "gaussian/authors"
    ]


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace", "privunit"])
def test_the_rule_of_each_mechanism_is_a_sound_one_for_it(mechanism: str) -> None:
    accountant = default_accountant(mechanism)
    assert (accountant.mechanism, accountant.sound) == (mechanism, True)
    assert ACCOUNTANTS[accountant.name] is accountant


@pytest.mark.parametrize("epsilon", [1e5, 99999.9, 87654.3, 65537.1, 12345.6])
@pytest.mark.parametrize("rounds", [1, 2, 3, 5, 6, 7, 9, 13, 101])
def test_even_charges_fit_where_ticks_are_more_than_a_double_tells_apart(
    epsilon: float, rounds: int
) -> None:
    accountant, budget = accountant_named("laplace/basic"), Budget(epsilon)
    limit = int(accountant.limit_ticks(budget)[0])
    paid = int(to_ticks(accountant.even_charge(budget, rounds)))
    assert paid * rounds <= limit
    assert (paid + 2**9) * rounds > limit  # the next double, at most so many ticks further


def test_the_largest_charge_whose_square_fits_is_found_to_the_tick() -> None:
    accountant = accountant_named("laplace/either")
    squares = np.random.default_rng(0).integers(1, 2 ** np.arange(10, 60).repeat(40))
    limits = np.stack([np.zeros_like(squares), squares])
    spent = np.zeros_like(limits)
    largest = accountant.largest_fitting(spent, limits)
    assert (largest > 0).all()
    assert accountant.fits(spent, accountant.sum_ticks(largest), limits).all()
    assert not accountant.fits(spent, accountant.sum_ticks(largest + TICK), limits).any()


def test_a_rule_cannot_be_bent() -> None:
    with pytest.raises(FrozenInstanceError):
        accountant_named("gaussian/gdp").sound = False  # type: ignore[misc]


def test_the_most_that_can_be_charged_and_the_least() -> None:
    assert int(to_ticks(CEILING * TICK)) == CEILING
    assert int(to_ticks(TICK)) == 1
    assert int(to_ticks(np.nextafter(TICK, 1))) == 2
