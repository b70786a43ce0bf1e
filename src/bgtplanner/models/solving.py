"""Many small systems at once: every user's ridge regression."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

from bgtplanner.models.interactions import FEW_COLUMNS, Interactions

_UNROLLED = 8  # columns up to which systems are solved element by element
_STEPS = 14  # of conjugate gradients where a step multiplies matrices that are there already
_STEPS_ON_EDGES = 9  # where it goes through the edges: users with few ratings are solved sooner


def ridge(
    table: Array, shrinkage: list[float], interactions: Interactions
) -> Callable[[Array], Array]:
    """Return the solver of every user's ridge regression, ``(X'X + diag(shrinkage)) w = X'y``.

    It takes the target of each edge, y, and returns w, ``[n_users, width]``; `table` has the row
    of X for each item. A few columns are solved exactly. For many, it takes a fixed number of
    steps of conjugate gradients, so that what a client computes does not depend on others. The
    columns are scaled and turned first, such that the penalty is 1 and X'X is diagonal over the
    whole catalogue: for a single user it is then nearly so, and few steps are needed.

    X'X is summed only where users have more ratings than columns. Otherwise a step multiplies by
    X and by X', since a matrix for each user would take more than the ratings do.
    """
    width, edges = table.shape[1], interactions.item.shape[0]
    if width <= FEW_COLUMNS:
        normal = normal_equations(table, shrinkage, interactions)
        return lambda target: solved_systems(
            normal, interactions.products_by_user(table, interactions.present * target)
        )
    scale = jnp.array(shrinkage) ** -0.5
    scaled = table * scale
    basis = scale[:, None] * jnp.linalg.eigh(scaled.T @ scaled)[1]
    rows = interactions.known_rows(table @ basis)
    if interactions.block > 1 and edges >= interactions.n_users * width:
        squares = interactions.sum_blocks(_product("bew,bev->bwv", rows, rows))
        diagonal, steps = jnp.diagonal(squares, axis1=1, axis2=2), _STEPS
    else:
        squares, steps = None, _STEPS_ON_EDGES
        diagonal = interactions.sum_blocks((rows**2).sum(1))

    def moved(weights: Array) -> Array:
        if squares is not None:
            return weights + _product("uwv,uv->uw", squares, weights)
        scores = _product("bew,bw->be", rows, interactions.of_blocks(weights))
        return weights + interactions.sum_blocks(_product("bew,be->bw", rows, scores))

    def better(_: int, found: tuple[Array, Array, Array, Array]) -> tuple[Array, ...]:
        weights, left, direction, size = found
        change = moved(direction)
        step = size / jnp.maximum((direction * change).sum(1, keepdims=True), 1e-30)
        weights, left = weights + step * direction, left - step * change
        preconditioned = left / (diagonal + 1.0)
        grown = (left * preconditioned).sum(1, keepdims=True)
        direction = preconditioned + grown / jnp.maximum(size, 1e-30) * direction
        return weights, left, direction, grown

    def solved(target: Array) -> Array:
        targets = target.reshape(rows.shape[:2])
        right = interactions.sum_blocks(_product("bew,be->bw", rows, targets))
        first = right / (diagonal + 1.0)
        start = (jnp.zeros_like(right), right, first, (right * first).sum(1, keepdims=True))
        turned: Array = jax.lax.fori_loop(0, steps, better, start)[0]
        return _product("uv,wv->uw", turned, basis)

    return solved


def _product(indices: str, one: Array, other: Array) -> Array:
    """Return an Einstein sum with all digits, also on GPUs that would round to fewer."""
    return jnp.einsum(indices, one, other, precision=jax.lax.Precision.HIGHEST)


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
