"""The simulation: the round of `rounds.py`, compiled, for all clients at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from bgtplanner.data.split import Split
from bgtplanner.errors import ConfigError
from bgtplanner.federation.chunks import Heldout, Pairs, by_chunk
from bgtplanner.federation.compilation import FEW_RATINGS, compiled, padding_of
from bgtplanner.federation.coordinator import Engine
from bgtplanner.federation.parameters import RoundParameters
from bgtplanner.federation.protection import Released
from bgtplanner.federation.result import RoundResult, Seen
from bgtplanner.federation.rounds import Federation, Outcome, State
from bgtplanner.models.interactions import Interactions, Shared, laid_out
from bgtplanner.models.learner import Learner, Local
from bgtplanner.models.metrics import Metrics, tally
from bgtplanner.planning.plan import Plan


def pick_device(name: str) -> jax.Device:
    """Return the device called ``auto``, ``cpu`` or ``gpu``.

    Raises:
        ConfigError: If the machine has none of that kind.
    """
    if name == "auto":
        return jax.devices()[0]
    try:
        return jax.devices(name)[0]
    except RuntimeError as error:
        kinds = sorted({device.platform for device in jax.devices()})
        raise ConfigError(f"--device {name}: not available; this machine has {kinds}") from error


class Simulation(Engine):
    """A federation on one machine, stepped round by round.

    The seed is that of everything random in training.

    Attributes:
        state: Parameters, local state and optimizer memory after the last round.
        next_round: Index of the next round.
        seen: What the server saw in the last round.
    """

    everyone_joins: ClassVar[bool] = True

    def __init__(
        self, federation: Federation, split: Split, *, seed: int, device: str = "auto"
    ) -> None:
        self._made_with = federation, split, seed, device
        self.federation, self._split = federation, split
        self.n_clients, self.n_items = split.train.n_clients, split.train.n_items
        self.next_round, self.seen = 0, Seen()
        self._arrivals = np.sort(split.arrival)
        self._device, self._small = pick_device(device), len(split.train) <= FEW_RATINGS
        with jax.default_device(self._device):
            lay_out = laid_out if federation.adds_up else Interactions.of
            self._known = lay_out(split.train, split.arrival)
            self._heldout = Heldout.of(split.test, self._known)
        self._key, self.state = self._begun()

    def _begun(self) -> tuple[Array, State]:
        """Return the key of the rounds, and a state of its own before the first of them."""
        seed = np.uint32(self._made_with[2] & 0xFFFFFFFF)  # as jax.random.key does
        key, state = self._run(_first, self._known, seed)
        return key, state

    def _run(self, function: Callable[..., Any], *arrays: Any, **fixed: Any) -> Any:
        """Run a function of the federation on the device of this simulation."""
        with jax.default_device(self._device):
            found = compiled(function, self.federation, self._device, quickly=self._small, **fixed)
            return found(*arrays)

    @cached_property
    def _first_round(self) -> NDArray[np.int64]:
        """The round in which each client has its first rating, or 0 if they come in no order."""
        if not self._split.in_order:
            return np.zeros(self.n_clients, dtype=np.int64)
        first = np.full(self.n_clients, np.iinfo(np.int64).max)
        np.minimum.at(first, self._split.train.client, self._split.arrival)
        return first

    def present(self) -> NDArray[np.bool_]:
        """Return which clients have joined by the next round: they do with their first rating.

        Where ratings arrive in no real order, all are there from the start.
        """
        return np.asarray(self._first_round <= self.next_round)

    def evaluate(self) -> Metrics:
        """Return the current scores on the held-out ratings."""
        return Metrics.of(jax.device_get(self._run(_scores, *self._as_known(), self._heldout)))

    def step(
        self, parameters: RoundParameters | None = None, plan: Plan | None = None
    ) -> RoundResult:
        """Run the next round under parameters that were agreed and paid for.

        The plan is for engines on real machines; here the parameters say everything.
        """
        del plan
        before, index = self._error_before(), np.int32(self.next_round)
        known, key = self._known, self._key
        sent = self._run(Federation.uploaded, self.state, known, index, key, parameters)
        after = self._run(
            Federation.stepped, self.state._replace(local=sent.local), sent.released,
            sent.takes_part.sum(), parameters,
        )  # fmt: skip
        self.state, outcome = self._run(
            Federation.served, after, sent, known, self._heldout, index
        )
        return self._record(outcome, before, sent.released)

    def rest(self) -> RoundResult:
        """Run a round in which nothing leaves any client; ratings still arrive."""
        before, index = self._error_before(), np.int32(self.next_round)
        self.state, outcome = self._run(
            Federation.served, self.state, None, self._known, self._heldout, index
        )
        return self._record(outcome, before)

    def _error_before(self) -> float | None:
        """Return the RMSE on what arrives in the next round, as it would have been shown before.

        None if nothing arrives, or if ratings arrive in no real order.
        """
        if not self._split.in_order or not self.next_round:
            return None
        arriving = self._split.train.take(self._split.arrival == self.next_round)
        if not len(arriving):
            return None
        errors = self.predict(arriving.user, arriving.item) - arriving.value
        return float(np.sqrt((errors.astype(np.float64) ** 2).mean()))

    def _record(
        self, played: Outcome, before: float | None, seen: Released | None = None
    ) -> RoundResult:
        """Return the result of a round that was played, and note what the server saw of it."""
        outcome: Any
        outcome, released = jax.device_get((played, seen))
        index, self.next_round = self.next_round, self.next_round + 1
        self.seen = Seen() if released is None else Seen.of(released)
        return RoundResult(
            round=index, rmse_arriving=before, metrics=Metrics.of(outcome.scores),
            loss=float(outcome.loss), clients=int(outcome.clients),
            ratings=int(np.searchsorted(self._arrivals, np.int32(index), side="right")),
            dropped=0 if released is None else int(released.dropped),
        )  # fmt: skip

    def divide(self, split: Mapping[str, float]) -> None:
        """Ask clients to divide their next uploads so; it is sent out with the parameters."""
        if type(self.federation.model).asking is Learner.asking:
            return  # there is nothing to ask
        shared = self._run(_of_model, self.state.shared, dict(split), method="asking")
        self.state = self.state._replace(shared=shared)

    def shown_pairs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return client and item of all pairs that the clients will name in the coming round.

        These are the items they train on, and those they only pretend to have rated. A client
        without a rating uploads nothing, and so names no item either.
        """
        pairs, index = self._split.pairs, np.int32(self.next_round)
        known = pairs.first <= index
        client, item = pairs.client[known], pairs.item[known]
        if self.federation.extras is None:
            return client, item
        pretended = np.asarray(self._run(_extra_items, self._known, index, self._key))
        trains = np.zeros(self.n_clients, dtype=bool)
        trains[client] = True
        who, place = np.nonzero((pretended >= 0) & trains[:, None])
        return np.r_[client, who], np.r_[item, pretended[who, place]]

    def predict(self, user: ArrayLike, item: ArrayLike) -> NDArray[np.float32]:
        """Return predicted ratings in [0, 1] of user-item index pairs, as of the last round."""
        return self._of_known("predict", user, item)

    def rank(self, users: ArrayLike) -> NDArray[np.float32]:
        """Return the model's ranking of all items for some users, ``[users, n_items]``.

        A higher number ranks higher. It ranks what a user has rated as well.
        """
        return self._of_known("rank", users)

    def _of_known(self, method: str, *indices: ArrayLike) -> NDArray[np.float32]:
        """Return what a method of the model says of some indices.

        They are padded to a power of two, so that few programs are needed.
        """
        whole = [np.asarray(index, dtype=np.int32) for index in indices]
        padded = [np.pad(index, (0, padding_of(len(index)))) for index in whole]
        found = self._run(_of_model, *self._as_known(), *padded, method=method)
        return np.asarray(found)[: len(whole[0])]

    def _as_known(self) -> tuple[Shared, Local, Interactions]:
        """Return the parameters, what clients keep, and their ratings as of the last round.

        Before the first round, clients have not fitted anything to the parameters yet.
        """
        with jax.default_device(self._device):
            known = self._known.at(max(self.next_round - 1, 0))
        local = self.state.local
        if self.next_round == 0:
            local = self._run(_of_model, self.state.shared, local, known, method="personalise")
        return self.state.shared, local, known

    @property
    def learned(self) -> bool:
        """Whether the shared parameters are other than before the first round."""
        pairs = zip(self._begun()[1].shared, self.state.shared, strict=True)
        return not all(np.array_equal(np.asarray(old), np.asarray(new)) for old, new in pairs)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what it was made with, the ratings among it, and its state as plain arrays."""
        names = ("federation", "split", "seed", "device")
        return _restored, (dict(zip(names, self._made_with, strict=True)), self.arrays())


def _restored(made_with: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Simulation:
    """Return the simulation that :meth:`Simulation.__reduce__` describes."""
    made = Simulation(**made_with)
    made.restore(arrays)
    return made


def _first(federation: Federation, interactions: Interactions, seed: Array) -> tuple[Array, State]:
    """Return the key of the rounds, and the state before the first of them.

    The leaves are strongly typed: a weakly typed leaf would compile the round twice.
    """
    first, key = jax.random.split(jax.random.key(seed))
    state = federation.initial(first, interactions)
    return key, jax.tree.map(lambda leaf: jnp.array(leaf, dtype=leaf.dtype), state)


def _extra_items(
    federation: Federation, interactions: Interactions, index: Array, key: Array
) -> Array:
    """Return the items that clients pretend to have rated."""
    found: Array = federation.extras.items(key, index, interactions.at(index))
    return found


def _scores(
    federation: Federation, shared: Shared, local: Local, known: Interactions, heldout: Heldout
) -> dict[str, Any]:
    """Return the scores of the current parameters on the held-out ratings, chunk by chunk."""

    def predicted(known: Interactions, local: Local, shared: Any, _: Any, pairs: Pairs) -> Any:
        return (), (), [federation.model.predict(shared, local, known, *pairs[0])], ()

    answers = by_chunk(predicted, known, local, shared, asked=[heldout])[2]
    return tally(answers[0], heldout.value)


def _of_model(federation: Federation, *arrays: Any, method: str) -> Any:
    """Return what a method of the model computes."""
    return getattr(federation.model, method)(*arrays)
