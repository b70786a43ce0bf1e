"""What items, users and clients add to a rating, learned from two sums an item.

A rating is predicted as

    mean + q_i + b_u + s_u p_i + t_u q_i + d_ci

The server holds three numbers an item: its quality ``q_i``, its popularity ``p_i``, and how sure
it is of the quality, from 0 (as good as nothing is known) to 1. All else
stays on the clients and costs no privacy: a user's own level ``b_u``, how much it goes by
popularity ``s_u`` and by quality ``t_u`` (all three by ridge regression on its own ratings), and,
where a client has several users, what they think of an item beyond all that, ``d_ci``: the less
the server knows of an item, the more that counts.

What a client uploads is no gradient but, for each item, the sum of what its ratings leave
unexplained, and their number. The first says by how much the quality is off, the second how many
stand behind it; the server puts them together (:mod:`bgtplanner.federation.posterior`). Uploads
are always longer than the clip, so that everybody's counts the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from bgtplanner.errors import ConfigError
from bgtplanner.models.learner import Edges, Gradients, Local, Shared, Upload, copies

__all__ = ["COUNT_WEIGHT", "Biases"]

COUNT_WEIGHT = 0.1
"""What one rating counts in an upload, beside a residual of about 0.2."""

_SWEEPS = 4  # between the users and the items of a client with several users


@dataclass(frozen=True, kw_only=True)
class Biases:
    """Quality and popularity are shared; each client solves for its users.

    Attributes:
        mean: What to predict when nothing is known: a public constant, never the data's mean.
        level_shrinkage: Ridge weight of a user's level, in ratings.
        popularity_shrinkage: Ridge weight of how much a user goes by popularity.
        quality_shrinkage: Ridge weight of how much a user goes by quality.
        item_shrinkage: Ridge weight of a client's own view of an item of which the server knows
            nothing, in ratings.
        known_item_shrinkage: The same for an item that the server knows for sure.
    """

    mean: float = 0.7
    level_shrinkage: float = 5.0
    popularity_shrinkage: float = 20.0
    quality_shrinkage: float = 0.3
    item_shrinkage: float = 5.0
    known_item_shrinkage: float = 40.0

    def __post_init__(self) -> None:
        ConfigError.unless(0 <= self.mean <= 1, "mean", self.mean, "a number from 0 to 1")
        for name in (
            "level_shrinkage",
            "popularity_shrinkage",
            "quality_shrinkage",
            "item_shrinkage",
            "known_item_shrinkage",
        ):  # zero would leave users unsolvable
            value = getattr(self, name)
            ConfigError.unless(1e-6 <= value <= 1e6, name, value, "a number from 1e-6 to 1e6")

    @property
    def dense_blocks(self) -> tuple[int, ...]:
        """There are none: all that is shared belongs to an item."""
        return ()

    def initial(self, key: Array, n_users: int, n_items: int) -> tuple[Shared, Local]:
        """Nothing is known of any item or user."""
        del key
        return Shared(jnp.zeros((n_items, 3)), jnp.zeros(0)), jnp.zeros((n_users, 3))

    def loss(self, copies: Upload, local: Local, edges: Edges) -> Array:
        """Mean squared error (halved) of each client."""
        rows = edges.of_edges(copies.rows)
        error = edges.value - self._score(rows, local[edges.user])
        ratings = jnp.maximum(edges.ratings_of_clients, 1.0)
        return 0.5 * edges.sum_by_client(edges.present * error**2) / ratings

    def summarise(self, shared: Shared, local: Local, edges: Edges) -> Gradients:
        """What clients upload in place of gradients: residuals and counts, summed by item.

        A client's own view of items is not taken off the residuals: it is made of them.
        """
        users = self.solve_users(shared, edges)
        own = copies(shared, edges)
        residual = edges.value - self._score(edges.of_edges(own.rows), users[edges.user])
        columns = jnp.stack([residual, jnp.full_like(residual, COUNT_WEIGHT)], axis=1)
        columns = columns * edges.present[:, None]
        rows = columns
        if not edges.one_user_each:
            rows = jax.ops.segment_sum(columns, edges.pair, edges.pair_item.shape[0])
        nothing = jnp.zeros((edges.n_clients, 0))
        return Gradients(
            Upload(rows, nothing), jnp.zeros_like(local), self.loss(own, users, edges)
        )

    def update_local(
        self,
        local: Local,
        gradient: Local,
        before: Shared,
        after: Shared,
        edges: Edges,
        active: Array,
    ) -> Local:
        """Each user's ridge solution on its own ratings, given what is new of the items."""
        del local, gradient, before, active
        return self.solve_users(after, edges)

    def solve_users(self, shared: Shared, edges: Edges) -> Array:
        """Level and leanings of all users at once: ``(X'X + diag(shrinkage)) w = X'y``."""
        rows = shared.items[edges.item]
        features = self._features(rows)
        columns = [
            edges.sum_by_user((edges.present * features[:, column])[:, None] * features)
            for column in range(3)
        ]
        shrinkage = [self.level_shrinkage, self.popularity_shrinkage, self.quality_shrinkage]
        normal = jnp.stack(columns, axis=1) + jnp.diag(jnp.array(shrinkage))
        inverse = jnp.linalg.inv(normal)
        target = edges.value - self.mean - rows[:, 0]

        def solved(beside: Array) -> Array:
            left = edges.present * (target - beside)
            right = edges.sum_by_user(left[:, None] * features)
            return jnp.einsum("uab,ub->ua", inverse, right)

        users = solved(jnp.zeros_like(target))
        if not edges.one_user_each:
            for _ in range(_SWEEPS - 1):
                users = solved(self._own_view(shared, users, edges)[edges.pair])
        return users

    def predict(
        self,
        shared: Shared,
        local: Local,
        edges: Edges,
        user: Array,
        item: Array,
    ) -> Array:
        """Predictions clipped to the scale of the ratings."""
        score = self._score(shared.items[item], local[user])
        if not edges.one_user_each:
            pair = edges.find_pair(edges.client_of_user[user], item)
            view = jnp.append(self._own_view(shared, local, edges), 0.0)
            score = score + view[pair]
        return jnp.clip(score, 0.0, 1.0)

    def _own_view(self, shared: Shared, users: Array, edges: Edges) -> Array:
        """Of each client-item pair, what the client's ratings leave unexplained, shrunk."""
        error = edges.value - self._score(shared.items[edges.item], users[edges.user])
        totals = jax.ops.segment_sum(
            jnp.stack([edges.present * error, edges.present], axis=1),
            edges.pair,
            edges.pair_item.shape[0],
        )
        sure = jnp.clip(shared.items[edges.pair_item, 2], 0.0, 1.0)
        doubt = (1.0 - sure) / self.item_shrinkage + sure / self.known_item_shrinkage
        return totals[:, 0] / (totals[:, 1] + 1.0 / doubt)

    def _score(self, rows: Array, users: Array) -> Array:
        return self.mean + rows[:, 0] + (self._features(rows) * users).sum(1)

    def _features(self, rows: Array) -> Array:
        return jnp.stack([jnp.ones(rows.shape[0]), rows[:, 1], rows[:, 0]], axis=1)
