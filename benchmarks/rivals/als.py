"""Private alternating least squares: clients solve for users, the server solves for items.

This is DPALS (Chien, Jain, Krichene, Rendle, Song, Thakurta and Zhang 2021) with the adaptive
weights of Krichene, Jain, Song, Sundararajan, Thakurta and Zhang 2023. A rating is predicted as

    mean + level_u + b_i + f_i . w_u + v_i . u_u

and, if the task is ranking, an item's score is ``f_i . w_u + v_i . u_u``, fitted to 1 for rated
items and, with a small weight, to 0 for all items (iALS, Hu, Koren and Volinsky 2008). ``f_i`` are
public features; only :class:`Cmf` uses them. Everything with the index u stays on the client,
which solves for it by ridge regression on its own ratings. That costs no privacy.

The server needs the normal equations of each item. With x = (1, u), or x = u for ranking, and t
the part of a rating (or of the 1) that the items' own part has to explain, a client uploads for
every item that it has rated

    1, t x,

and once, in the dense part, the number 1 and x x' (for ranking also x w'). It scales all of this
to length 1, so every client counts the same. The weights of both sides of an item's equations are
the same, hence they cancel. What is published releases x x' for each item. Here that of an item is
taken to be the mean x x' of all clients times the item's count, which is so much less noisy that
it wins wherever we measured.

The server also goes beyond what is published, wherever that helped: it averages the statistics of
several rounds, knows the noise of every statistic, and shrinks each solution accordingly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from bgtplanner.errors import ConfigError
from bgtplanner.models.interactions import Interactions, Shared, Upload
from bgtplanner.models.learner import Learner, Local, Statistics
from bgtplanner.models.optimizers import Aggregate, Noise, Server
from bgtplanner.models.settings import check

__all__ = ["Als", "Cmf", "Equations"]

_HEAD = 2  # columns of an item before its factors: weight in uploads, and quality
_MEAN_WEIGHT = 0.3  # of the dense part's number 1
_RESIDUAL = 0.2  # a public guess at what remains of a rating
_LEVEL_SPREAD = 0.1  # prior standard deviations: of the mean quality,
_LINE_SPREAD = 0.03  # and of how it depends on popularity and on a feature
_RIDGE = 1e-4  # of users, relative to the items' mean square: only keeps them solvable
_LEAST = 1e-9
_MOST_NORMAL = 5.0  # standard deviations below zero, where the tail's mean is approximated
_WEIGHTS = (0.2, 3.0)  # smallest and largest weight of an item in uploads
_LEVEL_SHRINKAGE, _FACTOR_SHRINKAGE, _FEATURE_SHRINKAGE = 5.0, 0.25, 10.0  # of users, by ridge
_QUALITY_SPREAD, _FACTOR_SPREAD = 0.1, 0.1  # standard deviations of the items' (task ratings)
_COUNT_WEIGHT = 0.15  # of a rating's count in an upload
_FACTOR_WEIGHT = 3.0  # of the factors in it, beside 1 for the quality (task ratings)
_MAX_NORM = 2.0  # longer user factors are clipped (task ratings)


class Equations(NamedTuple):
    """What the server remembers: the items' equations, added up over the rounds.

    Attributes:
        rows: The rows of the uploads, as shares of the clients, weighted by precision.
        precision: Sum of the weights.
        variance: Variance of the noise in each of the rows' entries, ``[n_items]``.
    """

    rows: Array
    precision: Array
    variance: Array

    def plus(self, rows: Array, std: Array, weights: Array, kept: float) -> Equations:
        """Return the sums after a round; `kept` is the share of the old ones that stays."""
        gained = jnp.where(jnp.isfinite(std), 1.0 / jnp.maximum(std, _LEAST) ** 2, 0.0)
        return Equations(
            rows=kept * self.rows + gained * rows / weights[:, None],
            precision=kept * self.precision + gained,
            variance=kept**2 * self.variance + gained / weights**2,
        )

    def mean(self) -> tuple[Array, Array]:
        """Return the mean rows, and the standard deviation of their noise, ``[n_items]``."""
        precision = jnp.maximum(self.precision, _LEAST)
        return self.rows / precision, jnp.sqrt(self.variance) / precision


class Told(NamedTuple):
    """The items' equations as the server knows them, relative to the mean client.

    Attributes:
        counts: Share of the clients that rated each item, ``[n_items]``.
        gramian: Mean x x' of all clients, ``[width, width]``.
        crossed: Mean of leanings times x, flat; for ranking.
        left: Left sides, ``[n_items, width, width]``.
        right: Right sides, ``[n_items, width]``.
        spread: Standard deviation of the noise in the right sides, ``[n_items]``.
        clients: Number of clients.
    """

    counts: Array
    gramian: Array
    crossed: Array
    left: Array
    right: Array
    spread: Array
    clients: Array | float


@dataclass(frozen=True, kw_only=True)
class Als(Learner):
    """Private alternating least squares, for predicting ratings or for ranking.

    Attributes:
        task: ``ratings`` or ``ranking``. A learner for one of them is not good at the other: the
            first ranks by predicted ratings, the second predicts a user's mean.
        dim: Number of factors, d.
        mean: Prediction when nothing is known: a public constant, never the mean of the data.
        unobserved_weight: Weight of each item's 0, beside `observed_weight` (task ranking).
        observed_weight: Weight of a rated item's 1 in the left side (task ranking).
        favour: How much more highly rated items count: the power of the rating (task ranking).
        item_shrinkage: Ridge weight of the items' factors (task ranking).
        adaptive: Adaptive weights: an item that n clients rated counts in uploads as
            n ** -`adaptive`, by the released counts; 0 for equal weights.
        memory: Share of the statistics of earlier rounds that is kept in each round.
    """

    task: Literal["ratings", "ranking"] = "ratings"
    dim: int = 4
    mean: float = 0.7
    unobserved_weight: float = 0.3
    observed_weight: float = 0.3
    favour: float = 2.0
    item_shrinkage: float = 1.0
    adaptive: float = 0.0
    memory: float = 0.8

    def __post_init__(self) -> None:
        check(
            self,
            dim=(int(self.ranks), 256),
            favour=(0, 10),
            **dict.fromkeys(("mean", "memory", "adaptive"), (0, 1)),
            **dict.fromkeys(("observed_weight", "item_shrinkage"), (0, 1e6)),
            unobserved_weight=(1e-6, 1e6),
        )

    @property
    def ranks(self) -> bool:
        """Whether the task is ranking."""
        return self.task == "ranking"

    @property
    def width(self) -> int:
        """Length of x."""
        return self.dim if self.ranks else 1 + self.dim

    @property
    def plain_mean(self) -> bool:
        """True: both sides of an item's equations must have the same weights."""
        return True

    def initial(self, key: Array, n_users: int, n_items: int) -> tuple[Shared, Local]:
        """Random factors of length 1 or so, and equal weights; nothing else is known."""
        factors = jax.random.normal(key, (n_items, self.dim)) / max(self.dim, 1) ** 0.5
        factors = factors * (1.0 if self.ranks else _FACTOR_SPREAD)
        head = jnp.tile(jnp.array([1.0, 0.0]), (n_items, 1))
        dense = jnp.zeros(1 + _triangular(self.width))
        items = jnp.concatenate([head, factors], axis=1)
        return Shared(items, dense), jnp.zeros((n_users, 1 + self.dim))

    def personalise(self, shared: Shared, local: Local, interactions: Interactions) -> Local:
        """Solve for each user's level, leanings and factors by ridge regression."""
        del local
        items, known = self._coordinates(shared), interactions.present
        level = _LEVEL_SHRINKAGE
        if not self.ranks:
            table = jnp.concatenate([jnp.ones((items.shape[0], 1)), items], axis=1)
            leanings = items.shape[1] - self.dim
            ridge = [_FEATURE_SHRINKAGE] * leanings + [_FACTOR_SHRINKAGE] * self.dim
            normal = interactions.squares_by_user(table) + jnp.diag(jnp.array([level, *ridge]))
            target = interactions.value - self.mean - shared.items[interactions.item, 1]
            right = interactions.products_by_user(table, known * target)
            return jnp.linalg.solve(normal, right[..., None])[..., 0]
        whole = items.T @ items
        size = jnp.maximum(jnp.trace(whole) / max(items.shape[1], 1), _LEAST)
        normal = self.observed_weight * interactions.squares_by_user(items)
        normal = normal + self.unobserved_weight * whole + jnp.diag(size * self._ridge(items))
        wanted = known * self._wanted(interactions)
        right = interactions.products_by_user(items, wanted)
        factors = jnp.linalg.solve(normal, right[..., None])[..., 0]
        sums = interactions.sum_by_user(
            jnp.stack([known * (interactions.value - self.mean), known], axis=1)
        )
        own = sums[:, :1] / (sums[:, 1:] + level)
        return jnp.concatenate([own, factors], axis=1)

    def train(self, shared: Shared, local: Local, interactions: Interactions) -> Statistics:
        """Return the two sides of the items' normal equations, scaled to length 1."""
        users = local[:, local.shape[1] - self.dim :]
        leanings = local[:, 1 : local.shape[1] - self.dim]
        rows = shared.items[interactions.item]
        public = (rows[:, _HEAD + self.dim :] * interactions.of_users(leanings)).sum(1)
        length = jnp.linalg.norm(users, axis=1, keepdims=True)
        active = (interactions.sum_by_user(interactions.present) > 0)[:, None]
        if self.ranks:
            left = self._wanted(interactions) - self.observed_weight * public
            # Each user's equations are divided by the length of its factors.
            x = users / jnp.maximum(length, _LEAST)
            dense = [(x * length)[:, :, None] * x[:, None, :]]
            crossed = (leanings[:, :, None] * x[:, None, :]).reshape(len(users), -1)
        else:
            left = interactions.value - self.mean - interactions.of_users(local[:, 0]) - public
            fits = jnp.minimum(_MAX_NORM / jnp.maximum(length, _LEAST), 1.0)
            x = jnp.concatenate([active, _FACTOR_WEIGHT * fits * users], axis=1)
            dense, crossed = [x[:, :, None] * x[:, None, :]], jnp.zeros((len(users), 0))
        squares = dense[0][:, *_triangle(self.width)]
        columns = [jnp.full((left.shape[0], 1), _COUNT_WEIGHT)]
        columns += [left[:, None] * interactions.of_users(x)]
        uploaded = jnp.concatenate(columns, axis=1)
        uploaded = uploaded * (interactions.present * rows[:, 0])[:, None]
        uploaded = interactions.sum_by_pair(uploaded)
        whole = jnp.concatenate([squares, crossed], axis=1)
        once = jnp.concatenate([_MEAN_WEIGHT * active, whole * active], axis=1)
        once = jax.ops.segment_sum(once, interactions.client_of_user, interactions.n_clients)
        by_client = interactions.sum_pairs((uploaded**2).sum(1))
        norm = jnp.sqrt(by_client + (once**2).sum(1))
        factor = jnp.where(norm > 0, 1.0 / jnp.maximum(norm, _LEAST), 0.0)
        upload = Upload(
            uploaded * interactions.of_clients(factor)[:, None], once * factor[:, None]
        )
        return Statistics(upload, self._loss(shared, local, interactions), local)

    def predict(
        self, shared: Shared, local: Local, interactions: Interactions, user: Array, item: Array
    ) -> Array:
        """Predictions clipped to the scale of the ratings; for ranking, each user's own level."""
        del interactions
        score = self.mean + local[user, 0]
        if not self.ranks:
            coordinates = self._coordinates(shared)[item]
            score = score + shared.items[item, 1] + (coordinates * local[user, 1:]).sum(1)
        return jnp.clip(score, 0.0, 1.0)

    def rank(
        self, shared: Shared, local: Local, interactions: Interactions, users: Array
    ) -> Array:
        """Scores for ranking, or predicted ratings."""
        if not self.ranks:
            return super().rank(shared, local, interactions, users)
        scores: Array = local[users, 1:] @ self._coordinates(shared).T
        return scores

    def server_initial(self, shared: Shared, server: Server) -> Equations:
        """Return the sums before the first round.

        Raises:
            ConfigError: If an optimizer is configured, because this model would ignore it.
        """
        fits = server.optimizer == "posterior"
        name = type(self).__name__.lower()
        expected = f"posterior, for the model {name}"
        ConfigError.unless(fits, "server.optimizer", server.optimizer, expected)
        items = shared.items.shape[0]
        return Equations(jnp.zeros((items, 1 + self.width)), jnp.zeros(()), jnp.zeros(items))

    def server_update(
        self, shared: Shared, memory: Equations, mean: Aggregate, noise: Noise, server: Server
    ) -> tuple[Shared, Equations]:
        """Return the solutions of the items' equations; there is no step size."""
        del server
        known = jnp.isfinite(noise.std)
        std = jnp.where(known, noise.std, 0.0)
        # How much the mean client counts: everything else is relative to it.
        unit = jnp.maximum(mean.gradient.dense[0], std) / _MEAN_WEIGHT
        unit = jnp.where(unit > 0, unit, 1.0)
        relative = jnp.where(known, std / unit, jnp.inf)
        dense = jnp.where(known, mean.gradient.dense / unit, shared.dense)
        weights = shared.items[:, 0]
        memory = memory.plus(mean.gradient.items / unit, relative, weights, self.memory)
        rows, spread = memory.mean()
        counts = _positive(rows[:, 0] / _COUNT_WEIGHT, spread.mean() / _COUNT_WEIGHT)
        square, crossed = jnp.split(dense[1:], [_triangular(self.width)])
        gramian = _semidefinite(_symmetric(square, self.width))
        left, right = counts[:, None, None] * gramian, rows[:, 1:]
        told = Told(counts, gramian, crossed, left, right, spread, noise.clients)
        solve = self._ranking if self.ranks else self._qualities
        quality, factors = solve(shared, told)
        if self.adaptive:
            ratio = jnp.maximum(counts, _LEAST) / jnp.maximum(counts.mean(), _LEAST)
            weights = jnp.clip(ratio**-self.adaptive, *_WEIGHTS)
        new = jnp.concatenate([weights[:, None], quality[:, None], factors], axis=1)
        items = shared.items.at[:, : _HEAD + self.dim].set(new)
        changed = memory.precision > 0
        return Shared(jnp.where(changed, items, shared.items), dense), memory

    def _qualities(self, shared: Shared, told: Told) -> tuple[Array, Array]:
        """Return each item's quality and factors: the posterior mean, given noisy equations.

        The right side is left side times solution, plus noise, plus what the sampling of ratings
        adds. The prior mean of the quality is a line over popularity and features.
        """
        counts, left, right, spread = told.counts, told.left, told.right, told.spread
        sampled = _RESIDUAL**2 / told.clients
        features = shared.items[:, _HEAD + self.dim :]
        popularity = jnp.log1p(counts / jnp.maximum(counts.mean(), _LEAST))[:, None]
        ones = jnp.ones((counts.shape[0], 1))
        line = jnp.concatenate([ones, popularity - popularity.mean(), features], axis=1)
        noisy = spread**2 + sampled * counts + (_QUALITY_SPREAD * counts) ** 2 + _LEAST**2
        weighted = (counts**2 / noisy)[:, None] * line
        prior = jnp.full(line.shape[1], _LINE_SPREAD**-2).at[0].set(_LEVEL_SPREAD**-2)
        fitted = jnp.linalg.solve(
            line.T @ weighted + jnp.diag(prior), line.T @ (counts / noisy * right[:, 0])
        )
        expected = line @ fitted
        right = right - left[:, :, 0] * expected[:, None]
        values, vectors = jnp.linalg.eigh(left)
        values = jnp.maximum(values, 0.0)
        precision = values / ((spread**2)[:, None] + sampled * values + _LEAST**2)
        spreads = jnp.array([_QUALITY_SPREAD] + [_FACTOR_SPREAD / _FACTOR_WEIGHT] * self.dim)
        information = jnp.einsum("iab,ib,icb->iac", vectors, values * precision, vectors)
        known = jnp.einsum("iab,ib,icb,ic->ia", vectors, precision, vectors, right)
        found = jnp.linalg.solve(information + jnp.diag(spreads**-2), known[..., None])[..., 0]
        return found[:, 0] + expected, found[:, 1:] * _FACTOR_WEIGHT

    def _ranking(self, shared: Shared, told: Told) -> tuple[Array, Array]:
        """Return no quality, and each item's factors: ridge, of rows shrunk by their noise."""
        features = shared.items[:, _HEAD + self.dim :]
        public = features @ told.crossed.reshape(features.shape[1], self.dim)
        right = told.right - self.unobserved_weight * public
        squares = jnp.maximum((right**2).sum(1), _LEAST**2)
        right = right * jnp.maximum(1.0 - self.dim * told.spread**2 / squares, 0.0)[:, None]
        size = jnp.maximum(jnp.trace(told.gramian) / self.dim, _LEAST)
        ridge = self.item_shrinkage * self.unobserved_weight * jnp.eye(self.dim)
        normal = self.unobserved_weight * told.gramian + self.observed_weight * told.left
        normal = normal / size + ridge + _RIDGE * jnp.eye(self.dim)
        factors = jnp.linalg.solve(normal, (right / size)[..., None])[..., 0]
        weight = told.counts / jnp.maximum(told.counts.sum(), _LEAST)
        length = jnp.sqrt((weight * (factors**2).sum(1)).sum())
        return jnp.zeros_like(weight), factors / jnp.maximum(length, _LEAST)

    def _coordinates(self, shared: Shared) -> Array:
        """Return the items' features and factors, in the order of the users' weights."""
        factors, features = jnp.split(shared.items[:, _HEAD:], [self.dim], axis=1)
        return jnp.concatenate([features, factors], axis=1)

    def _ridge(self, items: Array) -> Array:
        """Return the ridge weights of users for ranking, relative to the items' mean square."""
        leanings = items.shape[1] - self.dim
        return _RIDGE * jnp.array([1.0 + _FEATURE_SHRINKAGE] * leanings + [1.0] * self.dim)

    def _wanted(self, interactions: Interactions) -> Array:
        """Return what a rated item's score should be, for ranking: 1 for a usual rating."""
        return (interactions.value / self.mean) ** self.favour

    def _loss(self, shared: Shared, local: Local, interactions: Interactions) -> Array:
        """Return half of each client's mean squared error, of ratings or of scores."""
        user, item = interactions.user, interactions.item
        error = interactions.value - self.mean - local[user, 0] - shared.items[item, 1]
        if self.ranks:
            error = self._wanted(interactions)
        error = error - (self._coordinates(shared)[item] * local[user, 1:]).sum(1)
        ratings = jnp.maximum(interactions.ratings_of_clients, 1.0)
        return 0.5 * interactions.sum_by_client(interactions.present * error**2) / ratings


@dataclass(frozen=True, kw_only=True)
class Cmf(Als):
    """Alternating least squares with public item features beside the private factors.

    This is the rival of Curmei, Krichene, Zhang and Sundararajan 2023, "Private Matrix
    Factorization with Public Item Features". They factorize ratings and public features together
    (collective matrix factorization), so that an item's embedding is a map of its features plus a
    private part. Here the map keeps every feature, which is the limit in which that factorization
    loses nothing: users solve for their leanings towards features on the client, and only the
    private part is paid for. Features also tell the server which quality to expect of an item.
    """

    def with_features(self, shared: Shared, local: Local, features: Array) -> tuple[Shared, Local]:
        """Append centred features to the items, and leanings to the users."""
        centred = features - features.mean(axis=0)
        number = features.shape[1]
        items = jnp.concatenate([shared.items, centred], axis=1)
        leanings = jnp.zeros((local.shape[0], number))
        local = jnp.concatenate([local[:, :1], leanings, local[:, 1:]], axis=1)
        crossed = jnp.zeros(number * self.dim if self.ranks else 0)
        return Shared(items, jnp.concatenate([shared.dense, crossed])), local


def _triangular(width: int) -> int:
    """Return the number of entries in the upper triangle of a matrix."""
    return width * (width + 1) // 2


def _triangle(width: int) -> tuple[Array, Array]:
    rows, columns = jnp.triu_indices(width)
    return rows, columns


def _symmetric(triangle: Array, width: int) -> Array:
    """Return symmetric matrices from their upper triangles, in the last axis."""
    rows, columns = _triangle(width)
    empty = jnp.zeros((*triangle.shape[:-1], width, width))
    return empty.at[..., rows, columns].set(triangle).at[..., columns, rows].set(triangle)


def _semidefinite(matrices: Array) -> Array:
    """Return the nearest positive semidefinite matrices."""
    values, vectors = jnp.linalg.eigh(matrices)
    kept = vectors * jnp.maximum(values, 0.0)[..., None, :]
    nearest: Array = kept @ jnp.swapaxes(vectors, -1, -2)
    return nearest


def _positive(counts: Array, std: Array) -> Array:
    """Return the posterior means of counts that are never negative, given their noise.

    The prior is exponential, with the mean of all counts.
    """
    std = jnp.maximum(std, _LEAST)
    typical = jnp.maximum(counts.mean(), 0.1 * std)
    far = (counts - std**2 / typical) / std
    ratio = jnp.exp(
        jax.scipy.stats.norm.logpdf(far) - jax.scipy.stats.norm.logcdf(far)
    )  # of the density to the mass below
    tail = 1.0 / jnp.maximum(-far, 1.0)
    return std * jnp.where(far > -_MOST_NORMAL, far + ratio, tail)
