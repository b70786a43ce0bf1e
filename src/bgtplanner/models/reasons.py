"""Why an item is recommended, in words.

A reason names what moved the item up for this user, the strongest first: a feature that the user
rates higher or picks more often than usual, tastes, how popular the item is, how well it is rated.
All of it comes from the learner's own :class:`~bgtplanner.models.learner.Explanation`: where a
learner explains nothing, there is no reason.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgtplanner.data.ratings import Ratings
from bgtplanner.models.learner import Explanation

Floats = NDArray[np.float64]

TENTH = 0.1
"""A rating that is higher by this, on the scale of 0 to 1, counts as much as an item that is about
three times as likely: a public constant, about the spread of the items' qualities."""

_HIGHER = 0.02  # on the scale of 0 to 1: what is less is not worth a word
_OFTEN = float(np.log(1.5))
_POPULAR = float(np.log(2.0))
_TASTES = 0.3
_BESIDE = 0.25  # of the strongest: what a second clause must have
_MOST_TIMES = 20.0
_HUGE = 50.0  # in place of infinity, as of the logarithm of a feature that a user never picks
_AT_ONCE = 1 << 22  # numbers held in memory at a time
_CLASS = re.compile(r"(-?\d[\d.e+-]*) to (-?\d[\d.e+-]*)")
_HASHED = re.compile(r"(words )?\d+")
_OF_MANY = ("", "popular", "rated well by those who know it", "liked by many")


def plain_name(name: str) -> str | None:
    """Return a feature as people would call it; None for hashed words and embeddings.

    Example:
        >>> plain_name("genre: Drama"), plain_name("year: 1990 to 1995"), plain_name("is_new")
        ('Drama', 'items of 1990 to 1995', 'is new')
        >>> plain_name("title: words 17"), plain_name("embedding: 3")
        (None, None)
    """
    column, colon, part = name.partition(": ")
    if not colon:
        return name.replace("_", " ")
    if _HASHED.fullmatch(part):
        return None
    if not _CLASS.fullmatch(part):
        return part
    return f"items of {part}" if column == "year" else f"items with {column} {part}"


class _Clause(NamedTuple):
    """One kind of clause for all places of some lists.

    Attributes:
        strength: How far it moved the item up, ``[users, top]``; 0 where it is not worth a word.
        which: What the clause is about, such as the index of a feature; same shape.
        kind: ``leaning``, ``interest``, ``tastes`` or ``many``.
        value: The user's leaning or interest, if it is about a feature; same shape.
    """

    strength: Floats
    which: NDArray[np.int64]
    kind: str
    value: Floats

    @property
    def of_feature(self) -> bool:
        """Whether it is about a feature."""
        return self.kind in ("leaning", "interest")


@dataclass(frozen=True)
class Reasons:
    """Puts explanations into words.

    Attributes:
        ratings: Whose scale and catalogue the words are about.
    """

    ratings: Ratings

    def of(
        self, why: Explanation, items: NDArray[Any], against: str = "others"
    ) -> list[list[str | None]]:
        """Return a reason for each place of each list; None where there is none.

        Args:
            why: The explanation for the users of these lists.
            items: Indices of the items on the lists, ``[users, top]``.
            against: Whom a user's picks are compared with: ``others``, or ``chance`` if nothing
                is known about others.
        """
        wide = max(1, items.shape[1] * max(1, self.ratings.features.shape[1]))
        step = max(1, _AT_ONCE // wide)
        found: list[list[str | None]] = []
        for first in range(0, len(items), step):
            some = slice(first, first + step)
            found += self._some(why.of_users(some), items[some], against)
        return found

    def _some(self, why: Explanation, items: NDArray[Any], against: str) -> list[list[str | None]]:
        clauses = [self._many(why, items)]
        names, features = self._names(), self.ratings.features
        for kind, of, least, unit in (
            ("leaning", why.leaning, _HIGHER, TENTH),
            ("interest", why.interest, _OFTEN, 1.0),
        ):
            if of is not None and np.shape(of)[1] == features.shape[1] > 0:
                clauses.append(_of_features(kind, of, features[items], names, least, unit))
        if why.tastes is not None:
            added = np.take_along_axis(np.asarray(why.tastes, np.float64), items, axis=1)
            strength = np.where(added >= _TASTES, added, 0.0)
            clauses.append(_Clause(strength, np.zeros_like(items), "tastes", added))
        strengths = np.stack([clause.strength for clause in clauses])
        order = np.argsort(-strengths, axis=0, kind="stable")[:2]
        best = np.take_along_axis(strengths, order, axis=0)
        said = (best > 0) & (best >= _BESIDE * best[:1])
        reasons: list[list[str | None]] = [[None] * items.shape[1] for _ in items]
        for user, place in np.argwhere(said[0]).tolist():
            chosen = order[said[:, user, place], user, place]
            found = [clauses[clause] for clause in chosen]
            reasons[user][place] = self._joined(found, (user, place), names, against)
        return reasons

    def _joined(
        self,
        found: Sequence[_Clause],
        place: tuple[int, int],
        names: Sequence[str | None],
        against: str,
    ) -> str:
        """One or two clauses as one text."""
        words = [self._words(clause, place, names, against) for clause in found]
        about = [names[clause.which[place]] if clause.of_feature else None for clause in found]
        if len(found) == 2 and about[0] is not None and about[0] == about[1]:
            again = words[1].removeprefix("you ").replace(about[0], "it", 1)
            return f"{words[0]} and {again}"
        return "; ".join(words)

    def _many(self, why: Explanation, items: NDArray[Any]) -> _Clause:
        """What all users together say about each item."""
        popular, good = np.zeros(items.shape), np.zeros(items.shape)
        if why.popularity is not None:
            popular = np.asarray(why.popularity, np.float64)[items]
            popular = np.where(popular >= _POPULAR, popular, 0.0)
        if why.quality is not None:
            good = np.asarray(why.quality, np.float64)[items]
            good = np.where(good >= _HIGHER, good / TENTH, 0.0)
        return _Clause(popular + good, (popular > 0) + 2 * (good > 0), "many", good)

    def _words(
        self, clause: _Clause, place: tuple[int, int], names: Sequence[str | None], against: str
    ) -> str:
        which, value = int(clause.which[place]), float(clause.value[place])
        if clause.kind == "many":
            return _OF_MANY[which]
        if clause.kind == "tastes":
            return "fits what people like you pick"
        if clause.kind == "leaning":
            return f"you rate {names[which]} {self._higher(value)}"
        return f"you pick {names[which]} {_often(value, against)}"

    def _higher(self, leaning: float) -> str:
        """How much higher, on the scale of the data."""
        low, high = self.ratings.low, self.ratings.high
        value = leaning * (high - low)
        shown = f"{value:.1f} stars" if low >= 0 and 3 <= high <= 10 else f"{value:.2g} points"
        return f"{shown} above your mean"

    def _names(self) -> list[str | None]:
        catalogue = self.ratings.catalogue
        return [] if catalogue is None else [plain_name(name) for name in catalogue.names]


def _of_features(
    kind: str,
    of: ArrayLike,
    features: NDArray[np.float32],
    names: Sequence[str | None],
    least: float,
    unit: float,
) -> _Clause:
    """The feature with a name that moved each item up most.

    It counts only as far as the item's features together moved it up: an item that is lifted by
    one feature and pulled down by two others is not recommended because of the one.
    """
    finite = np.nan_to_num(np.asarray(of, np.float64), nan=0.0, posinf=_HUGE, neginf=-_HUGE)
    added = features * finite[:, None, :]
    together = added.sum(axis=2)
    added[:, :, [name is None for name in names]] = 0.0
    which = added.argmax(axis=2)
    own = np.take_along_axis(added, which[:, :, None], axis=2)[:, :, 0]
    strength = np.minimum(own, together)
    value = np.take_along_axis(finite, which, axis=1)
    return _Clause(np.where(strength >= least, strength / unit, 0.0), which, kind, value)


def _often(interest: float, against: str) -> str:
    times = float(np.exp(interest))
    as_often = "as often as others" if against == "others" else "as often as chance would"
    if times >= _MOST_TIMES:
        return f"more than {_MOST_TIMES:g} times {as_often}"
    return f"{times:.2g} times {as_often}"
