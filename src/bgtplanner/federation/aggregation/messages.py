"""The messages of a round."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from bgtplanner.errors import MessageError
from bgtplanner.federation.aggregation.keys import MARK, SEALED, SEED
from bgtplanner.federation.aggregation.masks import MOST_BITS, MOST_COORDINATES
from bgtplanner.federation.aggregation.roster import MOST_CLIENTS
from bgtplanner.federation.aggregation.wire import (
    Entry,
    Message,
    blob,
    fixed,
    many,
    number,
    place_form,
    places_form,
    text,
)

_LONGEST_RUN = 1000
_MOST_PARTNERS = (MOST_CLIENTS + 7) // 8


@dataclass(frozen=True)
class Request(Message):
    """What a round is: everything public that its secrets are bound to.

    Attributes:
        run: The run's name.
        round: The round's number.
        roster: The roster's digest.
        members: The places of the clients that are asked.
        bits: Sums are modulo 2 to this power.
        size: How many integers each client has.
        dropouts: How many members may be missing from the sum.
        colluders: How many members may be on the server's side.
        context: A digest of whatever else the round was asked with.
    """

    kind = 1
    run: str = text(_LONGEST_RUN)
    round: int = number((1 << 63) - 1, 8)
    roster: bytes = fixed(32)
    members: frozenset[int] = places_form()
    bits: int = number(MOST_BITS, 1, least=1)
    size: int = number(MOST_COORDINATES, least=1)
    dropouts: int = number(MOST_CLIENTS)
    colluders: int = number(MOST_CLIENTS)
    context: bytes = fixed(32)

    @cached_property
    def session(self) -> bytes:
        """What keys, masks, shares and signatures of this round are bound to."""
        return hashlib.sha256(b"bgtplanner secure aggregation\0" + self.to_bytes()).digest()


@dataclass(frozen=True)
class InRound(Message):
    """A message that belongs to one round, by its session."""

    session: bytes = fixed(32)

    @classmethod
    def of(cls, content: bytes, session: bytes, place: int | None = None) -> Self:
        """Return the message, if it is of this round and, where one is given, of this client.

        Raises:
            MessageError: If it is not.
        """
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
    place: int = place_form()
    sealing: bytes = fixed(32)
    masking: bytes = fixed(32)
    commitment: bytes = fixed(32)
    signature: bytes = fixed(64)

    @property
    def signed(self) -> bytes:
        return self.content()[:-64]


@dataclass(frozen=True)
class KeysOfNeighbours(InRound):
    """The keys of those neighbours that have sent any."""

    kind = 3
    keys: tuple[Keys, ...] = many(Keys)


@dataclass(frozen=True)
class Parcel(Entry):
    """Two shares, sealed; `place` is the holder's on the way up, the dealer's on the way down."""

    place: int = place_form()
    sealed: bytes = fixed(SEALED)
    self_mark: bytes = fixed(MARK)
    masking_mark: bytes = fixed(MARK)


@dataclass(frozen=True)
class Shares(InRound):
    """What a client deals to its neighbours."""

    kind = 4
    place: int = place_form()
    parcels: tuple[Parcel, ...] = many(Parcel)


@dataclass(frozen=True)
class SharesForOne(Shares):
    """What a client's neighbours have dealt to it."""

    kind = 5


@dataclass(frozen=True)
class Partners(Entry):
    """With whom a client has masked its upload: a bit for each of its neighbours, signed."""

    place: int = place_form()
    partners: bytes = blob(_MOST_PARTNERS)
    signature: bytes = fixed(64)

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
    place: int = place_form()
    partners: bytes = blob(_MOST_PARTNERS)
    signature: bytes = fixed(64)
    values: bytes = blob(MOST_COORDINATES * 8)


@dataclass(frozen=True)
class Survivors(InRound):
    """Whose uploads the sum is to have."""

    kind = 7
    places: frozenset[int] = places_form()


@dataclass(frozen=True)
class Signature(InRound):
    """A witness's signature under a message `Survivors`."""

    kind = 8
    place: int = place_form()
    signature: bytes = fixed(64)


@dataclass(frozen=True)
class Opening(InRound):
    """Whose uploads the sum is to have, who has signed it, and the partners of neighbours."""

    kind = 9
    places: frozenset[int] = places_form()
    signatures: tuple[Signature, ...] = many(Signature)
    partners: tuple[Partners, ...] = many(Partners)


@dataclass(frozen=True)
class Share(Entry):
    """A share that is revealed: of the self mask of who is in the sum, else of the masking key."""

    place: int = place_form()
    share: bytes = fixed(SEED)


@dataclass(frozen=True)
class Opened(InRound):
    """The seed of a client's own self mask, and one share of each of its partners."""

    kind = 10
    place: int = place_form()
    seed: bytes = fixed(SEED)
    shares: tuple[Share, ...] = many(Share)
