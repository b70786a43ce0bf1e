"""What one row of a ledger says, and how it is chained to the row before it.

Every row's hash covers the row and the hash before it, so an edited, removed or reordered row
breaks the chain. A chain that was cut at its end is still a valid chain. Only someone who knows
the *head* (the number and hash of the newest row) can detect that.

A *payment* is what a reserve row says: who pays how much. In memory that is one number, or one per
client. In the row it takes few bytes: one number if everybody pays the same, one number per class
of budgets if all members of a class pay the same, and one bit per client for who pays.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgtplanner.errors import LedgerError
from bgtplanner.errors import LedgerTamperedError as Tampered
from bgtplanner.privacy.accountants import CEILING
from bgtplanner.privacy.budget import Budgets

Mask = NDArray[np.bool_]
Ticks = NDArray[np.int64]

MARK = 16  # bytes of the keyed hash of a label
_START = b"\0" * 32


class Head(NamedTuple):
    """The number and hash of the newest row. Keep it apart from the ledger."""

    number: int
    hash: bytes

    def __str__(self) -> str:
        return f"{self.number}:{self.hash.hex()}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """Read a head as it is printed."""
        number, _, digest = text.strip().partition(":")
        try:
            head = cls(int(number), bytes.fromhex(digest))
        except ValueError as error:
            raise LedgerError(f"--head {text}: expected NUMBER:HASH") from error
        if not 0 <= head.number < 2**63 or len(head.hash) != 32:
            raise LedgerError(f"--head {text}: expected NUMBER:HASH, 64 hexadecimal digits")
        return head


class Row(NamedTuple):
    """One event: its kind is ``open``, ``reserve``, ``settle``, ``loss``, ``join`` or ``leave``.

    The hash covers all other fields and the hash of the row before.
    """

    number: int
    kind: str
    run: str
    round: int
    payload: bytes
    hash: bytes

    @classmethod
    def after(cls, head: Head | None, kind: str, run: str, round_: int, payload: bytes) -> Row:
        """Return the row that follows a head."""
        number, previous = (0, _START) if head is None else (head.number + 1, head.hash)
        texts = (b"%d" % number, kind.encode(), run.encode(), b"%d" % round_)
        named = b"".join([len(text).to_bytes(8, "little") + text for text in texts])
        digest = hashlib.sha256(previous + named)
        digest.update(payload)
        return cls(number, kind, run, round_, payload, digest.digest())

    def follows(self, head: Head | None) -> bool:
        """Return whether this is the row that was written after that head."""
        return self == Row.after(head, self.kind, self.run, self.round, self.payload)


# ---- payloads of rows


def pack(about: Mapping[str, Any], data: bytes = b"") -> bytes:
    """Pack a few named values and some bytes into one payload."""
    text = json.dumps(about, sort_keys=True).encode()
    return len(text).to_bytes(4, "little") + text + zlib.compress(data, 1)


@contextlib.contextmanager
def _as_written() -> Iterator[None]:
    """Refuse what cannot have been written like this."""
    try:
        yield
    except (KeyError, ValueError, OverflowError, RecursionError, zlib.error) as error:
        raise damaged() from error


def damaged() -> Tampered:
    """Return the error for a row that cannot have been written like this."""
    return Tampered("a row cannot be read: edited or damaged")


def _must(hold: bool) -> None:
    if not hold:
        raise ValueError


@_as_written()
def unpack(payload: bytes) -> tuple[dict[str, Any], bytes]:
    """Return what :func:`pack` was given."""
    data = payload[4 + int.from_bytes(payload[:4], "little") :]
    return named_values(payload), zlib.decompress(data)


@_as_written()
def named_values(payload: bytes) -> dict[str, Any]:
    """Return only the named values of a payload, without its bytes, of which there may be many."""
    about = json.loads(payload[4 : 4 + int.from_bytes(payload[:4], "little")].decode())
    _must(isinstance(about, dict))
    return dict(about)


@_as_written()
def attempt_of(about: Mapping[str, Any]) -> tuple[int, bytes]:
    """Return the attempt of a reserve row and the fingerprint of its inputs."""
    attempt, mark = about["attempt"], about["fingerprint"]
    _must(type(attempt) is int and 0 <= attempt < 2**62 and isinstance(mark, str))
    return attempt, bytes.fromhex(mark)


@_as_written()
def settled_by(row: Row) -> int:
    """Return the number of the reservation that a settle row settles."""
    number = named_values(row.payload)["settles"]
    _must(type(number) is int and 0 < number < 2**62)
    return int(number)


class Payment(NamedTuple):
    """Who pays how much: what a reserve row says."""

    attempt: int
    fingerprint: bytes  # of the inputs; empty if none was given
    who: Mask
    ticks: Ticks  # one number, or one per client

    def packed(self, budgets: Budgets) -> bytes:
        """Return the payload of a row, in the shortest form that says the same."""
        classes, everybody = budgets.class_of_client, bool(self.who.all())
        of_who = classes[self.who]
        number = len(budgets.classes)
        sizes = np.bincount(classes, minlength=number)
        paying = np.bincount(of_who, minlength=number)
        whole = bool(((paying == sizes) | (paying == 0)).all())
        ticks = np.broadcast_to(self.ticks, self.who.shape)[self.who]
        listed = np.zeros(number, dtype=np.int64)
        listed[of_who] = ticks
        if (ticks == ticks[0]).all():
            # A number of 8 bytes per class, or a bit per client.
            by_class = whole and not everybody and 64 * number <= len(classes)
            ticks = ticks[0]
        else:
            by_class = bool((listed[of_who] == ticks).all())
        about: dict[str, Any] = {
            "attempt": self.attempt,
            "fingerprint": self.fingerprint.hex(),
            "everybody": everybody or (by_class and whole),
        }
        if by_class:  # without "ticks": a reader that knows no classes stops there
            about["by_class"], ticks = True, listed
        else:
            about["ticks"] = None if ticks.ndim else int(ticks)
        data = b"" if about["everybody"] else np.packbits(self.who).tobytes()
        return pack(about, data + (ticks.astype("<i8").tobytes() if ticks.ndim else b""))

    @classmethod
    @_as_written()
    def unpacked(cls, payload: bytes, budgets: Budgets) -> Payment:
        """Read the payload of a row. The nonce in older rows is ignored."""
        about, data = unpack(payload)
        attempt, mark = attempt_of(about)
        who, size = np.ones(len(budgets), dtype=bool), 0
        if not about["everybody"]:
            size = (len(who) + 7) // 8
            _must(len(data) >= size)
            bits = np.frombuffer(data[:size], dtype=np.uint8)
            who = np.unpackbits(bits, count=len(who)).astype(bool)
        by_class = bool(about.get("by_class", False))
        ticks = None if by_class else about["ticks"]
        _must(ticks is None or type(ticks) is int)
        listed = np.frombuffer(data[size:], dtype="<i8").astype(np.int64)
        if ticks is not None:
            listed = np.asarray(ticks, dtype=np.int64)
        _must(bool(((listed >= (0 if by_class else 1)) & (listed <= CEILING)).all()))
        if by_class:
            _must(len(listed) == len(budgets.classes))
            listed = listed[budgets.class_of_client]
            who &= listed > 0
        elif listed.ndim:
            _must(len(listed) == np.count_nonzero(who))
            each = np.zeros(len(who), dtype=np.int64)
            each[who] = listed
            listed = each
        _must(bool(who.any()))
        return cls(attempt, mark, who, listed)

    def among(self, size: int) -> Payment:
        """Return the same in a ledger that has more places by now, which did not pay."""
        later = (0, size - len(self.who))
        ticks = np.pad(self.ticks, later) if self.ticks.ndim else self.ticks
        return self._replace(who=np.pad(self.who, later), ticks=ticks)


def pack_members(said: Mapping[str, int], places: list[int], marks: list[bytes]) -> bytes:
    """Pack who joins or leaves: places and, of those who join, keyed hashes of their labels."""
    about = {**said, "places": len(places)}
    return pack(about, np.array(places, dtype="<i4").tobytes() + b"".join(marks))


@_as_written()
def members_of(payload: bytes, size: int) -> tuple[list[int], list[bytes]]:
    """Return what :func:`pack_members` was given; places beyond the size are new, in order."""
    about, data = unpack(payload)
    _must(all(type(of) is int for of in about.values()) and about["places"] > 0)
    end = 4 * about["places"]
    _must(len(data) in (end, end + MARK * about["places"]))
    places: list[int] = np.frombuffer(data[:end], dtype="<i4").tolist()
    marks = [data[at : at + MARK] for at in range(end, len(data), MARK)]
    new = sorted({place for place in places if place >= size})
    _must(min(places) >= 0 and new == list(range(size, size + len(new))))
    return places, marks
