"""Messages: one form in bytes, and nothing else is read."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bgtplanner.errors import ConfigError, MessageError
from bgtplanner.federation.aggregation import messages as wire
from bgtplanner.federation.aggregation.messages import Keys, Parcel, Partners, Request, Signature
from bgtplanner.federation.aggregation.wire import Message

S, KEY = b"s" * 32, Keys(b"s" * 32, 4, b"a" * 32, b"b" * 32, b"c" * 32, b"d" * 64)
PARCEL = Parcel(7, b"x" * 60, b"y" * 16, b"z" * 16)
REQUEST = Request("lauf é", 7, b"r" * 32, frozenset({0, 3, 8}), 20, 5, 1, 0, b"c" * 32)
EXAMPLES: list[Message] = [
    REQUEST,
    KEY,
    wire.KeysOfNeighbours(S, (KEY, replace(KEY, place=9))),
    wire.Shares(S, 3, (PARCEL, replace(PARCEL, place=8))),
    wire.SharesForOne(S, 3, ()),
    wire.Upload(S, 3, b"\x0f", b"g" * 64, b"values"),
    wire.Survivors(S, frozenset({1, 15, 16})),
    wire.Survivors(S, frozenset()),
    wire.Signature(S, 2, b"g" * 64),
    wire.Opening(
        S, frozenset({2}), (Signature(S, 2, b"g" * 64),), (Partners(1, b"\x03", b"h" * 64),)
    ),
    wire.Opened(S, 6, b"k" * 16, (wire.Share(1, b"l" * 16),)),
]
KINDS = {type(example) for example in EXAMPLES}


@pytest.mark.parametrize("message", EXAMPLES)
def test_a_message_is_read_as_it_was_written_and_as_nothing_else(message: Message) -> None:
    content = message.to_bytes()
    assert type(message).from_bytes(content) == message
    for kind in KINDS - {type(message)}:
        with pytest.raises(MessageError, match="is no message"):
            kind.from_bytes(content)
    for wrong in (content[:-1], content[:4], content + b"\0"):
        with pytest.raises(MessageError):
            type(message).from_bytes(wrong)


@given(st.sampled_from(EXAMPLES), st.data())
def test_no_two_byte_strings_are_the_same_message(message: Message, data: st.DataObject) -> None:
    content = bytearray(message.to_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MessageError):
        assert type(message).from_bytes(bytes(content)).to_bytes() == content


def test_entries_out_of_order_or_twice_are_refused() -> None:
    for places in ((9, 4), (4, 4)):
        entries = tuple(replace(KEY, place=place) for place in places)
        content = wire.KeysOfNeighbours(S, entries).to_bytes()
        with pytest.raises(MessageError, match="out of order"):
            wire.KeysOfNeighbours.from_bytes(content)


def test_a_set_with_an_empty_byte_at_its_end_is_refused() -> None:
    content = wire.Survivors(S, frozenset({0})).to_bytes()
    longer = content[:-5] + (2).to_bytes(4, "big") + content[-1:] + b"\0"
    with pytest.raises(MessageError, match="ends with an empty byte"):
        wire.Survivors.from_bytes(longer)


@pytest.mark.parametrize(
    "change", [{"run": ""}, {"round": -1}, {"bits": 64}, {"size": (1 << 24) + 1}, {"roster": b""}]
)
def test_requests_out_of_range_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="in a message: expected from"):
        replace(REQUEST, **change).to_bytes()  # type: ignore[arg-type]


def test_partners_are_neighbours() -> None:
    near = (2, 5, 6)
    assert Partners(1, Partners.bits(near, {5, 6}), b"").among(near) == {5, 6}
    for wrong in (b"", b"\x08", b"\x01\x00"):
        with pytest.raises(MessageError, match="not neighbours"):
            Partners(1, wrong, b"").among(near)


def test_everything_public_goes_into_the_session() -> None:
    changes: list[dict[str, object]] = [
        {"run": "x"}, {"round": 8}, {"roster": b"q" * 32}, {"members": frozenset({0, 3})},
        {"bits": 21}, {"size": 6}, {"dropouts": 0}, {"colluders": 1}, {"context": b"e" * 32},
    ]  # fmt: skip
    sessions = {replace(REQUEST, **change).session for change in changes}  # type: ignore[arg-type]
    assert len(sessions | {REQUEST.session}) == len(changes) + 1
