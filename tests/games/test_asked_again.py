"""What a server gains by asking again, if one of a client's defences is missing.

That it gains nothing with all of them is in :mod:`games.test_summing_clients`; here each is taken
away, and the same attack gives the server what it wanted. Where two defences stand behind each
other, either of them is shown to be enough.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgtplanner.errors import MessageError
from bgtplanner.federation.aggregation import client as member_module
from bgtplanner.federation.aggregation import masks
from bgtplanner.federation.aggregation.client import Client as Member
from bgtplanner.federation.aggregation.messages import STEPS
from bgtplanner.federation.aggregation.server import Server
from bgtplanner.federation.ratelimit import RateLimit
from bgtplanner.flower import client as module
from bgtplanner.flower import state
from bgtplanner.flower.client import Client
from games.summing import (
    CLIENTS,
    COLLUDERS,
    DROPOUTS,
    POLICY,
    Asked,
    Table,
    asked_for,
    plan_of,
    stand_in,
    write_summing,
)
from games.test_aggregation_attacks import KeepsRequestsApart
from games.test_summing_clients import PaysOnceAddsTwice

Patch = pytest.MonkeyPatch


def _unpaid(table: Table) -> bool:
    """Whether a client has sent more uploads than it has paid for, or one in two ways."""
    try:
        table.check()
    except AssertionError:
        return True
    return False


# ---- a round with other parameters


def _with_other_parameters(table: Table) -> bool:
    """Whether the sum of a round is opened a second time, about another model."""
    asked = table.round()
    other = replace(asked.plan, model=replace(asked.plan.model, items=np.ones((2, 3), "f4")))
    assert table.opened(asked)
    table.rate(0, "u0,b,5\n")
    return table.opened(replace(asked, plan=other).sealed())


@pytest.mark.parametrize(
    ("member", "kind"),
    [(Member, Client), (KeepsRequestsApart, Client), (Member, PaysOnceAddsTwice)],
)
def test_a_round_is_opened_once_whatever_its_parameters(
    table: Table, member: type[Member], kind: type[Client], monkeypatch: Patch
) -> None:
    """The store of rounds and the ledger each see to it."""
    monkeypatch.setattr(module, "Member", member)
    assert not _with_other_parameters(replace(table, kind=kind))
    assert not _unpaid(table)


def test_without_either_a_round_is_paid_once_and_opened_twice(
    table: Table, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(module, "Member", KeepsRequestsApart)
    assert _with_other_parameters(replace(table, kind=PaysOnceAddsTwice))


# ---- the same message again


class DoesStepsAgain(Member):
    """Keeps no answers: a step that was done is done again."""

    def _step(self, step: int, message: bytes, work: Any) -> bytes:
        state = self._load()
        if step <= state.step:
            before = tuple(one for one in state.answers if one.place < step)
            self._store.save(f"{self._name}-begun", self._session + bytes([step - 1]))
            self._store.save(f"{self._name}-state", replace(state, answers=before).to_bytes())
        return super()._step(step, message, work)


def _again(table: Table, step: str) -> bool:
    """Whether a client answers the same message in two ways."""
    asked = table.round()
    table.play(asked, until="sign")
    table.rate(0, "u0,b,5\n")
    with contextlib.suppress(MessageError):
        table.step(0, asked.step(step, table.got[0, step]))
    return _unpaid(table)


@pytest.mark.parametrize("step", ["keys", "shares", "upload"])
def test_the_same_message_is_answered_once(table: Table, step: str) -> None:
    assert not _again(table, step)


@pytest.mark.parametrize("step", ["keys", "shares", "upload"])
def test_without_stored_answers_it_is_answered_in_two_ways(
    table: Table, step: str, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(module, "Member", DoesStepsAgain)
    assert _again(replace(table, kind=PaysOnceAddsTwice), step)


# ---- a store that is damaged


class BeginsAnew(Member):
    """Takes a store that it cannot read for one of a round that has not begun."""

    def _load(self) -> Any:
        try:
            return super()._load()
        except MessageError:
            return member_module._nothing()


def _lose_one(table: Table, part: str) -> None:
    for path in table.sums(0).glob(f"*-{part}"):
        path.unlink()


def _cut(table: Table) -> None:
    (path,) = table.sums(0).glob("*-state")
    path.write_bytes(path.read_bytes()[:-1])


DAMAGES: dict[str, Callable[[Table], None]] = {
    "its state is lost": lambda table: _lose_one(table, "state"),
    "its begin is lost": lambda table: _lose_one(table, "begun"),
    "its state is cut": _cut,
}


def _after(table: Table, damage: Callable[[Table], None]) -> bool:
    """Whether a client shows other keys for a round in which its neighbours have its first."""
    asked = table.round()
    table.play(asked, until="upload")
    damage(table)
    with contextlib.suppress(MessageError):
        table.step(0, asked.step("keys"))
    return _unpaid(table)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_store_shows_no_second_keys(
    table: Table, damage: Callable[[Table], None]
) -> None:
    assert not _after(table, damage)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_without_looking_at_the_store_a_round_has_two_keys(
    table: Table, damage: Callable[[Table], None], monkeypatch: Patch
) -> None:
    monkeypatch.setattr(module, "Member", BeginsAnew)
    assert _after(table, damage)


# ---- two processes at once


def _at_once(table: Table, monkeypatch: Patch) -> bool:
    """Whether two processes of a client, asked the same at the same time, answer in two ways.

    The second is started when the first has seen that nothing is stored yet. The first goes on
    once the second has either answered, or waits for the lock. So nothing here depends on how fast
    the machine is.
    """
    asked, seen, answers = table.round().step("keys"), threading.Event(), list[bytes]()
    real_lock, real_load = state.fcntl.flock, Member._load

    def second() -> None:
        try:
            answers.append(table.client(0).step(asked))
        finally:
            seen.set()

    other = threading.Thread(target=second)

    def lock(*how: Any) -> None:
        if threading.current_thread() is other:
            seen.set()
        real_lock(*how)

    def load(member: Member) -> Any:
        state = real_load(member)
        if threading.current_thread() is not other:
            other.start()
            seen.wait()
        return state

    monkeypatch.setattr(state.fcntl, "flock", lock)
    monkeypatch.setattr(Member, "_load", load)
    answers.append(table.client(0).step(asked))
    other.join()
    return len(set(answers)) == 2


def test_two_processes_of_a_client_give_one_answer(table: Table, monkeypatch: Patch) -> None:
    assert not _at_once(table, monkeypatch)


def test_without_the_lock_they_give_two(table: Table, monkeypatch: Patch) -> None:
    monkeypatch.setattr(Client, "_alone", lambda _: contextlib.nullcontext())
    assert _at_once(table, monkeypatch)


# ---- faster than agreed


def _in_an_hour(folder: Path) -> int:
    """How many of six rounds a client begins whose policy allows three in an hour."""
    pace = POLICY | {"requests_per_hour": 3.0}
    with stand_in():
        table = Table(write_summing(folder, policy=pace))
        return sum(not table.refuses(0, table.round(index).step("keys")) for index in range(6))


def test_rounds_are_begun_at_the_pace_of_the_policy(tmp_path: Path) -> None:
    assert _in_an_hour(tmp_path / "group") == 3


def test_without_pacing_a_server_goes_through_the_budget_at_once(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(RateLimit, "take", lambda _: True)
    assert _in_an_hour(tmp_path / "group") == 6


# ---- stores that are set back after the upload


def _set_back(table: Table, asked: Asked, who: Collection[int]) -> bool:
    """Whether the server reads client 0, by having a sum opened with it and then without it.

    The stores of some other clients are set back to where they were after their uploads, as by a
    backup. Their ledgers have nothing to object: no one pays for signing and opening.
    """
    table.play(asked, until="sign")
    for place in who:
        shutil.copytree(table.sums(place), table.sums(place).with_name("copy"))
    with_it = table.play(asked).finish()
    for place in who:
        shutil.rmtree(table.sums(place))
        shutil.copytree(table.sums(place).with_name("copy"), table.sums(place))
    try:
        without = table.play(asked, drops={"upload": [0]}).finish()
    except MessageError:
        return False
    difference = masks.reduced(with_it.values - without.values, asked.agreed.bits)
    assert difference.tolist() == table.newest(0).tolist()
    return True


@pytest.mark.parametrize("number", [1, 2])
def test_a_store_that_is_set_back_is_at_worst_a_colluder(table: Table, number: int) -> None:
    """What it reveals twice is what a colluder would: as few as may collude give nothing away."""
    assert number >= COLLUDERS
    assert not _set_back(table, table.round(), range(1, 1 + number))


def test_with_as_many_as_open_a_secret_the_server_reads_a_client(table: Table) -> None:
    assert _set_back(table, table.round(), range(1, CLIENTS))


# ---- two sets of keys in one round, of a client that was made to forget the first


def _forget(table: Table, place: int) -> None:
    for index in range(state._ROUNDS_KEPT):
        later = asked_for(table.roster, plan_of(run=f"to fill a store, {index}"))
        table.step(place, later.step("keys"))


@pytest.mark.parametrize("number", range(CLIENTS))
def test_keys_of_a_forgotten_round_open_no_sum_but_the_true_one(table: Table, number: int) -> None:
    """Client 0 shows two sets of keys; so many of its neighbours are shown the first of them.

    Those deal shares for a key that it no longer has, and the others for the one that it has.
    """
    asked = table.round()
    table.play(asked, until="shares")
    first = {place: table.got[place, "shares"] for place in range(1, 1 + number)}
    (before,) = table.sent.pop((0, "keys", asked.agreed.session))
    _forget(table, 0)
    server, messages = Server(asked.agreed, table.roster), dict.fromkeys(range(CLIENTS), b"")
    opened = True
    try:
        for step in STEPS:
            messages |= first if step == "shares" else {}
            for place, message in messages.items():
                with contextlib.suppress(MessageError):
                    server.receive(place, table.step(place, asked.step(step, message)))
            messages = server.close_step()
        found = server.finish()
    except MessageError:
        opened = False
    assert table.sent[0, "keys", asked.agreed.session] != [before]
    assert opened or 0 < number < CLIENTS - 1  # with all of one kind, it is there or it is not
    if opened:
        assert len(found.places) >= CLIENTS - DROPOUTS
        plain = sum(table.newest(place) for place in found.places)
        modulus = 1 << asked.agreed.bits
        assert found.values.tolist() == [int(value) % modulus for value in plain]
    table.check()
