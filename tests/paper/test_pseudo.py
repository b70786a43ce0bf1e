"""Pseudo items and their rows: distinct, never rated, even, and as large as the real ones."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bgtplanner.data.ratings import Ratings
from bgtplanner.models.interactions import Interactions
from bgtplanner.paper.pseudo import pseudo_items

N_USERS, N_ITEMS = 6, 10
# Items of users 0 to 5: all, all but one, few with gaps, the ends, one, none.
RATED = [list(range(10)), [0, 1, 2, 3, 4, 5, 6, 8, 9], [2, 5, 6], [0, 9], [4], []]
COUNT = sum(len(own) for own in RATED)
# These programs run once: most of the time would go into optimising them.
QUICK = {"xla_backend_optimization_level": 0}

items_of = jax.jit(pseudo_items, static_argnums=2, compiler_options=QUICK)


def some_edges(arrival: Any = None, clients: list[int] | None = None) -> Interactions:
    user = np.repeat(np.arange(N_USERS), [len(own) for own in RATED])
    item = np.concatenate([np.array(own, int) for own in RATED])
    ratings = Ratings.from_arrays(
        user,
        item,
        np.ones(COUNT),
        client=None if clients is None else np.array(clients)[user],
        users=range(N_USERS),
        items=range(N_ITEMS),
        scale=(0, 1),
    )
    return Interactions.of(ratings, None if arrival is None else np.array(arrival, np.int32))


def rated_by(interactions: Interactions, client: int) -> set[int]:
    """The items that a client knows a rating of, now."""
    of_client = np.asarray(interactions.client_of_user)[np.asarray(interactions.user)] == client
    known = np.asarray(interactions.present) > 0
    return set(np.asarray(interactions.item)[of_client & known].tolist())


def check(drawn: NDArray[np.int32], interactions: Interactions, number: int) -> None:
    assert drawn.shape == (interactions.n_clients, number)
    for client, row in enumerate(drawn.tolist()):
        unrated = set(range(N_ITEMS)) - rated_by(interactions, client)
        real = [item for item in row if item >= 0]
        assert len(real) == min(number, len(unrated))  # as many as asked for, if there are
        assert len(set(real)) == len(real)
        assert set(real) <= unrated
        assert row == real + [-1] * (number - len(real))  # the padding comes last


class TestItems:
    @settings(max_examples=60, deadline=None)
    @given(
        seed=st.integers(0, 2**31 - 1),
        number=st.sampled_from([4, 13]),
        arrival=st.lists(st.integers(0, 1), min_size=COUNT, max_size=COUNT),
        together=st.booleans(),
    )
    def test_distinct_unrated_and_as_many_as_there_are(
        self, seed: int, number: int, arrival: list[int], together: bool
    ) -> None:
        interactions = some_edges(arrival, [0, 1, 1, 2, 2, 3] if together else None)
        drawn = np.asarray(items_of(jax.random.key(seed), interactions, number))
        check(drawn, interactions, number)

    def test_every_unrated_item_is_as_likely_as_any_other(self) -> None:
        draws, number = 20_000, 3
        interactions = some_edges(clients=[0, 1, 2, 3, 3, 4])
        many = jax.vmap(partial(pseudo_items, interactions=interactions, number=number))
        many = jax.jit(many, compiler_options=QUICK)
        drawn = np.asarray(many(jax.random.split(jax.random.key(7), draws)))
        for client in (2, 3, 4):
            unrated = sorted(set(range(N_ITEMS)) - rated_by(interactions, client))
            counts = np.array([(drawn[:, client] == item).sum() for item in unrated])
            assert counts.sum() == draws * number
            expected = draws * number / len(unrated)
            statistic = ((counts - expected) ** 2 / expected).sum()
            assert statistic < scipy.stats.chi2.ppf(1 - 1e-4, len(unrated) - 1)
