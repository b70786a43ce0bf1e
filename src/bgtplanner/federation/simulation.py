"""The simulation: the round of `rounds.py`, compiled, for all clients at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, cached_property, partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import ArrayLike, NDArray

from bgtplanner.data.ratings import Ratings
from bgtplanner.data.split import Pairs, Split
from bgtplanner.errors import ConfigError, RunFolderError
from bgtplanner.federation.programs import padding_of
from bgtplanner.federation.protection import Terms
from bgtplanner.federation.result import RoundResult
from bgtplanner.federation.rounds import Extras, Federation, Heldout, Outcome, State
from bgtplanner.federation.validation import ValidationSet
from bgtplanner.models.interactions import Interactions
from bgtplanner.models.learner import Explanation
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
        aggregate: The released mean, flat; empty if there was none.
        noise_std: Standard deviation of the noise on each of its coordinates; NaN if it differs.
        validation: The released validation error, and the standard deviation of its noise.
        norms: Norm of each client's own noisy gradient, if each has a clip of its own.
    """

    aggregate: NDArray[np.float32]
    noise_std: float
    validation: tuple[float, float] | None
    norms: NDArray[np.float32] | None = None


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


class _Arriving(NamedTuple):
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
    def of(cls, split: Split) -> _Arriving:
        """Return the ratings that arrive after the first round; those before are history."""
        late = np.flatnonzero(split.arrival > 0)
        late = late[np.argsort(split.arrival[late], kind="stable")]
        row = split.arrival[late]
        counts = np.bincount(row, minlength=1)
        place = np.arange(len(late)) - (np.cumsum(counts) - counts)[row]

        def filled(column: NDArray[Any]) -> Array:
            made = np.zeros((len(counts), max(1, int(counts.max()))), dtype=column.dtype)
            made[row, place] = column[late]
            return jnp.asarray(made)

        train = split.train
        return cls(*map(filled, (train.user, train.item, train.value, np.ones_like(train.value))))


class Simulation:
    """A federation on one machine, stepped round by round.

    Args:
        federation: What is learned and how.
        split: Training and test ratings.
        seed: Seed of everything that is random in training.
        device: ``auto``, ``cpu`` or ``gpu``.
        validation: Share of its training ratings that every client puts in its validation set.
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
        self._made_with = federation, split, seed, device, validation
        aside = None
        if validation:
            split, aside = split.set_aside(validation, seed=seed)
        self.federation = federation
        self.n_clients, self.n_items = split.train.n_clients, split.train.n_items
        self.next_round = 0
        self.seen = Seen(np.zeros(0, dtype=np.float32), 0.0, None)
        self._arrivals = np.sort(split.arrival)
        self._before: tuple[Array, Array] | None = None
        self._device = pick_device(device)
        self._split = split
        with jax.default_device(self._device):
            self._interactions = Interactions.laid_out(split.train, split.arrival)
            self._heldout = Heldout.of(split.test, self._interactions)
            self._arriving = _Arriving.of(split) if split.in_order else None
            self._aside: ValidationSet | None = None
            if aside is not None:
                kept = aside.train
                self._aside = ValidationSet.of(kept, aside.arrival, self._interactions)
            self._first_key, self._key = jax.random.split(jax.random.key(seed))
            # Each round reuses the memory of the old state, so that parameters are never held
            # twice. Copied first, since a model may use one array in two places.
            initial = federation.initial(self._first_key, self._interactions)
            self._state: State = jax.tree.map(_strong, initial)

    @cached_property
    def _first_round(self) -> NDArray[np.int64] | None:
        """The round in which each client has its first rating; None if all are there at once."""
        if not self._split.in_order:
            return None
        first = np.full(self.n_clients, np.iinfo(np.int64).max)
        np.minimum.at(first, self._split.train.client, self._split.arrival)
        return first

    def present(self) -> NDArray[np.bool_]:
        """Return which clients have joined by the next round: they do with their first rating.

        Where ratings arrive in no real order, all are there from the start.
        """
        if self._first_round is None:
            return np.ones(self.n_clients, dtype=bool)
        return np.asarray(self._first_round <= self.next_round)

    @property
    def state(self) -> State:
        """Parameters, local state and optimizer memory after the last round."""
        return self._state

    def evaluate(self) -> Metrics:
        """Return the current scores on the held-out ratings."""
        with jax.default_device(self._device):
            predicted = self._predicted(self._heldout.user, self._heldout.item)
            return Metrics.of(jax.device_get(tally(predicted, self._heldout.value)))

    def _predicted(self, user: Array, item: Array) -> Array:
        known = self._interactions.at(max(self.next_round - 1, 0))
        first = self.next_round == 0
        predicted: Array = _predict(self.federation, self._state, known, user, item, first)
        return predicted

    def step(self, terms: Terms | None = None, plan: Plan | None = None) -> RoundResult:
        """Run the next round under terms that were agreed and paid for.

        The plan is for engines on real machines; here the terms say everything.
        """
        del plan
        index, extras = self.next_round, self.federation.extras
        shows = extras is not None and extras.shows(index)
        outcome = self._play("round", self._key, terms, self._aside, shows)
        if extras is not None and outcome.shown is not None:
            bound = None if terms is None else float(terms.clip.max())
            known = self._split.train.take(self._split.arrival <= index)
            model, kept = self.federation.model, self._state.local
            with jax.default_device(self._device):
                local = extras.told(model, kept, outcome.shown, known, bound)
                self._state = self._state._replace(local=local)
        return self._record(outcome)

    def rest(self) -> RoundResult:
        """Run a round in which nothing leaves any client; ratings still arrive."""
        return self._record(self._play("rest"))

    def _play(self, kind: Literal["round", "rest"], *more: Any) -> Outcome:
        play, index = _compiled(self._device.platform, kind), jnp.int32(self.next_round)
        with jax.default_device(self._device):
            self._before = None
            if self._arriving is not None:  # first of all: the round takes the old state's memory
                self._before = _error_before(
                    self.federation, self._state, self._interactions, self._arriving, index
                )
            self._state, outcome = play(
                self.federation, self._state, self._interactions, self._heldout, index, *more
            )
        return outcome

    def _record(self, outcome: Outcome) -> RoundResult:
        outcome, index = jax.device_get(outcome), self.next_round
        self.next_round += 1
        said = outcome.validation
        validation = None if said is None else (float(said[0]), float(said[1]))
        self.seen = Seen(
            np.asarray(outcome.aggregate),
            float(outcome.noise_std),
            validation,
            None if outcome.norms is None else np.asarray(outcome.norms),
        )
        squares, number = (0.0, 0.0) if self._before is None else map(float, self._before)
        return RoundResult(
            round=index,
            rmse_arriving=(squares / number) ** 0.5 if number else None,
            metrics=Metrics.of(outcome.scores),
            loss=float(outcome.loss),
            clients=int(outcome.clients),
            ratings=int(np.searchsorted(self._arrivals, index, side="right")),
            dropped=int(outcome.dropped),
        )

    def divide(self, split: Mapping[str, float]) -> None:
        """Ask clients to divide their next uploads so; it is sent out with the parameters."""
        with jax.default_device(self._device):
            shared = self.federation.model.asking(self._state.shared, split)
            self._state = self._state._replace(shared=shared)

    def withdraw(self) -> None:
        """Return to the initial parameters: those learned since are not worth using."""
        with jax.default_device(self._device):
            first = self.federation.initial(self._first_key, self._interactions)
            self._state = self._state._replace(shared=jax.tree.map(jnp.array, first.shared))

    @cached_property
    def _pairs(self) -> Pairs:
        """Pairs of client and item, sorted on first use: it takes long, and few runs need them."""
        return self._split.pairs()

    def shown_pairs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return client and item of all pairs that the clients will name in the coming round.

        These are the items they train on, and those they only pretend to have rated. A client
        without a rating uploads nothing, and so names no item either.
        """
        known = self._pairs.first <= self.next_round
        client, item = self._pairs.client[known], self._pairs.item[known]
        further, extras = None, self.federation.extras
        if extras is not None:
            with jax.default_device(self._device):
                index = jnp.int32(self.next_round)
                further = _extra_items(extras, self._interactions, index, self._key)
        if further is None:
            return client, item
        pretended = np.asarray(further)
        trains = np.zeros(self.n_clients, dtype=bool)
        trains[client] = True
        who, place = np.nonzero((pretended >= 0) & trains[:, None])
        return np.r_[client, who], np.r_[item, pretended[who, place]]

    def predict(self, user: ArrayLike, item: ArrayLike) -> NDArray[np.float32]:
        """Return predicted ratings in [0, 1] of user-item index pairs, as of the last round.

        The pairs are padded to a power of two, so that predictions for many users, each with
        another number of unrated items, need only a few programs.
        """
        users, items = (np.asarray(index, dtype=np.int32) for index in (user, item))
        missing = padding_of(len(users))
        with jax.default_device(self._device):
            filled = (jnp.asarray(np.pad(index, (0, missing))) for index in (users, items))
            return np.asarray(self._predicted(*filled))[: len(users)]

    def rank(self, users: ArrayLike) -> NDArray[np.float32]:
        """Return the model's ranking of all items for some users, ``[users, n_items]``.

        A higher number ranks higher. It ranks what a user has rated as well.
        """
        return np.asarray(self._of_users("rank", users))[: np.size(users)]

    def explain(self, users: ArrayLike) -> Explanation:
        """Return what the ranking for some users rests on, as NumPy arrays."""
        found: Explanation = self._of_users("explain", users)
        return found.of_users(slice(np.size(users)))

    def _of_users(self, what: Literal["rank", "explain"], users: ArrayLike) -> Any:
        """Return the model's answer for some users, whose number is padded."""
        which = np.asarray(users, dtype=np.int32)
        padded = jnp.asarray(np.pad(which, (0, padding_of(len(which)))))
        known = self._interactions.at(max(self.next_round - 1, 0))
        with jax.default_device(self._device):
            return _of_users(
                self.federation, self._state, known, padded, self.next_round == 0, what
            )

    def known(self) -> Ratings:
        """Return the ratings that clients know after the last round, for whatever they use them.

        They include those that a client has set aside to validate on, and none of the test set.
        """
        split = self._made_with[1]
        return split.train.take(split.present(max(self.next_round - 1, 0)))

    @property
    def learned(self) -> bool:
        """Whether the shared parameters are other than before the first round."""
        with jax.default_device(self._device):
            first = self.federation.initial(self._first_key, self._interactions).shared
        pairs = zip(first, self._state.shared, strict=True)
        return not all(np.array_equal(np.asarray(old), np.asarray(new)) for old, new in pairs)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what it was made with, the ratings among it, and its state as plain arrays."""
        return _made_again, (*self._made_with, self.arrays())

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the whole state as named plain arrays, enough to go on bit for bit."""
        return state_arrays(self._state, self.next_round)

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Go on from the result of :meth:`arrays`.

        Raises:
            RunFolderError: If an array is missing or has another shape or type, because the state
                belongs to another model, data set or version.
        """
        self._state, self.next_round = restored_state(arrays, self._state, self._device)


def _made_again(
    federation: Federation,
    split: Split,
    seed: int,
    device: str,
    validation: float,
    arrays: Mapping[str, NDArray[Any]],
) -> Simulation:
    """Return a simulation that was pickled."""
    made = Simulation(federation, split, seed=seed, device=device, validation=validation)
    made.restore(arrays)
    return made


def state_arrays(state: State, next_round: int) -> dict[str, NDArray[Any]]:
    """Return a state as named plain arrays, enough to go on bit for bit."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    named = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}
    arrays = {name: np.array(leaf) for name, leaf in named.items()}
    return arrays | {"next_round": np.asarray(next_round)}


def restored_state(
    arrays: Mapping[str, NDArray[Any]], like: State, device: jax.Device
) -> tuple[State, int]:
    """Return the state and the next round that :func:`state_arrays` was given.

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
                "written for other data, another model or by another version"
            )
        restored.append(jax.device_put(stored, device))
    if "next_round" not in arrays:
        raise RunFolderError("checkpoint entry 'next_round' is missing")
    return jax.tree_util.tree_unflatten(tree, restored), int(arrays["next_round"])


@partial(jax.jit, static_argnums=0)
def _extra_items(
    extras: Extras, interactions: Interactions, index: Array, key: Array
) -> Array | None:
    return extras.items(key, index, interactions.at(index))


# This XLA fusion makes a round of gathers and segment sums about a third slower on the CPU.
_CPU_OPTIONS = {"xla_cpu_experimental_ynn_fusion_type": ""}


@cache
def _compiled(
    platform: str, kind: Literal["round", "rest"]
) -> Callable[..., tuple[State, Outcome]]:
    """Return the compiled round, which all runs of equal federations and shapes share."""
    options = _CPU_OPTIONS if platform == "cpu" and _compiler_knows_options() else None
    if kind == "rest":
        return jax.jit(Federation.rest, static_argnums=0, compiler_options=options)
    return jax.jit(
        Federation.round, static_argnums=(0, 8), donate_argnums=1, compiler_options=options
    )


@cache
def _compiler_knows_options() -> bool:
    try:
        jax.jit(lambda value: value + 1, compiler_options=_CPU_OPTIONS)(jnp.zeros(()))
    except Exception:  # another version of the compiler may fail in any way
        return False
    return True


@partial(jax.jit, static_argnums=(0, 5))
def _predict(
    federation: Federation,
    state: State,
    interactions: Interactions,
    user: Array,
    item: Array,
    first: bool,
) -> Array:
    """Return predictions; before the first round, clients have not fitted anything yet."""
    model, shared, local = federation.model, state.shared, state.local
    local = model.personalise(shared, local, interactions) if first else local
    return model.predict(shared, local, interactions, user, item)


@partial(jax.jit, static_argnums=0)
def _error_before(
    federation: Federation,
    state: State,
    interactions: Interactions,
    arriving: _Arriving,
    index: Array,
) -> tuple[Array, Array]:
    """Return the squared errors, in sum, of what arrives in a round, and how many that are.

    They are predicted as they would have been shown: by the state after the round before.
    """
    row = jnp.minimum(index, arriving.user.shape[0] - 1)
    user, item, value, weight = (part[row] for part in arriving)
    weight = weight * (row == index)
    known = interactions.at(index - 1)
    predicted = federation.model.predict(state.shared, state.local, known, user, item)
    return (weight * (predicted - value) ** 2).sum(), weight.sum()


@partial(jax.jit, static_argnums=(0, 4, 5))
def _of_users(
    federation: Federation,
    state: State,
    interactions: Interactions,
    users: Array,
    first: bool,
    what: Literal["rank", "explain"],
) -> Any:
    model, shared, local = federation.model, state.shared, state.local
    local = model.personalise(shared, local, interactions) if first else local
    return getattr(model, what)(shared, local, interactions, users)


def _strong(leaf: Array) -> Array:
    """Return a copy with a strong type: a weakly typed leaf would compile the round twice."""
    return jnp.array(leaf, dtype=leaf.dtype)
