"""What the rows of a ledger say, and how they say it in few bytes.

A round in which everybody pays the same takes one short row, whether there are ten clients or a
million; who pays is one bit a client, and different charges are listed only where they differ.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgtplanner.errors import LedgerTamperedError
from bgtplanner.privacy.accounting import CEILING

__all__ = [
    "Payment",
    "Reservation",
    "attempt_of",
    "named_values",
    "pack",
    "settled_by",
    "unpack",
]

Mask = NDArray[np.bool_]
Ticks = NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True)
class Reservation:
    """Leave to release once, for the clients that could pay.

    Attributes:
        run: Which run.
        round: Which round of it.
        attempt: 0 for the first; a retry on changed inputs is a new one, charged afresh.
        charge: What each granted client pays, as granted (in whole ticks); one entry a client,
            0 for a class that was not asked.
        granted: Who may release.
        refused: Who asked and could not pay.
        replayed: Who had this very reservation already and is not charged again.
        number: Row of the ledger, to settle it by.
    """

    run: str
    round: int
    attempt: int
    charge: NDArray[np.float64]
    granted: Mask
    refused: Mask
    replayed: Mask
    number: int


class Payment(NamedTuple):
    """Who pays how much: what a reserve row says.

    Attributes:
        attempt: Which attempt at the same round.
        fingerprint: Of the inputs; empty if none was given.
        clients: Who pays; None for everybody, or for all of each class that pays anything.
        ticks: What each of those pays: one number, or one a paying client, or one a class.
        by_class: Whether `ticks` has one number a class, 0 for a class that pays nothing.
    """

    attempt: int
    fingerprint: bytes
    clients: Mask | None
    ticks: Ticks
    by_class: bool = False

    @classmethod
    def of(cls, attempt: int, fingerprint: bytes, clients: Mask, ticks: Ticks) -> Payment:
        """The shortest way to say it; `ticks` is one number, or one for every client."""
        everybody = bool(clients.all())
        if ticks.ndim:
            ticks = ticks if everybody else ticks[clients]
            if (ticks == ticks[0]).all():
                ticks = ticks[0]
        who = None if everybody else clients
        return cls(attempt, fingerprint, who, np.asarray(ticks))

    @property
    def whole(self) -> bool:
        """Whether all clients of a class pay the same, or none of them pays."""
        return self.clients is None and (self.by_class or not self.ticks.ndim)

    def by_client(self, class_of_client: NDArray[np.int32]) -> Payment:
        """The same, said of single clients: for a ledger that is kept by other classes."""
        who, ticks = self.over(len(class_of_client), class_of_client)
        return Payment.of(self.attempt, self.fingerprint, who, ticks)

    def over(
        self, columns: int, class_of_client: NDArray[np.int32] | None = None
    ) -> tuple[Mask, Ticks]:
        """Who pays, and ticks as one number or one a column (of no meaning for who does not).

        Args:
            columns: How many there are: one a client, or one a class for a whole payment.
            class_of_client: Class of each client; None for a column a class.

        Raises:
            LedgerTamperedError: If it was not made for so many.
        """
        who = np.ones(columns, dtype=bool) if self.clients is None else self.clients
        ticks = self.ticks
        try:
            if self.by_class:
                ticks = ticks if class_of_client is None else ticks[class_of_client]
                who = who & (ticks > 0)
            elif ticks.ndim and self.clients is not None:
                ticks = np.zeros(columns, dtype=np.int64)
                ticks[who] = self.ticks
        except (IndexError, ValueError) as error:
            raise _damaged() from error
        if ticks.ndim and ticks.shape != who.shape:
            raise _damaged()
        return who, ticks

    def packed(self) -> bytes:
        """As the payload of a row."""
        about: dict[str, Any] = {
            "attempt": self.attempt,
            "fingerprint": self.fingerprint.hex(),
            "everybody": self.clients is None,
        }
        if self.by_class:  # without "ticks": a reader that knows no classes stops there
            about["by_class"] = True
        else:
            about["ticks"] = None if self.ticks.ndim else int(self.ticks)
        data = b"" if self.clients is None else np.packbits(self.clients).tobytes()
        return pack(about, data + (self.ticks.astype("<i8").tobytes() if self.ticks.ndim else b""))

    @classmethod
    def unpacked(cls, payload: bytes, n_clients: int) -> Payment:
        """From the payload of a row. The nonce that older rows have is left aside.

        Raises:
            LedgerTamperedError: If it is no payment of so many clients: damaged or edited.
        """
        about, data = unpack(payload)
        attempt, mark = attempt_of(about)
        try:
            size = 0 if about["everybody"] else (n_clients + 7) // 8
            by_class = bool(about.get("by_class", False))
            single = None if by_class else about["ticks"]
            if len(data) < size or not (single is None or type(single) is int):
                raise _damaged()
            bits = np.frombuffer(data[:size], dtype=np.uint8)
            clients = np.unpackbits(bits, count=n_clients).astype(bool) if size else None
            listed = np.frombuffer(data[size:], dtype="<i8").astype(np.int64)
            ticks = listed if single is None else np.asarray(single, np.int64)
        except (KeyError, ValueError, OverflowError) as error:
            raise _damaged() from error
        somebody = ticks.size and (clients is None or clients.any())
        somebody = somebody and (not by_class or (ticks > 0).any())
        if not somebody or (ticks < (0 if by_class else 1)).any() or (ticks > CEILING).any():
            raise _damaged()
        return cls(attempt, mark, clients, ticks, by_class)


_NOTHING = zlib.compress(b"", 1)  # most rows have no bytes: setting up zlib would cost the most
_in_order = json.JSONEncoder(sort_keys=True).encode


def pack(about: dict[str, Any], data: bytes = b"") -> bytes:
    """A few named values and some bytes, as one payload."""
    text = _in_order(about).encode()
    return len(text).to_bytes(4, "little") + text + (zlib.compress(data, 1) if data else _NOTHING)


def unpack(payload: bytes) -> tuple[dict[str, Any], bytes]:
    """What :func:`pack` was given.

    Raises:
        LedgerTamperedError: If that cannot be told: damaged or edited.
    """
    about, data = named_values(payload), payload[4 + int.from_bytes(payload[:4], "little") :]
    try:
        return about, b"" if data == _NOTHING else zlib.decompress(data)
    except zlib.error as error:
        raise _damaged() from error


def named_values(payload: bytes) -> dict[str, Any]:
    """The named values of a payload alone, without its bytes, which may be many."""
    try:
        about = json.loads(payload[4 : 4 + int.from_bytes(payload[:4], "little")])
    except (ValueError, RecursionError) as error:
        raise _damaged() from error
    if not isinstance(about, dict):
        raise _damaged()
    return about


def attempt_of(about: Mapping[str, Any]) -> tuple[int, bytes]:
    """Which attempt a reserve row says it is, and the fingerprint of its inputs."""
    attempt, mark = about.get("attempt"), about.get("fingerprint")
    if type(attempt) is not int or not 0 <= attempt < 2**62 or not isinstance(mark, str):
        raise _damaged()
    try:
        return attempt, bytes.fromhex(mark)
    except ValueError as error:
        raise _damaged() from error


def settled_by(about: Mapping[str, Any]) -> int:
    """Which reservation a settle row says was released."""
    number = about.get("settles")
    if type(number) is not int or not 0 < number < 2**62:
        raise _damaged()
    return number


def _damaged() -> LedgerTamperedError:
    return LedgerTamperedError("a row cannot be read: edited or damaged")
