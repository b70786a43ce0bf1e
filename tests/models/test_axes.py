"""Axes of taste out of what was told: a fit by least squares, and what chance alone looks like."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.linalg import solve_sylvester

from bgtplanner.models.axes import Axes, orthonormal

Float = NDArray[np.float64]
ITEMS, AXES = 60, 4
NONE = jnp.zeros((ITEMS, 1))  # no direction is left out


def planted(sizes: list[float]) -> tuple[Float, Float]:
    """Return a symmetric matrix with eigenvalues of these sizes, and its eigenvectors."""
    axes = np.linalg.qr(np.random.default_rng(0).normal(size=(ITEMS, len(sizes))))[0]
    return axes * sizes @ axes.T, axes


def asked_about(matrix: Float, payments: int, std: float, seed: int) -> tuple[Axes, Float, Float]:
    """Return what the server knows after some payments of a total precision, and the axes."""
    draw, known = np.random.default_rng(seed), Axes.initial(ITEMS, AXES)
    asked = orthonormal(jnp.asarray(draw.normal(size=(ITEMS, AXES)), jnp.float32))
    noise = std * payments**0.5
    for _ in range(payments):
        told = matrix @ np.asarray(asked) + noise * draw.normal(size=(ITEMS, AXES))
        known = known.after(asked, jnp.asarray(told, jnp.float32), jnp.asarray(noise**-2))
        asked, strength, known = leading(known, asked)
    return known, np.asarray(asked, float), np.asarray(strength, float)


leading = jax.jit(lambda known, start: known.leading(start, NONE))


def test_the_fit_is_that_of_least_squares() -> None:
    known, asked, _ = asked_about(planted([5.0, 3.0])[0], 3, 0.3, 1)
    told, sums = np.asarray(known.told, float), np.asarray(known.asked, float)
    ridge = 0.3 * float(known.precision) * np.eye(ITEMS)
    exact = solve_sylvester(sums + ridge, sums + ridge, told + told.T)
    sizes = np.linalg.eigvalsh(exact)[::-1]
    np.testing.assert_allclose(known.sizes[:2], sizes[:2], rtol=0.05)
    seen = np.linalg.eigh(exact)[1][:, ::-1][:, :2]
    assert np.linalg.norm(seen.T @ asked[:, :2]) > 0.98 * 2**0.5


@pytest.mark.parametrize("payments", [6, 60])
def test_small_payments_say_as_much_as_large_ones(payments: int) -> None:
    """With the same precision in all; both axes would be lost in the noise of one of sixty."""
    matrix, axes = planted([5.0, 4.0])
    found = [asked_about(matrix, payments, 0.15, seed) for seed in range(5)]
    near = [np.linalg.norm(axes.T @ asked[:, :2]) / 2**0.5 for _, asked, _ in found]
    assert min(near) > 0.75
    assert all((strength[:2] > 0).all() for *_, strength in found)


def test_noise_alone_seldom_stands_out() -> None:
    """Once in ninety times at each look; more than 6 of 100 have a chance of 1 in 4,000."""
    found = [asked_about(np.zeros((ITEMS, ITEMS)), 1, 1.0, seed)[2].any() for seed in range(100)]
    assert sum(found) <= 6


def test_items_that_leave_take_what_is_known_of_them_along() -> None:
    known, asked, _ = asked_about(planted([5.0])[0], 3, 0.1, 2)
    items = jnp.r_[jnp.arange(10, ITEMS), jnp.arange(100, 110)]
    moved, places = known.moved(items)
    np.testing.assert_allclose(moved.told[:-10, :-10], known.told[10:, 10:], rtol=1e-5)
    assert not np.asarray(moved.told)[-10:].any()
    assert not np.asarray(moved.asked)[:, -10:].any()
    assert float(moved.precision) == pytest.approx(np.trace(moved.asked) / AXES, 1e-4)
    assert float(moved.precision) < float(known.precision)
    np.testing.assert_allclose((places @ asked)[:-10], asked[10:], rtol=1e-5)


@pytest.mark.parametrize("stay", [0, 2, 3])
def test_axes_stay_finite_where_most_items_left(stay: int) -> None:
    """Next to nothing is known then, so that products depend on each other."""
    for seed in range(40):
        known = asked_about(planted([5.0])[0], 1, 2.0, seed)[0]
        items = jnp.r_[jnp.arange(stay), jnp.arange(100, 160 - stay)]
        found = leading(known.moved(items)[0], jnp.zeros((ITEMS, AXES)))
        assert all(np.isfinite(of).all() for of in jax.tree.leaves(found))
