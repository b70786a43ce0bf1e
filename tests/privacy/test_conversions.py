"""Between (epsilon, delta) and what adds up: reference values, safe sides, extremes, no loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bgtplanner.privacy import conversions
from bgtplanner.privacy.conversions import (
    ORDERS,
    filter_capacity,
    filter_epsilon,
    gaussian_delta,
    gdp_capacity,
    gdp_epsilon,
    laplace_renyi_epsilon,
    renyi_capacity,
    renyi_epsilon,
)

# Capacities at delta = 1e-5, computed apart from this package to 7 digits.
GDP = {1.0: 0.0718514, 5.0: 1.2571832, 10.0: 4.0017827, 20.0: 11.8872107}
FILTER = {1.0: 0.0416399, 5.0: 0.8992470, 10.0: 3.1007105, 20.0: 9.8618378}
RENYI = {1.0: 0.0306, 5.0: 0.551, 10.0: 1.783, 20.0: 5.392}

PAIRS: list[tuple[Callable[..., NDArray[np.float64]], Callable[..., NDArray[np.float64]]]] = [
    (gdp_capacity, gdp_epsilon),
    (renyi_capacity, renyi_epsilon),
    (filter_capacity, filter_epsilon),
]
EPSILONS = [1e-9, 1e-4, 0.01, 0.5, 1.0, 7.5, 20.0, 1e3, 1e5]
DELTAS = [5e-324, 1e-300, 1e-30, 1e-9, 1e-5, 0.1, 0.999]

quick = settings(deadline=None, derandomize=True, max_examples=30)
epsilons = st.floats(-2, 4).map(lambda power: 10.0**power)
deltas = st.floats(-12, -0.01).map(lambda power: 10.0**power)


def phi(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


@pytest.mark.parametrize(
    ("function", "expected", "digits"),
    [(gdp_capacity, GDP, 6e-7), (filter_capacity, FILTER, 2e-6), (renyi_capacity, RENYI, 2e-3)],
)
def test_capacities_at_the_reference_points(
    function: Any, expected: dict[float, float], digits: float
) -> None:
    found = function(list(expected), 1e-5)
    np.testing.assert_allclose(found, list(expected.values()), rtol=digits)


def test_the_orders_are_the_usual_ones() -> None:
    usual = [1 + x / 10 for x in range(1, 100)] + list(range(11, 64)) + [128, 256, 512, 1024]
    assert ORDERS.dtype == np.float64
    np.testing.assert_allclose(ORDERS, usual, rtol=1e-15)


@pytest.mark.parametrize("mu", [0.01, 0.3, 1.0, 2.5, 6.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.01, 0.5, 3.0, 12.0])
def test_delta_of_the_gaussian_mechanism(mu: float, epsilon: float) -> None:
    plain = phi(mu / 2 - epsilon / mu) - math.exp(epsilon) * phi(-mu / 2 - epsilon / mu)
    assert float(gaussian_delta(epsilon, mu)) == pytest.approx(plain, rel=1e-9, abs=1e-16)


def test_delta_of_the_gaussian_mechanism_at_the_ends() -> None:
    assert gaussian_delta([0.0, 1.0, 1e5], 0.0).tolist() == [0.0, 0.0, 0.0]
    assert float(gaussian_delta(1e5, 1e-3)) == 0.0
    assert float(gaussian_delta(0.0, 100.0)) == 1.0
    assert float(gaussian_delta(1e5, 1e4)) == 1.0  # e^epsilon would overflow
    assert 0 < float(gaussian_delta(1e5, 440.0)) < 1
    assert gaussian_delta([[1.0], [2.0]], [1.0, 2.0, 3.0]).shape == (2, 3)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0, 100.0, 1e4])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.01, 0.5])
def test_a_gaussian_capacity_is_on_the_safe_side_and_close(epsilon: float, delta: float) -> None:
    capacity = float(gdp_capacity(epsilon, delta))
    assert float(gaussian_delta(epsilon, math.sqrt(capacity))) <= delta
    assert float(gaussian_delta(epsilon, math.sqrt(capacity * (1 + 1e-10)))) > delta


@pytest.mark.parametrize("spent", [1e-3, 0.05, 1.0, 4.0, 300.0, 1e5])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.001])
def test_a_gaussian_reading_is_on_the_safe_side_and_close(spent: float, delta: float) -> None:
    reading = float(gdp_epsilon(spent, delta))
    mu = math.sqrt(spent)
    assert reading > 0
    assert float(gaussian_delta(reading, mu)) <= delta
    assert float(gaussian_delta(reading * (1 - 1e-9), mu)) > delta


def test_a_gaussian_release_that_delta_covers_reads_as_nothing() -> None:
    spent = 1e-12  # delta at epsilon 0 is about mu / sqrt(2 pi) = 4e-7
    assert float(gdp_epsilon(spent, 1e-6)) == 0.0
    assert float(gdp_epsilon(spent, 3e-7)) > 0.0
    assert float(gdp_epsilon(0.0, 1e-5)) == 0.0


def test_no_epsilon_holds_for_gaussian_noise_without_a_delta() -> None:
    assert gdp_epsilon([0.0, 1e-9, 4.0], 0.0).tolist() == [0.0, math.inf, math.inf]
    assert gdp_epsilon([np.inf, 1.0], 0.9).tolist()[0] == math.inf
    assert renyi_epsilon([0.0, 1.0], 0.0).tolist() == [0.0, math.inf]
    assert filter_epsilon([0.0, 1.0], 0.0).tolist() == [0.0, math.inf]


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 5.0, 20.0])
def test_the_renyi_capacity_is_the_best_over_the_orders(epsilon: float) -> None:
    delta = 1e-6
    best = max(
        (epsilon - math.log1p(-1 / a) + math.log(delta * a) / (a - 1)) / a for a in ORDERS.tolist()
    )
    assert float(renyi_capacity(epsilon, delta)) == pytest.approx(best, rel=1e-11)
    assert float(renyi_capacity(epsilon, delta)) < best
    by_order = [
        a * best + math.log1p(-1 / a) - math.log(delta * a) / (a - 1) for a in ORDERS.tolist()
    ]
    assert float(renyi_epsilon(best, delta)) == pytest.approx(min(by_order), rel=1e-11)
    assert float(renyi_epsilon(best, delta)) > min(by_order)


def test_renyi_functions_take_other_orders() -> None:
    orders = np.array([2.0, 3.0])
    two = math.log1p(-1 / 2) - math.log(2e-5)
    three = math.log1p(-1 / 3) - math.log(3e-5) / 2
    expected = min(2 * 0.5 + two, 3 * 0.5 + three)
    assert float(renyi_epsilon(0.5, 1e-5, orders)) == pytest.approx(expected, rel=1e-12)
    capacity = max((12 - two) / 2, (12 - three) / 3)
    assert float(renyi_capacity(12.0, 1e-5, orders)) == pytest.approx(capacity, rel=1e-11)


def test_a_budget_too_small_for_the_orders_has_no_renyi_capacity() -> None:
    assert float(renyi_capacity(1e-9, 1e-300)) == 0.0
    assert float(renyi_capacity(1.0, 0.0)) == 0.0
    assert float(renyi_epsilon(1e-9, 0.9)) == 0.0  # never a negative epsilon


@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.3])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 40.0])
def test_the_filter_solves_its_equation(epsilon: float, delta: float) -> None:
    s = float(filter_capacity(epsilon, delta))
    exact = math.sqrt(2 * math.log(1 / delta) * s) + s / 2
    assert exact <= epsilon
    assert exact == pytest.approx(epsilon, rel=1e-11)
    assert float(filter_epsilon(s, delta)) == pytest.approx(exact, rel=1e-12)
    assert float(filter_epsilon(s, delta)) > exact


def test_the_filter_needs_a_delta() -> None:
    assert filter_capacity([1.0, 10.0], 0.0).tolist() == [0.0, 0.0]


def laplace_renyi_by_hand(pure: list[float], counts: list[int], delta: float) -> float:
    readings = []
    for a in ORDERS.tolist():
        total = 0.0
        for x, number in zip(pure, counts, strict=True):
            inside = a / (2 * a - 1) * math.exp((a - 1) * x)
            inside += (a - 1) / (2 * a - 1) * math.exp(-a * x)
            total += number * math.log(inside) / (a - 1)
        readings.append(total + math.log1p(-1 / a) - math.log(delta * a) / (a - 1))
    return min(readings)


def test_many_laplace_releases_by_their_renyi_curves() -> None:
    found = laplace_renyi_epsilon([0.1, 0.3], [200, 20], 1e-5)
    assert found == pytest.approx(laplace_renyi_by_hand([0.1, 0.3], [200, 20], 1e-5), rel=1e-12)
    assert isinstance(found, float)
    assert found < 200 * 0.1 + 20 * 0.3
    at_order_2 = math.log(2 / 3 * math.exp(0.5) + 1 / 3 * math.exp(-2 * 0.5))
    by_hand = 90 * at_order_2 + math.log(0.5) - math.log(2e-3)
    assert laplace_renyi_epsilon([0.5], [90], 1e-3, np.array([2.0])) == pytest.approx(
        by_hand, rel=1e-12
    )


def test_a_laplace_reading_is_at_most_the_sum_and_at_least_nothing() -> None:
    assert laplace_renyi_epsilon([0.5, 0.25], [1, 2], 1e-9) == 1.0
    assert laplace_renyi_epsilon([0.5], [2], 0.0) == 1.0
    assert laplace_renyi_epsilon([1e-6], [1], 0.999) == 0.0
    assert laplace_renyi_epsilon([700.0, 1e4], [1, 1], 1e-5) > 1e4  # e^(a x) would overflow


@pytest.mark.parametrize(("capacity", "reading"), PAIRS)
@given(epsilon=epsilons, delta=deltas, more=st.floats(1.001, 2.0))
@quick
def test_more_epsilon_or_delta_is_more_capacity(
    capacity: Any, reading: Any, epsilon: float, delta: float, more: float
) -> None:
    base = capacity(epsilon, delta)
    assert capacity(epsilon * more, delta) > base or base == 0
    larger = min(delta * more, 0.99)
    assert capacity(epsilon, larger) > base or base == 0 or larger <= delta
    assert reading(base * more, delta) > reading(base, delta) or base == 0


@pytest.mark.parametrize(("capacity", "reading"), PAIRS)
@given(epsilon=epsilons, delta=deltas)
@quick
def test_what_the_capacity_allows_reads_as_at_most_the_budget(
    capacity: Any, reading: Any, epsilon: float, delta: float
) -> None:
    most = capacity(epsilon, delta)
    assert reading(most, delta) <= epsilon
    # Close to it, unless the delta alone covers the release, or the orders do not reach.
    if epsilon >= 0.1 and delta <= 0.01 and capacity is not renyi_capacity:
        assert reading(most, delta) >= epsilon * (1 - 1e-8)


@pytest.mark.parametrize(("capacity", "reading"), PAIRS)
@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("delta", DELTAS)
def test_extreme_budgets_neither_warn_nor_break(
    capacity: Any, reading: Any, epsilon: float, delta: float
) -> None:
    most = float(capacity(epsilon, delta))
    assert 0 <= most < 1e6
    smallest = 2.0**-44  # less than a tick is less than any charge: it cannot be spent
    assert 0 <= float(reading(most, delta)) <= epsilon * (1 + 1e-9) or most < smallest
    assert math.isfinite(float(reading(1e6, delta)))


@pytest.mark.parametrize(("capacity", "reading"), PAIRS)
def test_arrays_are_answered_entry_by_entry(capacity: Any, reading: Any) -> None:
    epsilon, delta = np.array([[1.0], [4.0], [9.0]]), np.array([1e-3, 1e-6])
    both = capacity(epsilon, delta)
    assert both.shape == (3, 2)
    assert both.dtype == np.float64
    spent = reading(both, delta)
    assert spent.shape == (3, 2)
    for row in range(3):
        for column in range(2):
            assert both[row, column] == capacity(epsilon[row, 0], delta[column])
            assert spent[row, column] == reading(both[row, column], delta[column])
    assert capacity(1.0, 1e-5).shape == ()


def test_a_million_clients_take_as_many_steps_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    real = conversions.gaussian_delta

    def counted(epsilon: Any, mu: Any) -> Any:
        calls.append(np.size(mu))
        return real(epsilon, mu)

    monkeypatch.setattr(conversions, "gaussian_delta", counted)
    for function in (gdp_capacity, gdp_epsilon):
        calls.clear()
        function(1.0, 1e-5)
        one = len(calls)
        calls.clear()
        function(np.linspace(0.5, 2, 5000), 1e-5)
        assert len(calls) == one <= 200
        assert set(calls) == {5000}
