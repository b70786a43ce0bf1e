"""One client's part of a round: from what the server sent and its own ratings to its upload.

A simulation does this for all clients at once (:mod:`bgtplanner.federation.rounds`), a real client
for itself alone; both with the same model, over the same coordinates.
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
from bgtplanner.federation.programs import padding_of
from bgtplanner.models.learner import Edges, Local, Model, Shared, client_gradients

__all__ = ["as_shared", "coordinates_of", "flat_upload", "predictions_of", "upload_of"]

_NEVER = np.iinfo(np.int32).max


def flat_upload(rows: Array, dense: Array, edges: Edges) -> Array:
    """An upload over its fixed, public coordinates: a row for every item, then the dense part."""
    items = jnp.zeros((edges.n_items, rows.shape[1])).at[edges.pair_item].add(rows)
    return jnp.concatenate([items.ravel(), dense])


def as_shared(vector: Array, n_items: int, width: int) -> Shared:
    """What :func:`flat_upload` made flat, or a sum of such, in its two parts again."""
    items = vector[: n_items * width].reshape(n_items, width)
    return Shared(items, vector[n_items * width :])


def coordinates_of(model: Model, shared: Shared) -> int:
    """How many coordinates an upload has: public, and the same for every client."""
    items = np.arange(shared.items.shape[0])
    edges = _edges_of(Ratings.from_arrays([0], [0], [0.0], items=items, scale=(0.0, 1.0)))
    flat = jax.eval_shape(lambda: _flat_upload_of(model, shared, edges))
    return int(flat.shape[0])


def upload_of(model: Model, shared: Shared, ratings: Ratings) -> NDArray[np.float64]:
    """What one client uploads, flat and unprotected: it must pass the guard before it leaves.

    Args:
        model: One whose clients keep nothing from round to round, such as `biases`.
        shared: The parameters that the server sent.
        ratings: The client's own, over the items of the catalogue.
    """
    vector = _flat_upload_of(model, shared, _edges_of(ratings))
    return np.asarray(vector, dtype=np.float64)


def predictions_of(model: Model, shared: Shared, ratings: Ratings) -> NDArray[np.float32]:
    """What one client makes of the model on its own: ``[n_users, n_items]``, from 0 to 1."""
    return np.asarray(_predictions(model, shared, _edges_of(ratings)))


@partial(jax.jit, static_argnums=0)
def _flat_upload_of(model: Model, shared: Shared, edges: Edges) -> Array:
    gradients = client_gradients(model, shared, _nothing_kept(model, edges), edges)
    return flat_upload(gradients.upload.rows, gradients.upload.dense[0], edges)


@partial(jax.jit, static_argnums=0)
def _predictions(model: Model, shared: Shared, edges: Edges) -> Array:
    nothing = _nothing_kept(model, edges)
    everybody = jnp.ones(edges.n_users, dtype=bool)
    local = model.update_local(nothing, nothing, shared, shared, edges, everybody)
    users = jnp.repeat(jnp.arange(edges.n_users), edges.n_items)
    items = jnp.tile(jnp.arange(edges.n_items), edges.n_users)
    predicted = model.predict(shared, local, edges, users, items)
    return predicted.reshape(edges.n_users, edges.n_items)


def _nothing_kept(model: Model, edges: Edges) -> Local:
    return model.initial(jax.random.key(0), edges.n_users, edges.n_items)[1]


def _edges_of(ratings: Ratings) -> Edges:
    """The client's edges, with as many that never come as make the number a power of two.

    However many clients are tried in one process, there are few programs, and one more rating
    compiles nothing anew.
    """
    missing = padding_of(len(ratings))
    padded = replace(
        ratings,
        user=np.pad(ratings.user, (0, missing)),
        item=np.pad(ratings.item, (0, missing)),
        value=np.pad(ratings.value, (0, missing)),
        time=None,
    )
    arrival = np.pad(np.zeros(len(ratings), np.int32), (0, missing), constant_values=_NEVER)
    return Edges.of(padded, arrival)
