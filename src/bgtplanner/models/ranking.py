"""The best items that people have not rated yet, of many people at a time, for metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bgtplanner.data.ratings import Ratings

SEED = 20_161_010  # of the order of equal items, and of the users that are drawn; it is public
_AT_ONCE = 1 << 22  # scores held in memory at a time
_FEWEST = 64  # users ranked at a time: fewer would be padded to as many


def best_unrated(
    rank: Callable[[Any], Any], known: Ratings, users: NDArray[Any], size: int
) -> Iterator[NDArray[np.int64]]:
    """Yield the best items that each user has not rated, many users at a time.

    There are -1 where nothing is left, or a score is not a finite number. Of items with equal
    scores, those come first that come first in one fixed random order. Numbers of users at a time
    are powers of two, for which models are compiled.
    """
    order = np.argsort(known.user, kind="stable")
    starts = np.searchsorted(known.user[order], np.arange(known.n_users + 1))
    turn = np.argsort(np.random.default_rng(SEED).permutation(known.n_items))
    step = 1 << (max(_FEWEST, _AT_ONCE // known.n_items).bit_length() - 1)
    for first in range(0, len(users), step):
        some = users[first : first + step]
        scores = np.array(rank(some), dtype=np.float32, order="C")
        scores[~np.isfinite(scores)] = -np.inf
        counts = starts[some + 1] - starts[some]
        row = np.repeat(np.arange(len(some)), counts)
        skipped = np.repeat(starts[some] - np.cumsum(counts) + counts, counts)
        scores[row, known.item[order[np.arange(len(row)) + skipped]]] = -np.inf
        # Only scores that can be among the highest are sorted.
        place = known.n_items - min(size, known.n_items)
        high, column = np.nonzero(scores >= np.partition(scores, place, axis=1)[:, [place]])
        in_order = column[np.lexsort((turn[column], -scores[high, column], high))]
        begin = np.searchsorted(high, np.arange(len(some)))[:, None]
        best = in_order[begin + np.arange(known.n_items - place)]
        left = np.take_along_axis(scores, best, axis=1) > -np.inf
        yield np.where(left, best, -1)
