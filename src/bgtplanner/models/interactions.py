"""Ratings, parameters and uploads of all clients as flat arrays whose shapes never change."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from bgtplanner.data.ratings import Ratings

FEW_COLUMNS = 4
"""Columns up to which products are added edge by edge: multiplying matrices would be slower."""

_MATRIX = 8  # columns up to which rows are multiplied element by element
_VECTOR = 16  # columns up to which a power of two of them is worth while
_TABLE = 1 << 21  # products of columns, for all items, up to which they are made beforehand


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


class Parts(NamedTuple):
    """Some ratings by the chunk of their client.

    Attributes:
        members: Those of each chunk, ``[chunks, most]``; their number for none.
        place: Where each of them is in `members`, flat.
    """

    members: Array
    place: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Layout:
    """The order of the edges in which sums are dense: blocks of one user each, in chunks.

    A block is so many consecutive edges of one user. A chunk is so many blocks of whole clients;
    all chunks have the same shapes, so that a round can go through them one by one. What is left
    of a block or a chunk is filled with edges that never arrive.

    Attributes:
        user_of_block: User of each block.
        users: Users of each chunk, by client, ``[chunks, most users]``; n_users for no user.
        clients: Clients of each chunk, ``[chunks, most clients]``; n_clients for no client.
        place_of_user: Where each user is in `users`, flat.
        place_of_client: Where each client is in `clients`, flat.
        block: Number of edges in a block.
    """

    user_of_block: Array
    users: Array
    clients: Array
    place_of_user: Array
    place_of_client: Array
    block: int = field(metadata={"static": True})

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        return int(self.users.shape[0])


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
        layout: How the edges are padded and ordered for fast sums. A padded edge never arrives; a
            padded pair has the item `n_items`, which is no item.
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
    layout: Layout

    @property
    def n_users(self) -> int:
        """Number of users, those without a rating included."""
        return int(self.client_of_user.shape[0])

    @classmethod
    def of(cls, ratings: Ratings, arrival: NDArray[np.int32] | None = None) -> Interactions:
        """Return the edges of some training ratings as they came: blocks of one, in one chunk.

        Args:
            ratings: The training ratings.
            arrival: First round in which each rating can be used; by default round 0.
        """
        from bgtplanner.models.layout import laid_out  # which imports this module

        return laid_out(ratings, arrival, block=1, chunk=max(len(ratings), 1))

    def at(self, round_index: Array | int) -> Interactions:
        """Return the same edges as known in a round. Only the mask changes, no shape."""
        return replace(self, present=(self.arrival <= round_index).astype(jnp.float32))

    def chunk(self, number: Array | int) -> Interactions:
        """Return the clients of one chunk as a federation of their own, with their own indices."""
        layout = self.layout

        def part(values: Array) -> Array:
            size = values.shape[0] // layout.chunks
            return jax.lax.dynamic_slice_in_dim(values, number * size, size)

        most_users, most_clients = layout.users.shape[1], layout.clients.shape[1]
        first_user, first_client = number * most_users, number * most_clients
        users, blocks = layout.users[number], part(layout.user_of_block)
        blocks = jnp.clip(layout.place_of_user[blocks] - first_user, 0, most_users - 1)
        user = jnp.broadcast_to(blocks[:, None], (blocks.shape[0], layout.block)).ravel()
        pairs = self.pair_item.shape[0] // layout.chunks
        if self.one_user_each:
            client_of_user = jnp.arange(most_users, dtype=jnp.int32)
        else:
            of_user = layout.place_of_client[self.client_of_user[users]] - first_client
            client_of_user = jnp.where(users < self.n_users, of_user, most_clients - 1)
        pair_client = layout.place_of_client[part(self.pair_client)] - first_client
        pair_client = jnp.clip(pair_client, 0, most_clients - 1)  # of a chunk without clients
        alone = Layout(
            user_of_block=blocks,
            users=jnp.arange(most_users)[None],
            clients=jnp.arange(most_clients)[None],
            place_of_user=jnp.arange(most_users),
            place_of_client=jnp.arange(most_clients),
            block=layout.block,
        )
        return replace(
            self,
            user=user,
            item=part(self.item),
            value=part(self.value),
            arrival=part(self.arrival),
            present=part(self.present),
            pair=part(self.pair) - number * pairs,
            pair_client=pair_client,
            pair_item=part(self.pair_item),
            client_of_user=client_of_user,
            n_clients=most_clients,
            layout=alone,
        )

    @property
    def chunks(self) -> int:
        """Number of chunks that a round can go through one by one."""
        return self.layout.chunks

    def parts_of(self, user: NDArray[Any]) -> Parts | None:
        """Return other ratings of these users by chunk; None if there is only one."""
        if self.chunks == 1:
            return None
        chunk = np.asarray(self.layout.place_of_user)[user] // self.layout.users.shape[1]
        members, place = places_of(chunk, np.arange(len(user)), self.chunks)
        return Parts(jnp.asarray(members), jnp.asarray(place))

    def sum_by_user(self, values: Array) -> Array:
        """Return the sum of an edge quantity over each user."""
        return self._over_blocks(self._blocks(values).sum(1))

    def max_by_user(self, values: Array) -> Array:
        """Return the maximum of an edge quantity over each user; minus infinity without edges."""
        of_blocks, users = self._blocks(values).max(1), self.layout.user_of_block
        return jax.ops.segment_max(of_blocks, users, self.n_users)

    def of_users(self, values: Array) -> Array:
        """Return the user's value for each edge, from one value per user."""
        blocks, size = values[self.layout.user_of_block], self.layout.block
        shape = (blocks.shape[0], size, *blocks.shape[1:])
        spread = jnp.broadcast_to(blocks[:, None], shape)
        return spread.reshape(shape[0] * size, *blocks.shape[1:])

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
        clients, number = self.pair_client, self.n_clients
        return jax.ops.segment_sum(values, clients, number, indices_are_sorted=True)

    def of_clients(self, values: Array) -> Array:
        """Return the client's value for each pair, from one value per client."""
        if self.one_user_each:
            return self.of_users(values[self.client_of_user])
        return values[self.pair_client]

    def sum_by_item(self, rows: Array) -> Array:
        """Return the sum of a quantity of the pairs over each item."""
        return jax.ops.segment_sum(rows, self.pair_item, self.n_items)

    def _blocks(self, values: Array) -> Array:
        size = self.layout.block
        return values.reshape(values.shape[0] // size, size, *values.shape[1:])

    def _over_blocks(self, values: Array) -> Array:
        """Return the sum of a quantity of the blocks over each user."""
        return jax.ops.segment_sum(values, self.layout.user_of_block, self.n_users)

    def products_by_user(self, table: Array, values: Array) -> Array:
        """Return each user's sum of an edge quantity times the row of the item, ``[users, w]``.

        Args:
            table: A row per item, ``[n_items, w]``.
            values: The quantity; it counts where a rating is not known, too.
        """
        layout, width = self.layout, table.shape[1]
        if width <= FEW_COLUMNS:
            return self.sum_by_user(values[:, None] * table[self.item])
        # A power of two of columns: a processor then takes several in one instruction.
        if width <= _VECTOR:
            table = jnp.pad(table, ((0, 0), (0, (1 << (width - 1).bit_length()) - width)))
        # Written out, or what the table is made of would be computed anew for every edge.
        table = jax.lax.optimization_barrier(table)  # type: ignore[no-untyped-call]
        items, of_blocks = self._blocks(self.item), self._blocks(values)
        sums: Any = sum(of_blocks[:, at, None] * table[items[:, at]] for at in range(layout.block))
        return self._over_blocks(sums)[:, :width]

    def scores(self, table: Array, users: Array) -> Array:
        """Return the inner product of the item's row and the user's, for each edge.

        Args:
            table: A row per item, ``[n_items, w]``.
            users: A row per user, ``[n_users, w]``.
        """
        rows, layout = table[self.item], self.layout
        if layout.block == 1 or table.shape[1] <= _MATRIX:
            return (rows * self.of_users(users)).sum(1)
        # Rows are gathered first, which is faster than doing all of it at once.
        blocks = self._blocks(jax.lax.optimization_barrier(rows))  # type: ignore[no-untyped-call]
        of_blocks = users[layout.user_of_block]
        return jnp.einsum("nbw,nw->nb", blocks, of_blocks, precision="highest").ravel()

    def squares_by_user(self, table: Array) -> Array:
        """Return each user's sum of outer products of the rows of its items, ``[users, w, w]``.

        Columns are multiplied for every item instead of for every rating, as long as there is
        room. Otherwise it is computed column by column, because an outer product for every edge
        would need `w` times the memory.

        Args:
            table: A row per item, ``[n_items, w]``.
        """
        width = table.shape[1]
        one, other = np.triu_indices(width)
        if self.layout.block == 1 or one.size * self.n_items > _TABLE:
            rows = self.present[:, None] * table[self.item]
            columns = [self.sum_by_user(rows[:, at, None] * rows) for at in range(width)]
            return jnp.stack(columns, axis=1)
        sums = self.products_by_user(table[:, one] * table[:, other], self.present)
        which = np.zeros((width, width), dtype=np.int32)
        which[one, other] = which[other, one] = np.arange(one.size)
        return sums[:, which]

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
        place = jnp.arange(last, dtype=jnp.int32)
        real = self.pair_item < self.n_items  # padding comes after the items of a client
        first = jax.ops.segment_min(place, self.pair_client, self.n_clients)
        number = jax.ops.segment_sum(real.astype(jnp.int32), self.pair_client, self.n_clients)
        low, end = first[client], (first + number)[client]

        def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = bounds
            middle = (low + high) // 2
            below = (low < high) & (self.pair_item[jnp.minimum(middle, last - 1)] < item)
            return jnp.where(below, middle + 1, low), jnp.where(below, high, middle)

        steps = max(self.n_items, 1).bit_length()
        at, _ = jax.lax.fori_loop(0, steps, halve, (low, end))
        there = (at < end) & (self.pair_item[jnp.minimum(at, last - 1)] == item)
        return jnp.where(there, at, last)


def copies(shared: Shared, interactions: Interactions) -> Upload:
    """Return every client's copy of the shared parameters that it needs."""
    return Upload(
        rows=shared.items[interactions.pair_item],
        dense=jnp.broadcast_to(shared.dense, (interactions.n_clients, shared.dense.shape[0])),
    )


def places_of(
    chunk: NDArray[Any], client: NDArray[Any], chunks: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the members of each chunk, by client, and the place of each of them.

    There is room for one more in every chunk, for whatever belongs to no one.
    """
    order = np.lexsort((client, chunk))
    number = np.bincount(chunk, minlength=chunks)
    before = (np.cumsum(number) - number)[chunk[order]]
    most = int(number.max()) + 1 if chunks > 1 else int(number.max())
    place = np.empty(len(chunk), dtype=np.int32)
    place[order] = chunk[order] * most + np.arange(len(chunk)) - before
    members = np.full(chunks * most, len(chunk), dtype=np.int32)
    members[place] = np.arange(len(chunk))
    return members.reshape(chunks, most), place


def where_users(which: Array, new: Any, old: Any) -> Any:
    """Return `new` for the users marked in `which`, ``[n_users]``, and `old` for the others."""
    return jax.tree.map(
        lambda one, other: jnp.where(which.reshape(-1, *[1] * (one.ndim - 1)), one, other),
        new,
        old,
    )
