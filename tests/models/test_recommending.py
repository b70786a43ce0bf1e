"""The best items that people have not rated, as metrics look at them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bgtplanner.data.ratings import Ratings
from bgtplanner.models import ranking
from bgtplanner.models.ranking import SEED, best_unrated
from explaining import genre_ratings


def lists(ratings: Ratings, scores: Any, users: Any, top: int) -> list[list[int]]:
    blocks = best_unrated(lambda some: np.asarray(scores)[some], ratings, np.asarray(users), top)
    return [[item for item in row if item >= 0] for block in blocks for row in block.tolist()]


def test_the_same_as_one_user_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the plain loop; ties are put in one public random order."""
    monkeypatch.setattr(ranking, "_FEWEST", 2)
    monkeypatch.setattr(ranking, "_AT_ONCE", 100)  # four users a block
    ratings = genre_ratings(users=11)
    scores = np.random.default_rng(0).integers(0, 6, size=(11, 24)).astype(float)
    scores[3, 5], scores[7, 2] = np.nan, np.inf
    turn = np.argsort(np.random.default_rng(SEED).permutation(24))
    users = [10, 0, 7, 3, 4, 1, 2, 9]
    for top in (4, 30):
        for user, found in zip(users, lists(ratings, scores, users, top), strict=True):
            rated = set(ratings.item[ratings.user == user].tolist())
            left = {item for item in range(24) if np.isfinite(scores[user, item])} - rated
            assert found == sorted(left, key=lambda item: (-scores[user, item], turn[item]))[:top]


def test_a_user_who_has_rated_everything_or_nearly_everything() -> None:
    user, item = [0] * 4 + [1] * 3 + [2] * 2, [0, 1, 2, 3, 0, 1, 2, 0, 1]
    ratings = Ratings.from_arrays(user, item, np.arange(9) % 5, scale=(0, 5))
    found = lists(ratings, np.arange(12.0).reshape(3, 4), [0, 1, 2], 3)
    assert found == [[], [3], [3, 2]]


def test_a_number_of_users_for_which_models_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "_FEWEST", 2)
    monkeypatch.setattr(ranking, "_AT_ONCE", 5 * 24)
    ratings, asked = genre_ratings(), []

    def rank(users: Any) -> Any:
        asked.append(len(users))
        return np.zeros((len(users), 24))

    list(best_unrated(rank, ratings, np.arange(12), 3))
    assert asked == [4, 4, 4]
