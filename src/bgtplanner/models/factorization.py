"""Biases and low rank: the server learns the items, each client solves for its users.

A rating is predicted as ``mean + b_i + b_u + q_i . p_u``. The item rows ``(b_i, q_i)`` are shared;
the user part ``(b_u, p_u)`` is the closed-form ridge solution on the user's own ratings, found on
the client at no cost in privacy. By the envelope theorem the gradient of the item rows needs no
term for how that solution moves.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from bgtplanner.errors import ConfigError
from bgtplanner.models.learner import Edges, Local, Shared, Upload

__all__ = ["Factorization"]


@dataclass(frozen=True, kw_only=True)
class Factorization:
    """Mean + item bias + user bias + low rank, the user part solved locally.

    Attributes:
        dim: Rank; 0 leaves the biases only.
        mean: What to predict when nothing is known: a public constant, never the data's mean.
        init_scale: Standard deviation of the initial item factors.
        bias_shrinkage: Ridge weight of the user bias, in ratings.
        factor_shrinkage: Ridge weight of the user factors, in ratings times squared factor scale.
        item_decay: Weight of the squared item rows in the loss, per rating.
    """

    dim: int = 4
    mean: float = 0.7
    init_scale: float = 0.1
    bias_shrinkage: float = 5.0
    factor_shrinkage: float = 2.0
    item_decay: float = 0.0

    def __post_init__(self) -> None:
        unless = ConfigError.unless
        unless(0 <= self.dim <= 1024, "dim", self.dim, "0 to 1024")
        unless(0 <= self.mean <= 1, "mean", self.mean, "a number from 0 to 1")
        unless(0 < self.init_scale <= 10, "init_scale", self.init_scale, "above 0, at most 10")
        for name in ("bias_shrinkage", "factor_shrinkage"):  # zero would leave users unsolvable
            value = getattr(self, name)
            unless(1e-6 <= value <= 1e6, name, value, "a number from 1e-6 to 1e6")
        unless(0 <= self.item_decay <= 1e6, "item_decay", self.item_decay, "0 to 1e6")

    @property
    def dense_blocks(self) -> tuple[int, ...]:
        """There are none: all that is shared are item rows."""
        return ()

    def initial(self, key: Array, n_users: int, n_items: int) -> tuple[Shared, Local]:
        """Item biases at zero, item factors small and random, user parts at zero."""
        factors = self.init_scale * jax.random.normal(key, (n_items, self.dim))
        items = jnp.concatenate([jnp.zeros((n_items, 1)), factors], axis=1)
        return Shared(items, jnp.zeros(0)), jnp.zeros((n_users, 1 + self.dim))

    def loss(self, copies: Upload, local: Local, edges: Edges) -> Array:
        """Mean squared error (halved) of each client, plus the decay of the rows it used."""
        rows = edges.of_edges(copies.rows)
        error = edges.value - self._score(rows, local[edges.user])
        per_edge = error**2 + self.item_decay * (rows**2).sum(1)
        ratings = edges.ratings_of_clients
        return 0.5 * edges.sum_by_client(edges.present * per_edge) / jnp.maximum(ratings, 1.0)

    def update_local(
        self,
        local: Local,
        gradient: Local,
        before: Shared,
        after: Shared,
        edges: Edges,
        active: Array,
    ) -> Local:
        """Each user's ridge solution on its own ratings, given the new item rows."""
        del local, gradient, before, active
        return self.solve_users(after, edges)

    def solve_users(self, shared: Shared, edges: Edges) -> Array:
        """All users' normal equations at once: ``(X'X + diag(shrinkage)) w = X'y``."""
        rows = shared.items[edges.item]
        features = rows.at[:, 0].set(1.0)
        target = edges.present * (edges.value - self.mean - rows[:, 0])
        width = 1 + self.dim
        # Column by column: an outer product for every edge would need width times the memory.
        columns = [
            edges.sum_by_user((edges.present * features[:, column])[:, None] * features)
            for column in range(width)
        ]
        shrinkage = jnp.array([self.bias_shrinkage] + [self.factor_shrinkage] * self.dim)
        normal = jnp.stack(columns, axis=1) + jnp.diag(shrinkage)
        right = edges.sum_by_user(target[:, None] * features)
        solution: Array = jnp.linalg.solve(normal, right[..., None])[..., 0]
        return solution

    def predict(
        self,
        shared: Shared,
        local: Local,
        edges: Edges,
        user: Array,
        item: Array,
    ) -> Array:
        """Predictions clipped to the scale of the ratings."""
        del edges
        return jnp.clip(self._score(shared.items[item], local[user]), 0.0, 1.0)

    def _score(self, rows: Array, weights: Array) -> Array:
        return self.mean + rows[:, 0] + weights[:, 0] + (rows[:, 1:] * weights[:, 1:]).sum(1)
