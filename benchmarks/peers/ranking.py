"""NDCG@10 against LensKit's: from the same scores of all items to the mean over users.

Both sides leave out what a user has rated, take the ten items with the highest scores, and score
that list. Ours computes all other metrics of lists as well.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.task import SIZES
from benchmarks.speed.child import quartiles, stopwatch
from bgtplanner.data.ratings import Ratings
from bgtplanner.data.split import split_ratings
from bgtplanner.data.synthetic import synthetic_ratings
from bgtplanner.models.metrics import LIST_LENGTH, ranked, relevant

TOLERANCE = 1e-6
Scores = NDArray[np.float32]


def by_us(scores: Scores, train: Ratings, test: Ratings) -> float:
    found: float = ranked(scores.__getitem__, train, test).ndcg_at_10
    return found


class LensKit:
    """LensKit's lists and its NDCG, with what it keeps of the ratings made beforehand."""

    def __init__(self, train: Ratings, test: Ratings) -> None:
        from lenskit.data import ItemList as List
        from lenskit.data import ItemListCollection, UserIDKey
        from lenskit.metrics import NDCG, LogRankWeight, RunAnalysis

        self.key, self.collection, self.list = UserIDKey, ItemListCollection, List
        # LensKit's own discount gives the first two ranks the same weight; ours does not.
        self.ndcg = NDCG(LIST_LENGTH, weight=LogRankWeight(offset=1))
        self.analysis = RunAnalysis(self.ndcg)
        good = relevant(train, test)
        liked = self._by_user(test.user[good], test.item[good], test.n_users)
        self.liked = ItemListCollection(UserIDKey)
        for user, items in enumerate(liked):
            if len(items):
                self.liked.add(List(item_ids=items), user_id=user)
        self.unrated = [
            np.setdiff1d(np.arange(train.n_items), items)
            for items in self._by_user(train.user, train.item, train.n_users)
        ]
        self.users = [user for user, items in enumerate(liked) if len(items)]

    def _by_user(
        self, user: NDArray[Any], item: NDArray[Any], number: int
    ) -> list[NDArray[np.int64]]:
        order = np.argsort(user, kind="stable")
        ends = np.cumsum(np.bincount(user, minlength=number))
        return np.split(item[order].astype(np.int64), ends[:-1])

    def measure(self, scores: Scores) -> float:
        """Return the mean NDCG@10 over users with anything to find."""
        lists = self.collection(self.key)
        for user in self.users:
            items = self.unrated[user]
            every = self.list(item_ids=items, scores=scores[user, items])
            lists.add(every.top_n(LIST_LENGTH), user_id=user)
        found = self.analysis.measure(lists, self.liked).list_metrics()
        return float(found.iloc[:, 0].mean())


def compare(name: str, turns: int) -> dict[str, Any]:
    """Check that both find the same, then time them by turns."""
    size = SIZES[name]
    ratings = synthetic_ratings(
        clients=size.clients, items=size.items, ratings_per_client=size.ratings_per_client
    )
    split = split_ratings(ratings, seed=0, rounds=1, initial_share=1.0)
    shape = ratings.n_users, ratings.n_items
    counts = np.bincount(split.train.item, minlength=ratings.n_items)
    # Popular items first, each user in another order: lists with something in them, and no ties.
    scores = np.random.default_rng(0).gumbel(0, 0.3, shape) + np.log1p(counts)
    scores = scores.astype(np.float32)
    lenskit = LensKit(split.train, split.test)
    values = {"ours": by_us(scores, split.train, split.test), "LensKit": lenskit.measure(scores)}
    check_equal(values["LensKit"], values["ours"])
    seconds: dict[str, list[float]] = {side: [] for side in values}
    for _ in range(turns):
        with stopwatch() as taken:
            by_us(scores, split.train, split.test)
        seconds["ours"].append(taken[0])
        with stopwatch() as taken:
            lenskit.measure(scores)
        seconds["LensKit"].append(taken[0])
    both = zip(seconds["LensKit"], seconds["ours"], strict=True)
    low, middle, high = quartiles([theirs / mine for theirs, mine in both])
    return {
        "size": name,
        "ndcg_at_10": values,
        "seconds": seconds,
        "ratio": middle,
        "ratio_quartiles": [low, high],
    }


def check_equal(theirs: float, ours: float) -> None:
    """See that both have the same NDCG.

    Raises:
        SystemExit: If not; then there is nothing to time.
    """
    if not abs(theirs - ours) <= TOLERANCE:
        raise SystemExit(f"NDCG@10 of LensKit is {theirs:.6f} and ours {ours:.6f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=list(SIZES), required=True)
    parser.add_argument("--turns", type=int, required=True)
    given = parser.parse_args()
    print(json.dumps(compare(given.size, given.turns)))
