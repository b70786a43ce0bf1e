"""Why an item is on a list, in words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bgtplanner.data.catalogue import plain_name
from bgtplanner.data.tables import Histories
from bgtplanner.published.ranking import Ranked
from bgtplanner.published.reasons import reasons_of

NAMES = ("genre: Sci-Fi", "genre: Horror", "year: 1990 to 1998", "title: words 7", "vector: 0")
FEATURES = np.array(
    [[1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 1]],
    dtype=np.float32,
)
SOMEBODY = Histories(np.array([0, 1]), np.array([0]), np.array([0.1]))


def of(scale: tuple[float, float] = (0.0, 5.0), **why: Any) -> list[str | None]:
    """Return the reasons for all five items, for one user."""
    arrays: Any = {key: np.asarray(value, dtype=np.float32) for key, value in why.items()}
    return said(scale=scale, **arrays)


def said(
    people: Histories = SOMEBODY, scale: Any = (0.0, 5.0), drawn: Any = None, **why: Any
) -> list[str | None]:
    """Return them of people whose history draws them to items, along axes that the items are."""
    model: Any = SimpleNamespace(
        features=FEATURES, names=NAMES, low=scale[0], high=scale[1], learned=True,
        titles=["Solaris", "Stalker", "Mirror", "Ran", "Ikiru"],
    )  # fmt: skip
    unused = np.zeros((1, 5), np.float32)
    ranked = Ranked(unused, unused, **why, because=drawn)
    (found,) = reasons_of(model, people, ranked, np.eye(5), np.arange(5)[None])
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
    assert found[3] == "you rate titles from the nineties 0.3 stars above your mean"
    assert found[4] is None, "hashed words and embeddings have no name"
    found = of(leaning=[[0.12, 0, 0, 0, 0]], scale=(0.0, 100.0))
    assert found[0] == "you rate Sci-Fi 12 points above your mean"


def test_interest_against_others() -> None:
    """Item 2 is both: what Horror adds, Sci-Fi takes away."""
    found = of(interest=[np.log([0.2, 3.0, 1.6, 9, 9])])
    assert found[1] == "you pick Horror 3 times as often as others"
    assert found[2] is None
    assert found[3] == "you pick titles from the nineties 1.6 times as often as others"


def test_what_all_say() -> None:
    found = of(popularity=np.log([3, 3, 1, 1, 0.1]), quality=[0.1, 0, 0.1, 0, 0.1])
    well = "rated well by those who know it"
    assert found == ["liked by many", "popular", well, None, well]


def test_the_strongest_alone() -> None:
    why = {"popularity": [1.0] * 5, "leaning": [[0.2, 0, 0, 0, 0]], "tastes": [[1.5] * 5]}
    found = of(**why)
    assert found[0] == "you rate Sci-Fi 1.0 stars above your mean"
    # What moves an item up for everybody is no reason where something of one's own is.
    assert found[1] == "fits what people like you pick"
    assert of(leaning=[[0.14, 0, 0, 0, 0]], tastes=[[1.5] * 5])[0] == found[1]


def test_the_same_is_not_said_twice() -> None:
    """What a feature adds, items of the history with that feature add."""
    people = Histories(np.array([0, 1]), np.array([0]), np.array([0.9]))
    interest = np.log([[3.0, 1, 1, 1, 1]])
    found = said(people, drawn=np.array([[0.6, 0, 0, 0, 0]]), interest=interest)
    assert found[0] == "because you rated Solaris high"
    found = said(people, drawn=np.array([[0.5, 0, 0, 0, 0]]), interest=interest)
    assert found[0] == "you pick Sci-Fi 3 times as often as others"


def test_who_has_no_history_is_told_so() -> None:
    nobody = Histories(np.zeros(2, np.int64), np.zeros(0, np.int64), np.zeros(0))
    found = said(nobody, popularity=np.log([3, 1, 1, 1, 1]))
    known = "nothing of yours is known yet"
    assert found == [f"popular; {known}", *[known] * 4]


def test_an_item_of_the_history_that_carries_another() -> None:
    """It was rated high, or picked without a rating, and moved the other one up the most."""
    people = Histories(np.array([0, 3]), np.array([0, 1, 2]), np.array([0.9, 0.8, 0.2]))
    drawn = np.array([[0, 0, 0, 0.3, 0.01], [0, 0, 0, 0.2, 0.04], [0, 0, 0, 0.4, 0.6]])
    found = said(people, drawn=drawn)
    assert found[3] == "because you rated Solaris high", "not Mirror, which was rated low"
    assert found[4] is None, "what was rated high adds too little"
    drawn[2, 3] = -0.4
    assert said(people, drawn=drawn)[3] is None, "all together adds too little"
    people = people._replace(value=np.array([0.9, np.nan, 0.2]))
    drawn[1, 3] = 0.9
    assert said(people, drawn=drawn)[3] == "because you picked Stalker"
    found = said(people, drawn=drawn, tastes=np.array([[0.5, 0.5, 0, 0, 0.1]]))
    assert found[0] == "fits what people like you pick"
    assert found[3] == "because you picked Stalker"


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("genre: Film-Noir: late", "Film-Noir: late"),
        ("year: 1990 to 1994", "titles from the early nineties"),
        ("Release Date: 1994 to 1996", "titles from the mid-nineties"),
        ("year: 1997 to 1998", "titles from the late nineties"),
        ("year: 1960 to 1970", "titles from the sixties"),
        ("year: 1984 to 1995.2", "titles from 1984 to 1995"),
        ("year: 2010 to 2015", "titles from the early 2010s"),
        ("pages: 1990 to 1995", "items with pages 1990 to 1995"),
        ("year: 1e+09 to 1e+99", "items with year 1e+09 to 1e+99"),
        ("price: -1.5 to 2e+06", "items with price -1.5 to 2e+06"),
        ("genre: Back to Back", "Back to Back"),
    ],
)
def test_names(name: str, plain: str | None) -> None:
    assert plain_name(name) == plain
