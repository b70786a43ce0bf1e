"""Leanings towards public features, private axes of taste, and ranking, on top of the bias model.

Ratings. A rating is predicted as by :class:`~bgtplanner.models.bias.Biases`, with further terms:
each user's leanings towards the public features of an item and towards axes of taste. They are
solved on the client, by ridge regression on its own ratings, and cost no privacy.

Ranking. What is useful to a user is what the user would pick and then like. An item is ranked by

    log share_i + w_u . phi_i + log P(u likes i, given that u picks it)

where ``share`` is the released popularity, and ``phi`` are features and axes. The weights w_u
maximise the likelihood of the user's own history as a draw from the catalogue, in one Newton step
from zero: ``(n_u Cov(phi) + penalty)^-1 (sum of phi over the history - n_u mean(phi))``. Mean and
covariance, weighted by share, are the same for all users, so that the step has a closed form. An
item counts in the history the more, the better it was rated. How strong a user's interests are is
fitted on the client too: the penalty is averaged over by how likely it makes the history.

Tastes. The axes span what people pick together beyond popularity: the leading directions of the
matrix of who rated what, x_u being 1 for the user's items, weighted down for popular ones, and of
length 1. They are found by noisy subspace iteration (Hardt and Price 2014). For axes Q,
orthonormal, each client uploads ``x_u (Q' x_u)'``, an items times axes matrix. The server averages
these, removes the direction of popularity, shrinks each item by what its noise explains, and
orthonormalises: these are the axes that it sends out next. Rounds are added up, turned into the
latest axes. It starts from the leading directions of the public features, or at random; clients
answer, but do not use these. If what was told does not stand out from its noise, the server sends
no axes any more, and nothing more is paid for them.

One upload holds both: residuals and counts (as in the bias model), and tastes. Each part is scaled
to a public share of the upload's squared length, so that one clip bounds all of it. The server
asks for the division with the parameters it sends out: it is planned from what was released, and
before popularity is known, all of it goes to residuals and counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bgtplanner.models.bias import Biases
from bgtplanner.models.interactions import Interactions, Shared, Upload
from bgtplanner.models.learner import Local, Published, Statistics
from bgtplanner.models.optimizers import Aggregate, Noise, Server
from bgtplanner.models.posterior import Floats, Posterior
from bgtplanner.models.settings import check

_SHARE = 3  # column of the share of all ratings that an item has; 0 for all: not known yet
_ASKS = 4  # column of the share of the next upload that is asked for tastes; the same for all
_OWN = 5  # columns of an item before its axes and features
_RATING = 2  # columns of an upload before the axes
_FLOOR = 0.05  # of popularity, relative to the mean item, in weights
_RARE = 0.02  # the same in a ranking
_LIKED, _UNSURE = 0.75, 0.2  # a rating that is liked, and how far predictions are off
_USUAL = 0.7  # a usual rating
_STRENGTHS = (0.001, 0.1, 0.3, 1.0)  # prior variances of a user's interests, that may be none
_MOST_AXES = 16
_ASKED = 0.01  # length of axes to begin with: clients answer, and do not use them yet
_TOO_NOISY = 2.2  # noise per item over the sampling error: axes are not worth it beyond
_STANDS_OUT = 1.0  # times the largest singular value that noise alone would have
_TYPICAL = 0.1  # singular value of the first axis in a typical federation, over the clip
_PERSONAL = 0.25  # of the use of a list, where tastes are known: a third of what popularity gives
_UNPLANNED = 0.65  # what tastes get of an upload where nothing is paid
_DIVISIONS = np.linspace(0.0, 0.9, 19)  # of a charge: what tastes can get of it


class TasteMemory(NamedTuple):
    """What the server remembers."""

    posterior: Posterior  # of qualities and popularity
    told: Array  # about tastes, `[n_items, axes]`, as weighted sums, in terms of the latest axes
    precision: Array  # sum over rounds of 1 / noise variance of that
    stopped: Array  # 1 once tastes did not stand out from the noise


@dataclass(frozen=True, kw_only=True)
class Tastes(Biases):
    """The bias model with leanings towards features, tastes, and a ranking of its own.

    Attributes:
        axes: The number of axes of taste; by default as many as the noise allows.
        taste_share: Share of an upload's squared length that is spent on tastes, as soon as
            popularity is known; by default it is planned for each round.
        feature_shrinkage: Ridge weight of a user's leaning towards a feature, in ratings.
        axis_shrinkage: The same for an axis of taste.
        interest_shrinkage: The same for how often a user picks items with a feature.
        taste_shrinkage: The same for an axis of taste.
        boldness: How far a ranking follows what was picked before; 0 ranks by popularity and
            predicted ratings alone.
        popularity_weight: How far a ranking follows popularity.
        implicit: Whether there are no ratings, only what was picked. Then residuals are not
            uploaded, and the ranking leaves out how much an item would be liked.
    """

    axes: int | None = None
    taste_share: float | None = None
    feature_shrinkage: float = 25.0
    axis_shrinkage: float = 150.0
    interest_shrinkage: float = 10.0
    taste_shrinkage: float = 30.0
    boldness: float = 0.85
    popularity_weight: float = 1.0
    implicit: bool = False

    count_weight: ClassVar[float] = 0.2  # a ranking needs popularity most

    def __post_init__(self) -> None:
        super().__post_init__()
        bold = {"boldness": (0, 10), "popularity_weight": (0, 10)}
        check(self, axes=(0, 256), taste_share=(0, 0.95), **bold)

    def suited(self, clients: int, items: int, noise: float, *, implicit: bool = False) -> Self:
        """Choose the number of axes by the noise over the error that few clients mean anyway."""
        noisy = noise * math.sqrt(items / max(clients, 1))
        axes = self.axes
        if axes is None:
            most = 0.5 + math.sqrt(clients) / (8 * max(noisy, 0.1))
            axes = 0 if noisy > _TOO_NOISY else min(round(most), _MOST_AXES, items // 4)
        return replace(self, axes=axes, implicit=self.implicit or implicit)

    def split(
        self, memory: TasteMemory, precision: float, clip: float, norm: Literal["l1", "l2"]
    ) -> dict[str, float]:
        """Return the division that serves best, if all that is left were divided so."""
        if not self._axes:
            return {}
        known = float(memory.posterior.precision) > 0  # before that, no axes are sent
        share = self._division(memory, precision, clip, norm) if known else 0.0
        return {"ratings": 1.0 - share, "tastes": share}

    def _division(
        self, memory: TasteMemory, precision: float, clip: float, norm: Literal["l1", "l2"]
    ) -> float:
        """Return what tastes get; both parts count the same, each as a share of the most."""
        if not self._axes or float(memory.stopped):
            return 0.0
        if self.taste_share is not None:
            return self.taste_share
        left = precision * (1.0 - _DIVISIONS)
        gains = memory.posterior.forecast(left, clip, norm, self.count_weight)
        found = self._found(memory, precision * _DIVISIONS, clip)
        return float(_DIVISIONS[int((gains / max(float(gains[0]), 1e-12) + found).argmax())])

    def asking(self, shared: Shared, split: Mapping[str, float]) -> Shared:
        """Return the parameters, with the share of the next upload that tastes are to get."""
        return shared._replace(items=shared.items.at[:, _ASKS].set(split.get("tastes", 0.0)))

    def _found(self, memory: TasteMemory, precision: Floats, clip: float) -> Floats:
        """Return the share of the axes that added precision would make out.

        An axis is as strong as was told, or as in a typical federation if it cannot be seen yet.
        """
        told = np.asarray(memory.told, dtype=np.float64)
        items, before = len(told), float(memory.precision)
        strength = (_TYPICAL * clip / np.arange(1, self._axes + 1)) ** 2
        if before > 0:
            noise = items / before
            seen = np.linalg.eigvalsh(told.T @ told)[::-1] / before**2 - noise
            strength = np.maximum(seen, np.where(strength < 2.0 * noise, strength, 1e-30))
        total = np.maximum(before + np.asarray(precision), 1e-30)[:, None]
        return np.asarray((strength / (strength + items / total)).mean(axis=1))

    @property
    def steps(self) -> int:
        """More than without axes, which turn a little further with each paid round."""
        return 4 if self._axes else super().steps

    @property
    def _axes(self) -> int:
        return self.axes or 0

    def initial(self, key: Array, n_users: int, n_items: int) -> tuple[Shared, Local]:
        """Return zeros: nothing is known about any item or user, and no axes are sent."""
        del key
        items = jnp.zeros((n_items, _OWN + self._axes))
        return Shared(items, jnp.zeros(0)), jnp.zeros((n_users, 3 + self._axes))

    def with_features(self, shared: Shared, local: Local, features: Array) -> tuple[Shared, Local]:
        """Return the same with a column per feature: features are sent out with the rest."""
        items = jnp.concatenate([shared.items, features], axis=1)
        leanings = jnp.zeros((local.shape[0], features.shape[1]))
        return Shared(items, shared.dense), jnp.concatenate([local, leanings], axis=1)

    def table(self, shared: Shared) -> Array:
        """Return what users respond to: level, popularity, quality, axes and features."""
        return jnp.concatenate([super().table(shared), *self._parts(shared)], axis=1)

    def shrinkage(self, width: int) -> list[float]:
        """Return the ridge weight of each column of the table."""
        axes, features = self._axes, width - 3 - self._axes
        own = [self.axis_shrinkage] * axes + [self.feature_shrinkage] * features
        return super().shrinkage(width) + own

    def train(self, shared: Shared, local: Local, interactions: Interactions) -> Statistics:
        """Return residuals, counts and tastes, summed by item, each scaled to its share."""
        trained = super().train(shared, local, interactions)
        rating = trained.upload.rows
        rating = rating * jnp.array([0.0, 1.0]) if self.implicit else rating
        share = self._taste_share(shared)
        rows = jnp.sqrt(1.0 - share) * _scaled(rating, interactions)
        if self._axes:
            tastes = _scaled(self._told(shared, interactions), interactions)
            rows = jnp.concatenate([rows, jnp.sqrt(share) * tastes], axis=1)
        return trained._replace(upload=Upload(rows, trained.upload.dense))

    def rank(
        self, shared: Shared, local: Local, interactions: Interactions, users: Array
    ) -> Array:
        """Return how likely each user is to pick each item and to like it, as a logarithm."""
        share = _share(shared)
        popularity = self.popularity_weight * jnp.log(share + _RARE * share.mean())
        table, weights, _ = self._interests(shared, interactions)
        score = popularity + self.boldness * weights[users] @ table.T
        if self.implicit:
            return score
        if interactions.one_user_each:  # the same as predict() says, in less time
            predicted = self.mean + shared.items[:, 0] + local[users] @ self.table(shared).T
        else:
            predicted = super().rank(shared, local, interactions, users)
        likely = jnp.clip(predicted, 0.0, 1.0)
        return score + jax.scipy.stats.norm.logcdf((likely - _LIKED) / _UNSURE)

    def popularity(self, shared: Shared) -> Array:
        """Return the released share of each item among all that was picked, as a logarithm."""
        return jnp.log(_share(shared) * shared.items.shape[0] + _RARE)

    def publishes(self, shared: Shared, memory: TasteMemory | None = None) -> Published:
        """Return what is sent out without the features, and how many axes stand out."""
        found = super().publishes(shared, None if memory is None else memory.posterior)
        released, evidence = found.released[:, : _OWN + self._axes].copy(), dict(found.evidence)
        released[:, _ASKS] = 0.0  # only says what the next upload would be asked for
        evidence["features"] = shared.items.shape[1] - _OWN - self._axes
        evidence["axes"] = int(((released[:, _OWN:] ** 2).sum(axis=0) > 0.25).sum())
        if memory is not None:
            told = np.asarray(memory.told, dtype=np.float64)
            edge = math.sqrt(len(told)) + math.sqrt(self._axes)
            sizes = np.linalg.svd(told - told.mean(axis=0), compute_uv=False)
            stand_out = (sizes > 1.5 * edge * math.sqrt(memory.precision)).sum()
            evidence["axes"] = int(min(evidence["axes"], stand_out)) if memory.precision else 0
        return found._replace(ranker="tastes", released=released, evidence=evidence)

    def server_initial(self, shared: Shared, server: Server) -> TasteMemory:  # type: ignore[override]
        """Return the memory before the first round."""
        told, zero = jnp.zeros((shared.items.shape[0], self._axes)), jnp.zeros(())
        return TasteMemory(super().server_initial(shared, server), told, zero, zero)

    def server_update(  # type: ignore[override]
        self, shared: Shared, memory: TasteMemory, mean: Aggregate, noise: Noise, server: Server
    ) -> tuple[Shared, TasteMemory]:
        """Return qualities, popularity and axes from all that was told so far."""
        uploads, share = mean.gradient.items, self._taste_share(shared)
        kept = jnp.sqrt(1.0 - share)
        scaled = noise._replace(std=noise.std / kept, reach=noise.reach / kept)
        if noise.norm is None:  # uploads have length 1 where no one clips them, or divides them
            scaled = scaled._replace(clip=1.0, norm="l2")
            shared = self.asking(shared, {"tastes": _UNPLANNED})
        features = shared.items[:, _OWN + self._axes :]
        rating, posterior = memory.posterior.after(
            shared.items[:, 0],
            uploads[:, :_RATING] / kept,
            scaled,
            server.hostile_clients,
            features if features.shape[1] else None,
            self.count_weight,
        )
        varied = posterior.varied(scaled.norm, self.count_weight)
        known = posterior.weight / jnp.maximum(posterior.weight.sum(), 1e-12)
        even = 1.0 / uploads.shape[0]
        popularity = jnp.where(varied > 0, varied * known + (1.0 - varied) * even, 0.0)
        sent = jnp.concatenate([rating, popularity[:, None]], axis=1)
        after = Shared(jnp.concatenate([sent, shared.items[:, _ASKS:]], axis=1), shared.dense)
        memory = memory._replace(posterior=posterior)
        if self._axes:
            after, memory = self._turned(after, memory, uploads[:, _RATING:], noise, share)
        return after, memory

    def forecast(  # type: ignore[override]
        self, memory: TasteMemory, precision: Floats, clip: float, norm: Literal["l1", "l2"]
    ) -> dict[str, Floats]:
        """Return what added precision would bring to predicted ratings and to lists."""
        share = self._division(memory, float(np.max(precision)), clip, norm)
        left, posterior = precision * (1.0 - share), memory.posterior
        lists = posterior.forecast_lists(left, clip, norm, self.count_weight)
        if self._axes and not float(memory.stopped):
            found = self._found(memory, precision * share, clip)
            lists = (1.0 - _PERSONAL) * lists + _PERSONAL * found
        if self.implicit:
            return {"lists": lists}
        ratings = posterior.forecast(left, clip, norm, self.count_weight)
        return {"ratings": ratings, "lists": lists}

    def _taste_share(self, shared: Shared) -> Array:
        """Return the share of an upload that tastes get: none as long as no axes are sent."""
        axes = shared.items[:, _OWN : _OWN + self._axes]
        asked = jnp.clip(shared.items[0, _ASKS], 0.0, _DIVISIONS[-1])
        share = asked if self.taste_share is None else self.taste_share
        return jnp.where(jnp.abs(axes).max(initial=0.0) > 0, share, 0.0)

    def _weight(self, interactions: Interactions) -> Array:
        """Return how much having picked an item says: the more, the better the user rated it."""
        usual = 1.0 if self.implicit else _USUAL
        return interactions.present * interactions.value / usual

    def _told(self, shared: Shared, interactions: Interactions) -> Array:
        """Return ``x_u (Q' x_u)'``, summed over a client's users, for each of its items."""
        weight = self._weight(interactions) * _picked(_share(shared))[interactions.item]
        length = jnp.sqrt(interactions.sum_by_user(weight**2))
        weight = weight / interactions.of_users(jnp.maximum(length, 1e-12))
        axes = shared.items[:, _OWN : _OWN + self._axes]
        scores = interactions.products_by_user(axes, weight)
        return interactions.sum_by_pair(weight[:, None] * interactions.of_users(scores))

    def _turned(
        self, shared: Shared, memory: TasteMemory, told: Array, noise: Noise, share: Array
    ) -> tuple[Shared, TasteMemory]:
        """Return the axes after what a round told about them."""
        items, axes = told.shape
        old = shared.items[:, _OWN : _OWN + axes]
        popularity = _share(shared)
        common = popularity * _picked(popularity)
        common = common / jnp.maximum(jnp.linalg.norm(common), 1e-12)

        def beyond(matrix: Array) -> Array:
            return matrix - common[:, None] * (common @ matrix)

        gained = share / jnp.maximum(noise.std, 1e-9) ** 2
        summed = memory.told + gained * told / jnp.sqrt(jnp.maximum(share, 1e-9))
        precision = memory.precision + gained
        average = beyond(summed / jnp.maximum(precision, 1e-12))
        noisy = axes / jnp.maximum(precision, 1e-12)
        squares = (average**2).sum(1)
        left = jnp.maximum(1.0 - noisy / jnp.maximum(squares, 1e-30), 0.0)
        new = _orthonormal(beyond(left[:, None] * average))
        largest = jnp.linalg.svd(average, compute_uv=False)[0]
        edge = (math.sqrt(items) + math.sqrt(axes)) / jnp.sqrt(jnp.maximum(precision, 1e-12))
        heard = gained > 0
        silent = heard & (largest < _STANDS_OUT * edge)
        stopped = jnp.maximum(memory.stopped, silent.astype(jnp.float32))
        new = jnp.where(heard, new, old)
        begins = ~heard & (precision == 0) & (shared.items[:, _SHARE].sum() > 0)
        first = _ASKED * _orthonormal(beyond(self._first(shared)))
        new = jnp.where(begins, first, new) * (1.0 - stopped)
        unit = old / jnp.maximum(jnp.linalg.norm(old, axis=0), 1e-12)
        turned = jnp.where(heard, summed @ (unit.T @ new), summed)
        moved = Shared(shared.items.at[:, _OWN : _OWN + axes].set(new), shared.dense)
        return moved, memory._replace(told=turned, precision=precision, stopped=stopped)

    def _first(self, shared: Shared) -> Array:
        """Return the axes to begin with: leading directions of the features, or random ones."""
        items, axes = shared.items.shape[0], self._axes
        features = shared.items[:, _OWN + axes :]
        start = jax.random.normal(jax.random.key(0), (items, axes)) / math.sqrt(items)
        if not features.shape[1]:
            return start
        popularity = _share(shared)
        centred = (features - popularity @ features) / _picked(popularity)[:, None]
        _, turn = jnp.linalg.eigh(centred.T @ centred)
        leading = _orthonormal(centred @ turn[:, ::-1][:, :axes])
        rest = start - leading @ (leading.T @ start)
        leading = jnp.pad(leading, ((0, 0), (0, axes - leading.shape[1])))
        there = (leading**2).sum(0) > 0.5  # features may be fewer, or depend on each other
        return jnp.where(there, leading, 0.1 * rest)

    def _parts(self, shared: Shared) -> tuple[Array, Array]:
        """Return axes and features, centred by popularity; axes also have variance 1.

        Axes of which the server has heard nothing yet are left out: they may be random.
        """
        share = _share(shared)
        axes = shared.items[:, _OWN : _OWN + self._axes]
        axes = jnp.where((axes**2).sum(0) > 0.25, axes, 0.0)
        features = shared.items[:, _OWN + self._axes :]
        axes, features = axes - share @ axes, features - share @ features
        spread = jnp.sqrt(share @ axes**2)
        return jnp.where(spread > 1e-9, axes / jnp.maximum(spread, 1e-9), 0.0), features

    def _interests(self, shared: Shared, interactions: Interactions) -> tuple[Array, Array, Array]:
        """Return a table of items, every user's weights of its columns, and how both are turned.

        The columns are turned so that their covariance, weighted by popularity, is diagonal. The
        weights are averaged over prior variances, by how likely each makes the user's history.
        """
        (axes, features), share = self._parts(shared), _share(shared)
        scales = math.sqrt(self.taste_shrinkage), math.sqrt(self.interest_shrinkage)
        table = jnp.concatenate([axes / scales[0], features / scales[1]], axis=1)
        variance, turn = jnp.linalg.eigh(table.T @ (share[:, None] * table))
        table = table @ turn
        weight = self._weight(interactions)
        total = interactions.products_by_user(table, weight)
        number = interactions.sum_by_user(weight)
        spread = number[:, None] * jnp.maximum(variance, 0.0)  # of the total, for a random draw
        surprise = jnp.where(spread > 1e-9, total**2 / jnp.maximum(spread, 1e-9), 0.0)
        likely = [
            -0.5 * (jnp.log1p(prior * spread) + surprise / (1.0 + prior * spread)).sum(1)
            for prior in _STRENGTHS
        ]
        chances = jax.nn.softmax(jnp.stack(likely), axis=0)
        priors = jnp.array(_STRENGTHS)[:, None, None]
        return table, total * (chances[:, :, None] / (spread + 1.0 / priors)).sum(0), turn


def _share(shared: Shared) -> Array:
    """Return the share of all ratings that each item has; the same for all if it is not known."""
    told = shared.items[:, _SHARE]
    total = told.sum()
    return jnp.where(total > 0, told / jnp.maximum(total, 1e-12), 1.0 / told.shape[0])


def _picked(share: Array) -> Array:
    """Return the weight of having picked an item: popular items say less about a taste."""
    return (share * share.shape[0] + _FLOOR) ** -0.25


def _scaled(rows: Array, interactions: Interactions) -> Array:
    """Return each client's rows, scaled to length 1."""
    squares = interactions.sum_pairs((rows**2).sum(1))
    factor = jnp.where(squares > 0, 1.0 / jnp.sqrt(jnp.maximum(squares, 1e-30)), 0.0)
    return rows * interactions.of_clients(factor)[:, None]


def _orthonormal(matrix: Array) -> Array:
    """Return the leading left singular vectors, in order; zeros in place of those of size zero."""
    squares, turn = jnp.linalg.eigh(matrix.T @ matrix)
    squares, turn = squares[::-1], turn[:, ::-1]
    size = jnp.sqrt(jnp.maximum(squares, 0.0))
    there = size > 1e-3 * jnp.maximum(size[0], 1e-20)  # squares have seven digits
    return jnp.where(there, (matrix @ turn) / jnp.maximum(size, 1e-30), 0.0)
