"""Blocks and chunks change the order of sums, and nothing else: compared with plain sums."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bgtplanner.data.catalogue import Catalogue
from bgtplanner.data.ratings import Ratings
from bgtplanner.data.split import deal_users
from bgtplanner.federation.chunks import Heldout
from bgtplanner.federation.parameters import RoundParameters
from bgtplanner.federation.protection import Protection
from bgtplanner.federation.rounds import Federation, State
from bgtplanner.models.bias import Biases
from bgtplanner.models.factorization import Factorization
from bgtplanner.models.fedgnn import FedGNN
from bgtplanner.models.interactions import Interactions, laid_out
from bgtplanner.models.optimizers import Server
from bgtplanner.models.tastes import Tastes
from bgtplanner.privacy.privunit import PRIVUNIT
from one_round import one_round
from small_federation import QUICK

USERS, ITEMS = 40, 30
POSTERIOR = Server(optimizer="posterior", aggregation="clients")
LEARNERS: dict[str, tuple[Any, Server]] = {
    "biases": (Biases(), POSTERIOR),
    "tastes": (Tastes(axes=1), POSTERIOR),
    "factorization": (Factorization(), Server()),
    "fedgnn": (FedGNN(heads=2), Server()),
}
SUMMED = Protection(mechanism="gaussian", trust="secagg")
LOCAL = Protection(mechanism="laplace", trust="local")


def some_ratings(clients: int | None) -> tuple[Ratings, np.ndarray[Any, Any]]:
    """Forty users, one of them without a rating and one with all items; half arrive later."""
    generator = np.random.default_rng(3)
    alike = (np.arange(USERS) % 3 == 0)[:, None] == (np.arange(ITEMS) % 3 == 0)
    chosen = generator.random((USERS, ITEMS)) < 0.2 + 0.4 * alike
    chosen[7], chosen[9] = False, True
    user, item = np.nonzero(chosen)
    value = np.clip(generator.normal(0.7, 0.2, len(user)), 0, 1)
    ratings = Ratings.from_arrays(
        user, item, value, users=range(USERS), items=range(ITEMS), scale=(0, 1)
    )
    features = (generator.random((ITEMS, 6)) < 0.4).astype(np.float32)
    names = tuple(f"feature {number}" for number in range(6))
    labels = np.array([str(label) for label in ratings.item_labels])
    ratings = ratings.with_catalogue(
        Catalogue(labels=labels, titles=None, features=features, names=names)
    )
    if clients is not None:
        ratings = deal_users(ratings, clients, seed=1)
    arrival = generator.integers(0, 2, len(ratings)).astype(np.int32)
    return ratings, arrival


class Play:
    """The rounds of one federation on the same ratings, in one layout or another."""

    def __init__(
        self, name: str, protection: Protection | None, clients: int | None = None
    ) -> None:
        model, server = LEARNERS[name]
        self.federation = Federation(model=model, server=server, protection=protection)
        self.ratings, self.arrival = some_ratings(clients)
        generator = np.random.default_rng(5)
        number = self.ratings.n_clients
        self.terms = None
        if protection is not None:
            self.terms = RoundParameters(
                granted=jnp.asarray(generator.random(number) < 0.8, jnp.float32),
                clip=jnp.array([0.1, 0.05]),
                scale=jnp.array([0.002, 0.002]),
                class_of_client=jnp.asarray(generator.integers(0, 2, number), jnp.int32),
                parameters=jnp.asarray(PRIVUNIT.parameters(np.array([3.0, 1.0])), jnp.float32),
            )
        self.asked = (
            generator.permutation(np.repeat(np.arange(USERS), 2)),
            generator.integers(0, ITEMS, 2 * USERS),
            generator.random(2 * USERS).astype(np.float32),
        )

    def rounds(self, interactions: Interactions, number: int = 3) -> tuple[State, Any, Any]:
        """Return the state and the outcome after some rounds and a rest."""
        federation, parts = self.federation, interactions.parts_of(self.asked[0])
        user, item, value = (jnp.asarray(part) for part in self.asked)
        heldout = Heldout(user, item, value, parts)
        play = jax.jit(partial(one_round, federation), compiler_options=QUICK)
        state, key = federation.initial(jax.random.key(0), interactions), jax.random.key(1)
        for index in range(number):
            shared = federation.model.asking(state.shared, {"tastes": 0.5})
            state = state._replace(shared=shared)
            at = jnp.int32(index)
            state, sent, outcome = play(state, interactions, heldout, at, key, self.terms)
        rest = jax.jit(partial(federation.served, sent=None), compiler_options=QUICK)
        last = {"interactions": interactions, "heldout": heldout, "index": jnp.int32(number)}
        return state, (sent.released, outcome), rest(state, **last)

    def same_in(self, block: int, chunk: int, *, accelerated: bool = False) -> None:
        """Compare a layout with plain sums."""
        found = laid_out(self.ratings, self.arrival, block=block, chunk=chunk)
        found = replace(found, accelerated=accelerated)
        assert (found.chunks > 3) == (chunk < 1000)
        plain = self.rounds(Interactions.of(self.ratings, self.arrival))
        other = self.rounds(found)
        for mine, theirs in zip(jax.tree.leaves(plain), jax.tree.leaves(other), strict=True):
            scale = float(np.abs(mine).max(initial=0.0))
            np.testing.assert_allclose(theirs, mine, rtol=2e-3, atol=2e-4 * scale + 1e-7)


@pytest.mark.parametrize("name", LEARNERS)
def test_chunks_of_clients_with_one_user_each(name: str) -> None:
    Play(name, SUMMED).same_in(block=8, chunk=96)


def test_what_is_laid_out_for_an_accelerator() -> None:
    Play("tastes", SUMMED).same_in(block=8, chunk=96, accelerated=True)


@pytest.mark.parametrize("name", ["tastes", "fedgnn"])
def test_chunks_of_clients_with_several_users(name: str) -> None:
    Play(name, LOCAL, clients=11).same_in(block=4, chunk=120)


@pytest.mark.parametrize("name", ["biases", "factorization"])
def test_blocks_alone_with_several_users(name: str) -> None:
    Play(name, SUMMED, clients=11).same_in(block=8, chunk=10_000)


@pytest.mark.parametrize("clients", [None, 11])
def test_every_rating_has_one_place(clients: int | None) -> None:
    ratings, arrival = some_ratings(clients)
    found = laid_out(ratings, arrival, block=8, chunk=96)
    real = np.asarray(found.arrival) < np.iinfo(np.int32).max
    assert real.sum() == len(ratings)
    for name in ("user", "item", "value"):
        np.testing.assert_array_equal(
            np.asarray(getattr(found, name))[real], getattr(ratings, name)
        )
    np.testing.assert_array_equal(np.asarray(found.arrival)[real], arrival)
    np.testing.assert_array_equal(found.user, np.repeat(found.user_of_block, 8))
    pair, owner = np.asarray(found.pair)[real], np.asarray(found.pair_client)
    np.testing.assert_array_equal(owner[pair], ratings.client)
    np.testing.assert_array_equal(np.asarray(found.pair_item)[pair], ratings.item)
    chunk_of_client = np.asarray(found.clients.place) // found.clients.members.shape[1]
    size = len(real) // found.chunks
    of_edges = np.flatnonzero(real) // size
    np.testing.assert_array_equal(chunk_of_client[ratings.client], of_edges)
