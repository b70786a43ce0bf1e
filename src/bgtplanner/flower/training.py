"""What a client computes with a model, and what it keeps of it from one round to the next.

All of it needs JAX, which is almost half of what a process takes to start. Flower starts one for
every message, and most messages of a sum have nothing to do with the model, so that
:mod:`bgtplanner.flower.client` imports this module only for those that have.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from bgtplanner.data.ratings import Ratings
from bgtplanner.errors import MessageError
from bgtplanner.federation.client import (
    coordinates_of,
    first_parameters,
    nothing_kept,
    train_client,
    with_features,
)
from bgtplanner.flower.messages import SentCatalogue, SentModel, Setting
from bgtplanner.models.interactions import Shared
from bgtplanner.models.learner import Local, model_of
from bgtplanner.models.registry import MODELS
from bgtplanner.published.model import Model

Arrays = dict[str, NDArray[Any]]


class Trainer:
    """A model that was sent, with the settings that the policy names and with its catalogue.

    Raises:
        MessageError: If it has other settings, or the shape of another model.
    """

    def __init__(
        self, sent: SentModel, settings: Mapping[str, Setting], catalogue: SentCatalogue
    ) -> None:
        kind = MODELS[sent.name]
        self.learner = kind(**settings)
        try:
            same = kind(**sent.settings) == self.learner
        except TypeError as error:
            raise MessageError("settings that the model does not have") from error
        if not same:
            raise MessageError("other settings of the model than the policy's")
        self._about = {"name": sent.name, "settings": sent.settings, "catalogue": sent.catalogue}
        self._catalogue = catalogue
        self._features = jnp.asarray(catalogue.features)
        own = Shared(jnp.asarray(sent.items), jnp.asarray(sent.dense))
        self.shared = with_features(self.learner, own, self._features)

    @property
    def coordinates(self) -> int:
        """The number of coordinates of an upload, which is public."""
        return coordinates_of(self.learner, self.shared)

    def train(
        self, ratings: Ratings, stored: Mapping[str, NDArray[Any]], run: str
    ) -> tuple[NDArray[np.float64], Arrays]:
        """Return a client's unprotected upload, and what it keeps, as arrays to be stored.

        `stored` is what it has kept so far, if anything.
        """
        local = self.local(ratings, stored, run)
        upload, local = train_client(self.learner, self.shared, ratings, local)
        text = json.dumps({"users": _users_of(ratings), "run": run, **self._about})
        leaves = {f"leaf{n}": np.asarray(leaf) for n, leaf in enumerate(jax.tree.leaves(local))}
        return upload, {"about": np.frombuffer(text.encode(), dtype=np.uint8)} | leaves

    def local(self, ratings: Ratings, stored: Mapping[str, NDArray[Any]], run: str) -> Local:
        """Return the local state of a run.

        A user who is new, or all of them in a new run, begins with what the model begins with.
        """
        start = jax.random.key(secrets.randbits(31))
        first = nothing_kept(self.learner, self.shared, ratings, start)
        leaves, tree = jax.tree.flatten(first)
        try:
            about = json.loads(bytes(stored["about"]))
            place = {user: row for row, user in enumerate(about.pop("users"))}
            if about.pop("run") != run or about != self._about:
                return first
            rows = [(row, place[u]) for row, u in enumerate(_users_of(ratings)) if u in place]
            new, old = np.array(rows, dtype=np.int64).reshape(-1, 2).T
            known = [leaf.at[new].set(stored[f"leaf{n}"][old]) for n, leaf in enumerate(leaves)]
        except (KeyError, ValueError, IndexError, TypeError):  # of another version, or damaged
            return first
        return jax.tree.unflatten(tree, known)

    def model(self, guarantee: Mapping[str, Any]) -> Model:
        """Return the model that this client's lists are made of, with what it is promised."""
        first = first_parameters(self.learner, jax.random.key(0), 1, self._features)[0]
        pairs = zip(first, self.shared, strict=True)
        return model_of(
            self.learner, self.shared, None, self._catalogue.without_ratings(),
            learned=any(not np.array_equal(old, new) for old, new in pairs),
            guarantee=guarantee, training={"model": self._about["name"]},
        )  # fmt: skip


def _users_of(ratings: Ratings) -> list[str]:
    """Return the labels of a client's users, by which what is kept of each is found again."""
    return [str(label) for label in ratings.user_labels.tolist()]
