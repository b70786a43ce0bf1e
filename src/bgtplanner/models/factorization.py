"""Matrix factorization with biases: the server learns the items, each client solves for its users.

A rating is predicted as ``mean + b_i + b_u + q_i . p_u``. The item rows ``(b_i, q_i)`` are shared.
The user part ``(b_u, p_u)`` is the closed-form ridge solution on the user's own ratings, which the
client computes at no cost in privacy. By the envelope theorem, the gradient with respect to the
item rows needs no term for the change of that solution.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bgtplanner.models.interactions import Interactions, Shared, Upload
from bgtplanner.models.learner import Learner, Local, Published, Statistics, settings_of
from bgtplanner.models.settings import check
from bgtplanner.models.solving import ridge


@dataclass(frozen=True, kw_only=True)
class Factorization(Learner):
    """Mean + item bias + user bias + low-rank term; the user part is solved locally.

    Attributes:
        dim: Rank; 0 leaves only the biases.
        mean: Prediction when nothing is known: a public constant, never the mean of the data.
        init_scale: Standard deviation of the initial item factors.
        bias_shrinkage: Ridge weight of the user bias, in ratings.
        factor_shrinkage: Ridge weight of the user factors, in ratings times squared factor scale.
    """

    dim: int = 4
    mean: float = 0.7
    init_scale: float = 0.1
    bias_shrinkage: float = 5.0
    factor_shrinkage: float = 2.0

    def __post_init__(self) -> None:
        check(
            self,
            dim=(0, 1024),
            mean=(0, 1),
            init_scale=(1e-6, 10),
            bias_shrinkage=(1e-6, 1e6),  # 0 would leave users unsolvable
            factor_shrinkage=(1e-6, 1e6),
        )

    def initial(self, key: Array, n_users: int, n_items: int) -> tuple[Shared, Local]:
        """Zero item biases, small random item factors, zero user parts."""
        factors = self.init_scale * jax.random.normal(key, (n_items, self.dim))
        items = jnp.concatenate([jnp.zeros((n_items, 1)), factors], axis=1)
        return Shared(items, jnp.zeros(0)), jnp.zeros((n_users, 1 + self.dim))

    def personalise(self, shared: Shared, local: Local, interactions: Interactions) -> Local:
        """Solve every user's ridge regression: ``(X'X + diag(shrinkage)) w = X'y``."""
        del local
        table, target = self._regression(shared, interactions)
        shrinkage = [self.bias_shrinkage] + [self.factor_shrinkage] * self.dim
        return ridge(table, shrinkage, interactions)(target)

    def train(self, shared: Shared, local: Local, interactions: Interactions) -> Statistics:
        """Return the gradients of :meth:`loss`, derived by hand, which takes less time.

        A subclass with a loss of its own gets the gradients of that loss.
        """
        if type(self).loss is not Factorization.loss:
            return super().train(shared, local, interactions)
        table, target = self._regression(shared, interactions)
        error = interactions.present * (target - interactions.scores(table, local))
        # What all ratings of a user have in common is computed once for the user.
        ratings = jnp.maximum(interactions.ratings_of_clients, 1.0)
        share = (1.0 / ratings)[interactions.client_of_user]
        slope = -share[:, None] * local.at[:, 0].set(1.0)
        upload = interactions.sum_by_pair(error[:, None] * interactions.of_users(slope))
        loss = 0.5 * interactions.sum_by_client(error**2) / ratings
        return Statistics(Upload(upload, jnp.zeros((interactions.n_clients, 0))), loss, local)

    def loss(self, copies: Upload, local: Local, interactions: Interactions) -> Array:
        """Return half of each client's mean squared error."""
        rows = interactions.rows_of(copies.rows)
        error = interactions.value - self._score(rows, interactions.of_users(local))
        ratings = jnp.maximum(interactions.ratings_of_clients, 1.0)
        return 0.5 * interactions.sum_by_client(interactions.present * error**2) / ratings

    def predict(
        self, shared: Shared, local: Local, interactions: Interactions, user: Array, item: Array
    ) -> Array:
        """Predictions clipped to the scale of the ratings."""
        del interactions
        return jnp.clip(self._score(shared.items[item], local[user]), 0.0, 1.0)

    def publishes(self, shared: Shared, memory: Any = None) -> Published:
        """Return biases and factors of the items."""
        del memory
        return Published("factorization", settings_of(self), np.asarray(shared.items), {})

    def _regression(self, shared: Shared, interactions: Interactions) -> tuple[Array, Array]:
        """Return what users are solved from: the row of X for each item, and y of each rating."""
        target = interactions.value - self.mean - shared.items[:, 0][interactions.item]
        return shared.items.at[:, 0].set(1.0), target

    def _score(self, rows: Array, weights: Array) -> Array:
        return self.mean + rows[:, 0] + weights[:, 0] + (rows[:, 1:] * weights[:, 1:]).sum(1)
