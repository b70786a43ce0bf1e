"""All clients at once: the round of `rounds.py`, compiled, over arrays that never change shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from bgtplanner.data.split import Pairs, Split
from bgtplanner.errors import ConfigError, RunFolderError
from bgtplanner.federation.expansion import believed, item_tokens, match, matching_key
from bgtplanner.federation.programs import padding_of
from bgtplanner.federation.protection import Terms
from bgtplanner.federation.result import RoundResult
from bgtplanner.federation.rounds import Federation, Heldout, Outcome, Shown, State
from bgtplanner.federation.validation import Aside
from bgtplanner.models.learner import Edges, Neighbours
from bgtplanner.models.metrics import Metrics, tally
from bgtplanner.planning.policy import Plan

__all__ = [
    "Seen",
    "Simulation",
    "pick_device",
    "restored_state",
    "state_arrays",
]


class Seen(NamedTuple):
    """What the server saw in a round.

    Attributes:
        aggregate: What it stepped by: the released gradient, flat; empty if there was none.
        noise_std: Standard deviation of the noise on each of its coordinates; NaN if it differs.
        validation: What it was told of the validation ratings, and how noisy that is.
        norms: Norm of each client's own noisy gradient, where each has a clip of its own.
    """

    aggregate: NDArray[np.float32]
    noise_std: float
    validation: tuple[float, float] | None
    norms: NDArray[np.float32] | None = None


def pick_device(name: str) -> jax.Device:
    """The device called ``auto``, ``cpu`` or ``gpu``.

    Raises:
        ConfigError: If there is none of that kind.
    """
    if name == "auto":
        return jax.devices()[0]
    try:
        return jax.devices(name)[0]
    except RuntimeError as error:
        kinds = sorted({device.platform for device in jax.devices()})
        raise ConfigError(f"--device {name}: not available; this machine has {kinds}") from error


class Simulation:
    """A federation on one machine, stepped round by round.

    Args:
        federation: What is learned and how.
        split: Training and test ratings.
        seed: Of everything that is drawn at random in training.
        device: ``auto``, ``cpu`` or ``gpu``.
        validation: Share of its training ratings that every client sets aside to validate on.
    """

    def __init__(
        self,
        federation: Federation,
        split: Split,
        *,
        seed: int,
        device: str = "auto",
        validation: float = 0.0,
    ) -> None:
        aside = None
        if validation:
            split, aside = split.set_aside(validation, seed=seed)
        self.federation = federation
        self.n_clients, self.n_items = split.train.n_clients, split.train.n_items
        self.next_round = 0
        self.seen = Seen(np.zeros(0, dtype=np.float32), 0.0, None)
        self._arrivals = np.sort(split.arrival)
        self._device = pick_device(device)
        self._split, self._seed = split, seed
        with jax.default_device(self._device):
            self._edges = Edges.of(split.train, split.arrival)
            self._heldout = Heldout(
                jnp.asarray(split.test.user),
                jnp.asarray(split.test.item),
                jnp.asarray(split.test.value),
            )
            self._aside = None if aside is None else _aside(aside)
            initial_key, self._key = jax.random.split(jax.random.key(seed))
            # The old state's memory is given to the new one, so that parameters are never held
            # twice; copied first, since a model may use one array in two places.
            initial = federation.initial(initial_key, self._edges)
            self._state: State = jax.tree.map(_strong, initial)

    @property
    def state(self) -> State:
        """Parameters, local state and optimiser memory after the last round."""
        return self._state

    def evaluate(self) -> Metrics:
        """Scores on the held-out ratings as things are."""
        heldout = self._heldout
        with jax.default_device(self._device):
            predicted = _predict(
                self.federation,
                self._state,
                self._edges.at(max(self.next_round - 1, 0)),
                heldout.user,
                heldout.item,
            )
            return Metrics.of(jax.device_get(tally(predicted, heldout.value)))

    def step(self, terms: Terms | None = None, plan: Plan | None = None) -> RoundResult:
        """Run the next round, under terms that were agreed and paid for.

        Here they say all there is to say; who carries a round elsewhere needs the plan, too.
        """
        del plan
        index, expansion = self.next_round, self.federation.expansion
        expands = expansion is not None and expansion.due(index)
        with jax.default_device(self._device):
            self._state, outcome = _compiled_round(self._device.platform)(
                self.federation,
                self._state,
                self._edges,
                self._heldout,
                jnp.int32(index),
                self._key,
                terms,
                self._aside,
                expands,
            )
        if outcome.shown is not None:
            self._expand(index, outcome.shown, None if terms is None else terms.clip)
        self.next_round += 1
        return self._record(index, jax.device_get(outcome))

    def _expand(self, index: int, shown: Shown, clip: Array | None) -> None:
        """Tell users of others who rated the same; who sent nothing keeps what it had."""
        train = self._split.train
        own, sends = np.asarray(shown.own), np.asarray(shown.sends)
        sent = sends[train.user] & (self._split.arrival <= index)
        before: Neighbours = self._state.local.neighbours
        found = match(
            self._tokens[train.item[sent]], train.user[sent], own, most=before.present.shape[1]
        )
        if clip is not None:
            found = (believed(found[0], float(clip.max())), found[1])
        with jax.default_device(self._device):
            after = Neighbours(
                *(
                    jnp.where(sends.reshape(-1, *[1] * (old.ndim - 1)), new, old)
                    for new, old in zip(found, before, strict=True)
                )
            )
            self._state = self.federation.expanded(self._state, after)

    @cached_property
    def _tokens(self) -> NDArray[np.void]:
        return item_tokens(matching_key(self._seed), range(self.n_items))

    def _record(self, index: int, outcome: Outcome) -> RoundResult:
        said = outcome.validation
        validation = None if said is None else (float(said[0]), float(said[1]))
        self.seen = Seen(
            np.asarray(outcome.aggregate),
            float(outcome.noise_std),
            validation,
            None if outcome.norms is None else np.asarray(outcome.norms),
        )
        return RoundResult(
            round=index,
            metrics=Metrics.of(outcome.scores),
            loss=float(outcome.loss),
            clients=int(outcome.clients),
            ratings=int(np.searchsorted(self._arrivals, index, side="right")),
            dropped=int(outcome.dropped),
        )

    def rest(self) -> RoundResult:
        """A round in which nothing leaves any client; ratings arrive all the same."""
        index = self.next_round
        with jax.default_device(self._device):
            self._state, outcome = _compiled_rest(self._device.platform)(
                self.federation, self._state, self._edges, self._heldout, jnp.int32(index)
            )
        self.next_round += 1
        return self._record(index, jax.device_get(outcome))

    def withdraw(self) -> None:
        """Send out what was sent at first: what was learned since is not worth having."""
        with jax.default_device(self._device):
            self._state = self._state.withdrawn()

    @cached_property
    def _pairs(self) -> Pairs:
        """Sorting them takes long, and most runs never ask."""
        return self._split.pairs()

    def shown_pairs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Client and item of all that the clients will name in the coming round.

        The items they train on and, among them, those they only pretend to have rated. A client
        that has no rating yet uploads nothing, and so names no item either.
        """
        known = self._pairs.first <= self.next_round
        client, item = self._pairs.client[known], self._pairs.item[known]
        if not self.federation.pseudo_items:
            return client, item
        with jax.default_device(self._device):
            pretended = np.asarray(
                _pseudo_items(self.federation, self._edges, jnp.int32(self.next_round), self._key)
            )
        trains = np.zeros(self.n_clients, dtype=bool)
        trains[client] = True
        who, place = np.nonzero((pretended >= 0) & trains[:, None])
        return np.r_[client, who], np.r_[item, pretended[who, place]]

    def predict(self, user: ArrayLike, item: ArrayLike) -> NDArray[np.float32]:
        """Predicted ratings in [0, 1] of user-item index pairs, with what is known by now.

        They are filled up to a power of two, so that whoever asks for every user, with other
        unrated items each, needs a few programs only.
        """
        users, items = (np.asarray(index, dtype=np.int32) for index in (user, item))
        missing = padding_of(len(users))
        known = self._edges.at(max(self.next_round - 1, 0))
        with jax.default_device(self._device):
            predicted = _predict(
                self.federation,
                self._state,
                known,
                jnp.asarray(np.pad(users, (0, missing))),
                jnp.asarray(np.pad(items, (0, missing))),
            )
        return np.asarray(predicted)[: len(users)]

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The whole state as named plain arrays, enough to go on bit for bit."""
        return state_arrays(self._state, self.next_round)

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from what :meth:`arrays` gave.

        Raises:
            RunFolderError: If an array is missing or has another shape or type: the state belongs
                to another model, data set or version.
        """
        self._state, self.next_round = restored_state(arrays, self._state, self._device)


def state_arrays(state: State, next_round: int) -> dict[str, NDArray[Any]]:
    """A state as named plain arrays, enough to go on bit for bit."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    named = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
    arrays = {name: np.array(leaf) for name, leaf in named.items()}
    return arrays | {"next_round": np.asarray(next_round)}


def restored_state(
    arrays: Mapping[str, NDArray[Any]], like: State, device: jax.Device
) -> tuple[State, int]:
    """The state and the next round that :func:`state_arrays` was given.

    Raises:
        RunFolderError: If an array is missing or has another shape or type than in `like`.
    """
    paths, tree = jax.tree_util.tree_flatten_with_path(like)
    restored: list[Array] = []
    for path, leaf in paths:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        stored = arrays.get(name)
        if stored is None or stored.shape != leaf.shape or stored.dtype != leaf.dtype:
            raise RunFolderError(
                f"checkpoint entry '{name}' is missing or of another shape or type: it was "
                "written for other data or another model"
            )
        restored.append(jax.device_put(stored, device))
    if "next_round" not in arrays:
        raise RunFolderError("checkpoint entry 'next_round' is missing")
    return jax.tree_util.tree_unflatten(tree, restored), int(arrays["next_round"])


def _round(
    federation: Federation,
    state: State,
    edges: Edges,
    heldout: Heldout,
    index: Array,
    key: Array,
    terms: Terms | None,
    aside: Aside | None,
    expands: bool,
) -> tuple[State, Outcome]:
    return federation.round(state, edges, heldout, index, key, terms, aside, expands)


def _aside(split: Split) -> Aside:
    train = split.train
    arrays = (train.user, train.item, train.value, split.arrival)
    return Aside(*(jnp.asarray(array) for array in arrays))


@partial(jax.jit, static_argnums=0)
def _pseudo_items(federation: Federation, edges: Edges, index: Array, key: Array) -> Array:
    return federation.pretended(edges.at(index), index, key)


def _rest(
    federation: Federation, state: State, edges: Edges, heldout: Heldout, index: Array
) -> tuple[State, Outcome]:
    return federation.rest(state, edges, heldout, index)


# This fusion of XLA's on the CPU makes a round of gathers and segment sums about a third slower.
_CPU_OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": ""}


@cache
def _compiled_round(platform: str) -> Callable[..., tuple[State, Outcome]]:
    """The round, compiled once for equal federations and shapes, however many runs there are."""
    return jax.jit(
        _round, static_argnums=(0, 8), donate_argnums=1, compiler_options=_options(platform)
    )


@cache
def _compiled_rest(platform: str) -> Callable[..., tuple[State, Outcome]]:
    """The same for a round in which nothing leaves a client."""
    return jax.jit(_rest, static_argnums=0, compiler_options=_options(platform))


@cache
def _options(platform: str) -> dict[str, str] | None:
    return _CPU_OPTIONS if platform == "cpu" and _compiler_knows(_CPU_OPTIONS) else None


def _compiler_knows(options: dict[str, str]) -> bool:
    try:
        jax.jit(lambda value: value + 1, compiler_options=options)(jnp.zeros(()))
    except Exception:  # whatever another version of the compiler makes of it
        return False
    return True


@partial(jax.jit, static_argnums=0)
def _predict(
    federation: Federation, state: State, edges: Edges, user: Array, item: Array
) -> Array:
    return federation.model.predict(state.shared, state.local, edges, user, item)


def _strong(leaf: Array) -> Array:
    """A copy whose type is settled: one that JAX takes for a Python number compiles all twice."""
    return jnp.array(leaf, dtype=leaf.dtype)
