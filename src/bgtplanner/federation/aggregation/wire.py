"""How a message becomes bytes and back: there is one form for each, and no other is read.

A message begins with four letters and a byte for its kind; then come the entries, one after the
other: numbers in big endian, bytes of a fixed length as they are, everything else with its length
before it. Whatever is not exactly that raises a `MessageError`. Secure aggregation and
:mod:`bgtplanner.flower.messages` both use it.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable, Collection
from dataclasses import field, fields
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from bgtplanner.errors import ConfigError, MessageError
from bgtplanner.federation.aggregation.roster import MOST_CLIENTS

_MOST_NUMBERS = 1 << 28  # in one array


class Reader:
    """Bytes that are read from front to back."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0

    @property
    def left(self) -> int:
        """How many bytes have not been read."""
        return len(self._content) - self._at

    def take(self, count: int) -> bytes:
        """Return the next bytes, as many as that."""
        if self.left < count:
            raise MessageError("a message ends too early")
        self._at += count
        return self._content[self._at - count : self._at]

    def number(self, most: int, width: int = 4, least: int = 0) -> int:
        """Return the next number, of as many bytes."""
        found = int.from_bytes(self.take(width), "big")
        if not least <= found <= most:
            raise MessageError(f"{found} in a message: expected from {least:,} to {most:,}")
        return found


class Entry:
    """A dataclass whose fields have a form in bytes."""

    place: int

    def content(self) -> bytes:
        """Return the entries, one after the other."""
        each = fields(self)  # type: ignore[arg-type]
        return b"".join(one.metadata["write"](getattr(self, one.name)) for one in each)

    @classmethod
    def decode(cls, got: Reader) -> Self:
        """Return what comes next in these bytes."""
        return cls(**{each.name: each.metadata["read"](got) for each in fields(cls)})  # type: ignore[arg-type]


class Message(Entry):
    """An entry that is sent by itself, with the version of its protocol and its kind."""

    protocol: ClassVar[bytes] = b"BSA1"  # it is in every session of secure aggregation
    kind: ClassVar[int]

    def to_bytes(self) -> bytes:
        """Return the message as it is sent."""
        return self.protocol + bytes([self.kind]) + self.content()

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Return the message of which these are exactly the bytes."""
        got = Reader(content)
        if got.take(5) != cls.protocol + bytes([cls.kind]):
            protocol = cls.protocol.decode()
            raise MessageError(f"this is no message {cls.__name__!r} of the protocol {protocol}")
        try:
            message = cls.decode(got)
        except ConfigError as error:
            raise MessageError(str(error)) from error
        if got.left:
            raise MessageError("a message goes on after its end")
        return message


def form(write: Callable[[Any], bytes], read: Callable[[Reader], Any], **default: Any) -> Any:
    """Return a field of an entry that is written and read so."""
    return field(metadata={"write": write, "read": read}, **default)


def _check(value: int, least: int, most: int) -> None:
    """Refuse to write what would not be read."""
    if not least <= value <= most:
        raise ConfigError(f"{value} in a message: expected from {least:,} to {most:,}")


def number(most: int, width: int = 4, least: int = 0) -> Any:
    """Return the form of a number of `width` bytes, from `least` to `most`."""

    def write(value: int) -> bytes:
        _check(value, least, most)
        return value.to_bytes(width, "big")

    return form(write, lambda got: got.number(most, width, least))


def real(*, positive: bool = True) -> Any:
    """Return the form of a finite number in double precision."""

    def read(got: Reader) -> float:
        (value,) = struct.unpack(">d", got.take(8))
        if not math.isfinite(value) or (positive and value <= 0):
            raise MessageError("a number in a message is not finite, or not positive")
        return float(value)

    return form(lambda value: struct.pack(">d", value), read)


def fixed(length: int, **default: Any) -> Any:
    """Return the form of as many bytes."""

    def write(value: bytes) -> bytes:
        _check(len(value), length, length)
        return value

    return form(write, lambda got: got.take(length), **default)


def sized(
    most: int, write: Callable[[Any], bytes], read: Callable[[bytes], Any], least: int = 0,
    **default: Any,
) -> Any:  # fmt: skip
    """Return the form of a value that is written as `least` to `most` bytes."""

    def written(value: Any) -> bytes:
        content = write(value)
        _check(len(content), least, most)
        return len(content).to_bytes(4, "big") + content

    return form(written, lambda got: read(got.take(got.number(most, least=least))), **default)


def blob(most: int, **default: Any) -> Any:
    """Return the form of at most as many bytes."""
    return sized(most, bytes, bytes, **default)


def text(most: int, least: int = 1) -> Any:
    """Return the form of text of `least` to `most` bytes of UTF-8."""

    def read(content: bytes) -> str:
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise MessageError("text in a message that is not UTF-8") from error

    return sized(most, str.encode, read, least)


def place_form() -> Any:
    """Return the form of a client's place in the roster."""
    return number(MOST_CLIENTS - 1)


def places_form() -> Any:
    """Return the form of some clients of a roster: a bit each, no zero byte at the end."""

    def write(value: Collection[int]) -> bytes:
        bits = np.zeros(max(value, default=-1) + 1, np.uint8)
        bits[list(value)] = 1
        return np.packbits(bits, bitorder="little").tobytes()

    def read(content: bytes) -> frozenset[int]:
        if content.endswith(b"\0"):
            raise MessageError("a set of clients in a message ends with an empty byte")
        bits = np.unpackbits(np.frombuffer(content, np.uint8), bitorder="little")
        return frozenset(np.flatnonzero(bits).tolist())

    return sized((MOST_CLIENTS + 7) // 8, write, read)


def nested(kind: type[Entry]) -> Any:
    """Return the form of an entry within another one."""
    return form(lambda value: value.content(), kind.decode)


def optional(kind: type[Entry]) -> Any:
    """Return the form of an entry that may be missing: a byte that says so, then the entry."""

    def write(value: Entry | None) -> bytes:
        return b"\0" if value is None else b"\1" + value.content()

    return form(write, lambda got: kind.decode(got) if got.number(1, 1) else None, default=None)


def several(each: Any, most: int, **default: Any) -> Any:
    """Return the form of at most as many values, each of this form: their number, then they."""
    write, read = each.metadata["write"], each.metadata["read"]
    return form(
        lambda values: len(values).to_bytes(4, "big") + b"".join(map(write, values)),
        lambda got: tuple([read(got) for _ in range(got.number(most))]),
        **default,
    )


def many(kind: type[Entry]) -> Any:
    """Return the form of entries of one kind, in ascending order of their places."""
    any_order = several(nested(kind), MOST_CLIENTS).metadata

    def read(got: Reader) -> tuple[Entry, ...]:
        found: tuple[Entry, ...] = any_order["read"](got)
        if any(one.place >= two.place for one, two in itertools.pairwise(found)):
            raise MessageError("clients in a message are out of order")
        return found

    return form(any_order["write"], read)


def array(dtype: str, dimensions: int) -> Any:
    """Return the form of an array of finite numbers: its shape, then its rows."""

    def write(value: NDArray[Any]) -> bytes:
        shape = b"".join(size.to_bytes(4, "big") for size in value.shape)
        return shape + value.astype(dtype, copy=False).tobytes()

    def read(got: Reader) -> NDArray[Any]:
        shape = [got.number(_MOST_NUMBERS) for _ in range(dimensions)]
        if math.prod(shape) > _MOST_NUMBERS:
            raise MessageError(f"an array of more than {_MOST_NUMBERS:,} numbers")
        content = got.take(math.prod(shape) * np.dtype(dtype).itemsize)
        found = np.frombuffer(content, dtype).reshape(shape)
        if not np.isfinite(found).all():
            raise MessageError("an array with numbers that are not finite")
        return found

    return form(write, read)
