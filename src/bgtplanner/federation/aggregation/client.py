"""A client's part in a round.

Each step first notes that it has begun, then does its work, then stores its secrets together with
its answer; only then is the answer handed out. Asked again with the same bytes, the client repeats
a stored answer byte for byte. A step that has begun and has no answer is never done again, so that
no upload is masked twice. If the two entries of the store do not fit together, because of a crash
or a loss, the client takes no further part in the round; a store that is set back as a whole is
for the caller's ledger to notice. Whatever does not fit ends the round with a `MessageError`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NoReturn, Protocol

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from numpy.typing import NDArray

from bgtplanner.errors import ConfigError, MessageError
from bgtplanner.federation.aggregation import keys, masks, messages, wire
from bgtplanner.federation.aggregation.messages import STEPS
from bgtplanner.federation.aggregation.neighbourhood import Ring
from bgtplanner.federation.aggregation.roster import Roster

_ONLY_WITNESSES_SIGN = STEPS.index("upload") + 1, STEPS.index("open") + 1
_OVER = 255  # in place of a step; steps are counted from 1

Values = Callable[[], NDArray[np.integer]]


class Store(Protocol):
    """Where a client keeps a round: durable when `save` returns. What it holds is secret."""

    def load(self, key: str) -> bytes | None:
        """Return what was saved last under this key, if anything was."""

    def save(self, key: str, content: bytes) -> None:
        """Replace what is under this key, as a whole or not at all."""


@dataclass(frozen=True)
class Policy:
    """What a client insists on: the fewest in a sum, and how many may collude with the server."""

    smallest_group: int
    colluders: int

    def __post_init__(self) -> None:
        if self.colluders < 0 or self.smallest_group < self.colluders + 2:
            raise ConfigError(
                f"a smallest group of {self.smallest_group} and {self.colluders} colluders: at "
                "least two of a group must be left when its colluders are taken away"
            )


@dataclass(frozen=True)
class _Answer(wire.Entry):
    """What a step was asked (a digest) and what it has answered; `place` is the step."""

    place: int = wire.number(len(STEPS), 1)
    asked: bytes = wire.fixed(32)
    answer: bytes = wire.blob(1 << 31)


@dataclass(frozen=True)
class _Held(wire.Entry):
    """The two shares that a neighbour has dealt to this client."""

    place: int = wire.place_form()
    of_self: bytes = wire.fixed(keys.SEED)
    of_masking: bytes = wire.fixed(keys.SEED)


@dataclass(frozen=True)
class _State(wire.Message):
    """All that a client keeps between two steps; secret."""

    kind = 100
    self_seed: bytes = wire.fixed(keys.SEED)
    masking_seed: bytes = wire.fixed(keys.SEED)
    sealing: bytes = wire.fixed(32)
    neighbours: tuple[messages.Keys, ...] = wire.many(messages.Keys)
    held: tuple[_Held, ...] = wire.many(_Held)
    survivors: frozenset[int] = wire.places_form()
    answers: tuple[_Answer, ...] = wire.many(_Answer)

    @property
    def step(self) -> int:
        """The last step that was answered, counted from 1; 0 before the first."""
        return self.answers[-1].place if self.answers else 0

    @property
    def partners(self) -> frozenset[int]:
        """The neighbours whose shares this client holds: it masks its upload with each of them."""
        return frozenset(held.place for held in self.held)

    @property
    def sealing_key(self) -> X25519PrivateKey:
        """The key with which neighbours have sealed the shares that they deal to this client."""
        return X25519PrivateKey.from_private_bytes(self.sealing)


def _nothing(answers: tuple[_Answer, ...] = ()) -> _State:
    """Return a state without secrets."""
    none = bytes(keys.SEED)
    return _State(none, none, bytes(32), (), (), frozenset(), answers)


class Client:
    """One client in one round; it may be made anew for each step, as all it needs is stored.

    Raises:
        MessageError: If the request is not one that it takes part in.
    """

    def __init__(
        self, request: messages.Request, roster: Roster, identity: Ed25519PrivateKey,
        policy: Policy, store: Store,
    ) -> None:  # fmt: skip
        self.request, self._roster, self._identity = request, roster, identity
        self._policy, self._store, self._session = policy, store, request.session
        self.place = roster.place(keys.public_bytes(identity))
        name = f"{len(request.run.encode())} {request.run} {request.round}"
        self._name = hashlib.sha256(name.encode()).hexdigest()[:32]
        begun = store.load(f"{self._name}-begun")
        self.begun = begun is not None  # whether a step of the round was taken before
        if begun is not None and begun[:-1] != self._session:
            self._end("this round was asked before, with other parameters")
        self._check_request()
        try:
            self._ring = Ring(request.members, self._session, request.dropouts, request.colluders)
        except ConfigError as error:
            self._end(str(error), error)
        self._neighbours = self._ring.neighbours(self.place)

    def answer(self, step: str, message: bytes, values: Values) -> bytes:
        """Return the answer to what the server has sent for a step: nothing for the first.

        `values` makes the integers of the upload. It is called once at most, when everything else
        is in order, and is the place to pay for the round. If it raises, the round is over here.

        That the step has begun is on disk before any of its work, and the answer before it
        leaves; it is repeated to a repeated message. So a client that is killed in between takes
        no further part, and never does a step twice.
        """
        message = b"" if step == "keys" else message
        place, state, asked = STEPS.index(step) + 1, self._load(), hashlib.sha256(message).digest()
        for known in state.answers:
            if (known.place, known.asked) == (place, asked):
                return known.answer
        if place <= state.step:
            self._end("a step is asked for a second time, with another message")
        if place != state.step + 1 and (state.step, place) != _ONLY_WITNESSES_SIGN:
            self._end("the steps of a round are out of order")
        self._store.save(f"{self._name}-begun", self._session + bytes([place]))
        more = (values,) if step == "upload" else ()
        try:
            state, answer = getattr(self, f"_do_{step}")(state, message, *more)
        except MessageError as error:
            self._end(str(error), error)
        content: bytes = answer.to_bytes()
        state = replace(state, answers=(*state.answers, _Answer(place, asked, content)))
        self._store.save(f"{self._name}-state", state.to_bytes())
        return content

    def _load(self) -> _State:
        """Return what is stored of the round, or end it if the two entries do not fit together."""
        begun, kept = (self._store.load(f"{self._name}-{part}") for part in ("begun", "state"))
        if begun is None and kept is None:
            return _nothing()
        if begun is None or kept is None:
            self._end("what was stored of it is lost in part, or a step was begun and not done")
        state = _State.from_bytes(kept)
        if state.step != begun[-1]:
            self._end("it is over for this client, or what was stored of it is not the newest")
        return state

    def _end(self, why: str, cause: Exception | None = None) -> NoReturn:
        """End the round for this client, durably, and say why in the error."""
        self._store.save(f"{self._name}-begun", self._session + bytes([_OVER]))
        raise MessageError(
            f"round {self.request.round} of secure aggregation: {why}; this client takes no "
            "further part in the round"
        ) from cause

    # ---- the steps

    def _check_request(self) -> None:
        """End the round unless the policy agrees to it and it is of this client's own roster."""
        request, policy, roster = self.request, self._policy, self._roster
        fewest, known = len(request.members) - request.dropouts, set(range(len(roster)))
        for fits, why in (
            (request.roster == roster.digest, "it is for another roster than this client's"),
            (request.members <= known, "a member is not in the roster"),
            (self.place in request.members, "this client is not one of its members"),
            (fewest >= policy.smallest_group, "its sum may be of fewer than smallest_group"),
            (request.colluders >= policy.colluders, "it protects from too few colluders"),
        ):
            if not fits:
                self._end(why)

    def _do_keys(self, state: _State, _: bytes) -> tuple[_State, messages.Keys]:
        """Draw the secrets of the round; answer with the public keys, signed.

        The self seed is bound by its commitment, so that no other one can be opened later.
        """
        self_seed, masking_seed = os.urandom(keys.SEED), os.urandom(keys.SEED)
        sealing = X25519PrivateKey.generate()
        unsigned = messages.Keys(
            self._session,
            self.place,
            keys.public_bytes(sealing),
            keys.public_bytes(keys.masking_key(masking_seed, self._session, self.place)),
            keys.commitment(self_seed, self._session, self.place),
            bytes(64),
        )
        signature = keys.sign(self._identity, self._session, "keys", unsigned.signed)
        state = replace(
            state, self_seed=self_seed, masking_seed=masking_seed,
            sealing=sealing.private_bytes_raw(),
        )  # fmt: skip
        return state, replace(unsigned, signature=signature)

    def _do_shares(self, state: _State, message: bytes) -> tuple[_State, messages.Shares]:
        """Check the neighbours' keys, and deal each of them a sealed share of both seeds."""
        got = messages.KeysOfNeighbours.of(message, self._session)
        for other in got.keys:
            if other.session != self._session or other.place not in self._neighbours:
                raise MessageError("keys of another round, or of a client that is not a neighbour")
            self._verify(other.place, other.signature, "keys", other.signed)
        self._check_enough(len(got.keys), "neighbours with keys")
        degree, threshold = self._ring.degree, self._ring.threshold
        of_self = keys.split(state.self_seed, threshold, degree)
        of_masking = keys.split(state.masking_seed, threshold, degree)
        parcels = []
        for other in got.keys:
            index, ends = self._neighbours.index(other.place), (self.place, other.place)
            both = of_self[index], of_masking[index]
            sealed = keys.seal(
                state.sealing_key, other.sealing, self._session, ends, b"".join(both)
            )
            parcels.append(messages.Parcel(other.place, sealed, *self._marks(both, ends)))
        answer = messages.Shares(self._session, self.place, tuple(parcels))
        return replace(state, neighbours=got.keys), answer

    def _marks(self, shares: tuple[bytes, bytes], ends: tuple[int, int]) -> tuple[bytes, bytes]:
        """Return what the dealer tells the server of a seed's share and of a key's share."""
        kinds = zip(shares, ("self", "masking"), strict=True)
        one, two = (keys.mark(share, self._session, kind, *ends) for share, kind in kinds)
        return one, two

    def _do_upload(
        self, state: _State, message: bytes, values: Values
    ) -> tuple[_State, messages.Upload]:
        """Return the upload under the self mask and one mask per neighbour that dealt shares.

        Everything is checked before the values are asked for, since asking for them is what pays.
        """
        got = messages.SharesForOne.of(message, self._session, self.place)
        known = {other.place: other for other in state.neighbours}
        if not {parcel.place for parcel in got.parcels} <= set(known):
            raise MessageError("shares from a client whose keys are unknown")
        held = []
        for parcel in got.parcels:
            # A dealer whose shares are wrong is left out, as if it had dropped out: it must not
            # be able to end the round for its neighbours.
            with contextlib.suppress(MessageError):
                held.append(self._unseal(state, known[parcel.place].sealing, parcel))
        state = replace(state, held=tuple(held))
        self._check_enough(len(held), "neighbours with shares")
        masking = keys.masking_key(state.masking_seed, self._session, self.place)
        pairs = {
            other: keys.pair_key(masking, known[other].masking, self._session, self.place, other)
            for other in state.partners
        }
        vector, size = values(), self.request.size
        if vector.shape != (size,) or not np.issubdtype(vector.dtype, np.integer):
            found = f"shape {vector.shape} and type {vector.dtype}"
            raise ConfigError(f"an upload of {found}; expected {size} integers")
        # Masks come after that: until then the size is only what the server says.
        total = masks.mask(keys.self_key(state.self_seed, self._session, self.place), size)
        for other, key in pairs.items():
            pair = masks.mask(key, size)
            total = total + pair if self.place < other else total - pair
        masked = masks.reduced(total + vector.astype(np.uint64), self.request.bits)
        partners = messages.Partners.bits(self._neighbours, state.partners)
        signature = keys.sign(self._identity, self._session, "partners", partners)
        packed = masks.pack(masked, self.request.bits)
        return state, messages.Upload(self._session, self.place, partners, signature, packed)

    def _unseal(self, state: _State, other: bytes, parcel: messages.Parcel) -> _Held:
        """Return the shares in a parcel, if they are those of which the dealer told the server."""
        ends = (parcel.place, self.place)
        both = keys.unseal(state.sealing_key, other, self._session, ends, parcel.sealed)
        shares = both[: keys.SEED], both[keys.SEED :]
        if self._marks(shares, ends) != (parcel.self_mark, parcel.masking_mark):
            raise MessageError("shares that are not those of which the dealer told the server")
        return _Held(parcel.place, *shares)

    def _do_sign(self, state: _State, message: bytes) -> tuple[_State, messages.Signature]:
        """Sign who is in the sum, as a witness; a client signs one set of survivors only."""
        got = messages.Survivors.of(message, self._session)
        if self.place not in self._ring.witnesses:
            raise MessageError("this client is not a witness of the round")
        self._check_survivors(state, got.places)
        signature = keys.sign(self._identity, self._session, "survivors", message)
        answer = messages.Signature(self._session, self.place, signature)
        return replace(state, survivors=got.places), answer

    def _do_open(self, state: _State, message: bytes) -> tuple[_State, messages.Opened]:
        """Reveal the own self seed and one share of each partner if enough witnesses signed.

        The share is of the self mask of a partner that is in the sum, and of the pairwise
        masks of one that is not: never both, which would take all masks off an upload.
        """
        got = messages.Opening.of(message, self._session)
        self._check_survivors(state, got.places)
        if state.survivors and state.survivors != got.places:
            raise MessageError("other survivors than those that this client has signed")
        self._check_witnesses(got)
        self._check_partners(got)
        shares = tuple(
            messages.Share(of.place, of.of_self if of.place in got.places else of.of_masking)
            for of in state.held
        )
        answer = messages.Opened(self._session, self.place, state.self_seed, shares)
        # The last step needs no secret after it: whoever takes the store later finds none.
        return replace(_nothing(state.answers), survivors=got.places), answer

    def _check_survivors(self, state: _State, survivors: frozenset[int]) -> None:
        """Refuse survivors who are too few, or among whom this client's masks would not cancel."""
        request, near = self.request, survivors & set(self._neighbours)
        if not survivors <= request.members:
            raise MessageError("a survivor is not a member of the round")
        if self.place not in survivors:
            raise MessageError("this client is not among the survivors")
        fewest = max(len(request.members) - request.dropouts, self._policy.smallest_group)
        if len(survivors) < fewest:
            raise MessageError(f"{len(survivors)} survivors; at least {fewest} were agreed")
        if not near <= state.partners:
            raise MessageError("a survivor with whom this client has not masked its upload")
        self._check_enough(len(near), "surviving neighbours")

    def _check_witnesses(self, opening: messages.Opening) -> None:
        """There is one set of survivors that enough witnesses sign, and this is the one."""
        signed = messages.Survivors(self._session, opening.places).to_bytes()
        for one in opening.signatures:
            surviving = one.place in self._ring.witnesses & opening.places
            if one.session != self._session or not surviving:
                raise MessageError("the signature of a client that is not a surviving witness")
            self._verify(one.place, one.signature, "survivors", signed)
        self._check_enough(len(opening.signatures), "signatures of witnesses")

    def _check_partners(self, opening: messages.Opening) -> None:
        """A neighbour's self mask is opened only if this client's mask is on its upload, too."""
        near = opening.places & set(self._neighbours)
        if {other.place for other in opening.partners} != near:
            raise MessageError("the partners of other clients than the surviving neighbours")
        for other in opening.partners:
            self._verify(other.place, other.signature, "partners", other.partners)
            if self.place not in other.among(self._ring.neighbours(other.place)):
                raise MessageError("a surviving neighbour has not masked its upload with this one")

    def _check_enough(self, found: int, what: str) -> None:
        """Refuse fewer than the threshold: colluders alone could then be enough."""
        if found < self._ring.threshold:
            raise MessageError(f"{found} {what}; at least {self._ring.threshold} are needed")

    def _verify(self, place: int, signature: bytes, label: str, content: bytes) -> None:
        """Refuse what the client in a place of the roster has not signed."""
        keys.verify(self._roster.keys[place], signature, self._session, label, content)
