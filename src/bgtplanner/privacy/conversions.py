"""Between (epsilon, delta) and what adds up: exact Gaussian, Renyi and Laplace formulas.

All functions take and return arrays. What is found by search is rounded to the safe side: a
capacity is never too large, an epsilon never too small.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfcx, ndtr

Floats = NDArray[np.float64]

ORDERS: Floats = np.concatenate(
    [np.arange(11, 110) / 10, np.arange(11, 64), [128, 256, 512, 1024]]
).astype(np.float64)
"""Renyi orders that the moments accountant uses: those of dp-accounting."""

# Relative margins: above the errors of the formulas, far too small to matter. That of the
# capacity is larger, so that what was spent never reads as more than the budget.
_DELTA_ERROR = 1e-11
_CAPACITY_SLACK = 4e-12
_READING_SLACK = 1e-13
_TERM_ERROR = 4e-15  # relative to the largest of the terms that are added
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(10)


def _floats(*values: ArrayLike) -> tuple[Floats, ...]:
    """Return values as arrays of one shape."""
    return np.broadcast_arrays(*(np.asarray(value, dtype=np.float64) for value in values))


def gaussian_delta(epsilon: ArrayLike, mu: ArrayLike) -> Floats:
    """Return delta of the Gaussian mechanism with sensitivity / standard deviation = mu.

    delta = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu) (Balle and Wang 2018, Dong
    et al. 2019). With a = epsilon/mu - mu/2, b = a + mu and Mills' ratio M(t) = Phi(-t) / phi(t)
    that is phi(a) (M(a) - M(b)): nothing overflows. Where a and b are so close that the difference
    would lose digits, it is the integral of -M'(t) = 1 - t M(t) > 0 from a to b.

    The relative error is below 1e-11 for deltas down to 1e-300 (``docs/proofs/gdp.md``).
    """
    epsilon, mu = _floats(epsilon, mu)
    safe = np.where(mu > 0, mu, 1.0)
    with np.errstate(over="ignore", under="ignore"):
        low = np.minimum(epsilon / safe - safe / 2, 1e100)
        high = low + safe
        density = np.exp(-0.5 * low**2) / np.sqrt(2 * np.pi)
        far = low < -1.0  # where M(a) would overflow
        value = density * (_mills(np.where(far, 0.0, low)) - _mills(high))
        if far.any():
            value = np.where(far, ndtr(-low) - density * _mills(high), value)
        close = safe < 0.1 * (1 + np.abs(low))
        if close.any():
            value = np.where(close, density * _mills_drop(low, np.where(close, safe, 0.0)), value)
    return np.asarray(np.where(mu > 0, value, 0.0))


def _mills(value: Floats) -> Floats:
    return np.asarray(np.sqrt(np.pi / 2) * erfcx(value / np.sqrt(2)))


def _mills_drop(start: Floats, width: Floats) -> Floats:
    """Return Mills' ratio at the start minus that a short way on, by positive terms alone."""
    at = np.clip(start[..., None] + width[..., None] * (_NODES + 1) / 2, -1.0, 1e8)
    return np.asarray((np.maximum(1 - at * _mills(at), 0.0) @ _WEIGHTS) / 2 * width)


def gdp_capacity(epsilon: ArrayLike, delta: ArrayLike) -> Floats:
    """Return the largest mu^2 at which Gaussian releases are (epsilon, delta)-private together."""
    epsilon, delta = _floats(epsilon, delta)
    # delta grows with mu; mu^2/2 is the mean loss, so mu cannot exceed this by much.
    high = np.sqrt(2 * epsilon) + 40.0
    mu, _ = _searched(lambda value: _delta_at_most(epsilon, value) <= delta, high)
    return np.asarray(mu**2 * (1 - _CAPACITY_SLACK))


def gdp_epsilon(spent: ArrayLike, delta: ArrayLike) -> Floats:
    """Return the smallest epsilon that Gaussian releases of total mu^2 = `spent` have at delta."""
    spent, delta = _floats(spent, delta)
    endless = np.isinf(spent) | ((delta <= 0) & (spent > 0))
    finite = np.where(endless, 0.0, spent)
    mu = np.sqrt(finite)
    high = finite / 2 + mu * 40.0 + 1e-300  # P[loss > mean + 40 sd] is below any double's delta
    _, epsilon = _searched(lambda value: ~(_delta_at_most(value, mu) <= delta), high)
    free = _delta_at_most(np.zeros_like(mu), mu) <= delta
    reading = np.where(free, 0.0, epsilon * (1 + _READING_SLACK))
    return np.asarray(np.where(endless, np.inf, reading))


def _delta_at_most(epsilon: Floats, mu: Floats) -> Floats:
    """Return delta of the Gaussian mechanism, rounded up by more than its error."""
    return np.asarray(gaussian_delta(epsilon, mu) * (1 + _DELTA_ERROR))


def renyi_capacity(epsilon: ArrayLike, delta: ArrayLike, orders: Floats = ORDERS) -> Floats:
    """Return the largest rho (with Renyi divergence order * rho) that is (epsilon, delta)-private.

    By Canonne, Kamath and Steinke (2020), as in dp-accounting, with the best of the orders.
    """
    epsilon = np.asarray(epsilon, dtype=np.float64)[..., None]
    offset, error = _renyi_offset(np.asarray(delta, dtype=np.float64)[..., None], orders)
    rho = (epsilon - offset - error - _TERM_ERROR * epsilon) / orders
    return np.asarray(np.maximum(rho.max(axis=-1), 0.0) * (1 - _CAPACITY_SLACK))


def renyi_epsilon(spent: ArrayLike, delta: ArrayLike, orders: Floats = ORDERS) -> Floats:
    """Return the smallest epsilon over the orders, for a total rho."""
    spent = np.asarray(spent, dtype=np.float64)[..., None]
    offset, error = _renyi_offset(np.asarray(delta, dtype=np.float64)[..., None], orders)
    epsilon = (orders * spent * (1 + _TERM_ERROR) + offset + error).min(axis=-1)
    epsilon = np.maximum(epsilon, 0.0) * (1 + _READING_SLACK)
    return np.asarray(np.where(spent[..., 0] > 0, epsilon, 0.0))


def _renyi_offset(delta: Floats, orders: Floats) -> tuple[Floats, Floats]:
    """Return what makes an epsilon of a Renyi divergence when added, and its rounding error."""
    with np.errstate(divide="ignore"):
        first, second = np.log1p(-1 / orders), (np.log(delta) + np.log(orders)) / (orders - 1)
    largest = np.abs(first) + (np.abs(np.log(orders)) / (orders - 1)) + np.abs(second)
    return first - second, np.where(np.isinf(second), 0.0, _TERM_ERROR * largest)


def squares_capacity(epsilon: ArrayLike, delta: ArrayLike) -> Floats:
    """Return the largest sum of eps_t^2 of pure releases, chosen adaptively, by their zCDP.

    A release of pure epsilon x has Renyi divergence of at most a x^2 / 2 at every order a (Bun and
    Steinke 2016), so that the sum may reach twice the largest rho over all orders.
    """
    epsilon, delta = _floats(epsilon, delta)

    def found(orders: Floats) -> Floats:
        offset, error = _renyi_offset(delta[..., None], orders)
        return np.asarray((epsilon[..., None] * (1 - _TERM_ERROR) - offset - error) / orders)

    best = found(_best_order(lambda orders: -found(orders), delta))[..., 0]
    return np.asarray(2 * np.maximum(best, 0.0) * (1 - _CAPACITY_SLACK))


def squares_epsilon(spent: ArrayLike, delta: ArrayLike) -> Floats:
    """Return the epsilon that a sum of eps_t^2 amounts to at delta, by the same argument."""
    spent, delta = _floats(spent, delta)

    def found(orders: Floats) -> Floats:
        offset, error = _renyi_offset(delta[..., None], orders)
        return np.asarray(orders * spent[..., None] / 2 * (1 + _TERM_ERROR) + offset + error)

    best = np.maximum(found(_best_order(found, delta))[..., 0], 0.0)
    return np.asarray(np.where(spent > 0, best * (1 + _READING_SLACK), 0.0))


def _best_order(bound: Callable[[Floats], Floats], delta: Floats) -> Floats:
    """Return an order at which a bound is close to its smallest, ``[..., 1]``; any is sound.

    There are three searches, each a hundred times as fine as the one before.
    """
    best, around = np.zeros((*delta.shape, 1)), np.arange(-100, 101)
    for grid in (np.linspace(-6, 18, 241), 0.001 * around, 0.00001 * around):
        powers = np.asarray(best + grid, dtype=np.float64)
        values = np.nan_to_num(bound(1 + 10.0**powers), nan=np.inf)
        best = np.take_along_axis(powers, values.argmin(axis=-1)[..., None], axis=-1)
    return np.asarray(1 + 10.0**best)


def filter_capacity(epsilon: ArrayLike, delta: ArrayLike) -> Floats:
    """Return the s that solves sqrt(2 ln(1/delta) s) + s/2 = epsilon.

    Pure releases may have it as a sum of eps_t^2 (Whitehouse et al. 2023, theorem 2).
    """
    epsilon, delta = _floats(epsilon, delta)
    with np.errstate(divide="ignore"):  # the logarithm of 0: no delta allows nothing
        doubled = -2 * np.log(delta)
    root = 2 * epsilon / (np.sqrt(doubled + 2 * epsilon) + np.sqrt(doubled))
    return np.asarray(root**2 * (1 - _CAPACITY_SLACK))


def filter_epsilon(spent: ArrayLike, delta: ArrayLike) -> Floats:
    """Return the epsilon that a sum of eps_t^2 amounts to at delta, by the same theorem."""
    spent, delta = _floats(spent, delta)
    with np.errstate(divide="ignore", invalid="ignore"):
        epsilon = np.sqrt(-2 * np.log(delta) * spent) + spent / 2
    return np.asarray(np.where(spent > 0, epsilon * (1 + _READING_SLACK), 0.0))


def _searched(
    below: Callable[[Floats], NDArray[np.bool_]], high: ArrayLike
) -> tuple[Floats, Floats]:
    """Return neighbouring values between which a condition that holds near 0 ceases to hold."""
    up = np.array(high, dtype=np.float64)
    low = up * 1e-290
    for _ in range(64):  # halvings of the logarithm, which end at neighbouring doubles
        middle = np.sqrt(low) * np.sqrt(up)
        under = below(middle)
        low, up = np.where(under, middle, low), np.where(under, up, middle)
    return low, up
