"""Between (epsilon, delta) and what adds up: reference values, safe sides, extremes, no loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
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
    renyi_capacity,
    renyi_epsilon,
    squares_capacity,
    squares_epsilon,
)

PAIRS: list[tuple[Callable[..., NDArray[np.float64]], Callable[..., NDArray[np.float64]]]] = [
    (gdp_capacity, gdp_epsilon),
    (renyi_capacity, renyi_epsilon),
    (filter_capacity, filter_epsilon),
    (squares_capacity, squares_epsilon),
]
EPSILONS = [1e-9, 1e-4, 0.01, 0.5, 1.0, 7.5, 20.0, 1e3, 1e5]
DELTAS = [5e-324, 1e-300, 1e-30, 1e-9, 1e-5, 0.1, 0.999]

quick = settings(deadline=None, derandomize=True, max_examples=30)
epsilons = st.floats(-2, 4).map(lambda power: 10.0**power)
deltas = st.floats(-12, -0.01).map(lambda power: 10.0**power)


# ---- with 60 digits


def exact_delta(epsilon: Any, mu: Any) -> Any:
    ratio, half = mpmath.mpf(epsilon) / mu, mpmath.mpf(mu) / 2
    root = mpmath.sqrt(2)
    return (
        mpmath.erfc((ratio - half) / root)
        - mpmath.exp(epsilon) * mpmath.erfc((ratio + half) / root)
    ) / 2


def too_small(epsilon: float, delta: float, capacity: float) -> Any:
    """By which share of itself a Gaussian capacity is too small; negative: it is too large."""
    mu = mpmath.sqrt(mpmath.mpf(capacity))
    found = exact_delta(epsilon, mu)
    slope = mu * mpmath.npdf(mpmath.mpf(epsilon) / mu - mu / 2) / found  # of log delta by log mu
    return 2 * mpmath.log(mpmath.mpf(delta) / found) / slope


ALL_EPSILONS = [*(10.0 ** (power / 2) for power in range(-18, 3)), 20.0, 600.0, 1e5]
ALL_DELTAS = [1e-100, *(10.0**power for power in range(-12, -1)), 0.5]


def test_delta_of_the_gaussian_mechanism_has_all_its_digits() -> None:
    generator = np.random.default_rng(0)
    low, width = generator.uniform(-4, 36, 400), 10.0 ** generator.uniform(-12, 2.6, 400)
    epsilons = width * (low + width / 2)
    with mpmath.workdps(60):
        for epsilon, mu in zip(epsilons.tolist(), width.tolist(), strict=True):
            if epsilon <= 0:
                continue
            exact = exact_delta(epsilon, mu)
            found = mpmath.mpf(float(gaussian_delta(epsilon, mu)))
            assert abs(found / exact - 1) < 2e-12  # a fifth of what is allowed for


@pytest.mark.parametrize("epsilon", ALL_EPSILONS)
def test_no_gaussian_capacity_is_too_large(epsilon: float) -> None:
    with mpmath.workdps(60):
        for delta in ALL_DELTAS:
            wrong = too_small(epsilon, delta, float(gdp_capacity(epsilon, delta)))
            assert 0 < wrong < 3e-11


@pytest.mark.parametrize("spent", [10.0**power for power in range(-20, 5, 2)])
def test_no_gaussian_reading_is_too_small(spent: float) -> None:
    with mpmath.workdps(60):
        mu = mpmath.sqrt(mpmath.mpf(spent))
        for delta in ALL_DELTAS:
            reading = float(gdp_epsilon(spent, delta))
            assert exact_delta(reading, mu) <= delta
            # Close: a little less epsilon, beside itself and beside mu, is not enough.
            less = mpmath.mpf(reading) * (1 - mpmath.mpf(10) ** -11) - mu * mpmath.mpf(10) ** -10
            assert less <= 0 or exact_delta(less, mu) > delta


def exact_offset(order: Any, delta: float) -> Any:
    a = mpmath.mpf(order)
    return mpmath.log1p(-1 / a) - (mpmath.log(mpmath.mpf(delta)) + mpmath.log(a)) / (a - 1)


@pytest.mark.parametrize("epsilon", ALL_EPSILONS[::2])
def test_no_capacity_by_renyi_orders_is_too_large(epsilon: float) -> None:
    with mpmath.workdps(60):
        for delta in [5e-324, *ALL_DELTAS[::3]]:
            exact = max((mpmath.mpf(epsilon) - exact_offset(a, delta)) / a for a in ORDERS)
            found = float(renyi_capacity(epsilon, delta))
            assert found <= max(exact, 0)
            scale = abs(mpmath.log(mpmath.mpf(delta))) + epsilon  # of the terms that cancel
            assert found >= exact * (1 - mpmath.mpf(10) ** -11) - scale * mpmath.mpf(10) ** -13
            if found > 0:
                reading = min(a * mpmath.mpf(found) + exact_offset(a, delta) for a in ORDERS)
                assert float(renyi_epsilon(found, delta)) >= reading


@pytest.mark.parametrize("epsilon", ALL_EPSILONS[::2])
def test_no_capacity_of_squares_is_too_large(epsilon: float) -> None:
    """Against the best of all orders, found with 60 digits; and by the theorem's own formula."""
    with mpmath.workdps(60):
        for delta in ALL_DELTAS[::3]:

            def allowed(power: Any, delta: float = delta) -> Any:
                a = 1 + mpmath.mpf(10) ** power
                return 2 * (mpmath.mpf(epsilon) - exact_offset(a, delta)) / a

            near = max((mpmath.mpf(step) / 10 for step in range(-60, 180)), key=allowed)
            for fine in (10**3, 10**5, 10**7):
                near = max((near + mpmath.mpf(i) / fine for i in range(-100, 101)), key=allowed)
            found, best = float(squares_capacity(epsilon, delta)), allowed(near)
            assert found <= best * (1 + mpmath.mpf(10) ** -12)  # of the search here
            assert found >= best * (1 - mpmath.mpf(10) ** -7)
            total = mpmath.mpf(float(filter_capacity(epsilon, delta)))
            root = mpmath.sqrt(-2 * mpmath.log(mpmath.mpf(delta)) * total)
            assert root + total / 2 <= mpmath.mpf(epsilon)
            assert float(filter_epsilon(float(total), delta)) >= root + total / 2


@pytest.mark.parametrize("spent", [1e-12, 1e-4, 0.05, 3.0, 1e3])
def test_no_reading_of_squares_is_too_small(spent: float) -> None:
    # At the order that was taken, which is sound like any other, no less than with 60 digits.
    taken: list[Any] = []
    real = conversions._best_order

    def recorded(bound: Any, delta: Any) -> Any:
        taken.append(real(bound, delta))
        return taken[-1]

    with pytest.MonkeyPatch.context() as patch, mpmath.workdps(60):
        patch.setattr(conversions, "_best_order", recorded)
        for delta in ALL_DELTAS:
            reading = float(squares_epsilon(spent, delta))
            order = float(taken[-1][0])
            exact = mpmath.mpf(order) * mpmath.mpf(spent) / 2 + exact_offset(order, delta)
            assert reading >= exact
            assert reading <= max(exact, 0) * (1 + mpmath.mpf(10) ** -11) + mpmath.mpf(10) ** -13
            capacity = float(squares_capacity(spent, delta))  # as an epsilon, here
            order = float(taken[-1][0])
            exact = 2 * (mpmath.mpf(spent) - exact_offset(order, delta)) / mpmath.mpf(order)
            assert capacity <= max(exact, 0)


def test_delta_of_the_gaussian_mechanism_at_the_ends() -> None:
    assert gaussian_delta([0.0, 1.0, 1e5], 0.0).tolist() == [0.0, 0.0, 0.0]
    assert float(gaussian_delta(1e5, 1e-3)) == 0.0
    assert float(gaussian_delta(0.0, 100.0)) == 1.0
    assert float(gaussian_delta(1e5, 1e4)) == 1.0  # e^epsilon would overflow
    assert 0 < float(gaussian_delta(1e5, 440.0)) < 1
    assert gaussian_delta([[1.0], [2.0]], [1.0, 2.0, 3.0]).shape == (2, 3)


def test_a_gaussian_release_that_delta_covers_reads_as_nothing() -> None:
    spent = 1e-12  # delta at epsilon 0 is about mu / sqrt(2 pi) = 4e-7
    assert float(gdp_epsilon(spent, 1e-6)) == 0.0
    assert float(gdp_epsilon(spent, 3e-7)) > 0.0
    assert float(gdp_epsilon(0.0, 1e-5)) == 0.0


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


@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.3])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 40.0])
def test_the_filter_solves_its_equation(epsilon: float, delta: float) -> None:
    s = float(filter_capacity(epsilon, delta))
    exact = math.sqrt(2 * math.log(1 / delta) * s) + s / 2
    assert exact <= epsilon
    assert exact == pytest.approx(epsilon, rel=1e-11)
    assert float(filter_epsilon(s, delta)) == pytest.approx(exact, rel=1e-12)
    assert float(filter_epsilon(s, delta)) > exact


def test_without_a_delta_there_is_no_capacity_and_no_reading() -> None:
    for epsilon in (gdp_epsilon, renyi_epsilon, filter_epsilon, squares_epsilon):
        assert epsilon([0.0, 1e-9, 4.0], 0.0).tolist() == [0.0, math.inf, math.inf]
    for capacity in (renyi_capacity, filter_capacity, squares_capacity):
        assert capacity([1.0, 9.0], 0.0).tolist() == [0.0, 0.0]
    assert gdp_epsilon([np.inf, 1.0], 0.9)[0] == math.inf
    assert squares_epsilon([0.0, np.inf], 1e-5).tolist() == [0.0, np.inf]


TERM, READING = 4e-15, 1e-13
