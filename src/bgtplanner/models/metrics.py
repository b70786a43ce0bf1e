"""How good predictions are: the metrics, each one entry of a registry.

Summary, ``rounds.jsonl``, terminal, report and studies iterate over :data:`METRICS`: a
metric that is added here, or by a plugin, appears in all of them.

Metrics of lists rank the whole catalogue, without what the user's training ratings are about. A
held-out rating of at least :data:`RELEVANT` of the best possible one is relevant (4 of 5 stars);
if all ratings are equal, as clicks are, every held-out one is. Users without a relevant item do
not count in NDCG, recall and MRR. Of items with equal scores, those come first that come first in
one fixed random order, so that no item gains from its place in the file.

In precision, recall and F1 of ratings, a value of at least :data:`THRESHOLD` counts as positive,
for ratings and predictions alike (the paper's threshold).
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

THRESHOLD = 0.5
"""From which value on the scale of 0 to 1 a rating or prediction counts as positive in F1."""

RELEVANT = 0.8
"""From which share of the best possible rating on a held-out item is relevant: 4 of 5 stars."""

HEADLINE = "ndcg_at_10"
"""The metric of lists that headlines, stops and charts go by."""

LIST_LENGTH = 10
"""How many items each user is shown, for metrics of lists."""

TWIN = 8
"""How many of these two users must have in common to be near-twins."""

MOST_USERS = 10_000
"""Of more users than this, so many are drawn at random, always the same ones, and only their
lists are made."""

_SEED = 20_161_010  # of the users that are drawn and of the order of equal items; it is public
_AT_ONCE = 1 << 22  # scores held in memory at a time
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
        sums: Functions of predictions and ratings, which are NumPy or JAX arrays, traced or not.
        shown: Whether tables and figures show it beside the references, or the name of the one
            preset under which they do; otherwise it is only written to files.
        digits: How many decimals are shown.
        unit: ``ratings`` if it grows with the scale of the ratings, so that it can be shown in
            stars; ``share`` if it does not.
    """

    label: str
    better: Literal["lower", "higher"]
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
    """The lists shown to users: for each, the best-ranked items not in the training ratings.

    Attributes:
        items: Indices of items, best first, ``[n_users, LIST_LENGTH]``; -1 where nothing is left.
        hits: Which of them are relevant, by the held-out ratings; same shape.
        liked: How many held-out items of each user are relevant, ``[n_users]``.
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


def _mean(values: _Float, lists: Lists) -> float:
    """The mean over users who have something to find."""
    counted = values[lists.liked > 0]
    return float(counted.mean()) if len(counted) else float("nan")


def _ndcg(lists: Lists) -> float:
    """Gains of 1, discounted by the binary logarithm of the place plus 1; best list: 1."""
    weights = 1 / np.log2(np.arange(2, LIST_LENGTH + 2))
    ideal = np.r_[1.0, weights.cumsum()][np.minimum(lists.liked, LIST_LENGTH)]
    return _mean(lists.hits @ weights[: lists.hits.shape[1]] / ideal, lists)


def _recall(lists: Lists) -> float:
    """Share of the relevant items in the list, or of its places if there are more of them."""
    most = np.clip(lists.liked, 1, LIST_LENGTH)
    return _mean(lists.hits.sum(axis=1) / most, lists)


def _mrr(lists: Lists) -> float:
    """One over the place of the first relevant item; 0 if there is none in the list."""
    return _mean(lists.hits.any(axis=1) / (lists.hits.argmax(axis=1) + 1), lists)


def _listed(lists: Lists) -> NDArray[np.int64]:
    """In how many lists each item is."""
    return np.bincount(lists.items[lists.items >= 0], minlength=lists.n_items)


def _overlap(lists: Lists) -> float:
    """Over all pairs of users, exactly: an item in c lists is shared by c (c - 1) / 2 pairs."""
    users, counts = len(lists.items), _listed(lists)
    pairs = users * (users - 1)
    return float((counts * (counts - 1)).sum() / pairs) if pairs else float("nan")


def _twins(lists: Lists) -> float:
    from scipy.sparse import csr_matrix

    users, shown = len(lists.items), lists.items >= 0
    ends = np.r_[0, shown.sum(axis=1).cumsum()]
    flags = np.ones(ends[-1], dtype=np.int8)
    has = csr_matrix((flags, lists.items[shown], ends), shape=(users, lists.n_items))
    by_item, found = has.T.tocsr(), np.zeros(users, dtype=bool)
    for first in range(0, users, 512):
        some = slice(first, first + 512)
        common = has[some] @ by_item
        common.data = (common.data >= TWIN).astype(np.int32)
        # A full list shares enough with itself.
        own = shown[some].sum(axis=1) >= TWIN
        found[some] = np.asarray(common.sum(axis=1)).ravel() > own
    return float(found.mean()) if users else float("nan")


class _Metrics(Registry[Metric]):
    def add(self, name: str, thing: Metric | str) -> None:
        super().add(name, thing)
        if (jax := sys.modules.get("jax")) is not None:
            jax.clear_caches()  # programs compiled before do not compute its sums


def _squares(predicted: Any, actual: Any) -> Any:
    return ((predicted - actual) ** 2).sum()


def _distances(predicted: Any, actual: Any) -> Any:
    return abs(predicted - actual).sum()


def _coverage(lists: Lists) -> float:
    return float((_listed(lists) > 0).mean())


def _share(hits: float, of: float, _: float) -> float:
    return hits / of if of else 0.0


def _of_lists(label: str, of: Callable[[Lists], float], **how: Any) -> Metric:
    usual: dict[str, Any] = {"better": "higher", "shown": "recommended"}
    return Metric(label=label, of=of, **usual | how)


def _of_hits(label: str, *sums: Callable[[Any, Any], Any], **how: Any) -> Metric:
    usual: dict[str, Any] = {"better": "higher", "shown": False}
    return Metric(label=label, sums=sums, **usual | how)


METRICS: Registry[Metric] = _Metrics(
    "metric",
    {
        HEADLINE: _of_lists("NDCG@10", _ndcg),
        "recall_at_10": _of_lists("recall@10", _recall),
        "mrr": _of_lists("MRR@10", _mrr, shown=False),
        "coverage": _of_lists("coverage", _coverage),
        "overlap": _of_lists("overlap", _overlap, better="lower", digits=2),
        "twins": _of_lists("twins", _twins, better="lower", shown=False),
        "rmse": Metric(
            label="RMSE",
            better="lower",
            sums=(_squares,),
            of=lambda squares, n: (squares / n) ** 0.5,
            digits=4,
            unit="ratings",
        ),
        "mae": Metric(
            label="MAE",
            better="lower",
            sums=(_distances,),
            of=lambda absolute, n: absolute / n,
            digits=4,
            unit="ratings",
            shown=False,
        ),
        "precision": _of_hits("precision", _hits, _called, of=_share),
        "recall": _of_hits("recall", _hits, _likes, of=_share),
        "f1": _of_hits("F1", _hits, _called, _likes, of=_f1, shown="paper"),
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
    return Metrics.of(
        tally(np.asarray(predicted, dtype=np.float64), np.asarray(actual, dtype=np.float64))
    )


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
    if not wanted:
        return Metrics()
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
    """Return the users whose lists are made: all of them, or :data:`MOST_USERS`."""
    if number <= MOST_USERS:
        return np.arange(number)
    return np.sort(np.random.default_rng(_SEED).choice(number, MOST_USERS, replace=False))


def lists_of(rank: Callable[[Any], Any], train: Ratings, test: Ratings) -> Lists:
    """Return the list of each user (:func:`drawn_users`); `rank` as in :func:`ranked`.

    An item whose score is not a number, or minus infinity, is not shown.
    """
    users, n_items = drawn_users(test.n_users), test.n_items
    place = np.full(test.n_users, -1)
    place[users] = np.arange(len(users))
    known = _by_row(place[train.user], train.item)
    good = relevant(train, test)
    row = place[test.user[good]]
    liked = _by_row(row, test.item[good])
    turn = np.argsort(np.random.default_rng(_SEED).permutation(n_items))
    shape = len(users), min(LIST_LENGTH, n_items)
    top, hits = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=bool)
    step = ranked_at_once(test)
    for first in range(0, len(users), step):
        block = slice(first, first + step)
        scores = np.array(rank(users[block]), dtype=np.float32, order="C")
        scores[np.isnan(scores)] = -np.inf
        scores[known(first, first + step)] = -np.inf
        best = _best(scores, shape[1], turn)
        there = np.take_along_axis(scores, best, axis=1) > -np.inf
        top[block] = np.where(there, best, -1)
        likes = np.zeros((len(scores), n_items + 1), dtype=bool)  # the last: no item
        likes[liked(first, first + step)] = True
        hits[block] = np.take_along_axis(likes, top[block], axis=1)
    return Lists(top, hits, np.bincount(row[row >= 0], minlength=len(users)), n_items)


def ranked_at_once(ratings: Ratings) -> int:
    """Return how many users are ranked at a time; another number is another program to compile."""
    fitting = 1 << max(0, (_AT_ONCE // ratings.n_items).bit_length() - 1)
    return min(fitting, len(drawn_users(ratings.n_users)))


def _by_row(
    row: NDArray[np.int64], item: NDArray[np.int32]
) -> Callable[[int, int], tuple[NDArray[np.int64], NDArray[np.int32]]]:
    """Return what gives rows, counted from the first, and items of some rows; -1 is no row."""
    order = np.argsort(row, kind="stable")
    row, item = row[order], item[order]

    def between(first: int, last: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        begin, end = np.searchsorted(row, (first, last))
        return row[begin:end] - first, item[begin:end]

    return between


def _best(scores: NDArray[np.float32], size: int, turn: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the columns of the highest scores, best first; of equal ones those whose turn it is.

    Only scores that can be among the highest are sorted.
    """
    rows, columns = scores.shape
    least = np.partition(scores, columns - size, axis=1)[:, columns - size, None]
    row, column = np.nonzero(scores >= least)
    order = np.lexsort((turn[column], -scores[row, column], row))
    first = np.searchsorted(row, np.arange(rows))[:, None]
    found: NDArray[np.int64] = column[order][first + np.arange(size)]
    return found
