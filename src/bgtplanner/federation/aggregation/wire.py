"""How a message becomes bytes and back: there is one form for each, and no other is read.

Four letters, a byte for the kind, then the entries, one after the other: numbers in big endian,
bytes of a fixed length as they are, everything else with its length before it. Whatever is not
exactly that raises a `MessageError`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

import numpy as np

from bgtplanner.errors import ConfigError, MessageError
from bgtplanner.federation.aggregation.roster import MOST_CLIENTS

__all__ = [
    "Entry",
    "Message",
    "blob",
    "fixed",
    "many",
    "number",
    "place_form",
    "places_form",
    "text",
]

_MAGIC = b"BSA1"  # the version of the protocol is in it, and so in every session


class Reader:
    """Bytes that are read from front to back, to their end."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0

    def take(self, count: int) -> bytes:
        taken = self._content[self._at : self._at + count]
        if len(taken) < count:
            raise MessageError("a message of secure aggregation ends too early")
        self._at += count
        return taken

    def number(self, most: int, width: int = 4) -> int:
        found = int.from_bytes(self.take(width), "big")
        if found > most:
            raise MessageError(f"{found} in a message of secure aggregation; at most {most} fits")
        return found

    def end(self) -> None:
        if self._at != len(self._content):
            raise MessageError("a message of secure aggregation goes on after its end")


@dataclass(frozen=True)
class _Form:
    """How an entry of a message is written and read."""

    write: Callable[[Any], bytes]
    read: Callable[[Reader], Any]


def number(most: int, width: int = 4) -> Any:
    """Return the form of a number of `width` bytes that is at most `most`."""
    form = _Form(lambda value: value.to_bytes(width, "big"), lambda got: got.number(most, width))
    return field(metadata={"form": form})


def fixed(length: int) -> Any:
    """Return the form of as many bytes."""
    return field(metadata={"form": _Form(bytes, lambda got: got.take(length))})


def blob(most: int) -> Any:
    """Return the form of at most as many bytes."""
    form = _Form(
        lambda value: len(value).to_bytes(4, "big") + value,
        lambda got: got.take(got.number(most)),
    )
    return field(metadata={"form": form})


def text(most: int) -> Any:
    """Return the form of text of at most as many bytes of UTF-8."""

    def write(value: str) -> bytes:
        return len(value.encode()).to_bytes(4, "big") + value.encode()

    def read(got: Reader) -> str:
        try:
            return got.take(got.number(most)).decode()
        except UnicodeDecodeError as error:
            raise MessageError("text in a message that is not UTF-8") from error

    return field(metadata={"form": _Form(write, read)})


def places_form() -> Any:
    """Return the form of some clients of a roster: a bit each, no zero byte at the end."""

    def write(value: Collection[int]) -> bytes:
        bits = np.zeros(max(value, default=-1) + 1, np.uint8)
        bits[list(value)] = 1
        content = np.packbits(bits, bitorder="little").tobytes()
        return len(content).to_bytes(4, "big") + content

    def read(got: Reader) -> frozenset[int]:
        content = got.take(got.number((MOST_CLIENTS + 7) // 8))
        if content.endswith(b"\0"):
            raise MessageError("a set of clients in secure aggregation ends with an empty byte")
        bits = np.unpackbits(np.frombuffer(content, np.uint8), bitorder="little")
        return frozenset(np.flatnonzero(bits).tolist())

    return field(metadata={"form": _Form(write, read)})


def many(kind: type[Entry]) -> Any:
    """Return the form of entries of one kind, in ascending order of their places."""

    def write(value: tuple[Entry, ...]) -> bytes:
        return len(value).to_bytes(4, "big") + b"".join(entry.content() for entry in value)

    def read(got: Reader) -> tuple[Entry, ...]:
        found = tuple(kind.read(got) for _ in range(got.number(MOST_CLIENTS)))
        places = [entry.place for entry in found]
        if any(one >= two for one, two in itertools.pairwise(places)):
            raise MessageError("clients in a message of secure aggregation are out of order")
        return found

    return field(metadata={"form": _Form(write, read)})


def place_form() -> Any:
    """Return the form of a client's place in the roster."""
    return number(MOST_CLIENTS - 1)


class Entry:
    """What has a form in bytes."""

    place: int

    def content(self) -> bytes:
        """Return the entries, one after the other."""
        return b"".join(
            each.metadata["form"].write(getattr(self, each.name))
            for each in fields(self)  # type: ignore[arg-type]
        )

    @classmethod
    def read(cls, got: Reader) -> Self:
        """Return what comes next in these bytes."""
        return cls(*(each.metadata["form"].read(got) for each in fields(cls)))  # type: ignore[arg-type]


class Message(Entry):
    """An entry that is sent by itself, with its kind."""

    kind: ClassVar[int]

    def to_bytes(self) -> bytes:
        return _MAGIC + bytes([self.kind]) + self.content()

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Return the message.

        Raises:
            MessageError: If these are not exactly the bytes of a message of this kind.
        """
        got = Reader(content)
        if got.take(5) != _MAGIC + bytes([cls.kind]):
            raise MessageError(f"this is no message {cls.__name__!r} of secure aggregation 1")
        try:
            message = cls.read(got)
        except ConfigError as error:
            raise MessageError(str(error)) from error
        got.end()
        return message
