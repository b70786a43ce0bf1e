"""The round, written once.

The paper's five steps: (1) clients say what they will train on, (2) the policy plans and the
ledger reserves, (3) clients train, (4) clients protect and upload, (5) the server aggregates,
steps and evaluates. Steps 1 and 2 are in :mod:`bgtplanner.federation.coordinator`; their outcome
is the terms of the round. Without protection nothing is planned, reserved or noised: that is
FedSGD.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh
from numpy.typing import NDArray

from bgtplanner.data.ratings import Ratings
from bgtplanner.data.split import Split
from bgtplanner.errors import ConfigError
from bgtplanner.federation.client import as_shared, first_parameters
from bgtplanner.federation.protection import (
    Protection,
    Released,
    Terms,
    clipped_sum,
    release_sum,
)
from bgtplanner.federation.server import Aggregate, ExtraRows, aggregate, sums_of
from bgtplanner.federation.validation import ValidationSet, errors_of_clients
from bgtplanner.models.interactions import (
    CLIENTS,
    COPIED,
    DIVIDED,
    Interactions,
    Layout,
    Parts,
    Shared,
    Upload,
    where_users,
)
from bgtplanner.models.learner import Learner, Local
from bgtplanner.models.metrics import tally
from bgtplanner.models.optimizers import Memory, Noise, Server

__all__ = [
    "Arriving",
    "Computed",
    "Data",
    "Draw",
    "Extras",
    "Federation",
    "Heldout",
    "Outcome",
    "Part",
    "Shown",
    "State",
    "Uploaded",
    "by_chunk",
]


class Draw(IntEnum):
    """The random draws of a round.

    Each has a key of its own: one draw that becomes visible (which items are pseudo items) must
    say nothing about another (the noise).
    """

    WHO = 0
    PSEUDO_ITEMS = 1
    PSEUDO_ROWS = 2
    NOISE = 3
    VALIDATION = 4


class State(NamedTuple):
    """Everything that one round passes to the next."""

    shared: Shared
    local: Local
    memory: Memory


class Heldout(NamedTuple):
    """Ratings that no client trains on; they may be divided into the chunks of the others."""

    user: Array
    item: Array
    value: Array
    parts: Parts | None = None

    @classmethod
    def of(cls, ratings: Ratings, interactions: Interactions) -> Heldout:
        """Return these ratings, divided as the training ratings are."""
        user, item, value = map(interactions.put, (ratings.user, ratings.item, ratings.value))
        return cls(user, item, value, interactions.parts_of(ratings.user))


class Arriving(NamedTuple):
    """Training ratings by the round in which they arrive, each ``[rounds, most of a round]``.

    Attributes:
        user: User of each.
        item: Item of each.
        value: The rating.
        weight: 1; 0 where a round has fewer than the most.
    """

    user: Array
    item: Array
    value: Array
    weight: Array

    @classmethod
    def of(cls, split: Split, put: Callable[[NDArray[Any]], Array]) -> Arriving:
        """Return the ratings that arrive after the first round; those before are history."""
        late = np.flatnonzero(split.arrival > 0)
        late = late[np.argsort(split.arrival[late], kind="stable")]
        row = split.arrival[late]
        counts = np.bincount(row, minlength=1)
        place = np.arange(len(late)) - (np.cumsum(counts) - counts)[row]

        def filled(column: NDArray[Any]) -> Array:
            made = np.zeros((len(counts), max(1, int(counts.max()))), dtype=column.dtype)
            made[row, place] = column[late]
            return put(made)

        train = split.train
        return cls(*map(filled, (train.user, train.item, train.value, np.ones_like(train.value))))


class Data(NamedTuple):
    """What a run is trained and evaluated on, as it lies on the device.

    Attributes:
        interactions: The training ratings.
        heldout: The test ratings.
        arriving: Training ratings by their arrival, where that has a real order.
        aside: The clients' validation sets, if they have any.
    """

    interactions: Interactions
    heldout: Heldout
    arriving: Arriving | None
    aside: ValidationSet | None


class Shown(NamedTuple):
    """What goes to a third party beside the uploads.

    Attributes:
        own: The users' embeddings, protected as part of the upload, ``[n_users, dim]``.
        sends: Which users' clients took part, ``[n_users]``.
    """

    own: Array
    sends: Array


class Outcome(NamedTuple):
    """The outcome of a round, still on the device.

    Attributes:
        scores: The sums of :func:`bgtplanner.models.metrics.tally` on the held-out ratings.
        loss: Mean loss of the participating clients, at the parameters before the step.
        clients: How many clients took part.
        aggregate: The released mean that the server learned from, flat.
        noise_std: Standard deviation of the noise on each of its coordinates; 0 without noise,
            NaN if it differs between coordinates (unit ``row``).
        dropped: Number of uploads that the server did not accept.
        validation: The released validation error after the step, and the standard deviation of
            its noise; None if none was released.
        shown: What went to a third party, if anything did.
        norms: Norm of each client's own noisy gradient, averaged over its blocks, if every client
            has a clip of its own (unit ``row``).
    """

    scores: dict[str, Any]
    loss: Array
    clients: Array
    aggregate: Array
    noise_std: Array
    dropped: Array
    validation: tuple[Array, Array] | None = None
    shown: Shown | None = None
    norms: Array | None = None


class Uploaded(NamedTuple):
    """A round after the clients have uploaded, before the server steps.

    Attributes:
        local: What clients keep.
        losses: The loss of each client.
        takes_part: 1 for each client that takes part.
        released: What the server sees.
        aggregate: The mean in it, flat.
        shown: What goes to a third party, if anything does.
    """

    local: Local
    losses: Array
    takes_part: Array
    released: Released
    aggregate: Array
    shown: Shown | None

    def completed(self, outcome: Outcome) -> Outcome:
        """Return the outcome of the round, with what was released."""
        return outcome._replace(
            aggregate=self.aggregate,
            noise_std=self.released.noise_std,
            dropped=self.released.dropped,
            shown=self.shown,
            norms=self.released.norms,
        )


class Extras(Protocol):
    """What a run adds to its rounds beyond the learner and the protection; hashable.

    Those of the paper are in :mod:`bgtplanner.paper.extras`.
    """

    def check(self, model: Learner, protection: Protection | None) -> None:
        """Refuse a model or a protection that does not go with these extras."""

    def begin(self, model: Learner, local: Local, interactions: Interactions) -> Local:
        """Return what clients keep before the first round."""

    def items(self, key: Array, index: Array, interactions: Interactions) -> Array | None:
        """Return further items that clients name, ``[n_clients, number]``, -1 for no item."""

    def rows(
        self, key: Array, index: Array, upload: Upload, interactions: Interactions
    ) -> ExtraRows | None:
        """Return further rows that each client uploads; `key` is the key of the run."""

    def shows(self, index: int) -> bool:
        """Return whether something goes to a third party in this round."""

    def own(self, model: Learner, local: Local) -> Array:
        """Return what goes there for each user, as part of the client's upload."""

    def told(
        self, model: Learner, local: Local, shown: Shown, known: Ratings, bound: float | None
    ) -> Local:
        """Return what clients keep once the third party has answered.

        `known` are the ratings that have arrived, `bound` is the clip of what was shown.
        """


class Part(NamedTuple):
    """Some clients, as a federation of their own.

    Attributes:
        interactions: Their training ratings.
        local: What they keep.
        given: What all clients are given: the parameters, and terms if there are any.
        clients: Further arrays with an entry per client; 0 for a client that is not there.
        asked: User and item of each list of pairs to predict.
    """

    interactions: Interactions
    local: Local
    given: Any
    clients: tuple[Array, ...] = ()
    asked: Sequence[tuple[Array, Array]] = ()


class Computed(NamedTuple):
    """What is computed for some clients.

    Attributes:
        local: What they keep.
        of_clients: A tree of arrays with an entry per client.
        answers: An array for each list of pairs that was asked for.
        sums: A tree of arrays that are added up over all clients.
    """

    local: Local
    of_clients: Any = ()
    answers: Sequence[Array] = ()
    sums: Any = ()


def by_chunk(
    compute: Callable[[Part], Computed],
    interactions: Interactions,
    local: Local,
    given: Any,
    *,
    clients: tuple[Array, ...] = (),
    asked: Sequence[Heldout | ValidationSet] = (),
) -> Computed:
    """Return what is computed for all clients, chunk by chunk, so that memory is bounded.

    Several devices go through their own chunks at the same time, and add up their sums. What is
    computed must not depend on anything random: noise is drawn once, for the sum of all.
    """
    layout = interactions.layout
    if layout is None or layout.chunks == 1 or any(each.parts is None for each in asked):
        pairs = [(each.user, each.item) for each in asked]
        return compute(Part(interactions, local, given, clients, pairs))
    most_users, mesh = layout.users.shape[1], layout.mesh

    def scanned(
        interactions: Interactions, parts: list[Array], whole: tuple[Any, ...]
    ) -> tuple[Any, Computed]:
        """Go through the chunks that are on this device, one by one."""
        layout = cast(Layout, interactions.layout)
        local, given, clients, asked = whole

        def of_chunk(number: Array) -> Computed:
            users, members = layout.users[number], layout.clients[number]
            there = members < interactions.n_clients
            first_user = (interactions.first_chunk + number) * most_users
            pairs = []
            for (user, item), members_of in zip(asked, parts, strict=True):
                if not user.size:
                    pairs.append((user, item))
                    continue
                which = members_of[number]
                own_user = layout.place_of_user[user[which]] - first_user
                pairs.append((jnp.clip(own_user, 0, most_users - 1), item[which]))
            own = jax.tree.map(lambda leaf: leaf[users], local)
            of_clients = tuple(jnp.where(there, part[members], 0) for part in clients)
            return compute(Part(interactions.chunk(number), own, given, of_clients, pairs))

        def one(sums: Any, number: Array) -> tuple[Any, Computed]:
            done = of_chunk(number)
            return jax.tree.map(jnp.add, sums, done.sums), done._replace(sums=())

        shapes = jax.eval_shape(of_chunk, jnp.int32(0)).sums
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        sums, stacked = jax.lax.scan(one, nothing, jnp.arange(layout.chunks, dtype=jnp.int32))
        if mesh is not None:
            sums = jax.lax.psum(sums, CLIENTS)  # type: ignore[no-untyped-call]
        return sums, stacked

    parts = [cast(Parts, each.parts).members for each in asked]
    whole = local, given, clients, [(each.user, each.item) for each in asked]
    scan = scanned
    if mesh is not None:
        scan = jax.shard_map(
            scanned,
            mesh=mesh,
            in_specs=(interactions.specs, DIVIDED, COPIED),
            out_specs=(COPIED, DIVIDED),
            check_vma=False,
        )
    sums, stacked = scan(interactions, parts, whole)

    def placed(leaf: Array, place: Array) -> Array:
        whole = leaf.reshape(leaf.shape[0] * leaf.shape[1], *leaf.shape[2:])
        return whole[place] if place.size else whole[:0]

    return Computed(
        jax.tree.map(lambda leaf: placed(leaf, layout.place_of_user), stacked.local),
        jax.tree.map(lambda leaf: placed(leaf, layout.place_of_client), stacked.of_clients),
        [
            placed(leaf, cast(Parts, each.parts).place)
            for leaf, each in zip(stacked.answers, asked, strict=True)
        ],
        sums,
    )


@dataclass(frozen=True, kw_only=True)
class Federation:
    """Everything that is constant over a run: the model, the server, and who takes part.

    Attributes:
        model: What is learned.
        server: How uploads become steps, unless the model defines that itself.
        participation: Share of the clients that take part in a round, drawn for each round.
        protection: How uploads are protected; None for no protection.
        extras: What else belongs to a round, if anything.
    """

    model: Learner
    server: Server
    participation: float = 1.0
    protection: Protection | None = None
    extras: Extras | None = None

    def __post_init__(self) -> None:
        unless = ConfigError.unless
        unless(0 < self.participation <= 1, "participation", self.participation, "above 0, to 1")
        if self.protection is not None and self.model.plain_mean:
            unit, name = self.protection.of, type(self.model).__name__.lower()
            unless(unit.sound, "unit", unit.name, f"client, for the model {name}")
        if self.extras is not None:
            self.extras.check(self.model, self.protection)

    def initial(self, key: Array, interactions: Interactions) -> State:
        """Return the state before the first round."""
        shared, local = first_parameters(
            self.model, key, interactions.n_users, interactions.features
        )
        if self.extras is not None:
            local = self.extras.begin(self.model, local, interactions)
        return State(shared, local, self.model.server_initial(shared, self.server))

    def round(
        self,
        state: State,
        interactions: Interactions,
        heldout: Heldout,
        index: Array,
        key: Array,
        terms: Terms | None = None,
        aside: ValidationSet | None = None,
        shows: bool = False,
    ) -> tuple[State, Outcome]:
        """Compute one round, a pure function: the same arguments give the same bits.

        Args:
            state: The state after the previous round.
            interactions: The training ratings.
            heldout: Ratings to evaluate on.
            index: Index of the round.
            key: Key of the run.
            terms: Who may release, and how; required with a protection.
            aside: Ratings to validate on once the server has stepped: a second release.
            shows: Whether a third party also sees part of the upload.
        """
        sent = self.uploaded(state, interactions, index, key, terms, shows)
        shared, memory = self.stepped(state, sent, terms)
        after, outcome = self.served(
            State(shared, sent.local, memory), sent.losses, sent.takes_part,
            interactions, heldout, index, key, terms, aside,
        )  # fmt: skip
        return after, sent.completed(outcome)

    def uploaded(
        self,
        state: State,
        interactions: Interactions,
        index: Array,
        key: Array,
        terms: Terms | None = None,
        shows: bool = False,
    ) -> Uploaded:
        """Compute the first part of a round: what clients do before the server steps."""
        interactions, keys = interactions.at(index), jax.random.fold_in(key, index)
        drawn = self._takes_part(jax.random.fold_in(keys, Draw.WHO), interactions.n_clients)
        takes_part = drawn if terms is None else terms.granted
        of_users = takes_part[interactions.client_of_user] > 0
        noise_key = jax.random.fold_in(keys, Draw.NOISE)

        # 3. Clients fit their local state to the parameters they were sent, and train.
        # 4. They protect and upload.
        if self.adds_up and interactions.chunks > 1:
            local, losses, sent = self._summed_by_chunk(
                noise_key, state, interactions, terms, takes_part
            )
        else:
            local = self.model.personalise(state.shared, state.local, interactions)
            trained = self.model.train(state.shared, local, interactions)
            extra, own = None, None
            if self.extras is not None:
                extra = self.extras.rows(key, index, trained.upload, interactions)
                own = self.extras.own(self.model, local) if shows else None
            sent = self._sent(
                noise_key, trained.upload, interactions, terms, takes_part, extra, own
            )
            local, losses = where_users(of_users, trained.local, local), trained.loss
        shown = None if sent.own is None else Shown(sent.own, of_users)
        aggregate = jnp.concatenate([part.ravel() for part in sent.aggregate.gradient])
        return Uploaded(local, losses, takes_part, sent, aggregate, shown)

    def stepped(
        self, state: State, sent: Uploaded, terms: Terms | None = None
    ) -> tuple[Shared, Memory]:
        """Compute the second part of a round: the server steps."""
        return self._stepped(state, sent.released, sent.takes_part.sum(), terms)

    def served(
        self,
        state: State,
        losses: Array,
        takes_part: Array,
        interactions: Interactions,
        heldout: Heldout,
        index: Array,
        key: Array,
        terms: Terms | None = None,
        aside: ValidationSet | None = None,
    ) -> tuple[State, Outcome]:
        """Compute the last part: all clients receive the new parameters, and predict with them.

        The outcome is that of the round, except for what was released before the server stepped.
        """
        interactions, keys = interactions.at(index), jax.random.fold_in(key, index)
        asked: list[Heldout | ValidationSet] = [heldout]
        if aside is not None:
            asked.append(aside)
        served = self._served(state.shared, state.local, interactions, asked)
        validation = None
        if self._sound is not None and terms is not None and aside is not None:
            errors = errors_of_clients(served.answers[1], aside, interactions, index)
            draw = jax.random.fold_in(keys, Draw.VALIDATION)
            validation = self._sound.validate(draw, errors, terms)
        outcome = self._outcome(served.answers[0], interactions, heldout, losses, takes_part)
        if self._sound is not None:  # a client without a rating uploads as well: noise, or zeros
            outcome = outcome._replace(clients=takes_part.sum())
        return state._replace(local=served.local), outcome._replace(validation=validation)

    def rest(
        self, state: State, interactions: Interactions, heldout: Heldout, index: Array
    ) -> tuple[State, Outcome]:
        """Compute a round in which nothing leaves any client: only local state is updated."""
        interactions, model = interactions.at(index), self.model

        def alone(part: Part) -> Computed:
            shared = part.given
            local = model.personalise(shared, part.local, part.interactions)
            trained = model.train(shared, local, part.interactions)
            predicted = [
                model.predict(shared, trained.local, part.interactions, *pairs)
                for pairs in part.asked
            ]
            return Computed(trained.local, trained.loss, predicted)

        done = by_chunk(alone, interactions, state.local, state.shared, asked=[heldout])
        after = state._replace(local=done.local)
        everyone = jnp.ones(interactions.n_clients)
        outcome = self._outcome(done.answers[0], interactions, heldout, done.of_clients, everyone)
        return after, outcome._replace(clients=jnp.zeros(()))

    def error_before(
        self, state: State, interactions: Interactions, arriving: Arriving, index: Array
    ) -> tuple[Array, Array]:
        """Return the squared errors, in sum, of what arrives in a round, and how many that are.

        They are predicted as they would have been shown: by the state after the round before.
        """
        row = jnp.minimum(index, arriving.user.shape[0] - 1)
        user, item, value, weight = (part[row] for part in arriving)
        weight = weight * (row == index)
        known = interactions.at(index - 1)
        predicted = self.model.predict(state.shared, state.local, known, user, item)
        return (weight * (predicted - value) ** 2).sum(), weight.sum()

    @property
    def adds_up(self) -> bool:
        """Whether the server needs only sums of uploads, so that their order does not matter.

        Otherwise what is drawn for each row depends on where the row is.
        """
        return self.extras is None and (self.protection is None or self.protection.adds_up)

    def lay_out(
        self,
        ratings: Ratings,
        arrival: NDArray[np.int32] | None,
        mesh: Mesh | None = None,
        *,
        always: bool = False,
    ) -> Interactions:
        """Return training ratings, laid out as well as what is drawn for them allows."""
        if self.order == "none":
            return Interactions.laid_out(ratings, arrival, mesh=mesh, always=always)
        if self.order == "pairs":
            return Interactions.laid_out(ratings, arrival, ordered=True, always=always)
        return Interactions.of(ratings, arrival)

    @property
    def order(self) -> Literal["none", "pairs", "edges"]:
        """Whose order matters: of nothing, of client-item pairs only, or of all edges."""
        if self.adds_up:
            return "none"
        pairs = self.extras is None and self.protection is not None and self.protection.sums
        return "pairs" if pairs else "edges"

    def _summed_by_chunk(
        self,
        key: Array,
        state: State,
        interactions: Interactions,
        terms: Terms | None,
        takes_part: Array,
    ) -> tuple[Local, Array, Released]:
        """Return what clients keep, their losses, and what the server sees of the uploads."""
        model, protection = self.model, self.protection
        how: Any = "clients" if model.plain_mean else self.server.aggregation

        def trained(part: Part) -> Computed:
            known, (here, of_class) = part.interactions, part.clients
            shared, terms = part.given
            local = model.personalise(shared, part.local, known)
            found = model.train(shared, local, known)
            sums: Any
            if protection is None or terms is None:
                sums = sums_of(found.upload, known, here, how)
            else:
                own = terms._replace(granted=here, class_of_client=of_class)
                sums = clipped_sum(protection, found.upload, known, own)
            kept = where_users(here[known.client_of_user] > 0, found.local, local)
            return Computed(kept, found.loss, sums=sums)

        classes = jnp.zeros(interactions.n_clients, jnp.int32)
        classes = classes if terms is None else terms.class_of_client
        given, of_clients = (state.shared, terms), (takes_part, classes)
        done = by_chunk(trained, interactions, state.local, given, clients=of_clients)
        if protection is None or terms is None:
            sent = Released(done.sums.mean(how), jnp.zeros(()), jnp.zeros(()))
        else:
            sent = release_sum(protection, key, done.sums, terms)
        return done.local, done.of_clients, sent

    def _served(
        self,
        shared: Shared,
        local: Local,
        interactions: Interactions,
        asked: Sequence[Heldout | ValidationSet],
    ) -> Computed:
        """Return local state that fits these parameters, and predictions of what is asked for."""
        model = self.model

        def fitted(part: Part) -> Computed:
            shared = part.given
            local = model.personalise(shared, part.local, part.interactions)
            predicted = [
                model.predict(shared, local, part.interactions, *pairs) for pairs in part.asked
            ]
            return Computed(local, answers=predicted)

        return by_chunk(fitted, interactions, local, shared, asked=asked)

    def _sent(
        self,
        key: Array,
        upload: Upload,
        interactions: Interactions,
        terms: Terms | None,
        takes_part: Array,
        extra: ExtraRows | None,
        own: Array | None,
    ) -> Released:
        """Return what the server sees of the uploads."""
        how = "clients" if self.model.plain_mean else self.server.aggregation

        def combine(sent: Upload) -> Aggregate:
            return aggregate(sent, interactions, takes_part, how, extra)

        if self.protection is None or terms is None:
            return Released(combine(upload), jnp.zeros(()), jnp.zeros(()), own)
        blocks = self.model.dense_blocks
        return self.protection.release(
            key, upload, interactions, terms, own, blocks=blocks, combine=combine
        )

    def _stepped(
        self, state: State, sent: Released, answered: Array, terms: Terms | None
    ) -> tuple[Shared, Memory]:
        """Return the result of the server's step, which uses what is known about the noise."""
        clients = jnp.maximum(answered, 1.0)
        noise = Noise(
            std=jnp.where(answered > 0, sent.noise_std, jnp.inf),  # without answers: all noise
            clip=jnp.inf if terms is None else terms.clip.max(),
            clients=clients,
            norm=None if self._sound is None else self._sound.norm,
        )
        mean = sent.aggregate
        if self._sound is not None and terms is not None:
            size = sum(part.size for part in mean.gradient)
            noise = noise._replace(reach=self._sound.reach(terms, size) / self._sound.count(terms))
        return self.model.server_update(state.shared, state.memory, mean, noise, self.server)

    def _outcome(
        self,
        predicted: Array,
        interactions: Interactions,
        heldout: Heldout,
        losses: Array,
        takes_part: Array,
    ) -> Outcome:
        """Return the outcome of a round, except for what was released in it."""
        active = takes_part * (interactions.ratings_of_clients > 0)
        return Outcome(
            scores=tally(predicted, heldout.value),
            loss=(losses * active).sum() / jnp.maximum(active.sum(), 1.0),
            clients=active.sum(),
            aggregate=jnp.zeros(0),
            noise_std=jnp.zeros(()),
            dropped=jnp.zeros(()),
        )

    def received(self, state: State, total: Array, terms: Terms) -> tuple[State, Released]:
        """Compute the server's part of a round whose uploads were made on real clients.

        Args:
            state: The state after the previous round; clients keep their local part.
            total: Sum of the uploads that were accepted, flat.
            terms: The terms of the uploads; granted are the clients whose upload is in the sum.

        Raises:
            ConfigError: If uploads are not protected client by client.
        """
        protection = self.protection
        if protection is None or protection.unit != "client":
            raise ConfigError(f"protection = {protection}: expected one of unit client")
        return self.summed(state, total, terms)

    def summed(self, state: State, total: Array, terms: Terms) -> tuple[State, Released]:
        """Do the same with a sum that was made elsewhere, under either trust."""
        protection = cast(Protection, self._sound)
        n_items, number = state.shared.items.shape[0], terms.granted.sum()
        width = (total.shape[0] - state.shared.dense.shape[0]) // n_items
        released = protection.mean(as_shared(total, n_items, width), number, terms)
        shared, memory = self._stepped(state, released, number, terms)
        return State(shared, state.local, memory), released

    @property
    def _sound(self) -> Protection | None:
        """The protection, if it protects whole clients."""
        sound = self.protection is not None and self.protection.of.sound
        return self.protection if sound else None

    def _takes_part(self, key: Array, n_clients: int) -> Array:
        if self.participation >= 1:
            return jnp.ones(n_clients)
        wanted = max(1, round(self.participation * n_clients))
        return (jax.random.permutation(key, n_clients) < wanted).astype(jnp.float32)
