"""The learner: what a client computes and uploads, and what the server does with the mean.

All clients are computed at once. Every client holds its own copy of the shared parameters: the
rows of the items it has rated (one row per client-item *pair*) and the dense part. Since a
client's loss depends on its own copies only, one gradient of the *summed* loss with respect to the
stacked copies is the stack of all clients' gradients (:func:`client_gradients`): flat arrays,
static shapes and no loop over clients. A real client runs the same code on its own ratings alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any, Literal, NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from bgtplanner.data.ratings import Ratings
from bgtplanner.errors import ConfigError
from bgtplanner.models.interactions import Interactions, Shared, Upload, copies
from bgtplanner.models.optimizers import Aggregate, Memory, Noise, Server
from bgtplanner.published.model import Model

Local = Any  # state that stays on the clients: a tree of arrays whose first axis is the user


class Statistics(NamedTuple):
    """All clients' uploads before they are protected, their losses, and what they keep."""

    upload: Upload
    loss: Array
    local: Local


class Published(NamedTuple):
    """What a learner publishes of what it has learned: releases alone, and public numbers."""

    ranker: str  # the kind of model that it makes, by its name in published.ranking.RANKERS
    settings: dict[str, Any]
    released: NDArray[np.float32]  # one row per item
    evidence: dict[str, float]  # how far what was released stands out from its noise


class Learner(Protocol):
    """A recommender: what its clients compute, all at once, and what its server does.

    Derive from it and write :meth:`initial`, :meth:`loss` and :meth:`predict`; the rest follows:
    clients upload the gradients of their losses, and the server takes steps along them. Or define
    what clients upload (:meth:`train`) and what the server does with the mean
    (:meth:`server_update`) yourself, as :class:`~bgtplanner.models.bias.Biases` does.

    All methods are pure and are traced by JAX: no Python branching on array values, no changing
    shapes. The compiler identifies a learner by its value, so make it a frozen dataclass of plain
    settings. `interactions` are the training ratings, with a mask of those that are known.
    """

    @property
    def dense_blocks(self) -> tuple[int, ...]:
        """Sizes of the tensors that make up the dense part, in order."""
        return ()

    @property
    def plain_mean(self) -> bool:
        """Whether every client's upload counts the same, whatever ``server.aggregation`` says."""
        return False

    def suited(self, clients: int, items: int, noise: float, *, implicit: bool = False) -> Self:
        """Return the learner with open settings chosen by public numbers; by default itself.

        Args:
            clients: The number of clients.
            items: The number of items.
            noise: Standard deviation of the noise on the sum of all uploads, over the clip, if the
                whole budget were spent in one round; 0 without privacy.
            implicit: Whether there are no ratings, only what was picked.
        """
        del clients, items, noise, implicit
        return self

    def initial(self, key: Array, n_users: int, n_items: int) -> tuple[Shared, Local]:
        """Return the parameters before the first round. Must not look at a rating."""

    def with_features(self, shared: Shared, local: Local, features: Array) -> tuple[Shared, Local]:
        """Return the initial parameters with the items' public features, ``[n_items, features]``.

        They become further columns of ``shared.items``; by default they are ignored.
        """
        del features
        return shared, local

    def personalise(self, shared: Shared, local: Local, interactions: Interactions) -> Local:
        """Return the local state, fitted to parameters that were received; it stays there.

        Doing so again must not change it, unless further ratings have arrived.
        """
        del shared, interactions
        return local

    def loss(self, copies: Upload, local: Local, interactions: Interactions) -> Array:
        """Return each client's loss at its own copies over its known ratings; 0 without any."""
        problem = f"{type(self).__name__} defines neither loss() nor train()"
        raise NotImplementedError(problem)  # in two lines: mypy takes one for an abstract method

    def train(self, shared: Shared, local: Local, interactions: Interactions) -> Statistics:
        """Return all clients' statistics: by default the gradients of their losses."""
        return client_gradients(self, shared, local, interactions)._replace(local=local)

    def predict(
        self, shared: Shared, local: Local, interactions: Interactions, user: Array, item: Array
    ) -> Array:
        """Return predicted ratings in [0, 1] of user-item pairs; computed on the clients."""

    def rank(
        self, shared: Shared, local: Local, interactions: Interactions, users: Array
    ) -> Array:
        """Return by what items are recommended, the highest first, ``[users, n_items]``.

        By default these are the predicted ratings.
        """
        items = jnp.tile(jnp.arange(interactions.n_items), users.shape[0])
        pairs = jnp.repeat(users, interactions.n_items), items
        predicted = self.predict(shared, local, interactions, *pairs)
        return predicted.reshape(users.shape[0], interactions.n_items)

    def popularity(self, shared: Shared) -> Array | None:
        """Return the popularity of all items as it was released; None if none is."""
        del shared
        return None

    def server_initial(self, shared: Shared, server: Server) -> Memory:
        """Return the server's memory before the first round."""
        return server.initial(shared)

    def server_update(
        self, shared: Shared, memory: Memory, mean: Aggregate, noise: Noise, server: Server
    ) -> tuple[Shared, Memory]:
        """Return shared parameters and memory after a round: by default, an optimizer step.

        `mean` is the mean of the clients' uploads, including noise.
        """
        return server.step(shared, memory, mean, noise)

    @property
    def steps(self) -> int:
        """In how many paid rounds it learns best, where splitting a charge costs nothing."""
        return 3

    def forecast(
        self, memory: Memory, precision: NDArray[np.float64], clip: float,
        norm: Literal["l1", "l2"],
    ) -> dict[str, NDArray[np.float64]]:  # fmt: skip
        """Return what added precision would bring, by measure; empty: it is not known.

        ``ratings``: by which share the error would be below a client's own; ``lists``: the share
        of the best lists' usefulness. `precision` has sums of 1 / noise variance over rounds to
        come, for uploads of length `clip`. Only released numbers and public constants are used.
        """
        del memory, precision, clip, norm
        return {}

    def came(
        self, before: Memory, memory: Memory, clip: float, norm: Literal["l1", "l2"]
    ) -> dict[str, tuple[float, float]]:
        """Return what was sent before a payment was worth, and its standard error, by measure.

        It is estimated from what the payment released, in the unit of forecasts; empty: unknown.
        """
        del before, memory, clip, norm
        return {}

    def split(
        self, memory: Memory, precision: float, clip: float, norm: Literal["l1", "l2"]
    ) -> dict[str, float]:
        """Return the best shares of an upload's squared length for its parts, by their names.

        All that is left of the budget buys `precision`, 1 / noise variance. By default an upload
        has one part.
        """
        del memory, precision, clip, norm
        return {}

    def publishes(self, shared: Shared, memory: Memory | None = None) -> Published | None:
        """Return what a model file holds of this learner; by default it has none.

        Without the server's memory, which clients do not get, less of the evidence is known.
        """
        del shared, memory
        return None

    def asking(self, shared: Shared, split: Mapping[str, float]) -> Shared:
        """Return the parameters to send out, with what they ask of the next uploads."""
        del split
        return shared


def client_gradients(
    learner: Learner, shared: Shared, local: Local, interactions: Interactions
) -> Statistics:
    """Return the gradients of every client's own loss, by its copies and by its local state."""

    def total(point: Upload, state: Local) -> tuple[Array, Array]:
        losses = learner.loss(point, state, interactions)
        return losses.sum(), losses

    (_, losses), (upload, of_local) = jax.value_and_grad(total, argnums=(0, 1), has_aux=True)(
        copies(shared, interactions), local
    )
    return Statistics(upload, losses, of_local)


def model_of(
    learner: Learner, shared: Shared, memory: Memory | None, ratings: Ratings, *, learned: bool,
    guarantee: Mapping[str, Any], training: Mapping[str, Any],
) -> Model:  # fmt: skip
    """Return the model that a learner publishes; refuse one that publishes none.

    Of the ratings, only what is public is taken: labels, catalogue and scale.
    """
    found = learner.publishes(shared, memory)
    if found is None:
        name = type(learner).__name__
        raise ConfigError(f"model = {name}: it publishes no model to make lists of")
    catalogue = ratings.catalogue
    titles = None if catalogue is None or catalogue.titles is None else catalogue.titles.tolist()
    return Model(
        ranker=found.ranker, items=ratings.item_labels.tolist(), titles=titles,
        settings={name: of for name, of in found.settings.items() if of is not None},
        names=[] if catalogue is None else list(catalogue.names),
        features=np.asarray(ratings.features, dtype=np.float32),
        released=np.asarray(found.released, dtype=np.float32),
        low=float(ratings.low), high=float(ratings.high), implicit=ratings.implicit,
        learned=learned, guarantee=dict(guarantee), evidence=dict(found.evidence),
        training=dict(training),
    )  # fmt: skip


def settings_of(learner: Learner) -> dict[str, Any]:
    """Return a learner's settings by name, from which it can be made again."""
    found = asdict(learner) if is_dataclass(learner) else {"": None}
    kinds = bool | int | float | str | None
    plain = all(isinstance(value, kinds) for value in found.values())
    name = type(learner).__name__
    ConfigError.unless(plain, "model", name, "a dataclass whose fields are numbers and strings")
    return found
