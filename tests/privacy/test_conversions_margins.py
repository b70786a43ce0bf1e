"""Every conversion leaves the margin that its rounding needs, on the safe side, and no more.

The margins are the ones that the module states: 4e-15 of the sizes of the terms that are added up,
and 1e-13 of a reading. Orders and budgets are such that nothing else hides them; what is exact is
computed with 60 digits.
"""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest

from bgtplanner.privacy import conversions
from bgtplanner.privacy.conversions import (
    filter_capacity,
    filter_epsilon,
    gaussian_delta,
    laplace_renyi_epsilon,
    renyi_capacity,
    renyi_epsilon,
    squares_capacity,
    squares_epsilon,
)

TERM, READING = 4e-15, 1e-13
TWO = np.array([2.0])


@pytest.fixture(autouse=True)
def digits() -> Any:
    with mpmath.workdps(60):
        yield


@pytest.fixture
def order_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversions, "_best_order", lambda bound, delta: TWO)


def offset(order: float, delta: float) -> tuple[Any, float]:
    """What turns a divergence into epsilon, exactly; and how large its terms are."""
    a, log = mpmath.mpf(order), mpmath.log
    parts = log(1 - 1 / a), log(a) / (a - 1), (log(mpmath.mpf(delta)) + log(a)) / (a - 1)
    return parts[0] - parts[2], float(sum(abs(part) for part in parts))


@pytest.mark.parametrize(("order", "delta"), [(1.1, 0.9), (1.1, 1e-5), (2.0, 0.3), (64.0, 1e-9)])
def test_the_error_of_an_offset_is_in_proportion_to_all_of_its_terms(
    order: float, delta: float
) -> None:
    found, error = conversions._renyi_offset(np.asarray(delta), np.array([order]))
    exact, sizes = offset(order, delta)
    assert float(error[0]) == pytest.approx(TERM * sizes, rel=1e-9, abs=0)
    assert abs(mpmath.mpf(float(found[0])) - exact) < float(error[0]) / 4


@pytest.mark.usefixtures("order_of_two")
@pytest.mark.parametrize("name", ["renyi", "squares"])
def test_a_capacity_is_smaller_by_the_rounding_of_its_terms(name: str) -> None:
    exact, sizes = offset(2.0, 1e-5)
    epsilon = float(exact) + 1e-6  # nearly all of it cancels
    rho = (mpmath.mpf(epsilon) - exact) / 2
    if name == "renyi":
        found = mpmath.mpf(float(renyi_capacity(epsilon, 1e-5, TWO)))
    else:
        found = mpmath.mpf(float(squares_capacity(epsilon, 1e-5))) / 2
    assert float(rho - found) == pytest.approx(TERM * (sizes + epsilon) / 2, rel=0.12, abs=0)


@pytest.mark.usefixtures("order_of_two")
@pytest.mark.parametrize("name", ["renyi", "squares"])
def test_a_reading_is_larger_by_the_rounding_of_its_terms(name: str) -> None:
    exact, sizes = offset(2.0, 0.9)
    spent = float(-exact / 2) + 1e-6
    if name == "renyi":
        found = float(renyi_epsilon(spent, 0.9, TWO))
    else:
        found = float(squares_epsilon(2 * spent, 0.9))
    margin = float(found - (2 * mpmath.mpf(spent) + exact))
    assert margin == pytest.approx(TERM * (sizes + 2 * spent), rel=0.12, abs=0)


@pytest.mark.parametrize(
    ("pure", "delta", "close"), [(1e-3, 0.25 * (1 - 5e-4), 0.12), (20.0, 0.5, 0.01)]
)
def test_a_laplace_reading_is_larger_by_the_rounding_of_its_terms(
    pure: float, delta: float, close: float
) -> None:
    x, (shift, sizes) = mpmath.mpf(pure), offset(2.0, delta)
    curve = mpmath.log(2 * mpmath.exp(x) / 3 + mpmath.exp(-2 * x) / 3)
    margin = float(laplace_renyi_epsilon([pure], [1], delta, TWO) - (curve + shift))
    expected = TERM * (1 + pure + sizes) + READING * float(curve)
    assert margin == pytest.approx(expected, rel=close, abs=0)


def test_a_reading_of_the_filter_is_larger_by_a_share_of_itself() -> None:
    for spent in (1e-6, 0.3, 40.0):
        exact = mpmath.sqrt(-2 * mpmath.log(mpmath.mpf(1e-5)) * spent) + mpmath.mpf(spent) / 2
        share = float(filter_epsilon(spent, 1e-5) / exact - 1)
        assert share == pytest.approx(READING, rel=0.02, abs=0)


def test_no_delta_is_no_capacity_and_a_reading_without_end() -> None:
    assert squares_epsilon([0.0, 1e-9, 1.0, np.inf], 0.0).tolist() == [0.0, np.inf, np.inf, np.inf]
    assert squares_epsilon([0.0, np.inf], 1e-5).tolist() == [0.0, np.inf]
    assert squares_capacity([1.0, 9.0], 0.0).tolist() == [0.0, 0.0]
    assert filter_capacity([1.0, 9.0], [0.0, 1e-5])[0] == 0.0


@pytest.mark.parametrize("power", [-6.0, -2.71828, 0.30037, 0.45, 7.123457, 18.0])
def test_the_best_order_is_found_to_five_digits_of_its_power(power: float) -> None:
    def bound(orders: Any) -> Any:
        return np.abs(np.log10(orders - 1) - power)

    for shape in ((), (3,), (2, 1)):
        found = conversions._best_order(bound, np.zeros(shape))
        assert found.shape == (*shape, 1)
        assert (bound(found) <= 0.5e-5 + 1e-9).all()  # 1 + 1e-6 is rounded


def test_a_search_ends_on_the_side_that_fits() -> None:
    edge = np.array([3.0, 1e-5, 1e-200])
    largest, _ = conversions._searched(lambda value: value <= edge, np.full(3, 10.0))
    assert (largest <= edge).all()
    np.testing.assert_allclose(largest, edge, rtol=1e-15)
    _, smallest = conversions._searched(lambda value: value < edge, np.full(3, 10.0))
    assert (smallest >= edge).all()
    np.testing.assert_allclose(smallest, edge, rtol=1e-15)


def test_a_small_delta_of_little_noise_is_the_integral_and_loses_no_digits() -> None:
    low = np.linspace(25, 36, 120)
    mu = 0.11 / (1 + low)
    epsilon = mu * (low + mu / 2)
    worst = 0.0
    for one, width in zip(epsilon.tolist(), mu.tolist(), strict=True):
        ratio, half, root = mpmath.mpf(one) / width, mpmath.mpf(width) / 2, mpmath.sqrt(2)
        exact = (
            mpmath.erfc((ratio - half) / root)
            - mpmath.exp(one) * mpmath.erfc((ratio + half) / root)
        ) / 2
        worst = max(worst, abs(float(gaussian_delta(one, width) / exact - 1)))
    assert worst < 5e-13
