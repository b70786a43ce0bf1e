"""The round, written once.

The paper's five steps: (1) clients say what they will train on, (2) the policy plans and the
ledger reserves, (3) clients train, (4) clients protect and upload, (5) the server aggregates,
steps and evaluates. Steps 1 and 2 come before, in :mod:`bgtplanner.federation.coordinator`; their
outcome are the terms of the round. Without protection nothing is planned, reserved or noised: that
is FedSGD.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import optax
from jax import Array

from bgtplanner.errors import ConfigError
from bgtplanner.federation.client import as_shared
from bgtplanner.federation.expansion import Expansion
from bgtplanner.federation.posterior import Noise
from bgtplanner.federation.protection import Protection, Released, Terms
from bgtplanner.federation.pseudo import pseudo_items, pseudo_rows
from bgtplanner.federation.server import Aggregate, PseudoRows, Server, aggregate
from bgtplanner.federation.validation import Aside, errors_of_clients
from bgtplanner.models.learner import (
    Edges,
    Expandable,
    Local,
    Model,
    Neighbours,
    Remembering,
    Shared,
    Summarising,
    client_gradients,
    copies,
)
from bgtplanner.models.metrics import tally

__all__ = ["Draw", "Federation", "Heldout", "Outcome", "Shown", "State"]


class Draw(IntEnum):
    """What is drawn at random in a round.

    Each has a key of its own: what one draw shows (which items are pseudo items) must say nothing
    of another (the noise).
    """

    WHO = 0
    PSEUDO_ITEMS = 1
    PSEUDO_ROWS = 2
    NOISE = 3
    VALIDATION = 4


class State(NamedTuple):
    """Everything that one round hands to the next."""

    shared: Shared
    local: Local
    memory: optax.OptState

    def withdrawn(self) -> State:
        """The same with nothing sent out: what was learned is not worth having."""
        return self._replace(shared=jax.tree.map(jnp.zeros_like, self.shared))


class Heldout(NamedTuple):
    """Ratings that nobody trains on."""

    user: Array
    item: Array
    value: Array


class Shown(NamedTuple):
    """What goes to the third party that matches users, beside their tokens.

    Attributes:
        own: User embeddings, protected as the whole upload is, ``[n_users, dim]``.
        sends: Which users' clients took part, ``[n_users]``.
    """

    own: Array
    sends: Array


class Outcome(NamedTuple):
    """What a round brought, still on the device.

    Attributes:
        scores: The sums of :func:`bgtplanner.models.metrics.tally` on the held-out ratings.
        loss: Mean loss of the clients that took part, at the parameters before the step.
        clients: How many clients took part.
        aggregate: What the server stepped by, flat: the released gradient.
        noise_std: Standard deviation of the noise on each of its coordinates; 0 without, NaN
            where it differs (unit ``row``).
        dropped: Uploads that the server did not accept.
        validation: What was released of the validation ratings after the step, and the standard
            deviation of its noise; None if nothing was.
        shown: What went to the third party, in a round that expands graphs.
        norms: Norm of each client's own noisy gradient, averaged over its blocks, where every
            client has a clip of its own (unit ``row``).
    """

    scores: dict[str, Any]
    loss: Array
    clients: Array
    aggregate: Array
    noise_std: Array
    dropped: Array
    validation: tuple[Array, Array] | None
    shown: Shown | None = None
    norms: Array | None = None


@dataclass(frozen=True, kw_only=True)
class Federation:
    """A model, a server, and who takes part: all that is constant over a run.

    Attributes:
        model: What is learned.
        server: How uploads become steps.
        participation: Share of the clients that take part in a round, drawn anew each time.
        pseudo_items: Items each client pretends to have rated.
        fixed_pseudo_items: Whether these are the same in every round, which does not give the
            real ones away over the rounds.
        protection: How uploads are protected; None: not at all.
        expansion: When users are told of others who rated the same; None: never.
    """

    model: Model
    server: Server
    participation: float = 1.0
    pseudo_items: int = 0
    fixed_pseudo_items: bool = False
    protection: Protection | None = None
    expansion: Expansion | None = None

    def __post_init__(self) -> None:
        unless = ConfigError.unless
        unless(0 < self.participation <= 1, "participation", self.participation, "above 0, to 1")
        unless(self.pseudo_items >= 0, "pseudo_items", self.pseudo_items, "0 or more")
        summarises = isinstance(self.model, Summarising)
        fits = summarises == (self.server.optimizer == "posterior")
        expected = "posterior" if summarises else "another one"
        name = type(self.model).__name__.lower()
        unless(
            fits, "server.optimizer", self.server.optimizer, f"{expected}, for the model {name}"
        )
        if summarises and self.protection is not None:
            unit = self.protection.of
            unless(unit.sound, "unit", unit.name, f"client, for the model {name}")
        if self.expansion is not None:
            fits, name = isinstance(self.model, Expandable), type(self.model).__name__
            unless(fits, "model", name, "one whose users can be neighbours, to expand graphs")
            trust = "local" if self.protection is None else self.protection.trust
            unless(trust == "local", "trust", trust, "local: each embedding is seen on its own")

    def initial(self, key: Array, edges: Edges) -> State:
        """The state before the first round."""
        shared, local = self.model.initial(key, edges.n_users, edges.n_items)
        if self.expansion is not None:
            most = min(self.expansion.max_neighbours, edges.n_users)
            dim = self._expandable.own(local).shape[1]
            nobody = Neighbours(
                jnp.zeros((edges.n_users, most, dim)), jnp.zeros((edges.n_users, most))
            )
            local = self._expandable.attach(local, nobody)
        if isinstance(self.model, Remembering):
            local = self.model.remember(shared, local, edges.at(0))
        return State(shared, local, self.server.initial(shared))

    def round(
        self,
        state: State,
        edges: Edges,
        heldout: Heldout,
        index: Array,
        key: Array,
        terms: Terms | None = None,
        aside: Aside | None = None,
        expands: bool = False,
    ) -> tuple[State, Outcome]:
        """One round, a pure function: the same state, index, key and terms give the same bits.

        Args:
            state: What the round before has left.
            edges: The training ratings.
            heldout: Ratings to evaluate on.
            index: Which round.
            key: Of the run.
            terms: Who may release, and how; needed with a protection.
            aside: Ratings to validate on once the server has stepped: a second release.
            expands: Whether the users' embeddings leave too, as part of the upload.
        """
        edges = edges.at(index)
        pretended = self.pretended(edges, index, key) if self.pseudo_items else None
        key = jax.random.fold_in(key, index)
        drawn = self._takes_part(jax.random.fold_in(key, Draw.WHO), edges.n_clients)
        takes_part = drawn if terms is None else terms.granted
        gradients = client_gradients(self.model, state.shared, state.local, edges)
        upload = gradients.upload
        pseudo = None
        if pretended is not None:
            row_key = jax.random.fold_in(key, Draw.PSEUDO_ROWS)
            rows = pseudo_rows(row_key, upload.rows, edges, self.pseudo_items)
            pseudo = PseudoRows(pretended, rows)
        noise_std, dropped, validation, norms = jnp.zeros(()), jnp.zeros(()), None, None
        sound = self._sound
        summarises = isinstance(self.model, Summarising)
        how = "clients" if summarises else self.server.aggregation
        noise_key = jax.random.fold_in(key, Draw.NOISE)
        own = self._expandable.own(state.local) if expands else None
        if self.protection is not None and terms is not None:
            aggregated, noise_std, dropped, own, norms = self.protection.release(
                noise_key, upload, edges, terms, own, blocks=self.model.dense_blocks,
                combine=lambda noised: aggregate(noised, edges, takes_part, how, pseudo),
            )  # fmt: skip
        else:
            aggregated = aggregate(upload, edges, takes_part, how, pseudo)
        shared, memory = self._stepped(state, aggregated, noise_std, takes_part.sum(), terms)
        local = self.model.update_local(
            state.local,
            gradients.local,
            state.shared,
            shared,
            edges,
            takes_part[edges.client_of_user] > 0,
        )
        after = State(shared, local, memory)
        if sound is not None and terms is not None and aside is not None:
            predicted = self.model.predict(shared, local, edges, aside.user, aside.item)
            errors = errors_of_clients(predicted, aside, edges, index)
            validation = sound.validate(jax.random.fold_in(key, Draw.VALIDATION), errors, terms)
        predicted = self.model.predict(shared, local, edges, heldout.user, heldout.item)
        active = takes_part * (edges.ratings_of_clients > 0)
        outcome = Outcome(
            scores=tally(predicted, heldout.value),
            loss=(gradients.loss * active).sum() / jnp.maximum(active.sum(), 1.0),
            clients=active.sum(),
            aggregate=jnp.concatenate([part.ravel() for part in aggregated.gradient]),
            noise_std=noise_std,
            dropped=dropped,
            validation=validation,
            shown=None if own is None else Shown(own, takes_part[edges.client_of_user] > 0),
            norms=norms,
        )
        return after, outcome

    def _stepped(
        self,
        state: State,
        aggregated: Aggregate,
        noise_std: Array,
        answered: Array,
        terms: Terms | None,
    ) -> tuple[Shared, optax.OptState]:
        """The server's step, with what it knows of the noise."""
        norm = None if self._sound is None else self._sound.norm
        bound = jnp.inf if terms is None else terms.clip.max()
        std = jnp.where(answered > 0, noise_std, jnp.inf)  # nobody: nothing was learned
        clients = jnp.maximum(answered, 1.0)
        reach: Array | float = 0.0
        if self._sound is not None and terms is not None:
            size = sum(part.size for part in aggregated.gradient)
            reach = self._sound.reach(terms, size) / clients
        noise = Noise(std, bound, clients, norm, reach)
        return self.server.step(state.shared, state.memory, aggregated, noise)

    def received(self, state: State, total: Array, terms: Terms) -> tuple[State, Released]:
        """The server's half of a round whose uploads were computed and protected elsewhere.

        Args:
            state: What the round before has left; clients keep their own part.
            total: Sum of the uploads that were accepted, flat.
            terms: Under which they were made; granted are those whose upload is in the sum.

        Raises:
            ConfigError: If uploads are not protected client by client.
        """
        protection = self.protection
        if protection is None or (protection.trust, protection.unit) != ("local", "client"):
            raise ConfigError(f"protection = {protection}: expected trust local, unit client")
        return self.summed(state, total, terms)

    def summed(self, state: State, total: Array, terms: Terms) -> tuple[State, Released]:
        """The same from a sum that somebody else has made, under either trust."""
        protection = cast(Protection, self._sound)
        n_items, number = state.shared.items.shape[0], terms.granted.sum()
        width = (total.shape[0] - state.shared.dense.shape[0]) // n_items
        released = protection.mean(as_shared(total, n_items, width), number, terms)
        shared, memory = self._stepped(
            state, released.aggregate, released.noise_std, number, terms
        )
        return State(shared, state.local, memory), released

    def pretended(self, edges: Edges, index: Array, key: Array) -> Array:
        """The pseudo items of each client in a round, ``[n_clients, pseudo_items]``; -1: none."""
        if not self.fixed_pseudo_items:
            key = jax.random.fold_in(jax.random.fold_in(key, index), Draw.PSEUDO_ITEMS)
        return pseudo_items(key, edges, self.pseudo_items)

    def expanded(self, state: State, neighbours: Neighbours) -> State:
        """The state once users were told of others who rated the same."""
        return state._replace(local=self._expandable.attach(state.local, neighbours))

    def rest(
        self, state: State, edges: Edges, heldout: Heldout, index: Array
    ) -> tuple[State, Outcome]:
        """A round in which nothing leaves any client: each goes on with its own part alone."""
        edges = edges.at(index)
        everybody = jnp.ones(edges.n_users, dtype=bool)
        if isinstance(self.model, Summarising):  # its users are solved for: no gradient needed
            local = self.model.update_local(
                state.local, state.local, state.shared, state.shared, edges, everybody
            )
            losses = self.model.loss(copies(state.shared, edges), local, edges)
        else:
            gradients = client_gradients(self.model, state.shared, state.local, edges)
            losses = gradients.loss
            local = self.model.update_local(
                state.local, gradients.local, state.shared, state.shared, edges, everybody
            )
        predicted = self.model.predict(state.shared, local, edges, heldout.user, heldout.item)
        active = (edges.ratings_of_clients > 0).astype(jnp.float32)
        outcome = Outcome(
            scores=tally(predicted, heldout.value),
            loss=(losses * active).sum() / jnp.maximum(active.sum(), 1.0),
            clients=jnp.zeros(()),
            aggregate=jnp.zeros(0),
            noise_std=jnp.zeros(()),
            dropped=jnp.zeros(()),
            validation=None,
        )
        return State(state.shared, local, state.memory), outcome

    @property
    def _sound(self) -> Protection | None:
        """What protects whole clients, if anything does."""
        sound = self.protection is not None and self.protection.of.sound
        return self.protection if sound else None

    @property
    def _expandable(self) -> Expandable:
        """The model; that it is one was seen to when the federation was made."""
        return cast(Expandable, self.model)

    def _takes_part(self, key: Array, n_clients: int) -> Array:
        if self.participation >= 1:
            return jnp.ones(n_clients)
        wanted = max(1, round(self.participation * n_clients))
        return (jax.random.permutation(key, n_clients) < wanted).astype(jnp.float32)
