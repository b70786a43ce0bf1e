"""What a client insists on, one thing at a time: faults that other tests would not notice."""

from __future__ import annotations

from dataclasses import replace

import pytest
import scipy.stats

from bgtplanner.errors import MessageError
from bgtplanner.federation.aggregation import keys
from bgtplanner.federation.aggregation.messages import Opening, Signature, Survivors
from bgtplanner.federation.aggregation.neighbourhood import (
    Ring,
    _available,
    degree_and_threshold,
)
from federation.aggregation.members import Members


@pytest.mark.parametrize("part", ["-begun", "-state"])
def test_keys_are_not_made_a_second_time_when_half_of_the_store_is_lost(part: str) -> None:
    members = Members(6)
    members.answer("keys", 0, b"")
    [key] = [key for key in members.stores[0] if key.endswith(part)]
    del members.stores[0][key]
    with pytest.raises(MessageError, match="takes no further part"):
        members.answer("keys", 0, b"")


def test_who_is_no_witness_cannot_sign_in_the_place_of_one() -> None:
    """Its signature is valid; but more colluders could sign if anybody's counted."""
    members = Members(6)
    members.play(until="open")
    request = members.request
    ring = Ring(request.members, request.session, request.dropouts, request.colluders)
    [other] = request.members - ring.witnesses
    got = Opening.from_bytes(members.got["open", 0])
    signed = Survivors(request.session, got.places).to_bytes()
    signature = keys.sign(members.identities[other], request.session, "survivors", signed)
    entries = [*got.signatures, Signature(request.session, other, signature)]
    forged = replace(got, signatures=tuple(sorted(entries, key=lambda one: one.place)))
    with pytest.raises(MessageError, match="not a surviving witness"):
        members.answer("open", 0, forged.to_bytes())


@pytest.mark.parametrize("members", [3, 10, 1000])
def test_without_dropouts_and_colluders_one_neighbour_on_each_side_is_enough(members: int) -> None:
    assert degree_and_threshold(members, 0, 0) == (2, 2)


@pytest.mark.parametrize("numbers", [(84, 17, 34, 18), (92, 15, 32, 18), (96, 19, 42, 24)])
def test_the_witnesses_count_where_shares_may_be_missing(
    numbers: tuple[int, int, int, int],
) -> None:
    """2^-20 is for all members and the witnesses together; for the members but one it would do."""
    members, dropouts, degree, threshold = numbers
    missing = scipy.stats.hypergeom.sf(degree - threshold, members - 1, dropouts, degree)
    assert (members - 1) * missing < 2.0**-20 < (members + 1) * missing
    assert not _available(*numbers)
    assert _available(members, dropouts, degree, threshold - 1)
