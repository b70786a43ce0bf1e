"""Lists of ten out of the whole catalogue: how they are made, and what is said of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bgtplanner.data.catalogue import Catalogue
from bgtplanner.data.ratings import Ratings
from bgtplanner.data.split import split_ratings
from bgtplanner.data.synthetic import synthetic_ratings
from bgtplanner.models import ranking
from bgtplanner.models.metrics import METRICS, Lists, lists_of, relevant
from bgtplanner.models.ranking import SEED, best_unrated
from bgtplanner.models.references import rankings, references, the_same_for_all


def table(rows: list[tuple[int, int, float]], items: int = 20, high: float = 5) -> Ratings:
    user, item, value = zip(*rows, strict=True)
    return Ratings.from_arrays(
        user, item, value, users=range(4), items=range(items), scale=(0, high)
    )


def both(seed: int, clients: int = 9, items: int = 25) -> tuple[Ratings, Ratings]:
    ratings = synthetic_ratings(clients=clients, items=items, ratings_per_client=9, seed=seed)
    split = split_ratings(ratings, seed=seed, rounds=1)
    return split.train, split.test


def fixed(scores: NDArray[Any]) -> Callable[[Any], Any]:
    return lambda users: scores[users]


class TestLists:
    @settings(max_examples=25, deadline=None)
    @given(seed=st.integers(0, 1000), kinds=st.integers(1, 40))
    def test_one_user_at_a_time(self, seed: int, kinds: int) -> None:
        """Against sorting each user's items in plain Python; few kinds of scores: many ties."""
        train, test = both(seed)
        scores = np.random.default_rng(seed).integers(0, kinds, (test.n_users, test.n_items))
        found = lists_of(fixed(scores), train, test)
        turn = np.argsort(np.random.Generator(np.random.PCG64(SEED)).permutation(test.n_items))
        good = relevant(train, test)
        for user in range(test.n_users):
            known = set(train.item[train.user == user].tolist())
            left = [item for item in range(test.n_items) if item not in known]
            best = sorted(left, key=lambda item: (-scores[user, item], turn[item]))[:10]
            assert found.items[user].tolist() == best + [-1] * (10 - len(best))
            liked = set(test.item[(test.user == user) & good].tolist())
            assert found.hits[user].tolist() == [item in liked for item in found.items[user]]
            assert found.liked[user] == len(liked)

    def test_equal_items_are_not_listed_as_in_the_file(self) -> None:
        train, test = table([(0, 0, 1.0)], items=200), table([(0, 1, 5.0)], items=200)
        found = lists_of(the_same_for_all(np.zeros(200)), train, test).items
        assert (found[1:] == found[1]).all(), "the same order for all"
        assert found[1].mean() > 40

    def test_what_is_no_number_is_not_shown(self) -> None:
        train, test = table([(0, 0, 1.0)]), table([(0, 1, 5.0)])
        scores = np.full(20, np.nan)
        scores[[3, 5]] = 0.5, -np.inf
        found = lists_of(the_same_for_all(scores), train, test)
        assert found.items[0].tolist() == [3] + [-1] * 9

    def test_some_users_at_a_time_as_all_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """In numbers for which models are compiled; who has rated nearly all gets what is left."""
        train = table([(0, item, 1.0) for item in range(17)] + [(1, 0, 2.0), (3, 5, 2.0)])
        scores, asked = np.random.default_rng(0).integers(0, 6, (4, 20)), []

        def rank(users: Any) -> Any:
            asked.append(len(users))
            return scores[users]

        def found() -> list[list[int]]:
            blocks = best_unrated(rank, train, np.array([3, 0, 2]), 5)
            return [row for block in blocks for row in block.tolist()]

        once = found()
        monkeypatch.setattr(ranking, "_FEWEST", 2)
        monkeypatch.setattr(ranking, "_AT_ONCE", 3 * 20)
        assert found() == once
        assert asked == [3, 2, 1]
        assert (set(once[1][:3]), once[1][3:]) == ({17, 18, 19}, [-1, -1])


class TestRelevant:
    def test_four_of_five_stars(self) -> None:
        test = table([(0, item, value) for item, value in enumerate((1.0, 3.0, 3.5, 4.0, 5.0))])
        assert relevant(test, test).tolist() == [False, False, False, True, True]

    @pytest.mark.parametrize("scale", ["max", "minmax", (0, 5)])
    def test_clicks(self, scale: Any) -> None:
        clicks = Ratings.from_arrays([0, 0, 1], [0, 1, 1], [1, 1, 1], scale=scale)
        assert relevant(clicks, clicks).all()


def made(rows: list[list[int]], items: int = 30) -> Lists:
    shown = np.array(rows)
    return Lists(shown, np.zeros(shown.shape, dtype=bool), np.zeros(len(rows), int), items)


class TestOfLists:
    @settings(max_examples=25, deadline=None)
    @given(seed=st.integers(0, 1000), spread=st.sampled_from([11, 12, 14, 30]))
    def test_pairs_of_users_one_by_one(self, seed: int, spread: int) -> None:
        rng = np.random.default_rng(seed)
        rows = [rng.permutation(spread)[:10] for _ in range(12)]
        if seed % 2:
            rows[0][rng.integers(0, 10) :] = -1
        lists = made([row.tolist() for row in rows])
        sets = [set(row.tolist()) - {-1} for row in rows]
        common = [len(one & other) for one, other in itertools.combinations(sets, 2)]
        assert METRICS["overlap"].of(lists) == pytest.approx(np.mean(common))
        assert METRICS["coverage"].of(lists) == len(set.union(*sets)) / 30

    def test_alone_or_with_nothing_to_find(self) -> None:
        alone = made([list(range(10))])
        for name in ("overlap", "ndcg_at_10", "recall_at_10", "mrr"):
            assert np.isnan(METRICS[name].of(alone))


class TestReferences:
    def test_popularity(self) -> None:
        train, _ = both(2)
        scores = rankings(train)["popularity"](np.arange(2))
        assert scores.shape == (2, train.n_items)
        assert scores[1].tolist() == [(train.item == k).sum() for k in range(train.n_items)]

    def test_ridge_as_least_squares_has_it(self) -> None:
        """One user, against LAPACK's least squares with the penalty as further rows."""
        features = np.array([[1, 0], [0, 1], [1, 1], [0, 0], [0.5, 0.2]], dtype=np.float32)
        names = [str(number) for number in range(5)]
        given = Ratings.from_arrays([0] * 5, names, [1, 2, 3, 4, 5], items=names, scale=(0, 5))
        made = Catalogue(labels=np.array(names), titles=None, features=features, names=("a", "b"))
        ratings = replace(given, catalogue=made)
        train, test = ratings.take(np.arange(4)), ratings.take(np.array([4]))
        x = np.column_stack([np.ones(5), features - features.mean(axis=0)])
        system = np.vstack([x[:4], np.diag(np.sqrt([5.0, 15.0, 15.0]))])
        right = np.r_[train.value - 0.7, np.zeros(3)]
        expected = 0.7 + x[4] @ np.linalg.lstsq(system, right)[0]
        found = references(train, test).features_alone
        assert found is not None
        assert found.rmse == pytest.approx(abs(expected - 1.0), abs=1e-6)
