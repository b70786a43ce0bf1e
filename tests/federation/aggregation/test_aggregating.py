"""Rounds from beginning to end: sums against plain sums, what a client refuses, what it stores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bgtplanner.errors import ConfigError, MessageError
from bgtplanner.federation.aggregation import keys
from bgtplanner.federation.aggregation.messages import (
    STEPS,
    Keys,
    KeysOfNeighbours,
    Opening,
    Shares,
    SharesForOne,
    Signature,
    Survivors,
    Upload,
)
from bgtplanner.federation.aggregation.server import Server
from federation.aggregation.members import Members, identity

GROUPS = [(4, 1, 0), (5, 1, 1), (7, 2, 1), (11, 1, 1), (14, 2, 0)]


@settings(max_examples=40)
@given(st.sampled_from(GROUPS), st.integers(1, 63), st.data())
def test_the_sum_is_the_plain_sum_of_those_it_names(
    group: tuple[int, int, int], bits: int, data: st.DataObject
) -> None:
    size, dropouts, colluders = group
    members = Members(size, dropouts, colluders, bits=bits, smallest=colluders + 2)
    integers = st.integers(-(2**62), 2**62)
    rows = st.lists(integers, min_size=size * 3, max_size=size * 3)
    members.values = np.array(data.draw(rows)).reshape(size, 3)
    drops: dict[str, set[int]] = {}
    for place in data.draw(st.sets(st.integers(0, size - 1), max_size=dropouts)):
        drops.setdefault(data.draw(st.sampled_from(STEPS)), set()).add(place)
    try:
        found = members.play(drops).finish()
    except MessageError:  # on a ring, neighbours that drop out together can be one too many
        assert size in (11, 14)
        return
    members.check(found)
    before = set().union(*(drops.get(step, set()) for step in ("keys", "shares", "upload")))
    assert found.places == set(range(size)) - before


@pytest.mark.parametrize("step", STEPS)
def test_a_client_may_drop_out_at_any_step(step: str) -> None:
    members = Members(7, dropouts=2)
    found = members.play({step: [2, 5]}).finish()
    members.check(found)
    late = step in ("sign", "open")
    assert found.places == (set(range(7)) if late else {0, 1, 3, 4, 6})


@pytest.mark.parametrize("step", STEPS)
def test_too_many_dropouts_give_no_sum(step: str) -> None:
    members = Members(7, dropouts=2)
    with pytest.raises(MessageError):
        members.play({step: [0, 1, 2, 3]}).finish()


def test_integers_that_are_signed_come_back_signed() -> None:
    members = Members(5)
    found = members.play().finish()
    total = members.values[sorted(found.places)].sum(axis=0)
    assert found.values.tolist() == [value % (1 << members.bits) for value in total.tolist()]


def test_members_may_be_some_of_the_roster() -> None:
    members = Members(9)
    members.request = members.request_for([1, 2, 4, 7, 8])
    found = members.play().finish()
    assert found.places == {1, 2, 4, 7, 8}
    members.check(found)


# ---- what a client refuses; after that the round is over for it


def refused(members: Members, step: str, place: int, message: bytes, match: str) -> None:
    """The message is refused, and after it the right one, too."""
    with pytest.raises(MessageError, match=match):
        members.answer(step, place, message)
    with pytest.raises(MessageError, match="takes no further part"):
        members.answer(step, place, members.got[step, place])


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"roster": bytes(32)}, "another roster"),
        ({"members": frozenset({0, 1, 2, 3, 4, 5, 6})}, "not in the roster"),
        ({"members": frozenset({1, 2, 3, 4, 5})}, "not one of its members"),
        ({"members": frozenset({0, 1, 2})}, "fewer than smallest_group"),
        ({"dropouts": 4}, "fewer than smallest_group"),
        ({"colluders": 0}, "protects from too few colluders"),
        ({"colluders": 4}, "must be fewer than the other members"),
    ],
)
def test_requests_that_a_client_takes_no_part_in(change: dict[str, Any], match: str) -> None:
    members = Members(6)
    members.request = members.request_for(places=range(6), **change)
    with pytest.raises(MessageError, match=match):
        members.client(0)


def forge(members: Members, step: str, change: Callable[[Any], Any], kind: Any) -> bytes:
    members.play(until=step)
    content: bytes = change(kind.from_bytes(members.got[step, 0])).to_bytes()
    return content


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda got: replace(got, session=bytes(32)), "another round"),
        (lambda got: replace(got, keys=got.keys[:2]), "2 neighbours with keys; at least 4"),
        (
            lambda got: replace(got, keys=(replace(got.keys[0], session=bytes(32)),)),
            "another round",
        ),
        (lambda got: replace(got, keys=(replace(got.keys[0], place=0),)), "not a neighbour"),
        (
            lambda got: replace(
                got, keys=(replace(got.keys[0], masking=bytes(32)), *got.keys[1:])
            ),
            "signature of keys",
        ),
    ],
)
def test_keys_that_a_client_refuses(change: Any, match: str) -> None:
    members = Members(6)
    message = forge(members, "shares", change, KeysOfNeighbours)
    refused(members, "shares", 0, message, match)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda got: replace(got, session=bytes(32)), "another round"),
        (lambda got: replace(got, place=1), "for another client"),
        (
            lambda got: replace(got, parcels=got.parcels[:3]),
            "3 neighbours with shares; at least 4",
        ),
        (
            lambda got: replace(
                got, parcels=tuple(replace(one, sealed=bytes(60)) for one in got.parcels)
            ),
            "0 neighbours with shares",
        ),
    ],
)
def test_shares_that_a_client_refuses(change: Any, match: str) -> None:
    members = Members(6)
    message = forge(members, "upload", change, SharesForOne)
    refused(members, "upload", 0, message, match)


SETS = [
    (frozenset({0, 1, 2, 3, 4, 9}), "not a member"),
    (frozenset({1, 2, 3, 4, 5}), "not among the survivors"),
    (frozenset({0, 1, 2, 3}), "4 survivors; at least 5"),
]


def witness(members: Members) -> int:
    return min(place for step, place in members.got if step == "sign")


@pytest.mark.parametrize(("places", "match"), SETS)
def test_survivors_that_a_client_neither_signs_nor_opens(
    places: frozenset[int], match: str
) -> None:
    for step, kind in (("sign", Survivors), ("open", Opening)):
        members = Members(6)
        members.play(until=step)
        place = witness(members) if step == "sign" else 0
        if place != 0:
            places = frozenset({0: place, place: 0}.get(one, one) for one in places)
        sent: Any = kind.from_bytes(members.got[step, place])
        refused(members, step, place, replace(sent, places=places).to_bytes(), match)


def test_a_survivor_with_whom_a_client_has_not_masked_is_refused() -> None:
    members = Members(6)
    members.play({"upload": [3]}, until="open")
    sent = Opening.from_bytes(members.got["open", 0])
    members = Members(6)
    members.play({"shares": [3]}, until="open")
    sent = Opening.from_bytes(members.got["open", 0])
    wrong = replace(sent, places=frozenset(range(6)))
    refused(members, "open", 0, wrong.to_bytes(), "has not masked its upload")


def test_only_witnesses_sign() -> None:
    members = Members(6)
    members.play(until="sign")
    asked = {place for step, place in members.got if step == "sign"}
    [other] = set(range(6)) - asked
    members.got["sign", other] = members.got["sign", min(asked)]
    refused(members, "sign", other, members.got["sign", other], "not a witness")


def foreign(got: Opening) -> Opening:
    """One signature is by the client that is no witness."""
    signed = {one.place for one in got.signatures}
    extra = min(set(range(6)) - signed)
    entries = [*got.signatures, replace(got.signatures[0], place=extra)]
    return replace(got, signatures=tuple(sorted(entries, key=lambda one: one.place)))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda got: replace(got, session=bytes(32)), "another round"),
        (lambda got: replace(got, signatures=got.signatures[:3]), "3 signatures of witnesses"),
        (lambda got: replace(got, signatures=()), "0 signatures of witnesses"),
        (foreign, "signature of"),
        (
            lambda got: replace(
                got, signatures=(replace(got.signatures[0], signature=bytes(64)),)
            ),
            "signature of survivors",
        ),
        (
            lambda got: replace(got, signatures=(replace(got.signatures[0], session=bytes(32)),)),
            "not a surviving witness",
        ),
        (lambda got: replace(got, partners=got.partners[1:]), "the partners of other clients"),
        (
            lambda got: replace(
                got, partners=(replace(got.partners[0], partners=b"\0"), *got.partners[1:])
            ),
            "signature of partners",
        ),
    ],
)
def test_openings_that_a_client_refuses(change: Any, match: str) -> None:
    members = Members(6)
    message = forge(members, "open", change, Opening)
    refused(members, "open", 0, message, match)


def test_a_neighbour_that_has_not_masked_with_it_is_not_opened() -> None:
    members = Members(6)
    members.play(until="open")
    sent, session = Opening.from_bytes(members.got["open", 0]), members.request.session
    none = keys.sign(identity(1), session, "partners", b"\x1e")
    entry = replace(sent.partners[0], partners=b"\x1e", signature=none)
    wrong = replace(sent, partners=(entry, *sent.partners[1:])).to_bytes()
    refused(members, "open", 0, wrong, "has not masked its upload with this one")


def test_a_witness_opens_what_it_has_signed_and_nothing_else() -> None:
    members = Members(6)
    server = members.play(until="open")
    place, session = witness(members), members.request.session
    others = sorted(set(range(6)) - {place})
    fewer = frozenset(range(6)) - {others[-1]}
    signatures = tuple(
        Signature(
            session,
            other,
            keys.sign(identity(other), session, "survivors", Survivors(session, fewer).to_bytes()),
        )
        for other in sorted(server._ring.witnesses & fewer)
    )
    sent = Opening.from_bytes(members.got["open", place])
    partners = tuple(one for one in sent.partners if one.place in fewer)
    wrong = replace(sent, places=fewer, signatures=signatures, partners=partners)
    refused(members, "open", place, wrong.to_bytes(), "other survivors than those")


def test_nobody_opens_twice_with_other_survivors() -> None:
    members = Members(6)
    members.play()
    sent = Opening.from_bytes(members.got["open", 0])
    wrong = replace(sent, places=sent.places - {5}).to_bytes()
    refused(members, "open", 0, wrong, "a second time, with another message")


@pytest.mark.parametrize("step", ["shares", "upload", "sign", "open"])
def test_steps_out_of_order_are_refused(step: str) -> None:
    members = Members(6)
    members.play(until=step)
    place = witness(members) if step == "sign" else 0
    members.stores[place].clear()
    if step != "shares":
        members.answer("keys", place, b"")
    refused(members, step, place, members.got[step, place], "out of order")


@pytest.mark.parametrize("step", ["shares", "upload", "sign", "open"])
def test_bytes_that_are_no_message_are_refused(step: str) -> None:
    members = Members(6)
    members.play(until=step)
    place = witness(members) if step == "sign" else 0
    refused(members, step, place, b"BSA1", "ends too early")


# ---- what it stores


def test_the_same_message_is_answered_with_the_same_bytes() -> None:
    members = Members(6)
    members.play()
    members.values += 1  # it would be another upload, were it made again
    for (step, place), answer in members.sent.items():
        assert members.answer(step, place, members.got[step, place]) == answer


def test_nothing_stored_takes_a_mask_off_once_the_sum_is_open() -> None:
    """Whoever steals a client's files later and has its masked uploads learns nothing by them."""
    members = Members(5)
    members.play(until="open")
    states = [members.client(place)._load() for place in range(5)]
    for place, state in enumerate(states):
        secrets = [state.masking_seed, state.sealing, *(one.of_masking for one in state.held)]
        secrets = [secret for secret in secrets if any(secret)]
        assert len(secrets) == 2 + 4
        stored = members.stores[place]
        assert all(any(secret in of for of in stored.values()) for secret in secrets)
        answer = members.answer("open", place, members.got["open", place])
        assert not any(secret in of for of in stored.values() for secret in secrets)
        assert members.answer("open", place, members.got["open", place]) == answer
        upload = members.answer("upload", place, members.got["upload", place])
        assert upload == members.sent["upload", place]


def test_an_upload_that_was_begun_and_not_stored_is_never_made_again() -> None:
    class PowerCut(Exception):
        pass

    members = Members(6)
    members.play(until="upload")

    def pays_and_dies() -> Any:
        raise PowerCut

    with pytest.raises(PowerCut):
        members.client(0).answer("upload", members.got["upload", 0], pays_and_dies)
    with pytest.raises(MessageError, match="takes no further part"):
        members.answer("upload", 0, members.got["upload", 0])


def test_values_are_asked_for_last_and_must_fit() -> None:
    members = Members(6)
    members.play(until="upload")
    for place, vector in enumerate((np.zeros(2, int), np.zeros(3), np.zeros((3, 1), int))):
        with pytest.raises(ConfigError, match="expected 3 integers"):
            members.client(place).answer(
                "upload", members.got["upload", place], lambda vector=vector: vector
            )
    wrong = replace(SharesForOne.from_bytes(members.got["upload", 3]), parcels=())

    def never() -> Any:
        raise AssertionError

    with pytest.raises(MessageError, match="0 neighbours with shares"):
        members.client(3).answer("upload", wrong.to_bytes(), never)


@pytest.mark.parametrize("step", ["shares", "upload", "sign", "open"])
@pytest.mark.parametrize("part", ["-begun", "-state"])
def test_a_store_that_is_lost_or_older_in_part_is_noticed(step: str, part: str) -> None:
    earlier = STEPS[STEPS.index(step) - 1]
    for lost in (False, True):
        members = Members(6)
        members.play(until=earlier)
        asked = {place for at, place in members.got if at == "sign"} or set(range(6))
        older = [dict(store) for store in members.stores]
        place, members = min(asked), Members(6)
        members.play(until=step)
        store = members.stores[place]
        [key] = [key for key in store if key.endswith(part)]
        if lost or not older[place]:
            del store[key]
        else:
            store[key] = older[place][key]
        if (step, place) in members.got:
            with pytest.raises(MessageError, match="takes no further part"):
                members.answer(step, place, members.got[step, place])


def test_what_is_stored_is_refused_if_it_is_not_a_state() -> None:
    members = Members(6)
    members.play(until="upload")
    [key] = [key for key in members.stores[0] if key.endswith("-state")]
    members.stores[0][key] = b"BSA1d" + bytes(7)
    with pytest.raises(MessageError, match="ends too early"):
        members.answer("upload", 0, members.got["upload", 0])


def test_keys_are_fresh_in_every_round() -> None:
    seen = set()
    for index in range(3):
        members = Members(5, round=index)
        members.play(until="shares")
        for place in range(5):
            sent = Keys.from_bytes(members.sent["keys", place])
            seen |= {sent.sealing, sent.masking, sent.commitment}
    assert len(seen) == 3 * 5 * 3


# ---- what the server refuses


def test_the_server_takes_one_answer_of_those_it_has_asked() -> None:
    members = Members(6)
    server = Server(members.request, members.roster)
    answer = members.answer("keys", 0, b"")
    server.receive(0, answer)
    for place in (0, 77):
        with pytest.raises(MessageError, match="was not asked, or has answered"):
            server.receive(place, answer)
    with pytest.raises(MessageError, match="another client"):
        server.receive(1, answer)
    with pytest.raises(MessageError, match="1 of 6 have sent keys; 5 must"):
        server.close_step()
    with pytest.raises(ConfigError, match="closed"):
        server.close_step()
    with pytest.raises(ConfigError, match="last step"):
        server.finish()


def test_a_server_needs_the_roster_of_its_request() -> None:
    members = Members(6)
    for change in ({"roster": bytes(32)}, {"members": frozenset({5, 6})}):
        with pytest.raises(ConfigError, match="another roster"):
            Server(replace(members.request, **change), members.roster)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["sealing", "masking"])
def test_keys_with_which_every_exchange_is_zero_are_refused(key: str) -> None:
    members = Members(6)
    server = Server(members.request, members.roster)
    sent = replace(Keys.from_bytes(members.answer("keys", 0, b"")), **{key: bytes(32)})
    signature = keys.sign(identity(0), members.request.session, "keys", sent.signed)
    with pytest.raises(MessageError, match="every exchange gives zero"):
        server.receive(0, replace(sent, signature=signature).to_bytes())


@pytest.mark.parametrize(
    ("step", "kind", "change", "why"),
    [
        ("shares", Shares, {"parcels": ()}, "shares for others"),
        ("upload", Upload, {"values": b""}, "0 bytes for 3 coordinates"),
        ("upload", Upload, {"partners": b"\x01"}, "signature of partners"),
        ("sign", Signature, {"signature": bytes(64)}, "signature of survivors"),
    ],
)
def test_a_wrong_answer_leaves_its_sender_out(
    step: str, kind: Any, change: dict[str, Any], why: str
) -> None:
    members = Members(6)
    liar = 0

    def spoil(at: str, place: int, content: bytes) -> bytes:
        nonlocal liar
        if (
            at != step
            or (step == "sign" and place != witness(members))
            or (step != "sign" and place != 0)
        ):
            return content
        liar = place
        return bytes(replace(kind.from_bytes(content), **change).to_bytes())

    server = members.play(change=spoil)
    assert why in members.refused[liar]
    members.check(server.finish())


def test_an_upload_may_not_be_masked_with_who_has_dealt_nothing() -> None:
    members = Members(6)

    def spoil(at: str, place: int, content: bytes) -> bytes:
        if (at, place) != ("upload", 0):
            return content
        signature = keys.sign(identity(0), members.request.session, "partners", b"\x1f")
        sent = replace(Upload.from_bytes(content), partners=b"\x1f", signature=signature)
        return sent.to_bytes()

    with pytest.raises(MessageError, match="have sent uploads that fit together; 5 must"):
        members.play({"shares": [3]}, change=spoil)
