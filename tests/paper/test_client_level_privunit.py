"""Rows that PrivUnit turned, each on its own: the client's epsilon, by what a ledger charges."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bgtplanner.paper.accounting import client_level
from bgtplanner.privacy.accountants import accountant_named
from bgtplanner.privacy.conversions import filter_epsilon

RULE = accountant_named("privunit/either")


def test_a_single_row_is_what_the_ledger_charges() -> None:
    found = client_level("privunit", [3.0], [1], 1e-5)
    assert found.pure == pytest.approx(float(RULE.charge(3.0)), rel=1e-9)
    assert found.epsilon == found.pure


def test_many_rows_are_bounded_by_their_squares() -> None:
    multipliers, blocks = np.array([20.0, 40.0]), np.array([300.0, 500.0])
    epsilons = RULE.charge(multipliers)
    found = client_level("privunit", multipliers, blocks, 1e-5)
    assert found.pure == pytest.approx(float((blocks * epsilons).sum()), rel=1e-9)
    by_filter = float(filter_epsilon((blocks * epsilons**2).sum(), 1e-5))
    assert found.epsilon == pytest.approx(by_filter, rel=1e-9)
    assert found.pure is not None
    assert found.epsilon < found.pure / 2


def test_without_a_delta_the_sum_is_all_there_is() -> None:
    found = client_level("privunit", [20.0], [300], 0.0)
    assert found.epsilon == found.pure
    assert math.isfinite(found.epsilon)
