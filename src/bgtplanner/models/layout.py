"""Training ratings laid out so that sums are dense, and memory is bounded.

The edges of a user fill blocks, and blocks of whole clients fill chunks. All chunks have the same
shapes, so that a round goes through them one by one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from bgtplanner.data.ratings import Ratings
from bgtplanner.models.interactions import Interactions, Layout, places_of

_NEVER = np.iinfo(np.int32).max
_SMALL = 50_000  # ratings up to which nothing is laid out: programs compile faster without
_BLOCKS = (32, 16, 8)
_MOST_PADDING = 1.3  # of a block size, relative to the ratings
_CHUNK = {"cpu": 1 << 17}  # edges of a chunk: on CPUs as many as stay in the cache
_LARGE_CHUNK = 1 << 26


class _Plan(NamedTuple):
    """Where everything goes.

    Attributes:
        chunk_of_client: The chunk of each client.
        chunks: The number of chunks.
        user_of_block: The user of each block.
        place: The edge that each rating becomes.
    """

    chunk_of_client: NDArray[np.int64]
    chunks: int
    user_of_block: NDArray[np.int32]
    place: NDArray[Any]


def laid_out(
    ratings: Ratings,
    arrival: NDArray[np.int32] | None = None,
    *,
    block: int | None = None,
    chunk: int | None = None,
) -> Interactions:
    """Return the edges of some training ratings in blocks and chunks.

    Small data stay as they are, on one device. By default blocks are as large as their padding
    allows, and chunks fit the caches of a CPU, or the memory of an accelerator.

    Args:
        ratings: The training ratings.
        arrival: First round in which each rating can be used; by default round 0.
        block: Number of edges in a block.
        chunk: Number of edges in a chunk, about; clients are not divided.
    """
    if block is None and len(ratings) <= _SMALL:
        return Interactions.of(ratings, arrival)
    if chunk is None:
        device = next(iter(jnp.zeros(()).devices()))
        chunk = _CHUNK.get(device.platform, _LARGE_CHUNK)
    if block is None:
        block = _block_for(np.bincount(ratings.user, minlength=ratings.n_users))
    plan = _plan(ratings, block, max(chunk // block, 1))
    client_of_user, n_clients = ratings.client_of_user, ratings.n_clients
    one_user_each = n_clients == ratings.n_users
    user_of_edge = np.repeat(plan.user_of_block, block)
    size = len(user_of_edge)

    def filled(values: Any, fill: int, kind: Any = np.int32) -> NDArray[Any]:
        made = np.full(size, fill, dtype=kind)
        made[plan.place] = values
        return made

    if one_user_each:
        pair: NDArray[Any] = np.arange(size)
        pair_client, pair_item = client_of_user[user_of_edge].astype(np.int64), None
    else:
        (pair_client, pair_item), of_rating = _pairs(ratings, plan)
        each = size // plan.chunks  # an edge of no one has the first pair of its chunk
        pair = np.repeat(np.arange(plan.chunks) * (len(pair_item) // plan.chunks), each)
        pair[plan.place] = of_rating
    items = filled(ratings.item, ratings.n_items) if pair_item is None else pair_item
    first = np.zeros(len(ratings), np.int32) if arrival is None else arrival
    known = filled(first, _NEVER)
    clients, place_of_client = places_of(plan.chunk_of_client, np.arange(n_clients), plan.chunks)
    users, place_of_user = places_of(
        plan.chunk_of_client[client_of_user], client_of_user, plan.chunks
    )
    of_edges: Any = Interactions  # of NumPy arrays, until they are placed
    of_layout: Any = Layout
    made = of_edges(
        user=user_of_edge,
        item=filled(ratings.item, 0),
        value=filled(ratings.value, 0, np.float32),
        arrival=known,
        present=(known <= 0).astype(np.float32),
        pair=pair.astype(np.int32),
        pair_client=pair_client.astype(np.int32),
        pair_item=items.astype(np.int32),
        client_of_user=client_of_user,
        features=ratings.features,
        n_items=ratings.n_items,
        n_clients=n_clients,
        one_user_each=one_user_each,
        layout=of_layout(
            user_of_block=plan.user_of_block,
            users=users,
            clients=clients,
            place_of_user=place_of_user,
            place_of_client=place_of_client,
            block=block,
        ),
    )
    placed: Interactions = jax.tree.map(jax.device_put, made)
    return placed


def _plan(ratings: Ratings, block: int, most_blocks: int) -> _Plan:
    """Return in which chunk each client is, whose each block is, and where each rating goes."""
    of_users = np.bincount(ratings.user, minlength=ratings.n_users)
    blocks_of_users = -(-of_users // block)
    client_of_user, n_clients = ratings.client_of_user, ratings.n_clients
    of_clients = np.bincount(client_of_user, weights=blocks_of_users, minlength=n_clients)
    chunk_of_client, chunks = _chunks_for(of_clients.astype(np.int64), most_blocks)
    chunk_of_user = chunk_of_client[client_of_user]

    # Blocks lie in the order of their users, chunk by chunk, each chunk with the same number.
    by_client = np.argsort(client_of_user, kind="stable")
    counts = blocks_of_users[by_client]
    of_chunks = np.bincount(chunk_of_user, weights=blocks_of_users, minlength=chunks)
    most = int(of_chunks.max())
    before = np.concatenate([[0], np.cumsum(of_chunks)[:-1]]).astype(np.int64)
    shift = (np.arange(chunks) * most - before)[chunk_of_user[by_client]]
    first_block = np.empty(ratings.n_users, dtype=np.int64)
    first_block[by_client] = np.cumsum(counts) - counts + shift
    # A block that no one needs belongs to the last user of its chunk, or to no one's place.
    users, _ = places_of(chunk_of_user, client_of_user, chunks)
    user_of_block = np.repeat(_last(users, ratings.n_users), most).astype(np.int32)
    user_of_block[np.arange(counts.sum()) + np.repeat(shift, counts)] = np.repeat(
        by_client, counts
    )

    # The place of each rating: its user's first block, and its number among the user's ratings.
    kind = np.int32 if chunks * most * block <= _NEVER else np.int64
    run = np.zeros(ratings.n_users, dtype=np.int64)
    run[by_client] = np.cumsum(of_users[by_client]) - of_users[by_client]
    place = (first_block * block - run).astype(kind)[ratings.user]
    np.add(place, np.arange(len(ratings), dtype=kind), out=place)
    return _Plan(chunk_of_client, chunks, user_of_block, place)


def _block_for(of_users: NDArray[Any]) -> int:
    """Return the largest size of a block that wastes little, or 1 if all do."""
    total = max(int(of_users.sum()), 1)
    fits = (
        size for size in _BLOCKS if (-(-of_users // size)).sum() * size <= _MOST_PADDING * total
    )
    return next(fits, 1)


def _chunks_for(of_clients: NDArray[np.int64], most: int) -> tuple[NDArray[np.int64], int]:
    """Return the chunk of each client, in order, and their number; all are about as large."""
    ends = np.cumsum(of_clients)
    total = int(ends[-1])
    chunks = max(-(-total // most), 1)
    middle = ends - of_clients / 2
    chunk = np.minimum((middle * chunks / max(total, 1)).astype(np.int64), chunks - 1)
    _, chunk = np.unique(chunk, return_inverse=True)  # one client may be larger than a chunk
    return chunk, int(chunk.max()) + 1


def _last(members: NDArray[np.int32], none: int) -> NDArray[np.int32]:
    """Return the last member of each chunk."""
    number = (members < none).sum(1)
    last: NDArray[np.int32] = members[np.arange(len(members)), np.maximum(number - 1, 0)]
    return np.minimum(last, max(none - 1, 0)).astype(np.int32)


def _pairs(
    ratings: Ratings, plan: _Plan
) -> tuple[tuple[NDArray[np.int64], NDArray[np.int64]], NDArray[np.int64]]:
    """Return client and item of all pairs, by chunk, and the pair of each rating.

    What is left of a chunk belongs to its last client and to no item.
    """
    chunk_of_client, chunks = plan.chunk_of_client, plan.chunks
    key = ratings.client.astype(np.int64) * ratings.n_items + ratings.item
    keys, of_rating = np.unique(key, return_inverse=True)
    client, item = np.divmod(keys, ratings.n_items)
    chunk = chunk_of_client[client]
    number = np.bincount(chunk, minlength=chunks)
    most = int(number.max())
    to = np.arange(len(keys)) + (np.arange(chunks) * most - (np.cumsum(number) - number))[chunk]
    last = np.zeros(chunks, dtype=np.int64)
    np.maximum.at(last, chunk_of_client, np.arange(len(chunk_of_client)))
    last = np.maximum.accumulate(last)  # a chunk without clients comes last
    clients, items = np.repeat(last, most), np.full(chunks * most, ratings.n_items)
    clients[to], items[to] = client, item
    return (clients, items), to[of_rating]
