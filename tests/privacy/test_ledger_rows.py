"""What the rows of a ledger say: short, exact, and readable again, or refused."""

from __future__ import annotations

import contextlib
import json
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bgtplanner.errors import BudgetExceeded, LedgerTamperedError
from bgtplanner.privacy._book import Spending, first_row
from bgtplanner.privacy._journal import Journal
from bgtplanner.privacy._rows import Head, Payment, Row, pack, pack_members, settled_by, unpack
from bgtplanner.privacy.accountants import CEILING, accountant_named
from bgtplanner.privacy.budget import Budgets
from bgtplanner.privacy.ledger import Ledger

MARK = bytes(range(32))
DAMAGED = "^a row cannot be read: edited or damaged$"
THREE = Budgets.per_client([1.0, 2.0, 2.0], 1e-5)  # the classes are 0, 1, 1


def numbers(*values: int) -> bytes:
    return np.array(values, dtype="<i8").tobytes()


def parts(payload: bytes) -> tuple[dict[str, Any], bytes]:
    """A payload read by hand."""
    length = int.from_bytes(payload[:4], "little")
    return json.loads(payload[4 : 4 + length]), zlib.decompress(payload[4 + length :])


def payment(who: list[bool], ticks: int | list[int]) -> Payment:
    return Payment(0, b"", np.array(who), np.asarray(ticks, dtype=np.int64))


@pytest.mark.parametrize(
    "payload",
    [(100_000).to_bytes(4, "little") + b"[" * 100_000,
     b"", b"\0", b"\xff\xff\xff\xff", b"\x02\0\0\0{}", b"\x02\0\0\0{]" + zlib.compress(b""),
     pack({"a": 1})[:-1], pack({"a": 1}, b"xyz")[:-5], b"\x02\0\0\0\xff\xfe" + zlib.compress(b""),
     b"\x02\0\0\0[]" + zlib.compress(b"")],
)  # fmt: skip
def test_what_is_no_payload_is_refused(payload: bytes) -> None:
    with pytest.raises(LedgerTamperedError, match=DAMAGED):
        unpack(payload)


@pytest.mark.parametrize(
    ("who", "ticks", "says", "data"),
    [  # everybody the same; classes; parts of classes; one by one; some
        ([True] * 3, 77, {"everybody": True, "ticks": 77}, b""),
        ([True] * 3, [77] * 3, {"everybody": True, "ticks": 77}, b""),
        ([True] * 3, [5, 7, 7], {"everybody": True, "by_class": True}, numbers(5, 7)),
        ([True, True, False], [5, 7, 9], {"everybody": False, "by_class": True},
         b"\xc0" + numbers(5, 7)),
        ([True] * 3, [5, 6, 7], {"everybody": True, "ticks": None}, numbers(5, 6, 7)),
        ([False, True, True], [5, 6, 7], {"everybody": False, "ticks": None},
         b"\x60" + numbers(6, 7)),
        ([True, False, False], [5, 6, 7], {"everybody": False, "ticks": 5}, b"\x80"),
        ([False, True, True], 5, {"everybody": False, "ticks": 5}, b"\x60"),
    ],
)  # fmt: skip
def test_a_payment_takes_few_bytes(
    who: list[bool], ticks: Any, says: dict[str, Any], data: bytes
) -> None:
    """These bytes are hashed, and older versions read them: they never change."""
    found = Payment(3, MARK, np.array(who), np.asarray(ticks)).packed(THREE)
    assert parts(found) == ({"attempt": 3, "fingerprint": MARK.hex()} | says, data)


@given(
    paying=st.lists(st.booleans(), min_size=1, max_size=40).filter(any),
    data=st.data(),
    attempt=st.integers(0, 10**6),
    mark=st.binary(max_size=32),
)
@settings(deadline=None, derandomize=True, max_examples=80)
def test_a_payment_is_read_as_it_was_written(
    paying: list[bool], data: st.DataObject, attempt: int, mark: bytes
) -> None:
    size = len(paying)
    one = st.integers(1, CEILING) | st.sampled_from([3, 4])
    ticks = np.asarray(data.draw(one | st.lists(one, min_size=size, max_size=size)))
    classes = data.draw(st.lists(st.integers(1, 3), min_size=size, max_size=size))
    budgets = Budgets.per_client(classes, 1e-5)
    again = Payment.unpacked(
        Payment(attempt, mark, np.array(paying), ticks).packed(budgets), budgets
    )
    assert (again.attempt, again.fingerprint, again.who.tolist()) == (attempt, mark, paying)
    assert again.ticks.dtype == np.int64
    paid = [np.broadcast_to(one, size)[again.who].tolist() for one in (again.ticks, ticks)]
    assert paid[0] == paid[1]


@pytest.mark.parametrize("nonce", ["00" * 16, "", "no hex", None])
def test_a_row_that_has_a_nonce_as_they_once_had_is_read(nonce: object) -> None:
    about, data = parts(payment([True, False, False], 4).packed(THREE))
    again = Payment.unpacked(pack(about | {"nonce": nonce}, data), THREE)
    assert (again.who.tolist(), int(again.ticks)) == ([True, False, False], 4)


GOOD = {"attempt": 0, "fingerprint": "", "everybody": True}


@pytest.mark.parametrize(
    ("about", "data"),
    [
        *(({k: v for k, v in (GOOD | {"ticks": 4}).items() if k != gone}, b"")
          for gone in ("attempt", "fingerprint", "ticks", "everybody")),
        *((GOOD | {"ticks": 4} | wrong, b"") for wrong in (
            {"attempt": "x"}, {"attempt": None}, {"attempt": -1}, {"attempt": 2**62},
            {"attempt": True}, {"fingerprint": "no hex"}, {"fingerprint": None},
            {"ticks": "many"}, {"ticks": 0}, {"ticks": -5}, {"ticks": 1.5}, {"ticks": [3, 4]},
            {"ticks": CEILING + 1}, {"ticks": 2**70}, {"ticks": None}, {"everybody": False})),
        (GOOD | {"everybody": False, "ticks": 5}, b"\0"),  # paid by nobody
        (GOOD | {"ticks": None}, b"1234567"),  # half a number
        (GOOD | {"ticks": None}, numbers(5, 6)),
        (GOOD | {"ticks": None}, numbers(0, 5, 6)),
        (GOOD | {"ticks": None}, numbers(5, 6, CEILING + 1)),
        (GOOD | {"everybody": False, "ticks": None}, b"\xc0" + numbers(5)),
        (GOOD | {"by_class": True}, numbers(5)),
        (GOOD | {"by_class": True}, numbers(5, 6, 7)),
        (GOOD | {"by_class": True}, numbers(0, 0)),
        (GOOD | {"by_class": True}, numbers(-1, 5)),
        (GOOD | {"by_class": True}, numbers(5, CEILING + 1)),
    ],
)  # fmt: skip
def test_a_payment_that_makes_no_sense_is_refused(about: dict[str, Any], data: bytes) -> None:
    with pytest.raises(LedgerTamperedError, match=DAMAGED):
        Payment.unpacked(pack(about, data), THREE)


@pytest.mark.parametrize("number", [0, -1, 2**62, 1.0, True, "1", None])
def test_a_settlement_of_no_reservation_is_refused(number: object) -> None:
    with pytest.raises(LedgerTamperedError, match=DAMAGED):
        settled_by(Row(3, "settle", "a", 0, pack({"settles": number}), b""))
    assert settled_by(Row(3, "settle", "a", 0, pack({"settles": 2**62 - 1}), b"")) == 2**62 - 1


@pytest.mark.parametrize("rule", ["laplace/basic", "laplace/either"])
def test_payments_are_added_to_those_who_pay_and_stop_at_the_ceiling(rule: str) -> None:
    spending = Spending(accountant_named(rule), THREE)
    spending.add(payment([True] * 3, 5))
    spending.add(payment([False, True, True], [9, 2, 3]))
    assert spending.spent()[0].tolist() == [5, 7, 8]
    spending.add(payment([False, True, False], 1))
    spending.add(payment([True, False, False], CEILING))
    spending.add(payment([True, False, False], CEILING))
    assert spending.spent()[0].tolist() == [CEILING, 8, 8]


# ---- anything at all

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    | st.sampled_from([2**62, 2**63, -1, 0, 1, 10**400, "00", "zz", MARK.hex()]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)  # fmt: skip
about = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("attempt", "fingerprint", "ticks", "by_class"), plain)
    | {"everybody": st.booleans(), "settles": plain, "nonce": plain},
)
payloads = st.one_of(
    st.binary(max_size=60),
    st.builds(pack, about, st.binary(max_size=30)),
    st.builds(
        lambda attempt, ticks, everybody, data: pack(
            {"attempt": attempt, "fingerprint": "", "everybody": everybody, "ticks": ticks}, data
        ),
        st.integers(0, 3) | plain, plain, st.booleans(), st.binary(max_size=30),
    ),
    st.builds(
        lambda places, marks, said: pack_members({"left": said}, places, marks),
        st.lists(st.integers(-1, 5), max_size=3), st.lists(st.binary(min_size=16, max_size=16)),
        plain,
    ),
)  # fmt: skip


def read(payload: bytes) -> Payment | None:
    """Return what a payload says, or None if it is refused in our words."""
    for call in (lambda: settled_by(Row(1, "", "", 0, payload, b"")), lambda: unpack(payload)):
        with contextlib.suppress(LedgerTamperedError):
            call()
    try:
        return Payment.unpacked(payload, THREE)
    except LedgerTamperedError:
        return None


@given(payloads)
@settings(deadline=None, derandomize=True, max_examples=150)
def test_any_payload_is_a_payment_or_refused(payload: bytes) -> None:
    found = read(payload)
    if found is not None:
        again = read(found.packed(THREE))
        assert again is not None
        assert again[:2] == found[:2]
        assert again.who.tolist() == found.who.tolist()
        paid = [np.broadcast_to(one.ticks, 3)[one.who] for one in (found, again)]
        assert paid[0].tolist() == paid[1].tolist()
        assert (paid[0] > 0).all()


KINDS = ["reserve", "settle", "loss", "join", "leave", "open", "x"]


@given(st.lists(st.tuples(st.sampled_from(KINDS), payloads),
                min_size=1, max_size=4))  # fmt: skip
@settings(deadline=None, derandomize=True, max_examples=60)
def test_a_forged_chain_of_any_rows_is_read_or_refused(forged: list[tuple[str, bytes]]) -> None:
    rows = [first_row(THREE, accountant_named("laplace/either"), bytes(32))]
    head = Head(0, rows[0].hash)
    for number, (kind, payload) in enumerate(forged):
        rows.append(Row.after(head, kind, "run", number, payload))
        head = Head(rows[-1].number, rows[-1].hash)
    try:
        ledger = Ledger(Journal.in_memory(rows, bytes(32)))
    except LedgerTamperedError:
        return
    assert (ledger.spent() >= 0).all()
    assert len(list(ledger.history())) == len(rows)
    ledger.verify()
    with contextlib.suppress(BudgetExceeded):
        ledger.settle(ledger.reserve(0.25, run="run", round=1, fingerprint=b"m"))
