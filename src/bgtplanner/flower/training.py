"""What a client computes with a model, and what it keeps of it from one round to the next.

All of it needs JAX, which is almost half of what a process takes to start. Flower starts one for
every message, and most messages of a sum have nothing to do with the model, so that
:mod:`bgtplanner.flower.client` imports this module only for those that have.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from bgtplanner.data.catalogue import Catalogue
from bgtplanner.data.ratings import Ratings
from bgtplanner.errors import MessageError
from bgtplanner.federation.client import (
    coordinates_of,
    first_parameters,
    nothing_kept,
    predictions_of,
    ranking_of,
    train_client,
    with_features,
)
from bgtplanner.flower.messages import SentCatalogue, SentModel, Setting
from bgtplanner.models.interactions import Shared
from bgtplanner.models.learner import MODELS, Learner, Local
from bgtplanner.models.recommending import Recommender, note_of, pairs_of

__all__ = ["Learner", "Local", "Recommender", "Shared", "coordinates_of", "local_of", "model_of"]
__all__ += ["note_of", "pairs_of", "recommender_of", "train"]


def model_of(
    sent: SentModel, settings: Mapping[str, Setting], catalogue: SentCatalogue
) -> tuple[Learner, Shared]:
    """Return a model that was sent, with the features of its catalogue.

    Args:
        sent: The model; the client's policy names it.
        settings: The settings that the policy names.
        catalogue: Its catalogue.

    Raises:
        MessageError: If it has other settings, or the shape of another model.
    """
    kind = MODELS[sent.name]
    model = kind(**settings)
    try:
        same = kind(**sent.settings) == model
    except TypeError as error:
        raise MessageError("settings that the model does not have") from error
    if not same:
        raise MessageError("other settings of the model than the policy's")
    own = Shared(jnp.asarray(sent.items), jnp.asarray(sent.dense))
    return model, with_features(model, own, jnp.asarray(catalogue.features))


def train(
    model: Learner, shared: Shared, ratings: Ratings, local: Local, about: Mapping[str, Any]
) -> tuple[NDArray[np.float64], dict[str, NDArray[Any]]]:
    """Return a client's unprotected upload, and what it keeps, as arrays that can be stored.

    Args:
        model: What is learned.
        shared: The parameters that the server sent.
        ratings: The client's ratings.
        local: From :func:`local_of`.
        about: Whose it is: the model and the run.
    """
    upload, local = train_client(model, shared, ratings, local)
    text = json.dumps({"users": _users_of(ratings), **about})
    kept = {f"leaf{n}": np.asarray(leaf) for n, leaf in enumerate(jax.tree.leaves(local))}
    return upload, {"about": np.frombuffer(text.encode(), dtype=np.uint8)} | kept


def local_of(
    model: Learner,
    shared: Shared,
    ratings: Ratings,
    stored: Mapping[str, NDArray[Any]],
    sent: SentModel,
    run: str | None,
) -> Local:
    """Return the local state of a run, or of the latest one if none is named.

    A user who is new, or all of them in a new run, begins with what the model begins with.

    Args:
        model: What is learned.
        shared: The parameters that the server sent.
        ratings: The client's ratings.
        stored: What :func:`train` has returned to be kept, if anything.
        sent: The model as it was sent.
        run: Name of the run.
    """
    start = jax.random.key(0 if run is None else secrets.randbits(31))
    first = nothing_kept(model, shared, ratings, start)
    leaves, tree = jax.tree.flatten(first)
    try:
        about = json.loads(bytes(stored["about"]))
        place = {user: row for row, user in enumerate(about.pop("users"))}
        if run not in (None, about.pop("run")) or about != sent.about:
            return first
        rows = [(row, place[u]) for row, u in enumerate(_users_of(ratings)) if u in place]
        new, old = np.array(rows, dtype=np.int64).reshape(-1, 2).T
        known = [leaf.at[new].set(stored[f"leaf{n}"][old]) for n, leaf in enumerate(leaves)]
    except (KeyError, ValueError, IndexError, TypeError):  # of another version, or damaged
        return first
    return jax.tree.unflatten(tree, known)


def recommender_of(
    model: Learner,
    shared: Shared,
    ratings: Ratings,
    local: Local,
    catalogue: SentCatalogue,
    own: Catalogue | None,
) -> Recommender:
    """Return all that lists for a client's users are made of.

    Args:
        model: What was learned.
        shared: The parameters that the server sent.
        ratings: The client's ratings.
        local: What the client has kept.
        catalogue: The items as the server knows them.
        own: The items as the client's own table describes them, if it has one.
    """
    predicted = predictions_of(model, shared, ratings, local)
    scores, why = ranking_of(model, shared, ratings, local)
    features = jnp.asarray(catalogue.features)
    first = first_parameters(model, jax.random.key(0), 1, features)[0]
    same = zip(first, shared, strict=True)
    known = own or Catalogue(
        labels=np.array(catalogue.items),
        titles=np.array(catalogue.titles) if catalogue.titles else None,
        features=catalogue.features,
        names=catalogue.names,
    )
    return Recommender(
        ratings=replace(ratings, catalogue=known),
        known=ratings,
        learned=not all(np.array_equal(old, new) for old, new in same),
        rank=lambda users: scores[users],
        explain=why.of_users,
        predict=lambda users, items: predicted[users, items],
    )


def _users_of(ratings: Ratings) -> list[str]:
    return [str(label) for label in ratings.user_labels.tolist()]
