"""The ends of every range in a row of the ledger: what is just inside is read, the rest is not."""

from __future__ import annotations

import zlib
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest

from bgtplanner.errors import LedgerTamperedError
from bgtplanner.privacy._book import Payment
from bgtplanner.privacy._journal import attempt_of, pack, settled_by, unpack
from bgtplanner.privacy.accountants import CEILING
from bgtplanner.privacy.ledger import Reservation

DAMAGED = "^a row cannot be read: edited or damaged$"
ABOUT = {"attempt": 0, "fingerprint": "", "everybody": True, "ticks": 5}


@pytest.mark.parametrize("clients", [1, 7, 8, 9, 16, 17, 20, 100])
def test_a_bit_a_client_whatever_their_number(clients: int) -> None:
    paying = np.arange(clients) % 3 != 1
    listed = np.arange(1, clients + 1)
    payment = Payment(1, b"m", paying, listed[paying])
    again = Payment.unpacked(payment.packed(), clients)
    assert again.clients is not None
    assert again.clients.tolist() == paying.tolist()
    assert again.ticks.tolist() == listed[paying].tolist()
    about, data = unpack(payment.packed())
    short = pack({**about, "ticks": 5}, data[: (clients - 1) // 8])
    with pytest.raises(LedgerTamperedError, match=DAMAGED):
        Payment.unpacked(short, clients)


@pytest.mark.parametrize("ticks", [1, CEILING])
def test_the_least_and_the_most_that_can_be_paid(ticks: int) -> None:
    assert int(Payment.unpacked(pack(ABOUT | {"ticks": ticks}), 2).ticks) == ticks
    for change in (-1, 1):
        if not 1 <= ticks + change <= CEILING:
            with pytest.raises(LedgerTamperedError, match=DAMAGED):
                Payment.unpacked(pack(ABOUT | {"ticks": ticks + change}), 2)


@pytest.mark.parametrize("ticks", [True, 5.0, "5", [5], 2**63, 2**70, -(2**70)])
def test_ticks_that_are_no_whole_number_of_theirs_are_refused(ticks: object) -> None:
    with pytest.raises(LedgerTamperedError, match=DAMAGED):
        Payment.unpacked(pack(ABOUT | {"ticks": ticks}), 2)


@pytest.mark.parametrize(
    "payment",
    [
        Payment(0, b"", None, np.array([0, 0]), by_class=True),
        Payment(0, b"", np.zeros(2, bool), np.asarray(5)),
        Payment(0, b"", None, np.array([], dtype=np.int64)),
        Payment(0, b"", np.zeros(2, bool), np.array([1, 0]), by_class=True),
    ],
    ids=["no class", "no client", "nothing", "no client of a class"],
)
def test_a_payment_by_nobody_is_refused(payment: Payment) -> None:
    with pytest.raises(LedgerTamperedError, match=DAMAGED):
        Payment.unpacked(payment.packed(), 2)


def test_a_class_may_pay_a_single_tick_while_another_pays_nothing() -> None:
    again = Payment.unpacked(Payment(0, b"", None, np.array([0, 1]), by_class=True).packed(), 4)
    who, ticks = again.over(4, np.array([0, 1, 1, 0], np.int32))
    assert (who.tolist(), ticks.tolist()) == ([False, True, True, False], [0, 1, 1, 0])


@pytest.mark.parametrize(
    ("payment", "whole"),
    [
        (Payment(0, b"", None, np.asarray(5)), True),
        (Payment(0, b"", None, np.array([5, 6]), by_class=True), True),
        (Payment(0, b"", None, np.array([5, 6])), False),
        (Payment(0, b"", np.array([True, False]), np.asarray(5)), False),
        (Payment(0, b"", np.array([True, False]), np.array([5, 6]), by_class=True), False),
    ],
)
def test_whole_is_what_treats_the_clients_of_a_class_alike(payment: Payment, whole: bool) -> None:
    assert bool(payment.whole) is whole


@pytest.mark.parametrize("number", [0, 1, 2**62 - 1])
def test_numbers_of_attempts_that_can_be(number: int) -> None:
    assert attempt_of({"attempt": number, "fingerprint": "00ff"}) == (number, b"\x00\xff")


@pytest.mark.parametrize(
    "change",
    [{"attempt": value} for value in (-1, 2**62, True, 1.0, "1", None)]
    + [{"fingerprint": value} for value in (None, 5, "0", "zz", b"00")],
)  # fmt: skip
def test_attempts_and_fingerprints_that_cannot_be(change: dict[str, Any]) -> None:
    with pytest.raises(LedgerTamperedError, match=DAMAGED):
        attempt_of({"attempt": 0, "fingerprint": ""} | change)


@pytest.mark.parametrize("number", [1, 2**62 - 1])
def test_rows_that_can_be_settled(number: int) -> None:
    assert settled_by({"settles": number}) == number


@pytest.mark.parametrize("about", [{}, *({"settles": v} for v in (0, -1, 2**62, True, 1.0, "1"))])
def test_rows_that_cannot_be_settled(about: dict[str, Any]) -> None:
    with pytest.raises(LedgerTamperedError, match=DAMAGED):
        settled_by(about)


def test_no_bytes_are_said_as_they_always_were() -> None:
    assert pack({}) == b"\x02\0\0\0{}" + zlib.compress(b"", 1)


def test_a_payload_of_any_depth_is_read_or_refused() -> None:
    text = b"[" * 200_000
    with pytest.raises(LedgerTamperedError, match=DAMAGED):
        unpack(len(text).to_bytes(4, "little") + text)


def test_a_reservation_stays_as_it_is_and_is_equal_to_itself_alone() -> None:
    def make() -> Reservation:
        nobody = np.zeros(2, bool)
        return Reservation(
            run="a",
            round=0,
            attempt=0,
            granted=nobody,
            refused=nobody,
            replayed=nobody,
            number=1,
            ticks=np.zeros(2, np.int64),
        )

    one = make()
    with pytest.raises(FrozenInstanceError):
        one.number = 2  # type: ignore[misc]
    assert one != make()
    assert len({one, make(), one}) == 2


def test_one_charge_of_many_above_the_ceiling_is_refused() -> None:
    for ticks, by_class in (([CEILING + 1, 1], False), ([1, CEILING + 1], True)):
        made = Payment(0, b"", None, np.array(ticks), by_class=by_class)
        with pytest.raises(LedgerTamperedError):
            Payment.unpacked(made.packed(), 2)


def test_one_charge_for_some_clients_stays_one_number() -> None:
    who, ticks = Payment(0, b"", np.array([True, False, True]), np.asarray(5)).over(3)
    assert (who.tolist(), ticks.ndim, int(ticks)) == ([True, False, True], 0, 5)
