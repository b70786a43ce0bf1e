"""Sums said in the shortest way: the same for the same sums, and exact when read again."""

from __future__ import annotations

import numpy as np
import pytest

from bgtplanner.privacy._book import Payment, Spending
from bgtplanner.privacy.accountants import TICK, accountant_named
from bgtplanner.privacy.budget import Budget, Budgets

RULE = accountant_named("laplace/either")
BUDGETS = Budgets((Budget(1.0), Budget(2.0), Budget(4.0)), np.array([0, 2, 2]))  # 1: nobody


def pay(spending: Spending, who: list[bool], ticks: int) -> None:
    spending.add(Payment.of(0, b"", np.array(who), np.asarray(ticks)))


def test_a_class_of_one_client_is_alike_whatever_it_pays() -> None:
    spending = Spending(RULE, BUDGETS)
    pay(spending, [True, False, False], 5)
    assert spending.alike
    assert spending.least_spent_by_class()[0].tolist() == [5, 0, 0]
    assert spending.everybody().tolist() == [True, False, True]
    assert Spending(RULE, BUDGETS, spending.spent()).alike
    assert spending.spent()[0].tolist() == [5, 0, 0]


def test_clients_that_have_become_alike_again_are_said_by_the_class() -> None:
    spending = Spending(RULE, BUDGETS)
    pay(spending, [False, True, False], 5)
    pay(spending, [True, False, False], 3)
    assert spending.least_spent_by_class()[0].tolist() == [3, 0, 0]
    assert spending.left_by_class().tolist() == [1 - 3 * TICK, 0.0, 4.0]
    by_class, sums = spending.shortest()
    assert (by_class, sums[0].tolist()) == (False, [3, 5, 0])
    assert sums.tolist() == spending.spent().tolist()
    pay(spending, [False, False, True], 5)
    assert not spending.alike
    by_class, sums = spending.shortest()
    assert (by_class, sums[0].tolist()) == (True, [3, 0, 5])
    assert sums.shape == (2, 3)


@pytest.mark.parametrize("who", [[False, True, False], [False, True, True], [True, True, True]])
def test_what_was_said_is_read_again(who: list[bool]) -> None:
    spending = Spending(RULE, BUDGETS)
    pay(spending, who, 2**40)
    by_class, sums = spending.shortest()
    again = Spending(RULE, BUDGETS).of_shortest(by_class, sums.ravel())
    assert again.alike is by_class
    assert again.spent().tolist() == spending.spent().tolist()
    assert again.left().tolist() == spending.left().tolist()
    pay(again, [True, False, True], 7)
    assert again.spent()[0].tolist() == (spending.spent()[0] + [7, 0, 7]).tolist()
    assert sums.tolist() == spending.shortest()[1].tolist()  # what was given is not written to


def test_what_was_said_of_equal_sums_is_the_same_however_they_came_about() -> None:
    whole, single = Spending(RULE, BUDGETS), Spending(RULE, BUDGETS)
    whole.add(Payment(0, b"", None, np.array([3, 4, 5]), by_class=True))
    for client, ticks in enumerate((3, 5, 5)):
        pay(single, [index == client for index in range(3)], ticks)
    assert whole.alike
    assert not single.alike
    for one, other in zip(whole.shortest(), single.shortest(), strict=True):
        assert np.array_equal(one, other)


def test_a_class_of_one_client_is_among_those_who_pay() -> None:
    spending = Spending(RULE, BUDGETS)
    for by_class in (True, False):
        columns = spending if by_class else spending.by_client()
        pays = columns.everybody()
        listed = columns.payment((0, b""), pays, np.array([3, 0, 5]), by_class=True)
        who, ticks = listed.over(3, BUDGETS.class_of_client)
        assert (who.tolist(), ticks.tolist()) == ([True, True, True], [3, 5, 5])
