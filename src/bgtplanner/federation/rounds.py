"""The round, written once.

The paper's five steps: (1) clients say what they will train on, (2) the policy plans and the
ledger reserves, (3) clients train, (4) clients protect and upload, (5) the server aggregates,
steps and evaluates. Without a mechanism nothing is planned, reserved or protected: steps 1 and 2
reduce to who takes part, step 4 to the upload itself. That is FedSGD.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array

from bgtplanner.errors import ConfigError
from bgtplanner.federation.pseudo import pseudo_items, pseudo_rows
from bgtplanner.federation.server import PseudoRows, Server, aggregate
from bgtplanner.recsys.metrics import tally
from bgtplanner.recsys.model import Edges, Local, Model, Shared, client_gradients

__all__ = ["Federation", "Heldout", "Outcome", "State"]


class State(NamedTuple):
    """Everything that one round hands to the next."""

    shared: Shared
    local: Local
    memory: optax.OptState


class Heldout(NamedTuple):
    """Ratings that nobody trains on."""

    user: Array
    item: Array
    value: Array


class Outcome(NamedTuple):
    """What a round brought, still on the device.

    Attributes:
        scores: The sums of :func:`bgtplanner.recsys.metrics.tally` on the held-out ratings.
        loss: Mean loss of the clients that took part, at the parameters before the step.
        clients: How many clients took part.
    """

    scores: tuple[Array, ...]
    loss: Array
    clients: Array


@dataclass(frozen=True, kw_only=True)
class Federation:
    """A model, a server, and who takes part: all that is constant over a run.

    Attributes:
        model: What is learned.
        server: How uploads become steps.
        participation: Share of the clients that take part in a round, drawn anew each time.
        pseudo_items: Items each client pretends to have rated.
    """

    model: Model
    server: Server
    participation: float = 1.0
    pseudo_items: int = 0

    def __post_init__(self) -> None:
        unless = ConfigError.unless
        unless(0 < self.participation <= 1, "participation", self.participation, "above 0, to 1")
        unless(self.pseudo_items >= 0, "pseudo_items", self.pseudo_items, "0 or more")

    def initial(self, key: Array, edges: Edges) -> State:
        """The state before the first round."""
        shared, local = self.model.initial(key, edges.n_users, edges.n_items)
        return State(shared, local, self.server.initial(shared))

    def round(
        self, state: State, edges: Edges, heldout: Heldout, index: Array, key: Array
    ) -> tuple[State, Outcome]:
        """One round, a pure function: the same state, index and key give the same bits."""
        key = jax.random.fold_in(key, index)
        who_key, item_key, row_key = jax.random.split(key, 3)
        edges = edges.at(index)

        takes_part = self._takes_part(who_key, edges.n_clients)
        gradients = client_gradients(self.model, state.shared, state.local, edges)
        pseudo = None
        if self.pseudo_items:
            pseudo = PseudoRows(
                pseudo_items(item_key, edges, self.pseudo_items),
                pseudo_rows(row_key, gradients.upload.rows, edges, self.pseudo_items),
            )
        how = self.server.aggregation
        aggregated = aggregate(gradients.upload, edges, takes_part, how, pseudo)
        shared, memory = self.server.step(state.shared, state.memory, aggregated)
        local = self.model.update_local(
            state.local,
            gradients.local,
            state.shared,
            shared,
            edges,
            takes_part[edges.client_of_user] > 0,
        )
        predicted = self.model.predict(shared, local, edges, heldout.user, heldout.item)
        active = takes_part * (edges.ratings_of_clients > 0)
        outcome = Outcome(
            scores=tally(predicted, heldout.value),
            loss=(gradients.loss * active).sum() / jnp.maximum(active.sum(), 1.0),
            clients=active.sum(),
        )
        return State(shared, local, memory), outcome

    def _takes_part(self, key: Array, n_clients: int) -> Array:
        if self.participation >= 1:
            return jnp.ones(n_clients)
        wanted = max(1, round(self.participation * n_clients))
        return (jax.random.permutation(key, n_clients) < wanted).astype(jnp.float32)
