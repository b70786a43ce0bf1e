"""What a guarantee for single rows amounts to for the whole client."""

from __future__ import annotations

import numpy as np
import pytest

from bgtplanner.paper.accounting import Spent, client_level
from bgtplanner.privacy.accountants import accountant_named
from bgtplanner.privacy.conversions import squares_epsilon

PRIVUNIT = accountant_named("privunit/either")


def test_laplace_blocks_take_the_best_of_three_bounds() -> None:
    few = client_level("laplace", [2.0], [1], 1e-5)
    assert few == Spent(0.5, 0.5)
    many = client_level("laplace", [100.0] * 50, [20] * 50, 1e-5)
    assert many.pure == pytest.approx(10.0)
    assert many.epsilon == pytest.approx(float(squares_epsilon(0.1, 1e-5)), rel=1e-9)
    assert many.epsilon < 2


def test_a_row_that_privunit_turned_is_what_the_ledger_charges() -> None:
    found = client_level("privunit", [3.0], [1], 1e-5)
    assert found.pure == pytest.approx(
        float(accountant_named("privunit/either").charge(3.0)), rel=1e-9
    )
    assert found.epsilon == found.pure


def test_many_such_rows_are_bounded_by_their_squares() -> None:
    multipliers, blocks = np.array([20.0, 40.0]), np.array([300.0, 500.0])
    epsilons = PRIVUNIT.charge(multipliers)
    found = client_level("privunit", multipliers, blocks, 1e-5)
    assert found.pure == pytest.approx(float((blocks * epsilons).sum()), rel=1e-9)
    by_squares = float(squares_epsilon((blocks * epsilons**2).sum(), 1e-5))
    assert found.epsilon == pytest.approx(by_squares, rel=1e-9)
    assert found.pure is not None
    assert found.epsilon < found.pure / 2
