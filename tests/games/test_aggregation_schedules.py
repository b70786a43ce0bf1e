"""A network that loses, delays, doubles and reorders, clients that stop at any write, a server
that asks again and starts again: no schedule of them makes a wrong sum, or opens or uses a mask
twice.

Every schedule is played from a seed, and again from the same one. Keys are fresh all the same:
what happens does not depend on them.
"""

from __future__ import annotations

import contextlib
import heapq
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from bgtplanner.errors import MessageError
from bgtplanner.federation.aggregation.client import Client, _Answer, _State
from bgtplanner.federation.aggregation.messages import STEPS, Opened, Opening, Survivors
from bgtplanner.federation.aggregation.server import Server, Sum
from bgtplanner.federation.aggregation.wire import Message
from federation.aggregation.members import Members, Memory

SCHEDULES = int(os.environ.get("BGTPLANNER_SCHEDULES", "200"))
PARTS = 10
GROUPS = ((5, 1, 1), (6, 1, 1), (6, 2, 0), (7, 2, 1), (11, 1, 1))
"""Members, drop-outs, colluders. The last one is a ring; in the others all are neighbours."""


class Stop(BaseException):
    """The process ends here."""


class Disk(Memory):
    """Stops the process before or after one of its writes."""

    stop_at: int | None = None

    def save(self, key: str, content: bytes) -> None:
        self._pass()
        super().save(key, content)
        self._pass()

    def _pass(self) -> None:
        if self.stop_at is not None:
            self.stop_at -= 1
            if self.stop_at < 0:
                raise Stop


@dataclass
class Schedule:
    """One round on that network."""

    seed: int
    kind: type[Client] = Client
    trace: list[Any] = field(default_factory=list)
    outcome: str = "failed"
    found: Sum | None = None

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        size, dropouts, colluders = GROUPS[int(self.rng.integers(len(GROUPS)))]
        self.members = Members(size, dropouts, colluders, round=self.seed, kind=self.kind)
        self.disks = [Disk() for _ in range(size)]
        self.members.stores = list(self.disks)
        self.made: list[list[Any]] = [[] for _ in range(size)]
        self.uploads: list[set[bytes]] = [set() for _ in range(size)]
        self.opened: list[dict[str, set[int]]] = [
            {"self": set(), "masking": set()} for _ in self.made
        ]
        self.signed: list[set[frozenset[int]]] = [set() for _ in range(size)]
        self.accepted: set[frozenset[int]] = set()
        self.faults = float(self.rng.choice([0.0, 0.03, 0.1]))

    def values(self, place: int) -> Any:
        """Never the same twice, as with real noise."""
        self.made[place].append(self.rng.integers(-99, 99, self.members.coordinates))
        return self.made[place][-1]

    def answer(self, step: str, place: int, message: bytes) -> bytes | None:
        """What leaves the machine, if anything does."""
        if self.rng.random() < self.faults:
            self.disks[place].stop_at = int(self.rng.integers(4))
        try:
            return self.members.client(place).answer(step, message, lambda: self.values(place))
        except (MessageError, Stop):
            return None
        finally:
            self.disks[place].stop_at = None

    def note(self, step: str, place: int, message: bytes, answer: bytes) -> None:
        """What everybody who listens has seen by now."""
        if step == "upload":
            self.uploads[place].add(answer)
        if step == "sign":
            self.signed[place].add(Survivors.from_bytes(message).places)
        if step == "open":
            survivors, opened = Opening.from_bytes(message).places, Opened.from_bytes(answer)
            self.signed[place].add(survivors)
            self.accepted.add(survivors)
            self.opened[place]["self"].add(place)
            for share in opened.shares:
                kind = "self" if share.place in survivors else "masking"
                self.opened[share.place][kind].add(place)

    def play(self) -> None:
        server = Server(self.members.request, self.members.roster)
        messages, now, restarts = dict.fromkeys(self.members.request.members, b""), 0.0, 0
        while server.step is not None:
            try:
                now, restarted = self._step(server, messages, now)
                if restarted and restarts < 2:
                    restarts += 1
                    server = Server(self.members.request, self.members.roster)
                    messages = dict.fromkeys(self.members.request.members, b"")
                    continue
                messages = server.close_step()
            except MessageError:
                return
        try:
            found = server.finish()
        except MessageError:
            return
        self.outcome = "sum"
        self.trace.append((sorted(found.places), found.values.tolist()))
        self.found = found

    def _step(self, server: Server, messages: dict[int, bytes], now: float) -> tuple[float, bool]:
        """Carry a step's messages there and answers back until the deadline."""
        step, rng, queue, number = server.step, self.rng, list[Any](), 0
        assert step in STEPS

        def send(at: float, event: Any) -> None:
            nonlocal number
            lost, twice = rng.random(2) < self.faults
            for _ in range(int(not lost) + int(twice)):
                number += 1
                delay = float(rng.exponential(1.0)) * (10.0 if rng.random() < self.faults else 1.0)
                heapq.heappush(queue, (at + delay, number, event))

        for place, message in sorted(messages.items()):
            send(now, ("ask", place, message))
        heapq.heappush(queue, (now + 4.0, 0, ("again", -1, b"")))
        deadline = now + 8.0 if self.faults else np.inf
        while queue:
            at, _, (what, place, content) = heapq.heappop(queue)
            if at > deadline and what == "answer":
                continue  # the server waits no longer; clients answer whenever they are asked
            now = max(now, min(at, deadline))
            if what == "again":
                for silent in sorted(server.waiting):
                    send(at, ("ask", silent, messages[silent]))
                continue
            if what == "ask":
                answer = self.answer(step, place, content)
                self.trace.append((step, round(at, 9), place, answer is not None))
                if answer is not None:
                    self.note(step, place, content, answer)
                    send(at, ("answer", place, answer))
                continue
            with contextlib.suppress(MessageError):
                server.receive(place, content)
            assert place not in server.waiting
            if rng.random() < self.faults / 20:
                return now, True
        return now, False

    def check(self) -> None:
        """What must hold whatever happened."""
        for place in range(self.members.size):
            assert len(self.uploads[place]) <= 1, "two uploads under one mask"
            assert len(self.made[place]) <= 1, "an upload was made twice"
            both = self.opened[place]["self"] and self.opened[place]["masking"]
            assert not both, "a share of either kind of one client was revealed"
            assert len(self.signed[place]) <= 1, "a client has agreed to two sets of survivors"
        # After a restart the server may ask for another set, and a witness that has signed none
        # yet may sign it; but only one of the two finds enough witnesses, and is opened.
        assert len(self.accepted) <= 1, "two sets of survivors were opened"
        if self.found is not None:
            plain = sum(self.made[place][0] for place in self.found.places)
            found = self.found.values.tolist()
            assert found == (plain % (1 << self.members.bits)).tolist(), "a wrong sum"


def played(seed: int, kind: type[Client] = Client) -> Schedule:
    schedule = Schedule(seed, kind)
    try:
        schedule.play()
        schedule.check()
    except AssertionError as error:
        raise AssertionError(f"schedule {seed}: {error}") from error
    return schedule


@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_makes_a_wrong_sum_or_opens_a_mask_twice(part: int) -> None:
    outcomes = [played(seed).outcome for seed in range(part, SCHEDULES, PARTS)]
    assert {"sum", "failed"} == set(outcomes)
    assert outcomes.count("sum") > len(outcomes) // 5


# ---- clients with a defence taken away


class MakesLostAnswersAgain(Client):
    """Does a step again that was begun: another upload under the same masks."""

    def _load(self) -> _State:
        kept = self._store.load(f"{self._name}-state")
        return _State.from_bytes(kept) if kept else super()._load()


class SendsBeforeSaving(Client):
    """Stores its answer when it is asked the next step; a repeated message is answered anew."""

    def _step(
        self, step: int, message: bytes, work: Callable[..., tuple[_State, Message]]
    ) -> bytes:
        kept = self._store.load(f"{self._name}-state")
        state = _State.from_bytes(kept) if kept else self._load()
        if step == 1 and kept:
            return state.answers[0].answer
        state, answer = work(state, message)
        content = answer.to_bytes()
        answers = (
            *(one for one in state.answers if one.place < step),
            _Answer(step, bytes(32), content),
        )
        self._store.save(f"{self._name}-state", replace(state, answers=answers).to_bytes())
        return content


@pytest.mark.parametrize("kind", [MakesLostAnswersAgain, SendsBeforeSaving])
def test_without_the_defence_some_schedule_shows_a_mask_used_twice(kind: type[Client]) -> None:
    def play() -> None:
        for seed in range(200):
            played(seed, kind)

    with pytest.raises(AssertionError, match=r"twice|two uploads"):
        play()
