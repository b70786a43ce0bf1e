"""Which items are recommended to whom, why, and what happens where nothing was learned."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bgtplanner.data.ratings import Ratings
from bgtplanner.errors import NothingLearnedError
from bgtplanner.models import ranking
from bgtplanner.models.ranking import (
    SEED,
    Basis,
    Recommender,
    best_unrated,
    note_of,
)
from bgtplanner.published.model import Recommended
from bgtplanner.published.reasons import Explanation
from explaining import genre_ratings


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
    """Against the plain loop; ties are put in one public random order."""
    monkeypatch.setattr(ranking, "_FEWEST", 2)
    monkeypatch.setattr(ranking, "_AT_ONCE", 100)  # four users a block
    ratings = genre_ratings(users=11)
    scores = np.random.default_rng(0).integers(0, 6, size=(11, 24)).astype(float)
    turn = np.argsort(np.random.default_rng(SEED).permutation(24))
    made = recommender(ratings, scores)
    users = [10, 0, 7, 3, 4, 1, 2, 9]
    assert [len(block.users) for block in made.blocks(users, 4)] == [4, 4]
    found, bases = lists(made, users, 4)
    for user, rows in zip(users, found, strict=True):
        rated = set(ratings.item[ratings.user == user].tolist())
        left = sorted(set(range(24)) - rated, key=lambda item: (-scores[user, item], turn[item]))
        expected = [
            (f"user {user:02d}", n + 1, item, f"The {item}th", (user + item) % 7 / 7 * 5, None)
            for n, item in enumerate(left[:4])
        ]
        assert [row[:4] for row in rows] == [row[:4] for row in expected]
        assert [row[4] for row in rows] == pytest.approx([row[4] for row in expected])
    assert set(bases) == {"model"}
    whole, _ = lists(made, users, 30)
    assert [len(rows) for rows in whole] == [24 - (ratings.user == user).sum() for user in users]


def test_a_user_who_has_rated_everything_or_nearly_everything() -> None:
    """Of one item that is left there is nothing to rank; two that are alike are no ranking."""
    user, item = [0] * 4 + [1] * 3 + [2] * 2, [0, 1, 2, 3, 0, 1, 2, 0, 1]
    ratings = Ratings.from_arrays(user, item, np.arange(9) % 5, scale=(0, 5))
    found, bases = lists(recommender(ratings, np.zeros((3, 4))), [0, 1, 2], 3)
    assert [[row.item for row in rows] for rows in found] == [[], [3], []]
    assert bases == ["model", "model", "nothing"]


def test_data_without_ratings_have_no_predicted_ones() -> None:
    ratings = Ratings.from_arrays([0, 1], [0, 1], [1, 1], items=range(4), scale=(0, 1))
    (rows, _), _ = lists(recommender(ratings, [range(4)] * 2), [0, 1], 2)
    assert [row.predicted for row in rows] == [None, None]


def test_without_anything_learned_there_is_no_list() -> None:
    random = np.random.default_rng(0).random((12, 24))  # as a model starts
    found, bases = lists(recommender(genre_ratings(), random, learned=False), range(12), 3)
    assert found == [[]] * 12
    with pytest.raises(NothingLearnedError, match="larger --epsilon"):
        note_of(Counter(bases), learned=False)


@pytest.mark.parametrize("scores", [np.nan, 0.5])
def test_what_tells_no_item_from_another_is_no_ranking(scores: float) -> None:
    found, bases = lists(recommender(genre_ratings(), np.full((12, 24), scores)), [0], 3)
    assert (found, bases) == ([[]], ["nothing"])


def test_a_model_that_has_leanings_ranks_by_them() -> None:
    """But for a user without a rating, who has none."""
    ratings = genre_ratings()
    scores = np.random.default_rng(0).random((12, 24))
    scores[5] = 0.0
    why = Explanation(interest=np.ones((12, 3)))  # type: ignore[arg-type]
    made = recommender(ratings, scores, learned=False, why=why)
    found, bases = lists(made, range(12), 24)
    assert bases == ["features"] * 5 + ["nothing"] + ["features"] * 6
    assert found[5] == []
    assert [scores[2, row.item] for row in found[2]] == sorted(
        (scores[2, row.item] for row in found[2]), reverse=True
    )
    assert "as often as chance would" in (found[2][0].reason or "")
    note = note_of(Counter(bases), learned=False)
    assert note is not None
    assert note.startswith("Nothing was learned from others yet")
    assert "(11 of 12 users), no list" in note
    assert "(1 of 12 users)" in note


def test_a_number_of_users_for_which_models_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "_FEWEST", 2)
    monkeypatch.setattr(ranking, "_AT_ONCE", 5 * 24)
    ratings, asked = genre_ratings(), []

    def rank(users: Any) -> Any:
        asked.append(len(users))
        return np.zeros((len(users), 24))

    list(best_unrated(rank, ratings, np.arange(12), 3))
    assert asked == [4, 4, 4]
