"""Which items are recommended to whom, and what each list rests on.

A list has the items that a user has not rated, in the order of the model's ranking. If the server
has not learned anything yet, or if the model ranks all items alike for a user, the order comes
from elsewhere, and the result says so: from popularity if that was released, or else from the
user's own leanings towards public features, which take no one else. If there is neither, there
is no list: ten arbitrary items would only look like one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgtplanner.data.ratings import Ratings
from bgtplanner.errors import NothingLearnedError
from bgtplanner.models.learner import Explanation
from bgtplanner.models.reasons import TENTH, Reasons

Basis = Literal["model", "popularity", "features", "nothing"]
"""What a list rests on."""

_AT_ONCE = 1 << 22  # scores held in memory at a time
_FEWEST_USERS = 64  # ranked at a time: fewer would be padded to as many
_RIDGE = 5.0  # weight of the prior, in ratings
_NOT_LEARNED = "nothing was learned from others yet"
_ADVICE = (
    "there is neither a released popularity nor a catalogue with features to go by. Let more "
    "rounds be paid for, run again with a larger --epsilon, or give features of the items"
)


class Recommended(NamedTuple):
    """One line of a list.

    Attributes:
        user: Label of the user.
        place: 1 for the first.
        item: Label of the item.
        title: Title of the item, if the catalogue has one.
        predicted: Predicted rating on the scale of the data; None if they are not ratings.
        reason: Why it is on the list, in words, if the model says.
    """

    user: Any
    place: int
    item: Any
    title: str | None
    predicted: float | None
    reason: str | None


class Block(NamedTuple):
    """The lists of some users.

    Attributes:
        users: Labels of the users.
        lists: A list for each of them, best item first; empty if there is none.
        bases: What each list rests on.
    """

    users: list[Any]
    lists: list[list[Recommended]]
    bases: list[Basis]


@dataclass(frozen=True, kw_only=True)
class Recommender:
    """All that lists of recommendations are made of. Users and items are indices here.

    Attributes:
        ratings: Whose labels, scale and catalogue are used.
        known: The ratings that are known by now; their items are not recommended again.
        learned: Whether the server has learned anything.
        rank: Returns the model's ranking of all items for some users, ``[users, n_items]``.
        explain: Returns what that ranking rests on.
        predict: Returns predicted ratings in [0, 1] of pairs of users and items.
    """

    ratings: Ratings
    known: Ratings
    learned: bool
    rank: Callable[[NDArray[np.int32]], ArrayLike]
    explain: Callable[[NDArray[np.int32]], Explanation]
    predict: Callable[[NDArray[np.int32], NDArray[np.int32]], ArrayLike]

    def blocks(self, users: ArrayLike, top: int) -> Iterator[Block]:
        """Yield the lists of some users, different ones, in their order, many at a time."""
        wanted = np.asarray(users, dtype=np.int32)
        fitting = max(1, _AT_ONCE // max(self.ratings.n_items, 1))
        at_once = max(_FEWEST_USERS, 1 << (fitting.bit_length() - 1))
        order = np.argsort(self.known.user, kind="stable")
        starts = np.searchsorted(self.known.user[order], np.arange(self.ratings.n_users + 1))
        for first in range(0, len(wanted), at_once):
            some = wanted[first : first + at_once]
            counts = starts[some + 1] - starts[some]
            row = np.repeat(np.arange(len(some)), counts)
            skipped = np.repeat(starts[some] - np.cumsum(counts) + counts, counts)
            yield self._block(some, row, order[np.arange(len(row)) + skipped], top)

    def _block(
        self, users: NDArray[np.int32], row: NDArray[Any], rated: NDArray[Any], top: int
    ) -> Block:
        """The lists of some users; `row` says which of them each of the `rated` ratings is of."""
        rated_items = self.known.item[rated]

        def unrated(scores: ArrayLike) -> NDArray[np.float32]:
            shape = (len(users), self.ratings.n_items)
            left = np.array(np.broadcast_to(np.asarray(scores, dtype=np.float32), shape))
            left[~np.isfinite(left)] = np.finfo(np.float32).min  # the last, all alike
            left[row, rated_items] = -np.inf
            return left

        scores, why = unrated(self.rank(users)), self.explain(users)
        explained = why.leaning is not None or why.interest is not None
        stands = ~_flat(scores)
        basis: NDArray[Any] = np.where(stands, "model", "nothing").astype(object)
        if not self.learned:
            basis[:] = np.where(stands & explained, "features", "nothing")
        if why.popularity is not None and (basis != "model").any():
            popular = unrated(why.popularity)
            known = (basis != "model") & ~_flat(popular)
            scores[known], basis[known] = popular[known], "popularity"
        alone = Explanation()
        if (basis == "nothing").any() and self.ratings.features.shape[1]:
            alone = self._alone(len(users), row, rated)
            own = unrated(_score(alone, self.ratings.features))
            better = (basis == "nothing") & ~_flat(own)
            scores[better], basis[better] = own[better], "alone"
        scores[basis == "nothing"] = -np.inf
        values, items = jax.lax.top_k(jnp.asarray(scores), min(top, self.ratings.n_items))
        return self._shown(users, np.asarray(items), np.asarray(values), basis, why, alone)

    def _shown(
        self,
        users: NDArray[np.int32],
        items: NDArray[Any],
        values: NDArray[Any],
        basis: NDArray[Any],
        why: Explanation,
        alone: Explanation,
    ) -> Block:
        in_words = Reasons(self.ratings)
        reasons: list[list[str | None]] = [[None] * items.shape[1] for _ in users]
        only = Explanation(popularity=why.popularity)
        for of, said, against in (
            ("model", why, "others"),
            ("features", why, "chance"),
            ("popularity", only, "others"),
            ("alone", alone, "chance"),
        ):
            which = np.flatnonzero(basis == of)
            if len(which):
                found = in_words.of(said.of_users(which), items[which], against)
                for place, words in zip(which.tolist(), found, strict=True):
                    reasons[place] = words
        ratings, catalogue, shape = self.ratings, self.ratings.catalogue, items.shape
        raw: Any = [[None] * shape[1]] * shape[0]
        if self.rates:
            predicted = self.predict(np.repeat(users, shape[1]), items.ravel().astype(np.int32))
            raw = ratings.to_raw(predicted).reshape(shape).tolist()
        titles: Any = np.full(shape, None)
        if catalogue is not None and catalogue.titles is not None:
            titles = catalogue.titles[items]
        names = ratings.user_labels[users].tolist()
        columns = (ratings.item_labels[items].tolist(), titles.tolist(), raw, reasons)
        lists = [
            [
                Recommended(name, place, *cells)
                for place, cells in enumerate(zip(*rows, strict=True), start=1)
            ][:number]
            for name, number, *rows in zip(
                names, np.isfinite(values).sum(axis=1).tolist(), *columns, strict=True
            )
        ]
        basis[basis == "alone"] = "features"
        return Block(names, lists, basis.tolist())

    @property
    def rates(self) -> bool:
        """Whether the data are ratings: at least two of those that are known differ."""
        return len(self.known) > 0 and bool(np.ptp(self.known.value) > 0)

    def _alone(self, users: int, row: NDArray[Any], rated: NDArray[Any]) -> Explanation:
        """Each user's leanings towards features, from the user's own ratings and no one else's."""
        features = self.ratings.features.astype(np.float64)
        share = features.mean(axis=0)
        leaning, interest = np.zeros((2, users, features.shape[1]))
        bounds = np.searchsorted(row, np.arange(users + 1))
        for user, (first, last) in enumerate(itertools.pairwise(bounds.tolist())):
            mine = rated[first:last]
            if not len(mine):
                continue
            had = features[self.known.item[mine]]
            value = self.known.value[mine].astype(np.float64)
            # Ridge regression with as many equations as there are ratings, not features.
            dual = np.linalg.solve(had @ had.T + _RIDGE * np.eye(len(mine)), value - value.mean())
            leaning[user] = had.T @ dual
            often = (had.sum(axis=0) + _RIDGE * share) / (len(mine) + _RIDGE)
            interest[user] = np.log(
                np.divide(often, share, out=np.ones_like(often), where=(share > 0) & (often > 0))
            )
        as_array: Any = jnp.asarray
        return Explanation(leaning=as_array(leaning), interest=as_array(interest))


def pairs_of(rows: Iterable[Recommended]) -> list[tuple[Any, float]]:
    """Return items and predicted ratings only; NaN for a rating that there is not."""
    return [(row.item, math.nan if row.predicted is None else row.predicted) for row in rows]


def note_of(bases: Mapping[Basis, int], learned: bool) -> str | None:
    """Return what must be said about lists that do not come from the model; None if all do.

    Args:
        bases: How many lists rest on what.
        learned: Whether the server has learned anything.

    Raises:
        NothingLearnedError: If there is no list at all.
    """
    total = sum(bases.values())
    left = {basis: number for basis, number in bases.items() if basis != "model" and number}
    if not left:
        return None
    if left.get("nothing") == total:
        what = _NOT_LEARNED if not learned else "the model ranks all items alike"
        raise NothingLearnedError(f"{what}, and {_ADVICE}")
    words = {
        "popularity": "the most popular items",
        "features": "items with the features that the user's own ratings lean towards",
        "nothing": "no list, since nothing else is known about the items either",
    }
    parts = [
        words[basis] + (f" ({number:,} of {total:,} users)" if number < total else "")
        for basis, number in sorted(left.items())
    ]
    cause = _NOT_LEARNED if not learned else "the model ranks all items alike for some users"
    return f"{cause[0].upper()}{cause[1:]}; shown instead: {', '.join(parts)}."


def _flat(scores: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which users have the same score for all items left, of which there are at least two."""
    left = np.isfinite(scores)
    lowest = np.where(left, scores, np.inf).min(axis=1, initial=np.inf)
    highest = scores.max(axis=1, initial=-np.inf)
    return np.asarray((left.sum(axis=1) > 1) & (highest <= lowest))


def _score(why: Explanation, features: NDArray[np.float32]) -> NDArray[np.float32]:
    leaning, interest = np.asarray(why.leaning), np.asarray(why.interest)
    return np.asarray((leaning / TENTH + interest) @ features.T, dtype=np.float32)
