"""A person's own part of a model, solved from the person's history: with NumPy alone.

The same formulas as in :mod:`bgtplanner.models`, where many people are computed at once with JAX.
Here the systems are solved exactly. What a ranker needs beside the history is in the model file:
what was released, the public features of the items, and the learner's settings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgtplanner.published.reasons import Explanation
from bgtplanner.registry import Registry

Floats = NDArray[np.float64]

_RARE = 0.02  # of popularity, relative to the mean item
_LIKED, _UNSURE = 0.75, 0.2  # a rating that is liked, and how far predictions are off
_USUAL = 0.7  # a usual rating
_STRENGTHS = np.array([0.001, 0.1, 0.3, 1.0])  # prior variances of a person's interests
_STEPS = 1 << 14
_PREDICTED = np.arange(_STEPS + 2) / _STEPS
_LIKELY = np.log([math.erfc((_LIKED - of) / _UNSURE / 2**0.5) / 2 for of in _PREDICTED])


class Histories(NamedTuple):
    """What some people have rated, one person after the other."""

    starts: NDArray[np.int64]  # of each person's entries, and the end
    item: NDArray[np.int64]  # index of the item
    value: Floats  # the rating from 0 to 1; NaN if it was only picked

    def sums(self, entries: Floats) -> Floats:
        """Return the sum of entries over each person."""
        summed = np.zeros((len(entries) + 1, *entries.shape[1:]))
        np.cumsum(entries, axis=0, out=summed[1:])
        return np.asarray(summed[self.starts[1:]] - summed[self.starts[:-1]])


class Ranked(NamedTuple):
    """All items for some people."""

    scores: Floats  # the highest first, [people, n_items]
    predicted: Floats | None  # ratings from 0 to 1; None where there are none
    why: Explanation
    because: Floats | None = None  # by how much each entry's person is drawn to what is like it


class Ranker:
    """What makes rankings from what was released; one for each kind of model."""

    def __init__(
        self, released: Floats, features: Floats, settings: Mapping[str, Any], implicit: bool
    ) -> None:
        self.released, self.features, self.implicit = released, features, implicit
        self.settings = settings
        self.base = float(settings["mean"]) + released[:, 0]  # before anything of the person
        self.table, self.penalty = self.responses()

    def responses(self) -> tuple[Floats, Floats]:
        """Return what people respond to, ``[n_items, width]``, and the ridge weight of each."""
        raise NotImplementedError

    def own(self, people: Histories) -> Floats:
        """Return everybody's responses: ``(X'X + diag(penalty)) w = X'y`` of their own ratings."""
        rated = ~np.isnan(people.value)
        rows = np.where(rated[:, None], self.table[people.item], 0.0)
        target = np.where(rated, people.value - self.base[people.item], 0.0)
        number = len(people.starts) - 1
        normal = np.repeat(np.diag(self.penalty)[None], number, axis=0)
        right = np.zeros((number, len(self.penalty)))
        for at, (begin, end) in enumerate(zip(people.starts, people.starts[1:], strict=False)):
            if end > begin:
                part = rows[begin:end]
                normal[at] += part.T @ part
                right[at] = target[begin:end] @ part
        return np.asarray(np.linalg.solve(normal, right[..., None])[..., 0])

    def predicted(self, own: Floats) -> Floats:
        """Return predicted ratings of all items from 0 to 1."""
        return np.clip(self.base + own @ self.table.T, 0.0, 1.0)

    def ranked(self, people: Histories) -> Ranked:
        """Return the ranking of all items for some people: by predicted rating."""
        predicted = self.predicted(self.own(people))
        return Ranked(predicted, predicted, Explanation())

    def places(self) -> Floats:
        """Return where items lie: those that the same people like are near each other."""
        return self.table[:, 1:]


class BiasRanker(Ranker):
    """Level, popularity and quality; released: quality, popularity, and how sure they are."""

    def responses(self) -> tuple[Floats, Floats]:
        """Return level, popularity and quality."""
        names = ("level_shrinkage", "popularity_shrinkage", "quality_shrinkage")
        table = np.stack([np.ones(len(self.released)), self.released[:, 1], self.released[:, 0]])
        return table.T, np.array([float(self.settings[name]) for name in names])


class FactorRanker(Ranker):
    """Biases and factors of the items; a person's factors are solved from the history."""

    def responses(self) -> tuple[Floats, Floats]:
        """Return level and factors."""
        width = self.released.shape[1] - 1
        table = np.concatenate([np.ones((len(self.released), 1)), self.released[:, 1:]], axis=1)
        factor = float(self.settings["factor_shrinkage"])
        return table, np.array([float(self.settings["bias_shrinkage"])] + [factor] * width)


class TasteRanker(BiasRanker):
    """Biases, leanings, axes of taste; released: those of the biases, share, one more, axes."""

    def responses(self) -> tuple[Floats, Floats]:
        """Return level, popularity, quality, axes and features, centred by popularity."""
        settings, released = self.settings, self.released
        told = np.maximum(released[:, 3], 0.0)
        total = float(told.sum())
        self.share = told / total if total > 0 else np.full(len(told), 1.0 / len(told))
        axes = np.where((released[:, 5:] ** 2).sum(0) > 0.25, released[:, 5:], 0.0)
        axes, features = axes - self.share @ axes, self.features - self.share @ self.features
        spread = np.sqrt(self.share @ axes**2)
        axes = np.where(spread > 1e-9, axes / np.maximum(spread, 1e-9), 0.0)
        self.axes = axes.shape[1]
        scales = [float(settings[f"{name}_shrinkage"]) ** -0.5 for name in ("taste", "interest")]
        table = np.concatenate([axes * scales[0], features * scales[1]], axis=1)
        self.variance, turn = np.linalg.eigh(table.T @ (self.share[:, None] * table))
        self.interests, self.turn, self.feature_scale = table @ turn, turn, scales[1]
        base, penalty = super().responses()
        own = np.repeat(
            [float(settings["axis_shrinkage"]), float(settings["feature_shrinkage"])],
            [self.axes, features.shape[1]],
        )
        return np.concatenate([base, axes, features], axis=1), np.concatenate([penalty, own])

    def _drawn(self, people: Histories) -> tuple[Floats, Floats, Floats]:
        """Return everybody's weights of the interests, the gain of each, and each entry's weight.

        The weights are averaged over prior variances, by how likely each makes the history.
        """
        liked = np.where(np.isnan(people.value), _USUAL, people.value) / _USUAL
        weight = np.ones(len(liked)) if self.implicit else liked
        total = people.sums(weight[:, None] * self.interests[people.item])
        spread = people.sums(weight)[:, None] * np.maximum(self.variance, 0.0)
        surprise = np.where(spread > 1e-9, total**2 / np.maximum(spread, 1e-9), 0.0)
        scaled = _STRENGTHS[:, None, None] * spread
        likely = -0.5 * (np.log1p(scaled) + surprise / (1.0 + scaled)).sum(axis=2)
        chances = np.exp(likely - likely.max(axis=0))
        chances = (chances / chances.sum(axis=0))[:, :, None]
        gain = (chances / (spread + 1.0 / _STRENGTHS[:, None, None])).sum(axis=0)
        return total * gain, gain, weight

    def ranked(self, people: Histories) -> Ranked:
        """Return how likely each person is to pick each item and to like it, as a logarithm."""
        settings, share = self.settings, self.share
        bold, features = float(settings["boldness"]), self.features.shape[1]
        weights, gain, weight = self._drawn(people)
        popular = np.log(share + _RARE * share.mean()) * float(settings["popularity_weight"])
        scores, own, predicted = popular + bold * (weights @ self.interests.T), None, None
        if not self.implicit:
            own = self.own(people)
            predicted = self.predicted(own)
            scores += _likely(predicted)
        turned = bold * (weights @ self.turn.T)
        table = self.interests @ self.turn.T
        why = Explanation(
            popularity=np.log(share * len(share) + _RARE),
            quality=None if self.implicit else self.released[:, 0],
            leaning=None if own is None or not features else own[:, 3 + self.axes :],
            interest=turned[:, self.axes :] * self.feature_scale if features else None,
            tastes=turned[:, : self.axes] @ table[:, : self.axes].T if self.axes else None,
        )
        number = np.diff(people.starts)
        drawn = bold * weight[:, None] * self.interests[people.item] * np.repeat(gain, number, 0)
        return Ranked(scores, predicted, why, drawn)

    def places(self) -> Floats:
        """Return where items lie: by axes and features, as people's interests weigh them."""
        found: Floats = self.interests
        return found


def _likely(predicted: Floats) -> Floats:
    """Return the logarithm of how likely items are liked that are predicted so, from a table."""
    step, part = np.divmod(predicted * _STEPS, 1.0)
    at = step.astype(np.int32)
    below = _LIKELY[at]
    return np.asarray(below + part * (_LIKELY[at + 1] - below))


RANKERS: Registry[type[Ranker]] = Registry(
    "ranker",
    {"biases": BiasRanker, "factorization": FactorRanker, "tastes": TasteRanker},
    expected="a class derived from bgtplanner.published.ranking.Ranker",
    fits=lambda found: isinstance(found, type) and issubclass(found, Ranker),
)
"""The rankers by name. A model file names one of these, and never an address."""
