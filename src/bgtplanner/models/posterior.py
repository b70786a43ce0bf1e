"""What the server makes of residuals and counts: qualities, popularities, and a forecast.

Rounds are added up, weighted by their precision. From the sums the server estimates

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

import math
from functools import cache
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from scipy.special import ndtr

from bgtplanner.models.interactions import Shared
from bgtplanner.models.optimizers import Noise
from bgtplanner.models.solving import solved_systems

Floats = NDArray[np.float64]
Norm = Literal["l1", "l2"] | None
Came = dict[str, tuple[float, float]]

COUNT_WEIGHT = 0.1  # of one rating's count in an upload, beside a residual of about 0.2
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
_SURE = 2.0  # standard deviations: noise alone exceeds them once in 44 times
_VARIANCE_OF_SQUARE = {"l1": 5.0, "l2": 2.0, None: 2.0}  # of noise of variance 1, by its kind
_SPREAD_STEPS = 5
_DOUBT = 2.0  # a line within 1.4 standard deviations of zero is taken for noise
_LEAST_INFORMATION = 1e-6
_STANDS_OUT = {"l1": 8.0, "l2": 5.0}  # standard deviations: noise exceeds them for no item
_SOME_SIGNAL = 0.5  # standard deviations: noise alone passes one time in five or six


class Posterior(NamedTuple):
    """What the server remembers of all rounds, weighted by precision, and its estimates."""

    told: Array  # residual and count of each item, summed over rounds
    sent: Array  # qualities that were sent out, summed likewise
    precision: Array  # sum over rounds of 1 / noise variance, of each item
    spread: Array  # variance of qualities around the line
    weight: Array  # M of each item
    error: Array  # expected squared error of each quality, including the sampling error
    sampling: Array  # the part of it that is due to the number of ratings and not to noise
    clients: Array  # the most clients that answered in one round

    @classmethod
    def initial(cls, shared: Shared) -> Posterior:
        """Return the prior."""
        zeros, zero = jnp.zeros(shared.items.shape[0]), jnp.zeros(())
        first, told = zeros + _SPREAD**2, jnp.zeros((len(zeros), 2))
        return cls(told, zeros, zeros, zero + _SPREAD**2, zeros, first, zeros, zero)

    def after(
        self,
        sent: Array,
        uploads: Array,
        noise: Noise,
        features: Array | None = None,
        count_weight: float = COUNT_WEIGHT,
    ) -> tuple[Array, Posterior]:
        """Return quality, popularity and certainty of each item after a round, and the posterior.

        Args:
            sent: The qualities that were sent out before the round.
            uploads: The mean upload, ``[n_items, 2]``.
            noise: What is known about its noise; the deviation may be another for each item.
            features: Public features: items that share them are expected to be alike.
            count_weight: The weight of one rating's count in an upload.
        """
        gained = jnp.broadcast_to(1.0 / jnp.maximum(noise.std, 1e-9) ** 2, self.precision.shape)
        # A round with few clients adds to what is known; it does not take ratings away.
        clients = jnp.maximum(self.clients, noise.clients)
        noise = noise._replace(clients=clients)
        moved = self._replace(
            told=self.told + gained[:, None] * uploads,
            sent=self.sent + gained * sent,
            precision=jnp.maximum(self.precision + gained, 1e-12),
            clients=clients,
        )
        counts, std = moved._counts(count_weight)
        weight, log_weight = _weights(counts, std)
        if features is not None:
            weight, log_weight = _weights(counts, std, _scales(weight, features))
        log_weight = _varied(counts, std, noise.norm) * log_weight
        share = weight / jnp.maximum(weight.sum(), 1e-12)
        popularity = log_weight - (share * log_weight).sum()
        columns = jnp.stack([jnp.ones_like(popularity), popularity], axis=1)
        if features is not None:
            columns = jnp.concatenate([columns, features - share @ features], axis=1)
        sampling = _RESIDUAL**2 / jnp.maximum(_ratings(weight, noise, count_weight), 0.5)
        information = weight**2 * moved.precision
        known = information > _LEAST_INFORMATION
        theta = moved.told[:, 0] / jnp.maximum(weight, 1e-12) / moved.precision
        theta = jnp.where(known, theta + moved.sent / moved.precision, 0.0)  # as ratings have it
        noisy = jnp.where(known, 1.0 / jnp.maximum(information, 1e-12), 1e12) + sampling
        line, spread = _line(theta, columns, noisy, self.spread, known)
        expected = columns @ line
        believed = jnp.where(known, spread / (spread + noisy), 0.0)
        own, error = believed * (theta - expected), spread * (1.0 - believed)
        moved = moved._replace(spread=spread, weight=weight, error=error, sampling=sampling)
        # Nothing is sent that may be noise alone; clients then do as well as they would alone.
        # Do the residuals of items that seem popular vary more than noise alone would?
        squares = (weight * theta) ** 2 * moved.precision - 1.0
        trust = share / jnp.maximum(jnp.sqrt((share**2).sum()), 1e-12)
        excess = (trust * squares).sum() / _VARIANCE_OF_SQUARE[noise.norm] ** 0.5
        sure = jnp.clip(1.0 - error / _SPREAD**2, 0.0, 1.0)
        items = jnp.stack([expected + own, popularity, sure], axis=1)
        return jnp.where(excess > _SOME_SIGNAL, items, 0.0), moved

    def _counts(self, count_weight: float) -> tuple[Array, Array]:
        """Return the noisy count of each item, and the standard deviation of the noise."""
        precision = jnp.maximum(self.precision, 1e-12)
        counts = self.told[:, 1] / count_weight / precision
        return counts, 1.0 / (count_weight * jnp.sqrt(precision))

    def known_share(self, count_weight: float) -> float:
        """Return which share of the popularity is that of items whose counts stand out."""
        counts, std = map(np.asarray, self._counts(count_weight))
        weight = np.asarray(self.weight, dtype=np.float64)
        clear = counts > _STANDS_OUT["l2"] * std
        return float(weight[clear].sum() / max(float(weight.sum()), 1e-12))

    def _overall(self) -> float:
        """Return the precision of a typical rating's item."""
        weight = np.asarray(self.weight, dtype=np.float64) + 1e-30
        return float((np.asarray(self.precision, dtype=np.float64) * weight).sum() / weight.sum())

    def varied(self, norm: Norm, count_weight: float) -> Array:
        """Return how surely the counts vary by more than their noise, from 0 to 1."""
        return _varied(*self._counts(count_weight), norm)

    def forecast(
        self,
        precision: Floats,
        clip: float,
        norm: Literal["l1", "l2"],
        count_weight: float = COUNT_WEIGHT,
    ) -> Floats:
        """Return by which share of the RMSE added precision would beat a client alone.

        It is expected from what was released so far and, as long as an item's count does not stand
        out from its noise, from a typical catalogue (popularity follows Zipf's law).
        """
        weight = np.asarray(self.weight, dtype=np.float64)
        before, spread = self._overall(), float(self.spread)
        total = (before + np.asarray(precision, dtype=np.float64))[:, None, None]
        clear = weight * count_weight * before**0.5 > _STANDS_OUT[norm]

        def gain(weights: Any, errors: Any, whole: Any, items: Any) -> Any:
            """Return the fall of the mean squared error; the last axis is that of the items."""
            information = weights**2 * total
            noisy = 1.0 / np.maximum(information, 1e-12) + errors
            counted = information * count_weight**2  # residuals are of no use without the count
            gains = weights / np.maximum(whole, 1e-12) * spread**2 / (spread + noisy)
            return (gains * counted / (1.0 + counted)) @ items

        sums, chances = self._sums_of_counts(clip, norm, count_weight)
        typical, items = _typical(len(weight))
        expected = gain(typical * sums[:, None], 0.0, sums[:, None], items) @ chances
        seen, sampling = weight[clear][None], np.asarray(self.sampling, dtype=np.float64)[clear]
        of_clear = gain(seen, sampling, weight.sum(), np.ones(seen.shape[1]))[:, 0]
        relative = 0.5 * np.maximum(of_clear, expected) / (_RESIDUAL**2 + _SPREAD**2 / 2)
        return np.asarray(np.where(total[:, 0, 0] > 0, relative, 0.0))

    def forecast_lists(
        self, precision: Floats, clip: float, norm: Literal["l1", "l2"], count_weight: float
    ) -> Floats:
        """Return what a list of the items with the ten highest noisy counts would be worth.

        It is 0 for items drawn at random, and 1 for the ten most popular ones, in a typical
        catalogue.
        """
        total = self._overall() + np.asarray(precision, dtype=np.float64)[:, None]
        sums, chances = self._sums_of_counts(clip, norm, count_weight)
        clearness, found = _typical_lists(len(self.weight))
        clear = np.log(np.maximum(sums * count_weight * total**0.5, 1e-300))
        return np.asarray(np.interp(clear, clearness, found) @ chances)

    def came(self, before: Posterior, norm: Norm, count_weight: float) -> Came:
        """Return what was sent before a payment was worth, in the unit of forecasts.

        Estimates are linear in what the payment released: the fall of the squared error,
        ``q (2 M (theta - q) + M q)``, and the mass of the ten items that seemed most popular.
        """
        told, sent = (np.asarray(of, dtype=np.float64) for of in (self.told, self.sent))
        now, then, weight, seemed = (
            np.asarray(of, dtype=np.float64)
            for of in (self.precision, before.precision, self.weight, before.weight)
        )
        if (now - then).max() <= 1e-6 * now.max():
            return {}
        gained = np.maximum(now - then, 1e-30)
        told = (told - np.asarray(before.told)) / gained[:, None]
        residual, count = told[:, 0], told[:, 1] / count_weight
        whole = max(float(weight.sum()), 1e-12)
        sent = (sent - np.asarray(before.sent)) / gained
        sent -= seemed @ sent / max(float(seemed.sum()), 1e-12)  # users have levels of their own
        unit = 0.5 / (_RESIDUAL**2 + _SPREAD**2 / 2) / whole
        fall = unit * (sent @ (2.0 * residual + count * sent))
        error = unit * ((4.0 * sent**2 + sent**4 / count_weight**2) / gained).sum() ** 0.5
        listed, random = np.argsort(-seemed)[:10], 10 / max(len(seemed), 20)
        best = max(float(np.sort(weight)[-10:].sum()) - random * whole, 1e-12)
        mass = (count[listed].sum() - random * whole) / best
        off = (1.0 / gained[listed]).sum() ** 0.5 / count_weight / best
        tail = 1.0 if norm != "l1" else _STANDS_OUT["l1"] / _STANDS_OUT["l2"]
        off = off if seemed.any() else math.inf  # at first there is nothing to be tested
        return {"ratings": (fall, tail * error), "lists": (mass, tail * off)}

    def _sums_of_counts(
        self, clip: float, norm: Literal["l1", "l2"], count_weight: float
    ) -> tuple[Floats, Floats]:
        """Return what the sum of all M may be, and the chance of each.

        Under L2, it grows with the number of ratings per client, and so tells something about it.
        """
        if norm == "l1":  # over the mean length of a rating
            return np.array([clip / (0.8 * _RESIDUAL + count_weight)]), np.ones(1)
        size = (_RESIDUAL**2 + count_weight**2) ** 0.5 / _TYPICAL_RATINGS**0.5
        steps, before = np.linspace(-3.0, 3.0, 31), self._overall()
        sums = clip / size * np.exp(0.5 * _RATINGS_VARY * steps)
        log_chances = -0.5 * steps**2
        if before > 0:
            told, precision = (np.asarray(of, np.float64) for of in (self.told, self.precision))
            counts = (told[:, 1] / precision).sum() / count_weight
            noise = (1.0 / precision).sum() ** 0.5 / count_weight
            log_chances = log_chances - 0.5 * ((counts - sums) / noise) ** 2
        chances = np.exp(log_chances - log_chances.max())
        return sums, chances / chances.sum()


@cache
def _typical(items: int) -> tuple[Floats, Floats]:
    """Return the shares of the ratings that typical items have, and how many have each share.

    Popularity follows Zipf's law with a flat head. Ranks that are close are taken together.
    """
    edges = np.unique(np.geomspace(1, items + 1, min(items, _RANKS) + 1).astype(np.int64))
    number = np.diff(edges).astype(np.float64)
    share = 1.0 / ((edges[:-1] + edges[1:] - 1) / 2 + 0.02 * items)
    return share / (share @ number), number


@cache
def _typical_lists(items: int) -> tuple[Floats, Floats]:
    """Return what ten items with the highest noisy counts are worth, by how clear counts are.

    Clearness is the logarithm of the sum of all counts over the noise of one. The worth is the
    mass of popularity, 0 for items drawn at random and 1 for the ten most popular ones; an item is
    on the list with the chance that its noisy count exceeds what ten are expected to exceed.
    """
    share, number = _typical(items)
    places = min(10.0, items / 2)
    clearness = np.linspace(-3.0, math.log(1e4 * items), 64)
    steep = np.exp(clearness)[:, None]
    low, high = -8.0 / steep, 1.0 + 8.0 / steep
    for _ in range(50):
        middle = (low + high) / 2
        many = ndtr((share - middle) * steep) @ number > places
        low = np.where(many[:, None], middle, low)
        high = np.where(many[:, None], high, middle)
    mass = (ndtr((share - low) * steep) * share) @ number
    best = np.minimum(np.append(number.cumsum(), np.inf), places)
    best_mass, random_mass = np.diff(np.append(0.0, best[:-1])) @ share, places / items
    return clearness, np.maximum((mass - random_mass) / (best_mass - random_mass), 0.0)


def _weights(counts: Array, std: Array, scale: Array | None = None) -> tuple[Array, Array]:
    """Return the posterior means of each M and of log(M / mean + 1), given its noisy count.

    The prior of M / `scale` is the distribution on a grid that maximises the likelihood of all
    counts. A count far above its noise is used as it is: it is more precise than the grid.
    """
    top = 1.05 * jnp.maximum(counts.max(), std.min())
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


def _varied(counts: Array, std: Array, norm: Norm) -> Array:
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

    A client with n ratings scales them by clip / (size sqrt(n)) under an L2 clip, so the sum of
    all M tells the typical n. Under an L1 clip the factor is clip / (size n): it says nothing.
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
    width, items = features.shape[1], jnp.sum(known)

    def equations(spread: Array) -> tuple[Array, Array]:
        weight = jnp.where(known, 1.0 / (noisy + spread), 0.0)
        return weight, features.T @ (weight[:, None] * features) + jnp.eye(width) / _LINE**2

    def better(_: int, found: tuple[Array, Array]) -> tuple[Array, Array]:
        spread = found[1]
        weight, normal = equations(spread)
        line = solved_systems(normal[None], (features.T @ (weight * theta))[None])[0]
        pull = spread * weight
        own = pull * (theta - features @ line)
        squares = jnp.where(known, own**2 + spread * (1.0 - pull), 0.0).sum()
        return line, (squares + _SPREAD_ITEMS * _SPREAD**2) / (items + _SPREAD_ITEMS)

    line, spread = jax.lax.fori_loop(0, _SPREAD_STEPS, better, (jnp.zeros(width), spread))
    normal = jnp.broadcast_to(equations(spread)[1], (width, width, width))
    variance = jnp.diagonal(solved_systems(normal, jnp.eye(width)))
    believed = jnp.maximum(1.0 - _DOUBT * variance / jnp.maximum(line**2, 1e-30), 0.0)
    return believed * line, spread
