"""Members of a round in memory, and a server that asks them: what the tests of it share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bgtplanner.errors import MessageError
from bgtplanner.federation.aggregation.client import Client, Policy
from bgtplanner.federation.aggregation.messages import STEPS, Request
from bgtplanner.federation.aggregation.roster import Roster
from bgtplanner.federation.aggregation.server import Server, Sum


class Memory(dict[str, bytes]):
    """A store without a disk."""

    def load(self, key: str) -> bytes | None:
        return self.get(key)

    def save(self, key: str, content: bytes) -> None:
        self[key] = content


def identity(number: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"%d" % number).digest())


def roster_of(identities: list[Ed25519PrivateKey]) -> Roster:
    return Roster(
        tuple(f"client {place}" for place in range(len(identities))),
        tuple(one.public_key().public_bytes_raw() for one in identities),
    )


@dataclass
class Members:
    """Clients that are enrolled, and the round that they are asked for."""

    size: int
    dropouts: int = 1
    colluders: int = 1
    bits: int = 32
    coordinates: int = 3
    kind: type[Client] = Client
    server_kind: type[Server] = Server
    smallest: int = 3
    round: int = 0

    def __post_init__(self) -> None:
        self.identities = [identity(place) for place in range(self.size)]
        self.roster = roster_of(self.identities)
        self.request = self.request_for(range(self.size))
        self.policy = Policy(self.smallest, min(self.colluders, self.smallest - 2))
        self.stores = [Memory() for _ in range(self.size)]
        rng = np.random.default_rng(self.size)
        self.values = rng.integers(-1000, 1000, (self.size, self.coordinates))
        self.refused: dict[int, str] = {}  # why the server takes no answer of a client's
        self.sent: dict[tuple[str, int], bytes] = {}
        self.got: dict[tuple[str, int], bytes] = {}

    def request_for(self, places: Collection[int], **changes: Any) -> Request:
        entries = {
            "run": "run", "round": self.round, "roster": self.roster.digest,
            "members": frozenset(places), "bits": self.bits, "size": self.coordinates,
            "dropouts": self.dropouts, "colluders": self.colluders, "context": bytes(32),
        }  # fmt: skip
        return Request(**{**entries, **changes})

    def client(self, place: int) -> Client:
        """The client as it is after a restart."""
        return self.kind(
            self.request, self.roster, self.identities[place], self.policy, self.stores[place]
        )

    def answer(self, step: str, place: int, message: bytes) -> bytes:
        return self.client(place).answer(step, message, lambda: self.values[place])

    def play(
        self,
        drops: Mapping[str, Collection[int]] | None = None,
        change: Callable[[str, int, bytes], bytes] | None = None,
        until: str | None = None,
    ) -> Server:
        """Play the steps; a member that drops out at a step stays away. Returns the server."""
        server = self.server_kind(self.request, self.roster)
        messages, gone = dict.fromkeys(self.request.members, b""), set[int]()
        for step in STEPS:
            if step == until:
                self.got |= {(step, place): message for place, message in messages.items()}
                break
            gone |= set((drops or {}).get(step, ()))
            for place, message in messages.items():
                self.got[step, place] = message
                if place in gone:
                    continue
                answer = self.answer(step, place, message)
                self.sent[step, place] = answer
                try:
                    server.receive(place, change(step, place, answer) if change else answer)
                except MessageError as error:
                    self.refused[place] = str(error)
            messages = server.close_step()
        return server

    def plain(self, places: Collection[int], bits: int | None = None) -> Any:
        """The sum of their integers, without any of this."""
        total = self.values[sorted(places)].astype(object).sum(axis=0)
        return (total % (1 << (bits or self.bits))).astype(np.uint64)

    def check(self, found: Sum) -> None:
        assert found.values.tolist() == self.plain(found.places).tolist()
