"""What items, users and clients add to a rating, learned from two sums per item.

A rating is predicted as

    mean + q_i + b_u + s_u p_i + t_u q_i + d_ci

The server holds three numbers per item: its quality ``q_i``, its popularity ``p_i``, and how sure
the server is of the quality, from 0 (next to nothing is known) to 1. Everything else stays on the
clients and costs no privacy: a user's own level ``b_u``, how strongly the user follows popularity
``s_u`` and quality ``t_u`` (all three by ridge regression on the user's own ratings), and, where a
client has several users, their shared deviation for an item, ``d_ci``, which counts the more, the
less the server knows about the item.

A client does not upload a gradient. For each item it uploads the sum of the residuals of its
ratings, and their number. Uploads are always longer than the clip, so that every client's upload
counts the same. For each item, the mean over clients holds

    count      A = M + noise                   M: weighted number of ratings behind it
    residual   B = M (theta - q) + noise       theta: its quality as the ratings have it,
                                               q: what was sent out before the round

with the same weights in both, so that they cancel. The noise is Gaussian or nearly so (it is a sum
of many terms) and its size is known. Rounds are added up, weighted by their precision. From the
sums the server estimates

* M, which is never negative and small for most items: its distribution over the items is fitted to
  the noisy counts (nonparametric maximum likelihood, Kiefer and Wolfowitz 1956, by expectation
  maximisation on a grid), and each M is its posterior mean, given that distribution and its own
  count. Popularity is the logarithm of M.
* theta = level + slope * popularity + own: popular items are liked better, so even an item whose
  signal is lost in the noise gets a sensible value. Level and slope come from a regression, the
  spread of `own` from maximum likelihood, and every item is shrunk to the line according to its
  noise.

All of this uses only released numbers and public constants, so it costs no privacy. If there is
nothing but noise, everything stays near zero, and clients predict as they would alone: no round
can do much harm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from bgtplanner.errors import ConfigError
from bgtplanner.models.interactions import Interactions, Shared, Upload
from bgtplanner.models.learner import Learner, Local, Statistics, within
from bgtplanner.models.optimizers import Aggregate, Noise, Server
from bgtplanner.models.solving import ridge, solved_systems

__all__ = ["COUNT_WEIGHT", "Biases", "Posterior"]

Floats = NDArray[np.float64]

COUNT_WEIGHT = 0.1
"""The weight of one rating's count in an upload, beside a residual of about 0.2."""

_QUALITY = 2  # column of the quality in what users respond to
_SWEEPS = 4  # between the users and the items of a client with several users
_SPREAD = 0.1  # prior standard deviation of the qualities
_SPREAD_ITEMS = 20.0  # how many items that prior weighs as much as
_LINE = 0.03  # standard deviation of level and slopes before anything is known
_FLOOR = 0.05  # of popularity, relative to the mean item
_FEATURE_ITEMS = 10.0  # how many items the prior of a feature's popularity weighs as much as
_RESIDUAL = 0.2  # a public guess at a residual's size
_TYPICAL_RATINGS = 40.0  # per client, where uploads do not reveal it
_RATINGS_VARY = 1.2  # standard deviation of their logarithm, from federation to federation
_RANKS = 200  # groups of items by popularity, in a typical catalogue
_GRID = 64
_EM_STEPS = 60
_CLEAR = 8.0  # standard deviations
_SURE = 3.0  # standard deviations
_VARIANCE_OF_SQUARE = {"l1": 5.0, "l2": 2.0, None: 2.0}  # of noise of variance 1, by its kind
_SPREAD_STEPS = 5
_DOUBT = 2.0  # a line within 1.4 standard deviations of zero is taken for noise
_LEAST_INFORMATION = 1e-6
_STANDS_OUT = {"l1": 8.0, "l2": 5.0}  # standard deviations: noise exceeds them for no item
_SOME_SIGNAL = 0.5  # standard deviations: noise alone passes one time in five or six


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
    """

    mean: float = 0.7
    level_shrinkage: float = 5.0
    popularity_shrinkage: float = 20.0
    quality_shrinkage: float = 0.3
    item_shrinkage: float = 5.0
    known_item_shrinkage: float = 40.0

    count_weight: ClassVar[float] = COUNT_WEIGHT

    def __post_init__(self) -> None:
        within(self, 0, 1, "mean")
        for name in ("level", "popularity", "quality", "item", "known_item"):
            within(self, 1e-6, 1e6, f"{name}_shrinkage")  # zero would leave users unsolvable

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
        solved = ridge(table, self.shrinkage(table.shape[1]), interactions)
        target = interactions.value - self.mean - table[:, _QUALITY][interactions.item]
        users = solved(target)
        if not interactions.one_user_each:
            view = self._view(shared, interactions)
            for _ in range(_SWEEPS - 1):
                users = solved(target - view(users)[interactions.pair])
        return users

    def train(self, shared: Shared, local: Local, interactions: Interactions) -> Statistics:
        """Return residuals and counts, summed by item.

        A client's own view of an item is not subtracted: it is estimated from these residuals.
        """
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
        score = self._score(shared, local, user, item)
        if not interactions.one_user_each:
            pair = interactions.find_pair(interactions.client_of_user[user], item)
            view = jnp.append(self.own_view(shared, local, interactions), 0.0)
            score = score + view[pair]
        return jnp.clip(score, 0.0, 1.0)

    def server_initial(self, shared: Shared, server: Server) -> Posterior:
        """Return the posterior before the first round.

        Raises:
            ConfigError: If an optimizer is configured, because this model would ignore it.
        """
        fits = server.optimizer == "posterior"
        expected = "posterior, for the model biases"
        ConfigError.unless(fits, "server.optimizer", server.optimizer, expected)
        return Posterior.initial(shared, discounts=server.hostile_clients > 0)

    def server_update(
        self, shared: Shared, memory: Posterior, mean: Aggregate, noise: Noise, server: Server
    ) -> tuple[Shared, Posterior]:
        """Return qualities and popularities from the new posterior; there is no step size."""
        sent, hostile = shared.items[:, 0], server.hostile_clients
        items, memory = memory.after(
            sent, mean.gradient.items, noise, hostile, count_weight=self.count_weight
        )
        return Shared(items, shared.dense), memory

    def forecast(
        self, memory: Posterior, precision: Floats, clip: float, norm: Literal["l1", "l2"]
    ) -> Floats:
        """Return the improvement that the posterior expects from more precision."""
        return memory.forecast(precision, clip, norm, self.count_weight)

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
        return self._view(shared, interactions)(users)

    def _view(self, shared: Shared, interactions: Interactions) -> Callable[[Array], Array]:
        """Return what gives :meth:`own_view` for some users: ratings are counted only once."""
        sure = jnp.clip(shared.items[interactions.pair_item, 2], 0.0, 1.0)
        doubt = (1.0 - sure) / self.item_shrinkage + sure / self.known_item_shrinkage
        number = interactions.sum_by_pair(interactions.present) + 1.0 / doubt

        def view(users: Array) -> Array:
            error = self._residual(shared, users, interactions)
            return interactions.sum_by_pair(interactions.present * error) / number

        return view

    def _score(self, shared: Shared, users: Array, user: Array, item: Array) -> Array:
        rows = self.table(shared)[item]
        return self.mean + rows[:, _QUALITY] + (rows * users[user]).sum(1)

    def _residual(self, shared: Shared, users: Array, interactions: Interactions) -> Array:
        """Return how far each rating is from what is predicted without the client's own view."""
        table = self.table(shared)
        expected = self.mean + table[:, _QUALITY][interactions.item]
        return interactions.value - expected - interactions.scores(table, users)


class Posterior(NamedTuple):
    """What the server remembers of all rounds, and the estimates it makes from that.

    Attributes:
        told: Residual and count of each item, summed over rounds, weighted by precision.
        sent: Qualities that were sent out, summed over rounds, weighted by precision.
        precision: Sum over rounds of 1 / noise variance.
        spread: Variance of qualities around the line.
        weight: M of each item.
        error: Expected squared error of each item's quality, including the sampling error.
        sampling: The part of it that is due to the number of ratings and not to noise.
        clients: The most clients that answered in one round.
        reach: How far one client can have moved a residual, summed over rounds, weighted by
            precision; None if no client is discounted.
    """

    told: Array
    sent: Array
    precision: Array
    spread: Array
    weight: Array
    error: Array
    sampling: Array
    clients: Array
    reach: Array | None = None

    @classmethod
    def initial(cls, shared: Shared, *, discounts: bool = False) -> Posterior:
        """Return the prior; `discounts` says whether clients will be discounted."""
        items = shared.items.shape[0]
        return cls(
            told=jnp.zeros((items, 2)),
            sent=jnp.zeros(items),
            precision=jnp.zeros(()),
            spread=jnp.full((), _SPREAD**2),
            weight=jnp.zeros(items),
            error=jnp.full(items, _SPREAD**2),
            sampling=jnp.zeros(items),
            clients=jnp.zeros(()),
            reach=jnp.zeros(()) if discounts else None,
        )

    def after(
        self,
        sent: Array,
        uploads: Array,
        noise: Noise,
        hostile: int = 0,
        features: Array | None = None,
        count_weight: float = COUNT_WEIGHT,
    ) -> tuple[Array, Posterior]:
        """Return what is sent out after one more round, and the posterior.

        The former has three columns: quality, popularity, and how sure the server is of the
        quality.

        Args:
            sent: The qualities that were sent out before the round.
            uploads: The mean upload, ``[n_items, 2]``.
            noise: What is known about its noise.
            hostile: Residuals that this many clients could have produced together move no item.
            features: Public features of the items, ``[n_items, n_features]``: items that share
                them are expected to be alike in quality and popularity.
            count_weight: The weight of one rating's count in an upload.
        """
        gained = 1.0 / jnp.maximum(noise.std, 1e-9) ** 2
        # A round with few clients adds to what is known; it does not take ratings away.
        clients = jnp.maximum(self.clients, noise.clients)
        noise = noise._replace(clients=clients)
        told = self.told + gained * uploads
        sent = self.sent + gained * sent
        reach = None if self.reach is None else self.reach + gained * noise.reach
        precision = jnp.maximum(self.precision + gained, 1e-12)

        count_std = 1.0 / (count_weight * jnp.sqrt(precision))
        counts = told[:, 1] / count_weight / precision
        weight, log_weight = _weights(counts, count_std)
        if features is not None:
            weight, log_weight = _weights(counts, count_std, _scales(weight, features))
        log_weight = _varied(counts, count_std, noise.norm) * log_weight
        share = weight / jnp.maximum(weight.sum(), 1e-12)
        popularity = log_weight - (share * log_weight).sum()

        information = weight**2 * precision
        known = information > _LEAST_INFORMATION
        theta = told[:, 0] / jnp.maximum(weight, 1e-12) / precision + sent / precision
        theta = jnp.where(known, theta, 0.0)
        sampling = _RESIDUAL**2 / jnp.maximum(_ratings(weight, noise, count_weight), 0.5)
        noisy = jnp.where(known, 1.0 / jnp.maximum(information, 1e-12), 1e12) + sampling
        columns = jnp.stack([jnp.ones_like(popularity), popularity], axis=1)
        if features is not None:
            columns = jnp.concatenate([columns, features - share @ features], axis=1)
        line, spread = _line(theta, columns, noisy, self.spread, known)
        expected = columns @ line
        believed = jnp.where(known, spread / (spread + noisy), 0.0)
        own = believed * (theta - expected)
        if reach is not None:  # what that many could have produced on their own counts for nothing
            evidence = jnp.abs(weight * (theta - expected))
            left = jnp.maximum(evidence - hostile * reach / precision, 0.0)
            own = own * left / jnp.maximum(evidence, 1e-30)
        quality = expected + own
        # Nothing is sent that may be noise alone; clients then do as well as they would alone.
        # Do the residuals of items that seem popular vary more than noise alone would?
        squares = (weight * theta) ** 2 * precision - 1.0
        trust = share / jnp.maximum(jnp.sqrt((share**2).sum()), 1e-12)
        excess = (trust * squares).sum() / _VARIANCE_OF_SQUARE[noise.norm] ** 0.5
        sends = excess > _SOME_SIGNAL
        moved = Posterior(
            told=told,
            sent=sent,
            precision=precision,
            spread=spread,
            weight=weight,
            error=spread * (1.0 - believed),
            sampling=sampling,
            clients=clients,
            reach=reach,
        )
        sure = jnp.clip(1.0 - moved.error / _SPREAD**2, 0.0, 1.0)
        items = jnp.stack([quality, popularity, sure], axis=1)
        return jnp.where(sends, items, 0.0), moved

    def varied(self, norm: Literal["l1", "l2"] | None, count_weight: float) -> Array:
        """Return how surely the counts vary by more than their noise, from 0 to 1."""
        precision = jnp.maximum(self.precision, 1e-12)
        counts = self.told[:, 1] / count_weight / precision
        return _varied(counts, 1.0 / (count_weight * jnp.sqrt(precision)), norm)

    def forecast(
        self,
        precision: Floats,
        clip: float,
        norm: Literal["l1", "l2"],
        count_weight: float = COUNT_WEIGHT,
    ) -> Floats:
        """Return by how much added precision would lower the error below that of a client alone.

        It is a share of the RMSE, expected from what was released so far and, as long as an item's
        count does not stand out from its noise, from a typical catalogue (popularity follows
        Zipf's law).

        Args:
            precision: Sums of 1 / noise variance over the rounds to come; 0 for none.
            clip: Length of an upload.
            norm: Norm of the clip, ``l1`` or ``l2``.
            count_weight: The weight of one rating's count in an upload.
        """
        weight = np.asarray(self.weight, dtype=np.float64)
        before, spread = float(self.precision), float(self.spread)
        total = (before + np.asarray(precision, dtype=np.float64))[:, None, None]
        clear = weight * count_weight * before**0.5 > _STANDS_OUT[norm]
        size = 0.8 * _RESIDUAL + count_weight  # mean length of a rating in an L1 clip
        if norm == "l2":
            size = (_RESIDUAL**2 + count_weight**2) ** 0.5 / _TYPICAL_RATINGS**0.5

        def gain(weights: Any, errors: Any, whole: Any, items: Any) -> Any:
            """Return the fall of the mean squared error; the last axis is that of the items."""
            information = weights**2 * total
            noisy = 1.0 / np.maximum(information, 1e-12) + errors
            counted = information * count_weight**2  # residuals are of no use without the count
            gains = weights / np.maximum(whole, 1e-12) * spread**2 / (spread + noisy)
            return (gains * counted / (1.0 + counted)) @ items

        # Under L2, the sum of all counts grows with the number of ratings per client, and so
        # tells something about it.
        sums, chances = np.array([clip / size]), np.ones(1)
        if norm == "l2":
            steps = np.linspace(-3.0, 3.0, 31)
            sums = clip / size * np.exp(0.5 * _RATINGS_VARY * steps)
            log_chances = -0.5 * steps**2
            if before > 0:
                told = np.asarray(self.told)[:, 1].astype(np.float64).sum()
                counts = told / count_weight / before
                noise = (len(weight) / before) ** 0.5 / count_weight
                log_chances = log_chances - 0.5 * ((counts - sums) / noise) ** 2
            chances = np.exp(log_chances - log_chances.max())
        typical, items = _typical(len(weight))
        expected = gain(typical * sums[:, None], 0.0, sums[:, None], items)
        sampling = np.asarray(self.sampling, dtype=np.float64)[clear]
        seen = weight[clear][None]
        of_clear = gain(seen, sampling, weight.sum(), np.ones(seen.shape[1]))[:, 0]
        fall = np.maximum(of_clear, expected @ chances / chances.sum())
        relative = 0.5 * fall / (_RESIDUAL**2 + _SPREAD**2 / 2)
        return np.asarray(np.where(total[:, 0, 0] > 0, relative, 0.0))


@cache
def _typical(items: int) -> tuple[Floats, Floats]:
    """Return the shares of the ratings that typical items have, and how many have each share.

    Popularity follows Zipf's law with a flat head. Ranks that are close are taken together.
    """
    edges = np.unique(np.geomspace(1, items + 1, min(items, _RANKS) + 1).astype(np.int64))
    number = np.diff(edges).astype(np.float64)
    share = 1.0 / ((edges[:-1] + edges[1:] - 1) / 2 + 0.02 * items)
    return share / (share @ number), number


def _weights(counts: Array, std: Array, scale: Array | None = None) -> tuple[Array, Array]:
    """Return the posterior means of each M and of log(M / mean + 1), given its noisy count.

    The prior of M / `scale` is the distribution on a grid that maximises the likelihood of all
    counts. A count far above its noise is used as it is: it is more precise than the grid.
    """
    top = 1.05 * jnp.maximum(counts.max(), std)
    grid = jnp.concatenate([jnp.zeros(1), top * jnp.geomspace(1 / 3000, 1.0, _GRID - 1)])[:, None]
    grid = grid if scale is None else scale * grid  # a column per item
    exponent = -0.5 * ((counts - grid) / std) ** 2
    likelihood = jnp.exp(exponent - exponent.max(axis=0))

    def better(_: int, mass: Array) -> Array:
        fitted = jnp.maximum(mass @ likelihood, 1e-30)
        return mass * (likelihood @ (1.0 / fitted)) / len(counts)

    start = jnp.full(_GRID, 1.0 / _GRID)
    mass = jax.lax.fori_loop(0, _EM_STEPS, better, start, unroll=2)  # a GPU waits between steps
    chances = likelihood * mass[:, None]
    chances = chances / jnp.maximum(chances.sum(axis=0), 1e-30)
    clear = counts > _CLEAR * std

    def expected(values: Array) -> Array:
        of_items: Array = (chances * values).sum(axis=0)
        return of_items

    weight = jnp.where(clear, counts, expected(grid))
    mean = jnp.maximum(weight.mean(), 1e-12)
    logs = jnp.where(clear, jnp.log1p(counts / mean), expected(jnp.log1p(grid / mean)))
    return weight, logs


def _varied(counts: Array, std: Array, norm: Literal["l1", "l2"] | None) -> Array:
    """Return how surely the counts vary by more than noise alone would, from 0 to 1.

    Any noise shows some pattern.
    """
    excess = (((counts - counts.mean()) / std) ** 2).mean() - 1.0
    excess = excess * (counts.shape[0] / _VARIANCE_OF_SQUARE[norm]) ** 0.5
    sure = jnp.maximum(1.0 - (_SURE / jnp.maximum(excess, 1e-6)) ** 2, 0)
    return jnp.where(excess > 0, sure, 0)


def _scales(weight: Array, features: Array) -> Array:
    """Return how popular an item with these features is, relative to the mean item.

    A ridge regression of log M on the features, over all items.
    """
    logs = jnp.log(weight / jnp.maximum(weight.mean(), 1e-12) + _FLOOR)
    centred = features - features.mean(axis=0)
    normal = centred.T @ centred + _FEATURE_ITEMS * jnp.eye(features.shape[1])
    slopes = jnp.linalg.solve(normal, centred.T @ (logs - logs.mean()))
    return jnp.exp(jnp.clip(centred @ slopes, -2.0, 2.0))


def _ratings(weight: Array, noise: Noise, count_weight: float) -> Array:
    """Estimate how many ratings each item has.

    A client with n ratings scales them by clip / (size sqrt(n)) under an L2 clip, where size is
    the length of one rating's residual and count, so the sum of all M tells the typical n. Under
    an L1 clip the factor is clip / (size n), and the sum says nothing about n.
    """
    if noise.norm is None:
        return weight * noise.clients
    typical = jnp.asarray(_TYPICAL_RATINGS)
    if noise.norm == "l2":
        size = (_RESIDUAL**2 + count_weight**2) ** 0.5
        typical = (weight.sum() / noise.clip * size) ** 2
    return weight / jnp.maximum(weight.sum(), 1e-12) * noise.clients * typical


def _line(
    theta: Array, features: Array, noisy: Array, spread: Array, known: Array
) -> tuple[Array, Array]:
    """Fit level and slopes of quality over popularity and features, and the spread around it."""
    width = features.shape[1]
    prior = jnp.eye(width) / _LINE**2
    items = jnp.sum(known)

    def better(_: int, found: tuple[Array, Array]) -> tuple[Array, Array]:
        line, spread = found
        weight = jnp.where(known, 1.0 / (noisy + spread), 0.0)
        normal = features.T @ (weight[:, None] * features) + prior
        line = solved_systems(normal[None], (features.T @ (weight * theta))[None])[0]
        pull = spread * weight
        own = pull * (theta - features @ line)
        squares = jnp.where(known, own**2 + spread * (1.0 - pull), 0.0).sum()
        spread = (squares + _SPREAD_ITEMS * _SPREAD**2) / (items + _SPREAD_ITEMS)
        return line, spread

    line, spread = jax.lax.fori_loop(0, _SPREAD_STEPS, better, (jnp.zeros(width), spread))
    weight = jnp.where(known, 1.0 / (noisy + spread), 0.0)
    normal = features.T @ (weight[:, None] * features) + prior
    units = jnp.eye(width)
    variance = jnp.diagonal(
        solved_systems(jnp.broadcast_to(normal, (width, *normal.shape)), units)
    )
    believed = jnp.maximum(1.0 - _DOUBT * variance / jnp.maximum(line**2, 1e-30), 0.0)
    return believed * line, spread
