"""The round, written once.

The paper's five steps: (1) clients say what they will train on, (2) the policy plans and the
ledger reserves, (3) clients train, (4) clients protect and upload, (5) the server aggregates,
steps and evaluates. Steps 1 and 2 are in :mod:`bgtplanner.federation.coordinator`; their outcome
is the parameters of the round. Without protection nothing is planned, reserved or noised: that is
FedSGD.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from bgtplanner.errors import ConfigError
from bgtplanner.federation.chunks import Computed, Heldout, Pairs, by_chunk
from bgtplanner.federation.client import as_shared, first_parameters
from bgtplanner.federation.parameters import RoundParameters
from bgtplanner.federation.protection import Protection, Released
from bgtplanner.models.interactions import Interactions, Shared, Upload, where_users
from bgtplanner.models.learner import Learner, Local
from bgtplanner.models.metrics import tally
from bgtplanner.models.optimizers import Aggregate, Memory, Noise, Server


class Draw(IntEnum):
    """The random draws of a round.

    Each has a key of its own: one draw that becomes visible (which items are pseudo items) must
    say nothing about another (the noise).
    """

    WHO = 0
    PSEUDO_ITEMS = 1
    PSEUDO_ROWS = 2
    NOISE = 3


class ExtraRows(NamedTuple):
    """Rows that clients upload for items they did not rate; item -1 means no row."""

    item: Array  # [n_clients, number]
    rows: Array  # [n_clients, number, width]


How = Literal["item-usage", "ratings", "clients"]
"""How uploads are weighed. ``clients``: all clients the same. ``ratings``: by the number of a
client's ratings and further rows (the authors' rule). ``item-usage``: the same for the dense part,
while each item row is averaged over the ratings of that item (the paper's step 5, FedGNN)."""


class Sums(NamedTuple):
    """Weighted sums of uploads: those of several groups of clients can be added up."""

    total: Shared
    usage: Array  # how many uploaded ratings each item row is made from
    weight: Array

    def mean(self, how: How) -> Aggregate:
        """Return the mean; an item that nobody rated has a mean of zero."""
        total = jnp.maximum(self.weight, 1.0)
        per_row = jnp.maximum(self.usage, 1.0)[:, None] if how == "item-usage" else total
        gradient = Shared(self.total.items / per_row, self.total.dense / total)
        return Aggregate(gradient, self.usage)


def sums_of(
    upload: Upload, interactions: Interactions, takes_part: Array, how: How,
    extra: ExtraRows | None = None,
) -> Sums:  # fmt: skip
    """Return the weighted sums of the uploads, and further rows, of those who take part."""
    uploaded = interactions.ratings_of_clients
    active = takes_part * (uploaded > 0)
    if extra is not None:
        uploaded = uploaded + (extra.item >= 0).sum(1)
    weight = active if how == "clients" else active * uploaded

    rows = upload.rows * interactions.of_clients(weight)[:, None]
    items = interactions.sum_by_item(rows)
    usage = jax.ops.segment_sum(
        interactions.present * interactions.of_users(active[interactions.client_of_user]),
        interactions.item,
        interactions.n_items,
    )
    if extra is not None:
        # Rows out of range are dropped.
        target = jnp.where(extra.item < 0, interactions.n_items, extra.item)
        items = items.at[target].add(extra.rows * weight[:, None, None], mode="drop")
        usage = usage.at[target].add(active[:, None], mode="drop")
    dense = (upload.dense * weight[:, None]).sum(0)
    return Sums(Shared(items, dense), usage, weight.sum())


class State(NamedTuple):
    """Everything that one round passes to the next: what is sent, kept, and remembered."""

    shared: Shared
    local: Local
    memory: Memory


class Uploaded(NamedTuple):
    """A round after the clients have uploaded, before the server steps."""

    local: Local  # what clients keep
    losses: Array  # of each client
    takes_part: Array  # 1 for each client that does
    released: Released  # what the server sees


class Outcome(NamedTuple):
    """How well a round went, still on the device."""

    scores: dict[str, Any]  # of :func:`bgtplanner.models.metrics.tally` on the held-out ratings
    loss: Array  # mean of the participating clients, at the parameters before the step
    clients: Array  # how many took part


@dataclass(frozen=True, kw_only=True)
class Federation:
    """Everything that is constant over a run: the model, the server, and who takes part.

    The extras are what clients upload beyond what they learned: none, or
    :class:`bgtplanner.paper.pseudo.PseudoItems`, whose methods they have; hashable.
    """

    model: Learner
    server: Server  # how uploads become steps, unless the model defines that itself
    participation: float = 1.0  # share of the clients that take part, drawn for each round
    protection: Protection | None = None
    extras: Any = None

    def __post_init__(self) -> None:
        unless = ConfigError.unless
        unless(0 < self.participation <= 1, "participation", self.participation, "above 0, to 1")
        if self.protection is not None and self.model.plain_mean:
            unit, name = self.protection.of, type(self.model).__name__.lower()
            unless(unit.sound, "unit", unit.name, f"client, for the model {name}")

    @property
    def adds_up(self) -> bool:
        """Whether the server needs only sums of uploads, so that their order does not matter.

        Otherwise what is drawn for each row depends on where the row is.
        """
        return self.extras is None and (self.protection is None or self.protection.adds_up)

    @property
    def _how(self) -> How:
        """How the server averages uploads that are not protected as whole clients."""
        return "clients" if self.model.plain_mean else self.server.aggregation

    @property
    def _sound(self) -> Protection | None:
        """The protection, if it protects whole clients."""
        sound = self.protection is not None and self.protection.of.sound
        return self.protection if sound else None

    def initial(self, key: Array, interactions: Interactions) -> State:
        """Return the state before the first round."""
        shared, local = first_parameters(
            self.model, key, interactions.n_users, interactions.features
        )
        return State(shared, local, self.model.server_initial(shared, self.server))

    def uploaded(
        self, state: State, interactions: Interactions, index: Array, key: Array,
        parameters: RoundParameters | None = None,
    ) -> Uploaded:  # fmt: skip
        """Compute the first part of a round: clients fit, train, protect and upload."""
        interactions, keys = interactions.at(index), jax.random.fold_in(key, index)
        drawn = self._takes_part(jax.random.fold_in(keys, Draw.WHO), interactions.n_clients)
        takes_part = drawn if parameters is None else parameters.granted
        local, losses, collected = self._collected(
            state, interactions, index, takes_part, parameters
        )
        protection, extra = None if parameters is None else self.protection, None
        if self.extras is not None:
            extra = self.extras.rows(key, index, collected, interactions)

        def combine(upload: Upload) -> Aggregate:
            sums = sums_of(upload, interactions, takes_part, self._how, extra)
            return sums.mean(self._how)

        noise_key, none = jax.random.fold_in(keys, Draw.NOISE), jnp.zeros(())
        if protection is None or parameters is None:
            mean = collected.mean(self._how) if self.adds_up else combine(collected)
            released = Released(mean, none, none)
        elif self.adds_up:
            released = protection.noised(noise_key, collected, parameters)
        else:
            released = protection.release(
                noise_key, collected, interactions, parameters,
                blocks=self.model.dense_blocks, combine=combine,
            )  # fmt: skip
        return Uploaded(local, losses, takes_part, released)

    def _collected(
        self, state: State, interactions: Interactions, index: Array, takes_part: Array,
        parameters: RoundParameters | None,
    ) -> tuple[Local, Array, Any]:  # fmt: skip
        """Return what clients keep, their losses, and their uploads, or the sums of these."""
        model, protection = self.model, self.protection

        def trained(
            known: Interactions, local: Local, given: Any, clients: Any, _: Pairs
        ) -> Computed:
            (shared, parameters), (here, of_class) = given, clients
            # They were fitted to these parameters when they received them, after the round before.
            new = (index == 0) | jnp.any(known.arrival == index)
            local = jax.lax.cond(new, model.personalise, lambda *old: old[1], shared, local, known)
            found = model.train(shared, local, known)
            collected: Any
            if not self.adds_up:  # then all clients are in one chunk
                collected = found.upload
            elif protection is None or parameters is None:
                collected = sums_of(found.upload, known, here, self._how)
            else:
                own = parameters._replace(granted=here, class_of_client=of_class)
                collected = protection.clipped(found.upload, known, own)
            kept = where_users(here[known.client_of_user] > 0, found.local, local)
            return kept, found.loss, [], collected

        classes = jnp.zeros(interactions.n_clients, jnp.int32)
        classes = classes if parameters is None else parameters.class_of_client
        given, of_clients = (state.shared, parameters), (takes_part, classes)
        local, losses, _, collected = by_chunk(
            trained, interactions, state.local, given, clients=of_clients
        )
        return local, losses, collected

    def stepped(
        self, state: State, released: Released, answered: Array,
        parameters: RoundParameters | None = None,
    ) -> State:  # fmt: skip
        """Compute the second part of a round: the server steps, by what is known of the noise."""
        noise = Noise(
            std=jnp.where(answered > 0, released.noise_std, jnp.inf),  # without answers: all noise
            clip=jnp.inf if parameters is None else parameters.clip.max(),
            clients=jnp.maximum(answered, 1.0),
            norm=None if self._sound is None else self._sound.norm,
        )
        shared, memory = self.model.server_update(
            state.shared, state.memory, released.aggregate, noise, self.server
        )
        return State(shared, state.local, memory)

    def served(
        self, state: State, sent: Uploaded | None, interactions: Interactions, heldout: Heldout,
        index: Array,
    ) -> tuple[State, Outcome]:  # fmt: skip
        """Compute the last part: all clients receive the new parameters, and predict with them.

        If nothing was sent, nothing leaves any client, and only local state is updated.
        """
        interactions, model = interactions.at(index), self.model

        def fitted(known: Interactions, local: Local, shared: Any, _: Any, pairs: Pairs) -> Any:
            new = jnp.array(sent is not None) | (index == 0) | jnp.any(known.arrival == index)
            local = jax.lax.cond(new, model.personalise, lambda *old: old[1], shared, local, known)
            loss = None
            if sent is None:
                _, loss, local = model.train(shared, local, known)
            return local, loss, [model.predict(shared, local, known, *of) for of in pairs], ()

        local, losses, answers, _ = by_chunk(
            fitted, interactions, state.local, state.shared, asked=[heldout]
        )
        there = interactions.ratings_of_clients > 0
        active = there * (jnp.ones(interactions.n_clients) if sent is None else sent.takes_part)
        losses = losses if sent is None else sent.losses
        clients = jnp.zeros(()) if sent is None else active.sum()
        if self._sound is not None and sent is not None:
            clients = sent.takes_part.sum()  # who has no rating uploads as well: noise, or zeros
        loss = (losses * active).sum() / jnp.maximum(active.sum(), 1.0)
        return state._replace(local=local), Outcome(
            tally(answers[0], heldout.value), loss, clients
        )

    def received(
        self, state: State, total: Array, parameters: RoundParameters
    ) -> tuple[State, Released]:
        """Compute the server's part of a round from the flat sum of uploads made elsewhere.

        In the parameters, those clients are granted whose upload is in the sum.
        """
        protection = self._sound
        if protection is None or protection.unit != "client":
            raise ConfigError(f"protection = {self.protection}: expected one of unit client")
        n_items, number = state.shared.items.shape[0], parameters.granted.sum()
        width = (total.shape[0] - state.shared.dense.shape[0]) // n_items
        released = protection.mean(as_shared(total, n_items, width), number, parameters)
        return self.stepped(state, released, number, parameters), released

    def _takes_part(self, key: Array, n_clients: int) -> Array:
        """Return 1 for each client that takes part, drawn anew in every round."""
        if self.participation >= 1:
            return jnp.ones(n_clients)
        wanted = max(1, round(self.participation * n_clients))
        return (jax.random.permutation(key, n_clients) < wanted).astype(jnp.float32)
