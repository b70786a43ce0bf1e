"""Packing against whole numbers of Python, the stream against another library's."""

from __future__ import annotations

import numpy as np
import pytest
from Crypto.Cipher import ChaCha20
from hypothesis import given
from hypothesis import strategies as st

from bgtplanner.errors import MessageError
from bgtplanner.federation.aggregation import masks


@given(bits=st.integers(1, 63), data=st.data())
def test_packed_integers_are_one_long_number(bits: int, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.integers(0, (1 << bits) - 1), min_size=1, max_size=40))
    array = np.array(values, dtype=np.uint64)
    packed = masks.pack(array, bits)
    number = sum(value << (bits * index) for index, value in enumerate(values))
    assert packed == number.to_bytes((len(values) * bits + 7) // 8, "little")
    assert masks.unpack(packed, len(values), bits).tolist() == values


def test_bytes_that_are_no_packed_integers_are_refused() -> None:
    for content in (b"", b"123", b"1" * 5):
        with pytest.raises(MessageError, match="bytes for 3 coordinates"):
            masks.unpack(content, 3, 10)
    with pytest.raises(MessageError, match="belong to none"):
        masks.unpack(b"\0\0\0\x40", 3, 10)


def test_a_mask_is_the_stream_of_chacha20() -> None:
    key = bytes(range(32))
    other = ChaCha20.new(key=key, nonce=bytes(8)).encrypt(bytes(80))
    assert masks.mask(key, 10).tolist() == np.frombuffer(other, "<u8").tolist()
