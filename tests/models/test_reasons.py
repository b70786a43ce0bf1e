"""Why an item is recommended: only what moved it up, the strongest first, in plain words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bgtplanner.data.catalogue import Catalogue
from bgtplanner.data.ratings import Ratings
from bgtplanner.models import reasons
from bgtplanner.models.learner import Explanation
from bgtplanner.models.reasons import Reasons, plain_name

NAMES = ("genre: Sci-Fi", "genre: Horror", "year: 1990 to 1995", "title: words 7", "vector: 0")
FEATURES = np.array(
    [
        [1, 0, 0, 0, 0],
        [0, 1, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 0, 1, 1],
    ],
    dtype=np.float32,
)


def of(
    names: tuple[str, ...] = NAMES, scale: tuple[float, float] = (0.0, 5.0), **why: Any
) -> list[str | None]:
    """The reasons for all five items, for one user."""
    ratings = Ratings.from_arrays([1], [0], [scale[1]], items=range(5), scale=scale)
    catalogue = Catalogue(
        labels=np.arange(5).astype(str), titles=None, features=FEATURES, names=names
    )
    ratings = replace(ratings, catalogue=catalogue)
    arrays: Any = {key: np.asarray(value, dtype=np.float32) for key, value in why.items()}
    (found,) = Reasons(ratings).of(Explanation(**arrays), np.arange(5)[None])
    return found


def test_nothing_is_invented() -> None:
    assert of() == [None] * 5
    assert of(popularity=np.zeros(5), leaning=[[0.01] * 5], tastes=[[0.1] * 5]) == [None] * 5
    assert of(popularity=[-5] * 5, quality=[-0.3] * 5, interest=[[-1] * 5]) == [None] * 5


def test_a_leaning_in_stars() -> None:
    found = of(leaning=[[0.12, 0, 0.06, 0.3, 0.3]])
    assert found[0] == "you rate Sci-Fi 0.6 stars above your mean"
    assert found[1] is None
    assert found[3] == "you rate items of 1990 to 1995 0.3 stars above your mean"
    assert found[4] is None, "hashed words and embeddings have no name"
    found = of(leaning=[[0.12, 0, 0, 0, 0]], scale=(0.0, 100.0))
    assert found[0] == "you rate Sci-Fi 12 points above your mean"


def test_interest_against_others() -> None:
    found = of(interest=[np.log([1.2, 3.0, 1.6, 9, 9])])
    assert found[0] is None, "hardly more often"
    assert found[1] == "you pick Horror 3 times as often as others"
    assert found[3] == "you pick items of 1990 to 1995 1.6 times as often as others"
    assert (
        of(interest=[[9.0, 0, 0, 0, 0]])[0]
        == "you pick Sci-Fi more than 20 times as often as others"
    )


def test_a_feature_that_is_never_picked() -> None:
    found = of(interest=[[-np.inf, np.inf, np.nan, 0, 0]])
    assert found[1] == "you pick Horror more than 20 times as often as others"
    assert found[2] is None


def test_what_all_say() -> None:
    found = of(popularity=np.log([3, 3, 1, 1, 0.1]), quality=[0.1, 0, 0.1, 0, 0.1])
    assert found == [
        "liked by many",
        "popular",
        "rated well by those who know it",
        None,
        "rated well by those who know it",
    ]


def test_the_strongest_first_and_at_most_two() -> None:
    why = {"popularity": [1.0] * 5, "leaning": [[0.2, 0, 0, 0, 0]], "tastes": [[1.5] * 5]}
    found = of(**why)
    assert found[0] == "you rate Sci-Fi 1.0 stars above your mean; fits what people like you pick"
    assert found[1] == "fits what people like you pick; popular"
    # What is weak beside the strongest is not worth a word.
    assert of(tastes=[[5.0] * 5], popularity=[1.0] * 5)[0] == "fits what people like you pick"


def test_two_clauses_about_one_feature() -> None:
    found = of(leaning=[[0.12, 0, 0, 0, 0]], interest=[np.log([2.9, 1, 1, 1, 1])])
    assert found[0] == (
        "you rate Sci-Fi 0.6 stars above your mean and pick it 2.9 times as often as others"
    )


def test_a_feature_that_others_outweigh_moved_nothing_up() -> None:
    """Item 2 is both: what Sci-Fi adds, Horror takes away."""
    found = of(interest=[np.log([4.0, 0.2, 1, 1, 1])])
    assert found[0] == "you pick Sci-Fi 4 times as often as others"
    assert found[2] is None


def test_a_learner_with_other_features_than_the_catalogue_names_none() -> None:
    assert of(leaning=[[0.5, 0.5]]) == [None] * 5


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("genre: Drama", "Drama"),
        ("Drama", "Drama"),
        ("is_new", "is new"),
        ("genre: Film-Noir: late", "Film-Noir: late"),
        ("year: 1990 to 1995", "items of 1990 to 1995"),
        ("price: -1.5 to 2e+06", "items with price -1.5 to 2e+06"),
        ("genre: Back to Back", "Back to Back"),
        ("text: words 255", None),
        ("embedding: 12", None),
    ],
)
def test_names(name: str, plain: str | None) -> None:
    assert plain_name(name) == plain


def test_many_users_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    ratings = Ratings.from_arrays([1], [0], [5.0], items=range(5), scale=(0, 5))
    catalogue = Catalogue(
        labels=np.arange(5).astype(str), titles=None, features=FEATURES, names=NAMES
    )
    ratings = replace(ratings, catalogue=catalogue)
    generator = np.random.default_rng(0)
    why: Any = Explanation(
        popularity=generator.normal(size=5),  # type: ignore[arg-type]
        interest=generator.normal(size=(7, 5)),  # type: ignore[arg-type]
        tastes=generator.normal(size=(7, 5)),  # type: ignore[arg-type]
    )
    items = generator.permuted(np.tile(np.arange(5), (7, 1)), axis=1)
    whole = Reasons(ratings).of(why, items)
    monkeypatch.setattr(reasons, "_AT_ONCE", 60)
    assert Reasons(ratings).of(why, items) == whole
    assert any(reason for rows in whole for reason in rows)
