"""Training where the ratings already lie together, for a model that is to be published.

Trust is ``central``: whoever runs this holds the ratings and is trusted with them; whoever sees
the model is not. Unlike in a simulation, the noise is real. Each client's upload is bounded in
double precision and cut to the grid of the noise, so that sums are exact and one client moves them
by at most the clip (the sensitivity for ``replace-special``, its relation: a client's upload
against nothing in its place). The sum gets noise from the operating system, drawn exactly, once.
Neither the noise nor a seed of it is kept. What the server makes of the sums is the same as
everywhere: it sees nothing else.
"""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from bgtplanner.federation.parameters import RoundParameters
from bgtplanner.federation.result import RoundResult, Seen
from bgtplanner.federation.rounds import Federation, State
from bgtplanner.federation.simulation import Simulation
from bgtplanner.models.interactions import Interactions
from bgtplanner.models.metrics import Metrics
from bgtplanner.planning.plan import Plan
from bgtplanner.privacy.mechanisms import clip_factor, mechanism_named
from bgtplanner.privacy.randomness import ExactNoise, SystemNoise

Floats = NDArray[np.float64]

_ROOM = 1e-6  # by which bounds are smaller and noise is larger, for numbers of single precision


class CentralTraining(Simulation):
    """All clients on one trusted machine, with noise that no one can repeat.

    Its split holds nothing out, and all ratings are there from the start. A `noise` other than
    the operating system's is for tests, and for models that are marked as not private. Clients
    that are not `here` have a place in the ledger, and take no part.
    """

    noise: ExactNoise = SystemNoise()
    here: NDArray[np.bool_] | None = None
    everyone_joins: ClassVar[bool] = False

    def present(self) -> NDArray[np.bool_]:
        """Return which clients take part at all: all of them, unless it was said who does."""
        return np.ones(self.n_clients, dtype=bool) if self.here is None else self.here

    def step(
        self, parameters: RoundParameters | None = None, plan: Plan | None = None
    ) -> RoundResult:
        """Run a round that was paid for: fit, bound, sum, add noise, and let the server learn.

        Each upload is bounded by what its own client has paid; that of one that has not is zero.
        """
        del plan
        if parameters is None:
            raise ValueError("a training that is to be published is paid for by everyone in it")
        bounds = np.asarray(parameters.clip, dtype=np.float64)[parameters.class_of_client]
        bounds = bounds * np.asarray(parameters.granted)
        clip, scale = float(bounds.max()), float(parameters.scale.max()) * (1 + _ROOM)
        kind = mechanism_named(self._mechanism)
        kind.check_sums(self.n_clients, clip, scale)
        local, total, dropped = self._sums(bounds, scale)
        (noisy,) = kind.randomise(total[None], self.noise, scale=scale, bound=clip, charge=0.0)
        state = State(self.state.shared, local, self.state.memory)
        heard = jnp.asarray(noisy, jnp.float32)
        self.state, released = self._run(Federation.received, state, heard, parameters)
        self.seen = Seen.of(released)
        return self._over(int(parameters.granted.sum()), dropped)

    def rest(self) -> RoundResult:
        """Let a round pass in which nothing is released: nothing changes."""
        self.seen = Seen()
        return self._over(0, 0)

    def _over(self, clients: int, dropped: int) -> RoundResult:
        index, self.next_round = self.next_round, self.next_round + 1
        return RoundResult(
            round=index, metrics=Metrics(), loss=None, clients=clients, ratings=None,
            dropped=dropped,
        )  # fmt: skip

    @property
    def _mechanism(self) -> str:
        protection = self.federation.protection
        if protection is None or not protection.adds_up:
            raise ValueError("only sums with additive noise are released")
        return protection.mechanism

    def _sums(self, clip: Any, scale: float) -> tuple[Any, Floats, int]:
        """Return what clients keep, the sum of their bounded uploads, and how many were invalid.

        The clip is one for all, or each client's own.
        It goes through the clients chunk by chunk, and keeps only sums. All are exact: whole
        steps of the grid, of which doubles hold as many as there can be.
        """
        known, kind, kept = self._known, mechanism_named(self._mechanism), []
        total, dropped = np.zeros(0), 0
        bounds = np.append(np.broadcast_to(clip, self.n_clients), 0.0)  # the last: of no one
        for number in range(known.chunks):
            own, *upload, client, item = self._run(_of_chunk, self.state, known, np.int32(number))
            kept.append(own)
            client, item = np.asarray(client), np.asarray(item)
            rows, dense = (np.asarray(part, dtype=np.float64) for part in upload)
            size = np.bincount(client, kind.sizes(rows).sum(axis=1), len(dense) + 1)[: len(dense)]
            norm = kind.root(size + kind.sizes(dense).sum(axis=1))
            good = np.isfinite(norm)
            whose = known.clients.members[number] if known.chunks > 1 else np.arange(len(good))
            bound = bounds[np.asarray(whose)]
            factor = clip_factor(np.where(good, norm, 1.0), np.maximum(bound, 1e-30))
            factor = np.where(good & (bound > 0), factor, 0.0)
            rows = np.where(np.isfinite(rows), rows, 0.0) * np.append(factor, 0.0)[client][:, None]
            dense = np.where(good[:, None], dense, 0.0) * factor[:, None]
            rows, dense = kind.on_grid(rows, scale), kind.on_grid(dense, scale)
            columns = [np.bincount(item, of, self.n_items + 1)[: self.n_items] for of in rows.T]
            flat = np.concatenate([np.stack(columns, axis=1).ravel(), dense.sum(axis=0)])
            total = total + flat if number else flat
            dropped += int((~good).sum())
        if known.chunks == 1:
            return kept[0], total, dropped
        place = known.users.place
        return jax.tree.map(lambda *of: jnp.concatenate(of)[place], *kept), total, dropped


def _of_chunk(
    federation: Federation, state: State, known: Interactions, number: Array
) -> tuple[Any, Array, Array, Array, Array]:
    """Return what the clients of a chunk keep, their uploads, and whose rows of what these are."""
    model, known = federation.model, known.at(0)
    own = state.local
    if known.chunks > 1:
        users = known.users.members[number]
        own, known = jax.tree.map(lambda leaf: leaf[users], own), known.chunk(number)
    local = model.personalise(state.shared, own, known)
    found = model.train(state.shared, local, known)
    return found.local, found.upload.rows, found.upload.dense, known.pair_client, known.pair_item
