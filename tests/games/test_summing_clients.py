"""A server that wants more from a client that adds to sums than its part of a sum it has paid for.

Each attack is played against real clients on real files, and against clients without the defence,
where it gives the server what it wanted. Where two defences stand behind each other, either of
them is shown to be enough. Every message finds a new process: whatever a client knows of a round
is on its disk.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgtplanner.errors import MessageError
from bgtplanner.federation.aggregation import client as member_module
from bgtplanner.federation.aggregation import masks
from bgtplanner.federation.aggregation.client import Client as Member
from bgtplanner.federation.aggregation.messages import Survivors, Upload
from bgtplanner.federation.aggregation.server import Server
from bgtplanner.federation.randomizer import Randomizer
from bgtplanner.flower import client as module
from bgtplanner.flower import state
from bgtplanner.flower.client import Client
from bgtplanner.flower.messages import Request, SumStep
from bgtplanner.flower.state import RateLimit
from games import summing
from games.machines import DoesStepsAgain, PaysOnceAddsTwice
from games.summing import (
    CHARGE,
    CLIENTS,
    CLIP,
    COLLUDERS,
    POLICY,
    SIZE,
    Asked,
    Table,
    asked_for,
    least_scale,
    plan_of,
    stand_in,
    write_summing,
)
from games.test_aggregation_attacks import KeepsRequestsApart

Patch = pytest.MonkeyPatch
EITHER = pytest.mark.parametrize("broken", [False, True], ids=["defended", "broken"])


@pytest.fixture
def begun(table: Table) -> Table:
    """Clients whose uploads are asked for next, in their first round."""
    table.play(table.round(), until="upload")
    return table


# ---- alone, or with too few


def test_a_client_that_adds_to_sums_sends_nothing_outside_of_them(table: Table) -> None:
    for trust in ("secagg", "local"):
        with pytest.raises(MessageError):
            table.client(0).answer(plan_of(trust=trust))
    assert table.paid(0) == []


class AnswersAlone(Client):
    """Takes the trust of a plain request for what it says: a sum, of one client."""

    def answer(self, request: Request) -> Any:
        with self.open_ledger() as ledger:
            guard, reservation = self._pay(ledger, request)
            upload, _ = self._train(None, request)  # type: ignore[arg-type]
            guard.trust = "local"
            return guard.protect(reservation, upload[None], clip=request.clip)


def test_without_that_one_client_is_a_sum_with_too_little_noise(home: Path) -> None:
    """It hides whether the client is in the sum, and not what it uploads instead of another."""
    released = Table(home, AnswersAlone).client(0).answer(plan_of())
    assert released.noise_scale < 0.6 * 2 * least_scale(CHARGE, CLIP)


FOREIGN = b"r" * 32


class EagerServer(Server):
    """Is content with any number of clients."""

    def _check_enough(self, found: int, what: str) -> None:
        pass


@EITHER
def test_no_sum_is_opened_that_has_too_little_noise(
    broken: bool, home: Path, monkeypatch: Patch
) -> None:
    """A sum of five of seven, of whom one may drop out, and one is false."""
    monkeypatch.setattr(summing, "Server", EagerServer)
    if broken:
        monkeypatch.setattr(Member, "_check_survivors", lambda *_: None)
    table = Table(write_summing(home / "seven", 7))
    asked = table.round()
    assert table.opened(asked, drops={"upload": [5, 6]}) == broken
    four, five = (answered**0.5 * asked.shares.std_of_share for answered in (5 - 1, 6 - 1))
    assert four < asked.shares.scale <= five
    if not broken:
        table.play(table.round(1), until="sign")
        told = Survivors(table.round(1).agreed.session, frozenset(range(5))).to_bytes()
        assert all(table.refuses(place, table.round(1).step("sign", told)) for place in range(5))


# ---- another upload than was agreed


NAN = float("nan")
OTHERWISE: list[tuple[str, dict[str, Any]]] = [
    *(("step", {"scale": scale}) for scale in (1e-99, least_scale(CHARGE, CLIP) / 2, 1.0, NAN)),
    *(("step", {"largest_clip": clip}) for clip in (2 * CLIP, CLIP / 2)),
    *(("plan", {"clip": clip}) for clip in (2 * CLIP, 1e9, NAN)),
    *(("plan", {"charge": charge}) for charge in (0.9 * CHARGE, 0.0, -1.0, 2.1, 1e300, NAN)),
    ("plan", {"accountant": "laplace/basic"}),
    ("plan", {"trust": "local"}),
    ("plan", {"unit": "row"}),
    ("plan", {"run": "another"}),
    ("plan", {"round": 1}),
    ("step", {"request": None}),
    ("model", {"name": "tastes"}),
    ("model", {"settings": {"mean": 0.6}}),
    ("model", {"items": np.ones((2, 3), np.float32)}),
    ("model", {"catalogue": "1" * 64}),
]


@pytest.mark.parametrize(("where", "changes"), OTHERWISE)
def test_what_is_uploaded_is_what_the_round_was_begun_for(
    begun: Table, where: str, changes: dict[str, Any]
) -> None:
    table, asked, message = begun, begun.round(), begun.got[0, "upload"]
    table.rate(0, "u0,b,5\n")  # between its keys and its upload: a user may, at any time
    if where == "model":
        where, changes = "plan", {"model": replace(asked.plan.model, **changes)}
    if where == "plan":
        changes = {"request": replace(asked.plan, **changes)}
    assert table.refuses(0, asked.step("upload", message, **changes))
    assert table.refuses(0, asked.step("upload", message))  # the round is over for it
    assert (table.put, table.paid(0)) == ({}, [])
    table.step(0, table.round(1).step("keys"))  # and the next one is not


@EITHER
def test_no_client_adds_to_a_sum_in_which_others_add_less_noise(
    broken: bool, table: Table, monkeypatch: Patch
) -> None:
    """Client 0 is told of its noise; others of an eighth of it, for clips that are as small."""
    if broken:
        monkeypatch.setattr(SumStep, "context", lambda *_: bytes(32))
    full = table.round()
    plan = replace(full.plan, clip=CLIP / 8)
    little = replace(full, plan=plan, scale=full.scale / 8, largest=CLIP / 8)
    assert little.shares.bits(SIZE) == full.agreed.bits  # nothing else gives it away
    assert table.opened(full, tell=dict.fromkeys(range(1, CLIENTS), little)) == broken
    if not broken:
        assert {place for place, _ in table.put} == {0}  # under a mask that nobody can take off
    less = (CLIENTS - 1) * little.shares.std_of_share**2
    assert (full.shares.std_of_share**2 + less) ** 0.5 < 0.7 * full.scale


def test_without_a_check_of_shares_noise_is_missing(table: Table, monkeypatch: Patch) -> None:
    little = replace(table.round(), scale=least_scale(CHARGE, CLIP) / 8).sealed()
    assert table.refuses(0, little.step("keys")) is False
    assert not table.opened(replace(table.round(1), scale=little.scale).sealed())
    assert table.put == {}
    monkeypatch.setattr(Randomizer, "check_shares", lambda *_, **__: None)
    assert table.opened(replace(table.round(2), scale=little.scale).sealed())
    assert CLIENTS**0.5 * little.shares.std_of_share < least_scale(CHARGE, CLIP) / 2


# ---- a second time


def _other_rounds(table: Table) -> list[Asked]:
    """The same round with other parameters, everything else made to fit."""
    asked = table.round()
    other = replace(asked.plan, model=replace(asked.plan.model, items=np.ones((2, 3), "f4")))
    return [
        replace(asked, scale=2 * asked.scale).sealed(),
        replace(asked, plan=other).sealed(),
        replace(asked, largest=2 * asked.largest, scale=2 * asked.scale).sealed(),
        asked.sealed(members=frozenset({0, 1, 2, 3}), dropouts=0),
        asked.sealed(dropouts=0),
        asked.sealed(colluders=2, dropouts=0),
        asked.sealed(roster=FOREIGN),
        asked.sealed(size=SIZE + 1),
    ]


@pytest.mark.parametrize("until", ["upload", "sign", None])
def test_a_round_is_not_played_again_with_other_parameters(
    table: Table, until: str | None
) -> None:
    asked, paid = table.round(), int(until not in ("shares", "upload"))
    table.play(asked, until=until)
    for place, other in zip((0, 1, 2, 3, 4, 0, 1, 2), _other_rounds(table), strict=True):
        for step in ("keys", until or "open"):
            message = table.got.get((place, step), b"")
            assert table.refuses(place, other.step(step, message))
            assert table.refuses(place, asked.step(step, message))  # over, as well
    table.check()
    assert all(len(table.paid(place)) == paid for place in range(CLIENTS))


@pytest.mark.parametrize(
    ("member", "kind"),
    [
        (Member, Client),
        (KeepsRequestsApart, Client),
        (Member, PaysOnceAddsTwice),
        (KeepsRequestsApart, PaysOnceAddsTwice),
    ],
)
def test_a_round_is_opened_once_whatever_its_parameters(
    table: Table, member: type[Member], kind: type[Client], monkeypatch: Patch
) -> None:
    """The store of rounds and the ledger each see to it; without both, it is read twice."""
    monkeypatch.setattr(module, "Member", member)
    table = replace(table, kind=kind)
    asked = table.round()
    other = replace(asked.plan, model=replace(asked.plan.model, items=np.ones((2, 3), "f4")))
    assert table.opened(asked)
    table.rate(0, "u0,b,5\n")
    twice = (member, kind) == (KeepsRequestsApart, PaysOnceAddsTwice)
    assert table.opened(replace(asked, plan=other).sealed()) == twice
    assert twice or not _unpaid(table)


def _unpaid(table: Table) -> bool:
    """Whether a client has sent more uploads than it has paid for, or one in two ways."""
    try:
        table.check()
    except AssertionError:
        return True
    return False


@EITHER
@pytest.mark.parametrize("step", ["keys", "shares", "upload"])
def test_the_same_message_is_answered_once(
    broken: bool, table: Table, step: str, monkeypatch: Patch
) -> None:
    if broken:
        monkeypatch.setattr(module, "Member", DoesStepsAgain)
        table = replace(table, kind=PaysOnceAddsTwice)
    asked = table.round()
    table.play(asked, until="sign")
    table.rate(0, "u0,b,5\n")
    with contextlib.suppress(MessageError):
        table.step(0, asked.step(step, table.got[0, step]))
    assert _unpaid(table) == broken


# ---- rounds that a client has forgotten


def _forget(table: Table) -> None:
    """Open so many rounds that clients forget those before."""
    known = {path for place in range(CLIENTS) for path in table.stored(place)}
    for index in range(state._ROUNDS_KEPT):
        later = asked_for(table.roster, plan_of(run=f"to fill a store, {index}"))
        for place in range(CLIENTS):
            table.step(place, later.step("keys"))
    assert not any(path.exists() for path in known)


def _delete(table: Table) -> None:
    for place in range(CLIENTS):
        table.set_back(place, {})


def _set_back(table: Table) -> None:
    """Their stores are set back to before the upload, by the test itself."""


@EITHER
@pytest.mark.parametrize("lose", [_forget, _delete, _set_back])
def test_a_round_that_was_paid_for_is_not_played_again_when_it_is_forgotten(
    broken: bool, begun: Table, lose: Callable[[Table], None]
) -> None:
    """Since ledgers only rise: without that, an upload is made twice."""
    table, asked = replace(begun, kind=PaysOnceAddsTwice if broken else Client), begun.round()
    for place in range(CLIENTS):
        before = table.stored(place)
        table.step(place, asked.step("upload", table.got[place, "upload"]))
        table.rate(place, "u0,b,5\n")
        if lose is _set_back:
            table.set_back(place, before)
    lose(table)
    if lose is _set_back:
        assert table.refuses(0, asked.step("upload", table.got[0, "upload"])) != broken
    elif broken:
        table.play(asked, until="sign")
    assert _unpaid(table) == broken
    if not broken:
        assert table.refuses(0, asked.step("keys"))
        assert not table.opened(asked)
        assert not table.opened(replace(asked, scale=2 * asked.scale).sealed())
        assert len(table.put) == CLIENTS
        assert table.opened(table.round(1))
    elif lose is _set_back:  # under one mask, so that it falls out of the difference
        bits, sent = asked.agreed.bits, table.sent[0, "upload", asked.agreed.session]
        one, two = (masks.unpack(Upload.from_bytes(of).values, SIZE, bits) for of in sent)
        first, second = (made for (place, _), made in table.put.items() if place == 0)
        difference = masks.reduced(first - second, bits).tolist()
        assert masks.reduced(one - two, bits).tolist() == difference


@pytest.mark.parametrize("lose", [_forget, _delete])
@pytest.mark.parametrize("until", ["shares", "upload"])
def test_a_round_that_is_forgotten_before_its_upload_is_played_once(
    table: Table, lose: Callable[[Table], None], until: str
) -> None:
    """With fresh keys and masks, and never with those that were shown before."""
    asked = table.round()
    table.play(asked, until=until)
    session = asked.agreed.session
    before = [table.sent[place, "keys", session] for place in range(CLIENTS)]
    table.sent.clear()
    lose(table)
    assert table.opened(asked)
    assert table.opened(table.round(1))
    table.check()
    after = [table.sent[place, "keys", session] for place in range(CLIENTS)]
    assert all(one != other for one, other in zip(before, after, strict=True))


class BeginsAnew(Member):
    """Takes a store that it cannot read for one of a round that has not begun."""

    def _load(self) -> Any:
        try:
            return super()._load()
        except MessageError:
            return member_module._nothing()


def _lose(table: Table, part: str) -> None:
    for path in table.stored(0):
        if path.name.endswith(part):
            path.unlink()


def _spoil(table: Table, change: Callable[[bytes], bytes]) -> None:
    (path,) = table.stored(0, "sums")
    path.write_bytes(change(path.read_bytes()))


DAMAGES: dict[str, Callable[[Table], None]] = {
    "its state is lost": lambda table: _lose(table, "state"),
    "its begin is lost": lambda table: _lose(table, "begun"),
    "its state is cut": lambda table: _spoil(table, lambda content: content[:-1]),
    "its state is empty": lambda table: _spoil(table, lambda _: b""),
    "its state is longer": lambda table: _spoil(table, lambda content: content + b"0"),
}


@EITHER
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_store_ends_the_round_and_shows_no_second_keys(
    broken: bool, table: Table, damage: Callable[[Table], None], monkeypatch: Patch
) -> None:
    if broken:
        monkeypatch.setattr(module, "Member", BeginsAnew)
    asked = table.round()
    table.play(asked, until="upload")
    damage(table)
    assert table.refuses(0, asked.step("keys")) != broken
    assert _unpaid(table) == broken
    assert broken or table.refuses(0, asked.step("upload", table.got[0, "upload"]))


# ---- two processes at once


@EITHER
def test_two_processes_of_a_client_give_one_answer(
    broken: bool, table: Table, monkeypatch: Patch
) -> None:
    """They are asked the same at the same time.

    The second is started when the first has seen that nothing is stored yet. The first goes on
    once the second has either answered, or waits for the lock. So nothing here depends on how fast
    the machine is.
    """
    if broken:
        monkeypatch.setattr(Client, "_alone", lambda _: contextlib.nullcontext())
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
    assert len(set(answers)) == 1 + broken


# ---- stores that are set back after the upload


@pytest.mark.parametrize("number", [1, 2, CLIENTS - 1])
@pytest.mark.parametrize("folders", ["sums", "sums-begun", "sums*"])
def test_a_store_that_is_set_back_is_noticed_or_at_worst_a_colluder(
    table: Table, number: int, folders: str
) -> None:
    """The server has a sum opened with client 0, and then without it.

    The stores of some other clients are set back to where they were after their uploads, as by a
    backup. Their ledgers have nothing to object: no one pays for signing and opening. One of two
    folders that is older than the other is noticed. With both, what clients reveal twice is what a
    colluder would: only as many as open a secret give the client away.
    """
    asked, who = table.round(), range(1, 1 + number)
    table.play(asked, until="sign")
    before = {place: table.stored(place, folders) for place in who}
    with_it = table.play(asked).finish()
    for place, stored in before.items():
        table.set_back(place, stored, folders)
    assert number >= COLLUDERS
    if folders != "sums*":  # also what a client has answered before is not repeated then
        assert all(table.refuses(place, asked.step("keys")) for place in who)
    if number < CLIENTS - 1 or folders != "sums*":
        with pytest.raises(MessageError):
            table.play(asked, drops={"upload": [0]}).finish()
        return
    without = table.play(asked, drops={"upload": [0]}).finish()
    difference = masks.reduced(with_it.values - without.values, asked.agreed.bits)
    assert difference.tolist() == table.newest(0).tolist()


# ---- how fast


def test_a_request_for_huge_masks_is_refused_before_they_are_made(
    table: Table, monkeypatch: Patch
) -> None:
    asked = table.round(size=masks.MOST_COORDINATES)
    table.play(asked, until="upload")
    monkeypatch.setattr(masks, "mask", lambda *_: pytest.fail("masks were made"))
    assert table.refuses(0, asked.step("upload", table.got[0, "upload"]))


@EITHER
def test_rounds_are_begun_at_the_pace_of_the_policy(
    broken: bool, tmp_path: Path, monkeypatch: Patch
) -> None:
    if broken:
        monkeypatch.setattr(RateLimit, "take", lambda _: True)
    with stand_in():
        table = Table(write_summing(tmp_path, policy=POLICY | {"requests_per_hour": 3.0}))
        begun = [not table.refuses(0, table.round(index).step("keys")) for index in range(6)]
    assert sum(begun) == (6 if broken else 3)
