"""Six clients, five items: what tests of protection share."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from bgtplanner.data.ratings import Ratings
from bgtplanner.data.split import deal_users
from bgtplanner.federation.parameters import RoundParameters
from bgtplanner.models.interactions import Interactions, Upload

N_CLIENTS, WIDTH, DENSE = 6, 2, 3
MECHANISMS = ["gaussian", "laplace"]
QUICK = {"xla_backend_optimization_level": 0}


def some_interactions(n_items: int = 5, clients: int | None = None) -> Interactions:
    """Six users, the last without a rating; one rating in three has not arrived."""
    user = [0, 0, 0, 1, 2, 2, 2, 2, 3, 3, 4, 4]
    item = [0, 1, 2, 1, 0, 2, 3, 1, 1, 3, 0, 2]
    ratings = Ratings.from_arrays(
        user, item, np.ones(12), users=range(6), items=range(n_items), scale=(0, 1)
    )
    arrival = np.array([0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 1, 0], np.int32)
    if clients is not None:
        ratings = deal_users(ratings, clients, seed=2)
    return Interactions.of(ratings, arrival)


def some_upload(interactions: Interactions, seed: int = 1, size: float = 1.0) -> Upload:
    """As a model gives it: nothing in rows of pairs that nothing is known of."""
    generator = np.random.default_rng(seed)
    rows = generator.normal(0, size, (len(interactions.pair_item), WIDTH))
    known = np.isin(
        np.arange(len(rows)), np.asarray(interactions.pair)[np.asarray(interactions.present) > 0]
    )
    dense = generator.normal(0, size, (interactions.n_clients, DENSE))
    return Upload(jnp.asarray(rows * known[:, None], jnp.float32), jnp.asarray(dense, jnp.float32))


def nothing(interactions: Interactions) -> Upload:
    rows = jnp.zeros((len(interactions.pair_item), WIDTH))
    return Upload(rows, jnp.zeros((interactions.n_clients, DENSE)))


def flat(released: Any) -> Any:
    """The mean that was released, as one array."""
    gradient = released.aggregate.gradient
    return np.concatenate([np.asarray(part, float).ravel() for part in gradient])


def some_terms(
    clip: Any = 0.5,
    scale: Any = 0.0,
    granted: Any = None,
    classes: Any = None,
    clients: int = N_CLIENTS,
) -> RoundParameters:
    return RoundParameters(
        granted=jnp.asarray(np.ones(clients) if granted is None else granted, jnp.float32),
        clip=jnp.atleast_1d(jnp.asarray(clip, jnp.float32)),
        scale=jnp.atleast_1d(jnp.asarray(scale, jnp.float32)),
        class_of_client=jnp.asarray(np.zeros(clients) if classes is None else classes, jnp.int32),
    )
