"""Many small systems at once: every user's ridge regression."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from bgtplanner.models.interactions import FEW_COLUMNS, Interactions

_UNROLLED = 8  # columns up to which systems are solved element by element
_STEPS = 10  # of conjugate gradients; the error is then far below that of the data


def ridge(
    table: Array, shrinkage: list[float], interactions: Interactions
) -> Callable[[Array], Array]:
    """Return the solver of every user's ridge regression, ``(X'X + diag(shrinkage)) w = X'y``.

    It takes the target of each edge, y, and returns w, ``[n_users, width]``; `table` has the row
    of X for each item. A few columns are solved exactly. For many, it takes a fixed number of
    steps of conjugate gradients on the edges, preconditioned by the diagonal: a matrix for each
    user would take more than the ratings do.
    """

    def transposed(values: Array) -> Array:
        return interactions.products_by_user(table, interactions.present * values)

    if table.shape[1] <= FEW_COLUMNS:
        normal = normal_equations(table, shrinkage, interactions)
        return lambda target: solved_systems(normal, transposed(target))
    penalty = jnp.array(shrinkage)
    squares = interactions.products_by_user(table**2, interactions.present)
    preconditioner = 1.0 / (squares + penalty)

    def better(_: int, found: tuple[Array, Array, Array, Array]) -> tuple[Array, ...]:
        weights, left, direction, size = found
        moved = transposed(interactions.scores(table, direction)) + penalty * direction
        step = size / jnp.maximum((direction * moved).sum(1, keepdims=True), 1e-30)
        weights, left = weights + step * direction, left - step * moved
        scaled = preconditioner * left
        grown = (left * scaled).sum(1, keepdims=True)
        return weights, left, scaled + grown / jnp.maximum(size, 1e-30) * direction, grown

    def solved(target: Array) -> Array:
        right = transposed(target)
        first = preconditioner * right
        size = (right * first).sum(1, keepdims=True)
        start = (jnp.zeros_like(right), right, first, size)
        weights: Array = jax.lax.fori_loop(0, _STEPS, better, start)[0]
        return weights

    return solved


def normal_equations(table: Array, shrinkage: list[float], interactions: Interactions) -> Array:
    """Return ``X'X + diag(shrinkage)`` of every user's ridge regression, ``[users, w, w]``."""
    return interactions.squares_by_user(table) + jnp.diag(jnp.array(shrinkage))


def solved_systems(normal: Array, right: Array) -> Array:
    """Return the solutions of many small positive definite systems, ``[systems, width]``.

    Few columns are eliminated by hand, for all systems at once; a library would go through them
    one by one.
    """
    width = right.shape[1]
    if width > _UNROLLED:
        solution: Array = jnp.linalg.solve(normal, right[..., None])[..., 0]
        return solution
    rows = [[normal[:, a, b] for b in range(width)] + [right[:, a]] for a in range(width)]
    for pivot in range(width):
        inverse = 1.0 / rows[pivot][pivot]
        for below in range(pivot + 1, width):
            factor = rows[below][pivot] * inverse
            for column in range(pivot + 1, width + 1):
                rows[below][column] = rows[below][column] - factor * rows[pivot][column]
    found: list[Array] = [right[:, 0]] * width
    for row in reversed(range(width)):
        value = rows[row][width]
        for column in range(row + 1, width):
            value = value - rows[row][column] * found[column]
        found[row] = value / rows[row][row]
    return jnp.stack(found, axis=1)
