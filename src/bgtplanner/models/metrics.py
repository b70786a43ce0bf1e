"""How good predictions are: the metrics, each one entry of a registry.

Summary, ``rounds.jsonl``, terminal, report and studies iterate over :data:`METRICS`: a
metric that is added here, or by a plugin, appears in all of them.

Metrics of lists rank the whole catalogue, without what the user's training ratings are about. A
held-out rating of at least :data:`RELEVANT` of the best possible one is relevant (4 of 5 stars);
if all ratings are equal, as clicks are, every held-out one is. Users without a relevant item do
not count in NDCG, recall and MRR. In precision, recall and F1 of ratings, a value of at least
:data:`THRESHOLD` counts as positive, for ratings and predictions alike (the paper's threshold).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgtplanner.data.ratings import Ratings
from bgtplanner.models.ranking import SEED, best_unrated
from bgtplanner.registry import Registry

THRESHOLD = 0.5  # from which a rating or prediction from 0 to 1 counts as positive in F1
RELEVANT = 0.8  # from which share of the best possible rating on an item is relevant
HEADLINE = "ndcg_at_10"  # the metric of lists that headlines, stops and charts go by
LIST_LENGTH = 10  # how many items each user is shown
_MOST_USERS = 10_000  # of more users, so many are drawn, always the same, and only they get lists
_Float = NDArray[np.float64]


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
        sums: Each returns a sum over predictions and ratings, NumPy or JAX arrays, traced or not.
        shown: Whether tables and figures show it beside the references, or the name of the one
            preset under which they do; otherwise it is only written to files.
        digits: How many decimals are shown.
        unit: ``ratings`` if it grows with the scale of the ratings, so that it can be shown in
            stars; ``share`` if it does not.
    """

    label: str
    better: Literal["lower", "higher"] = "higher"
    of: Callable[..., float]
    sums: tuple[Callable[[Any, Any], Any], ...] = ()
    shown: bool | str = True
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
    """For each user the best-ranked items that are not in the training ratings."""

    items: NDArray[np.int64]  # best first, `[n_users, LIST_LENGTH]`; -1 where nothing is left
    hits: NDArray[np.bool_]  # which of them are relevant, by the held-out ratings
    liked: NDArray[np.int64]  # how many held-out items of each user are relevant
    n_items: int


def _mean(values: _Float, lists: Lists) -> float:
    """Return the mean over users who have something to find."""
    counted = values[lists.liked > 0]
    return float(counted.mean()) if len(counted) else float("nan")


def _ndcg(lists: Lists) -> float:
    """Gains of 1, discounted by the binary logarithm of the place plus 1; best list: 1."""
    weights = 1 / np.log2(np.arange(2, LIST_LENGTH + 2))
    ideal = np.r_[1.0, weights.cumsum()][np.minimum(lists.liked, LIST_LENGTH)]
    return _mean(lists.hits @ weights[: lists.hits.shape[1]] / ideal, lists)


def _recall(lists: Lists) -> float:
    """Share of the relevant items in the list, or of its places if there are more of them."""
    return _mean(lists.hits.sum(axis=1) / np.clip(lists.liked, 1, LIST_LENGTH), lists)


def _mrr(lists: Lists) -> float:
    """One over the place of the first relevant item; 0 if there is none in the list."""
    return _mean(lists.hits.any(axis=1) / (lists.hits.argmax(axis=1) + 1), lists)


def _listed(lists: Lists) -> NDArray[np.int64]:
    """Return in how many lists each item is."""
    return np.bincount(lists.items[lists.items >= 0], minlength=lists.n_items)


def _overlap(lists: Lists) -> float:
    """Over all pairs of users, exactly: an item in c lists is shared by c (c - 1) / 2 pairs."""
    users, counts = len(lists.items), _listed(lists)
    pairs = users * (users - 1)
    return float((counts * (counts - 1)).sum() / pairs) if pairs else float("nan")


def _f1(hits: float, called: float, likes: float, _: float) -> float:
    precision, recall = _share(hits, called), _share(hits, likes)
    return 2 * precision * recall / (precision + recall) if hits else 0.0


def _share(hits: float, of: float, _: float = 0.0) -> float:
    return hits / of if of else 0.0


def _hits(predicted: Any, actual: Any) -> Any:
    return ((predicted >= THRESHOLD) & (actual >= THRESHOLD)).sum()


def _called(predicted: Any, _: Any) -> Any:
    return (predicted >= THRESHOLD).sum()


def _likes(_: Any, actual: Any) -> Any:
    return (actual >= THRESHOLD).sum()


class _Metrics(Registry[Metric]):
    def add(self, name: str, thing: Metric | str) -> None:
        super().add(name, thing)
        if (jax := sys.modules.get("jax")) is not None:
            jax.clear_caches()  # programs compiled before do not compute its sums


def _error(label: str, size: Callable[[Any], Any], of: Callable[..., float], **how: Any) -> Metric:
    sums = (lambda predicted, actual: size(predicted - actual).sum(),)
    return Metric(label=label, better="lower", sums=sums, of=of, digits=4, unit="ratings", **how)


METRICS: Registry[Metric] = _Metrics(
    "metric",
    {
        HEADLINE: Metric(label="NDCG@10", of=_ndcg, shown="recommended"),
        "recall_at_10": Metric(label="recall@10", of=_recall, shown="recommended"),
        "mrr": Metric(label="MRR@10", of=_mrr, shown=False),
        "coverage": Metric(
            label="coverage",
            of=lambda lists: float((_listed(lists) > 0).mean()),
            shown="recommended",
        ),
        "overlap": Metric(
            label="overlap", better="lower", of=_overlap, shown="recommended", digits=2
        ),
        "rmse": _error("RMSE", lambda error: error**2, lambda squares, n: (squares / n) ** 0.5),
        "mae": _error("MAE", abs, lambda absolute, n: absolute / n, shown=False),
        "precision": Metric(label="precision", sums=(_hits, _called), of=_share, shown=False),
        "recall": Metric(label="recall", sums=(_hits, _likes), of=_share, shown=False),
        "f1": Metric(label="F1", sums=(_hits, _called, _likes), of=_f1, shown="paper"),
    },
    expected="a Metric",
    fits=lambda thing: isinstance(thing, Metric),
)


def of_ratings() -> dict[str, Metric]:
    """Return the metrics that are computed in every round."""
    return {name: METRICS[name] for name in METRICS if METRICS[name].sums}


def of_lists() -> dict[str, Metric]:
    """Return the metrics that are computed at the end of a run, from the lists."""
    return {name: METRICS[name] for name in METRICS if not METRICS[name].sums}


def shown(preset: str) -> dict[str, Metric]:
    """Return the metrics that tables and figures of runs with a preset show."""
    return {name: METRICS[name] for name in METRICS if METRICS[name].shown in (True, preset)}


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
    return Metrics.of(tally(np.asarray(predicted, np.float64), np.asarray(actual, np.float64)))


def ranked(
    rank: Callable[[Any], Any], train: Ratings, test: Ratings, *, beside: bool = False
) -> Metrics:
    """Return the scores of a ranking's lists; NaN where there is nothing to score.

    Args:
        rank: Returns a score of every item for some user indices, ``[users, n_items]``.
        train: The training ratings, whose items are not shown again.
        test: Held-out ratings.
        beside: Whether it is a reference, of which only what is shown is computed.
    """
    wanted = {name: of for name, of in of_lists().items() if of.shown or not beside}
    lists = lists_of(rank, train, test)
    return Metrics({name: float(metric.of(lists)) for name, metric in wanted.items()})


def relevant(train: Ratings, test: Ratings) -> NDArray[np.bool_]:
    """Return which held-out ratings are of items that the user would like to have been shown."""
    values = np.concatenate([train.value, test.value])
    if not len(values) or values.min() == values.max():  # clicks, plays: all there is, is liked
        return np.ones(len(test), dtype=bool)
    least = (RELEVANT * test.high - test.low) / (test.high - test.low)
    return np.asarray(test.value >= least - 1e-6)  # values are in single precision


def drawn_users(number: int) -> NDArray[np.int64]:
    """Return the users whose lists are made: all of them or, of very many, some."""
    if number <= _MOST_USERS:
        return np.arange(number)
    return np.sort(np.random.default_rng(SEED).choice(number, _MOST_USERS, replace=False))


def lists_of(rank: Callable[[Any], Any], train: Ratings, test: Ratings) -> Lists:
    """Return the list of each user (:func:`drawn_users`); `rank` as in :func:`ranked`."""
    users, good = drawn_users(test.n_users), relevant(train, test)
    items = np.concatenate(list(best_unrated(rank, train, users, LIST_LENGTH)))
    liked = test.user[good].astype(np.int64) * test.n_items + test.item[good]
    hits = np.isin(users[:, None] * test.n_items + items, liked) & (items >= 0)
    number = np.bincount(test.user[good], minlength=test.n_users)[users]
    return Lists(items, hits, number, test.n_items)
