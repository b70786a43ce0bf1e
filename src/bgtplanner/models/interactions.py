"""Ratings, parameters and uploads of all clients as flat arrays whose shapes never change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from bgtplanner.data.ratings import Ratings

__all__ = [
    "Interactions",
    "Shared",
    "Upload",
    "copies",
    "normal_equations",
    "ridge",
    "where_users",
]

_FEW_COLUMNS = 4
_STEPS = 10  # of conjugate gradients; the error is then far below that of the data


class Shared(NamedTuple):
    """The parameters that the server holds and sends out.

    Attributes:
        items: One row per item, ``[n_items, width]``.
        dense: Everything else, flat, ``[dense_size]`` (may be empty).
    """

    items: Array
    dense: Array


class Upload(NamedTuple):
    """Arrays in the shape of all clients' uploads: their copies, or their statistics.

    Attributes:
        rows: One row per client-item pair, ``[n_pairs, width]``, in the order of the pairs.
        dense: One row per client, ``[n_clients, dense_size]``.
    """

    rows: Array
    dense: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Interactions:
    """Training ratings as the edges of all clients' graphs, sorted by client.

    Attributes:
        user: User of each edge.
        item: Item of each edge.
        value: Rating of each edge.
        arrival: First round in which each edge is known.
        present: 1 for an edge that is known now, 0 for one that has not arrived; see :meth:`at`.
        pair: Client-item pair of each edge: the row of the upload that it belongs to.
        pair_client: Client of each pair, in ascending order.
        pair_item: Item of each pair.
        client_of_user: Client of each user.
        features: Public features of the items, ``[n_items, n_features]``; may have no columns.
        n_items: Number of items.
        n_clients: Number of clients.
        one_user_each: Whether every client is one user, so that the pairs are the edges.
    """

    user: Array
    item: Array
    value: Array
    arrival: Array
    present: Array
    pair: Array
    pair_client: Array
    pair_item: Array
    client_of_user: Array
    features: Array
    n_items: int = field(metadata={"static": True})
    n_clients: int = field(metadata={"static": True})
    one_user_each: bool = field(metadata={"static": True})

    @property
    def n_users(self) -> int:
        """Number of users, those without a rating included."""
        return int(self.client_of_user.shape[0])

    @classmethod
    def of(cls, ratings: Ratings, arrival: NDArray[np.int32] | None = None) -> Interactions:
        """Return the edges of some training ratings, as they are in round 0.

        Args:
            ratings: The training ratings.
            arrival: First round in which each rating can be used; by default round 0.
        """
        first = np.zeros(len(ratings), np.int32) if arrival is None else arrival
        key = ratings.client.astype(np.int64) * ratings.n_items + ratings.item
        one_user_each = ratings.n_clients == ratings.n_users
        if one_user_each:  # pairs in the order of the edges: nothing has to be moved later
            pairs, pair = key, np.arange(len(key))
        else:
            pairs, pair = np.unique(key, return_inverse=True)

        def put(column: NDArray[Any], dtype: Any = None) -> Array:  # converts without a program
            placed: Array = jax.device_put(np.asarray(column, dtype=dtype))
            return placed

        return cls(
            user=put(ratings.user),
            item=put(ratings.item),
            value=put(ratings.value),
            arrival=put(first),
            present=put(first <= 0, np.float32),
            pair=put(pair, np.int32),
            pair_client=put(pairs // ratings.n_items, np.int32),
            pair_item=put(pairs % ratings.n_items, np.int32),
            client_of_user=put(ratings.client_of_user),
            features=put(ratings.features),
            n_items=ratings.n_items,
            n_clients=ratings.n_clients,
            one_user_each=one_user_each,
        )

    def at(self, round_index: Array | int) -> Interactions:
        """Return the same edges as known in a round. Only the mask changes, no shape."""
        return replace(self, present=(self.arrival <= round_index).astype(jnp.float32))

    def sum_by_user(self, values: Array) -> Array:
        """Return the sum of an edge quantity over each user."""
        return jax.ops.segment_sum(values, self.user, self.n_users)

    def sum_by_client(self, values: Array) -> Array:
        """Return the sum of an edge quantity over each client."""
        return jax.ops.segment_sum(values, self.client_of_user[self.user], self.n_clients)

    @property
    def ratings_of_clients(self) -> Array:
        """Number of ratings that each client knows now."""
        return self.sum_by_client(self.present)

    def rows_of(self, rows: Array) -> Array:
        """Return the row of each edge, from one row per pair."""
        return rows if self.one_user_each else rows[self.pair]

    def find_pair(self, client: Array, item: Array) -> Array:
        """Return the index of client-item pairs; the number of all pairs for an unknown pair.

        Only for clients with several users: their pairs are sorted by client and item.
        """
        last = self.pair_item.shape[0]
        low = jnp.searchsorted(self.pair_client, client, side="left")
        end = jnp.searchsorted(self.pair_client, client, side="right")

        def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = bounds
            middle = (low + high) // 2
            below = (low < high) & (self.pair_item[jnp.minimum(middle, last - 1)] < item)
            return jnp.where(below, middle + 1, low), jnp.where(below, high, middle)

        steps = max(self.n_items, 1).bit_length() + 1
        found, _ = jax.lax.fori_loop(0, steps, halve, (low, end))
        there = (found < end) & (self.pair_item[jnp.minimum(found, last - 1)] == item)
        return jnp.where(there, found, last)


def copies(shared: Shared, interactions: Interactions) -> Upload:
    """Return every client's copy of the shared parameters that it needs."""
    return Upload(
        rows=shared.items[interactions.pair_item],
        dense=jnp.broadcast_to(shared.dense, (interactions.n_clients, shared.dense.shape[0])),
    )


def ridge(
    features: Array, shrinkage: list[float], interactions: Interactions
) -> Callable[[Array], Array]:
    """Return the solver of every user's ridge regression, ``(X'X + diag(shrinkage)) w = X'y``.

    It takes the target of each edge, y, and returns w, ``[n_users, width]``. A few columns are
    solved exactly. For many, a matrix per user would be too large: there it takes a fixed number
    of steps of conjugate gradients, preconditioned by the diagonal.

    Args:
        features: The row of X of each edge, ``[n_edges, width]``.
        shrinkage: Ridge weight of each column.
        interactions: The ratings that are known.
    """

    def transposed(values: Array) -> Array:
        return interactions.sum_by_user((interactions.present * values)[:, None] * features)

    if features.shape[1] <= _FEW_COLUMNS:
        inverse = jnp.linalg.inv(normal_equations(features, shrinkage, interactions))
        return lambda target: jnp.einsum("uab,ub->ua", inverse, transposed(target))
    penalty = jnp.array(shrinkage)
    squares = interactions.sum_by_user(interactions.present[:, None] * features**2)
    preconditioner = 1.0 / (squares + penalty)

    def solved(target: Array) -> Array:
        def better(_: int, found: tuple[Array, Array, Array, Array]) -> tuple[Array, ...]:
            weights, left, direction, size = found
            along = (features * direction[interactions.user]).sum(1)
            moved = transposed(along) + penalty * direction
            step = size / jnp.maximum((direction * moved).sum(1, keepdims=True), 1e-30)
            weights, left = weights + step * direction, left - step * moved
            scaled = preconditioner * left
            grown = (left * scaled).sum(1, keepdims=True)
            direction = scaled + grown / jnp.maximum(size, 1e-30) * direction
            return weights, left, direction, grown

        right = transposed(target)
        first = preconditioner * right
        size = (right * first).sum(1, keepdims=True)
        start = (jnp.zeros_like(right), right, first, size)
        weights: Array = jax.lax.fori_loop(0, _STEPS, better, start)[0]
        return weights

    return solved


def normal_equations(features: Array, shrinkage: list[float], interactions: Interactions) -> Array:
    """Return ``X'X + diag(shrinkage)`` of every user's ridge regression.

    Its shape is ``[n_users, width, width]``. It is computed column by column, because an outer
    product for every edge would need `width` times the memory.
    """
    columns = [
        interactions.sum_by_user((interactions.present * features[:, column])[:, None] * features)
        for column in range(features.shape[1])
    ]
    return jnp.stack(columns, axis=1) + jnp.diag(jnp.array(shrinkage))


def where_users(which: Array, new: Any, old: Any) -> Any:
    """Return `new` for the users marked in `which`, ``[n_users]``, and `old` for the others."""
    return jax.tree.map(
        lambda one, other: jnp.where(which.reshape(-1, *[1] * (one.ndim - 1)), one, other),
        new,
        old,
    )
