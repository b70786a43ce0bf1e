"""Many small systems at once: every user's ridge regression."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from bgtplanner.models.interactions import FEW_COLUMNS, Interactions, whole_vectors

_STEPS = 9  # of conjugate gradients: predictions are then off by 1e-5, root mean square
_product = partial(jnp.einsum, precision="highest")  # GPUs would round to fewer digits


def ridge(
    table: Array, shrinkage: list[float], interactions: Interactions,
    popularity: Array | None = None,
) -> Callable[[Array], Array]:  # fmt: skip
    """Return the solver of every user's ridge regression, ``(X'X + diag(shrinkage)) w = X'y``.

    It takes the target of each edge, y, and returns w, ``[n_users, width]``; `table` has the row
    of X for each item. A few columns are solved exactly. For many, it takes a fixed number of
    steps of conjugate gradients, so that what a client computes does not depend on others. The
    columns are scaled and turned first, such that the penalty is 1 and X'X is diagonal for a user
    who picks items by `popularity`, a logarithm: for all others it is then nearly so.

    X'X is summed on accelerators, where users have more ratings than columns: less time there.
    """
    width, edges = table.shape[1], interactions.item.shape[0]
    if width <= FEW_COLUMNS:
        normal = interactions.squares_by_user(table) + jnp.diag(jnp.array(shrinkage))
        return lambda target: solved_systems(
            normal, interactions.products_by_user(table, interactions.present * target)
        )
    scale = jnp.array(shrinkage) ** -0.5
    scaled = table * scale
    share = jax.nn.softmax(jnp.zeros(table.shape[0]) if popularity is None else popularity)
    variance, turn = jnp.linalg.eigh(_product("iw,iv->wv", scaled, share[:, None] * scaled))
    # Whole vectors of columns: a processor takes so many in one instruction.
    basis, variance = whole_vectors(scale[:, None] * turn), whole_vectors(variance)
    turned = _product("iw,wv->iv", table, basis)
    rows = interactions.known_rows(turned)
    number = interactions.sum_by_user(interactions.present)[:, None]
    inverse = 1.0 / (1.0 + number * jnp.maximum(variance, 0.0))
    many = interactions.accelerated and edges >= interactions.n_users * width
    squares = interactions.squares_by_user(turned) if many else None

    def moved(weights: Array) -> Array:
        if squares is not None:
            return weights + _product("uwv,uv->uw", squares, weights)
        scores = _product("bew,bw->be", rows, interactions.of_blocks(weights))
        return weights + interactions.sum_blocks(_product("bew,be->bw", rows, scores))

    def better(_: int, found: tuple[Array, Array, Array, Array]) -> tuple[Array, ...]:
        weights, left, direction, size = found
        change = moved(direction)
        step = size / jnp.maximum(_inner(direction, change), 1e-30)
        weights, left = weights + step * direction, left - step * change
        preconditioned = left * inverse
        grown = _inner(left, preconditioned)
        direction = preconditioned + grown / jnp.maximum(size, 1e-30) * direction
        return weights, left, direction, grown

    def solved(target: Array) -> Array:
        right = interactions.sum_blocks(
            _product("bew,be->bw", rows, target.reshape(rows.shape[:2]))
        )
        first = right * inverse
        start = (jnp.zeros_like(right), right, first, _inner(right, first))
        weights: Array = jax.lax.fori_loop(0, _STEPS, better, start)[0]
        return _product("uv,wv->uw", weights, basis)

    return solved


def _inner(one: Array, other: Array) -> Array:
    """Return the inner products of rows, from sums of whole vectors of columns."""
    parts = jnp.split(one * other, one.shape[1] // FEW_COLUMNS, axis=1)
    return jnp.sum(sum(parts), axis=1, keepdims=True)


def solved_systems(normal: Array, right: Array) -> Array:
    """Return the solutions of many small positive definite systems, ``[systems, width]``.

    Few columns are eliminated for all systems at once; a library would go through them singly.
    """
    width = right.shape[1]
    if width > FEW_COLUMNS:
        return jnp.asarray(jnp.linalg.solve(normal, right[..., None])[..., 0])
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
