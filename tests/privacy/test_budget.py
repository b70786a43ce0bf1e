"""Budgets: what they accept, how clients fall into classes, and what is refused in which words."""

from __future__ import annotations

import numpy as np
import pytest

from bgtplanner.privacy.budget import Budget, Budgets
from privacy.ledgers import refused

EPSILON = "a number from 1e-9 to 100,000"
DELTA = "a number from 0 to below 1"
SHARES = "EPSILON:SHARE,... with shares that sum to 1, such as 1:0.2,5:0.3,10:0.5"


def test_what_is_no_number_is_refused() -> None:
    for value, shown in [("ten", "'ten'"), (None, "None"), (1j, "1j"), ([1], "[1]")]:
        with refused(f"epsilon = {shown}: expected {EPSILON}"):
            Budget(value)  # type: ignore[arg-type]
        with refused(f"delta = {shown}: expected {DELTA}"):
            Budget(1.0, value)  # type: ignore[arg-type]
    with refused(f"epsilon = a huge number: expected {EPSILON}"):
        Budget(10**5000)


def test_equal_epsilons_become_one_class() -> None:
    budgets = Budgets.per_client([5.0, 1.0, 5.0, 2.0, 1.0], delta=1e-6)
    assert budgets.classes == (Budget(1.0, 1e-6), Budget(2.0, 1e-6), Budget(5.0, 1e-6))
    assert budgets.class_of_client.tolist() == [2, 0, 2, 1, 0]


def test_shares_are_dealt_exactly_and_at_random() -> None:
    budgets = Budgets.shares("1:0.2,5:0.3,10:0.5", clients=1000, delta=1e-6, seed=3)
    assert budgets.classes == (Budget(1.0, 1e-6), Budget(5.0, 1e-6), Budget(10.0, 1e-6))
    assert np.bincount(budgets.class_of_client).tolist() == [200, 300, 500]
    assert (np.diff(budgets.class_of_client) < 0).any()  # not in order
    again = Budgets.shares("1:0.2,5:0.3,10:0.5", clients=1000, delta=1e-6, seed=3)
    assert budgets == again
    assert budgets != Budgets.shares("1:0.2,5:0.3,10:0.5", clients=1000, delta=1e-6, seed=4)
    # Part of what is stored with a run: the deal for a seed never changes.
    few = Budgets.shares("1:0.5,2:0.5", clients=8, delta=1e-6, seed=1)
    assert few.class_of_client.tolist() == [1, 0, 0, 0, 1, 0, 1, 1]


@pytest.mark.parametrize(
    "text",
    ["", "1", "1:", "1:0.5", "1:0.5:2,2:0.5", "a:1", "1:a", "1:0.5;2:0.5", "1:1.5,2:-0.5",
     "1:0,2:1", "1:nan", "1:1.1", "1:0.5,2:0.49", "1:0.5,2:0.500001"],
)  # fmt: skip
def test_shares_that_do_not_read_as_such_are_refused(text: str) -> None:
    with refused(f"budgets = {text!r}: expected {SHARES}"):
        Budgets.shares(text, 10, delta=1e-5, seed=0)


def test_classes_and_indices_must_match() -> None:
    one = (Budget(1.0),)
    with refused("classes = (): expected at least one budget"):
        Budgets((), np.zeros(0, dtype=np.int32))
    for index in ([-1], [1], [0, 0, 1]):
        with refused("class_of_client = 'an index': expected indices below 1"):
            Budgets(one, np.asarray(index))
    assert len(Budgets(one, np.zeros(0, dtype=np.int32))) == 0
    two = Budgets((Budget(1.0), Budget(2.0)), np.asarray([1, 0]))
    assert two.class_of_client.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("name", "good", "bad", "expected"),
    [
        ("epsilon", [1e-9, 1.0, 1e5], [0.0, -1.0, np.nextafter(1e-9, 0), np.nextafter(1e5, 1e6),
                                       np.inf, -np.inf, np.nan], EPSILON),
        ("delta", [0.0, 5e-324, 0.999, np.nextafter(1, 0)], [-5e-324, 1.0, 2.0, np.inf, np.nan],
         DELTA),
    ],
)  # fmt: skip
def test_both_ranges_and_their_ends(
    name: str, good: list[float], bad: list[float], expected: str
) -> None:
    for value in good:
        assert getattr(Budget(**{"epsilon": 1.0} | {name: value}), name) == value
    for value in map(float, bad):
        with refused(f"{name} = {value!r}: expected {expected}"):
            Budget(**{"epsilon": 1.0} | {name: value})
