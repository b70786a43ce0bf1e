"""What the rows of a ledger say: short, exact, and readable again, or refused."""

from __future__ import annotations

import contextlib
import json
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bgtplanner.errors import BudgetExceeded, LedgerTamperedError
from bgtplanner.privacy._book import Payment
from bgtplanner.privacy._journal import Head, Journal, Row, named_values, pack, settled_by, unpack
from bgtplanner.privacy.budget import Budgets
from bgtplanner.privacy.ledger import Ledger

MARK = bytes(range(32))
DAMAGED = "^a row cannot be read: edited or damaged$"


def mask(*clients: bool) -> np.ndarray:
    return np.array(clients, dtype=bool)


def parts(payload: bytes) -> tuple[dict[str, object], bytes]:
    """A payload read by hand."""
    length = int.from_bytes(payload[:4], "little")
    return json.loads(payload[4 : 4 + length]), zlib.decompress(payload[4 + length :])


def test_the_layout_of_a_payload() -> None:
    payload = pack({"b": 1, "a": [2, None]}, b"some bytes")
    text = b'{"a": [2, null], "b": 1}'
    assert payload == len(text).to_bytes(4, "little") + text + zlib.compress(b"some bytes", 1)
    assert unpack(payload) == ({"a": [2, None], "b": 1}, b"some bytes")
    assert unpack(pack({})) == ({}, b"")
    assert pack({"b": 1, "a": 2}) == pack({"a": 2, "b": 1})


@pytest.mark.parametrize(
    "payload",
    [b"", b"\0", b"\xff\xff\xff\xff", b"\x02\0\0\0{}", b"\x02\0\0\0{]" + zlib.compress(b""),
     pack({"a": 1})[:-1], pack({"a": 1}, b"xyz")[:-5], b"\x02\0\0\0\xff\xfe" + zlib.compress(b"")],
)  # fmt: skip
def test_what_is_no_payload_is_refused(payload: bytes) -> None:
    with pytest.raises(LedgerTamperedError, match=DAMAGED):
        unpack(payload)


def test_everybody_paying_the_same_is_said_in_a_few_bytes() -> None:
    payment = Payment.of(3, MARK, np.ones(10**6, bool), np.asarray(77))
    assert payment.clients is None
    payload = payment.packed()
    assert len(payload) < 250
    assert parts(payload) == (
        {
            "attempt": 3,
            "everybody": True,
            "fingerprint": MARK.hex(),
            "ticks": 77,
        },
        b"",
    )


def test_equal_charges_in_an_array_become_one_number() -> None:
    everybody = Payment.of(0, b"", mask(True, True), np.array([5, 5]))
    assert (everybody.clients, everybody.ticks.shape, int(everybody.ticks)) == (None, (), 5)
    some = Payment.of(0, b"", mask(True, False, True), np.array([5, 9, 5]))
    assert some.ticks.shape == ()
    assert int(some.ticks) == 5
    differ = Payment.of(0, b"", mask(True, False, True), np.array([5, 9, 6]))
    assert differ.ticks.tolist() == [5, 6]
    whole = Payment.of(0, b"", mask(True, True), np.array([5, 6]))
    assert (whole.clients, whole.ticks.tolist()) == (None, [5, 6])


def test_who_pays_is_one_bit_a_client() -> None:
    about, data = parts(Payment.of(0, b"", mask(*[True] + [False] * 8), np.asarray(4)).packed())
    assert about["everybody"] is False
    assert data == b"\x80\x00"
    about, data = parts(Payment.of(0, b"", mask(False, True, True), np.array([1, 2, 3])).packed())
    assert about["ticks"] is None
    assert data == b"\x60" + (2).to_bytes(8, "little") + (3).to_bytes(8, "little")


@given(
    paying=st.lists(st.booleans(), min_size=1, max_size=40).filter(any),
    data=st.data(),
    attempt=st.integers(0, 10**6),
    mark=st.binary(max_size=32),
)
@settings(deadline=None, derandomize=True, max_examples=60)
def test_a_payment_is_read_as_it_was_written(
    paying: list[bool], data: st.DataObject, attempt: int, mark: bytes
) -> None:
    one = st.integers(1, 2**61)
    listed = data.draw(st.one_of(one, st.lists(one, min_size=len(paying), max_size=len(paying))))
    ticks = np.asarray(listed, dtype=np.int64)
    payment = Payment.of(attempt, mark, mask(*paying), ticks)
    again = Payment.unpacked(payment.packed(), len(paying))
    assert (again.attempt, again.fingerprint) == (attempt, mark)
    assert (again.clients is None) == all(paying)
    if again.clients is not None:
        assert again.clients.tolist() == paying
        assert again.clients.dtype == bool
    expected = np.broadcast_to(ticks, len(paying))[np.array(paying)]
    assert np.broadcast_to(again.ticks, expected.shape).tolist() == expected.tolist()
    assert again.ticks.dtype == np.int64


@pytest.mark.parametrize("missing", ["attempt", "fingerprint", "ticks", "everybody"])
def test_a_payment_without_one_of_its_values_is_refused(missing: str) -> None:
    about, data = parts(Payment.of(0, MARK, mask(True, False), np.asarray(4)).packed())
    del about[missing]
    with pytest.raises(LedgerTamperedError, match=DAMAGED):
        Payment.unpacked(pack(about, data), 2)


@pytest.mark.parametrize(
    "change",
    [{"attempt": "x"}, {"attempt": None}, {"fingerprint": "no hex"},
     {"ticks": "many"}, {"fingerprint": None}],
)  # fmt: skip
def test_a_payment_with_a_wrong_value_is_refused(change: dict[str, object]) -> None:
    about, data = parts(Payment.of(0, MARK, mask(True, False), np.asarray(4)).packed())
    with pytest.raises(LedgerTamperedError, match=DAMAGED):
        Payment.unpacked(pack(about | change, data), 2)


def test_a_payment_that_is_no_object_or_lists_half_a_number_is_refused() -> None:
    about, _ = parts(Payment.of(0, MARK, mask(True, True), np.array([4, 5])).packed())
    with pytest.raises(LedgerTamperedError, match=DAMAGED):
        Payment.unpacked(pack(about, b"1234567"), 2)
    with pytest.raises(LedgerTamperedError, match=DAMAGED):
        Payment.unpacked(pack([1, 2]), 2)  # type: ignore[arg-type]


def test_whole_classes_are_one_number_a_class() -> None:
    payment = Payment(2, MARK, None, np.array([5, 0, 7]), by_class=True)
    about, data = parts(payment.packed())
    assert about == {"attempt": 2, "by_class": True, "everybody": True,
                     "fingerprint": MARK.hex()}  # fmt: skip
    assert data == np.array([5, 0, 7], "<i8").tobytes()
    again = Payment.unpacked(payment.packed(), 10**6)
    assert (again.by_class, again.clients, again.ticks.tolist()) == (True, None, [5, 0, 7])
    assert again.whole
    who, ticks = again.over(3)
    assert (who.tolist(), ticks.tolist()) == ([True, False, True], [5, 0, 7])
    who, ticks = again.over(4, np.array([2, 1, 0, 2], np.int32))
    assert (who.tolist(), ticks.tolist()) == ([True, False, True, True], [7, 0, 5, 7])


def test_parts_of_classes_are_a_bit_a_client_and_a_number_a_class() -> None:
    classes = np.array([1, 0, 1], np.int32)
    payment = Payment(0, b"", mask(True, True, False), np.array([5, 7]), by_class=True)
    again = Payment.unpacked(payment.packed(), 3)
    assert not again.whole
    who, ticks = again.over(3, classes)
    assert (who.tolist(), ticks.tolist()) == ([True, True, False], [7, 5, 7])
    single = again.by_client(classes)
    assert (single.by_class, single.ticks.tolist()) == (False, [7, 5])
    assert single[:2] == again[:2]
    who, ticks = single.over(3, classes)
    assert (who.tolist(), ticks[who].tolist()) == ([True, True, False], [7, 5])


def test_a_payment_for_others_than_there_are_is_refused() -> None:
    classes = np.array([1, 0, 1], np.int32)
    for payment in (
        Payment(0, b"", None, np.array([5]), by_class=True),
        Payment(0, b"", None, np.array([5, 6])),
        Payment(0, b"", mask(True, False), np.array([5])),
        Payment(0, b"", mask(True, False, True), np.array([5, 6, 7])),
    ):
        with pytest.raises(LedgerTamperedError, match=DAMAGED):
            payment.over(3, classes)


@pytest.mark.parametrize(
    ("ticks", "by_class"),
    [([0, 5], False), ([-1, 5], False), ([-1, 5], True), (0, False), (-5, False)],
)
def test_a_payment_of_less_than_nothing_is_refused(ticks: list[int], by_class: bool) -> None:
    payload = Payment(0, b"", None, np.asarray(ticks), by_class=by_class).packed()
    with pytest.raises(LedgerTamperedError, match=DAMAGED):
        Payment.unpacked(payload, 2)


@pytest.mark.parametrize("nonce", ["00" * 16, "", "no hex", None])
def test_a_row_that_has_a_nonce_as_they_once_had_is_read(nonce: object) -> None:
    about, data = parts(Payment.of(3, MARK, mask(True, False), np.asarray(4)).packed())
    assert "nonce" not in about
    again = Payment.unpacked(pack(about | {"nonce": nonce}, data), 2)
    assert (again.attempt, again.fingerprint, int(again.ticks)) == (3, MARK, 4)


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
)  # fmt: skip

CORPUS = [  # what once gave an error that was not ours
    (100_000).to_bytes(4, "little") + b"[" * 100_000,  # a RecursionError
    b"\xff\xff\xff\x7f" + b"{}",
    pack({"attempt": 0, "fingerprint": "", "everybody": True, "ticks": 2**70}),  # OverflowError
    pack({"attempt": 1e400, "fingerprint": "", "everybody": True, "ticks": 1}),
    pack({"attempt": 0, "fingerprint": "", "everybody": True, "ticks": 1.5}),  # was read as 1
    pack({"attempt": 0, "fingerprint": "", "everybody": True, "ticks": [3, 4]}),
    pack({"attempt": 0, "fingerprint": "", "everybody": False, "ticks": 5}, b"\0"),  # by nobody
    pack({"attempt": 0, "fingerprint": "", "everybody": True, "ticks": None}),
    pack({"attempt": 0, "fingerprint": "", "everybody": True, "by_class": True}, bytes(16)),
    pack({"attempt": 0, "fingerprint": "", "everybody": False, "ticks": 5}),  # no mask at all
]


def read(payload: bytes) -> None:
    """Whatever is made of a payload: sense, or the error that says that it makes none."""
    for call in (
        lambda: Payment.unpacked(payload, 3).over(3, np.array([0, 1, 0], np.int32)),
        lambda: Payment.unpacked(payload, 3).by_client(np.array([0, 1, 0], np.int32)).packed(),
        lambda: settled_by(named_values(payload)),
        lambda: unpack(payload),
    ):
        with contextlib.suppress(LedgerTamperedError):
            call()


@pytest.mark.parametrize("payload", CORPUS)
def test_payloads_that_once_gave_other_errors(payload: bytes) -> None:
    with pytest.raises(LedgerTamperedError, match=DAMAGED):
        Payment.unpacked(payload, 3)
    read(payload)


@given(payloads)
@settings(deadline=None, derandomize=True, max_examples=150)
def test_any_payload_is_a_payment_or_refused(payload: bytes) -> None:
    read(payload)
    try:
        payment = Payment.unpacked(payload, 3)
    except LedgerTamperedError:
        return
    assert (payment.ticks >= 0).all()
    assert payment.ticks.max() >= 1
    again = Payment.unpacked(payment.packed(), 3)
    assert again[:2] == payment[:2]
    assert again.ticks.tolist() == payment.ticks.tolist()


@given(st.lists(st.tuples(st.sampled_from(["reserve", "settle", "loss", "open", "x"]), payloads),
                min_size=1, max_size=4))  # fmt: skip
@settings(deadline=None, derandomize=True, max_examples=60)
def test_a_forged_chain_of_any_rows_is_read_or_refused(forged: list[tuple[str, bytes]]) -> None:
    budgets = Budgets.per_client([1.0, 2.0, 2.0], 1e-5)
    state = Ledger.in_memory(budgets, "laplace/either").state_dict()
    journal = Journal.from_state(state)
    head = journal.head_at(0)
    rows = list(journal.rows())
    for number, (kind, payload) in enumerate(forged):
        rows.append(Row.after(head, kind, "run", number, payload))
        head = Head(rows[-1].number, rows[-1].hash)
    try:
        ledger = Ledger(Journal.in_memory(rows, journal.key))
    except LedgerTamperedError:
        return
    assert (ledger.spent() >= 0).all()
    assert len(list(ledger.history())) == len(rows)
    ledger.verify()
    with contextlib.suppress(BudgetExceeded):
        ledger.settle(ledger.reserve(0.25, run="run", round=1, fingerprint=b"m"))
