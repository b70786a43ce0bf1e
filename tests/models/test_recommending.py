"""Which items are recommended to whom, and what happens where nothing was learned."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn import linear_model

from bgtplanner.data.ratings import Ratings
from bgtplanner.errors import NothingLearnedError
from bgtplanner.models import recommending
from bgtplanner.models.learner import Explanation
from bgtplanner.models.recommending import Basis, Recommended, Recommender, note_of
from explaining import GENRES, genre_ratings


def recommender(ratings: Ratings, scores: Any, **changes: Any) -> Recommender:
    why = changes.pop("why", Explanation())
    made = Recommender(
        ratings=ratings,
        known=ratings,
        learned=True,
        rank=lambda users: np.asarray(scores, dtype=np.float32)[users],
        explain=why.of_users,
        predict=lambda users, items: (users + items) % 7 / 7,
    )
    return replace(made, **changes)


def lists(made: Recommender, users: Any, top: int) -> tuple[list[list[Recommended]], list[Basis]]:
    blocks = list(made.blocks(users, top))
    found = [one for block in blocks for one in block.lists]
    return found, [basis for block in blocks for basis in block.bases]


def test_the_same_as_one_user_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the plain loop; ties go to the item that comes first."""
    monkeypatch.setattr(recommending, "_FEWEST_USERS", 2)
    monkeypatch.setattr(recommending, "_AT_ONCE", 100)  # four users a block
    ratings = genre_ratings(users=11)
    scores = np.random.default_rng(0).integers(0, 6, size=(11, 24)).astype(float)
    made = recommender(ratings, scores)
    users = [10, 0, 7, 3, 4, 1, 2, 9]
    assert len(list(made.blocks(users, 5))) > 1
    found, bases = lists(made, users, 5)
    for user, rows in zip(users, found, strict=True):
        rated = set(ratings.item[ratings.user == user].tolist())
        left = sorted(set(range(24)) - rated, key=lambda item: (-scores[user, item], item))
        assert [row.item for row in rows] == left[:5]
        assert [row.place for row in rows] == [1, 2, 3, 4, 5]
        assert {row.user for row in rows} == {ratings.user_labels[user]}
        assert [row.title for row in rows] == [f"The {item}th" for item in left[:5]]
        assert [row.predicted for row in rows] == pytest.approx(
            [(user + item) % 7 / 7 * 5 for item in left[:5]]
        )
    assert set(bases) == {"model"}
    whole, _ = lists(made, users, 24)
    assert [len(rows) for rows in whole] == [24 - (ratings.user == user).sum() for user in users]
    assert [rows[:5] for rows in whole] == found


def test_only_what_is_known_is_left_out() -> None:
    ratings = genre_ratings()
    known = ratings.take(np.arange(len(ratings)) % 2 == 0)
    scores = np.tile(np.arange(24.0), (12, 1))
    (rows,), _ = lists(recommender(ratings, scores, known=known), [0], 24)
    left_out = set(range(24)) - {row.item for row in rows}
    assert left_out == set(known.item[known.user == 0].tolist())


def test_a_user_who_has_rated_everything_or_all_but_one() -> None:
    ratings = Ratings.from_arrays(
        [0] * 4 + [1] * 3, [0, 1, 2, 3, 0, 1, 2], [1, 2, 3, 4, 1, 2, 3], scale=(0, 5)
    )
    found, bases = lists(recommender(ratings, np.zeros((2, 4))), [0, 1], 3)
    assert [[row.item for row in rows] for rows in found] == [[], [3]]
    assert bases == ["model", "model"]


def test_data_without_ratings_have_no_predicted_ones() -> None:
    ratings = Ratings.from_arrays([0, 1], [0, 1], [1, 1], items=range(4), scale=(0, 1))
    (rows, _), _ = lists(recommender(ratings, [range(4)] * 2), [0, 1], 2)
    assert [row.predicted for row in rows] == [None, None]


class TestNothingLearned:
    def test_without_anything_there_is_no_list(self) -> None:
        ratings = replace(genre_ratings(), catalogue=None)
        random = np.random.default_rng(0).random((12, 24))  # as a model starts
        found, bases = lists(recommender(ratings, random, learned=False), range(12), 3)
        assert found == [[]] * 12
        with pytest.raises(NothingLearnedError, match="larger --epsilon"):
            note_of(Counter(bases), learned=False)

    def test_popularity_that_was_released(self) -> None:
        ratings = genre_ratings()
        popular: Any = np.random.default_rng(1).normal(size=24)
        flat = recommender(ratings, np.zeros((12, 24)), why=Explanation(popularity=popular))
        (rows,), bases = lists(flat, [4], 3)
        left = np.setdiff1d(np.arange(24), ratings.item[ratings.user == 4])
        assert [row.item for row in rows] == left[np.argsort(-popular[left])][:3].tolist()
        assert bases == ["popularity"]
        note = note_of(Counter(bases), learned=True)
        assert note is not None
        assert "the most popular items" in note

    def test_own_leanings_towards_features(self) -> None:
        """Each user of `genre_ratings` likes one genre, and picks it more often."""
        ratings = genre_ratings()
        found, bases = lists(recommender(ratings, np.zeros((12, 24)), learned=False), range(12), 3)
        assert set(bases) == {"features"}
        for user, rows in enumerate(found):
            wanted = user % len(GENRES)
            left = set(range(wanted, 24, 3)) - set(ratings.item[ratings.user == user].tolist())
            right = [row for row in rows if row.item % len(GENRES) == wanted]
            assert len(right) == min(3, len(left))
            for row in right:
                assert row.reason is not None
                assert GENRES[wanted] in row.reason
                assert "others" not in row.reason, "nothing is known about others"
        note = note_of(Counter(bases), learned=False)
        assert note is not None
        assert note.startswith("Nothing was learned from others yet")
        assert "own ratings" in note

    def test_a_model_that_has_leanings_ranks_by_them(self) -> None:
        ratings = genre_ratings()
        scores = np.random.default_rng(0).random((12, 24))
        why = Explanation(interest=np.ones((12, 3)))  # type: ignore[arg-type]
        made = recommender(ratings, scores, learned=False, why=why)
        (rows,), bases = lists(made, [2], 24)
        assert bases == ["features"]
        assert [row.item for row in rows] == sorted(
            (row.item for row in rows), key=lambda item: -scores[2, item]
        )

    def test_some_users(self) -> None:
        """A user without a rating has no leanings."""
        ratings = genre_ratings()
        known = ratings.take(ratings.user != 5)
        made = recommender(ratings, np.zeros((12, 24)), known=known, learned=False)
        found, bases = lists(made, range(12), 2)
        assert [len(rows) for rows in found] == [2] * 5 + [0] + [2] * 6
        note = note_of(Counter(bases), learned=False)
        assert note is not None
        assert "no list" in note
        assert "(1 of 12 users)" in note


def test_a_model_that_is_not_a_number_is_no_ranking() -> None:
    ratings = replace(genre_ratings(), catalogue=None)
    found, bases = lists(recommender(ratings, np.full((12, 24), np.nan)), [0], 3)
    assert (found, bases) == ([[]], ["nothing"])


def test_alone_a_list_is_that_of_shrunk_leanings_and_interests() -> None:
    """Against scikit-learn's ridge and counts that are shrunk towards everybody's share."""
    ratings = genre_ratings(users=11)
    made = recommender(ratings, np.zeros((11, 24)), learned=False)
    found, bases = lists(made, range(11), 24)
    features = ratings.features.astype(float)
    share = features.mean(axis=0)
    assert set(bases) == {"features"}
    others = 0
    for user, rows in enumerate(found):
        mine = ratings.user == user
        had, value = features[ratings.item[mine]], ratings.value[mine].astype(float)
        scores = []
        for weight in (5.0, 1e-6):
            ridge = linear_model.Ridge(alpha=weight, fit_intercept=False)
            leaning = ridge.fit(had, value - value.mean()).coef_
            often = (had.sum(axis=0) + weight * share) / (len(had) + weight)
            scores.append(features @ (leaning / 0.1 + np.log(often / share)))
        left = sorted(set(range(24)) - set(ratings.item[mine].tolist()))
        shown = [scores[0][row.item] for row in rows]
        assert sorted(row.item for row in rows) == left
        assert shown == pytest.approx(sorted(shown, reverse=True), abs=1e-4)
        bare = [scores[1][row.item] for row in rows]
        others += bare != pytest.approx(sorted(bare, reverse=True), abs=1e-4)
    assert others > 2  # without shrinkage some lists are in another order
