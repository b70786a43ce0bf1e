"""A federation of which some clients are hostile.

Honest uploads are summed as a simulation sums them, with exactly the distribution of their noise;
what hostile clients send is put beside them one by one, screened as a server on real machines
screens it, and the server steps by what is left.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from scipy.stats import rankdata

from bgtplanner.federation.client import flat_upload
from bgtplanner.federation.outliers import OutlierTests
from bgtplanner.federation.parameters import RoundParameters, round_parameters
from bgtplanner.federation.rounds import Federation, State
from bgtplanner.models.bias import Biases
from bgtplanner.models.interactions import Interactions, Shared
from bgtplanner.models.metrics import Metrics, tally
from bgtplanner.privacy.mechanisms import Limits, clip_factor
from bgtplanner.runs.assembly import accountant_of, federation_of
from bgtplanner.runs.config import load_config
from bgtplanner.runs.prepared import ratings_of, split_of

Floats = NDArray[np.float64]

CHARGES = {
    "local": ((0, 0.6), (99, 9.4)),
    "secagg": ((0, 0.24), (97, 1.254), (98, 1.254), (99, 1.254)),
}
"""Rounds in which the preset `recommended` asks for uploads at epsilon 10, and their charges."""

_QUICK = {"xla_backend_optimization_level": 0}  # there is more to compile here than to compute
_OBSCURE = (2, 8)  # ratings of a target, at least and at most


class Scene(NamedTuple):
    """What a hostile client knows when it makes its upload: more than a real one would.

    Attributes:
        rng: Its randomness.
        number: How many act together.
        target: The item to be lifted.
        own: Their honest, clipped uploads, ``[number, coordinates]``.
        mean: Everybody's honest mean upload, without noise.
        clip: Of the round.
        scale: Of its noise.
        charge: Of the round.
        limits: What an honest upload stays within.
        local: Whether they send noised uploads one by one, or are summed.
    """

    rng: np.random.Generator
    number: int
    target: int
    own: Floats
    mean: Floats
    clip: float
    scale: float
    charge: float
    limits: Limits
    local: bool


class Attack(Protocol):
    """What hostile clients send."""

    def __call__(self, scene: Scene) -> Floats:
        """One upload a row, ``[number, coordinates]``."""
        ...


class Played(NamedTuple):
    """What came of a run.

    Attributes:
        rmse: On the test ratings.
        ranks: Place of every item by its mean predicted rating; 1 is the first.
        rejected: Share of the hostile uploads that the server did not accept.
    """

    rmse: float
    ranks: Floats
    rejected: float


class World:
    """Ratings, a federation and its protection, for any number of hostile clients.

    Args:
        trust: ``local`` (PrivUnit) or ``secagg`` (Gaussian noise), at epsilon 10.
        seed: Of the split, the noise, the targets and of who is hostile.
        settings: Others of a run, such as its data set.
        targets: How many obscure items to choose.
        most: Largest share of hostile clients.
    """

    def __init__(
        self,
        trust: str,
        seed: int,
        settings: dict[str, Any],
        *,
        targets: int = 3,
        most: float = 0.05,
    ) -> None:
        named = {"privacy.trust": trust, "run.seed": seed, **settings}
        config = load_config(settings=named)
        ratings = ratings_of(config)
        split = split_of(config, ratings)
        self.trust, self.seed, self.clip = trust, seed, config.privacy.clip
        self.federation = federation_of(config, ratings.n_items)
        self.accountant, self.n_clients = accountant_of(config), ratings.n_clients
        self.coordinates = 2 * ratings.n_items
        self._interactions = Interactions.of(split.train, split.arrival)
        self._test = tuple(
            jnp.asarray(part) for part in (split.test.user, split.test.item, split.test.value)
        )
        rated = np.bincount(split.train.item, minlength=ratings.n_items)
        obscure = np.flatnonzero((rated >= _OBSCURE[0]) & (rated <= _OBSCURE[1]))
        self.targets = np.random.default_rng([seed, 1]).choice(obscure, targets, replace=False)
        self._order = np.random.default_rng([seed, 2]).permutation(self.n_clients)
        self._most = self._order[: self.colluders(most)]  # always as many: one program

    def colluders(self, share: float) -> int:
        """How many clients a share of them is: at least one."""
        return max(1, round(share * self.n_clients))

    def play(
        self,
        attack: Attack | None = None,
        *,
        number: int = 0,
        target: int = 0,
        screens: bool = True,
        discounts: int = 0,
    ) -> Played:
        """All rounds.

        Args:
            attack: What hostile clients do.
            number: How many there are.
            target: The item that they lift.
            screens: Whether the server screens single uploads, where it sees any.
            discounts: `server.hostile_clients`.
        """
        server = replace(self.federation.server, hostile_clients=discounts)
        federation = replace(self.federation, server=server)
        hostile = np.zeros(self.n_clients, dtype=bool)
        hostile[self._order[:number]] = True
        local = self.trust == "local"
        screen = OutlierTests("privunit")
        rng = np.random.default_rng([self.seed, 3])
        state = federation.initial(jax.random.key(self.seed), self._interactions)
        sent = rejected = 0
        for index, charge in CHARGES[self.trust]:
            terms = self._terms(charge, ~hostile)
            key = jax.random.fold_in(jax.random.key(self.seed), index)
            found = _honest(
                self.federation,
                state,
                self._interactions,
                jnp.int32(index),
                key,
                terms,
                self._most,
            )
            total, own, mean = (np.asarray(part, dtype=np.float64) for part in found)
            own = own[:number]
            accepted = ~hostile
            if attack is not None:
                protection = federation.protection
                assert protection is not None  # by its config
                by_class = jax.device_get(protection.limits(terms, self.coordinates))
                limits = Limits(*(float(part[0]) for part in by_class))
                clip, scale = float(terms.clip[0]), float(terms.scale[0])
                rows = attack(
                    Scene(rng, number, target, own, mean, clip, scale, charge, limits, local)
                )
                out: dict[int, str] = {}
                if local and screens:
                    uploads = dict(enumerate(rows))
                    out = screen.rejected(
                        uploads,
                        dict.fromkeys(uploads, scale),
                        dict.fromkeys(uploads, limits),
                        beside=total,
                    )
                kept = [row for row in range(number) if row not in out]
                total = total + rows[kept].sum(axis=0)
                accepted = accepted.copy()
                accepted[self._order[:number][kept]] = True
                sent, rejected = sent + number, rejected + len(out)
            heard = self._terms(charge, accepted)
            state = _learned(federation, state, jnp.asarray(total, dtype=jnp.float32), heard)
        scores, places = _judged(
            federation.model, state.shared, self._interactions.at(99), *self._test
        )
        ranks = rankdata(-np.asarray(places, dtype=np.float64))
        rmse = Metrics.of(jax.device_get(scores)).rmse
        return Played(rmse, ranks, rejected / sent if sent else 0.0)

    def _terms(self, charge: float, granted: NDArray[np.bool_]) -> RoundParameters:
        classes = np.zeros(self.n_clients, dtype=np.int32)
        return round_parameters(
            self.accountant, self.trust, self.clip, np.array([charge]), granted, classes
        )


@partial(jax.jit, static_argnums=0, compiler_options=_QUICK)
def _honest(
    federation: Federation,
    state: State,
    interactions: Interactions,
    index: Array,
    key: Array,
    terms: RoundParameters,
    hostile: Array,
) -> tuple[Array, Array, Array]:
    """Sum of the noised honest uploads; clipped uploads of some clients; the clean mean."""
    interactions = interactions.at(index)
    local = federation.model.personalise(state.shared, state.local, interactions)
    upload = federation.model.train(state.shared, local, interactions).upload
    assert federation.protection is not None
    released = federation.protection.release(key, upload, interactions, terms)
    total = released.aggregate.gradient.items.ravel() * terms.granted.sum()
    squares = jax.ops.segment_sum(
        (upload.rows**2).sum(1), interactions.pair_client, interactions.n_clients
    )
    factor = clip_factor(jnp.sqrt(squares), terms.clip[terms.class_of_client])
    rows = upload.rows * factor[interactions.pair_client, None]

    def flat(chosen: Array) -> Array:
        return flat_upload(rows * chosen[:, None], jnp.zeros(0), interactions)

    own = jax.lax.map(lambda client: flat(interactions.pair_client == client), hostile)
    return total, own, flat(jnp.ones(len(rows))) / interactions.n_clients


@partial(jax.jit, static_argnums=0, compiler_options=_QUICK)
def _learned(federation: Federation, state: State, total: Array, terms: RoundParameters) -> State:
    return federation.received(state, total, terms)[0]


@partial(jax.jit, static_argnums=0, compiler_options=_QUICK)
def _judged(
    model: Biases,
    shared: Shared,
    interactions: Interactions,
    user: Array,
    item: Array,
    value: Array,
) -> tuple[Any, Array]:
    """Scores on the test ratings, and every item's mean predicted rating but for a constant."""
    users = model.personalise(shared, None, interactions)
    scores = tally(model.predict(shared, users, interactions, user, item), value)
    lean = users.mean(axis=0)
    return scores, shared.items[:, 0] * (1.0 + lean[2]) + shared.items[:, 1] * lean[1]
