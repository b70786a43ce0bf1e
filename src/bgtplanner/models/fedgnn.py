"""FedGNN: every user is a star graph, whose embedding comes from attention over the rated items.

User node ``u`` with embedding ``e_u`` (kept on the client) is linked to the items that the user
rated, with embeddings ``e_j`` (shared). One graph-attention layer (Velickovic et al. 2018) gives

    a_j = softmax_j( leaky_relu( e_j . W'a_item + e_u . W'a_user ) )   over the items and u itself
    h_u = W sum_j a_j e_j + b                                          head by head, concatenated

and a rating is predicted from ``h_u . e_i``. Since the layer is linear in its values, ``W`` is
applied once per user instead of once per edge. The last options select the variant that the
paper's authors ran, for the reproduction; they are not recommended.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bgtplanner.errors import ConfigError
from bgtplanner.models.interactions import Interactions, Shared, Upload, copies, where_users
from bgtplanner.models.learner import Learner, Local, Statistics, client_gradients
from bgtplanner.models.settings import check

_SLOPE = 0.2  # of leaky_relu, as in the graph-attention paper and in DGL


class FedGNNLocal(NamedTuple):
    """What FedGNN keeps on the clients."""

    embedding: Array  # of users, `[n_users, dim]`
    moments: tuple[Array, Array, Array]  # of the local optimizer, one entry per user
    graph_embedding: Array  # h_u before the last step; only for stale predictions


@dataclass(frozen=True, kw_only=True)
class FedGNN(Learner):
    """One graph-attention layer on each user's star graph.

    Attributes:
        dim: Size of the embeddings, a multiple of `heads`.
        heads: Attention heads, concatenated.
        bias: Whether to add an item bias (shared) and a user bias (solved on the client).
        mean: Score when nothing is known: a public constant, never the mean of the data. (The
            authors use 0, so that the sigmoid starts at one half.)
        bias_shrinkage: Ridge weight of the user bias, in ratings.
        score: ``"linear"`` for the dot product, ``"sigmoid"`` for its sigmoid.
        init_scale: Standard deviation of the initial embeddings.
        loss_kind: ``"mse"``, or ``"rmse"`` as in the authors' code.
        decay: Weight of the squared embeddings in the loss, per rating: of the items and, if there
            is a user bias, of the users.
        local_learning_rate: Step size of the user embeddings.
        local_optimizer: ``"adam"`` with a memory across rounds, or ``"sign"``, which is what the
            authors' fresh Adam in every round amounts to.
        local_weight_decay: Multiple of the user embedding that is added to its gradient.
        self_loops: How often the user node is its own neighbour (twice in the authors' graph).
        stale_predictions: Whether to predict with ``h_u`` from before the step, as the authors'
            code does.
    """

    dim: int = 8
    heads: int = 1
    bias: bool = True
    mean: float = 0.7
    bias_shrinkage: float = 5.0
    score: Literal["linear", "sigmoid"] = "linear"
    init_scale: float = 0.1
    loss_kind: Literal["mse", "rmse"] = "mse"
    decay: float = 0.1
    local_learning_rate: float = 0.01
    local_optimizer: Literal["adam", "sign"] = "adam"
    local_weight_decay: float = 0.0
    self_loops: int = 1
    stale_predictions: bool = False

    def __post_init__(self) -> None:
        check(
            self,
            dim=(1, 1024),
            mean=(-100, 100),
            bias_shrinkage=(1e-6, 1e6),
            init_scale=(1e-6, 10),
            decay=(0, 1e6),
            local_learning_rate=(0, 1e6),
            local_weight_decay=(0, 1e6),
            self_loops=(1, 1000),  # with none, a user without a rating would have no neighbour
        )
        divides = self.heads >= 1 and self.dim % self.heads == 0
        ConfigError.unless(divides, "heads", self.heads, f"a divisor of dim = {self.dim}")

    @property
    def dense_blocks(self) -> tuple[int, ...]:
        """The layer's weight, its two attention vectors and its bias."""
        return (self.dim * self.dim, self.dim, self.dim, self.dim)

    def initial(self, key: Array, n_users: int, n_items: int) -> tuple[Shared, Local]:
        """Embeddings N(0, init_scale), a Glorot layer with gain sqrt(2), zero biases."""
        item_key, user_key, weight_key, query_key = jax.random.split(key, 4)
        items = self.init_scale * jax.random.normal(item_key, (n_items, self.dim))
        if self.bias:
            items = jnp.concatenate([items, jnp.zeros((n_items, 1))], axis=1)
        size = self.dim // self.heads
        weight = jax.random.normal(weight_key, (self.dim * self.dim,)) * (2 / self.dim) ** 0.5
        queries = jax.random.normal(query_key, (2 * self.dim,)) * (4 / (self.dim + size)) ** 0.5
        dense = jnp.concatenate([weight, queries, jnp.zeros(self.dim)])
        embedding = self.init_scale * jax.random.normal(user_key, (n_users, self.dim))
        zeros = jnp.zeros_like(embedding)
        moments = (jnp.zeros(n_users), zeros, zeros)
        return Shared(items, dense), FedGNNLocal(embedding, moments, zeros)

    def loss(self, copies: Upload, local: Local, interactions: Interactions) -> Array:
        """Return half of each client's mean squared error, or its root as the authors do."""
        rows, present = interactions.rows_of(copies.rows), interactions.present
        embedding = self._graph_embedding(rows, copies.dense, local, interactions)
        score = self._raw_score(interactions.of_users(embedding), rows)
        if self.bias:
            user_bias = self._user_bias(score, interactions)
            score = score + interactions.of_users(jax.lax.stop_gradient(user_bias))
        error = interactions.value - self._link(score)
        ratings = jnp.maximum(interactions.ratings_of_clients, 1.0)
        value = 0.5 * interactions.sum_by_client(present * error**2) / ratings
        if self.loss_kind == "rmse":
            mse = 2.0 * value
            positive = mse > 1e-12  # the root has no gradient at zero: such a client does not move
            value = jnp.where(positive, jnp.sqrt(jnp.where(positive, mse, 1.0)), 0.0)
        if self.decay:
            squares = interactions.sum_by_client(present * (rows**2).sum(1))
            if self.bias:  # once per user, not once per edge
                of_users = interactions.sum_by_user(present) * (local.embedding**2).sum(1)
                squares += jax.ops.segment_sum(
                    of_users, interactions.client_of_user, interactions.n_clients
                )
            value += 0.5 * self.decay * squares / ratings
        return value

    def personalise(self, shared: Shared, local: Local, interactions: Interactions) -> Local:
        """Return what clients keep, unchanged: embeddings move in training only.

        With ``stale_predictions``, users who have never trained take ``h_u`` from the parameters
        they were sent. Otherwise all their first predictions would be one half.
        """
        if not self.stale_predictions:
            return local
        found: FedGNNLocal = jax.lax.cond(
            jnp.any(local.graph_embedding != 0),
            lambda kept: kept,
            lambda kept: kept._replace(graph_embedding=self._embed(shared, kept, interactions)),
            local,
        )
        return found

    def train(self, shared: Shared, local: Local, interactions: Interactions) -> Statistics:
        """Return shared gradients, and take one local step of every user embedding."""
        found = client_gradients(self, shared, local, interactions)
        kept = self._moved(found.local.embedding, local, interactions)
        if self.stale_predictions:
            kept = kept._replace(graph_embedding=self._embed(shared, local, interactions))
        return found._replace(local=kept)

    def _moved(self, slope: Array, local: FedGNNLocal, interactions: Interactions) -> FedGNNLocal:
        slope = slope + self.local_weight_decay * local.embedding
        step, moments = slope / (jnp.abs(slope) + 1e-8), local.moments
        if self.local_optimizer == "adam":  # with the usual constants; steps are counted per user
            count, first, second = moments[0] + 1, *moments[1:]
            first = 0.9 * first + 0.1 * slope
            second = 0.999 * second + 0.001 * slope**2
            corrected = first / (1 - 0.9**count)[:, None]
            step = corrected / (jnp.sqrt(second / (1 - 0.999**count)[:, None]) + 1e-8)
            moments = count, first, second
        # A user without a rating has nothing to learn from and must not drift.
        embedding, moments = where_users(
            interactions.sum_by_user(interactions.present) > 0,
            (local.embedding - self.local_learning_rate * step, moments),
            (local.embedding, local.moments),
        )
        return local._replace(embedding=embedding, moments=moments)

    def predict(
        self, shared: Shared, local: Local, interactions: Interactions, user: Array, item: Array
    ) -> Array:
        """Predictions from each user's graph embedding, clipped to the scale of the ratings."""
        stale = self.stale_predictions
        embedding = local.graph_embedding if stale else self._embed(shared, local, interactions)
        score = self._raw_score(embedding[user], shared.items[item])
        if self.bias:
            known = self._raw_score(
                interactions.of_users(embedding), shared.items[interactions.item]
            )
            score = score + self._user_bias(known, interactions)[user]
        return jnp.clip(self._link(score), 0.0, 1.0)

    def _embed(self, shared: Shared, local: FedGNNLocal, interactions: Interactions) -> Array:
        own = copies(shared, interactions)
        rows = interactions.rows_of(own.rows)
        return self._graph_embedding(rows, own.dense, local, interactions)

    def _graph_embedding(
        self, rows: Array, dense: Array, local: FedGNNLocal, interactions: Interactions
    ) -> Array:
        """Return ``h_u`` of every user: attention over present items and itself."""
        items, users, dim = rows[:, : self.dim], local.embedding, self.dim
        number, present = users.shape[0], interactions.present[:, None] > 0
        ends = np.cumsum(self.dense_blocks)[:-1]
        parts = jnp.split(dense[interactions.client_of_user], ends, axis=1)
        weight = parts[0].reshape(number, self.heads, dim // self.heads, dim)
        item_query, user_query = (  # W'a_item and W'a_user of each head
            jnp.einsum("uhdk,uhd->uhk", weight, part.reshape(number, self.heads, -1))
            for part in parts[1:3]
        )
        from_user = jnp.einsum("uk,uhk->uh", users, user_query)
        from_item = (items[:, None, :] * interactions.of_users(item_query)).sum(2)
        own = jnp.einsum("uk,uhk->uh", users, item_query) + from_user
        logits = jax.nn.leaky_relu(from_item + interactions.of_users(from_user), _SLOPE)
        own_logits = jax.nn.leaky_relu(own, _SLOPE)
        # A shift does not change the softmax; subtracting the largest logit keeps it finite.
        largest = interactions.max_by_user(jnp.where(present, logits, -jnp.inf))
        largest = jnp.maximum(largest, own_logits)
        shift = jax.lax.stop_gradient(largest)
        # Masked before the exponential: a rating that has not arrived may have any logit at all.
        weights = jnp.exp(jnp.where(present, logits - interactions.of_users(shift), -jnp.inf))
        own_weights = self.self_loops * jnp.exp(own_logits - shift)
        total = interactions.sum_by_user(weights) + own_weights
        values = interactions.sum_by_user(weights[:, :, None] * items[:, None, :])
        values = values + own_weights[:, :, None] * users[:, None, :]
        embedding = jnp.einsum("uhdk,uhk->uhd", weight, values / total[:, :, None])
        return embedding.reshape(number, dim) + parts[3]

    def _raw_score(self, embedding: Array, rows: Array) -> Array:
        score = self.mean + (embedding * rows[:, : self.dim]).sum(1)
        return score + rows[:, self.dim] if self.bias else score

    def _user_bias(self, known: Array, interactions: Interactions) -> Array:
        """Return the shrunk mean of each user's residuals, the ridge solution; never uploaded.

        With a sigmoid it is the solution for the linear score, so only an approximation.
        """
        residual = interactions.sum_by_user(interactions.present * (interactions.value - known))
        return residual / (interactions.sum_by_user(interactions.present) + self.bias_shrinkage)

    def _link(self, score: Array) -> Array:
        return jax.nn.sigmoid(score) if self.score == "sigmoid" else score
