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
fitted on the client too: the penalty is averaged over, by how likely it makes each item of the
history, given all others. Axes that are weaker in the whole federation are penalised more.

Tastes. The axes span what people pick together beyond popularity. Let x_u be 1 for the user's
items among the N most popular, as released, weighted down for the more popular of them, and of
length 1. The axes are the leading eigenvectors of the mean of ``x_u x_u'`` without its diagonal:
that somebody picked an item says nothing about what goes together with it. For axes Q,
orthonormal, each client uploads ``(x_u x_u' - diag) Q``, an items times axes matrix of length 1.
The server fits the symmetric matrix behind all that was told so far and asks about its leading
eigenvectors next (:mod:`bgtplanner.models.axes`); those that stand out from noise are used. It
starts from the leading directions of the public features, or at random. Other items get their
places on the axes by ridge regression on public features.

One upload holds both: residuals and counts (as in the bias model), and tastes. Each part is scaled
to a public share of the upload's squared length, so that one clip bounds all of it. The server
asks for the division with the parameters it sends out: it is planned from what was released, and
before popularity is known, all of it goes to residuals and counts.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bgtplanner.errors import ConfigError
from bgtplanner.models.axes import Axes, orthonormal, unit
from bgtplanner.models.bias import Biases
from bgtplanner.models.interactions import Interactions, Shared, Upload
from bgtplanner.models.learner import Local, Published, Statistics
from bgtplanner.models.optimizers import Aggregate, Noise, Server
from bgtplanner.models.posterior import Came, Floats, Norm, Posterior
from bgtplanner.models.settings import check

_SHARE = 3  # column of the share of all ratings that an item has; 0 for all: not known yet
_ASKS = 4  # column of the share of the next upload that is asked for tastes; the same for all
_OWN = 5  # columns of an item before its axes and features
_RATING = 2  # columns of an upload before the axes
_FLOOR = 0.05  # of popularity, relative to the mean item, in weights
_RARE = 0.02  # the same in a ranking
_RARELY = 0.25  # what a rating of a rare item counts in an upload, at least, beside 1
_LIKED, _UNSURE = 0.75, 0.2  # a rating that is liked, and how far predictions are off
_USUAL = 0.7  # a usual rating
_STRENGTHS = (0.1, 0.3, 1.0, 3.0)  # prior variances of the interests of who has many items
_FIRST = 4.0  # times as much, over the number of items: what is picked first suits most
_FEWEST_AXES, _MOST_AXES = 8, 32  # few are soon seen clearly; more than four seldom stand out
_ASKED = 0.01  # length of axes that have not stood out: clients answer, and do not use them
_USED = 0.25  # squared length of an axis above which it is used; it grows with its strength to 1
_WAITING = 0.1  # of an upload, at least: what tastes get while nothing is known about them
_TOO_NOISY = 2.2  # noise per item over the sampling error: axes are not worth it beyond
_ITEMS = 5.0  # times the root of the clients: items that axes are learned on, with usual noise
_CLEAREST, _MOST_ITEMS = 16.0, 1000  # without noise; the server squares as many
_SCARCE, _MOST_COUNT = 30.0, 0.5  # noise times items over clients for a weight of 1; the most
_USUAL_NOISE = 1.3  # on the sum of all uploads, over the clip: about epsilon 3
_PLACED = 5.0  # ridge weight, in items, of the features that other items are placed by
_BY_CHANCE = 1.0  # what chance alone reaches, over one root of questions times people
_OLDEST = 0.2  # what a rating counts, however old: all-time popularity is a part of what trends
_TYPICAL = 0.1  # singular value of the first axis in a typical federation, over the clip
_PERSONAL = 0.25  # of the use of a list, where tastes are known: a third of what popularity gives
_UNPLANNED = 0.65  # what tastes get of an upload where nothing is paid
_DIVISIONS = np.linspace(0.0, 0.8, 17)  # of a charge: what tastes can get; popularity comes first


class TasteMemory(NamedTuple):
    """What the server remembers."""

    posterior: Posterior  # of qualities and popularity
    axes: Axes


@dataclass(frozen=True, kw_only=True)
class Tastes(Biases):
    """The bias model with leanings towards features, tastes, and a ranking of its own.

    Attributes:
        axes: The number of axes of taste; by default as many as the noise allows.
        taste_share: Share of an upload's squared length that is spent on tastes, as soon as
            popularity is known; by default it is planned for each round.
        taste_items: On how many of the most popular items tastes are learned; by default as many
            as clients and noise allow.
        feature_shrinkage: Ridge weight of a user's leaning towards a feature, in ratings.
        axis_shrinkage: The same for an axis of taste.
        interest_shrinkage: The same for how often a user picks items with a feature.
        taste_shrinkage: The same for an axis of taste.
        boldness: How far a ranking follows what was picked before; 0 ranks by popularity and
            predicted ratings alone.
        popularity_weight: How far a ranking follows popularity.
        implicit: Whether there are no ratings, only what was picked. Then residuals are not
            uploaded, and the ranking leaves out how much an item would be liked.
        half_life: After how many days a rating counts half in popularity and quality, down to a
            fifth; by default all count the same. It is public knowledge of how fast things age.
        date: The public day that ages count from, such as ``2026-11-30``; later ratings have no
            age. It is never the time of the newest rating.
        count_weight: As in the bias model; more where noise times items is large for the clients.
    """

    axes: int | None = None
    taste_share: float | None = None
    taste_items: int | None = None
    feature_shrinkage: float = 25.0
    axis_shrinkage: float = 150.0
    interest_shrinkage: float = 10.0
    taste_shrinkage: float = 10.0
    boldness: float = 0.85
    popularity_weight: float = 1.0
    implicit: bool = False
    half_life: float | None = None
    date: str | None = None
    count_weight: float = 0.2  # more than of the bias model: a ranking needs popularity most

    def __post_init__(self) -> None:
        super().__post_init__()
        bold = {"boldness": (0, 10), "popularity_weight": (0, 10)}
        check(self, axes=(0, 256), taste_share=(0, 0.95), taste_items=(1, 1e9), **bold)
        check(self, half_life=(1e-3, 1e6))
        both, expected = (self.half_life is None) == (self.date is None), "given with half_life"
        ConfigError.unless(both, "date", self.date, expected)
        _ = self._today

    def suited(self, clients: int, items: int, noise: float, *, implicit: bool = False) -> Self:
        """Choose the items and the number of axes by the noise, relative to the sampling error."""
        axes, among = self.axes, self.taste_items
        if among is None and axes is None:  # whoever chooses axes chooses the items, too
            clear = min(max(1.0, _USUAL_NOISE / max(noise, 1e-9)), _CLEAREST)
            among = min(max(round(_ITEMS * math.sqrt(clients * clear)), 1), _MOST_ITEMS, items)
        if axes is None:
            noisy = noise * math.sqrt((among or items) / max(clients, 1))
            most = 0.5 + math.sqrt(clients) / (30 * max(noisy, 0.01))
            most = min(max(round(most), _FEWEST_AXES), _MOST_AXES, items // 4)
            axes = 0 if noisy > _TOO_NOISY else most
        counts, usual = self.count_weight, type(self).count_weight
        if counts == usual:  # it was not chosen
            counts = max(usual, min(noise * items / (_SCARCE * max(clients, 1)), _MOST_COUNT))
        implicit = self.implicit or implicit
        return replace(self, axes=axes, taste_items=among, implicit=implicit, count_weight=counts)

    def split(
        self, memory: TasteMemory, precision: float, clip: float, norm: Literal["l1", "l2"]
    ) -> dict[str, float]:
        """Return the division that serves best, if all that is left were divided so."""
        if not self._axes:
            return {}
        known = float(memory.posterior.precision.max()) > 0  # before that, no axes are sent
        share = self._division(memory, precision, clip, norm) if known else 0.0
        return {"ratings": 1.0 - share, "tastes": share}

    def _division(
        self, memory: TasteMemory, precision: float, clip: float, norm: Literal["l1", "l2"]
    ) -> float:
        """Return what tastes get; both parts count the same, each as a share of the most."""
        if not self._axes:
            return 0.0
        if self.taste_share is not None:
            return self.taste_share
        left = precision * (1.0 - _DIVISIONS)
        of = Posterior.forecast_lists if self.implicit else Posterior.forecast
        gains = of(memory.posterior, left, clip, norm, self.count_weight)
        found = self._found(memory, precision * _DIVISIONS, clip)
        best = float(_DIVISIONS[int((gains / max(float(gains[0]), 1e-12) + found).argmax())])
        return max(best, _WAITING)

    def asking(self, shared: Shared, split: Mapping[str, float]) -> Shared:
        """Return the parameters, with the share of the next upload that tastes are to get."""
        return shared._replace(items=shared.items.at[:, _ASKS].set(split.get("tastes", 0.0)))

    def _found(self, memory: TasteMemory, precision: Floats, clip: float) -> Floats:
        """Return the share of the axes that added precision would make out.

        An axis is as strong as was told, or as in a typical federation if it cannot be seen yet.
        """
        items = len(memory.axes.items)
        before = float(np.trace(np.asarray(memory.axes.asked))) / self._axes  # its precision
        strength = (_TYPICAL * clip / np.arange(1, self._axes + 1)) ** 2
        if before > 0:
            noise = float(memory.axes.edge) ** 2
            seen = np.asarray(memory.axes.sizes, dtype=np.float64) ** 2 - noise
            asked = min(int(memory.axes.payments) * self._axes / items, 1.0)  # of all directions
            strength = np.maximum(seen, np.where(asked * strength < 2.0 * noise, strength, 1e-30))
        total = np.maximum(before + np.asarray(precision), 1e-30)[:, None]
        return np.asarray((strength / (strength + items / total)).mean(axis=1))

    def _among(self, items: int) -> int:
        """Return on how many of the items tastes are learned."""
        return items if self.taste_items is None else min(self.taste_items, items)

    @property
    def steps(self) -> int:
        """More than without axes, which turn a little further with each paid round."""
        return 4 if self._axes else super().steps

    @property
    def _today(self) -> int:
        """The date, in days since 1970."""
        try:
            return (dt.date.fromisoformat(self.date or "1970-01-01") - dt.date(1970, 1, 1)).days
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"date = {self.date!r}: expected a day such as 2026-11-30"
            ) from error

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
        rating = self._counted(trained.upload.rows)
        whole = _lengths(rating, interactions)  # whose ratings are old has a shorter upload
        if self.half_life is not None:
            aged = super().train(shared, local, self._aged(interactions))
            rating = self._counted(aged.upload.rows)
        share = self._taste_share(shared)
        counts = self._counts_as(shared)
        usual = jnp.sqrt(_share(shared) @ counts**2)  # the length that is left of most uploads
        closer = counts[interactions.pair_item, None] * rating / usual
        rating = _scaled(closer, interactions, whole)
        rows = jnp.sqrt(1.0 - share) * rating
        if self._axes:
            told = jnp.sqrt(share) * _scaled(self._told(shared, interactions), interactions)
            first, second = jnp.eye(_RATING, told.shape[1])  # sums take less time than joining
            rows = told + rows[:, :1] * first + rows[:, 1:] * second
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
        evidence["axes"] = int(((released[:, _OWN:] ** 2).sum(axis=0) > _USED).sum())
        return found._replace(ranker="tastes", released=released, evidence=evidence)

    def server_initial(self, shared: Shared, server: Server) -> TasteMemory:  # type: ignore[override]
        """Return the memory before the first round."""
        among = self._among(shared.items.shape[0]) if self._axes else 0
        posterior = super().server_initial(shared, server)
        return TasteMemory(posterior, Axes.initial(among, self._axes))

    def server_update(  # type: ignore[override]
        self, shared: Shared, memory: TasteMemory, mean: Aggregate, noise: Noise, server: Server
    ) -> tuple[Shared, TasteMemory]:
        """Return qualities, popularity and axes from all that was told so far."""
        del server
        uploads, share = mean.gradient.items, self._taste_share(shared)
        counts = self._counts_as(shared)
        power = 1 if noise.norm == "l1" else 2  # of what the clip bounds
        usual = (_share(shared) @ counts**power) ** (1 / power)
        kept = jnp.sqrt(1.0 - share) * counts / usual
        scaled = noise._replace(std=noise.std / kept)
        if noise.norm is None:  # uploads have length 1 where no one clips them, or divides them
            scaled = scaled._replace(clip=1.0, norm="l2")
            shared = self.asking(shared, {"tastes": _UNPLANNED})
        features = shared.items[:, _OWN + self._axes :]
        rating, posterior = memory.posterior.after(
            shared.items[:, 0],
            uploads[:, :_RATING] / kept[:, None],
            scaled,
            features if features.shape[1] else None,
            self.count_weight,
        )
        varied = posterior.varied(scaled.norm, self.count_weight)
        known = posterior.weight / jnp.maximum(posterior.weight.sum(), 1e-12)
        even = 1.0 / uploads.shape[0]
        popularity = jnp.where(varied > 0, varied * known + (1.0 - varied) * even, 0.0)
        sent = jnp.concatenate([rating, popularity[:, None]], axis=1)
        after = Shared(jnp.concatenate([sent, shared.items[:, _ASKS:]], axis=1), shared.dense)
        axes = memory.axes
        if self._axes:
            told = uploads[:, _RATING:]
            after, axes = self._turned(after, shared, axes, told, noise, share)
        return after, TasteMemory(posterior, axes)

    def forecast(  # type: ignore[override]
        self, memory: TasteMemory, precision: Floats, clip: float, norm: Literal["l1", "l2"]
    ) -> dict[str, Floats]:
        """Return what added precision would bring to predicted ratings and to lists."""
        share = self._division(memory, float(np.max(precision)), clip, norm)
        left, posterior = precision * (1.0 - share), memory.posterior
        lists = posterior.forecast_lists(left, clip, norm, self.count_weight)
        if self._axes:
            found = self._found(memory, precision * share, clip)
            lists = (1.0 - _PERSONAL) * lists + _PERSONAL * found
        if self.implicit:
            return {"lists": lists}
        ratings = posterior.forecast(left, clip, norm, self.count_weight)
        return {"ratings": ratings, "lists": lists}

    def came(  # type: ignore[override]
        self, before: TasteMemory, memory: TasteMemory, clip: float, norm: Norm
    ) -> Came:
        """Return the same, with axes taken to be worth in lists what is known of them."""
        found = super().came(before.posterior, memory.posterior, clip, norm)
        if found and self._axes:
            (mass, error), own = found["lists"], 1.0 - _PERSONAL
            axes = float(self._found(before, np.zeros(1), clip)[0])
            found["lists"] = own * mass + _PERSONAL * axes, own * error
        return found

    def _counted(self, rows: Array) -> Array:
        """Return residuals and counts, or counts alone where there are no ratings."""
        return rows * jnp.array([0.0, 1.0]) if self.implicit else rows

    def _aged(self, interactions: Interactions) -> Interactions:
        """Return the interactions as they count in popularity: the older, the less."""
        if not interactions.day.shape[0]:
            problem = "the ratings have no times, by which they age; name data.time_column"
            raise ConfigError(f"tastes.half_life = {self.half_life}: {problem}")
        age = jnp.maximum(self._today - interactions.day, 0.0)
        counts = _OLDEST + (1.0 - _OLDEST) * 0.5 ** (age / (self.half_life or 1.0))
        return replace(interactions, present=interactions.present * counts)

    def _counts_as(self, shared: Shared) -> Array:
        """Return what a rating of each item counts in an upload: less where items are rare.

        Lists are made of popular items, and noise is the same for all items. As qualities become
        sure, rare items count more.
        """
        share = _share(shared)
        among = min(2 * self._among(share.shape[0]), share.shape[0])
        most, popular = jax.lax.top_k(share, among)
        sure = 0.0 if self.implicit else shared.items[popular, 2].mean()
        rarely = _RARELY + (1.0 - _RARELY) * sure
        return jnp.clip(jnp.sqrt(share / jnp.maximum(most[-1], 1e-30)), rarely, 1.0)

    def _taste_share(self, shared: Shared) -> Array:
        """Return the share of an upload that tastes get: none as long as no axes are sent."""
        axes = shared.items[:, _OWN : _OWN + self._axes]
        asked = jnp.clip(shared.items[0, _ASKS], 0.0, _DIVISIONS[-1])
        share = asked if self.taste_share is None else self.taste_share
        return jnp.where(jnp.abs(axes).max(initial=0.0) > 0, share, 0.0)

    def _weight(self, interactions: Interactions) -> Array:
        """Return how much having picked an item says: the more, the better the user rated it.

        Of clicks each says the same: how often somebody plays a game says little about the next.
        """
        said = 1.0 if self.implicit else interactions.value / _USUAL
        return interactions.present * said

    def _told(self, shared: Shared, interactions: Interactions) -> Array:
        """Return ``(x_u x_u' - diag) Q`` of each client's items, behind zeros for ratings."""
        picked = _picked(_share(shared))
        popular = jnp.zeros_like(picked).at[self._popular(shared)].set(1.0)
        picked = popular * picked
        weight = interactions.present * interactions.value * picked[interactions.item]
        length = jnp.sqrt(interactions.sum_by_user(weight**2))
        weight = weight / interactions.of_users(jnp.maximum(length, 1e-12))
        axes = unit(popular[:, None] * shared.items[:, _OWN : _OWN + self._axes])
        axes = jnp.pad(axes, ((0, 0), (_RATING, 0)))
        scores = interactions.of_users(interactions.products_by_user(axes, weight))
        others = scores - weight[:, None] * axes[interactions.item]
        return interactions.sum_by_pair(weight[:, None] * others)

    def _popular(self, shared: Shared) -> Array:
        """Return the items that tastes are learned on: the most popular."""
        share = shared.items[:, _SHARE]
        return jax.lax.top_k(share, self._among(share.shape[0]))[1]

    def _turned(
        self, after: Shared, before: Shared, axes: Axes, told: Array, noise: Noise, share: Array
    ) -> tuple[Shared, Axes]:  # fmt: skip
        """Return the axes after what a round told about those that were sent out before."""
        sent = slice(_OWN, _OWN + self._axes)
        asked = unit(before.items[axes.items, sent])
        told = told[axes.items] / jnp.sqrt(jnp.maximum(share, 1e-9))
        gained = share / jnp.maximum(noise.std, 1e-9) ** 2
        axes = axes.after(asked, told, gained)
        items, popularity = self._popular(after), _share(after)
        axes, places = axes.moved(items)
        start = jnp.where(axes.precision > 0, places @ asked, self._first(after)[items])
        common = unit((popularity * _picked(popularity))[items, None])
        turned, strength, axes = axes.leading(start, common, self._sampled(noise))
        lengths = jnp.sqrt(_USED + (1.0 - _USED) * strength)
        lengths = jnp.where(strength > 0, lengths, _ASKED) * (after.items[:, _SHARE].sum() > 0)
        found = lengths * unit(self._placed(turned, items, after))
        silent = (axes.precision > 0) & (gained == 0) & asked.any()  # nobody has answered
        found = jnp.where(silent, before.items[:, sent], found)
        return Shared(after.items.at[:, sent].set(found), after.dense), axes

    def _sampled(self, noise: Noise) -> Array | float:
        """Return how large an axis is by chance, where people pick what is popular and no more.

        Their answers of length 1 then point anywhere. The mean of those to K questions, taken as
        a symmetric matrix, reaches ``2 / sqrt(K people)`` (Wigner's law); about half of it,
        since the fit shrinks it, and many have too few items to tell anything.
        """
        length = 1.0 if noise.norm is None else noise.clip
        return _BY_CHANCE * length / jnp.sqrt(jnp.maximum(self._axes * noise.clients, 1.0))

    def _placed(self, axes: Array, items: Array, shared: Shared) -> Array:
        """Return axes with places for the items beyond the popular ones, by their features."""
        features = shared.items[:, _OWN + self._axes :]
        placed = jnp.zeros((shared.items.shape[0], axes.shape[1]))
        if features.shape[1] and len(axes) < len(placed):
            level = axes.mean(0)
            centred = features - features[items].mean(0)
            known = centred[items]
            normal = known.T @ known + _PLACED * jnp.eye(features.shape[1])
            placed = level + centred @ jnp.linalg.solve(normal, known.T @ (axes - level))
        return placed.at[items].set(axes)

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
        leading = orthonormal(centred @ turn[:, ::-1][:, :axes])
        rest = start - leading @ (leading.T @ start)
        leading = jnp.pad(leading, ((0, 0), (0, axes - leading.shape[1])))
        there = (leading**2).sum(0) > 0.5  # features may be fewer, or depend on each other
        return jnp.where(there, leading, 0.1 * rest)

    def _parts(self, shared: Shared) -> tuple[Array, Array]:
        """Return axes and features, centred by popularity; the strongest axis has variance 1.

        Axes that have not stood out are left out, and weak ones vary less than strong ones.
        """
        share = _share(shared)
        axes = shared.items[:, _OWN : _OWN + self._axes]
        strength = ((axes**2).sum(0) - _USED) / (1.0 - _USED)
        strength = jnp.sqrt(jnp.clip(strength, 0.0, 1.0))
        features = shared.items[:, _OWN + self._axes :]
        axes, features = axes - share @ axes, features - share @ features
        spread = jnp.sqrt(share @ axes**2)
        axes = jnp.where(spread > 1e-9, axes / jnp.maximum(spread, 1e-9), 0.0)
        return strength * axes, features

    def _interests(self, shared: Shared, interactions: Interactions) -> tuple[Array, Array, Array]:
        """Return a table of items, every user's weights of its columns, and how both are turned.

        The columns are turned so that their covariance, weighted by popularity, is diagonal. The
        weights are averaged over prior variances, by how likely each makes every item of the
        user's history, given the others: an item's logarithm is ``w phi - w' Cov(phi) w / 2``,
        with the weights w from all other items. One item alone says nothing about the prior, so
        that this matters most where histories are short, and is larger there.
        """
        (axes, features), share = self._parts(shared), _share(shared)
        scales = math.sqrt(self.taste_shrinkage), math.sqrt(self.interest_shrinkage)
        table = jnp.concatenate([axes / scales[0], features / scales[1]], axis=1)
        variance, turn = jnp.linalg.eigh(table.T @ (share[:, None] * table))
        table, variance = table @ turn, jnp.maximum(variance, 0.0)
        weight = self._weight(interactions)
        total = interactions.products_by_user(table, weight)
        number = interactions.sum_by_user(weight)[:, None]
        squares = interactions.products_by_user(table**2, weight**2)
        each = interactions.sum_by_user(weight**2)[:, None] / jnp.maximum(number, 1e-12)
        others = (number - 2.0 * each) * total**2 + each * squares

        def likely(prior: Array) -> Array:
            """Return a user's logarithms, added up; each item counts as the mean item does."""
            gain = 1.0 / ((number - each) * variance + 1.0 / prior)
            return (gain * (total**2 - squares) - 0.5 * variance * gain**2 * others).sum(1)

        priors = [of * (1.0 + _FIRST / jnp.maximum(number, _USUAL)) for of in _STRENGTHS]
        chances = jax.nn.softmax(jnp.stack([likely(prior) for prior in priors]), axis=0)
        gain = [1.0 / (number * variance + 1.0 / prior) for prior in priors]
        weights = total * sum(of[:, None] * by for of, by in zip(chances, gain, strict=True))
        return table, weights, turn


def _share(shared: Shared) -> Array:
    """Return the share of all ratings that each item has; the same for all if it is not known."""
    told = shared.items[:, _SHARE]
    total = told.sum()
    return jnp.where(total > 0, told / jnp.maximum(total, 1e-12), 1.0 / told.shape[0])


def _picked(share: Array) -> Array:
    """Return the weight of having picked an item: popular items say less about a taste."""
    return (share * share.shape[0] + _FLOOR) ** -0.25


def _lengths(rows: Array, interactions: Interactions) -> Array:
    """Return the length of each client's rows, at least a tiny one."""
    return jnp.sqrt(jnp.maximum(interactions.sum_pairs(rows**2).sum(1), 1e-12))


def _scaled(rows: Array, interactions: Interactions, length: Array | float = 0.0) -> Array:
    """Return each client's rows, scaled to length 1, as if they were at least so long."""
    length = jnp.maximum(_lengths(rows, interactions), length)
    return rows * interactions.of_clients(1.0 / length)[:, None]
