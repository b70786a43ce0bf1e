"""Sums over Flower's messages, with clients that are silent, wrong or stopped at any step.

The server is the one of a deployment, and so are the clients, on real files; only the network is
simulated, and the model that clients train is a stand-in. Whatever happens, a sum that is opened
is the sum of what its clients have put in, a round without one is recorded as aborted, and the run
goes on. Schedules are played from a seed, and again from the same one.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from bgtplanner.errors import ConfigError, InterruptedRunError
from bgtplanner.federation.aggregation import keys
from bgtplanner.federation.aggregation.client import Client as Member
from bgtplanner.federation.aggregation.messages import Opened
from bgtplanner.federation.aggregation.messages import Shares as Dealt
from bgtplanner.federation.aggregation.server import Server
from bgtplanner.federation.parameters import round_parameters
from bgtplanner.federation.protection import Protection
from bgtplanner.federation.randomizer import Randomizer
from bgtplanner.federation.result import RoundResult
from bgtplanner.federation.rounds import Federation
from bgtplanner.flower import client as client_module
from bgtplanner.flower import server as server_module
from bgtplanner.flower.client import Client, make_client_app
from bgtplanner.flower.machines import Machines
from bgtplanner.flower.messages import SUM, Reply, SentCatalogue, StepAnswer, SumStep, read_answer
from bgtplanner.flower.server import Deployment, Group, Pace
from bgtplanner.models.bias import Biases
from bgtplanner.models.optimizers import Server as AveragingServer
from bgtplanner.planning.plan import Plan
from bgtplanner.privacy.accountants import accountant_named
from bgtplanner.privacy.randomness import SeededNoise
from bgtplanner.privacy.shares import Shares, Tolerance
from federation.aggregation.members import identity, roster_of
from flower.in_process import InProcessGrid
from games.machines import Disk, Stop, writing_to
from games.summing import (
    CHARGE,
    CLIENTS,
    CLIP,
    COLLUDERS,
    DROPOUTS,
    SIZE,
    Table,
    stand_in,
)

SCHEDULES = int(os.environ.get("BGTPLANNER_SCHEDULES", "100"))
PARTS = 5
AT_ONCE = 4  # schedules, each of one round, that a federation goes through
RULE = accountant_named("gaussian/gdp")

Fault = Callable[[str, int, bytes], bytes | None]
"""What becomes of a client's answer to a step; None: nothing arrives."""


class Restart(BaseException):
    """The server stops here, and starts again with the round that it was in."""


class Network(InProcessGrid):
    """Real clients, and faults on the way."""

    def __init__(self, table: Table) -> None:
        files = [table.home / str(place) / "client.toml" for place in range(CLIENTS)]
        super().__init__(make_client_app(noise=self._noise), files)
        self.table, self.draws = table, 0
        self.fault: Fault = lambda step, place, answer: answer
        self.before: Callable[[str, int], None] = lambda step, place: None
        self.doubled: Callable[[], bool] = lambda: False

    def _noise(self, *_: Any) -> SeededNoise:
        """Never the same twice, and the same in every play: what the model is follows from it."""
        self.draws += 1
        return SeededNoise([self.draws])

    def deliver(self, node: int, message: Message) -> None:
        if message.metadata.message_type != SUM:
            super().deliver(node, message)
            return
        place, asked = node - 1, SumStep.read(message.content)
        try:
            self.before(asked.step, place)
            with self.table.noting(place):
                answered = self.app(message, self.context(node))
        except Stop:
            return
        said = read_answer(StepAnswer, answered)
        if said is not None:
            self.table.heard(place, asked, said.answer)
            answer = self.fault(asked.step, place, said.answer)
            if answer is None:
                return
            refused = answer == b"refused"
            content = Reply("refused") if refused else StepAnswer(answer)
            answered = Message(content.record(), reply_to=message)
        self.replies += [answered] * (1 + self.doubled())


class Summing:
    """A deployment over that network."""

    def __init__(self, table: Table) -> None:
        self.table, self.network = table, Network(table)
        known = [hashlib.sha256(key.hex().encode()).hexdigest() for key in table.roster.keys]
        machines = Machines(
            self.network,
            places=CLIENTS,
            accountant=RULE.name,
            run="run",
            known=known,
            poll_seconds=0.0,
        )
        self.deployment = Deployment(
            Federation(
                model=Biases(),
                server=AveragingServer(optimizer="posterior"),
                protection=Protection(mechanism="gaussian", trust="secagg"),
            ),
            machines,
            SentCatalogue(items=("a", "b"), low=1.0, high=5.0, features=np.zeros((2, 0), "f4")),
            model="biases",
            accountant=RULE,
            run="run",
            pace=Pace(round_seconds=1e-9),
            group=Group(table.roster, Tolerance(DROPOUTS, COLLUDERS), "replace-special"),
        )
        machines.look()
        self.found: list[Any] = []
        real = self.deployment._added_up

        def added_up(*args: Any) -> Any:
            self.found.append(real(*args))
            return self.found[-1]

        self.deployment._added_up = added_up  # type: ignore[method-assign]

    def step(self, granted: int = CLIENTS) -> RoundResult:
        """One round, by the server's own code; a server that stops begins it again."""
        everybody, index = np.arange(CLIENTS) < granted, self.deployment.next_round
        charges, classes = np.array([CHARGE]), np.zeros(CLIENTS, dtype=np.int32)
        terms = round_parameters(
            RULE, "secagg", CLIP, charges, everybody, classes, None, "replace-special",
            invited=everybody, tolerance=Tolerance(DROPOUTS, COLLUDERS),
        )  # fmt: skip
        plan = Plan(
            round=index, accountant=RULE.name, largest_clip=CLIP, charge_by_class=charges,
            class_of_client=classes,
            participants=everybody, trust="secagg", neighbours="replace-special",
        )  # fmt: skip
        while True:
            try:
                result = self.deployment.step(terms, plan)
            except Restart:
                continue
            self._check(result, index)
            return result

    def _check(self, result: RoundResult, index: int) -> None:
        assert (result.round, self.deployment.next_round) == (index, index + 1)
        assert bool(result.aborted) == (self.found[-1] is None)
        assert result.aborted or result.clients >= CLIENTS - DROPOUTS
        if self.found[-1] is not None:
            total, accepted = self.found[-1]
            places = np.flatnonzero(accepted).tolist()
            assert result.clients == len(places)
            assert total.tolist() == self._plain(places, index), "a wrong sum"

    def _plain(self, places: list[int], index: int) -> Any:
        """What these clients have put in, added up without any of this."""
        shares = Shares(
            scale=self.table.round(index).scale, clip=CLIP, invited=CLIENTS,
            most_dropouts=DROPOUTS, most_colluders=COLLUDERS,
        )  # fmt: skip
        put = [self.table.newest(place) for place in places]
        total = np.sum(put, axis=0, dtype=np.uint64) & shares.mask(SIZE)
        return shares.decode(total, len(places)).tolist()


@contextlib.contextmanager
def federation(memory: Path, kind: type[Client] = Client) -> Iterator[Summing]:
    """Clients of a kind, whose clocks stand still."""
    shutil.copytree(memory / "template", memory / "home")
    patch = pytest.MonkeyPatch()
    patch.setattr(client_module, "Client", partial(kind, clock=lambda: 1e9))
    try:
        with stand_in():
            yield Summing(Table(memory / "home"))
    finally:
        patch.undo()
        shutil.rmtree(memory / "home")


# ---- one fault at a time


def silent(step: str, place: int, answer: bytes) -> None:
    return None


def refusing(step: str, place: int, answer: bytes) -> bytes:
    return b"refused"


def garbled(step: str, place: int, answer: bytes) -> bytes:
    return answer[:5] + bytes([answer[5] ^ 1]) + answer[6:]  # in the session


def sealed_for_nobody(step: str, place: int, answer: bytes) -> bytes:
    """Shares that the server cannot tell from good ones."""
    if step != "shares":
        return garbled(step, place, answer)
    dealt = Dealt.from_bytes(answer)
    parcels = tuple(replace(one, sealed=bytes(len(one.sealed))) for one in dealt.parcels)
    return replace(dealt, parcels=parcels).to_bytes()


class Earlier:
    """Sends what it has sent in the round before, or in the step before."""

    def __init__(self) -> None:
        self.sent: dict[int, bytes] = {}

    def __call__(self, step: str, place: int, answer: bytes) -> bytes:
        sent, self.sent[place] = self.sent.get(place, b""), answer
        return sent


TOLERATED = {"keys": 1, "shares": 1, "upload": 1, "sign": 1, "open": 2}
"""How many may be missing from a step. An upload counts if three can take its mask off."""


def test_a_sum_is_opened_exactly_if_no_more_fail_than_are_tolerated(memory: Path) -> None:
    faults = itertools.cycle([silent, refusing, garbled, sealed_for_nobody, Earlier()])
    with federation(memory) as summing:
        assert summing.step().clients == CLIENTS
        for step, most in TOLERATED.items():
            for failing in (most, most + 1, most, most + 1):
                fault = next(faults)
                _fail(summing, step, failing, fault)
                result = summing.step()
                assert bool(result.aborted) == (failing > most), (step, failing)
                assert result.late == (failing if fault is silent else 0)
            summing.network.fault = lambda step, place, answer: answer
            assert summing.step().clients == CLIENTS
        summing.table.check()


def _fail(summing: Summing, step: str, failing: int, fault: Fault) -> None:
    """Let as many of those fail at a step that are asked for it."""
    index = summing.deployment.next_round
    chosen: list[int] = []

    def at_step(now: str, place: int, answer: bytes) -> bytes | None:
        if now == step and (place in chosen or len(chosen) < failing):
            chosen.append(place)
        wrong = now == step and place in chosen
        other = fault(now, place, answer) if wrong or isinstance(fault, Earlier) else answer
        return other if wrong else answer

    assert index == summing.deployment.next_round
    summing.network.fault = at_step


def test_too_few_clients_for_a_sum_abort_the_round_and_not_the_run(memory: Path) -> None:
    with federation(memory) as summing:
        for online in (1, 2, 3, CLIENTS - DROPOUTS - 1):
            summing.network.online = set(range(1, 1 + online))
            summing.deployment.machines.look()
            assert summing.step().aborted
        summing.network.online = set(range(1, 1 + CLIENTS))
        summing.deployment.machines.look()
        assert summing.step().clients == CLIENTS


@pytest.mark.parametrize("granted", [1, 2, 3, 4])
def test_too_few_that_can_pay_abort_the_round_and_not_the_run(memory: Path, granted: int) -> None:
    with federation(memory) as summing:
        assert summing.step(granted).aborted
        assert summing.step().clients == CLIENTS


def test_a_server_waits_for_as_many_as_can_make_a_sum(memory: Path) -> None:
    with federation(memory) as summing:
        deployment = summing.deployment
        deployment.pace = deployment.pace._replace(wait_seconds=0.0)
        assert deployment.present().all()
        summing.network.online.remove(3)
        with pytest.raises(InterruptedRunError, match="4 clients are connected"):
            deployment.present()


def test_what_can_never_make_a_sum_is_refused_before_a_run() -> None:
    roster = roster_of([identity(place) for place in range(9)])
    assert Group(roster, Tolerance(1, 1), "replace-special").fewest == 5
    assert Group(roster, Tolerance(0, 0), "replace-special").fewest == 2
    assert Group(roster, Tolerance(0.2, 1), "replace-special").fewest == 3
    with pytest.raises(ConfigError, match="9 members, of whom 5 may drop out"):
        Group(roster, Tolerance(5, 1), "replace-special").fewest  # noqa: B018


def lying(step: str, place: int, answer: bytes) -> bytes:
    """One client opens another seed than its own."""
    if step != "open" or place != 0:
        return answer
    return replace(Opened.from_bytes(answer), seed=bytes(keys.SEED)).to_bytes()


class Credulous(Server):
    """Takes every seed and every share for what it says it is."""

    def _take_open(self, place: int, content: bytes) -> None:
        self._opened[place] = Opened.from_bytes(content)


def test_a_client_that_opens_another_seed_makes_no_wrong_sum(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with federation(memory) as summing:
        summing.network.fault = lying
        assert summing.step().clients == CLIENTS
        monkeypatch.setattr(server_module, "SumServer", Credulous)
        with pytest.raises(AssertionError, match="a wrong sum"):
            summing.step()


# ---- all kinds of them


def played(memory: Path, seed: int, kind: type[Client] = Client) -> tuple[list[Any], list[str]]:
    """What has happened in a schedule, and how its rounds ended."""
    rng = np.random.default_rng(seed)
    rate = float(rng.choice([0.0, 0.02, 0.1]))
    disks = [Disk(np.random.default_rng([seed, place])) for place in range(CLIENTS)]
    trace: list[Any] = []
    with federation(memory, kind) as summing:

        def disk_of(path: Path) -> Disk | None:
            inside = path.is_relative_to(summing.table.home)
            return disks[int(path.relative_to(summing.table.home).parts[0])] if inside else None

        def before(step: str, place: int) -> None:
            if rng.random() < rate / 8:
                raise Restart
            disks[place].stop_at = int(rng.integers(16)) if rng.random() < rate else None

        def fault(step: str, place: int, answer: bytes) -> bytes | None:
            trace.append((step, place, len(answer)))
            if rng.random() >= rate:
                return answer
            return FAULTS[int(rng.integers(len(FAULTS)))](step, place, answer)

        network = summing.network
        network.before, network.fault = before, fault
        network.doubled = lambda: bool(rng.random() < rate)
        outcomes = []
        with writing_to(disk_of):
            for _ in range(AT_ONCE - 1):
                outcomes.append("aborted" if summing.step().aborted else "sum")
                trace.append(outcomes[-1])
                network.replies.clear()
            rate = 0.0
            for disk in disks:
                disk.stop_at = None
            assert summing.step().clients == CLIENTS, "who is back does not take part"
        summing.table.check()
    return trace, outcomes


FAULTS: tuple[Fault, ...] = (silent, silent, refusing, garbled, sealed_for_nobody)


@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_over_flower_makes_a_wrong_sum_or_a_second_upload(
    part: int, memory: Path
) -> None:
    outcomes: list[str] = []
    for seed in range(part, SCHEDULES // AT_ONCE, PARTS):
        try:
            outcomes += played(memory, seed)[1]
        except AssertionError as error:
            raise AssertionError(f"schedule {seed}: {error}") from error
    assert set(outcomes) == {"sum", "aborted"} or len(outcomes) < 4 * AT_ONCE


class AnswersEveryMessage(Member):
    """Does a step again if it is asked with another message."""

    def _step(self, step: int, message: bytes, work: Any) -> bytes:
        state, asked = self._load(), hashlib.sha256(message).digest()
        known = any((one.place, one.asked) == (step, asked) for one in state.answers)
        if step <= state.step and not known:
            before = tuple(one for one in state.answers if one.place < step)
            self._store.save(f"{self._name}-begun", self._session + bytes([step - 1]))
            self._store.save(f"{self._name}-state", replace(state, answers=before).to_bytes())
        return super()._step(step, message, work)


class PaysOnce(Client):
    """Takes a round for paid that is in its ledger."""

    def _pay(self, ledger: Any, request: Any) -> Any:
        guard = Randomizer(ledger, trust="secagg")
        return guard, guard.reserve(request.charge, run=request.run, round=request.round)


def test_without_the_defence_some_schedule_shows_a_mask_used_twice(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "Member", AnswersEveryMessage)

    def play() -> None:
        for seed in range(45, 100):
            played(memory, seed, PaysOnce)

    with pytest.raises(AssertionError, match=r"upload of .* in two ways"):
        play()
