"""Sums over Flower's messages, with clients that are silent or wrong at any step.

The server is the one of a deployment, and so are the clients, on real files; only the network is
simulated, and the model that clients train is a stand-in. A sum that is opened is the sum of what
its clients have put in, a round without one is recorded as aborted, and the run goes on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from bgtplanner.errors import ConfigError, InterruptedRunError
from bgtplanner.federation.aggregation.messages import Shares as Dealt
from bgtplanner.federation.parameters import round_parameters
from bgtplanner.federation.protection import Protection
from bgtplanner.federation.result import RoundResult
from bgtplanner.federation.rounds import Federation
from bgtplanner.flower import client as client_module
from bgtplanner.flower.client import Client, make_client_app
from bgtplanner.flower.machines import Machines
from bgtplanner.flower.messages import SUM, Reply, SentCatalogue, StepAnswer, SumStep, read_answer
from bgtplanner.flower.server import Deployment, Group, Pace
from bgtplanner.models.bias import Biases
from bgtplanner.models.optimizers import Server as AveragingServer
from bgtplanner.planning.plan import Plan
from bgtplanner.privacy.accountants import accountant_named
from bgtplanner.privacy.shares import Tolerance
from bgtplanner.runs.deployed import names_in
from federation.aggregation.members import identity, roster_of
from flower.in_process import InProcessGrid
from games.summing import CHARGE, CLIENTS, CLIP, COLLUDERS, DROPOUTS, SIZE, Table

RULE, TOLERANCE = accountant_named("gaussian/gdp"), Tolerance(DROPOUTS, COLLUDERS)

Fault = Callable[[str, int, bytes], bytes | None]
"""What becomes of a client's answer to a step; None: nothing arrives."""


class Network(InProcessGrid):
    """Real clients, and faults on the way."""

    def __init__(self, table: Table) -> None:
        files = [table.home / str(place) / "client.toml" for place in range(CLIENTS)]
        super().__init__(make_client_app(), files)
        self.table = table
        self.fault: Fault = lambda step, place, answer: answer

    def deliver(self, node: int, message: Message) -> None:
        if message.metadata.message_type != SUM:
            super().deliver(node, message)
            return
        place, asked = node - 1, SumStep.read(message.content)
        with self.table.noting(place):
            answered = self.app(message, self.context(node))
        said = read_answer(StepAnswer, answered)
        if said is not None:
            self.table.heard(place, asked, said.answer)
            answer = self.fault(asked.step, place, said.answer)
            if answer is None:
                return
            content = Reply("refused") if answer == b"refused" else StepAnswer(answer)
            answered = Message(content.record(), reply_to=message)
        self.replies.append(answered)


class Summing:
    """A deployment over that network."""

    def __init__(self, table: Table) -> None:
        self.table, self.network = table, Network(table)
        machines = Machines(
            self.network, places=CLIENTS, accountant=RULE.name, run="run",
            known=names_in(table.roster), poll_seconds=0.0,
        )  # fmt: skip
        protection = Protection(mechanism="gaussian", trust="secagg")
        server = AveragingServer(optimizer="posterior")
        self.deployment = Deployment(
            Federation(model=Biases(), server=server, protection=protection),
            machines,
            SentCatalogue(items=("a", "b"), low=1.0, high=5.0, features=np.zeros((2, 0), "f4")),
            model="biases", accountant=RULE, run="run", pace=Pace(round_seconds=1e-9),
            group=Group(table.roster, TOLERANCE, "replace-special"),
        )  # fmt: skip
        self.online(CLIENTS)
        self._real, self.found = self.deployment._added_up, None
        self.deployment._added_up = self._added_up  # type: ignore[method-assign]

    def online(self, number: int) -> None:
        self.network.online = set(range(1, 1 + number))
        self.deployment.machines.look()

    def _added_up(self, *args: Any) -> Any:
        self.found = self._real(*args)  # type: ignore[assignment]
        return self.found

    def step(self, granted: int = CLIENTS) -> RoundResult:
        """One round, by the server's own code."""
        everybody, index = np.arange(CLIENTS) < granted, self.deployment.next_round
        charges, classes = np.array([CHARGE]), np.zeros(CLIENTS, dtype=np.int32)
        terms = round_parameters(
            RULE, "secagg", CLIP, charges, everybody, classes, None, "replace-special",
            invited=everybody, tolerance=TOLERANCE,
        )  # fmt: skip
        plan = Plan(
            round=index, accountant=RULE.name, largest_clip=CLIP, charge_by_class=charges,
            class_of_client=classes, participants=everybody, trust="secagg",
            neighbours="replace-special",
        )  # fmt: skip
        result = self.deployment.step(terms, plan)
        assert (result.round, self.deployment.next_round) == (index, index + 1)
        assert bool(result.aborted) == (self.found is None)
        if self.found is not None:
            total, accepted = self.found
            places = np.flatnonzero(accepted).tolist()
            assert result.clients == len(places) >= CLIENTS - DROPOUTS
            put = [self.table.newest(place) for place in places]
            shares = self.table.round(index).shares
            plain = np.sum(put, axis=0, dtype=np.uint64) & shares.mask(SIZE)
            assert total.tolist() == shares.decode(plain, len(places)).tolist(), "a wrong sum"
        return result


@pytest.fixture
def summing(table: Table, monkeypatch: pytest.MonkeyPatch) -> Summing:
    """Clients whose clocks stand still."""
    monkeypatch.setattr(client_module, "Client", partial(Client, clock=lambda: 1e9))
    return Summing(table)


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


def _of_some(step: str, failing: int, fault: Fault) -> Fault:
    """The fault of as many of those that are asked for a step."""
    chosen: list[int] = []

    def at_step(now: str, place: int, answer: bytes) -> bytes | None:
        if now == step and (place in chosen or len(chosen) < failing):
            chosen.append(place)
        wrong = now == step and place in chosen
        other = fault(now, place, answer) if wrong or isinstance(fault, Earlier) else answer
        return other if wrong else answer

    return at_step


def test_a_sum_is_opened_exactly_if_no_more_fail_than_are_tolerated(summing: Summing) -> None:
    faults = itertools.cycle([silent, refusing, garbled, sealed_for_nobody, Earlier()])
    assert summing.step().clients == CLIENTS
    for step, most in TOLERATED.items():
        for failing in (most, most + 1, most, most + 1):
            fault = next(faults)
            summing.network.fault = _of_some(step, failing, fault)
            result = summing.step()
            assert bool(result.aborted) == (failing > most), (step, failing)
            assert result.late == (failing if fault is silent else 0)
        summing.network.fault = lambda step, place, answer: answer
        assert summing.step().clients == CLIENTS
    summing.table.check()


def test_too_few_clients_for_a_sum_abort_the_round_and_not_the_run(summing: Summing) -> None:
    for number in (1, 3, CLIENTS - DROPOUTS - 1):
        summing.online(number)
        assert summing.step().aborted
    summing.online(CLIENTS)
    for granted in (1, 4):  # so few can pay
        assert summing.step(granted).aborted
    assert summing.step().clients == CLIENTS
    deployment = summing.deployment
    deployment.pace = deployment.pace._replace(wait_seconds=0.0)
    assert deployment.present().all()
    summing.network.online.remove(3)
    with pytest.raises(InterruptedRunError, match="4 clients are connected"):
        deployment.present()


def test_what_can_never_make_a_sum_is_refused_before_a_run() -> None:
    roster = roster_of([identity(place) for place in range(9)])
    for tolerance, fewest in ((Tolerance(1, 1), 5), (Tolerance(0, 0), 2), (Tolerance(0.2, 1), 3)):
        assert Group(roster, tolerance, "replace-special").fewest == fewest
    with pytest.raises(ConfigError, match="9 members, of whom 5 may drop out"):
        Group(roster, Tolerance(5, 1), "replace-special").fewest  # noqa: B018
