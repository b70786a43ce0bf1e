"""What a model is to the federation: gradients of all clients at once.

Every client holds its own copy of the shared parameters: the item rows it has rated (one row a
client-item *pair*) and the dense rest. Since a client's loss depends on its own copies only, one
gradient of the *summed* loss with respect to the stacked copies is the stack of all clients'
gradients. So a model writes down its loss once, and clipping per client, clipping per row and
plain sums all have what they need, with flat arrays, static shapes and no loop over clients.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from bgtplanner.data.ratings import Ratings

__all__ = [
    "Edges",
    "Expandable",
    "Gradients",
    "Local",
    "Model",
    "Neighbours",
    "Remembering",
    "Shared",
    "Summarising",
    "Upload",
    "client_gradients",
    "copies",
]

Local = Any
"""What stays on the clients: a tree of arrays whose first axis is the user."""


class Shared(NamedTuple):
    """The parameters that the server holds and sends out.

    Attributes:
        items: One row an item, ``[n_items, width]``.
        dense: Everything else, flat, ``[dense_size]`` (may be empty).
    """

    items: Array
    dense: Array


class Upload(NamedTuple):
    """Something of the shape of each client's upload: its copies, or its gradients.

    Attributes:
        rows: One row a client-item pair, ``[n_pairs, width]``, in the order of ``Edges``.
        dense: One row a client, ``[n_clients, dense_size]``.
    """

    rows: Array
    dense: Array


class Gradients(NamedTuple):
    """All clients' gradients of their own losses, before anything is clipped or noised.

    Attributes:
        upload: Gradient of each client's copies of the shared parameters.
        local: Gradient of what stays on the clients, shaped like it.
        loss: Each client's loss, ``[n_clients]``.
    """

    upload: Upload
    local: Local
    loss: Array


class Neighbours(NamedTuple):
    """Other users that rated what a user rated, as far as it was told: their embeddings.

    Attributes:
        embedding: ``[n_users, max_neighbours, dim]``, noise included.
        present: 1 where there is one, else 0, ``[n_users, max_neighbours]``.
    """

    embedding: Array
    present: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Edges:
    """Training ratings as the edges of all clients' graphs, sorted by client.

    Attributes:
        user: User of each edge.
        item: Item of each edge.
        value: Rating of each edge.
        arrival: First round in which each edge is known.
        present: 1 for an edge that is known now, 0 for one still to come; see :meth:`at`.
        pair: Client-item pair of each edge: the row of the upload that it touches.
        pair_client: Client of each pair; never decreases.
        pair_item: Item of each pair.
        client_of_user: Client of each user.
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
    n_items: int = field(metadata={"static": True})
    n_clients: int = field(metadata={"static": True})
    one_user_each: bool = field(metadata={"static": True})

    @property
    def n_users(self) -> int:
        """Number of users, those without a rating included."""
        return int(self.client_of_user.shape[0])

    @classmethod
    def of(cls, ratings: Ratings, arrival: NDArray[np.int32] | None = None) -> Edges:
        """The edges of some training ratings, as they are in round 0.

        Args:
            ratings: The training ratings.
            arrival: First round in which each can be used; by default all from the start.
        """
        first = np.zeros(len(ratings), np.int32) if arrival is None else arrival
        key = ratings.client.astype(np.int64) * ratings.n_items + ratings.item
        one_user_each = ratings.n_clients == ratings.n_users
        if one_user_each:  # pairs in the order of the edges: nothing has to be moved later
            pairs, pair = key, np.arange(len(key))
        else:
            pairs, pair = np.unique(key, return_inverse=True)
        return cls(
            user=jnp.asarray(ratings.user),
            item=jnp.asarray(ratings.item),
            value=jnp.asarray(ratings.value),
            arrival=jnp.asarray(first),
            present=jnp.asarray(first <= 0, dtype=jnp.float32),
            pair=jnp.asarray(pair, dtype=jnp.int32),
            pair_client=jnp.asarray(pairs // ratings.n_items, dtype=jnp.int32),
            pair_item=jnp.asarray(pairs % ratings.n_items, dtype=jnp.int32),
            client_of_user=jnp.asarray(ratings.client_of_user),
            n_items=ratings.n_items,
            n_clients=ratings.n_clients,
            one_user_each=one_user_each,
        )

    def at(self, round_index: Array | int) -> Edges:
        """The same edges as they are known in a round. No shape changes, only the mask."""
        return replace(self, present=(self.arrival <= round_index).astype(jnp.float32))

    def sum_by_user(self, values: Array) -> Array:
        """Sum of a quantity of the edges over each user."""
        return jax.ops.segment_sum(values, self.user, self.n_users)

    def sum_by_client(self, values: Array) -> Array:
        """Sum of a quantity of the edges over each client."""
        return jax.ops.segment_sum(values, self.client_of_user[self.user], self.n_clients)

    @property
    def ratings_of_clients(self) -> Array:
        """Number of ratings that each client knows now."""
        return self.sum_by_client(self.present)

    def of_edges(self, rows: Array) -> Array:
        """The row of each edge, from rows that are one a pair."""
        return rows if self.one_user_each else rows[self.pair]

    def find_pair(self, client: Array, item: Array) -> Array:
        """Index of client-item pairs; the number of all pairs for one that there is not.

        Only where clients have several users: their pairs are in order, by client and by item.
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


class Model(Protocol):
    """A recommender whose clients can be trained all at once.

    Write :meth:`loss` in terms of the clients' copies and the rest follows. All methods are pure
    and are traced by JAX: no Python branching on array values, no changing shapes. A model is
    known to the compiler by its value, so make it a frozen dataclass of plain settings.
    """

    @property
    def dense_blocks(self) -> tuple[int, ...]:
        """Sizes of the tensors that make up the dense part, in order."""
        ...

    def initial(self, key: Array, n_users: int, n_items: int) -> tuple[Shared, Local]:
        """Parameters before the first round. Must not look at a rating."""
        ...

    def loss(self, copies: Upload, local: Local, edges: Edges) -> Array:
        """Each client's loss at its own copies, over the ratings that are present.

        Args:
            copies: The clients' copies of the shared parameters.
            local: What the clients keep to themselves.
            edges: The training ratings, with the mask of those that are present.

        Returns:
            One number a client; 0 for a client without a rating.
        """
        ...

    def update_local(
        self,
        local: Local,
        gradient: Local,
        before: Shared,
        after: Shared,
        edges: Edges,
        active: Array,
    ) -> Local:
        """What the clients keep, after a round. Never leaves them, so it costs no privacy.

        Args:
            local: What they kept so far.
            gradient: Gradient of their losses with respect to it.
            before: Shared parameters that the gradients were taken at.
            after: Shared parameters that the server sent back.
            edges: The training ratings.
            active: Which users' clients took part, ``[n_users]``.
        """
        ...

    def predict(
        self,
        shared: Shared,
        local: Local,
        edges: Edges,
        user: Array,
        item: Array,
    ) -> Array:
        """Predicted ratings in [0, 1] of user-item pairs, computed on the users' own devices."""
        ...


@runtime_checkable
class Expandable(Model, Protocol):
    """A model whose users can have other users as neighbours in their graphs."""

    def own(self, local: Local) -> Array:
        """What a user is to others: its embedding, ``[n_users, dim]``."""
        ...

    def attach(self, local: Local, neighbours: Neighbours) -> Local:
        """What the clients keep, with other neighbours than before."""
        ...


@runtime_checkable
class Remembering(Protocol):
    """A model whose users predict with what they remember of the last round."""

    def remember(self, shared: Shared, local: Local, edges: Edges) -> Local:
        """What the clients keep before the first round, when there is no last one.

        Args:
            shared: Parameters before the first round.
            local: What the clients keep, with nothing remembered.
            edges: The ratings that are known in the first round.
        """
        ...


@runtime_checkable
class Summarising(Protocol):
    """A model whose clients upload something else than gradients."""

    def summarise(self, shared: Shared, local: Local, edges: Edges) -> Gradients:
        """What all clients upload, of any width, and their losses, in the place of gradients."""
        ...


def copies(shared: Shared, edges: Edges) -> Upload:
    """Every client's copy of what it needs of the shared parameters."""
    return Upload(
        rows=shared.items[edges.pair_item],
        dense=jnp.broadcast_to(shared.dense, (edges.n_clients, shared.dense.shape[0])),
    )


def client_gradients(model: Model, shared: Shared, local: Local, edges: Edges) -> Gradients:
    """Every client's gradient of its own loss, in one backward pass.

    Example:
        >>> from bgtplanner.models.factorization import Factorization
        >>> ratings = Ratings.from_arrays([1, 1, 2], [7, 8, 7], [1, 4, 5], scale=(0, 5))
        >>> model, edges = Factorization(dim=2), Edges.of(ratings)
        >>> shared, local = model.initial(jax.random.key(0), edges.n_users, edges.n_items)
        >>> gradients = client_gradients(model, shared, local, edges)
        >>> gradients.upload.rows.shape, gradients.loss.shape
        ((3, 3), (2,))
    """
    if isinstance(model, Summarising):
        return model.summarise(shared, local, edges)

    def total(point: Upload, state: Local) -> tuple[Array, Array]:
        losses = model.loss(point, state, edges)
        return losses.sum(), losses

    (_, losses), (upload, local_gradient) = jax.value_and_grad(
        total, argnums=(0, 1), has_aux=True
    )(copies(shared, edges), local)
    return Gradients(upload=upload, local=local_gradient, loss=losses)
