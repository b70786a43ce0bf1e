"""How good predictions are: the metrics, each one entry of a registry.

Summary, ``rounds.jsonl``, terminal, report, studies and trackers iterate over :data:`METRICS`: a
metric that is added here, or by a plugin, appears in all of them. A value of at least 0.5 on the
[0, 1] scale counts as positive, for ratings and predictions alike (the paper's threshold).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgtplanner.data.ratings import Ratings
from bgtplanner.registry import Registry

__all__ = [
    "METRICS",
    "THRESHOLD",
    "Lists",
    "Metric",
    "Metrics",
    "metrics",
    "of_ratings",
    "ranked",
    "shown",
    "tally",
]

THRESHOLD = 0.5
LIST_LENGTH = 10
"""How many items each user is shown, for metrics of lists."""

_AT_ONCE = 1 << 22  # predictions held in memory at a time


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A measure of how good predictions are: how it is computed, and how it is shown.

    There are two kinds. A metric of ratings has `sums`: it is computed in every round, from sums
    over the held-out ratings that are made on the device. A metric of lists has none: it is
    computed at the end of a run, from the list that each user would be shown.

    Attributes:
        label: Its name in tables and figures.
        better: Whether ``lower`` or ``higher`` is better.
        of: Computes the value from the sums, in their order, and the number of ratings; or from
            :class:`Lists`.
        sums: Functions of predictions and ratings, which are NumPy or JAX arrays, traced or not.
        shown: Whether tables and figures show it beside the references; otherwise it is only
            written to files and sent to trackers.
        digits: How many decimals are shown.
        unit: ``ratings`` if it grows with the scale of the ratings, so that it can be shown in
            stars; ``share`` if it does not.
    """

    label: str
    better: Literal["lower", "higher"]
    of: Callable[..., float]
    sums: tuple[Callable[[Any, Any], Any], ...] = ()
    shown: bool = True
    digits: int = 3
    unit: Literal["ratings", "share"] = "share"

    def best(self, values: list[float]) -> float:
        """Return the best of some values."""
        return min(values) if self.better == "lower" else max(values)

    def in_words(self, value: float | None) -> str:
        """Return a value as tables show it; a dash if there is none."""
        return "–" if value is None else f"{value:.{self.digits}f}"


class Metrics(dict[str, float]):
    """One model's scores by name; ``scores.rmse`` is ``scores["rmse"]``. NaN without ratings."""

    def __getattr__(self, name: str) -> float:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error

    @classmethod
    def of(cls, counts: Mapping[str, Any]) -> Metrics:
        """Return the scores from the sums of :func:`tally`."""
        n = float(counts["count"])
        return cls(
            {
                name: metric.of(*map(float, counts[name]), n) if n else float("nan")
                for name, metric in of_ratings().items()
            }
        )


class Lists(NamedTuple):
    """The lists shown to users: for each, the best-predicted items not in the training ratings.

    Attributes:
        items: Indices of items, best first, ``[n_users, LIST_LENGTH]``.
        hits: Which of them the user liked, by the held-out ratings; same shape.
        liked: How many held-out ratings of each user are positive, ``[n_users]``.
        n_items: Number of items.
    """

    items: NDArray[np.int64]
    hits: NDArray[np.bool_]
    liked: NDArray[np.int64]
    n_items: int


def _hits(predicted: Any, actual: Any) -> Any:
    return ((predicted >= THRESHOLD) & (actual >= THRESHOLD)).sum()


def _called(predicted: Any, actual: Any) -> Any:
    del actual
    return (predicted >= THRESHOLD).sum()


def _likes(predicted: Any, actual: Any) -> Any:
    del predicted
    return (actual >= THRESHOLD).sum()


def _f1(hits: float, called: float, likes: float, _: float) -> float:
    if not hits:
        return 0.0
    precision, recall = hits / called, hits / likes
    return 2 * precision * recall / (precision + recall)


class _Metrics(Registry[Metric]):
    def add(self, name: str, thing: Metric | str) -> None:
        super().add(name, thing)
        if (jax := sys.modules.get("jax")) is not None:
            jax.clear_caches()  # programs compiled before do not compute its sums


METRICS: Registry[Metric] = _Metrics(
    "metric",
    {
        "rmse": Metric(
            label="RMSE",
            better="lower",
            sums=(lambda predicted, actual: ((predicted - actual) ** 2).sum(),),
            of=lambda squares, n: (squares / n) ** 0.5,
            digits=4,
            unit="ratings",
        ),
        "mae": Metric(
            label="MAE",
            better="lower",
            sums=(lambda predicted, actual: abs(predicted - actual).sum(),),
            of=lambda absolute, n: absolute / n,
            digits=4,
            unit="ratings",
            shown=False,
        ),
        "precision": Metric(
            label="precision",
            better="higher",
            sums=(_hits, _called),
            of=lambda hits, called, _: hits / called if called else 0.0,
            shown=False,
        ),
        "recall": Metric(
            label="recall",
            better="higher",
            sums=(_hits, _likes),
            of=lambda hits, likes, _: hits / likes if likes else 0.0,
            shown=False,
        ),
        "f1": Metric(label="F1", better="higher", sums=(_hits, _called, _likes), of=_f1),
    },
    expected="a Metric",
    fits=lambda thing: isinstance(thing, Metric),
)


def of_ratings() -> dict[str, Metric]:
    """Return the metrics that are computed in every round."""
    return {name: METRICS[name] for name in METRICS if METRICS[name].sums}


def shown() -> dict[str, Metric]:
    """Return the metrics that tables and figures show."""
    return {name: METRICS[name] for name in METRICS if METRICS[name].shown}


def tally(predicted: Any, actual: Any) -> dict[str, Any]:
    """Return the sums of every metric of ratings, by its name, and the number of ratings."""
    sums = {
        name: tuple(of(predicted, actual) for of in metric.sums)
        for name, metric in of_ratings().items()
    }
    return sums | {"count": predicted.size}


def metrics(predicted: Any, actual: Any) -> Metrics:
    """Return the scores of predictions against ratings, both on the [0, 1] scale.

    Example:
        >>> metrics([0.6, 0.2, 0.9], [0.8, 0.6, 1.0]).f1
        0.8
    """
    return Metrics.of(
        tally(np.asarray(predicted, dtype=np.float64), np.asarray(actual, dtype=np.float64))
    )


def ranked(rank: Callable[[Any], Any], train: Ratings, test: Ratings) -> Metrics:
    """Return the scores of a model's lists; ranks nothing if no metric needs them.

    Args:
        rank: Returns a score of every item for some user indices, ``[users, n_items]``.
        train: The training ratings, whose items are not shown again.
        test: Held-out ratings.
    """
    of_lists = {name: METRICS[name] for name in METRICS if not METRICS[name].sums}
    if not of_lists:
        return Metrics()
    users, items = test.n_users, test.n_items
    likes = np.zeros((users, items), dtype=bool)
    likes[test.user, test.item] = test.value >= THRESHOLD
    top = np.zeros((users, min(LIST_LENGTH, items)), dtype=np.int64)
    step = max(1, _AT_ONCE // items)
    for first in range(0, users, step):
        some = np.arange(first, min(first + step, users))
        scores = np.array(rank(some), dtype=np.float64)
        known = (train.user >= first) & (train.user < first + step)
        scores[train.user[known] - first, train.item[known]] = -np.inf
        top[some] = np.argsort(-scores, axis=1, kind="stable")[:, : top.shape[1]]
    hits = np.take_along_axis(likes, top, axis=1)
    lists = Lists(top, hits, likes.sum(axis=1), items)
    return Metrics({name: float(metric.of(lists)) for name, metric in of_lists.items()})
