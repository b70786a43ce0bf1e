"""One client on its own computes what it computes among all."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest

from bgtplanner.data.ratings import Ratings
from bgtplanner.data.synthetic import synthetic_ratings
from bgtplanner.errors import ConfigError
from bgtplanner.federation.client import coordinates_of, flat_upload, upload_of
from bgtplanner.federation.parameters import round_parameters
from bgtplanner.federation.rounds import Federation, State
from bgtplanner.models.bias import Biases
from bgtplanner.models.interactions import Interactions, Shared
from bgtplanner.models.learner import Learner
from bgtplanner.models.optimizers import Server
from bgtplanner.models.tastes import Tastes
from bgtplanner.privacy.accountants import accountant_named


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
