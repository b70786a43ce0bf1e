"""Why an item is on a person's list, in words.

A reason names what moved the item up for this person, the strongest first: an item that the person
liked, a feature that the person rates higher or picks more often than usual, tastes. What moves an
item up for everybody, that it is popular or well rated, is said only where nothing of the person's
own did.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_TENTH = 0.1  # a rating so much higher counts as an item that is about three times as likely
_HIGHER = 0.02  # on the scale of 0 to 1: what is less is not worth a word
_OFTEN = float(np.log(1.5))
_POPULAR = float(np.log(2.0))
_TASTES = 0.3
_BESIDE = 0.25  # of the strongest: what a second clause must have
_CLASS = re.compile(r"(-?\d[\d.e+-]*) to (-?\d[\d.e+-]*)")
_HASHED = re.compile(r"(words )?\d+")
_OF_ALL = ("", "popular", "rated well by those who know it", "liked by many")
_Floats = NDArray[np.float64]


class Explanation(NamedTuple):
    """Why items are ranked as they are for some users; None plays no part in it."""

    popularity: Any = None  # logarithm, relative to the mean item
    quality: Any = None  # how much better than usual each item is rated
    leaning: Any = None  # by feature, how much higher its items are rated
    interest: Any = None  # logarithm of how much more often they are picked
    tastes: Any = None  # what the axes of taste add to each item

    def of_users(self, which: Any) -> Explanation:
        """Return the explanation for some of the users, as NumPy arrays."""
        arrays = [None if part is None else np.asarray(part) for part in self]
        parts: list[Any] = [None if part is None else part[which] for part in arrays[2:]]
        return Explanation(*arrays[:2], *parts)


class Described(NamedTuple):
    """What words about items need: their public features by name, and the scale of ratings."""

    features: NDArray[np.float32]  # [n_items, n_features]
    names: Sequence[str]  # of the features; none if nothing is to be said of them
    low: float
    high: float


def reasons_of(
    about: Described,
    why: Explanation,
    items: NDArray[Any],
    whom: str = "others",
    because: Sequence[Sequence[str | None]] | None = None,
) -> list[list[str | None]]:
    """Return a reason for each place of each list; None where there is none.

    `items` are those on the lists, ``[users, top]``; picks are compared with those of `whom`;
    `because` has the title of an item that the user liked and that speaks for the one in a place.
    """
    wide, none = about.high - about.low, np.zeros(items.shape)
    digits, unit = (
        (".1f", "stars") if about.low >= 0 and 3 <= about.high <= 10 else (".2g", "points")
    )
    names = [plain_name(name) for name in about.names]
    popular, good = (none if of is None else np.asarray(of, np.float64)[items] for of in why[:2])
    popular, good = popular * (popular >= _POPULAR), good * (good >= _HIGHER)
    kind = (popular > 0) + 2 * (good > 0)
    leaning, leaned = _of_features(about, names, why.leaning, items)
    interest, picked = _of_features(about, names, why.interest, items)
    tastes = none if why.tastes is None else np.take_along_axis(np.asarray(why.tastes), items, 1)
    strengths = np.stack([
        popular + good / _TENTH,
        np.where(leaning >= _HIGHER, leaning / _TENTH, 0.0),
        np.where(interest >= _OFTEN, interest, 0.0),
        np.where(tastes >= _TASTES, tastes, 0.0),
    ])  # fmt: skip
    strengths[0] = np.where((strengths[1:] > 0).any(axis=0), 0.0, strengths[0])

    def clause(which: int, at: tuple[int, int]) -> str:
        if which == 0:
            return _OF_ALL[kind[at]]
        if which == 1:
            stars = why.leaning[at[0]][leaned[at]] * wide
            return f"you rate {names[leaned[at]]} {stars:{digits}} {unit} above your mean"
        if which == 2:
            often = np.exp(why.interest[at[0]][picked[at]])
            return f"you pick {names[picked[at]]} {often:.2g} times as often as {whom}"
        liked = None if because is None else because[at[0]][at[1]]
        return "fits what people like you pick" if liked is None else f"because you liked {liked}"

    order = np.argsort(-strengths, axis=0, kind="stable")[:2]
    best = np.take_along_axis(strengths, order, axis=0)
    given = (best > 0) & (best >= _BESIDE * best[:1])
    reasons: list[list[str | None]] = [[None] * items.shape[1] for _ in items]
    for user, place in np.argwhere(given[0]).tolist():
        chosen = order[given[:, user, place], user, place]
        reasons[user][place] = "; ".join(clause(which, (user, place)) for which in chosen)
    return reasons


def _of_features(
    about: Described, names: Sequence[str | None], values: Any, items: NDArray[Any]
) -> tuple[_Floats, NDArray[np.int64]]:
    """Return how far a feature with a name moved each item up at most, and which feature it was.

    It counts only as far as the item's features together moved it up: an item that is lifted by
    one feature and pulled down by two others is not recommended because of the one.
    """
    if values is None or not about.features.size or len(names) != np.shape(values)[1]:
        return np.zeros(items.shape), np.zeros(items.shape, dtype=np.int64)
    added = about.features[items] * np.asarray(values, np.float64)[:, None, :]
    together = added.sum(axis=2)
    added[:, :, [name is None for name in names]] = 0.0
    return np.minimum(added.max(axis=2), together), added.argmax(axis=2)


def plain_name(name: str) -> str | None:
    """Return a feature as people would call it; None for hashed words and embeddings.

    Example:
        >>> plain_name("genre: Drama"), plain_name("year: 1990 to 1998"), plain_name("is_new")
        ('Drama', 'items of the 1990s', 'is new')
        >>> plain_name("title: words 17"), plain_name("embedding: 3")
        (None, None)
    """
    column, colon, part = name.partition(": ")
    if not colon:
        return name.replace("_", " ")
    if _HASHED.fullmatch(part):
        return None
    found = _CLASS.fullmatch(part)
    if found is None:
        return part
    if column != "year":
        return f"items with {column} {part}"
    first, last = found.groups()
    return f"items of the {first[:3]}0s" if first[:3] == last[:3] else f"items of {part}"
