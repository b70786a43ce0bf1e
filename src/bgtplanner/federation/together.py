"""Several runs that are stepped together: what all of them compute in a round is computed at once.

A round of small data leaves most of an accelerator idle. Runs of a study often differ in their
policy, their budget or their seed only: then their rounds are one program, over an axis of runs.

Each run has a thread of its own, and goes through its rounds as if it were alone: it plans,
reserves and settles in its own ledger. When all of them have come to their next round, the last
one computes it for those that pay, and for those that rest. The random numbers of a run are those
that it would draw alone, so that results differ by rounding only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from bgtplanner.federation.programs import Program
from bgtplanner.federation.protection import Terms
from bgtplanner.federation.rounds import Data, Federation, Outcome, State

__all__ = ["TOGETHER", "Joined", "Kind", "Member", "Played", "Request", "Together"]

T = TypeVar("T")
Kind = Literal["round", "rest"]


class Request(NamedTuple):
    """A round that a run has come to.

    Attributes:
        kind: Whether clients upload or rest.
        number: Index of the round.
        state: The state after the round before.
        terms: Who may release, and how; for a round that is protected.
    """

    kind: Kind
    number: int
    state: State | Member
    terms: Terms | None = None


class Played(NamedTuple):
    """What became of it: the state, the outcome, and the error before the round, if asked for."""

    state: State | Member
    outcome: Outcome
    before: tuple[Any, Any] | None


class _Version:
    """The states of all runs of a group after one program; they stay as long as a run has one."""

    def __init__(self, states: State) -> None:
        self.states = states
        self._lock = threading.Lock()
        self._fetched: dict[str, Any] = {}

    def host(self, part: str) -> Any:
        """Return the shared, the local or the memory part of all runs, fetched once."""
        with self._lock:
            if part not in self._fetched:
                self._fetched[part] = jax.device_get(getattr(self.states, part))
            return self._fetched[part]


class Member:
    """The state of one of the runs, fetched from the device when someone looks at it."""

    def __init__(self, version: _Version, slot: int) -> None:
        self._version, self._slot = version, slot

    def _part(self, name: str) -> Any:
        return jax.tree.map(lambda leaf: leaf[self._slot], self._version.host(name))

    @cached_property
    def shared(self) -> Any:
        """The parameters that the server holds."""
        return self._part("shared")

    @cached_property
    def local(self) -> Any:
        """What clients keep."""
        return self._part("local")

    @cached_property
    def memory(self) -> Any:
        """What the server remembers."""
        return self._part("memory")

    @property
    def whole(self) -> State:
        """The state as a run alone has it."""
        return State(self.shared, self.local, self.memory)


class _Group:
    """Runs with the same federation and the same shapes, each of which has a slot.

    There are as many slots as the next power of two, so that few numbers of runs are compiled;
    those that are left over compute what the first one does, and no one looks at it.
    """

    def __init__(self, runs: Sequence[Joined], first: Sequence[State]) -> None:
        self.slot_of = {run: slot for slot, run in enumerate(runs)}
        number = 1 << (len(runs) - 1).bit_length()
        filled = [*runs, *[runs[0]] * (number - len(runs))]
        states = [*first, *[first[0]] * (number - len(runs))]
        self.federation, self.place = runs[0].federation, runs[0].place
        self.one_data = all(run.data is runs[0].data for run in runs)
        self.number = number
        with jax.default_device(self.place[0]):
            self.data: Data = runs[0].data if self.one_data else _stacked(r.data for r in filled)
            self.keys = jnp.stack([run.key for run in filled])
            self._version = _Version(_stacked(states))
        self._latest: dict[int, Member | State] = dict(enumerate(first))

    def play(self, requests: dict[Joined, Request]) -> dict[Joined, Played]:
        """Play a round of some of the runs, which are of the same kind and have the same index."""
        chosen = {self.slot_of[run]: request for run, request in requests.items()}
        some = next(iter(chosen.values()))
        active = np.zeros(self.number, dtype=bool)
        active[list(chosen)] = True
        terms = None
        if some.terms is not None:
            every = [chosen.get(slot, some).terms for slot in range(self.number)]
            terms = jax.tree.map(lambda *leaves: np.stack(leaves), *every)
        with jax.default_device(self.place[0]):
            states = self._version.states
            for slot, request in chosen.items():
                if request.state is not self._latest[slot]:  # changed between two rounds
                    states = _PUT(*self.place, states, np.int32(slot), request.state)
            states, found = TOGETHER(
                *self.place, self.federation, some.kind, self.one_data, states, self.data,
                np.int32(some.number), self.keys, terms, active,
            )  # fmt: skip
        self._version = _Version(states)
        outcomes, before = jax.device_get(found)
        played = {}
        for run, slot in ((run, self.slot_of[run]) for run in requests):
            self._latest[slot] = member = Member(self._version, slot)
            own = jax.tree.map(lambda leaf, slot=slot: leaf[slot], (outcomes, before))
            played[run] = Played(member, *own)
        return played


class Joined:
    """A run that has joined: what of it stays the same from round to round."""

    def __init__(
        self, federation: Federation, place: tuple[jax.Device, bool], data: Data, key: Array
    ) -> None:
        self.federation, self.place, self.data, self.key = federation, place, data, key
        self.group: _Group | None = None

    def alike(self, first: State) -> Hashable:
        """What runs have in common whose rounds are one program."""
        leaves, tree = jax.tree.flatten((self.data, first))
        shapes = tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)
        return self.federation, self.place, tree, shapes


class Together:
    """Runs that go through their rounds together; :meth:`run` has each in a thread of its own.

    Attributes:
        stop: Set it, and every run stops after its next round.
    """

    def __init__(self, stop: threading.Event | None = None) -> None:
        self.stop = threading.Event() if stop is None else stop
        self._lock = threading.Condition()
        self._running: set[threading.Thread] = set()
        self._asked: dict[Joined, Request] = {}
        self._answers: dict[Joined, Played | BaseException | None] = {}
        self._made: dict[Hashable, Any] = {}

    def run(self, works: Sequence[Callable[[], T]]) -> list[T]:
        """Carry out some works, each of which is a run, and return what they return.

        Raises:
            BaseException: The first that one of them raised, once all have ended.
        """
        found: dict[int, T] = {}
        raised: list[BaseException] = []

        def carry_out(number: int, work: Callable[[], T]) -> None:
            try:
                found[number] = work()
            except BaseException as error:
                raised.append(error)
            finally:
                self._leave()

        threads = [
            threading.Thread(target=carry_out, args=entry, name=f"run {entry[0]}", daemon=True)
            for entry in enumerate(works)
        ]
        self._running = set(threads)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if raised:
            raise raised[0]
        return [found[number] for number in range(len(works))]

    def once(self, what: Hashable, make: Callable[[], T]) -> T:
        """Return what one of the runs has made, the same for all that ask for it."""
        with self._lock:
            if what not in self._made:
                self._made[what] = make()
            return cast(T, self._made[what])

    def play(self, run: Joined, request: Request) -> Played | None:
        """Play a round with all others that have come to theirs; None for a run with no equal."""
        with self._lock:
            self._asked[run] = request
            self._play_if_all_wait()
            self._lock.wait_for(lambda: run in self._answers)
            answer = self._answers.pop(run)
        if answer is None:
            self._leave()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _leave(self) -> None:
        """No longer wait for the run of this thread: it has ended, or goes on alone."""
        with self._lock:
            self._running.discard(threading.current_thread())
            self._play_if_all_wait()

    def _play_if_all_wait(self) -> None:
        """Play the rounds of all runs, once each of them waits for one; with the lock held."""
        if not self._asked or len(self._asked) < len(self._running):
            return
        asked, self._asked = self._asked, {}
        try:
            self._join(asked)
            for requests in _parted(asked):
                group = next(iter(requests)).group
                if group is None:
                    self._answers |= dict.fromkeys(requests)
                else:
                    self._answers |= group.play(requests)
        except BaseException as error:  # everyone has to know: no one would wake them up
            self._answers |= {run: error for run in asked if run not in self._answers}
        self._lock.notify_all()

    def _join(self, asked: Mapping[Joined, Request]) -> None:
        """Make groups of those who ask for the first time; who has no equal stays alone."""
        alike: dict[Hashable, dict[Joined, State]] = {}
        for run, request in asked.items():
            if run.group is None and isinstance(request.state, State):
                alike.setdefault(run.alike(request.state), {})[run] = request.state
        for runs in alike.values():
            if len(runs) > 1:
                group = _Group(list(runs), list(runs.values()))
                for run in runs:
                    run.group = group


def _parted(asked: Mapping[Joined, Request]) -> Iterable[dict[Joined, Request]]:
    """Requests by what is one program: of a group those of one kind, for the same round.

    Terms have other shapes where clients have charges of their own.
    """
    found: dict[Hashable, dict[Joined, Request]] = {}
    for run, request in asked.items():
        shapes = tuple(np.shape(leaf) for leaf in jax.tree.leaves(request.terms))
        what = (run.group or run, request.kind, request.number, shapes)
        found.setdefault(what, {})[run] = request
    return found.values()


def _stacked(trees: Iterable[Any]) -> Any:
    """Return a tree whose leaves have one more axis: that of the runs."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _all(
    federation: Federation,
    kind: Kind,
    one_data: bool,
    states: State,
    data: Data,
    index: Array,
    keys: Array,
    terms: Terms | None,
    active: Array,
) -> tuple[State, tuple[Outcome, tuple[Array, Array] | None]]:
    """Compute a round of all runs; those that are not active keep their state."""

    def one(
        state: State, data: Data, key: Array, terms: Terms | None, active: Array
    ) -> tuple[State, tuple[Outcome, tuple[Array, Array] | None]]:
        known, heldout, arriving, aside = data
        before = None
        if arriving is not None:
            before = federation.error_before(state, known, arriving, index)
        if kind == "rest":
            after, outcome = federation.rest(state, known, heldout, index)
        else:
            after, outcome = federation.round(state, known, heldout, index, key, terms, aside)
        kept = jax.tree.map(lambda new, old: jnp.where(active, new, old), after, state)
        return kept, (outcome, before)

    return jax.vmap(one, in_axes=(0, None if one_data else 0, 0, 0, 0))(
        states, data, keys, terms, active
    )


def _put(states: State, slot: Array, state: State) -> State:
    changed: State = jax.tree.map(lambda leaf, own: leaf.at[slot].set(own), states, state)
    return changed


TOGETHER = Program(_all, static=(0, 1, 2))
"""A round of several runs."""

_PUT = Program(_put, static=(), light=True)
