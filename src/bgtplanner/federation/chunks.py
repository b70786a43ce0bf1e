"""How a round goes through the clients: chunk by chunk, so that memory is bounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import Array

from bgtplanner.data.ratings import Ratings
from bgtplanner.models.interactions import Interactions, Parts
from bgtplanner.models.learner import Local


class Heldout(NamedTuple):
    """Ratings that no client trains on: the test set."""

    user: Array
    item: Array
    value: Array
    parts: Parts | None = None  # how they are divided into the chunks of the training ratings

    @classmethod
    def of(cls, ratings: Ratings, interactions: Interactions) -> Heldout:
        """Return these ratings, divided as the training ratings are."""
        user, item, value = map(jnp.asarray, (ratings.user, ratings.item, ratings.value))
        return cls(user, item, value, interactions.parts_of(ratings.user))


Pairs = list[tuple[Array, Array]]
"""User and item of each list of pairs to predict."""

Computed = tuple[Local, Any, list[Array], Any]
"""What clients keep, a tree of arrays with an entry per client, an array for each list of pairs,
and a tree of arrays that are added up over all clients."""

Compute = Callable[[Interactions, Local, Any, tuple[Array, ...], Pairs], Computed]
"""Computes it from the clients' ratings and what they keep, what all are given, further arrays
with an entry per client, and pairs to predict."""


def by_chunk(
    compute: Compute, interactions: Interactions, local: Local, given: Any, *,
    clients: tuple[Array, ...] = (), asked: Sequence[Heldout] = (),
) -> Computed:  # fmt: skip
    """Return what is computed for all clients, chunk by chunk, so that memory is bounded.

    What is computed must not depend on anything random: noise is drawn once, for the sum of all.
    """
    every, members_of = interactions.users, interactions.clients.members
    if interactions.chunks == 1 or any(each.parts is None for each in asked):
        pairs = [(each.user, each.item) for each in asked]
        return compute(interactions, local, given, clients, pairs)
    most_users = every.members.shape[1]
    parts = [cast(Parts, each.parts) for each in asked]

    def of_chunk(number: Array) -> Computed:
        users, members = every.members[number], members_of[number]
        there = members < interactions.n_clients
        pairs = []
        for each, part in zip(asked, parts, strict=True):
            if not each.user.size:
                pairs.append((each.user, each.item))
                continue
            which = part.members[number]
            own_user = every.place[each.user[which]] - number * most_users
            pairs.append((jnp.clip(own_user, 0, most_users - 1), each.item[which]))
        own = jax.tree.map(lambda leaf: leaf[users], local)
        of_clients = tuple(jnp.where(there, part[members], 0) for part in clients)
        return compute(interactions.chunk(number), own, given, of_clients, pairs)

    def one(sums: Any, number: Array) -> tuple[Any, Any]:
        *rest, more = of_chunk(number)
        return jax.tree.map(jnp.add, sums, more), tuple(rest)

    shapes = jax.eval_shape(of_chunk, jnp.int32(0))[3]
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    numbers = jnp.arange(interactions.chunks, dtype=jnp.int32)
    sums, (kept, of_clients, answers) = jax.lax.scan(one, nothing, numbers)

    def placed(leaf: Array, place: Array) -> Array:
        flat = leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])
        return flat[place] if place.size else flat[:0]

    return (
        jax.tree.map(lambda leaf: placed(leaf, every.place), kept),
        jax.tree.map(lambda leaf: placed(leaf, interactions.clients.place), of_clients),
        [placed(leaf, part.place) for leaf, part in zip(answers, parts, strict=True)],
        sums,
    )
