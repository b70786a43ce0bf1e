"""A federation in one thread, driven by one seed.

Messages are delayed, lost, doubled and overtaken; machines stop at any write, with the file they
were writing torn; disks lose a name that was not flushed; the server asks again, and starts again.
Clients, their ledgers and their stores are the real ones, on real files; only the model is a
stand-in, time is a number, and noise comes from the seed. Clients either noise their own uploads,
or add them up.
"""

from __future__ import annotations

import contextlib
import heapq
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgtplanner.errors import BGTPlannerError, MessageError
from bgtplanner.federation.aggregation.client import Client as Member
from bgtplanner.federation.aggregation.client import _State
from bgtplanner.federation.aggregation.messages import STEPS, Opened, Opening, Survivors
from bgtplanner.federation.aggregation.server import Server
from bgtplanner.federation.randomizer import Randomizer
from bgtplanner.flower import client as client_module
from bgtplanner.flower import state as module
from bgtplanner.flower.client import Client
from bgtplanner.flower.clientfile import load_client
from bgtplanner.privacy._journal import Journal
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.privacy.randomness import SeededNoise
from games.summing import CHARGE, CLIENTS, SIZE, Asked, Table, plan_of, stand_in

ROUNDS = 3  # with faults, before one without
FAULTS = (0.0, 0.02, 0.08)


class Stop(BaseException):
    """The machine stops here: nothing after this line is done, and nothing is tidied up."""


@dataclass
class Disk:
    """Counts writes, and stops the machine at one of them, counted from now; None: at none."""

    rng: np.random.Generator
    stop_at: int | None = None

    def step(self) -> None:
        """Stop the machine, if it is time for it."""
        if self.stop_at is not None:
            self.stop_at -= 1
            if self.stop_at < 0:
                raise Stop

    def replace_file(self, target: Path, content: bytes) -> None:
        """As :func:`bgtplanner.durable.replace_file`, with every place at which it can stop."""
        temporary = target.parent / f".tmp-{self.rng.integers(2**62):x}"
        self.step()
        try:
            self.step()
        except Stop:
            temporary.write_bytes(content[: int(self.rng.integers(len(content) + 1))])
            raise
        temporary.write_bytes(content)
        try:
            self.step()
        except Stop:  # the name was not flushed: the old file may be back, or the new one there
            if self.rng.random() < 0.5:
                temporary.replace(target)
            raise
        temporary.replace(target)
        self.step()

    @contextlib.contextmanager
    def writing(self, journal: Journal, real: Callable[..., Any]) -> Iterator[None]:
        """As :meth:`Journal.writing`, with a stop before and after what it writes."""
        with real(journal):
            self.step()
            yield
            self.step()
        self.step()


class Hears:
    """A server of clients that noise their own uploads: it takes the first answer of each."""

    def __init__(self) -> None:
        self.step: str | None = "answer"
        self.heard: dict[int, bytes] = {}
        self.waiting = set(range(CLIENTS))

    def receive(self, place: int, content: bytes) -> None:
        self.waiting.discard(place)
        assert self.heard.setdefault(place, content) == content, "answered in two ways"

    def close_step(self) -> dict[int, bytes]:
        self.step = None
        return {}


@dataclass
class Schedule:
    """Some rounds on that network, and what everybody who listens has seen of them."""

    home: Path
    seed: int
    kind: type[Client] = Client
    outcomes: list[str] = field(default_factory=list)
    signed: dict[tuple[int, int], set[frozenset[int]]] = field(default_factory=dict)
    opened: dict[tuple[int, int], set[str]] = field(default_factory=dict)
    accepted: dict[int, set[frozenset[int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng, self.draws = np.random.default_rng([self.seed, 1]), 0
        self.table = Table(self.home, self.kind)
        rngs = (np.random.default_rng([self.seed, 2, place]) for place in range(CLIENTS))
        self.disks = [Disk(rng) for rng in rngs]
        self.faults = float(self.rng.choice(FAULTS))
        policy = load_client(self.home / "0" / "client.toml").agreed()
        self.sums, self.rule = policy.secagg is not None, policy.rule

    def noise(self, *_: Any) -> SeededNoise:
        self.draws += 1  # never the same twice, as on a real machine
        return SeededNoise([self.seed, self.draws])

    def asked(self, index: int) -> Asked:
        asked = self.table.round(index)
        return asked if self.sums else replace(asked, plan=plan_of(round=index, trust="local"))

    def answer(self, asked: Asked, step: str, place: int, message: bytes, now: float) -> Any:
        """The bytes that leave a machine that is asked, if any do."""
        disk, file = self.disks[place], load_client(self.home / str(place) / "client.toml")
        try:
            client = self.kind(file, noise=self.noise, clock=lambda: now)
            with self.table.noting(place):
                if self.sums:
                    answer = client.step(asked.step(step, message))
                else:
                    answer = client.answer(asked.plan).tobytes()
        except (BGTPlannerError, Stop):
            return None
        finally:
            disk.stop_at = None
        session = asked.agreed.session
        self.table.sent.setdefault((place, step, session), []).append(answer)
        self._note(asked.plan.round, step, place, message, answer)
        return answer

    def _note(self, index: int, step: str, place: int, message: bytes, answer: bytes) -> None:
        if step == "sign":
            self.signed.setdefault((index, place), set()).add(Survivors.from_bytes(message).places)
        if step == "open":
            survivors = Opening.from_bytes(message).places
            self.signed.setdefault((index, place), set()).add(survivors)
            self.accepted.setdefault(index, set()).add(survivors)
            self.opened.setdefault((index, place), set()).add("self")
            for share in Opened.from_bytes(answer).shares:
                kind = "self" if share.place in survivors else "masking"
                self.opened.setdefault((index, share.place), set()).add(kind)

    # ---- the server, and the network

    def play(self) -> None:
        """Rounds with faults, then one without: whoever can pay must answer that one."""
        for index in range(ROUNDS):
            self._round(index)
        self.faults, able = 0.0, set()
        for place in range(CLIENTS):
            with Ledger.open(self.table.state(place) / "ledger.sqlite", read_only=True) as ledger:
                if ledger.left()[0] >= CHARGE:
                    able.add(place)
        self.missing = able - self._round(ROUNDS)

    def _round(self, index: int) -> set[int]:
        """Return who is in the sum, or has answered."""
        asked = self.asked(index)
        for _ in range(3):
            server = Server(asked.agreed, self.table.roster) if self.sums else Hears()
            messages, now = dict.fromkeys(range(CLIENTS), b""), 1e9 + 1e4 * index
            try:
                while server.step is not None:
                    now = self._step(asked, server, messages, now)
                    messages = server.close_step()
                if isinstance(server, Hears):
                    return set(server.heard)
                found = server.finish()
            except TimeoutError:  # the server stops, and starts again
                continue
            except MessageError:
                break
            plain = sum(self.table.newest(place) for place in found.places)
            total = [int(value) % (1 << asked.agreed.bits) for value in plain]
            assert found.values.tolist() == total, "a wrong sum"
            self.outcomes.append("sum")
            return set(found.places)
        self.outcomes.append("failed")
        return set()

    def _step(self, asked: Asked, server: Any, messages: dict[int, bytes], now: float) -> float:
        """Carry a step's messages there and answers back until the deadline."""
        step, rng, queue, number = server.step, self.rng, list[Any](), 0

        def send(at: float, what: str, place: int, content: bytes) -> None:
            nonlocal number
            lost, twice = rng.random(2) < self.faults
            for _ in range(int(not lost) + int(twice)):
                number += 1
                delay = float(rng.exponential(1.0)) * (10.0 if rng.random() < self.faults else 1.0)
                heapq.heappush(queue, (at + delay, number, what, place, content))

        for place, message in sorted(messages.items()):
            send(now, "ask", place, message)
        heapq.heappush(queue, (now + 4.0, 0, "again", -1, b""))
        deadline = now + 8.0 if self.faults else np.inf
        while queue:
            at, _, what, place, content = heapq.heappop(queue)
            if at > deadline and what == "answer":
                continue  # the server waits no longer; clients answer whenever they are asked
            now = max(now, min(at, deadline))
            if what == "again":
                for silent in sorted(server.waiting):
                    send(at, "ask", silent, messages[silent])
            elif what == "ask":
                if rng.random() < 2 * self.faults:
                    self.disks[place].stop_at = int(rng.integers(16))
                answer = self.answer(asked, step, place, content, at)
                if answer is not None:
                    send(at, "answer", place, answer)
            else:
                with contextlib.suppress(MessageError):
                    server.receive(place, content)
                if rng.random() < self.faults / 20:
                    raise TimeoutError
        return now

    # ---- what must hold whatever happened

    def check(self) -> None:
        self.table.check("upload" if self.sums else "answer")
        for kinds in self.opened.values():
            assert len(kinds) == 1, "a share of either kind of one client was revealed"
        for sets in self.signed.values():
            assert len(sets) == 1, "a client has agreed to two sets of survivors"
        for sets in self.accepted.values():
            assert len(sets) == 1, "two sets of survivors were opened"
        for place in range(CLIENTS):
            with Ledger.open(self.table.state(place) / "ledger.sqlite") as ledger:
                ledger.verify()
                limit = int(ledger.accountant.limit_ticks(ledger.budgets.classes[0])[0])
                assert int(ledger.spent()[0, 0]) <= limit, "more was spent than there was"
        assert not self.missing, "who can pay must answer once the faults are over"


@contextlib.contextmanager
def disks_that_stop(schedule: Schedule) -> Iterator[None]:
    """All writes of a schedule's clients go to its disks, and the model is a stand-in."""
    real = Journal.writing

    def disk_of(path: Path) -> Disk:
        return schedule.disks[int(path.relative_to(schedule.home).parts[0])]

    with pytest.MonkeyPatch.context() as patch, stand_in():
        patch.setattr(
            module, "replace_file", lambda path, to: disk_of(path).replace_file(path, to)
        )
        patch.setattr(Journal, "writing", lambda self: disk_of(self.path).writing(self, real))
        yield


def played(
    template: Path, seed: int, kind: type[Client] = Client, member: type[Member] = Member
) -> list[str]:
    """Play a schedule on a copy and check it; how its rounds ended."""
    home = template.with_name("played")
    shutil.copytree(template, home)
    schedule = Schedule(home, seed, kind)
    try:
        with pytest.MonkeyPatch.context() as patch, disks_that_stop(schedule):
            patch.setattr(client_module, "Member", member)
            schedule.play()
        schedule.check()
        return schedule.outcomes
    except AssertionError as error:
        raise AssertionError(f"schedule {seed}: {error}") from error
    finally:
        shutil.rmtree(home)


# ---- clients with a defence taken away


class PaysAfterwards(Client):
    """Sends, and writes the charge down after that."""

    def answer(self, request: Any) -> Any:
        known = self._answered(request.digest)
        if known is not None:
            return known
        values = np.random.default_rng([request.round, id(self)]).normal(size=SIZE)
        self._keep_answer(request.digest, values)
        with contextlib.suppress(Stop), self.open_ledger() as ledger:
            Randomizer(ledger).reserve(request.charge, run=request.run, round=request.round)
        return values


class MakesLostAnswersAgain(Client):
    """Has paid for the round, cannot find the answer, and so makes another one."""

    def answer(self, request: Any) -> Any:
        try:
            return super().answer(request)
        except BGTPlannerError:
            noise = self._noise(self.file, request)  # type: ignore[misc]
            return noise.normal_steps(2**20, (SIZE,)) / 2.0**20


class KeepsNothing(Client):
    """Answers each request once, charges each time: the same request gets two answers."""

    def answer(self, request: Any) -> Any:
        return super().answer(replace(request, run=f"{request.run} {self._pacing._clock()}"))


class PaysOnceAddsTwice(Client):
    """Takes a round for paid that is in its ledger, and adds to the sum again."""

    def _begin(self, ledger: Any, agreed: Any) -> None:
        pass

    def _pay(self, ledger: Any, request: Any) -> Any:
        guard = Randomizer(ledger, trust="secagg")
        reservation = guard.reserve(request.charge, run=request.run, round=request.round)
        self._remember(ledger, request.digest)
        return guard, reservation


class DoesStepsAgain(Member):
    """Keeps no answers: a step that was done is done again."""

    def answer(self, step: str, message: bytes, values: Any) -> bytes:
        state, done = self._load(), STEPS.index(step)
        if done < state.step:
            before = tuple(one for one in state.answers if one.place <= done)
            self._store.save(f"{self._name}-begun", self._session + bytes([done]))
            self._store.save(f"{self._name}-state", replace(state, answers=before).to_bytes())
        return super().answer(step, message, values)


class BeginsStepsAgain(Member):
    """Does a step again of which it knows only that it was begun."""

    def _load(self) -> Any:
        kept = self._store.load(f"{self._name}-state")
        return _State.from_bytes(kept) if kept else super()._load()
