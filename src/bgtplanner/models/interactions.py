"""Ratings, parameters and uploads of all clients as flat arrays whose shapes never change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from bgtplanner.data.ratings import Ratings

__all__ = [
    "CLIENTS",
    "COPIED",
    "DIVIDED",
    "Interactions",
    "Layout",
    "Parts",
    "Shared",
    "Upload",
    "copies",
    "normal_equations",
    "ridge",
    "solved_systems",
    "where_users",
]

CLIENTS = "clients"
"""The axis of several devices along which clients are divided, in whole chunks."""

DIVIDED = PartitionSpec(CLIENTS)  # type: ignore[no-untyped-call]
"""How arrays lie on several devices whose first axis is divided by chunk."""

COPIED = PartitionSpec()  # type: ignore[no-untyped-call]
"""How arrays lie on several devices of which each has the whole."""

_OF_EDGES = (
    "user", "item", "value", "arrival", "present", "pair", "pair_client", "pair_item",
)  # fmt: skip
_FEW_COLUMNS = 4
_ROWS = 8  # of edges that are added at a time
_VECTOR = 16  # columns up to which a CPU is given a power of two of them: see _wide
_TABLE = 1 << 21  # products of columns, for all items, up to which they are made beforehand
_UNROLLED = 8  # columns up to which systems are made and solved element by element
_DENSE = 8  # entries per pair up to which pairs are looked up in a table
_STEPS = 10  # of conjugate gradients; the error is then far below that of the data
_NEVER = np.iinfo(np.int32).max
_SMALL = 50_000  # ratings up to which nothing is laid out: programs compile faster without
_BLOCKS = (32, 16, 8)
_MOST_PADDING = 1.3  # of a block size, relative to the ratings
_CHUNK = {"cpu": 1 << 17}  # edges of a chunk: on CPUs as many as stay in the cache
_LARGE_CHUNK = 1 << 26


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
        by_row: Whether sums of products are best added row by row: on CPUs, where the products
            then are never written out.
        place: The row of each client-item pair, in the order in which the pairs would be without
            a layout; None if nothing depends on that order.
        mesh: Devices among which the chunks are divided; None if they are all on one.
    """

    user_of_block: Array
    users: Array
    clients: Array
    place_of_user: Array
    place_of_client: Array
    block: int = field(metadata={"static": True})
    by_row: bool = field(metadata={"static": True})
    place: Array | None = None
    mesh: Mesh | None = field(default=None, metadata={"static": True})

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
        layout: How the edges are padded and ordered for fast sums; None if they are as they came.
            A padded edge never arrives; a padded pair has the item `n_items`, which is no item.
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
    layout: Layout | None = None

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

    @classmethod
    def laid_out(
        cls,
        ratings: Ratings,
        arrival: NDArray[np.int32] | None = None,
        *,
        block: int | None = None,
        chunk: int | None = None,
        mesh: Mesh | None = None,
        ordered: bool = False,
        always: bool = False,
    ) -> Interactions:
        """Return the edges in a layout that makes sums fast and bounds memory.

        Small data stay as they are, on one device. By default blocks are as large as their padding
        allows, and chunks fit the caches of a CPU, or the memory of an accelerator.

        Args:
            ratings: The training ratings.
            arrival: First round in which each rating can be used; by default round 0.
            block: Number of edges in a block.
            chunk: Number of edges in a chunk, about; clients are not divided.
            mesh: Devices among which to divide the chunks; by default the one that JAX uses.
            ordered: Whether something depends on the order of the pairs; see :meth:`in_order`.
                Then there is one chunk.
            always: Whether small data are laid out, too.
        """
        if mesh is None and block is None and not always and len(ratings) <= _SMALL:
            return cls.of(ratings, arrival)
        devices = jnp.zeros(()).devices() if mesh is None else mesh.devices.flat
        platform = next(iter(devices)).platform
        if chunk is None:
            chunk = _CHUNK.get(platform, _LARGE_CHUNK)
        chunk = _NEVER if ordered else chunk
        made, places = _laid_out(ratings, arrival, block, chunk, mesh, by_row=platform == "cpu")
        if not ordered or not made.one_user_each:  # the pairs of several users have kept it
            return made
        layout = replace(cast(Layout, made.layout), place=_put(places, mesh, COPIED))
        return replace(made, layout=layout)

    def in_order(self, draw: Callable[[int], Array]) -> Array:
        """Return a row for each pair, from what gives so many rows in the order of no layout."""
        place = None if self.layout is None else self.layout.place
        if place is None:
            return draw(self.pair_item.shape[0])
        rows = draw(place.shape[0])
        filled = jnp.zeros((self.pair_item.shape[0], *rows.shape[1:]), rows.dtype)
        return filled.at[place].set(rows, unique_indices=True)

    def put(self, values: NDArray[Any]) -> Array:
        """Return an array on the devices of the edges, whole on each of them."""
        return _put(values, None if self.layout is None else self.layout.mesh, COPIED)

    @property
    def specs(self) -> Interactions:
        """How each array is divided among several devices: edges by chunk, all else is copied."""
        whole: Interactions = jax.tree.map(lambda _: COPIED, self)
        divided: Any = dict.fromkeys(_OF_EDGES, DIVIDED)
        if whole.layout is not None:
            parts: Any = dict.fromkeys(("user_of_block", "users", "clients"), DIVIDED)
            divided["layout"] = replace(whole.layout, **parts)
        return replace(whole, **divided)

    @property
    def first_chunk(self) -> Array | int:
        """Number of the first chunk that is here; each of several devices has only its own."""
        if self.layout is None or self.layout.mesh is None:
            return 0
        return jax.lax.axis_index(CLIENTS) * self.layout.chunks

    def chunk(self, number: Array | int) -> Interactions:
        """Return the clients of one chunk as a federation of their own, with their own indices.

        On several devices, chunks are counted from the first that is here.
        """
        layout = self.layout
        if layout is None:
            return self
        whole = self.first_chunk + number

        def part(values: Array) -> Array:
            size = values.shape[0] // layout.chunks
            return jax.lax.dynamic_slice_in_dim(values, number * size, size)

        most_users, most_clients = layout.users.shape[1], layout.clients.shape[1]
        first_user, first_client = whole * most_users, whole * most_clients
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
            by_row=layout.by_row,
        )
        return replace(
            self,
            user=user,
            item=part(self.item),
            value=part(self.value),
            arrival=part(self.arrival),
            present=part(self.present),
            pair=part(self.pair) - whole * pairs,
            pair_client=pair_client,
            pair_item=part(self.pair_item),
            client_of_user=client_of_user,
            n_clients=most_clients,
            layout=alone,
        )

    @property
    def chunks(self) -> int:
        """Number of chunks that a round can go through one by one."""
        return 1 if self.layout is None else self.layout.chunks

    def parts_of(self, user: NDArray[Any]) -> Parts | None:
        """Return other ratings of these users by chunk; None if there is only one."""
        if self.layout is None or self.chunks == 1:
            return None
        chunk = np.asarray(self.layout.place_of_user)[user] // self.layout.users.shape[1]
        members, place = _places(chunk, np.arange(len(user)), self.chunks)
        return Parts(_put(members, self.layout.mesh), self.put(place))

    def sum_by_user(self, values: Array) -> Array:
        """Return the sum of an edge quantity over each user."""
        if self.layout is None:
            return jax.ops.segment_sum(values, self.user, self.n_users)
        return self._over_blocks(self._blocks(values).sum(1))

    def max_by_user(self, values: Array) -> Array:
        """Return the maximum of an edge quantity over each user; minus infinity without edges."""
        if self.layout is None:
            return jax.ops.segment_max(values, self.user, self.n_users)
        of_blocks, users = self._blocks(values).max(1), self.layout.user_of_block
        return jax.ops.segment_max(of_blocks, users, self.n_users)

    def of_users(self, values: Array) -> Array:
        """Return the user's value for each edge, from one value per user."""
        if self.layout is None:
            return values[self.user]
        blocks, size = values[self.layout.user_of_block], self.layout.block
        shape = (blocks.shape[0], size, *blocks.shape[1:])
        spread = jnp.broadcast_to(blocks[:, None], shape)
        return spread.reshape(shape[0] * size, *blocks.shape[1:])

    def sum_by_client(self, values: Array) -> Array:
        """Return the sum of an edge quantity over each client."""
        if self.layout is None:
            return jax.ops.segment_sum(values, self.client_of_user[self.user], self.n_clients)
        of_users = self.sum_by_user(values)
        return jax.ops.segment_sum(of_users, self.client_of_user, self.n_clients)

    def sum_by_pair(self, values: Array) -> Array:
        """Return the sum of an edge quantity over each pair."""
        if self.one_user_each:
            return values
        return jax.ops.segment_sum(values, self.pair, self.pair_item.shape[0])

    def sum_pairs(self, values: Array) -> Array:
        """Return the sum of a quantity of the pairs over each client."""
        if self.layout is not None and self.one_user_each:
            return self.sum_by_client(values)
        return jax.ops.segment_sum(
            values, self.pair_client, self.n_clients, indices_are_sorted=self.layout is not None
        )

    def of_clients(self, values: Array) -> Array:
        """Return the client's value for each pair, from one value per client."""
        if self.layout is not None and self.one_user_each:
            return self.of_users(values[self.client_of_user])
        return values[self.pair_client]

    def sum_by_item(self, rows: Array) -> Array:
        """Return the sum of a quantity of the pairs over each item."""
        if self.layout is None or not self.layout.by_row or rows.ndim == 1:
            return jax.ops.segment_sum(rows, self.pair_item, self.n_items)
        width = rows.shape[1]
        filled = jnp.pad(rows, ((0, 0), (0, _wide(width) - width)))
        return jax.ops.segment_sum(filled, self.pair_item, self.n_items)[:, :width]

    def _blocks(self, values: Array) -> Array:
        size = 1 if self.layout is None else self.layout.block
        return values.reshape(values.shape[0] // size, size, *values.shape[1:])

    def _over_blocks(self, values: Array) -> Array:
        """Return the sum of a quantity of the blocks over each user."""
        users = cast(Layout, self.layout).user_of_block
        return jax.ops.segment_sum(values, users, self.n_users)

    def products_by_user(self, table: Array, values: Array) -> Array:
        """Return each user's sum of an edge quantity times the row of the item, ``[users, w]``.

        Args:
            table: A row per item, ``[n_items, w]``.
            values: The quantity; it counts where a rating is not known, too.
        """
        layout, width = self.layout, table.shape[1]
        if layout is None or not layout.by_row or width <= _FEW_COLUMNS:
            return self.sum_by_user(values[:, None] * table[self.item])
        # Filled with columns that are there already: zeros would not be written out, but asked
        # for again with every element.
        filled = jnp.concatenate([table, table[:, : _wide(width) - width]], axis=1)

        def row(total: Array, edges: tuple[Array, Array]) -> tuple[Array, None]:
            item, value = edges
            return total + value[:, None] * filled[item], None

        # The first edges of all blocks, then the second ones: several rows at a time, so that
        # their sum stays in registers. All of a block at once only from a table that has been
        # written out: another one would be computed anew for every row.
        rows = self._blocks(self.item).T, self._blocks(values).T
        nothing = jnp.zeros((rows[0].shape[1], filled.shape[1]), table.dtype)
        most = _ROWS if filled.shape == table.shape else max(_BLOCKS)
        unroll = min(most, layout.block)
        sums = self._over_blocks(jax.lax.scan(row, nothing, rows, unroll=unroll)[0])
        return sums[:, :width]

    def scores(self, table: Array, users: Array) -> Array:
        """Return the inner product of the item's row and the user's, for each edge.

        Args:
            table: A row per item, ``[n_items, w]``.
            users: A row per user, ``[n_users, w]``.
        """
        rows, layout = table[self.item], self.layout
        if layout is None or not layout.by_row or table.shape[1] <= _UNROLLED:
            return (rows * self.of_users(users)).sum(1)
        rows = jax.lax.optimization_barrier(rows)  # type: ignore[no-untyped-call]
        blocks = self._blocks(rows)  # they were gathered first: fused, it would be slower
        return jnp.einsum(
            "nbw,nw->nb", blocks, users[layout.user_of_block], precision="highest"
        ).ravel()

    def squares_by_user(self, table: Array) -> Array:
        """Return each user's sum of outer products of the rows of its items, ``[users, w, w]``.

        On CPUs, columns are multiplied for every item instead of for every rating, as long as the
        products fit their caches. Without a layout it is computed column by column, because an
        outer product for every edge would need `w` times the memory.

        Args:
            table: A row per item, ``[n_items, w]``.
        """
        width, layout = table.shape[1], self.layout
        one, other = np.triu_indices(width)
        small = one.size * self.n_items <= _TABLE and width > _FEW_COLUMNS
        if layout is not None and layout.by_row and small:
            sums = self.products_by_user(table[:, one] * table[:, other], self.present)
            which = np.zeros((width, width), dtype=np.int32)
            which[one, other] = which[other, one] = np.arange(one.size)
            return sums[:, which]
        if layout is None or width <= _UNROLLED:
            rows = self.present[:, None] * table[self.item]
            if layout is not None:  # one pass; products of such small matrices would be slow
                return self.sum_by_user(rows[:, :, None] * rows[:, None, :])
            columns = range(width)
            return jnp.stack([self.sum_by_user(rows[:, a, None] * rows) for a in columns], axis=1)
        blocks = self._blocks(self.present[:, None] * table[self.item])
        return self._over_blocks(jnp.einsum("nba,nbc->nac", blocks, blocks, precision="highest"))

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
        if self.n_clients * self.n_items <= _DENSE * last:  # a table of all of them is small
            table = jnp.full((self.n_clients, self.n_items), last, dtype=jnp.int32)
            found = table.at[self.pair_client, self.pair_item].set(place, mode="drop")
            return found[client, item]
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


def _put(values: Any, mesh: Mesh | None, spec: PartitionSpec = DIVIDED) -> Array:
    """Return an array on several devices, divided or copied; or on the one that JAX uses."""
    placed: Array = jax.device_put(values, None if mesh is None else NamedSharding(mesh, spec))
    return placed


def _wide(columns: int) -> int:
    """Return how many columns rows should have on a CPU: if they are few, a power of two.

    Several of them then go into one instruction. Otherwise a compiler that counts elements
    instead of rows takes them one by one, in two or three times as long.
    """
    few = _FEW_COLUMNS < columns <= _VECTOR
    return 1 << (columns - 1).bit_length() if few else columns


def _laid_out(
    ratings: Ratings,
    arrival: NDArray[np.int32] | None,
    block: int | None,
    chunk: int,
    mesh: Mesh | None,
    *,
    by_row: bool,
) -> tuple[Interactions, NDArray[Any]]:
    """Return the edges of some training ratings in blocks and chunks, and the place of each."""
    of_users = np.bincount(ratings.user, minlength=ratings.n_users)
    if block is None:
        block = _block_for(of_users)
    blocks_of_users = -(-of_users // block)
    client_of_user, n_clients = ratings.client_of_user, ratings.n_clients
    of_clients = np.bincount(client_of_user, weights=blocks_of_users, minlength=n_clients)
    chunk_of_client, chunks = _chunks_for(
        of_clients.astype(np.int64), max(chunk // block, 1), 1 if mesh is None else mesh.size
    )
    chunk_of_user = chunk_of_client[client_of_user]
    clients, place_of_client = _places(chunk_of_client, np.arange(n_clients), chunks)
    users, place_of_user = _places(chunk_of_user, client_of_user, chunks)

    # Blocks lie in the order of their users, chunk by chunk, each chunk with the same number.
    by_client = np.argsort(client_of_user, kind="stable")
    counts = blocks_of_users[by_client]
    of_chunks = np.bincount(chunk_of_user, weights=blocks_of_users, minlength=chunks)
    most = max(int(of_chunks.max()), 1)
    ends = np.cumsum(counts)
    gone = np.concatenate([[0], np.cumsum(of_chunks)[:-1]]).astype(np.int64)
    shift = np.arange(chunks) * most - gone
    first_block = np.empty(ratings.n_users, dtype=np.int64)
    first_block[by_client] = ends - counts + shift[chunk_of_user[by_client]]
    # A block that no one needs belongs to the last user of its chunk, or to no one's place.
    user_of_block = np.repeat(_last(users, ratings.n_users), most).astype(np.int32)
    at = np.repeat((first_block[by_client] - (ends - counts)).astype(np.int64), counts)
    user_of_block[at + np.arange(len(at))] = np.repeat(by_client, counts)

    # The place of each rating: its user's first block, and its number among the user's ratings.
    size = chunks * most * block
    kind = np.int32 if size <= _NEVER else np.int64
    run = np.zeros(ratings.n_users, dtype=np.int64)
    run[by_client] = np.cumsum(of_users[by_client]) - of_users[by_client]
    to = (first_block * block - run).astype(kind)[ratings.user]
    np.add(to, np.arange(len(ratings), dtype=kind), out=to)

    def filled(values: Any, fill: int, kind: Any = np.int32) -> Array:
        made = np.full(size, fill, dtype=kind)
        made[to] = values
        return _put(made, mesh)

    def whole(values: NDArray[Any]) -> Array:
        return _put(values, mesh, COPIED)

    one_user_each = n_clients == ratings.n_users
    first = np.zeros(len(ratings), np.int32) if arrival is None else arrival
    user_of_edge = np.repeat(user_of_block, block)
    user = _put(user_of_edge, mesh)
    if one_user_each:
        pair, pair_item = np.arange(size, dtype=np.int32), filled(ratings.item, ratings.n_items)
        same = (client_of_user == np.arange(n_clients)).all()
        pair_client = user if same else _put(client_of_user[user_of_edge], mesh)
    else:
        pairs, of_pair = _pairs(ratings, chunk_of_client, chunks)
        pair_client, pair_item = (_put(part.astype(np.int32), mesh) for part in pairs)
        pair = np.zeros(size, dtype=np.int32)
        each = size // chunks
        pair[:] = np.repeat(np.arange(chunks) * (len(pairs[0]) // chunks), each)
        pair[to] = of_pair
    known = filled(first, _NEVER)
    made = Interactions(
        user=user,
        item=filled(ratings.item, 0),
        value=filled(ratings.value, 0, np.float32),
        arrival=known,
        present=(known <= 0).astype(jnp.float32),
        pair=_put(pair, mesh),
        pair_client=pair_client,
        pair_item=pair_item,
        client_of_user=whole(client_of_user),
        features=whole(ratings.features),
        n_items=ratings.n_items,
        n_clients=n_clients,
        one_user_each=one_user_each,
        layout=Layout(
            user_of_block=_put(user_of_block, mesh),
            users=_put(users, mesh),
            clients=_put(clients, mesh),
            place_of_user=whole(place_of_user),
            place_of_client=whole(place_of_client),
            block=block,
            by_row=by_row,
            mesh=mesh,
        ),
    )
    return made, to


def _block_for(of_users: NDArray[Any]) -> int:
    """Return the largest size of a block that wastes little, or 1 if all do."""
    total = max(int(of_users.sum()), 1)
    fits = (
        size for size in _BLOCKS if (-(-of_users // size)).sum() * size <= _MOST_PADDING * total
    )
    return next(fits, 1)


def _chunks_for(
    of_clients: NDArray[np.int64], most: int, devices: int
) -> tuple[NDArray[np.int64], int]:
    """Return the chunk of each client, in order, and their number; all are about as large.

    Each device gets the same number of them; the last may be empty.
    """
    ends = np.cumsum(of_clients)
    total = int(ends[-1])
    chunks = max(-(-total // (most * devices)), 1) * devices
    middle = ends - of_clients / 2
    chunk = np.minimum((middle * chunks / max(total, 1)).astype(np.int64), chunks - 1)
    _, chunk = np.unique(chunk, return_inverse=True)  # one client may be larger than a chunk
    return chunk, -(-(int(chunk.max()) + 1) // devices) * devices


def _places(
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


def _last(members: NDArray[np.int32], none: int) -> NDArray[np.int32]:
    """Return the last member of each chunk."""
    number = (members < none).sum(1)
    last: NDArray[np.int32] = members[np.arange(len(members)), np.maximum(number - 1, 0)]
    return np.minimum(last, max(none - 1, 0)).astype(np.int32)


def _pairs(
    ratings: Ratings, chunk_of_client: NDArray[np.int64], chunks: int
) -> tuple[tuple[NDArray[np.int64], NDArray[np.int64]], NDArray[np.int64]]:
    """Return client and item of all pairs, by chunk, and the pair of each rating.

    What is left of a chunk belongs to its last client and to no item.
    """
    key = ratings.client.astype(np.int64) * ratings.n_items + ratings.item
    keys, of_rating = np.unique(key, return_inverse=True)
    client, item = np.divmod(keys, ratings.n_items)
    chunk = chunk_of_client[client]
    number = np.bincount(chunk, minlength=chunks)
    most = max(int(number.max()), 1)
    to = np.arange(len(keys)) + (np.arange(chunks) * most - (np.cumsum(number) - number))[chunk]
    last = np.zeros(chunks, dtype=np.int64)
    np.maximum.at(last, chunk_of_client, np.arange(len(chunk_of_client)))
    last = np.maximum.accumulate(last)  # a chunk without clients comes last
    clients, items = np.repeat(last, most), np.full(chunks * most, ratings.n_items)
    clients[to], items[to] = client, item
    return (clients, items), to[of_rating]


def ridge(
    table: Array, shrinkage: list[float], interactions: Interactions
) -> Callable[[Array], Array]:
    """Return the solver of every user's ridge regression, ``(X'X + diag(shrinkage)) w = X'y``.

    It takes the target of each edge, y, and returns w, ``[n_users, width]``. A few columns are
    solved exactly. For many, it takes a fixed number of steps of conjugate gradients,
    preconditioned by the diagonal: on the matrix of each user, or on the edges where these would
    be larger than the ratings.

    Args:
        table: The row of X that a rating of each item has, ``[n_items, width]``.
        shrinkage: Ridge weight of each column.
        interactions: The ratings that are known.
    """
    width, laid_out = table.shape[1], interactions.layout is not None

    def transposed(values: Array) -> Array:
        return interactions.products_by_user(table, interactions.present * values)

    if width <= _FEW_COLUMNS:
        normal = normal_equations(table, shrinkage, interactions)
        if laid_out:
            return lambda target: solved_systems(normal, transposed(target))
        inverse = jnp.linalg.inv(normal)
        return lambda target: jnp.einsum("uab,ub->ua", inverse, transposed(target))
    penalty = jnp.array(shrinkage)
    if laid_out and interactions.item.shape[0] >= width * interactions.n_users:
        normal = normal_equations(table, shrinkage, interactions)
        squares = jnp.diagonal(normal, axis1=1, axis2=2)

        def product(direction: Array) -> Array:
            moved: Array = jnp.einsum("uab,ub->ua", normal, direction, precision="highest")
            return moved

    else:
        squares = interactions.products_by_user(table**2, interactions.present) + penalty

        def product(direction: Array) -> Array:
            return transposed(interactions.scores(table, direction)) + penalty * direction

    preconditioner = 1.0 / squares

    def solved(target: Array) -> Array:
        def better(_: int, found: tuple[Array, Array, Array, Array]) -> tuple[Array, ...]:
            weights, left, direction, size = found
            moved = product(direction)
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


def normal_equations(table: Array, shrinkage: list[float], interactions: Interactions) -> Array:
    """Return ``X'X + diag(shrinkage)`` of every user's ridge regression.

    Its shape is ``[n_users, width, width]``. `table` has the row of X for each item.
    """
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


def where_users(which: Array, new: Any, old: Any) -> Any:
    """Return `new` for the users marked in `which`, ``[n_users]``, and `old` for the others."""
    return jax.tree.map(
        lambda one, other: jnp.where(which.reshape(-1, *[1] * (one.ndim - 1)), one, other),
        new,
        old,
    )
