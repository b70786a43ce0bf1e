"""Why an item is on a list, in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bgtplanner.published.reasons import Described, Explanation, plain_name, reasons_of

NAMES = ("genre: Sci-Fi", "genre: Horror", "year: 1990 to 1995", "title: words 7", "vector: 0")
FEATURES = np.array(
    [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 1]],
    dtype=np.float32,
)


def of(scale: tuple[float, float] = (0.0, 5.0), **why: Any) -> list[str | None]:
    """Return the reasons for all five items, for one user."""
    arrays: Any = {key: np.asarray(value, dtype=np.float32) for key, value in why.items()}
    about = Described(FEATURES, NAMES, *scale)
    (found,) = reasons_of(about, Explanation(**arrays), np.arange(5)[None])
    return found


def test_nothing_is_invented() -> None:
    assert of() == [None] * 5
    assert of(popularity=np.zeros(5), leaning=[[0.01] * 5], tastes=[[0.1] * 5]) == [None] * 5
    assert of(popularity=[-5] * 5, quality=[-0.3] * 5, interest=[[-1] * 5]) == [None] * 5
    assert of(leaning=[[0.5, 0.5]]) == [None] * 5, "other features than the catalogue's"


def test_a_leaning_in_stars() -> None:
    found = of(leaning=[[0.12, 0, 0.06, 0.3, 0.3]])
    assert found[0] == "you rate Sci-Fi 0.6 stars above your mean"
    assert found[1] is None
    assert found[3] == "you rate items of the 1990s 0.3 stars above your mean"
    assert found[4] is None, "hashed words and embeddings have no name"
    found = of(leaning=[[0.12, 0, 0, 0, 0]], scale=(0.0, 100.0))
    assert found[0] == "you rate Sci-Fi 12 points above your mean"


def test_interest_against_others() -> None:
    """Item 2 is both: what Horror adds, Sci-Fi takes away."""
    found = of(interest=[np.log([0.2, 3.0, 1.6, 9, 9])])
    assert found[1] == "you pick Horror 3 times as often as others"
    assert found[2] is None
    assert found[3] == "you pick items of the 1990s 1.6 times as often as others"


def test_what_all_say() -> None:
    found = of(popularity=np.log([3, 3, 1, 1, 0.1]), quality=[0.1, 0, 0.1, 0, 0.1])
    well = "rated well by those who know it"
    assert found == ["liked by many", "popular", well, None, well]


def test_the_strongest_first_and_at_most_two() -> None:
    why = {"popularity": [1.0] * 5, "leaning": [[0.2, 0, 0, 0, 0]], "tastes": [[1.5] * 5]}
    found = of(**why)
    assert found[0] == "you rate Sci-Fi 1.0 stars above your mean; fits what people like you pick"
    # What moves an item up for everybody is no reason where something of one's own is.
    assert found[1] == "fits what people like you pick"
    # What is weak beside the strongest is not worth a word.
    assert of(leaning=[[0.03, 0, 0, 0, 0]], tastes=[[5.0] * 5])[0] == found[1]


def test_an_item_that_was_liked_stands_for_the_tastes() -> None:
    items, why = np.array([[0, 1]]), Explanation(tastes=np.array([[0.5, 0.5, 0, 0, 0]]))
    about, because = Described(FEATURES, NAMES, 0.0, 5.0), [["Stalker", None]]
    (found,) = reasons_of(about, why, items, because=because)
    assert found == ["because you liked Stalker", "fits what people like you pick"]


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("genre: Film-Noir: late", "Film-Noir: late"),
        ("year: 1990 to 1995", "items of the 1990s"),
        ("year: 1890 to 1960", "items of 1890 to 1960"),
        ("price: -1.5 to 2e+06", "items with price -1.5 to 2e+06"),
        ("genre: Back to Back", "Back to Back"),
    ],
)
def test_names(name: str, plain: str | None) -> None:
    assert plain_name(name) == plain
