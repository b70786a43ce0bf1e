"""One client's part of a round: from the server's parameters and its own ratings to its upload.

A simulation does this for all clients at once (:mod:`bgtplanner.federation.rounds`), a real client
does it for itself alone; both use the same model and the same coordinates.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from bgtplanner.data.ratings import Ratings
from bgtplanner.errors import MessageError
from bgtplanner.federation.compilation import padding_of
from bgtplanner.models.interactions import Interactions, Shared
from bgtplanner.models.learner import Learner, Local

_NEVER = np.iinfo(np.int32).max


def flat_upload(rows: Array, dense: Array, interactions: Interactions) -> Array:
    """Return an upload in fixed, public coordinates: one row per item, then the dense part."""
    items = jnp.zeros((interactions.n_items, rows.shape[1])).at[interactions.pair_item].add(rows)
    return jnp.concatenate([items.ravel(), dense])


def as_shared(vector: Array, n_items: int, width: int) -> Shared:
    """Return the two parts of a vector from :func:`flat_upload`, or of a sum of such vectors."""
    items = vector[: n_items * width].reshape(n_items, width)
    return Shared(items, vector[n_items * width :])


def coordinates_of(model: Learner, shared: Shared) -> int:
    """Return the number of coordinates of an upload: public, and the same for every client."""
    items = np.arange(shared.items.shape[0])
    ratings = Ratings.from_arrays([0], [0], [0.0], items=items, scale=(0.0, 1.0))
    local = nothing_kept(model, shared, ratings)
    flat, _ = jax.eval_shape(partial(_train, model), shared, local, _padded(ratings))
    return int(flat.shape[0])


def first_parameters(
    model: Learner, key: Array, n_users: int, features: Array
) -> tuple[Shared, Local]:
    """Return the parameters before the first round, with public features of the items if any."""
    first = model.initial(key, n_users, features.shape[0])
    return model.with_features(*first, features) if features.shape[1] else first


def features_in(model: Learner, items: Array) -> Array:
    """Return the features of the items among the shared parameters, ``[n_items, n_features]``.

    Learners put them behind their own columns; most have none.
    """
    first = jax.eval_shape(lambda: model.initial(jax.random.key(0), 1, items.shape[0])[0])
    return items[:, first.items.shape[1] :]


def with_features(model: Learner, sent: Shared, features: Array) -> Shared:
    """Return parameters without features, as they are sent, with the features behind them."""
    first = first_parameters(model, jax.random.key(0), 1, features)[0]
    own = first.items.shape[1] - features_in(model, first.items).shape[1]
    if (sent.items.shape, sent.dense.shape) != ((len(features), own), first.dense.shape):
        raise MessageError("parameters of another shape than the model's")
    return sent._replace(items=jnp.concatenate([sent.items, first.items[:, own:]], axis=1))


def without_features(model: Learner, shared: Shared) -> Shared:
    """Return the parameters that are sent: clients have the features already."""
    own = shared.items.shape[1] - features_in(model, shared.items).shape[1]
    return shared._replace(items=shared.items[:, :own])


def nothing_kept(
    model: Learner, shared: Shared, ratings: Ratings, key: Array | None = None
) -> Local:
    """Return what a client keeps before its first round; random parts of it come from the key."""
    features, key = features_in(model, shared.items), jax.random.key(0) if key is None else key
    return first_parameters(model, key, ratings.n_users, features)[1]


def train_client(
    model: Learner, shared: Shared, ratings: Ratings, local: Local
) -> tuple[NDArray[np.float64], Local]:
    """Return one client's flat upload, and what the client keeps from now on.

    The upload is unprotected: it must pass the randomizer before it leaves the client.
    """
    vector, kept = _train(model, shared, local, _padded(ratings))
    return np.asarray(vector, dtype=np.float64), kept


def upload_of(model: Learner, shared: Shared, ratings: Ratings) -> NDArray[np.float64]:
    """Return the flat, unprotected upload of a client that has kept nothing so far."""
    return train_client(model, shared, ratings, nothing_kept(model, shared, ratings))[0]


@partial(jax.jit, static_argnums=0)
def _train(
    model: Learner, shared: Shared, local: Local, interactions: Interactions
) -> tuple[Array, Local]:
    """Return the flat upload and what is kept: the model fits that first, then trains."""
    trained = model.train(shared, model.personalise(shared, local, interactions), interactions)
    return flat_upload(trained.upload.rows, trained.upload.dense[0], interactions), trained.local


def _padded(ratings: Ratings) -> Interactions:
    """Return the client's interactions, padded to a power of two with ratings that never arrive.

    So few programs are compiled, however many clients share a process, and one more rating
    rarely takes a new one.
    """
    missing, last = (0, padding_of(len(ratings))), ratings.n_users - 1
    padded = replace(
        ratings,
        user=np.pad(ratings.user, missing, constant_values=last),  # they stay in order
        item=np.pad(ratings.item, missing),
        value=np.pad(ratings.value, missing),
        time=None if ratings.time is None else np.pad(ratings.time, missing),
    )
    arrival = np.pad(np.zeros(len(ratings), np.int32), missing, constant_values=_NEVER)
    return Interactions.of(padded, arrival)
