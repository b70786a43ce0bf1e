"""Between (epsilon, delta) and what adds up: exact Gaussian, Renyi, and Laplace formulas.

All functions take and give arrays, one entry a client, and never loop over them. Where a number is
found by search it is rounded to the safe side: a capacity never too large, an epsilon never too
small.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr

__all__ = [
    "ORDERS",
    "filter_capacity",
    "filter_epsilon",
    "gaussian_delta",
    "gdp_capacity",
    "gdp_epsilon",
    "laplace_renyi_epsilon",
    "renyi_capacity",
    "renyi_epsilon",
]

Floats = NDArray[np.float64]

ORDERS: Floats = np.concatenate(
    [np.arange(11, 110) / 10, np.arange(11, 64), [128, 256, 512, 1024]]
).astype(np.float64)
"""Renyi orders that the moments accountant looks at: those of dp-accounting."""

_HALVINGS = 120  # enough to leave neighbouring doubles, whatever the bracket
# Relative; above the error of the formulas, far below any use. The capacity's is the larger, so
# that what was spent never reads as more than the budget.
_CAPACITY_SLACK = 4e-12
_READING_SLACK = 1e-13


def gaussian_delta(epsilon: ArrayLike, mu: ArrayLike) -> Floats:
    """Delta of the Gaussian mechanism with sensitivity / standard deviation = mu.

    delta = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu) (Balle and Wang 2018, Dong
    et al. 2019), in logarithms: e^epsilon overflows, and both terms may underflow.
    """
    epsilon, mu = np.asarray(epsilon, dtype=np.float64), np.asarray(mu, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = epsilon / mu
        first, second = log_ndtr(mu / 2 - ratio), epsilon + log_ndtr(-mu / 2 - ratio)
        value = -np.exp(first) * np.expm1(np.minimum(second - first, 0.0))
    return np.asarray(np.where(mu > 0, value, 0.0))


def gdp_capacity(epsilon: ArrayLike, delta: ArrayLike) -> Floats:
    """Largest mu^2 with which Gaussian releases are (epsilon, delta)-private together."""
    epsilon, delta = np.broadcast_arrays(
        np.asarray(epsilon, dtype=np.float64), np.asarray(delta, dtype=np.float64)
    )
    # delta grows with mu; mu^2/2 is the mean loss, so mu cannot exceed this by much.
    high = np.sqrt(2 * epsilon) + 40.0
    mu = _largest(lambda value: gaussian_delta(epsilon, value) <= delta, high)
    return np.asarray(mu**2 * (1 - _CAPACITY_SLACK))


def gdp_epsilon(spent: ArrayLike, delta: ArrayLike) -> Floats:
    """Smallest epsilon that Gaussian releases of total mu^2 = `spent` satisfy at delta.

    Infinite for delta = 0: no epsilon holds without one.
    """
    spent, delta = np.broadcast_arrays(
        np.asarray(spent, dtype=np.float64), np.asarray(delta, dtype=np.float64)
    )
    endless = np.isinf(spent) | ((delta <= 0) & (spent > 0))
    finite = np.where(endless, 0.0, spent)
    mu = np.sqrt(finite)
    high = finite / 2 + mu * 40.0 + 1e-300  # P[loss > mean + 40 sd] is below any double's delta
    epsilon = _smallest(lambda value: gaussian_delta(value, mu) <= delta, high)
    free = gaussian_delta(np.zeros_like(mu), mu) <= delta
    reading = np.where(free, 0.0, epsilon * (1 + _READING_SLACK))
    return np.asarray(np.where(endless, np.inf, reading))


def renyi_capacity(epsilon: ArrayLike, delta: ArrayLike, orders: Floats = ORDERS) -> Floats:
    """Largest rho (with Renyi divergence order * rho) that is (epsilon, delta)-private.

    The conversion of Canonne, Kamath and Steinke (2020), as dp-accounting has it, solved for rho
    and maximised over the orders.
    """
    epsilon = np.asarray(epsilon, dtype=np.float64)[..., None]
    delta = np.asarray(delta, dtype=np.float64)[..., None]
    with np.errstate(divide="ignore"):
        rho = (epsilon - _renyi_offset(delta, orders)) / orders
    return np.asarray(np.maximum(rho.max(axis=-1), 0.0) * (1 - _CAPACITY_SLACK))


def renyi_epsilon(spent: ArrayLike, delta: ArrayLike, orders: Floats = ORDERS) -> Floats:
    """Smallest epsilon over the orders, for a total rho."""
    spent = np.asarray(spent, dtype=np.float64)[..., None]
    delta = np.asarray(delta, dtype=np.float64)[..., None]
    with np.errstate(divide="ignore"):
        epsilon = (orders * spent + _renyi_offset(delta, orders)).min(axis=-1)
    epsilon = np.maximum(epsilon, 0.0) * (1 + _READING_SLACK)
    return np.asarray(np.where(spent[..., 0] > 0, epsilon, 0.0))


def _renyi_offset(delta: Floats, orders: Floats) -> Floats:
    """What turns Renyi divergence at an order into epsilon: log(1-1/a) - log(delta a)/(a-1)."""
    return np.asarray(np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1))


def filter_capacity(epsilon: ArrayLike, delta: ArrayLike) -> Floats:
    """Largest sum of eps_t^2 that fully adaptive composition of pure releases allows.

    sqrt(2 ln(1/delta) s) + s/2 = epsilon (Whitehouse et al. 2023, theorem 2), solved for s.
    """
    epsilon, delta = np.asarray(epsilon, dtype=np.float64), np.asarray(delta, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        doubled = -2 * np.log(delta)
        root = 2 * epsilon / (np.sqrt(doubled + 2 * epsilon) + np.sqrt(doubled))
        capacity = np.where(delta > 0, root**2 * (1 - _CAPACITY_SLACK), 0.0)
    return np.asarray(capacity)


def filter_epsilon(spent: ArrayLike, delta: ArrayLike) -> Floats:
    """Epsilon that a sum of eps_t^2 amounts to at delta under the same theorem."""
    spent, delta = np.asarray(spent, dtype=np.float64), np.asarray(delta, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        epsilon = np.sqrt(-2 * np.log(delta) * spent) + spent / 2
    return np.asarray(np.where(spent > 0, epsilon * (1 + _READING_SLACK), 0.0))


def laplace_renyi_epsilon(
    epsilons: ArrayLike, counts: ArrayLike, delta: float, orders: Floats = ORDERS
) -> float:
    """Epsilon at delta of many Laplace releases together, by their exact Renyi curves.

    A reading for releases that have been made, not a filter: the charges are taken as fixed.

    Args:
        epsilons: Pure epsilon of each kind of release.
        counts: How many releases there were of each kind.
        delta: Of the reading.
        orders: Renyi orders; the best one counts.
    """
    pure = np.asarray(epsilons, dtype=np.float64)[:, None]
    number = np.asarray(counts, dtype=np.float64)[:, None]
    a = orders
    # Mironov 2017, proposition 6: D_a = 1/(a-1) log( a/(2a-1) e^((a-1)x) + (a-1)/(2a-1) e^(-ax) )
    log_terms = np.logaddexp(
        np.log(a / (2 * a - 1)) + (a - 1) * pure, np.log((a - 1) / (2 * a - 1)) - a * pure
    )
    total = (number * log_terms / (a - 1)).sum(axis=0)
    with np.errstate(divide="ignore"):
        epsilon = float((total + _renyi_offset(np.asarray(delta), orders)).min())
    return max(0.0, min(epsilon, float((number * pure).sum())))


def _largest(fits: Callable[[Floats], NDArray[np.bool_]], high: ArrayLike) -> Floats:
    """Largest value in (0, high) that fits, entry by entry; fits must hold near 0."""
    low, up = np.zeros_like(high, dtype=np.float64), np.array(high, dtype=np.float64)
    for _ in range(_HALVINGS):
        middle = (low + up) / 2
        good = fits(middle)
        low, up = np.where(good, middle, low), np.where(good, up, middle)
    return low


def _smallest(fits: Callable[[Floats], NDArray[np.bool_]], high: ArrayLike) -> Floats:
    """Smallest value in (0, high) that fits, entry by entry; fits must hold at high."""
    low, up = np.zeros_like(high, dtype=np.float64), np.array(high, dtype=np.float64)
    for _ in range(_HALVINGS):
        middle = (low + up) / 2
        good = fits(middle)
        low, up = np.where(good, low, middle), np.where(good, middle, up)
    return up
