"""What every learner must do: a contract; subclass it and set `learner`, and pytest checks it."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from bgtplanner.data.ratings import Ratings
from bgtplanner.models.interactions import Interactions, Shared
from bgtplanner.models.optimizers import NO_NOISE, Aggregate, Noise, Server


def _require(holds: object, message: str) -> None:
    if not holds:
        raise AssertionError(message)


class LearnerContract:
    """What every learner must do; subclass it and set `learner`.

    Attributes:
        learner: The learner to test, with its settings.
        optimizer: An optimizer of the server that the learner accepts.
        features: Public features of the seven items, a row each, if it is to be tested with some.
    """

    learner: ClassVar[Any]
    optimizer: ClassVar[Any] = "shrunk"
    features: ClassVar[Any] = None
    users: ClassVar[int] = 5
    items: ClassVar[int] = 7

    def interactions(self, *, other: bool = False, arrival: int = 0, only: Any = None) -> Any:
        """Return ratings of five users, of whom user 4 has rated nothing.

        With `other`, the ratings of user 1 and those still to come are different. With `arrival`,
        every third rating is still to come.
        """
        user, item = np.divmod(np.sort(np.repeat(np.arange(4), 5) * 7 + np.arange(20) * 3 % 7), 7)
        value = 0.2 + 0.1 * (np.arange(20) * 7 % 8)
        late = np.where(np.arange(20) % 3 == 0, arrival, 0)
        value = np.where((user == 1) | (late > 0), 1.1 - value, value) if other else value
        names = list(range(self.users)) if only is None else [only]
        own = np.isin(user, names)
        ratings = Ratings.from_arrays(
            user[own], item[own], value[own], users=names, items=range(self.items), scale=(0, 1)
        )
        found = Interactions.of(ratings, late[own].astype(np.int32))
        if self.features is None:
            return found
        return dataclasses.replace(found, features=jnp.asarray(self.features, jnp.float32))

    def initial(self, interactions: Any) -> tuple[Any, Any]:
        """Return the parameters before the first round; override it to begin elsewhere."""
        made = self.learner.initial(jax.random.key(0), interactions.n_users, self.items)
        if self.features is not None:
            made = self.learner.with_features(*made, interactions.features)
        return tuple(made)

    def trained(self, interactions: Any) -> tuple[Any, Any, Any]:
        """Return the parameters, what clients keep, and what they upload in a first round."""
        shared, local = self.initial(interactions)
        local = self.learner.personalise(shared, local, interactions)
        return shared, local, self.learner.train(shared, local, interactions)

    def uploads(self, interactions: Any) -> NDArray[np.float64]:
        """Return what every client uploads, over the coordinates of the catalogue."""
        return self._whole(interactions, self.trained(interactions)[2].upload)

    def _whole(self, interactions: Any, upload: Any) -> NDArray[np.float64]:
        rows, dense = (np.asarray(part, float) for part in upload)
        whole = np.zeros((interactions.n_clients, self.items, rows.shape[1]))
        at = np.asarray(interactions.pair_client), np.asarray(interactions.pair_item)
        np.add.at(whole, at, rows)
        return np.concatenate([whole.reshape(interactions.n_clients, -1), dense], axis=1)

    def predicted(self, interactions: Any, shared: Any, local: Any) -> NDArray[np.float64]:
        """Return the predictions for all users and items, ``[users, items]``."""
        user, item = np.divmod(np.arange(self.users * self.items), self.items)
        found = np.asarray(self.learner.predict(shared, local, interactions, user, item), float)
        return found.reshape(self.users, self.items)

    def test_what_it_shows_is_made_of_the_clients_own_ratings(self) -> None:
        """Predictions are from 0 to 1 and rankings finite, whatever others have rated."""
        found, which = [], np.array([4, 0, 2, 3])
        for interactions in (self.interactions(), self.interactions(other=True)):
            shared, local, _ = self.trained(interactions)
            rated = self.predicted(interactions, shared, local)
            _require(((rated >= 0) & (rated <= 1)).all(), "predictions outside of 0 to 1")
            found.append(np.asarray(self.learner.rank(shared, local, interactions, which), float))
        shaped = found[0].shape == (4, self.items) and np.isfinite(found[0]).all()
        _require(shaped, "a ranking does not have a finite number for every user and item")
        _require(np.allclose(found[0], found[1], 1e-4, 1e-5), "others' ratings change a ranking")

    def test_an_upload_is_made_of_the_clients_own_ratings(self) -> None:
        """Ratings of others do not change it, and without a rating nothing is uploaded."""
        one, other = self.uploads(self.interactions()), self.uploads(self.interactions(other=True))
        _require(np.allclose(one[[0, 2, 3]], other[[0, 2, 3]]), "others' ratings matter")
        _require(not np.allclose(one[1], other[1]), "the client's own ratings do not matter")
        _require(not one[4].any(), "a client without a rating uploads something")

    def test_a_rating_still_to_come_makes_no_difference(self) -> None:
        """It changes neither uploads nor predictions."""
        one, other = self.interactions(arrival=1), self.interactions(arrival=1, other=True)
        same = np.array([0, 2, 3])
        _require(np.allclose(self.uploads(one)[same], self.uploads(other)[same]), "it is uploaded")
        found = [self.predicted(of, *self.trained(of)[:2])[same] for of in (one, other)]
        _require(np.allclose(found[0], found[1]), "it is predicted with")

    def test_a_client_alone_uploads_what_it_does_among_all(self) -> None:
        """A simulation then shows what real machines will do, from the same start."""
        everybody = self.interactions()
        shared, local, _ = self.trained(everybody)
        among_all = self.uploads(everybody)
        for client in range(4):
            alone = self.interactions(only=client)
            own = jax.tree.map(lambda part, at=client: part[at : at + 1], local)
            own = self.learner.personalise(shared, own, alone)
            (upload,) = self._whole(alone, self.learner.train(shared, own, alone).upload)
            close = np.allclose(upload, among_all[client], rtol=1e-4, atol=1e-6)
            _require(close, f"client {client} uploads something different on its own")

    def test_the_server_goes_on_whatever_comes(self) -> None:
        """Parameters keep their shape and stay finite, even with much noise or no uploads."""
        interactions = self.interactions()
        server = Server(optimizer=self.optimizer, aggregation="clients")
        shared, _, _ = self.trained(interactions)
        memory = self.learner.server_initial(shared, server)
        mean, dense = self.uploads(interactions).mean(axis=0), shared.dense.shape[0]
        parts = mean[: len(mean) - dense].reshape(self.items, -1), mean[len(mean) - dense :]
        given = Shared(*(jnp.asarray(part, jnp.float32) for part in parts))
        nothing, usage = jax.tree.map(jnp.zeros_like, given), jnp.full(self.items, 5.0)
        much, lost = Noise(9.0, 0.1, 5.0, "l2"), Noise(jnp.inf, 0.1, 1.0, "l2")

        @partial(jax.jit, static_argnums=3)
        def update(shared: Any, memory: Any, told: Any, norm: Any, *noise: Any) -> Any:
            return self.learner.server_update(
                shared, memory, Aggregate(told, usage), Noise(*noise, norm), server
            )

        for told, noise in ((given, NO_NOISE), (given, much), (nothing, lost)):
            numbers = noise.std, noise.clip, noise.clients
            after, memory = update(shared, memory, told, noise.norm, *numbers)
            for one, other in zip(shared, after, strict=True):
                _require(one.shape == other.shape, "the server changes a shape")
                _require(np.isfinite(other).all(), "the server sends out NaN or infinity")
            shared = after
