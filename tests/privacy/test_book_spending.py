"""A column a class while its clients are alike: the same sums as a column a client."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bgtplanner.privacy._book import Payment, Spending
from bgtplanner.privacy.accountants import CEILING, accountant_named
from bgtplanner.privacy.budget import Budget, Budgets

BASIC, EITHER = accountant_named("laplace/basic"), accountant_named("laplace/either")
ONE = 2**44
HEAD = (0, b"")
BUDGETS = Budgets((Budget(1.0), Budget(2.0), Budget(4.0)), np.array([0, 2, 2, 0]))  # 1: nobody


def by_class(*ticks: int) -> Payment:
    return Payment(*HEAD, None, np.array(ticks), by_class=True)


def by_client(who: list[bool], ticks: int | list[int]) -> Payment:
    return Payment.of(*HEAD, np.array(who), np.asarray(ticks))


def test_classes_begin_alike() -> None:
    spending = Spending(BASIC, BUDGETS)
    assert spending.alike
    assert spending.spent().tolist() == [[0, 0, 0, 0]]
    assert spending.left().tolist() == [1.0, 4.0, 4.0, 1.0]
    assert spending.left_by_class().tolist() == [1.0, 0.0, 4.0]
    assert spending.least_spent_by_class().tolist() == [[0, 0, 0]]


@pytest.mark.parametrize(
    ("payment", "spent"),
    [
        (by_client([True] * 4, 5), [5, 5, 5, 5]),
        (by_client([True, False, False, True], 5), [5, 0, 0, 5]),
        (by_client([True] * 4, [5, 6, 6, 5]), [5, 6, 6, 5]),
        (by_client([False, True, True, False], [1, 6, 6, 2]), [0, 6, 6, 0]),
        (by_class(5, 0, 6), [5, 6, 6, 5]),
        (by_class(0, 0, 6), [0, 6, 6, 0]),
    ],
)
def test_payments_of_whole_classes_leave_them_alike(payment: Payment, spent: list[int]) -> None:
    spending = Spending(BASIC, BUDGETS)
    spending.add(payment)
    assert spending.alike
    assert spending.spent().tolist() == [spent]
    assert spending.least_spent_by_class().tolist() == [[spent[0], 0, spent[1]]]


@pytest.mark.parametrize(
    ("payment", "spent"),
    [
        (by_client([True, False, False, False], 5), [5, 0, 0, 0]),
        (by_client([True] * 4, [5, 6, 6, 4]), [5, 6, 6, 4]),
        (by_class(5, 0, 6)._replace(clients=np.array([True, True, False, True])), [5, 6, 0, 5]),
    ],
)
def test_a_payment_that_splits_a_class_ends_that_for_good(
    payment: Payment, spent: list[int]
) -> None:
    spending = Spending(BASIC, BUDGETS)
    spending.add(payment)
    assert not spending.alike
    assert spending.spent().tolist() == [spent]
    assert spending.least_spent_by_class().tolist() == [
        [min(spent[0], spent[3]), 0, min(spent[1:3])]
    ]
    spending.add(by_class(1, 0, 2))
    assert not spending.alike
    assert spending.spent().tolist() == [[spent[0] + 1, spent[1] + 2, spent[2] + 2, spent[3] + 1]]
    assert not spending.by_client().alike


def test_sums_stop_at_the_ceiling() -> None:
    spending = Spending(EITHER, BUDGETS)
    for _ in range(3):
        spending.add(by_class(CEILING // 2, 0, ONE))
    assert spending.spent()[:, :2].tolist() == [[CEILING, 3 * ONE], [CEILING, 3 * ONE]]
    spending.add(by_client([True, False, False, False], CEILING))
    assert spending.spent()[:, 0].tolist() == [CEILING, CEILING]


def test_spent_is_a_copy() -> None:
    for payment in (by_class(1, 0, 2), by_client([True, False, False, False], 5)):
        spending = Spending(BASIC, BUDGETS)
        spending.add(payment)
        before = spending.spent()
        spending.spent()[:] = 99
        spending.least_spent_by_class()[:] = 99
        assert (spending.spent() == before).all()


def test_other_classes_are_alike_if_what_was_spent_is() -> None:
    spent = np.array([[5, 6, 6, 5]])
    assert Spending(BASIC, BUDGETS, spent).alike
    assert not Spending(BASIC, Budgets.same(Budget(1.0), 4), spent).alike
    assert Spending(BASIC, Budgets.same(Budget(1.0), 4), spent).spent().tolist() == [[5, 6, 6, 5]]
    nobody = Budgets((Budget(1.0),), np.zeros(0, np.int32))
    assert Spending(BASIC, nobody, np.zeros((1, 0), np.int64)).alike


def test_a_payment_is_said_in_the_shortest_way() -> None:
    clients = 1000
    classes = np.arange(clients) % 3
    spending = Spending(BASIC, Budgets((Budget(1.0), Budget(2.0), Budget(4.0)), classes))
    whole, single = spending, spending.by_client()

    def said(who: np.ndarray, ticks: np.ndarray) -> tuple[object, object, bool]:
        columns = whole if len(who) == 3 else single
        made = columns.payment(HEAD, who, ticks, by_class=bool(ticks.ndim))
        chosen, paid = made.over(clients, classes.astype(np.int32))
        expected = who[classes] if len(who) == 3 else who
        assert (chosen == expected).all()
        assert (np.broadcast_to(paid, clients) == np.broadcast_to(
            ticks[classes] if ticks.ndim else ticks, clients))[chosen].all()  # fmt: skip
        named = None if made.clients is None else "mask"
        return named, made.ticks.tolist(), made.by_class

    everybody, two = np.array([True] * 3), np.array([True, False, True])
    different, equal, one = np.array([5, 6, 7]), np.array([5, 5, 5]), np.asarray(5)
    assert said(everybody, different) == (None, [5, 6, 7], True)
    assert said(everybody, equal) == said(everybody, one) == (None, 5, False)
    assert said(two, different) == (None, [5, 0, 7], True)
    assert said(two, one) == said(two, equal) == (None, [5, 0, 5], True)
    assert said(two[classes], different) == (None, [5, 0, 7], True)
    split = two[classes] & (np.arange(clients) > 10)
    assert said(split, different) == ("mask", [5, 0, 7], True)
    assert said(split, equal) == said(split, one) == ("mask", 5, False)


def test_few_clients_are_named_by_a_bit_each() -> None:
    spending = Spending(BASIC, BUDGETS)
    columns = spending
    made = columns.payment(
        HEAD, np.array([True, False, False]), np.array([5, 0, 6]), by_class=True
    )
    assert made.clients is not None
    assert (made.clients.tolist(), made.ticks.tolist()) == ([True, False, False, True], 5)


payments = st.one_of(
    st.builds(lambda a, c: by_class(a, 0, c), st.integers(0, 9), st.integers(0, 9)),
    st.builds(by_client, st.lists(st.booleans(), min_size=4, max_size=4).filter(any),
              st.one_of(st.integers(1, 9), st.lists(st.integers(1, 9), min_size=4, max_size=4))),
)  # fmt: skip


@given(st.lists(payments, max_size=8))
@settings(deadline=None, derandomize=True, max_examples=80)
def test_the_sums_are_those_of_each_client_alone(made: list[Payment]) -> None:
    spending = Spending(EITHER, BUDGETS)
    spent = np.zeros((2, 4), np.int64)
    for payment in made:
        payment = payment._replace(ticks=payment.ticks * (ONE // 64))
        spending.add(payment)
        who, ticks = payment.over(4, BUDGETS.class_of_client)
        for client in np.flatnonzero(who):
            spent[:, client] += EITHER.sum_ticks(np.broadcast_to(ticks, 4)[client] / ONE)
        left = EITHER.largest_fitting(spent, spending.by_client().limits)
        assert (spending.spent() == spent).all()
        assert (spending.left() == left).all()
        assert spending.left_by_class().tolist() == [
            max(left[0], left[3]), 0.0, max(left[1], left[2])
        ]  # fmt: skip
        least = spending.least_spent_by_class().T.tolist()
        assert least[0] in (spent[:, 0].tolist(), spent[:, 3].tolist())
        if spending.alike:
            assert (spent[:, 0] == spent[:, 3]).all()
            assert (spent[:, 1] == spent[:, 2]).all()


@pytest.mark.parametrize(("clients", "classes_are_shorter"), [(127, False), (128, True)])
def test_classes_are_named_as_soon_as_that_takes_no_more_bytes(
    clients: int, classes_are_shorter: bool
) -> None:
    budgets = Budgets((Budget(1.0), Budget(2.0)), np.arange(clients) % 2)
    spending = Spending(BASIC, budgets)
    columns = spending
    made = columns.payment(HEAD, np.array([True, False]), np.asarray(5), by_class=True)
    assert made.by_class is classes_are_shorter
    assert (made.clients is None) is classes_are_shorter


def test_what_is_left_is_computed_once_for_each_row_and_cannot_be_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls, real = [], type(BASIC).largest_fitting

    def counted(*arguments: Any) -> Any:
        calls.append(1)
        return real(*arguments)

    monkeypatch.setattr(type(BASIC), "largest_fitting", counted)
    spending = Spending(BASIC, BUDGETS)
    spending.add(by_client([True, False, True, False], ONE // 2))
    spending.left()[:] = 0.0
    assert spending.left().tolist() == [0.5, 4.0, 3.5, 1.0]
    assert spending.left_by_class().tolist() == [1.0, 0.0, 4.0]
    assert spending.least_spent_by_class().tolist() == [[0, 0, 0]]
    assert len(calls) == 1
    spending.add(by_client([True, False, True, False], ONE // 4))
    assert spending.left().tolist() == [0.25, 4.0, 3.25, 1.0]
    assert len(calls) == 2
