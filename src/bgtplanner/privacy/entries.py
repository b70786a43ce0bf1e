"""What the rows of a ledger say, and how they say it in few bytes.

A round in which everybody pays the same takes one short row, whether there are ten clients or a
million; who pays is one bit a client, and different charges are listed only where they differ.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgtplanner.errors import LedgerTamperedError

__all__ = ["Payment", "Reservation", "pack", "unpack"]

Mask = NDArray[np.bool_]
Ticks = NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True)
class Reservation:
    """Leave to release once, for the clients that could pay.

    Attributes:
        run: Which run.
        round: Which round of it.
        attempt: 0 for the first; a retry on changed inputs is a new one, with new noise.
        charge: What each granted client pays, as granted (in whole ticks); one entry a client.
        granted: Who may release.
        refused: Who asked and could not pay.
        replayed: Who had this very reservation already; the same noise must be used again.
        number: Row of the ledger, to settle it by.
        nonce: Drawn for this attempt; with the ledger's key it gives the noise.
    """

    run: str
    round: int
    attempt: int
    charge: NDArray[np.float64]
    granted: Mask
    refused: Mask
    replayed: Mask
    number: int
    nonce: bytes = field(repr=False)


class Payment(NamedTuple):
    """Who pays how much: what a reserve row says.

    Attributes:
        attempt: Which attempt at the same round.
        fingerprint: Of the inputs; empty if none was given.
        nonce: Drawn for the attempt. Without it, a ledger that has forgotten a round (a backup
            was restored) would put the same noise on other inputs.
        clients: Who pays; None for everybody.
        ticks: What each of those pays: one number, or one a paying client.
    """

    attempt: int
    fingerprint: bytes
    nonce: bytes
    clients: Mask | None
    ticks: Ticks

    @classmethod
    def of(
        cls, attempt: int, fingerprint: bytes, nonce: bytes, clients: Mask, ticks: Ticks
    ) -> Payment:
        """The shortest way to say it; `ticks` is one number, or one for every client."""
        everybody = bool(clients.all())
        if ticks.ndim:
            ticks = ticks if everybody else ticks[clients]
            if (ticks == ticks[0]).all():
                ticks = ticks[0]
        who = None if everybody else clients
        return cls(attempt, fingerprint, nonce, who, np.asarray(ticks))

    def packed(self) -> bytes:
        """As the payload of a row."""
        about = {
            "attempt": self.attempt,
            "fingerprint": self.fingerprint.hex(),
            "nonce": self.nonce.hex(),
            "ticks": None if self.ticks.ndim else int(self.ticks),
            "everybody": self.clients is None,
        }
        data = b"" if self.clients is None else np.packbits(self.clients).tobytes()
        return pack(about, data + (self.ticks.astype("<i8").tobytes() if self.ticks.ndim else b""))

    @classmethod
    def unpacked(cls, payload: bytes, n_clients: int) -> Payment:
        """From the payload of a row."""
        about, data = unpack(payload)
        try:
            size = 0 if about["everybody"] else (n_clients + 7) // 8
            bits = np.frombuffer(data[:size], dtype=np.uint8)
            clients = np.unpackbits(bits, count=n_clients).astype(bool) if size else None
            listed = np.frombuffer(data[size:], dtype="<i8").astype(np.int64)
            ticks = listed if about["ticks"] is None else np.asarray(about["ticks"], np.int64)
            mark, nonce = bytes.fromhex(about["fingerprint"]), bytes.fromhex(about["nonce"])
            return cls(int(about["attempt"]), mark, nonce, clients, ticks)
        except (KeyError, TypeError, ValueError) as error:
            raise LedgerTamperedError("a row cannot be read: edited or damaged") from error


def pack(about: dict[str, Any], data: bytes = b"") -> bytes:
    """A few named values and some bytes, as one payload."""
    text = json.dumps(about, sort_keys=True).encode()
    return len(text).to_bytes(4, "little") + text + zlib.compress(data, 1)


def unpack(payload: bytes) -> tuple[dict[str, Any], bytes]:
    """What :func:`pack` was given."""
    try:
        length = int.from_bytes(payload[:4], "little")
        about: dict[str, Any] = json.loads(payload[4 : 4 + length])
        return about, zlib.decompress(payload[4 + length :])
    except (ValueError, zlib.error) as error:
        raise LedgerTamperedError("a row cannot be read: edited or damaged") from error
