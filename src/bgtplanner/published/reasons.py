"""Why an item is on a person's list, in words.

A reason names what moved the item up for this person, the strongest first: an item that the person
liked, a feature that the person rates higher or picks more often than usual, tastes. What moves an
item up for everybody, that it is popular or well rated, is said only where nothing of the person's
own did.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

_TENTH = 0.1  # a rating so much higher counts as an item that is about three times as likely
_HIGHER = 0.02  # on the scale of 0 to 1: what is less is not worth a word
_OFTEN = float(np.log(1.5))
_POPULAR = float(np.log(2.0))
_TASTES = 0.3
_BESIDE = 0.25  # of the strongest: what a second clause must have
_CLASS = re.compile(r"(-?\d[\d.e+-]*) to (-?\d[\d.e+-]*)")
_HASHED = re.compile(r"(words )?\d+")
_OF_ALL = ("", "popular", "rated well by those who know it", "liked by many")
_DECADES = {"1": "tens", "2": "twenties", "3": "thirties", "4": "forties", "5": "fifties",
            "6": "sixties", "7": "seventies", "8": "eighties", "9": "nineties"}  # fmt: skip
_Float = NDArray[np.float64]
_Clause = tuple[_Float, Callable[[tuple[int, int]], str]]  # strength by place, and its words


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
    low, high = about.low, about.high
    digits, unit = (".1f", "stars") if low >= 0 and 3 <= high <= 10 else (".2g", "points")

    def higher(name: str, leaning: float) -> str:
        return f"you rate {name} {leaning * (high - low):{digits}} {unit} above your mean"

    def more_often(name: str, interest: float) -> str:
        return f"you pick {name} {np.exp(interest):.2g} times as often as {whom}"

    def alike(at: tuple[int, int]) -> str:
        liked = None if because is None else because[at[0]][at[1]]
        return "fits what people like you pick" if liked is None else f"because you liked {liked}"

    clauses = [
        _of_all(why, items),
        _of_features(about, why.leaning, items, _HIGHER, _TENTH, higher),
        _of_features(about, why.interest, items, _OFTEN, 1.0, more_often),
    ]
    if why.tastes is not None:
        added = np.take_along_axis(np.asarray(why.tastes, np.float64), items, axis=1)
        clauses.append((np.where(added >= _TASTES, added, 0.0), alike))
    strengths = np.stack([strength for strength, _ in clauses])
    own = (strengths[1:] > 0).any(axis=0)
    strengths[0] = np.where(own, 0.0, strengths[0])
    order = np.argsort(-strengths, axis=0, kind="stable")[:2]
    best = np.take_along_axis(strengths, order, axis=0)
    given = (best > 0) & (best >= _BESIDE * best[:1])
    reasons: list[list[str | None]] = [[None] * items.shape[1] for _ in items]
    for user, place in np.argwhere(given[0]).tolist():
        chosen = order[given[:, user, place], user, place]
        reasons[user][place] = "; ".join(clauses[which][1]((user, place)) for which in chosen)
    return reasons


def _of_all(why: Explanation, items: NDArray[Any]) -> _Clause:
    """Return what all users together say about each item."""
    zeros = np.zeros(items.max(initial=0) + 1)
    popular = np.asarray(zeros if why.popularity is None else why.popularity, np.float64)[items]
    good = np.asarray(zeros if why.quality is None else why.quality, np.float64)[items]
    popular, good = popular * (popular >= _POPULAR), good * (good >= _HIGHER)
    kind = (popular > 0) + 2 * (good > 0)
    return popular + good / _TENTH, lambda at: _OF_ALL[kind[at]]


def _of_features(
    about: Described,
    of: ArrayLike | None,
    items: NDArray[Any],
    least: float,
    unit: float,
    say: Callable[[str, float], str],
) -> _Clause:
    """Return the feature with a name that moved each item up most.

    It counts only as far as the item's features together moved it up: an item that is lifted by
    one feature and pulled down by two others is not recommended because of the one.
    """
    features = about.features
    if of is None or not features.size or len(about.names) != np.shape(of)[1]:
        return np.zeros(items.shape), lambda _: ""
    names = [plain_name(name) for name in about.names]
    values = np.asarray(of, np.float64)
    added = features[items] * values[:, None, :]
    together = added.sum(axis=2)
    added[:, :, [name is None for name in names]] = 0.0
    which = added.argmax(axis=2)
    strength = np.minimum(added.max(axis=2), together)
    value = np.take_along_axis(values, which, axis=1)
    return np.where(strength >= least, strength / unit, 0.0), lambda at: say(
        str(names[which[at]]), float(value[at])
    )


def plain_name(name: str) -> str | None:
    """Return a feature as people would call it; None for hashed words and embeddings.

    Example:
        >>> plain_name("genre: Drama"), plain_name("year: 1990 to 1998"), plain_name("is_new")
        ('Drama', 'items of the nineties', 'is new')
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
    decade = first[:3] == last[:3] and first[:2] == "19" and _DECADES.get(first[2])
    return f"items of the {decade}" if decade else f"items of {part}"
