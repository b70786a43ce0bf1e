"""The rival in benchmarks/: it keeps the learners' contract, and solves what is published."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.rivals.als import Als, Cmf
from numpy.typing import NDArray

from bgtplanner.data.ratings import Ratings
from bgtplanner.models.interactions import Interactions, Shared
from bgtplanner.models.optimizers import Aggregate, Noise, Server
from bgtplanner.testing import LearnerContract

Float = NDArray[np.float64]
SERVER = Server(optimizer="posterior", aggregation="clients")
N_USERS, N_ITEMS, N_FEATURES = 30, 8, 3
# These programs run once: most of the time would go into optimising them.
QUICK = {"xla_backend_optimization_level": 0}
personalise = jax.jit(Als.personalise, static_argnums=0, compiler_options=QUICK)
train = jax.jit(Als.train, static_argnums=0, compiler_options=QUICK)
server_update = jax.jit(
    lambda model, shared, memory, mean, noise: model.server_update(
        shared, memory, mean, Noise(*noise, "l2"), SERVER
    ),
    static_argnums=0,
    compiler_options=QUICK,
)
CLEAR = (1e-9, 1.0, 30.0)  # standard deviation of the noise, clip, clients
FLAT = {"quality_spread": 1e3, "factor_spread": 1e3}  # no shrinkage


class TestRankingContract(LearnerContract):
    learner, optimizer = Als(task="ranking", dim=2), "posterior"


class TestPublishedContract(LearnerContract):
    learner, optimizer = Als(task="ratings", dim=2, gramian="items", adaptive=0.3), "posterior"


def some_ratings(several: bool = False, share: float = 0.6) -> Ratings:
    """Thirty users, in clients of one or three, of whom the last rated nothing."""
    generator = np.random.default_rng(1)
    rated = generator.random((N_USERS, N_ITEMS)) < share
    rated[-1] = False
    user, item = np.nonzero(rated)
    return Ratings.from_arrays(
        user,
        item,
        generator.integers(1, 6, len(user)),
        client=user // 3 if several else None,
        users=range(N_USERS),
        items=range(N_ITEMS),
        scale=(0, 5),
    )


def some_features() -> Float:
    return np.random.default_rng(3).integers(0, 2, (N_ITEMS, N_FEATURES)).astype(float)


def started(model: Als, ratings: Ratings | None = None) -> tuple[Shared, Any, Interactions]:
    """Return the parameters of a first round, with features if the model uses them."""
    interactions = Interactions.of(some_ratings() if ratings is None else ratings)
    shared, local = model.initial(jax.random.key(0), N_USERS, N_ITEMS)
    shared, local = model.with_features(shared, local, jnp.asarray(some_features(), jnp.float32))
    known = np.random.default_rng(4).normal(0, 0.3, (N_ITEMS, 1 + model.dim))
    shared = shared._replace(items=shared.items.at[:, 1 : 2 + model.dim].set(known))
    return shared, personalise(model, shared, local, interactions), interactions


def summed(upload: Any, interactions: Interactions) -> Shared:
    """Return the mean upload, as the server gets it without noise."""
    rows = jax.ops.segment_sum(upload.rows, interactions.pair_item, N_ITEMS)
    number = interactions.n_clients
    return Shared(rows / number, upload.dense.sum(0) / number)


def solved(model: Als, ratings: Ratings | None = None) -> tuple[Any, ...]:
    """Return what was sent out, what users solved for, and the items after a round."""
    shared, local, interactions = started(model, ratings)
    upload = train(model, shared, local, interactions).upload
    mean = Aggregate(summed(upload, interactions), jnp.ones(N_ITEMS))
    memory = model.server_initial(shared, SERVER)
    after, memory = server_update(model, shared, memory, mean, CLEAR)
    return shared, np.asarray(local, float), np.asarray(after.items, float), upload


def of_items(model: Als, shared: Shared) -> tuple[Float, Float, Float]:
    """Return quality, factors and features of the items, by their columns."""
    items = np.asarray(shared.items, float)
    return items[:, 1], items[:, 2 : 2 + model.dim], items[:, 2 + model.dim :]


def weights_of_users(upload: Any, interactions: Interactions) -> Float:
    """Return how much each user counts: the dense part's first entry adds them up."""
    users = np.asarray(interactions.sum_by_user(interactions.present)) > 0
    client = np.asarray(interactions.client_of_user)
    number = np.maximum(np.bincount(client, weights=users), 1.0)
    return (np.asarray(upload.dense, float)[:, 0] / number)[client] * users


class TestItems:
    """Without noise and shrinkage, what is published is exact alternating least squares."""

    @pytest.mark.parametrize(
        ("model", "ratings"),
        [
            (Cmf(dim=1, gramian="items", max_norm=1e3, **FLAT), some_ratings(several=True)),
            # One mean gramian is exact if all clients rate an item.
            (Als(dim=1, max_norm=1e3, **FLAT), some_ratings(share=1.0)),
        ],
        ids=["as published", "shared gramian"],
    )
    def test_ratings(self, model: Als, ratings: Ratings) -> None:
        shared, local, items, upload = solved(model, ratings)
        _, _, features = of_items(model, shared)
        weights = weights_of_users(upload, Interactions.of(ratings))
        for item in range(N_ITEMS):
            mine = ratings.item == item
            user = ratings.user[mine]
            public = local[user, 1 : local.shape[1] - 1] @ features[item]
            left = ratings.value[mine] - model.mean - local[user, 0] - public
            root = np.sqrt(weights[user])
            system = root[:, None] * np.column_stack([np.ones(len(user)), local[user, -1]])
            found = np.linalg.lstsq(system, root * left)[0]
            np.testing.assert_allclose(items[item, 1:3], found, rtol=0.02, atol=5e-3)
