"""Which items a client pretends to have rated, and what it uploads for them (FedGNN).

Pseudo items are meant to hide which of the uploaded rows are real. They hide little: the authors
draw new ones every round, so the rows that recur are the real ones, and their size gives them
away. They are here because the paper has them; a sound upload covers a fixed, public set of items
instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from bgtplanner.federation.rounds import Draw, ExtraRows
from bgtplanner.models.interactions import Interactions, Upload
from bgtplanner.paper.rows import known_pairs


@dataclass(frozen=True)
class PseudoItems:
    """What the paper's clients upload in a round beyond what they learned.

    Attributes:
        number: The number of items that each client pretends to have rated.
    """

    number: int

    def items(self, key: Array, index: Array, interactions: Interactions) -> Array:
        """Return the items that each client pretends to have rated in a round."""
        key = jax.random.fold_in(jax.random.fold_in(key, index), Draw.PSEUDO_ITEMS)
        return pseudo_items(key, interactions, self.number)

    def rows(
        self, key: Array, index: Array, upload: Upload, interactions: Interactions
    ) -> ExtraRows:
        """Return the rows that are uploaded for them."""
        items = self.items(key, index, interactions)
        key = jax.random.fold_in(jax.random.fold_in(key, index), Draw.PSEUDO_ROWS)
        return ExtraRows(items, pseudo_rows(key, upload.rows, interactions, self.number))


def pseudo_items(key: Array, interactions: Interactions, number: int) -> Array:
    """Draw distinct items that each client has not rated so far, ``[n_clients, number]``.

    Every unrated item of a client is equally likely. One is drawn from each of `number` strata
    under a random rotation, which needs no memory of size clients x items. Where a client has
    fewer unrated items than `number`, the missing ones are -1.
    """
    known = known_pairs(interactions)
    unrated = interactions.n_items - interactions.sum_pairs(known).astype(jnp.int32)
    take = jnp.minimum(unrated, number)[:, None]
    stratum = jnp.arange(number)
    pick_key, turn_key = jax.random.split(key)
    low = _share(stratum, unrated[:, None], take)
    high = _share(stratum + 1, unrated[:, None], take)
    position = low + jnp.floor(
        jax.random.uniform(pick_key, (interactions.n_clients, number)) * (high - low)
    ).astype(jnp.int32)
    turn = jnp.floor(jax.random.uniform(turn_key, (interactions.n_clients, 1)) * unrated[:, None])
    rank = (position + turn.astype(jnp.int32)) % jnp.maximum(unrated[:, None], 1)
    items = _unrated_item(rank, interactions, known)
    return jnp.where(stratum < take, items, -1)


def _share(stratum: Array, unrated: Array, take: Array) -> Array:
    """Return where a stratum begins: floor(unrated * stratum / take), without overflow."""
    whole, rest = jnp.divmod(unrated, jnp.maximum(take, 1))
    return whole * stratum + rest * stratum // jnp.maximum(take, 1)


def _unrated_item(rank: Array, interactions: Interactions, known: Array) -> Array:
    """Return the item of the given rank among those that a client has not rated.

    A client's rated items r_0 < r_1 < ... leave ``r_k - k`` unrated ones below r_k, so the rank-th
    unrated item is ``rank`` plus the number of k with ``r_k - k <= rank``, found by bisection.
    """
    sizes = jax.ops.segment_sum(
        jnp.ones_like(interactions.pair_client), interactions.pair_client, interactions.n_clients
    )
    ends = jnp.cumsum(sizes)
    starts = ends - sizes
    # Counted in integers: single precision has no odd numbers above 16,777,216.
    counted = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(known.astype(jnp.int32))])
    before = counted[:-1] - counted[starts[interactions.pair_client]]
    below = jnp.append(interactions.pair_item - before, 0)  # the end is read, but never used

    def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low + high) // 2
        inside = (low < high) & (below[jnp.minimum(middle, below.shape[0] - 1)] <= rank)
        return jnp.where(inside, middle + 1, low), jnp.where(inside, high, middle)

    shape = rank.shape
    low = jnp.broadcast_to(starts[:, None], shape)
    high = jnp.broadcast_to(ends[:, None], shape)
    steps = max(interactions.n_items, 1).bit_length() + 1
    position, _ = jax.lax.fori_loop(0, steps, halve, (low, high))
    return rank + counted[position] - counted[starts[:, None]]


def pseudo_rows(key: Array, rows: Array, interactions: Interactions, number: int) -> Array:
    """Draw gradients for the pseudo items, ``[n_clients, number, width]``.

    They are normal with the mean and the standard deviation of the entries of the client's real
    rows, as in the authors' code. A row that is not finite is left out, so that it does not reach
    the server by way of the others.
    """
    known = known_pairs(interactions)[:, None]
    finite = jnp.isfinite(rows).all(1, keepdims=True)
    known, rows = known * finite, jnp.where(finite, rows, 0.0)
    width = rows.shape[1]

    def total(entries: Array) -> Array:
        return jax.ops.segment_sum(
            entries.sum(1), interactions.pair_client, interactions.n_clients
        )

    entries = total(jnp.broadcast_to(known, rows.shape))
    mean = total(rows * known) / jnp.maximum(entries, 1.0)
    centred = (rows - mean[interactions.pair_client, None]) * known
    deviation = jnp.sqrt(total(centred**2) / jnp.maximum(entries - 1.0, 1.0))
    noise = jax.random.normal(key, (interactions.n_clients, number, width))
    return mean[:, None, None] + deviation[:, None, None] * noise
