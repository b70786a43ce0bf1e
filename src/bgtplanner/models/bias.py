"""What items, users and clients add to a rating, learned from two sums per item.

A rating is predicted as

    mean + q_i + b_u + s_u p_i + t_u q_i + d_ci

The server holds three numbers per item: its quality ``q_i``, its popularity ``p_i``, and how sure
the server is of the quality, from 0 to 1. Everything else stays on the clients and costs no
privacy: a user's own level ``b_u``, how strongly the user follows popularity ``s_u`` and quality
``t_u`` (all three by ridge regression on the user's own ratings), and, where a client has several
users, their shared deviation for an item, ``d_ci``, which counts the more, the less the server
knows about the item.

A client does not upload a gradient but, for each item, the sum of the residuals of its ratings,
and their number. Uploads are always longer than the clip, so that every client's upload counts the
same. For each item, the mean over clients holds

    count      A = M + noise                   M: weighted number of ratings behind it
    residual   B = M (theta - q) + noise       theta: its quality as the ratings have it,
                                               q: what was sent out before the round

with the same weights in both, so that they cancel. What the server makes of all rounds is in
:mod:`bgtplanner.models.posterior`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jax import Array

from bgtplanner.errors import ConfigError
from bgtplanner.models.interactions import Interactions, Shared, Upload
from bgtplanner.models.learner import Learner, Local, Published, Statistics, settings_of
from bgtplanner.models.optimizers import Aggregate, Noise, Server
from bgtplanner.models.posterior import COUNT_WEIGHT, Came, Floats, Norm, Posterior
from bgtplanner.models.settings import check
from bgtplanner.models.solving import ridge

_QUALITY = 2  # column of the quality in what users respond to
_SWEEPS = 4  # between the users and the items of a client with several users


@dataclass(frozen=True, kw_only=True)
class Biases(Learner):
    """The bias model: quality and popularity are shared, each client solves for its users.

    Attributes:
        mean: Prediction when nothing is known: a public constant, never the mean of the data.
        level_shrinkage: Ridge weight of a user's level, in ratings.
        popularity_shrinkage: Ridge weight of a user's response to popularity.
        quality_shrinkage: Ridge weight of a user's response to quality.
        item_shrinkage: Ridge weight of a client's own view of an item about which the server
            knows nothing, in ratings.
        known_item_shrinkage: The same for an item that the server knows with certainty.
        count_weight: What a rating's count weighs in an upload, beside a residual of about 0.2.
    """

    mean: float = 0.7
    level_shrinkage: float = 5.0
    popularity_shrinkage: float = 20.0
    quality_shrinkage: float = 0.3
    item_shrinkage: float = 5.0
    known_item_shrinkage: float = 40.0
    count_weight: float = COUNT_WEIGHT

    def __post_init__(self) -> None:
        ridges = [name for name in self.__dataclass_fields__ if name.endswith("_shrinkage")]
        ranges = dict.fromkeys(ridges, (1e-6, 1e6))  # 0: users are unsolvable
        check(self, mean=(0, 1), count_weight=(1e-3, 1e3), **ranges)

    @property
    def plain_mean(self) -> bool:
        """True: residuals and counts must have the same weights."""
        return True

    def initial(self, key: Array, n_users: int, n_items: int) -> tuple[Shared, Local]:
        """Zeros: nothing is known about any item or user."""
        del key
        return Shared(jnp.zeros((n_items, 3)), jnp.zeros(0)), jnp.zeros((n_users, 3))

    def personalise(self, shared: Shared, local: Local, interactions: Interactions) -> Local:
        """Solve for all users' levels and responses: ``(X'X + diag(shrinkage)) w = X'y``."""
        del local
        table = self.table(shared)
        shrinkage, popularity = self.shrinkage(table.shape[1]), self.popularity(shared)
        solved = ridge(table, shrinkage, interactions, popularity)
        target = interactions.value - self.mean - table[:, _QUALITY][interactions.item]
        users = solved(target)
        for _ in range(0 if interactions.one_user_each else _SWEEPS - 1):
            view = self.own_view(shared, users, interactions)
            users = solved(target - view[interactions.pair])
        return users

    def train(self, shared: Shared, local: Local, interactions: Interactions) -> Statistics:
        """Return residuals and counts, summed by item, without a client's own view of it."""
        residual = self._residual(shared, local, interactions)
        rows = jnp.stack([residual, jnp.full_like(residual, self.count_weight)], axis=1)
        rows = interactions.sum_by_pair(rows * interactions.present[:, None])
        ratings = jnp.maximum(interactions.ratings_of_clients, 1.0)
        loss = 0.5 * interactions.sum_by_client(interactions.present * residual**2) / ratings
        return Statistics(Upload(rows, jnp.zeros((interactions.n_clients, 0))), loss, local)

    def predict(
        self, shared: Shared, local: Local, interactions: Interactions, user: Array, item: Array
    ) -> Array:
        """Predictions clipped to the scale of the ratings."""
        rows = self.table(shared)[item]
        score = self.mean + rows[:, _QUALITY] + (rows * local[user]).sum(1)
        if not interactions.one_user_each:
            pair = interactions.find_pair(interactions.client_of_user[user], item)
            view = jnp.append(self.own_view(shared, local, interactions), 0.0)
            score = score + view[pair]
        return jnp.clip(score, 0.0, 1.0)

    def server_initial(self, shared: Shared, server: Server) -> Posterior:
        """Return the posterior before the first round; refuse an optimizer, which is not used."""
        fits = server.optimizer == "posterior"
        expected = "posterior, for the model biases"
        ConfigError.unless(fits, "server.optimizer", server.optimizer, expected)
        return Posterior.initial(shared)

    def server_update(
        self, shared: Shared, memory: Posterior, mean: Aggregate, noise: Noise, server: Server
    ) -> tuple[Shared, Posterior]:
        """Return qualities and popularities from the new posterior; there is no step size."""
        del server
        items, memory = memory.after(
            shared.items[:, 0], mean.gradient.items, noise, count_weight=self.count_weight
        )
        return Shared(items, shared.dense), memory

    def forecast(
        self, memory: Posterior, precision: Floats, clip: float, norm: Literal["l1", "l2"]
    ) -> dict[str, Floats]:
        """Return the improvement of ratings that the posterior expects from more precision."""
        return {"ratings": memory.forecast(precision, clip, norm, self.count_weight)}

    def came(self, before: Posterior, memory: Posterior, clip: float, norm: Norm) -> Came:
        """Return what was sent before a payment brought to ratings and lists of popular items."""
        del clip
        return memory.came(before, norm, self.count_weight)

    def publishes(self, shared: Shared, memory: Any = None) -> Published:
        """Return qualities and popularities, and which share of popularity is known for sure."""
        known = {} if memory is None else {"popularity": memory.known_share(self.count_weight)}
        return Published("biases", settings_of(self), np.asarray(shared.items), known)

    def table(self, shared: Shared) -> Array:
        """Return what users respond to, ``[n_items, width]``: level, popularity and quality."""
        items = shared.items
        return jnp.stack([jnp.ones(items.shape[0]), items[:, 1], items[:, 0]], axis=1)

    def shrinkage(self, width: int) -> list[float]:
        """Return the ridge weight of each column of the table."""
        del width
        return [self.level_shrinkage, self.popularity_shrinkage, self.quality_shrinkage]

    def own_view(self, shared: Shared, users: Array, interactions: Interactions) -> Array:
        """Return the shrunk mean residual of each client-item pair."""
        sure = jnp.clip(shared.items[interactions.pair_item, 2], 0.0, 1.0)
        doubt = (1.0 - sure) / self.item_shrinkage + sure / self.known_item_shrinkage
        number = interactions.sum_by_pair(interactions.present) + 1.0 / doubt
        error = interactions.present * self._residual(shared, users, interactions)
        return interactions.sum_by_pair(error) / number

    def _residual(self, shared: Shared, users: Array, interactions: Interactions) -> Array:
        """Return how far each rating is from what is predicted without the client's own view."""
        table = self.table(shared)
        expected = self.mean + table[:, _QUALITY][interactions.item]
        return interactions.value - expected - interactions.scores(table, users)
