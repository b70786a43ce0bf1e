"""Who shares with whom: the members on a ring in a hashed order, and how many neighbours suffice.

Every member's neighbours are the `degree / 2` members on each side of it. Because of that, and not
because of chance, no choice of drop-outs splits the sum into parts (`docs/proofs/aggregation.md`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import comb

from bgtplanner.errors import ConfigError

SECURITY_BITS = 80  # colluders get in with probability 2^-80: 2^-40 after 2^40 names of runs
AVAILABILITY_BITS = 20  # a round fails with probability 2^-20 if as many drop out as was stated


def _tails(population: int, marked: int, draws: int) -> Iterator[tuple[int, int]]:
    """Yield (least, how many of all draws hold at least so many marked ones), from the top.

    The hypergeometric distribution in whole numbers; each term is made of the one before.
    """
    found = min(marked, draws)
    term = comb(marked, found) * comb(population - marked, draws - found)
    total = term
    while True:
        yield found, total
        if found == 0:
            return
        term = term * found * (population - marked - draws + found)
        term //= (marked - found + 1) * (draws - found + 1)
        total, found = total + term, found - 1


def _threshold(members: int, colluders: int, half: int) -> int:
    """Return the least threshold that no arc of `half` members undercuts, but for 2^-80.

    An arc must hold fewer colluders than the threshold exceeds `half`. There are `members` arcs.
    """
    draws, colluding = comb(members, half), min(colluders, half) + 1
    for least, bad in _tails(members, colluders, half):
        if (members * bad) << SECURITY_BITS > draws:
            break
        colluding = least
    return half + max(colluding, 1)


def _available(members: int, dropouts: int, degree: int, threshold: int) -> bool:
    """Return whether all have `threshold` neighbours left, but for 2^-20."""
    others, spare = members - 1, degree - threshold
    bad = next((bad for least, bad in _tails(others, dropouts, degree) if least == spare + 1), 0)
    fits = ((members + 1) * bad) << AVAILABILITY_BITS <= comb(others, degree)
    return spare >= 0 and fits


@lru_cache(maxsize=64)
def degree_and_threshold(members: int, dropouts: int, colluders: int) -> tuple[int, int]:
    """Return how many neighbours a member has, and how many shares open a secret.

    The fewest neighbours for which both tails of the hypergeometric distribution, computed in
    whole numbers, are small enough; all the others where no fewer will do. Their number grows as
    the logarithm of the number of members.

    Example:
        >>> degree_and_threshold(20, 4, 2), degree_and_threshold(1000, 50, 10)
        ((14, 10), (52, 37))
    """
    everybody = members - 1
    if min(members - 2, dropouts, colluders) < 0 or 2 * dropouts + colluders >= everybody:
        raise ConfigError(
            f"{members} members, of whom {dropouts} may drop out and {colluders} collude: twice "
            "the drop-outs and the colluders together must be fewer than the other members; "
            "ask more clients, or state fewer of them"
        )
    degree = 2
    while degree < everybody:
        threshold = _threshold(members, colluders, degree // 2)
        if _available(members, dropouts, degree, threshold):
            return degree, threshold
        degree += max(2, degree // 32 * 2)
    return everybody, (everybody + colluders) // 2 + 1


class Ring:
    """The members in the order of their hashes, and who is whose neighbour.

    `threshold` shares open a secret, and as many `witnesses` sign which uploads have arrived.
    """

    def __init__(
        self, members: Iterable[int], session: bytes, dropouts: int, colluders: int
    ) -> None:
        self._order = sorted(
            members, key=lambda place: hashlib.sha256(session + place.to_bytes(4, "big")).digest()
        )
        self.degree, self.threshold = degree_and_threshold(len(self._order), dropouts, colluders)
        self.witnesses = frozenset(self._order[: self.degree])
        self._positions = {place: position for position, place in enumerate(self._order)}
        self.neighbours = lru_cache(maxsize=None)(self._neighbours)

    def _neighbours(self, place: int) -> tuple[int, ...]:
        """Return the places of a member's neighbours, in ascending order."""
        here, half, size = self._positions[place], self.degree // 2, len(self._order)
        near = (self._order[(here + offset) % size] for offset in range(-half, half + 1))
        around = self._order if self.degree == size - 1 else near
        return tuple(sorted(set(around) - {place}))
