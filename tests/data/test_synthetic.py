"""Made-up ratings: exact sizes, distinct pairs, and as much to learn as in MovieLens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bgtplanner.data import synthetic
from bgtplanner.data.ratings import Ratings
from bgtplanner.data.synthetic import demo_ratings, synthetic_ratings
from bgtplanner.errors import ConfigError


def check_sound(ratings: Ratings) -> None:
    pair = ratings.user.astype(np.int64) * ratings.n_items + ratings.item
    assert len(np.unique(pair)) == len(pair)
    assert (np.diff(ratings.user) >= 0).all()
    assert (np.diff(ratings.client) >= 0).all()
    assert ratings.item.min() >= 0
    assert ratings.item.max() < ratings.n_items
    assert set(np.rint(ratings.value * 5).astype(int).tolist()) <= {1, 2, 3, 4, 5}
    assert ratings.user.dtype == ratings.item.dtype == np.int32
    assert ratings.value.dtype == np.float32


@settings(max_examples=60)
@given(st.integers(1, 30), st.integers(1, 60), st.integers(1, 4), st.data())
def test_any_size(clients: int, items: int, users_per_client: int, data: st.DataObject) -> None:
    per_client = data.draw(st.integers(users_per_client, items * users_per_client))
    ratings = synthetic_ratings(
        clients=clients, items=items, ratings_per_client=per_client,
        users_per_client=users_per_client, dim=data.draw(st.integers(0, 5)),
        seed=data.draw(st.integers(0, 2**32)),
    )  # fmt: skip
    assert len(ratings) == clients * per_client
    assert (ratings.n_clients, ratings.n_items) == (clients, items)
    assert ratings.n_users == clients * users_per_client
    assert np.bincount(ratings.user, minlength=ratings.n_users).min() >= 1
    check_sound(ratings)


def test_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who races together changes nothing."""
    shape = {"clients": 40, "items": 200, "ratings_per_client": 20}
    whole = synthetic_ratings(**shape)  # type: ignore[arg-type]
    monkeypatch.setattr(synthetic, "_RACED", 64)
    assert np.array_equal(synthetic_ratings(**shape).item, whole.item)  # type: ignore[arg-type]


def test_the_demo() -> None:
    """Always the same people, with a catalogue that people can read."""
    demo = demo_ratings()
    assert repr(demo) == "Ratings(demo: 15000 ratings, 300 users, 300 items, 300 clients)"
    assert np.array_equal(demo.value, demo_ratings().value)
    films = demo.catalogue
    assert films is not None
    assert films.titles is not None
    assert len(set(films.titles.tolist())) == 300
    assert films.names[:2] == ("genre: Comedy", "genre: Thriller")
    assert (films.features.sum(axis=1) == 0).mean() < 0.05
    check_sound(demo)


@pytest.mark.parametrize(
    "bad", [{"ratings_per_client": 501}, {"ratings_per_client": 3, "users_per_client": 4}]
)
def test_bad_arguments(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        synthetic_ratings(**bad)


def test_a_catalogue_changes_no_rating() -> None:
    shape: dict[str, Any] = {"clients": 40, "items": 400, "ratings_per_client": 20, "dim": 2}
    plain = synthetic_ratings(**shape)
    assert plain.features.shape == (400, 0)
    usual = {"noise": 0.87, "choosy": 0.0, "reluctance": 0.0, "genre_share": 0.5}
    with_items = synthetic_ratings(**shape, **usual, catalogue=True)
    for name in ("user", "item", "value", "client_of_user", "item_labels"):
        assert np.array_equal(getattr(plain, name), getattr(with_items, name))
    assert plain.catalogue is None
    made = with_items.catalogue
    assert made is not None
    assert made.titles is not None
    genres = ("Comedy", "Thriller", "Romance", "Science Fiction")
    assert made.names == tuple(f"genre: {name}" for name in genres)
    assert len(np.unique(made.titles)) == 400
    assert 0.2 < made.features.mean() < 0.35
    assert not (made.features[:, 0] * made.features[:, 1]).any(), "high and low on one factor"
    other = synthetic_ratings(**shape, catalogue=True, seed=1).catalogue
    assert other is not None
    assert not np.array_equal(other.features, made.features)


@pytest.mark.parametrize("items", [60, 600])
def test_choosy_users_pick_what_suits_them(items: int) -> None:
    """Each picks items that lie on one side of the hidden factor; which side differs by user."""
    shape: dict[str, Any] = {"clients": 400, "items": items, "ratings_per_client": 40, "dim": 1}
    apart = []
    for how in ({}, {"choosy": 3.0}, {"choosy": 3.0, "reluctance": 4.0}):
        ratings = synthetic_ratings(**shape, **how, catalogue=True)
        assert np.unique(ratings.user.astype(np.int64) * items + ratings.item).size == 400 * 40
        high, low = (np.bincount(ratings.user, has) for has in ratings.features[ratings.item].T)
        apart.append(float((np.abs(high - low) / np.maximum(high + low, 1)).mean()))
    assert apart[1] > 1.3 * apart[0]
    assert apart[2] > 1.2 * apart[1]
    easy = synthetic_ratings(**shape, choosy=3.0, reluctance=0.0).item
    assert np.array_equal(synthetic_ratings(**shape, choosy=3.0).item, easy)
