"""One client on its own computes what it computes among all."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from bgtplanner.data.catalogue import Catalogue
from bgtplanner.data.ratings import Ratings
from bgtplanner.data.synthetic import synthetic_ratings
from bgtplanner.errors import ConfigError
from bgtplanner.federation.chunks import Heldout
from bgtplanner.federation.client import (
    coordinates_of,
    flat_upload,
    train_client,
    upload_of,
)
from bgtplanner.federation.parameters import round_parameters
from bgtplanner.federation.rounds import Federation, State
from bgtplanner.models.bias import Biases
from bgtplanner.models.factorization import Factorization
from bgtplanner.models.fedgnn import FedGNN
from bgtplanner.models.interactions import Interactions, Shared
from bgtplanner.models.learner import Learner
from bgtplanner.models.optimizers import Server
from bgtplanner.models.tastes import Tastes
from bgtplanner.privacy.accountants import accountant_named
from one_round import one_round


def alone(ratings: Ratings, client: int) -> Ratings:
    """One client's ratings, as it has them itself."""
    users = np.flatnonzero(ratings.client_of_user == client)
    own = ratings.take(ratings.client == client)
    return replace(
        own,
        user=np.searchsorted(users, own.user).astype(np.int32),
        client_of_user=np.zeros(len(users), dtype=np.int32),
        user_labels=ratings.user_labels[users],
    )


def with_features(ratings: Ratings) -> Ratings:
    """The same with a catalogue: every second and every third item have something in common."""
    numbers = np.arange(ratings.n_items)
    features = np.stack([numbers % 2 == 0, numbers % 3 == 0], axis=1).astype(np.float32)
    catalogue = Catalogue(
        labels=numbers.astype(str), titles=None, features=features, names=("even", "third")
    )
    return replace(ratings, catalogue=catalogue)


@pytest.mark.parametrize("users", [1, 3])
@pytest.mark.parametrize(
    ("model", "width", "coordinates"),
    [(Biases(), 3, 40), (Tastes(axes=2, taste_share=0.4), 9, 80)],
)
def test_alone_as_among_all(users: int, model: Learner, width: int, coordinates: int) -> None:
    ratings = synthetic_ratings(
        clients=3, items=20, ratings_per_client=24 if users > 1 else 12, users_per_client=users
    )
    interactions = Interactions.of(ratings)
    values = np.random.default_rng(0).normal(0.0, 0.1, (20, width))
    shared = Shared(jax.numpy.asarray(values, dtype=np.float32), jax.numpy.zeros(0))
    solved = jax.jit(model.personalise)(shared, None, interactions)
    gradients = jax.jit(model.train)(shared, solved, interactions)
    assert coordinates_of(model, shared) == coordinates
    for client in range(3):
        own = alone(ratings, client)
        mask = (interactions.pair_client == client)[:, None]
        nothing = gradients.upload.dense[client]
        among_all = flat_upload(gradients.upload.rows * mask, nothing, interactions)
        np.testing.assert_allclose(upload_of(model, shared, own), among_all, atol=1e-5)


def test_a_server_learns_only_from_uploads_that_are_protected() -> None:
    accountant = accountant_named("gaussian/gdp")
    server = Server(optimizer="posterior")
    federation = Federation(model=Biases(), server=server)
    shared = Biases().initial(jax.random.key(0), 1, 10)[0]
    state = State(shared, (), Biases().server_initial(shared, server))
    everybody, classes = np.ones(3, dtype=bool), np.zeros(3, dtype=np.int32)
    terms = round_parameters(accountant, "local", 0.1, np.array([1.0]), everybody, classes)
    with pytest.raises(ConfigError, match="of unit client"):
        federation.received(state, jax.numpy.zeros(20), terms)


@pytest.mark.parametrize("users", [1, 2])
@pytest.mark.parametrize(
    "model",
    [Biases(), Factorization(dim=3), FedGNN(dim=2), Tastes(axes=3, taste_share=0.4)],
    ids=str,
)
def test_round_after_round_a_client_uploads_what_the_simulation_has(
    model: Learner, users: int
) -> None:
    """It fits what it keeps before it trains, so nothing of earlier rounds is missing."""
    ratings = synthetic_ratings(
        clients=4, items=20, ratings_per_client=16, users_per_client=users, seed=2
    )
    ratings = with_features(ratings)  # those who do not use them are not bothered by them
    server = Server(
        optimizer="posterior" if isinstance(model, Biases) else "sgd",
        aggregation="clients",
        learning_rate=2.0,
        item_prior=0.0,
    )
    federation, interactions = Federation(model=model, server=server), Interactions.of(ratings)
    state = federation.initial(jax.random.key(1), interactions)
    own = [alone(ratings, client) for client in range(4)]
    members = [np.flatnonzero(ratings.client_of_user == client) for client in range(4)]
    kept = [jax.tree.map(lambda part, of=of: part[of], state.local) for of in members]
    nobody = Heldout(*(jax.numpy.zeros(1, dtype=kind) for kind in (int, int, float)))
    play = jax.jit(partial(one_round, federation))

    @jax.jit
    def train(shared: Shared, local: Any) -> Any:
        return model.train(shared, model.personalise(shared, local, interactions), interactions)

    for index in range(4):
        trained = train(state.shared, state.local)
        for client in range(4):
            mask = (interactions.pair_client == client)[:, None]
            among_all = flat_upload(
                trained.upload.rows * mask, trained.upload.dense[client], interactions
            )
            upload, kept[client] = train_client(model, state.shared, own[client], kept[client])
            largest = float(np.abs(among_all).max())
            assert largest > 1e-3
            np.testing.assert_allclose(upload, among_all, rtol=0, atol=2e-6 * largest)
        state, _, _ = play(state, interactions, nobody, jax.numpy.int32(index), jax.random.key(2))
