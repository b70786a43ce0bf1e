"""The messages of a round."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from bgtplanner.errors import MessageError
from bgtplanner.federation.aggregation import wire
from bgtplanner.federation.aggregation.keys import MARK, SEALED, SEED
from bgtplanner.federation.aggregation.masks import MOST_BITS, MOST_COORDINATES
from bgtplanner.federation.aggregation.roster import MOST_CLIENTS

STEPS = ("keys", "shares", "upload", "sign", "open")  # of a round

_LONGEST_RUN = 1000
_MOST_PARTNERS = (MOST_CLIENTS + 7) // 8


@dataclass(frozen=True)
class Request(wire.Message):
    """What a round is: everything public that its secrets are bound to.

    `members` are the places of the clients that are asked, of whom `dropouts` may be missing from
    the sum and `colluders` may be on the server's side; each has `size` integers, and sums are
    modulo 2^`bits`. `context` is a digest of whatever else the round was asked with.
    """

    kind = 1
    run: str = wire.text(_LONGEST_RUN)
    round: int = wire.number((1 << 63) - 1, 8)
    roster: bytes = wire.fixed(32)
    members: frozenset[int] = wire.places_form()
    bits: int = wire.number(MOST_BITS, 1, least=1)
    size: int = wire.number(MOST_COORDINATES, least=1)
    dropouts: int = wire.number(MOST_CLIENTS)
    colluders: int = wire.number(MOST_CLIENTS)
    context: bytes = wire.fixed(32)

    @cached_property
    def session(self) -> bytes:
        """What keys, masks, shares and signatures of this round are bound to."""
        return hashlib.sha256(b"bgtplanner secure aggregation\0" + self.to_bytes()).digest()


@dataclass(frozen=True)
class InRound(wire.Message):
    """A message that belongs to one round, by its session."""

    session: bytes = wire.fixed(32)

    @classmethod
    def of(cls, content: bytes, session: bytes, place: int | None = None) -> Self:
        """Return the message; refuse one of another round, or of another place if one is given."""
        got = cls.from_bytes(content)
        if got.session != session or place not in (None, getattr(got, "place", place)):
            raise MessageError(
                "a message of another round, roster or request, or for another client"
            )
        return got


@dataclass(frozen=True)
class Keys(InRound):
    """A client's fresh keys: to seal shares, to make pairwise masks, and what binds its seed."""

    kind = 2
    place: int = wire.place_form()
    sealing: bytes = wire.fixed(32)
    masking: bytes = wire.fixed(32)
    commitment: bytes = wire.fixed(32)
    signature: bytes = wire.fixed(64)

    @property
    def signed(self) -> bytes:
        """What the signature is under: everything before it."""
        return self.content()[:-64]


@dataclass(frozen=True)
class KeysOfNeighbours(InRound):
    """The keys of those neighbours that have sent any."""

    kind = 3
    keys: tuple[Keys, ...] = wire.many(Keys)


@dataclass(frozen=True)
class Parcel(wire.Entry):
    """Two shares, sealed; `place` is the holder's on the way up, the dealer's on the way down."""

    place: int = wire.place_form()
    sealed: bytes = wire.fixed(SEALED)
    self_mark: bytes = wire.fixed(MARK)
    masking_mark: bytes = wire.fixed(MARK)


@dataclass(frozen=True)
class Shares(InRound):
    """What a client deals to its neighbours."""

    kind = 4
    place: int = wire.place_form()
    parcels: tuple[Parcel, ...] = wire.many(Parcel)


@dataclass(frozen=True)
class SharesForOne(Shares):
    """What a client's neighbours have dealt to it."""

    kind = 5


@dataclass(frozen=True)
class Partners(wire.Entry):
    """With whom a client has masked its upload: a bit for each of its neighbours, signed."""

    place: int = wire.place_form()
    partners: bytes = wire.blob(_MOST_PARTNERS)
    signature: bytes = wire.fixed(64)

    @classmethod
    def bits(cls, neighbours: tuple[int, ...], partners: Collection[int]) -> bytes:
        """Return the bits of some of a client's neighbours."""
        chosen = np.array([place in partners for place in neighbours], np.uint8)
        return np.packbits(chosen, bitorder="little").tobytes()

    def among(self, neighbours: tuple[int, ...]) -> frozenset[int]:
        """Return the places of the partners among this client's neighbours."""
        bits = np.unpackbits(np.frombuffer(self.partners, np.uint8), bitorder="little")
        chosen, known = np.flatnonzero(bits).tolist(), len(neighbours)
        if len(self.partners) != (known + 7) // 8 or max(chosen, default=0) >= known:
            raise MessageError("partners that are not neighbours")
        return frozenset(neighbours[index] for index in chosen)


@dataclass(frozen=True)
class Upload(InRound):
    """A client's masked integers, and with whom they are masked."""

    kind = 6
    place: int = wire.place_form()
    partners: bytes = wire.blob(_MOST_PARTNERS)
    signature: bytes = wire.fixed(64)
    values: bytes = wire.blob(MOST_COORDINATES * 8)


@dataclass(frozen=True)
class Survivors(InRound):
    """Whose uploads the sum is to have."""

    kind = 7
    places: frozenset[int] = wire.places_form()


@dataclass(frozen=True)
class Signature(InRound):
    """A witness's signature under a message `Survivors`."""

    kind = 8
    place: int = wire.place_form()
    signature: bytes = wire.fixed(64)


@dataclass(frozen=True)
class Opening(InRound):
    """Whose uploads the sum is to have, who has signed it, and the partners of neighbours."""

    kind = 9
    places: frozenset[int] = wire.places_form()
    signatures: tuple[Signature, ...] = wire.many(Signature)
    partners: tuple[Partners, ...] = wire.many(Partners)


@dataclass(frozen=True)
class Share(wire.Entry):
    """A share that is revealed: of the self mask of who is in the sum, else of the masking key."""

    place: int = wire.place_form()
    share: bytes = wire.fixed(SEED)


@dataclass(frozen=True)
class Opened(InRound):
    """The seed of a client's own self mask, and one share of each of its partners."""

    kind = 10
    place: int = wire.place_form()
    seed: bytes = wire.fixed(SEED)
    shares: tuple[Share, ...] = wire.many(Share)
