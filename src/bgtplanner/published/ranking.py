"""A person's own part of a model, solved from the person's history: with NumPy alone.

The same formulas as in :mod:`bgtplanner.models`, where many people are computed at once with JAX.
Here the systems are solved exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgtplanner.data.tables import Histories
from bgtplanner.registry import Registry

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]

_RARE = 0.02  # of popularity, relative to the mean item
_LIKED, _UNSURE = 0.75, 0.2  # a rating that is liked, and how far predictions are off
_USUAL = 0.7  # a usual rating
_STRENGTHS = np.array([0.1, 0.3, 1.0, 3.0])  # prior variances of interests, with many items
_FIRST = 4.0  # times as much, over the number of items: what is picked first suits most
_USED = 0.25  # squared length of an axis above which it is used; it grows to 1 with its strength
_STEPS = 1 << 10  # how likely an item is liked is computed at so many ratings from 0 to 1
_RATINGS = [(_LIKED - step / _STEPS) / _UNSURE for step in range(_STEPS + 2)]
_LIKELY = np.log([math.erfc(of / 2**0.5) / 2 for of in _RATINGS])
_SLOPE = np.diff(_LIKELY)  # between them are lines, so that other readers come to equal scores
_OFFSET = (_LIKELY[:-1] - _SLOPE * np.arange(_STEPS + 1)).astype(np.float32)
_SLOPE = _SLOPE.astype(np.float32)


class Ranked(NamedTuple):
    """All items for some people; and, if it was asked for, why they are ranked so."""

    scores: Singles  # the highest first, [people, n_items]
    predicted: Singles | None  # ratings from 0 to 1; None where there are none
    popularity: Any = None  # logarithm, relative to the mean item; None plays no part in it
    quality: Any = None  # how much better than usual each item is rated
    leaning: Any = None  # by feature, how much higher its items are rated
    interest: Any = None  # logarithm of how much more often they are picked
    tastes: Any = None  # what the axes of taste add to each item
    because: Floats | None = None  # by how much each entry's person is drawn to what is like it


class Ranker:
    """What makes rankings from what was released; one for each kind of model.

    People respond to a level and to some of what was released, each with a ridge weight by the
    name of its setting; the last one holds for all further columns.
    """

    columns: ClassVar[Any]
    weights: ClassVar[tuple[str, ...]]

    def __init__(
        self, released: Floats, features: Floats, settings: Mapping[str, Any], implicit: bool
    ) -> None:
        self.released, self.features, self.implicit = released, features, implicit
        self.settings = settings
        self.base = float(settings["mean"]) + released[:, 0]  # before anything of the person
        self.table, self.penalty = self.responses()

    def responses(self) -> tuple[Floats, Floats]:
        """Return what people respond to, ``[n_items, width]``, and the ridge weight of each."""
        table = np.insert(self.released[:, self.columns], 0, 1.0, axis=1)
        weights = [float(self.settings[name]) for name in self.weights]
        return table, np.array(weights + weights[-1:] * table.shape[1])[: table.shape[1]]

    def own(self, people: Histories) -> Floats:
        """Return everybody's responses: ``(X'X + diag(penalty)) w = X'y`` of their own ratings."""
        rated = ~np.isnan(people.value)
        rows = self.table[people.item] * rated[:, None]
        target = np.where(rated, people.value - self.base[people.item], 0.0)
        normal = np.repeat(np.diag(self.penalty)[None], len(people.starts) - 1, axis=0)
        for at, (begin, end) in enumerate(zip(people.starts, people.starts[1:], strict=False)):
            normal[at] += rows[begin:end].T @ rows[begin:end]
        right = people.sums(rows * target[:, None])
        return np.asarray(np.linalg.solve(normal, right[..., None])[..., 0])

    def predicted(self, own: Floats) -> Singles:
        """Return predicted ratings of all items from 0 to 1."""
        found = own.astype(np.float32) @ self.table.T.astype(np.float32)
        found += self.base.astype(np.float32)
        return np.clip(found, 0.0, 1.0, out=found)

    def ranked(self, people: Histories, *, explain: bool = False) -> Ranked:  # noqa: ARG002
        """Return the ranking of all items for some people: by predicted rating."""
        predicted = self.predicted(self.own(people))
        return Ranked(predicted, predicted)

    def places(self) -> Floats:
        """Return where items lie: those that the same people like are near each other."""
        return self.table[:, 1:]


class BiasRanker(Ranker):
    """Level, popularity and quality; released: quality, popularity, and how sure they are."""

    columns, weights = [1, 0], ("level_shrinkage", "popularity_shrinkage", "quality_shrinkage")


class FactorRanker(Ranker):
    """Biases and factors of the items; a person's factors are solved from the history."""

    columns, weights = slice(1, None), ("bias_shrinkage", "factor_shrinkage")


class TasteRanker(BiasRanker):
    """Biases, leanings, axes of taste; released: those of the biases, share, one more, axes."""

    def responses(self) -> tuple[Floats, Floats]:
        """Return level, popularity, quality, axes and features, centred by popularity."""
        settings, released = self.settings, self.released
        counted = np.maximum(released[:, 3], 0.0) + 1e-30  # all alike if none was counted
        self.share = counted / counted.sum()
        axes, features = released[:, 5:], self.features - self.share @ self.features
        strength = np.clip(((axes**2).sum(0) - _USED) / (1.0 - _USED), 0.0, 1.0)
        axes = axes - self.share @ axes
        spread = np.sqrt(self.share @ axes**2)
        axes = np.where(spread > 1e-9, axes / np.maximum(spread, 1e-9), 0.0) * strength**0.5
        self.axes = axes.shape[1]
        scales = [float(settings[f"{name}_shrinkage"]) ** -0.5 for name in ("taste", "interest")]
        table = np.concatenate([axes * scales[0], features * scales[1]], axis=1)
        self.variance, self.turn = np.linalg.eigh(table.T @ (self.share[:, None] * table))
        self.interests, self.feature_scale = table @ self.turn, scales[1]
        rare = np.log(self.share + _RARE * self.share.mean())
        self.popular = rare.astype(np.float32) * np.float32(settings["popularity_weight"])
        base, penalty = super().responses()
        widths = [self.axes, features.shape[1]]
        own = [float(settings["axis_shrinkage"]), float(settings["feature_shrinkage"])]
        penalty = np.concatenate([penalty, np.repeat(own, widths)])
        return np.concatenate([base, axes, features], axis=1), penalty

    def _drawn(self, people: Histories) -> tuple[Floats, Floats, Floats]:
        """Return everybody's weights of the interests, the gain of each, and each entry's weight.

        The weights are averaged over prior variances, by how likely each makes every item of the
        history, given the others.
        """
        liked = np.where(np.isnan(people.value), _USUAL, people.value) / _USUAL
        weight = np.ones(len(liked)) if self.implicit else liked
        rows, variance = weight[:, None] * self.interests[people.item], self.variance.clip(0.0)
        total, squares = people.sums(rows), people.sums(rows**2)
        number = people.sums(weight)[:, None]
        each = people.sums(weight**2)[:, None] / np.maximum(number, 1e-12)
        strengths = _STRENGTHS[:, None, None] * (1.0 + _FIRST / np.maximum(number, _USUAL))
        gain = 1.0 / ((number - each) * variance + 1.0 / strengths)
        others = (number - 2.0 * each) * total**2 + each * squares
        likely = (gain * (total**2 - squares) - 0.5 * variance * gain**2 * others).sum(axis=2)
        odds = np.exp(likely - likely.max(axis=0))[:, :, None]
        gain = (odds / (number * variance + 1.0 / strengths)).sum(axis=0) / odds.sum(axis=0)
        return total * gain, gain, weight

    def ranked(self, people: Histories, *, explain: bool = False) -> Ranked:
        """Return how likely each person is to pick each item and to like it, as a logarithm."""
        bold, own, predicted = float(self.settings["boldness"]), None, None
        weights, gain, weight = self._drawn(people)
        scores = (bold * weights).astype(np.float32) @ self.interests.T.astype(np.float32)
        scores += self.popular
        if not self.implicit:
            own = self.own(people)
            predicted = self.predicted(own)
            steps = predicted * np.float32(_STEPS)
            step = steps.astype(np.int32)
            scores += steps * _SLOPE[step]
            scores += _OFFSET[step]
        if not explain:
            return Ranked(scores, predicted)
        turned, table = bold * (weights @ self.turn.T), self.interests @ self.turn.T
        drawn = weight[:, None] * self.interests[people.item]
        return Ranked(
            scores, predicted, np.log(self.share * len(self.share) + _RARE),
            quality=None if own is None else self.released[:, 0],
            leaning=None if own is None else own[:, 3 + self.axes :],
            interest=turned[:, self.axes :] * self.feature_scale,
            tastes=turned[:, : self.axes] @ table[:, : self.axes].T if self.axes else None,
            because=drawn * np.repeat(bold * gain, np.diff(people.starts), axis=0),
        )  # fmt: skip

    def places(self) -> Floats:
        """Return where items lie: by axes and features, as people's interests weigh them."""
        return np.asarray(self.interests)


RANKERS: Registry[type[Ranker]] = Registry(
    "ranker",
    {"biases": BiasRanker, "factorization": FactorRanker, "tastes": TasteRanker},
    expected="a class derived from bgtplanner.published.ranking.Ranker",
    fits=lambda found: isinstance(found, type) and issubclass(found, Ranker),
)
"""The rankers by name. A model file names one of these, and never an address."""
