"""A server, and clients on its side, that want more from secure aggregation than the sum.

Each attack is played against clients (or a server) with the defence, and without it, where it
gives the attacker a single client's integers, the sum of a part, or a wrong sum that is accepted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from bgtplanner.errors import ConfigError, MessageError
from bgtplanner.federation.aggregation import keys, masks, neighbourhood
from bgtplanner.federation.aggregation.client import Client, Policy, _State
from bgtplanner.federation.aggregation.messages import (
    Keys,
    KeysOfNeighbours,
    Opened,
    Opening,
    Parcel,
    Partners,
    Shares,
    SharesForOne,
    Signature,
    Survivors,
    Upload,
)
from bgtplanner.federation.aggregation.neighbourhood import Ring
from bgtplanner.federation.aggregation.server import Server
from federation.aggregation.members import Members, Memory, identity, roster_of

# ---- what an attacker makes of what it has


def ring_of(members: Members) -> Ring:
    request = members.request
    return Ring(request.members, request.session, request.dropouts, request.colluders)


def take_off(
    members: Members, place: int, self_seed: bytes, pairs: Mapping[int, tuple[Any, bytes]]
) -> list[int]:
    """A client's integers: its upload without the masks; `pairs` are keys of either side."""
    request = members.request
    upload = Upload.from_bytes(members.sent["upload", place])
    total = masks.unpack(upload.values, request.size, request.bits)
    total = total - masks.mask(keys.self_key(self_seed, request.session, place), request.size)
    for other in Partners(place, upload.partners, b"").among(ring_of(members).neighbours(place)):
        key = keys.pair_key(*pairs[other], request.session, place, other)
        pair = masks.mask(key, request.size)
        total = total - pair if place < other else total + pair
    return masks.reduced(total, request.bits).tolist()  # type: ignore[no-any-return]


def public(members: Members, place: int) -> Keys:
    return Keys.from_bytes(members.sent["keys", place])


def opened_key(members: Members, answers: Iterable[Opened], place: int) -> X25519PrivateKey:
    """A client's private key of the pairwise masks, from shares of it."""
    ring, holders = ring_of(members), {answer.place: answer for answer in answers}
    shares = {
        index: share.share
        for index, holder in enumerate(ring.neighbours(place))
        if holder in holders
        for share in holders[holder].shares
        if share.place == place
    }
    seed = keys.combine(shares, ring.threshold)
    key = keys.masking_key(seed, members.request.session, place)
    assert keys.public_bytes(key) == public(members, place).masking
    return key


def opening(
    members: Members, place: int, survivors: Collection[int], signatures: Iterable[Signature]
) -> bytes:
    near = sorted(set(ring_of(members).neighbours(place)) & set(survivors))
    uploads = [Upload.from_bytes(members.sent["upload", other]) for other in near]
    partners = tuple(Partners(one.place, one.partners, one.signature) for one in uploads)
    ordered = tuple(sorted(signatures, key=lambda one: one.place))
    return Opening(members.request.session, frozenset(survivors), ordered, partners).to_bytes()


def plain(members: Members, place: int) -> list[int]:
    return members.plain([place]).tolist()  # type: ignore[no-any-return]


# ---- claiming that a client has dropped out, to everybody but itself


class AsksNoWitnesses(Client):
    def _check_witnesses(self, opening: Opening) -> None:
        pass


def claim_a_dropout(kind: type[Client], told: Mapping[int, bool]) -> bool:
    """Whether the server gets one client's integers; `told`: which witnesses sign the true set."""
    members = Members(5, dropouts=1, colluders=1, kind=kind)
    members.play(until="sign")
    session, everybody = members.request.session, members.request.members
    ring, target = ring_of(members), 4
    colluder = min(ring.witnesses - {target})
    sets = (everybody, everybody - {target})
    signatures: tuple[list[Signature], list[Signature]] = ([], [])
    for witness in sorted(ring.witnesses):
        for which, survivors in enumerate(sets):
            message = Survivors(session, survivors).to_bytes()
            if witness == colluder:
                signed = keys.sign(identity(witness), session, "survivors", message)
                signatures[which].append(Signature(session, witness, signed))
            elif which == (0 if witness == target else int(told[witness])):
                answer = members.answer("sign", witness, message)
                signatures[which].append(Signature.from_bytes(answer))
    answers = {}
    for place in everybody:
        which = 0 if place == target else 1
        if place == colluder:
            members.kind = AsksNoWitnesses
        try:
            message = opening(members, place, sets[which], signatures[which])
            answers[place] = Opened.from_bytes(members.answer("open", place, message))
        except MessageError:
            continue
        finally:
            members.kind = kind
    if target not in answers:
        return False
    try:
        key = opened_key(members, answers.values(), target)
    except MessageError:
        return False
    pairs = {other: (key, public(members, other).masking) for other in everybody - {target}}
    return take_off(members, target, answers[target].seed, pairs) == plain(members, target)


def test_no_claim_of_dropouts_unmasks_a_client() -> None:
    for told in product([False, True], repeat=4):
        assert not claim_a_dropout(Client, dict(enumerate(told)))


def test_without_witnesses_a_claimed_dropout_unmasks_a_client() -> None:
    assert claim_a_dropout(AsksNoWitnesses, dict.fromkeys(range(4), True))


# ---- a roster of the server's own making


class TakesAnyRoster(Client):
    def _check_request(self) -> None:
        pass


def surround(kind: type[Client]) -> bool:
    """Whether a client masks its integers with clients that the server has invented."""
    members = Members(5, kind=kind)
    true = members.roster
    members.identities[1:] = [identity(100 + place) for place in range(1, 5)]
    members.roster = roster_of(members.identities)
    members.request = members.request_for(range(5))
    try:
        store = members.stores[0]
        client = kind(members.request, true, members.identities[0], members.policy, store)
        client.answer("keys", b"", lambda: members.values[0])
    except MessageError:
        return False
    members.play(until="sign")
    states = {place: state_of(members, place) for place in range(1, 5)}
    session = members.request.session
    shares = {
        ring_of(members).neighbours(0).index(place): held.of_self
        for place, state in states.items()
        for held in state.held
        if held.place == 0
    }
    seed = keys.combine(shares, ring_of(members).threshold)
    pairs = {
        place: (keys.masking_key(state.masking_seed, session, place), public(members, 0).masking)
        for place, state in states.items()
    }
    return take_off(members, 0, seed, pairs) == plain(members, 0)


def state_of(members: Members, place: int) -> _State:
    [content] = [value for key, value in members.stores[place].items() if key.endswith("-state")]
    return _State.from_bytes(content)


def test_clients_that_the_server_has_invented_are_refused() -> None:
    assert not surround(Client)
    assert surround(TakesAnyRoster)


# ---- the same round with other parameters


class KeepsRequestsApart(Client):
    """Takes a round that it knows with other members for another round."""

    def __init__(self, request: Any, roster: Any, key: Any, policy: Policy, store: Memory) -> None:
        renamed = Memory()
        renamed.load = lambda name: store.load(request.session.hex() + name)  # type: ignore[method-assign]
        renamed.save = lambda name, content: store.save(request.session.hex() + name, content)  # type: ignore[method-assign]
        super().__init__(request, roster, key, policy, renamed)


def ask_twice(kind: type[Client]) -> bool:
    """Whether two sums of one round, with and without a client, give its integers away."""
    members = Members(6, kind=kind)
    whole = members.play().finish()
    members.request = members.request_for(range(5))
    try:
        part = members.play().finish()
    except MessageError:
        return False
    difference = masks.reduced(whole.values - part.values, members.bits)
    return difference.tolist() == plain(members, 5)


def test_a_round_is_not_played_again_with_other_members() -> None:
    assert not ask_twice(Client)
    assert ask_twice(KeepsRequestsApart)


# ---- a group of one, and colluders


def ask_alone(policy: Policy) -> bool:
    """Whether a client adds to a sum in which all the others are on the server's side."""
    members = Members(3, dropouts=0, colluders=1)
    members.policy = policy
    members.request = members.request_for([0, 1], colluders=0)
    try:
        found = members.play().finish()
    except MessageError:
        return False
    rest = found.values - members.values[1].astype(np.uint64)
    return masks.reduced(rest, members.bits).tolist() == plain(members, 0)


def test_nobody_is_asked_for_a_sum_of_one() -> None:
    assert not ask_alone(Policy(smallest_group=3, colluders=1))
    assert ask_alone(Policy(smallest_group=2, colluders=0))


def test_a_group_in_which_colluders_leave_one_is_no_policy() -> None:
    with pytest.raises(ConfigError, match="at least two"):
        Policy(smallest_group=3, colluders=2)


# ---- keys that are not the client's own


class VerifiesNothing(Client):
    def _verify(self, place: int, signature: bytes, label: str, content: bytes) -> None:
        pass


def replace_keys(kind: type[Client]) -> bool:
    """Whether a client masks with keys that the server has put in the place of the others'."""
    members = Members(5, kind=kind)
    session, private = members.request.session, X25519PrivateKey.generate()
    own = keys.public_bytes(private)
    members.sent["keys", 0] = members.answer("keys", 0, b"")
    forged = tuple(Keys(session, other, own, own, bytes(32), bytes(64)) for other in range(1, 5))
    try:
        answer = members.answer("shares", 0, KeysOfNeighbours(session, forged).to_bytes())
    except MessageError:
        return False
    target, seeds = public(members, 0), {}
    for index, parcel in enumerate(Shares.from_bytes(answer).parcels):
        both = keys.unseal(private, target.sealing, session, (0, parcel.place), parcel.sealed)
        seeds[index] = both[: keys.SEED]
    parcels = []
    for other in range(1, 5):
        content = bytes(2 * keys.SEED)
        marks = (
            keys.mark(bytes(keys.SEED), session, kind, other, 0) for kind in ("self", "masking")
        )
        sealed = keys.seal(private, target.sealing, session, (other, 0), content)
        parcels.append(Parcel(other, sealed, *marks))
    message = SharesForOne(session, 0, tuple(parcels)).to_bytes()
    members.sent["upload", 0] = members.answer("upload", 0, message)
    seed = keys.combine(seeds, ring_of(members).threshold)
    pairs = dict.fromkeys(range(1, 5), (private, target.masking))
    return take_off(members, 0, seed, pairs) == plain(members, 0)


def test_the_server_cannot_put_its_own_keys_in_the_place_of_others() -> None:
    assert not replace_keys(Client)
    assert replace_keys(VerifiesNothing)


# ---- wrong shares


class BelievesShares(Server):
    """Takes whatever it gets for shares and secrets."""

    def _take_open(self, place: int, content: bytes) -> None:
        self._opened[place] = Opened.from_bytes(content)

    def _masking_key(self, place: int) -> X25519PrivateKey:
        return keys.masking_key(self._reconstruct(place), self._session, place)


def lie(liars: Collection[int], seed: bool = False) -> Any:
    def change(step: str, place: int, content: bytes) -> bytes:
        if step != "open" or place not in liars:
            return content
        answer = Opened.from_bytes(content)
        if seed:
            return replace(answer, seed=bytes(keys.SEED)).to_bytes()
        shares = tuple(replace(share, share=bytes(keys.SEED)) for share in answer.shares)
        return replace(answer, shares=shares).to_bytes()

    return change


@pytest.mark.parametrize("seed", [False, True], ids=["shares", "seed"])
def test_who_sends_wrong_shares_is_named_and_left_out(seed: bool) -> None:
    members = Members(7, dropouts=2, colluders=1)
    server = members.play({"upload": [6]}, change=lie([2], seed))
    assert list(members.refused) == [2]
    found = server.finish()
    members.check(found)
    assert found.places == {0, 1, 2, 3, 4, 5}


@pytest.mark.parametrize("seed", [False, True], ids=["shares", "seed"])
def test_a_server_that_believes_shares_accepts_a_wrong_sum(seed: bool) -> None:
    members = Members(7, dropouts=2, colluders=1, server_kind=BelievesShares)
    found = members.play({"upload": [6]}, change=lie([0], seed)).finish()
    assert found.values.tolist() != members.plain(found.places).tolist()


def test_too_many_wrong_shares_give_no_sum() -> None:
    members = Members(7, dropouts=2, colluders=1)
    server = members.play({"upload": [6]}, change=lie([0, 1, 2]))
    with pytest.raises(MessageError, match="shares of a secret"):
        server.finish()
    assert set(members.refused) == {0, 1, 2}


class DealsAnotherSeed(Client):
    """Deals shares of secrets that are not those it has published."""

    def _do_shares(self, state: _State, message: bytes) -> Any:
        lied = replace(state, self_seed=bytes(16), masking_seed=bytes(16))
        kept, answer = super()._do_shares(lied, message)
        kept = replace(kept, self_seed=state.self_seed, masking_seed=state.masking_seed)
        return kept, answer


@pytest.mark.parametrize("leaves", ["upload", "open"])
def test_a_dealer_of_wrong_secrets_is_named(leaves: str) -> None:
    members = Members(6)
    honest = members.client
    members.client = lambda place: (  # type: ignore[method-assign]
        DealsAnotherSeed(
            members.request, members.roster, identity(5), members.policy, members.stores[5]
        )
        if place == 5
        else honest(place)
    )
    server = members.play({leaves: [5]})
    with pytest.raises(MessageError, match="client 5 has dealt shares of another"):
        server.finish()


def test_shares_that_are_not_what_the_dealer_said_take_the_dealer_out() -> None:
    def change(step: str, place: int, content: bytes) -> bytes:
        if step != "shares" or place != 3:
            return content
        dealt = Shares.from_bytes(content)
        spoiled = tuple(replace(parcel, self_mark=bytes(16)) for parcel in dealt.parcels)
        return replace(dealt, parcels=spoiled).to_bytes()

    members = Members(6)
    found = members.play(change=change).finish()
    members.check(found)
    assert found.places == set(range(6)) - {3}


# ---- drop-outs that would split the ring


def split(monkeypatch: pytest.MonkeyPatch, threshold: int) -> bool:
    """Whether the server gets the sum of a part of the ring, by cutting it in two places."""
    monkeypatch.setattr(neighbourhood, "degree_and_threshold", lambda *_: (8, threshold))
    members = Members(24, dropouts=10, colluders=0, smallest=12)
    members.play(until="sign")
    order, session = ring_of(members)._order, members.request.session
    gone, part = {*order[8:12], *order[20:24]}, order[:8]
    survivors = members.request.members - gone
    message, signatures, answers = Survivors(session, survivors).to_bytes(), [], []
    try:
        for witness in ring_of(members).witnesses & survivors:
            signatures.append(Signature.from_bytes(members.answer("sign", witness, message)))
        for place in survivors:
            content = opening(members, place, survivors, signatures)
            answers.append(Opened.from_bytes(members.answer("open", place, content)))
    except MessageError:
        return False
    seeds = {answer.place: answer.seed for answer in answers}
    private = {place: opened_key(members, answers, place) for place in gone}
    total = np.zeros(members.coordinates, np.uint64)
    for place in part:  # masks within the part cancel, those with the missing are known
        upload = Upload.from_bytes(members.sent["upload", place])
        total += masks.unpack(upload.values, members.coordinates, members.bits)
        total -= masks.mask(keys.self_key(seeds[place], session, place), members.coordinates)
        for other in gone & set(ring_of(members).neighbours(place)):
            key = keys.pair_key(
                private[other], public(members, place).masking, session, place, other
            )
            pair = masks.mask(key, members.coordinates)
            total = total - pair if place < other else total + pair
    return masks.reduced(total, members.bits).tolist() == members.plain(part).tolist()


def test_no_dropouts_cut_the_ring_in_two(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not split(monkeypatch, 6)


def test_with_half_of_the_neighbours_as_threshold_the_ring_is_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert split(monkeypatch, 4)


# ---- what a server and colluders can compute from all that they have


def combinations(
    ring: Ring, honest: set[int], survivors: set[int], partners: Mapping[int, set[int]], *,
    symmetric: bool = True,
) -> np.ndarray[Any, Any]:  # fmt: skip
    """The linear combinations of honest uploads in which every mask cancels that nobody knows.

    Rows of a basis. By the rules of the clients: who reveals what follows from the survivors and
    from with whom everybody has masked.
    """
    order, columns = sorted(honest), list[np.ndarray[Any, Any]]()
    row = {place: index for index, place in enumerate(order)}

    def takes_part(place: int) -> bool:
        near = survivors & set(ring.neighbours(place))
        return (
            place in survivors & honest
            and near & honest <= partners[place]
            and (len(near) >= ring.threshold)
        )

    def unit(*entries: tuple[int, float]) -> None:
        column = np.zeros(len(order))
        for place, value in entries:
            column[row[place]] = value
        columns.append(column)

    def given(place: int, holder: int) -> bool:
        return place in partners[holder] and (not symmetric or holder in partners[place])

    willing = {place for place in honest if takes_part(place)}
    for place in order:
        near = set(ring.neighbours(place))
        helped = {other for other in near & willing if given(place, other)}
        shares = len(near - honest) + len(helped)
        if place not in survivors or (place not in willing and shares < ring.threshold):
            unit((place, 1.0))  # its self mask stays closed
        for other in near & honest & survivors:
            if place in survivors and place < other:
                unit(
                    (place, float(other in partners[place])),
                    (other, -float(place in partners[other])),
                )
    _, values, vectors = np.linalg.svd(np.stack(columns, axis=1).T, full_matrices=True)
    rank = int((values > 1e-9).sum())
    return vectors[rank:]  # type: ignore[no-any-return]


def bare_ring(members: int, degree: int, threshold: int, seed: int) -> Ring:
    ring = Ring(range(members), seed.to_bytes(32, "big"), 0, 0)
    ring.degree, ring.threshold = degree, threshold
    ring.neighbours.cache_clear()
    return ring


def worst_arc(ring: Ring, honest: set[int]) -> int:
    half, order = ring.degree // 2, ring._order
    around = order + order
    arcs = (around[start : start + half] for start in range(len(order)))
    return max(sum(place not in honest for place in arc) for arc in arcs)


@pytest.mark.parametrize("seed", range(20))
def test_a_server_with_colluders_learns_the_sum_of_the_honest_or_nothing(seed: int) -> None:
    """Whatever arcs it declares to be gone, and whichever edges it has hidden before.

    Most attempts open nothing at all, which says little: each seed tries until three have opened
    a sum from which somebody was missing, or to somebody of whom an edge was hidden.
    """
    rng, opened = np.random.default_rng(seed), 0
    for turn in range(2000):
        ring = bare_ring(30, 8, 6, 2000 * seed + turn)
        colluders = rng.choice(30, int(rng.integers(4)), replace=False).tolist()
        honest = set(range(30)) - set(colluders)
        if ring.threshold <= ring.degree // 2 + worst_arc(ring, honest):
            continue  # this order of the ring is one of the few that the threshold does not cover
        survivors, partners = adversary(rng, ring, honest)
        basis = combinations(ring, honest, survivors, partners)
        inside = np.array([place in survivors for place in sorted(honest)], float)
        assert len(basis) <= 1
        if len(basis):
            assert np.allclose(basis[0] / basis[0][np.argmax(inside)], inside)
            hidden = any(len(of) < ring.degree for of in partners.values())
            opened += len(survivors) < 30 or hidden
        if opened == 3:
            return
    pytest.fail("no attack of this seed has opened a sum")


def adversary(
    rng: np.random.Generator, ring: Ring, honest: set[int]
) -> tuple[set[int], dict[int, set[int]]]:
    """Survivors without some arcs, and partners without some edges; colluders agree to all."""
    order, survivors = ring._order, set(range(30))
    for _ in range(int(rng.integers(3))):
        start, length = int(rng.integers(30)), int(rng.integers(1, 6))
        survivors -= {order[(start + step) % 30] for step in range(length)}
    partners = {place: set(ring.neighbours(place)) for place in range(30)}
    for place in rng.choice(30, int(rng.integers(3)), replace=False).tolist():
        spare = ring.degree - ring.threshold
        hidden = rng.choice(sorted(partners[place]), spare, replace=False).tolist()
        partners[place] -= set(hidden)
    return survivors, partners


def thinned(*, symmetric: bool) -> int:
    """How many sums a server gets that hides a client's surviving neighbours from it.

    The client masks with 5 of 8 neighbours only, of whom 2 are colluders. The other 3 of them are
    then declared gone; the hidden ones and the colluders open its self mask.
    """
    ring = bare_ring(30, 8, 5, 1)
    target = ring._order[10]
    near = [ring._order[10 + offset] for offset in (-4, -3, -2, -1, 1, 2, 3, 4)]
    colluders, gone = {near[0], near[7]}, {near[3], near[4], near[6]}  # the rest is hidden
    honest, survivors = set(range(30)) - colluders, set(range(30)) - gone
    partners = {place: set(ring.neighbours(place)) for place in range(30)}
    partners[target] = gone | colluders
    return len(combinations(ring, honest, survivors, partners, symmetric=symmetric))


def test_a_client_whose_neighbours_were_hidden_from_it_is_not_opened() -> None:
    """Only because a neighbour asks whether its own mask is on the upload that it helps open."""
    assert thinned(symmetric=True) == 0
    assert thinned(symmetric=False) == 1
