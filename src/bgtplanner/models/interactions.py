"""Ratings, parameters and uploads of all clients as flat arrays whose shapes never change.

A rating is an *edge* between a user and an item. The edges of a user fill blocks, and blocks of
whole clients fill chunks: sums over a block are dense, and since all chunks have the same shapes,
a round can go through them one by one, in bounded memory. What is left of a block or a chunk is
filled with edges that never arrive.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from bgtplanner.data.ratings import Ratings

FEW_COLUMNS = 8
"""Columns up to which products are added edge by edge. Of more, a multiple of it is fastest."""

_NEVER = np.iinfo(np.int32).max
_DAY = 86_400.0  # seconds
_SMALL = 50_000  # ratings up to which nothing is laid out: programs compile faster without
_BLOCKS = (32, 16, 8, 4, 2, 1)
_MOST_PADDING = 1.3  # of a block size, relative to the ratings
_CHUNK = {"cpu": 1 << 15}  # edges of a chunk: on CPUs as many as stay in the cache
_LARGE_CHUNK = 1 << 26


class Shared(NamedTuple):
    """The parameters that the server holds and sends out."""

    items: Array  # one row per item, `[n_items, width]`
    dense: Array  # everything else, flat; may be empty


class Upload(NamedTuple):
    """Arrays in the shape of all clients' uploads: their copies, or their statistics."""

    rows: Array  # one per client-item pair, `[n_pairs, width]`
    dense: Array  # one row per client, `[n_clients, dense_size]`


class Parts(NamedTuple):
    """Some things by the chunk that they are in."""

    members: Array  # of each chunk, `[chunks, most]`; their number for none
    place: Array  # where each of them is in `members`, flat


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Interactions:
    """Training ratings as the edges of all clients' graphs, sorted by client."""

    item: Array  # of each edge, as all that is not said to be of something else
    value: Array
    day: Array  # when it was given, in days since 1970; empty where no times are known
    arrival: Array  # first round in which it is known
    present: Array  # 1 if it is known now, 0 if it has not arrived; see `at`
    pair: Array  # the row of the upload that it belongs to
    pair_client: Array  # client of each pair; for padding `n_clients`, which is no client
    pair_item: Array  # item of each pair; for padding `n_items`, which is no item
    client_of_user: Array
    user_of_block: Array  # for padding `n_users`, which is no user
    users: Parts  # of each chunk, by client
    clients: Parts  # of each chunk
    features: Array  # of the items, public, `[n_items, n_features]`; may have no columns
    n_items: int = field(metadata={"static": True})
    n_clients: int = field(metadata={"static": True})
    one_user_each: bool = field(metadata={"static": True})  # then the pairs are the edges
    block: int = field(metadata={"static": True})  # edges in a block
    accelerated: bool = field(metadata={"static": True})  # laid out for an accelerator

    @classmethod
    def of(cls, ratings: Ratings, arrival: NDArray[np.int32] | None = None) -> Interactions:
        """Return the edges of some training ratings as they came: blocks of one, in one chunk."""
        return laid_out(ratings, arrival, block=1, chunk=max(len(ratings), 1))

    @property
    def n_users(self) -> int:
        """Number of users, those without a rating included."""
        return int(self.client_of_user.shape[0])

    @property
    def chunks(self) -> int:
        """Number of chunks that a round can go through one by one."""
        return int(self.users.members.shape[0])

    @property
    def user(self) -> Array:
        """User of each edge."""
        return jnp.repeat(self.user_of_block, self.block)

    @property
    def ratings_of_clients(self) -> Array:
        """Number of ratings that each client knows now."""
        return self.sum_by_client(self.present)

    def at(self, round_index: Array | int) -> Interactions:
        """Return the same edges as known in a round. Only the mask changes, no shape."""
        return replace(self, present=(self.arrival <= round_index).astype(jnp.float32))

    def chunk(self, number: Array | int) -> Interactions:
        """Return the clients of one chunk as a federation of their own, with their own indices."""

        def part(values: Array) -> Array:
            size = values.shape[0] // self.chunks
            return jax.lax.dynamic_slice_in_dim(values, number * size, size)

        def own(which: Array, parts: Parts) -> Array:
            place = parts.place[which] - number * parts.members.shape[1]
            there = which < parts.place.shape[0]  # who is no one has the last place
            return jnp.where(there, place, parts.members.shape[1] - 1).astype(jnp.int32)

        def alone(parts: Parts) -> Parts:
            every = jnp.arange(parts.members.shape[1], dtype=jnp.int32)
            return Parts(every[None], every)

        return replace(
            self,
            item=part(self.item),
            value=part(self.value),
            day=part(self.day),
            arrival=part(self.arrival),
            present=part(self.present),
            pair=part(self.pair) - number * (self.pair_item.shape[0] // self.chunks),
            pair_client=own(part(self.pair_client), self.clients),
            pair_item=part(self.pair_item),
            client_of_user=own(
                jnp.append(self.client_of_user, self.n_clients)[self.users.members[number]],
                self.clients,
            ),
            user_of_block=own(part(self.user_of_block), self.users),
            users=alone(self.users),
            clients=alone(self.clients),
            n_clients=self.clients.members.shape[1],
        )

    def parts_of(self, user: NDArray[Any]) -> Parts | None:
        """Return other ratings of these users by chunk; None if there is only one."""
        if self.chunks == 1:
            return None
        chunk = np.asarray(self.users.place)[user] // self.users.members.shape[1]
        return Parts(*map(jnp.asarray, _parts(chunk, self.chunks)))

    def sum_by_user(self, values: Array) -> Array:
        """Return the sum of an edge quantity over each user."""
        return self.sum_blocks(self._blocks(values).sum(1))

    def max_by_user(self, values: Array) -> Array:
        """Return the maximum of an edge quantity over each user; minus infinity without edges."""
        return jax.ops.segment_max(self._blocks(values).max(1), self.user_of_block, self.n_users)

    def of_users(self, values: Array) -> Array:
        """Return the user's value for each edge, from one value per user."""
        return jnp.repeat(self.of_blocks(values), self.block, axis=0)

    def sum_by_client(self, values: Array) -> Array:
        """Return the sum of an edge quantity over each client."""
        of_users = self.sum_by_user(values)
        return jax.ops.segment_sum(of_users, self.client_of_user, self.n_clients)

    def sum_by_pair(self, values: Array) -> Array:
        """Return the sum of an edge quantity over each pair."""
        if self.one_user_each:
            return values
        return jax.ops.segment_sum(values, self.pair, self.pair_item.shape[0])

    def sum_pairs(self, values: Array) -> Array:
        """Return the sum of a quantity of the pairs over each client."""
        if self.one_user_each:
            return self.sum_by_client(values)
        return jax.ops.segment_sum(values, self.pair_client, self.n_clients)

    def of_clients(self, values: Array) -> Array:
        """Return the client's value for each pair, from one value per client."""
        if self.one_user_each:
            return self.of_users(values[self.client_of_user])
        return values[self.pair_client]

    def sum_by_item(self, rows: Array) -> Array:
        """Return the sum of rows, one for each pair, over each item."""
        return jax.ops.segment_sum(rows, self.pair_item, self.n_items)

    def rows_of(self, rows: Array) -> Array:
        """Return the row of each edge, from one row per pair."""
        return rows if self.one_user_each else rows[self.pair]

    def _blocks(self, values: Array) -> Array:
        return values.reshape(values.shape[0] // self.block, self.block, *values.shape[1:])

    def sum_blocks(self, values: Array) -> Array:
        """Return the sum of a quantity of the blocks over each user."""
        return jax.ops.segment_sum(values, self.user_of_block, self.n_users)

    def of_blocks(self, values: Array) -> Array:
        """Return the user's value for each block, from one value per user."""
        return values[self.user_of_block]

    def known_rows(self, table: Array) -> Array:
        """Return the row of each edge's item by blocks, ``[blocks, block, width]``.

        It is zero where a rating is not known. Written out once, it is used many times.
        """
        rows = self.present[:, None] * table[self.item]
        written: Array = jax.lax.optimization_barrier(rows)  # type: ignore[no-untyped-call]
        return self._blocks(written)

    def products_by_user(self, table: Array, values: Array) -> Array:
        """Return each user's sum of an edge quantity times the row of the item, ``[users, w]``.

        The quantity counts where a rating is not known, too.
        """
        width = table.shape[1]
        if width <= FEW_COLUMNS:
            return self.sum_by_user(values[:, None] * table[self.item])
        # Written out, or what the table is made of would be computed anew for every edge.
        table = jax.lax.optimization_barrier(whole_vectors(table))  # type: ignore[no-untyped-call]
        items, of_blocks = self._blocks(self.item), self._blocks(values)
        sums: Any = sum(of_blocks[:, at, None] * table[items[:, at]] for at in range(self.block))
        return self.sum_blocks(sums)[:, :width]

    def scores(self, table: Array, users: Array) -> Array:
        """Return the inner product of the item's row and the user's row, for each edge."""
        if table.shape[1] <= FEW_COLUMNS or self.accelerated:
            return (table[self.item] * self.of_users(users)).sum(1)
        rows, of_blocks = self._blocks(table[self.item]), self.of_blocks(users)
        return jnp.einsum("bew,bw->be", rows, of_blocks, precision="highest").ravel()

    def squares_by_user(self, table: Array) -> Array:
        """Return each user's sum of outer products of the rows of its items, ``[users, w, w]``."""
        rows = self.present[:, None] * table[self.item]
        if table.shape[1] <= FEW_COLUMNS:
            return self.sum_by_user(rows[:, :, None] * rows[:, None, :])
        rows = self._blocks(rows)
        return self.sum_blocks(jnp.einsum("bew,bev->bwv", rows, rows, precision="highest"))

    def find_pair(self, client: Array, item: Array) -> Array:
        """Return the index of client-item pairs; the number of all pairs for an unknown pair.

        Only for clients with several users: the pairs of each are sorted by item.
        """
        last = self.pair_item.shape[0]
        place = jnp.arange(last, dtype=jnp.int32)
        low = jax.ops.segment_min(place, self.pair_client, self.n_clients)[client]
        number = jax.ops.segment_sum(jnp.ones_like(place), self.pair_client, self.n_clients)
        end = low + number[client]

        def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = bounds
            middle = (low + high) // 2
            below = (low < high) & (self.pair_item[jnp.minimum(middle, last - 1)] < item)
            return jnp.where(below, middle + 1, low), jnp.where(below, high, middle)

        at, _ = jax.lax.fori_loop(0, max(self.n_items, 1).bit_length(), halve, (low, end))
        there = (at < end) & (self.pair_item[jnp.minimum(at, last - 1)] == item)
        return jnp.where(there, at, last)


def laid_out(
    ratings: Ratings, arrival: NDArray[np.int32] | None = None, *,
    block: int | None = None, chunk: int | None = None,
) -> Interactions:  # fmt: skip
    """Return the edges of training ratings, sorted by client, in blocks and chunks of so many.

    Small data stay as they are. By default all arrive in round 0, blocks are as large as their
    padding allows, and chunks fit the caches of a CPU, or the memory of an accelerator.
    """
    if block is None and len(ratings) <= _SMALL:
        return Interactions.of(ratings, arrival)
    platform = next(iter(jnp.zeros(()).devices())).platform
    if chunk is None:
        chunk = _CHUNK.get(platform, _LARGE_CHUNK)
    n_users, n_items, n_clients = ratings.n_users, ratings.n_items, ratings.n_clients
    of_users = np.bincount(ratings.user, minlength=n_users)
    if block is None:
        most = _MOST_PADDING * len(ratings)
        block = next(size for size in _BLOCKS if (-(-of_users // size)).sum() * size <= most)
    needed, client_of_user = -(-of_users // block), ratings.client_of_user
    chunk_of_client = _chunks(
        np.bincount(client_of_user, needed, n_clients), max(chunk // block, 1)
    )
    chunks, chunk_of_user = int(chunk_of_client.max()) + 1, chunk_of_client[client_of_user]
    order = np.argsort(client_of_user, kind="stable")
    owner = np.repeat(order, needed[order])  # of each block
    blocks = _parts(chunk_of_user[owner], chunks)
    user_of_block = np.append(owner, n_users)[blocks.members.ravel()]
    # The place of a rating: its user's first block, and its number among the user's ratings.
    begin, run = np.zeros((2, n_users), np.int64)
    begin[order] = np.append(blocks.place, 0)[np.cumsum(needed[order]) - needed[order]]
    run[order] = np.cumsum(of_users[order]) - of_users[order]
    place = (begin * block - run)[ratings.user] + np.arange(len(ratings))

    def filled(values: Any, fill: int, kind: Any = np.int32) -> NDArray[Any]:
        made = np.full(len(user_of_block) * block, fill, dtype=kind)
        made[place] = values
        return made

    if n_clients == n_users:
        pair: NDArray[Any] = np.arange(len(user_of_block) * block)
        pair_client = np.append(client_of_user, n_clients)[np.repeat(user_of_block, block)]
        pair_item = filled(ratings.item, n_items)
    else:
        key = ratings.client.astype(np.int64) * n_items + ratings.item
        keys, of_rating = np.unique(key, return_inverse=True)
        client, item = np.divmod(keys, n_items)
        pairs = _parts(chunk_of_client[client], chunks)
        members, size = pairs.members.ravel(), len(user_of_block) * block // chunks
        pair_client = np.append(client, n_clients)[members]
        pair_item = np.append(item, n_items)[members]
        pair = np.repeat(np.arange(chunks) * pairs.members.shape[1], size)
        pair[place] = pairs.place[of_rating]
    known = filled(0 if arrival is None else arrival, _NEVER)
    none = np.zeros(0, np.float32)
    days = none if ratings.time is None else filled(ratings.time / _DAY, 0, np.float32)
    whole: Any = jax.tree.map(
        lambda part: part.astype(np.int32) if part.dtype.kind in "iu" else part,
        {
            "item": filled(ratings.item, 0),
            "value": filled(ratings.value, 0, np.float32),
            "day": days,
            "arrival": known,
            "present": (known <= 0).astype(np.float32),
            "pair": pair,
            "pair_client": pair_client,
            "pair_item": pair_item,
            "client_of_user": client_of_user,
            "user_of_block": user_of_block,
            "users": _parts(chunk_of_user, chunks, client_of_user),
            "clients": _parts(chunk_of_client, chunks),
            "features": ratings.features,
        },
    )
    return Interactions(
        **jax.tree.map(jax.device_put, whole),
        n_items=n_items,
        n_clients=n_clients,
        one_user_each=n_clients == n_users,
        block=block,
        accelerated=block > 1 and platform not in _CHUNK,
    )


def _chunks(of_clients: NDArray[Any], most: int) -> NDArray[np.int64]:
    """Return the chunk of each client, in order; all are about as large, at most about `most`."""
    ends = np.cumsum(of_clients)
    chunks = max(-(-int(ends[-1]) // most), 1)
    middle = (ends - of_clients / 2) * chunks / max(ends[-1], 1)
    chunk = np.minimum(middle.astype(np.int64), chunks - 1)
    return np.unique(chunk, return_inverse=True)[1]  # one client may be larger than a chunk


def _parts(chunk: NDArray[Any], chunks: int, by: NDArray[Any] | None = None) -> Parts:
    """Return things by their chunk, in their order or ordered `by` something.

    Where there are several chunks, each has room for one more, for whatever belongs to no one.
    """
    order = np.argsort(chunk, kind="stable") if by is None else np.lexsort((by, chunk))
    number = np.bincount(chunk, minlength=chunks)
    before = (np.cumsum(number) - number)[chunk[order]]
    most = int(number.max()) + (chunks > 1)
    place = np.empty(len(chunk), dtype=np.int64)
    place[order] = chunk[order] * most + np.arange(len(chunk)) - before
    members = np.full(chunks * most, len(chunk))
    members[place] = np.arange(len(chunk))
    made: Any = Parts  # of NumPy arrays, until they are placed
    found: Parts = made(members.reshape(chunks, most), place)
    return found


def whole_vectors(columns: Array) -> Array:
    """Return more than a few columns with zeros behind them, up to a multiple of a few."""
    width = columns.shape[-1]
    missing = -width % FEW_COLUMNS if width > FEW_COLUMNS else 0
    return jnp.pad(columns, [(0, 0)] * (columns.ndim - 1) + [(0, missing)])


def copies(shared: Shared, interactions: Interactions) -> Upload:
    """Return every client's copy of the shared parameters that it needs."""
    return Upload(
        rows=shared.items[interactions.pair_item],
        dense=jnp.broadcast_to(shared.dense, (interactions.n_clients, shared.dense.shape[0])),
    )


def where_users(which: Array, new: Any, old: Any) -> Any:
    """Return `new` for the users marked in `which`, ``[n_users]``, and `old` for the others."""
    return jax.tree.map(
        lambda one, other: jnp.where(which.reshape(-1, *[1] * (one.ndim - 1)), one, other),
        new,
        old,
    )
