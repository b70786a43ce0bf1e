"""A learner that does not come with the package: qualities of items, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from bgtplanner.models.interactions import Interactions, Shared, Upload
from bgtplanner.models.learner import Learner, Local


@dataclass(frozen=True, kw_only=True)
class Qualities(Learner):
    """Mean + item bias."""

    mean: float = 0.7

    def initial(self, key: Array, n_users: int, n_items: int) -> tuple[Shared, Local]:
        del key
        return Shared(jnp.zeros((n_items, 1)), jnp.zeros(0)), jnp.zeros((n_users, 1))

    def loss(self, copies: Upload, local: Local, interactions: Interactions) -> Array:
        del local
        error = interactions.value - self.mean - interactions.rows_of(copies.rows)[:, 0]
        ratings = jnp.maximum(interactions.ratings_of_clients, 1.0)
        return 0.5 * interactions.sum_by_client(interactions.present * error**2) / ratings

    def predict(
        self, shared: Shared, local: Local, interactions: Interactions, user: Array, item: Array
    ) -> Array:
        del local, interactions, user
        return jnp.clip(self.mean + shared.items[item, 0], 0.0, 1.0)
