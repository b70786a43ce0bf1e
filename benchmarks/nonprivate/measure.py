"""Our metrics, from what a model says about every pair of a user and an item."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgtplanner.data.ratings import Ratings

LENGTH = 10
LIKED = 0.8
"""Raw ratings of at least this share of the top of the scale are liked."""
METRICS = ("rmse", "rmse_stars", "ndcg_at_10", "recall_at_10")

Matrix = NDArray[np.floating[Any]]


class Fitted(NamedTuple):
    """What a trained model says about pairs of a user and an item, ``[users, items]``.

    Attributes:
        scores: What items are ranked by; NaN where the model has nothing to say.
        ratings: Predicted ratings on the scale of the data, if the model predicts any.
    """

    scores: Matrix
    ratings: Matrix | None


def liked(ratings: Ratings) -> NDArray[np.bool_]:
    """Return which ratings are liked."""
    return raw(ratings) >= LIKED * ratings.high


def raw(ratings: Ratings) -> NDArray[np.float64]:
    """Return the ratings on the scale of the data, without the rounding of 32 bits."""
    return ratings.to_raw(ratings.value).round(4)


def top_lists(scores: Matrix, train: Ratings, length: int = LENGTH) -> NDArray[np.int64]:
    """Return the best items of each user that are not in the training ratings, best first.

    Of equal scores, the item that comes first in the catalogue wins. Items without a score come
    after all others, those with the most training ratings first.
    """
    count = np.bincount(train.item, minlength=train.n_items)
    lists = np.empty((len(scores), min(length, train.n_items)), dtype=np.int64)
    for first in range(0, len(scores), 512):
        some = scores[first : first + 512].astype(np.float64)
        unknown = np.isnan(some)
        rated, theirs = np.zeros_like(unknown), (train.user >= first) & (train.user < first + 512)
        rated[train.user[theirs] - first, train.item[theirs]] = True
        # The last key counts first: not rated, then with a score, then by it, or by the count.
        known, counts = np.where(unknown, 0, -some), np.where(unknown, -count, 0)
        order = np.lexsort((counts, known, unknown, rated))
        lists[first : first + 512] = order[:, : lists.shape[1]]
    return lists


def ranking_metrics(lists: NDArray[np.int64], relevant: NDArray[np.bool_]) -> tuple[float, float]:
    """Return NDCG and recall of lists, as means over the users with anything relevant.

    Gains are binary and the discount is the binary logarithm of the rank plus 1. The ideal list
    has as many relevant items as there are, and no more than fit in. Recall is the share of the
    relevant items that are in the list, or of the list if more are relevant than fit in.

    Args:
        lists: Items of each user, best first, ``[users, length]``.
        relevant: Which items are relevant to whom, ``[users, items]``.

    Example:
        >>> ndcg, recall = ranking_metrics(np.array([[2, 0]]), np.array([[True, True, False]]))
        >>> round(ndcg, 4), recall
        (0.3869, 0.5)
    """
    counts = relevant.sum(axis=1)
    hits = np.take_along_axis(relevant, lists, axis=1)[counts > 0]
    counts = counts[counts > 0]
    gains = 1 / np.log2(np.arange(2, lists.shape[1] + 2))
    most = np.minimum(counts, lists.shape[1])
    ideal = np.cumsum(gains)[most - 1]
    return float(np.mean(hits @ gains / ideal)), float(np.mean(hits.sum(axis=1) / most))


def relevant_items(test: Ratings) -> NDArray[np.bool_]:
    """Return which items each user likes by the held-out ratings, ``[users, items]``."""
    found = np.zeros((test.n_users, test.n_items), dtype=bool)
    likes = liked(test)
    found[test.user[likes], test.item[likes]] = True
    return found


def measure(
    fitted: Fitted, train: Ratings, test: Ratings, bounds: tuple[float, float]
) -> dict[str, float | None]:
    """Return all metrics; those of ratings are None if the model predicts none.

    Predicted ratings are clipped to the bounds, as they are before anybody sees them. Lists are
    made from scores that are not.
    """
    stars = None
    if fitted.ratings is not None:
        error = np.clip(fitted.ratings[test.user, test.item], *bounds) - raw(test)
        stars = float(np.sqrt(np.mean(error**2)))
    ndcg, recall = ranking_metrics(top_lists(fitted.scores, train), relevant_items(test))
    scaled = None if stars is None else stars / (test.high - test.low)
    return dict(zip(METRICS, (scaled, stars, ndcg, recall), strict=True))
