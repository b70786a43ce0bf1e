"""The server's part in a round: it carries messages from client to client, and unmasks the sum.

It is not trusted with any client's integers, but with finishing the round. Members that are late,
silent or wrong are left out where possible; a sum that does not fit is never returned.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from bgtplanner.errors import ConfigError, MessageError
from bgtplanner.federation.aggregation import keys, masks, messages, wire
from bgtplanner.federation.aggregation.messages import STEPS
from bgtplanner.federation.aggregation.neighbourhood import Ring
from bgtplanner.federation.aggregation.roster import Roster


class Sum(NamedTuple):
    """The sum of integers modulo 2^bits, and the places of exactly those whose are in it."""

    values: NDArray[np.uint64]
    places: frozenset[int]


class Server:
    """The server in one round.

    Ask every place in `waiting` for its answer to the step's message (the first is the request
    itself), hand the answers to :meth:`receive`, and close the step when nobody else is to be
    waited for; after the last step, :meth:`finish`.

    Attributes:
        step: The step that answers are taken for; None when all are closed.
        waiting: Who has been asked and has not answered.
    """

    def __init__(self, request: messages.Request, roster: Roster) -> None:
        if request.roster != roster.digest or max(request.members, default=0) >= len(roster):
            raise ConfigError("the request names another roster, or members that are not in it")
        self.request, self._roster, self._session = request, roster, request.session
        self._ring = Ring(request.members, self._session, request.dropouts, request.colluders)
        self.step: str | None = STEPS[0]
        self.waiting = set(request.members)
        self._keys: dict[int, messages.Keys] = {}
        self._dealt: dict[int, dict[int, messages.Parcel]] = {}
        self._uploads: dict[int, tuple[messages.Upload, frozenset[int]]] = {}
        self._signed_partners: dict[int, messages.Partners] = {}
        self._survivors: frozenset[int] = frozenset()
        self._signatures: dict[int, messages.Signature] = {}
        self._opened: dict[int, messages.Opened] = {}

    def receive(self, place: int, content: bytes) -> None:
        """Take the answer to the step that comes from a place, as the connection says.

        Raises:
            MessageError: If it is wrong, or nobody asked; the round goes on without it.
        """
        if place not in self.waiting or self.step is None:
            raise MessageError(f"client {place} was not asked, or has answered this step already")
        self.waiting.discard(place)
        getattr(self, f"_take_{self.step}")(place, content)

    def close_step(self) -> dict[int, bytes]:
        """Stop waiting; return what to send to whom in the next step (nothing after the last).

        Raises:
            MessageError: If too few members are left; the round has failed.
        """
        closed, self.waiting = self.step, set()
        if closed is None:
            raise ConfigError("all steps of this round are closed")
        later = STEPS.index(closed) + 1
        self.step = None  # if closing fails, nothing more is taken
        found: dict[int, wire.Message] = getattr(self, f"_close_{closed}")()
        if later < len(STEPS):
            self.step, self.waiting = STEPS[later], set(found)
        return {place: message.to_bytes() for place, message in found.items()}

    def finish(self) -> Sum:
        """Return the sum, and who is in it.

        Raises:
            MessageError: If too few have answered, or a secret is not what was announced.
        """
        if self.step is not None or len(self._opened) == 0:
            raise ConfigError("the round has not come to its last step, or has failed")
        request, session, size = self.request, self._session, self.request.size
        total, gone = np.zeros(size, np.uint64), set[int]()
        for place in self._survivors:
            upload, partners = self._uploads[place]
            total += masks.unpack(upload.values, size, request.bits)
            total -= masks.mask(keys.self_key(self._self_seed(place), session, place), size)
            gone |= partners - self._survivors
        for missing in gone:
            masking = self._masking_key(missing)
            for place in self._survivors:
                if missing in self._uploads[place][1]:
                    other = self._keys[place].masking
                    pair = masks.mask(keys.pair_key(masking, other, session, missing, place), size)
                    total = total - pair if place < missing else total + pair
        return Sum(masks.reduced(total, request.bits), self._survivors)

    # ---- what is taken

    def _take_keys(self, place: int, content: bytes) -> None:
        """Take signed keys; those with which every exchange is zero are refused."""
        got = messages.Keys.of(content, self._session, place)
        self._verify(place, got.signature, "keys", got.signed)
        for public in (got.sealing, got.masking):  # refuses keys with which all exchanges are zero
            keys.pair_key(X25519PrivateKey.generate(), public, self._session, place, place)
        self._keys[place] = got

    def _take_shares(self, place: int, content: bytes) -> None:
        """Take the shares that a client deals: one parcel for each neighbour with keys."""
        got = messages.Shares.of(content, self._session, place)
        parcels = {parcel.place: parcel for parcel in got.parcels}
        if set(parcels) != self._near(place, self._keys):
            raise MessageError("shares for others than the neighbours whose keys were sent")
        self._dealt[place] = parcels

    def _take_upload(self, place: int, content: bytes) -> None:
        """Take a masked upload, masked with neighbours that have dealt shares and no others."""
        got = messages.Upload.of(content, self._session, place)
        masks.unpack(got.values, self.request.size, self.request.bits)
        self._verify(place, got.signature, "partners", got.partners)
        partners = messages.Partners(place, got.partners, got.signature)
        among = partners.among(self._ring.neighbours(place))
        if not among <= self._near(place, self._dealt):
            raise MessageError("an upload that is masked with a client that has dealt no shares")
        self._uploads[place], self._signed_partners[place] = (got, among), partners

    def _take_sign(self, place: int, content: bytes) -> None:
        """Take the signature of a witness under the survivors as they were sent."""
        got = messages.Signature.of(content, self._session, place)
        signed = messages.Survivors(self._session, self._survivors).to_bytes()
        self._verify(place, got.signature, "survivors", signed)
        self._signatures[place] = got

    def _take_open(self, place: int, content: bytes) -> None:
        """Take a client's self seed and its shares of its partners' secrets.

        The dealers' marks say which shares are right, so that a wrong one is its sender's fault.
        """
        got = messages.Opened.of(content, self._session, place)
        if keys.commitment(got.seed, self._session, place) != self._keys[place].commitment:
            raise MessageError("a seed that is not the one it has committed to")
        if {share.place for share in got.shares} != self._uploads[place][1]:
            raise MessageError("shares of others than its partners")
        for share in got.shares:
            dealt = self._dealt[share.place][place]
            kind, expected = "masking", dealt.masking_mark
            if share.place in self._survivors:
                kind, expected = "self", dealt.self_mark
            if keys.mark(share.share, self._session, kind, share.place, place) != expected:
                raise MessageError(f"a wrong share of client {share.place}")
        self._opened[place] = got

    # ---- what follows from it

    def _close_keys(self) -> dict[int, wire.Message]:
        """Return the keys of each client's neighbours."""
        self._check_enough(len(self._keys), "have sent keys")
        found = dict[int, wire.Message]()
        for place in self._keys:
            near = tuple(self._keys[other] for other in sorted(self._near(place, self._keys)))
            found[place] = messages.KeysOfNeighbours(self._session, near)
        return found

    def _close_shares(self) -> dict[int, wire.Message]:
        """Return to each client what its neighbours have dealt to it."""
        self._check_enough(len(self._dealt), "have dealt shares")
        found = dict[int, wire.Message]()
        for place in self._dealt:
            near = sorted(self._near(place, self._dealt))
            parcels = [replace(self._dealt[dealer][place], place=dealer) for dealer in near]
            found[place] = messages.SharesForOne(self._session, place, tuple(parcels))
        return found

    def _close_upload(self) -> dict[int, wire.Message]:
        """Fix the survivors, and return them to the witnesses among them."""
        self._survivors = self._consistent(set(self._uploads))
        self._check_enough(len(self._survivors), "have sent uploads that fit together")
        message = messages.Survivors(self._session, self._survivors)
        return dict.fromkeys(self._ring.witnesses & self._survivors, message)

    def _close_sign(self) -> dict[int, wire.Message]:
        """Return to each survivor what it needs to see before it opens anything."""
        threshold = self._ring.threshold
        if len(self._signatures) < threshold:
            raise MessageError(f"{len(self._signatures)} witnesses signed; {threshold} are needed")
        signatures = tuple(signature for _, signature in sorted(self._signatures.items()))
        found = dict[int, wire.Message]()
        for place in self._survivors:
            near = sorted(self._near(place, self._survivors))
            partners = tuple(self._signed_partners[other] for other in near)
            found[place] = messages.Opening(
                self._session, self._survivors, signatures[:threshold], partners
            )
        return found

    def _close_open(self) -> dict[int, wire.Message]:
        """Check that there is anything to unmask with; nobody is asked for more."""
        if not self._opened:
            raise MessageError("nobody has opened anything")
        return {}

    def _consistent(self, survivors: set[int]) -> frozenset[int]:
        """Return those among them whose uploads can be unmasked together.

        Two neighbours must both have masked with each other. Where only one has, one of them is
        wrong, and nobody can tell which: the one that disagrees with most others has to go.
        """
        while True:
            partners = {place: self._uploads[place][1] for place in survivors}
            apart = {
                place: sum(
                    other not in partners[place] or place not in partners[other]
                    for other in self._near(place, survivors)
                )
                for place in survivors
            }
            worst = max(sorted(apart), key=lambda place: apart[place], default=None)
            if worst is not None and apart[worst] > 0:
                survivors = survivors - {worst}
                continue
            lost = set[int]()
            for place in self._dealt:  # whose secrets cannot be opened, alone or as a partner
                holders = {
                    other for other in self._near(place, survivors) if place in partners[other]
                }
                if len(holders) < self._ring.threshold:
                    lost |= (holders | {place}) & survivors
            if not lost:
                return frozenset(survivors)
            survivors = survivors - lost

    def _self_seed(self, place: int) -> bytes:
        """Return the seed of a self mask, opened or put together; it must fit what was bound."""
        if place in self._opened:
            return self._opened[place].seed
        seed = self._reconstruct(place)
        if keys.commitment(seed, self._session, place) != self._keys[place].commitment:
            raise MessageError(f"client {place} has dealt shares of another seed than its own")
        return seed

    def _masking_key(self, place: int) -> X25519PrivateKey:
        """Return the key of the pairwise masks of a client that is missing from the sum."""
        key = keys.masking_key(self._reconstruct(place), self._session, place)
        if keys.public_bytes(key) != self._keys[place].masking:
            raise MessageError(f"client {place} has dealt shares of another key than its own")
        return key

    def _reconstruct(self, place: int) -> bytes:
        """Return a secret of a client from the shares that its neighbours have opened."""
        shares = {
            index: share.share
            for index, holder in enumerate(self._ring.neighbours(place))
            if holder in self._opened
            for share in self._opened[holder].shares
            if share.place == place
        }
        return keys.combine(shares, self._ring.threshold)

    def _near(self, place: int, here: Collection[int]) -> set[int]:
        """Return a client's neighbours among some clients."""
        return {other for other in self._ring.neighbours(place) if other in here}

    def _check_enough(self, found: int, what: str) -> None:
        """Refuse to go on with more missing than the request states."""
        fewest = len(self.request.members) - self.request.dropouts
        if found < fewest:
            raise MessageError(f"{found} of {len(self.request.members)} {what}; {fewest} must")

    def _verify(self, place: int, signature: bytes, label: str, content: bytes) -> None:
        """Refuse what the client in a place of the roster has not signed."""
        keys.verify(self._roster.keys[place], signature, self._session, label, content)
