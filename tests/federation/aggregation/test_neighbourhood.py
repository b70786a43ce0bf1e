"""How many neighbours suffice, against SciPy's hypergeometric distribution; and the ring."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats

from bgtplanner.errors import ConfigError
from bgtplanner.federation.aggregation.neighbourhood import (
    AVAILABILITY_BITS,
    SECURITY_BITS,
    Ring,
    _available,
    degree_and_threshold,
)

CASES = [(30, 2, 1), (1000, 50, 10), (1000, 200, 100), (20_000, 500, 2000)]


def colluders_get_in(members: int, colluders: int, degree: int, threshold: int) -> float:
    """The logarithm to base 2 of how likely an arc has too many of them, at most."""
    half = degree // 2
    tail = scipy.stats.hypergeom.logsf(threshold - half - 1, members, colluders, half)
    return (math.log(members) + tail) / math.log(2)


def shares_are_missing(members: int, dropouts: int, degree: int, threshold: int) -> float:
    tail = scipy.stats.hypergeom.logsf(degree - threshold, members - 1, dropouts, degree)
    return (math.log(members + 1) + tail) / math.log(2)


@pytest.mark.parametrize(("members", "dropouts", "colluders"), CASES)
def test_both_tails_are_as_small_as_promised(members: int, dropouts: int, colluders: int) -> None:
    degree, threshold = degree_and_threshold(members, dropouts, colluders)
    assert degree % 2 == 0
    assert degree < members - 1
    assert colluders_get_in(members, colluders, degree, threshold) <= -SECURITY_BITS + 1e-6
    assert shares_are_missing(members, dropouts, degree, threshold) <= -AVAILABILITY_BITS + 1e-6
    # and neither is larger than needed
    if threshold > degree // 2 + 1:
        assert colluders_get_in(members, colluders, degree, threshold - 1) > -SECURITY_BITS
    fewer = int(degree * 0.93) // 2 * 2 - 2
    enough = [
        at_least
        for at_least in range(fewer // 2 + 1, fewer + 1)
        if colluders_get_in(members, colluders, fewer, at_least) <= -SECURITY_BITS
        and shares_are_missing(members, dropouts, fewer, at_least) <= -AVAILABILITY_BITS
    ]
    assert not enough


@pytest.mark.parametrize("members", [2, 3, 5, 10, 24, 39])
def test_with_few_members_the_threshold_holds_for_every_order(members: int) -> None:
    """No tail is small there: the number of colluders itself must be."""
    for dropouts in range(members // 2):
        for colluders in range(members - 1 - 2 * dropouts):
            degree, threshold = degree_and_threshold(members, dropouts, colluders)
            arc = min(colluders, degree // 2)
            if degree == members - 1:
                assert 2 * threshold > degree + colluders
                assert threshold <= degree - dropouts
            else:
                assert threshold > degree // 2 + arc
                assert threshold <= degree


@pytest.mark.parametrize("numbers", [(1, 0, 0), (5, 2, 0), (5, 1, 2), (5, -1, 0)])
def test_numbers_that_cannot_be_kept_are_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match="ask more clients"):
        degree_and_threshold(*numbers)


@pytest.mark.parametrize(
    ("members", "dropouts", "colluders"), [(7, 2, 1), (20, 2, 1), (100, 10, 5)]
)
def test_neighbours_are_mutual_and_as_many_as_said(
    members: int, dropouts: int, colluders: int
) -> None:
    places = range(3, 3 + 2 * members, 2)
    ring = Ring(places, b"session", dropouts, colluders)
    for place in places:
        near = ring.neighbours(place)
        assert list(near) == sorted(set(near) - {place})
        assert len(near) == ring.degree
        assert all(place in ring.neighbours(other) for other in near)
    assert len(ring.witnesses) == ring.degree


def test_all_orders_are_as_likely() -> None:
    """How often two members are neighbours, over many sessions; their order is of no account."""
    counts = np.zeros((20, 20))
    for session in range(400):
        ring = Ring(range(20), session.to_bytes(32, "big"), 2, 1)
        other = Ring(range(19, -1, -1), session.to_bytes(32, "big"), 2, 1)
        for place in range(20):
            assert ring.neighbours(place) == other.neighbours(place)
            counts[place, list(ring.neighbours(place))] += 1
    expected = 400 * ring.degree / 19
    upper = counts[np.triu_indices(20, 1)]
    statistic = float(((upper - expected) ** 2).sum() / (expected * (1 - ring.degree / 19)))
    assert scipy.stats.chi2.sf(statistic, len(upper) - 1) > 1e-4


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
