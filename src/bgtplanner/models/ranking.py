"""Which items are recommended to whom, what each list rests on, and why, in words.

A list has the items that a user has not rated, in the order of the model's ranking. If the server
has not learned anything yet, the list of a model that knows users' leanings towards public
features rests on these alone; any other ranking would be arbitrary, and there is no list.

The reasons are made in :mod:`bgtplanner.published.reasons`, from the model's own explanation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgtplanner.data.ratings import Ratings
from bgtplanner.errors import NothingLearnedError
from bgtplanner.published.model import Recommended
from bgtplanner.published.reasons import Described, Explanation, reasons_of

Basis = Literal["model", "features", "nothing"]  # what a list rests on

SEED = 20_161_010  # of the order of equal items, and of the users that are drawn; it is public
_AT_ONCE = 1 << 22  # scores held in memory at a time
_FEWEST = 64  # users ranked at a time: fewer would be padded to as many


class Block(NamedTuple):
    """The lists of some users, given by their labels, and what each list rests on."""

    users: list[Any]
    lists: list[list[Recommended]]
    bases: list[Basis]

    @property
    def rows(self) -> list[Recommended]:
        """All lines of all lists."""
        return [row for rows in self.lists for row in rows]


@dataclass(frozen=True, kw_only=True)
class Recommender:
    """All that lists of recommendations are made of. Users and items are indices here."""

    ratings: Ratings  # whose labels, scale and catalogue are used
    known: Ratings  # by now; their items are not recommended again
    learned: bool  # whether the server has learned anything
    rank: Callable[[NDArray[Any]], ArrayLike]
    explain: Callable[[NDArray[Any]], Explanation]
    predict: Callable[[NDArray[Any], NDArray[Any]], ArrayLike]

    def blocks(self, users: ArrayLike, top: int) -> Iterator[Block]:
        """Yield the lists of some users, different ones, in their order, many at a time."""
        ratings, catalogue = self.ratings, self.ratings.catalogue
        names = () if catalogue is None else catalogue.names
        about = Described(ratings.features, names, ratings.low, ratings.high)
        wide, which = top * ratings.features.shape[1], np.asarray(users, dtype=np.int32)
        whom = "others" if self.learned else "chance would"
        for some, items, ranks in best_unrated(self.rank, self.known, which, top, wide):
            why, numbers = self.explain(some), (items >= 0).sum(axis=1).tolist()
            explained = why.leaning is not None or why.interest is not None
            basis: Basis = "model" if self.learned else "features" if explained else "nothing"
            bases: list[Basis] = [basis if stands else "nothing" for stands in ranks.tolist()]
            titles: Any = np.full(items.shape, None)
            predicted = titles
            if catalogue is not None and catalogue.titles is not None:
                titles = catalogue.titles[items]
            if len(self.known) and np.ptp(self.known.value) > 0:  # they are ratings, not clicks
                pairs = np.repeat(some, items.shape[1]), items.ravel().astype(np.int32)
                predicted = ratings.to_raw(self.predict(*pairs)).reshape(items.shape)
            cells = [part.tolist() for part in (ratings.item_labels[items], titles, predicted)]
            cells.append(reasons_of(about, why, items, whom))
            labels = ratings.user_labels[some].tolist()
            lists = [
                [
                    Recommended(user, at + 1, *(column[row][at] for column in cells))
                    for at in range(0 if bases[row] == "nothing" else numbers[row])
                ]
                for row, user in enumerate(labels)
            ]
            yield Block(labels, lists, bases)


def best_unrated(
    rank: Callable[[Any], Any], known: Ratings, users: NDArray[Any], size: int, wide: int = 0
) -> Iterator[tuple[NDArray[Any], NDArray[np.int64], NDArray[np.bool_]]]:
    """Yield users, the best items that each has not rated, and whether they were told apart.

    There are -1 where nothing is left, or a score is not a finite number. Of items with equal
    scores, those come first that come first in one fixed random order. Numbers of users at a time
    are powers of two, for which models are compiled; `wide` numbers for each fit into memory.
    """
    order = np.argsort(known.user, kind="stable")
    starts = np.searchsorted(known.user[order], np.arange(known.n_users + 1))
    turn = np.argsort(np.random.default_rng(SEED).permutation(known.n_items))
    step = 1 << (max(_FEWEST, _AT_ONCE // max(known.n_items, wide)).bit_length() - 1)
    for first in range(0, len(users), step):
        some = users[first : first + step]
        scores = np.array(rank(some), dtype=np.float32, order="C")
        scores[~np.isfinite(scores)] = -np.inf
        counts = starts[some + 1] - starts[some]
        row = np.repeat(np.arange(len(some)), counts)
        skipped = np.repeat(starts[some] - np.cumsum(counts) + counts, counts)
        scores[row, known.item[order[np.arange(len(row)) + skipped]]] = -np.inf
        lowest = np.where(scores > -np.inf, scores, np.inf).min(axis=1)
        differ = (scores.max(axis=1) > lowest) | (counts + 1 >= known.n_items)
        # Only scores that can be among the highest are sorted.
        place = known.n_items - min(size, known.n_items)
        high, column = np.nonzero(scores >= np.partition(scores, place, axis=1)[:, [place]])
        in_order = column[np.lexsort((turn[column], -scores[high, column], high))]
        begin = np.searchsorted(high, np.arange(len(some)))[:, None]
        best = in_order[begin + np.arange(known.n_items - place)]
        left = np.take_along_axis(scores, best, axis=1) > -np.inf
        yield some, np.where(left, best, -1), differ


def note_of(bases: Counter[Basis], learned: bool) -> str | None:
    """Return what must be said about lists, by their bases; refuse if there is none at all."""
    total = sum(bases.values())
    if bases["model"] == total:
        return None
    cause = "the model ranks all items alike" if learned else "nothing was learned from others yet"
    if bases["nothing"] == total:
        raise NothingLearnedError(
            f"{cause}, and there are no leanings towards features of the items to go by. Let more "
            "rounds be paid for, run again with a larger --epsilon, or give features of the items"
        )
    words: dict[Basis, str] = {
        "features": "items with the features that the user's own ratings lean towards",
        "nothing": "no list, since nothing else is known about the items either",
    }
    parts = [
        text + (f" ({bases[basis]:,} of {total:,} users)" if bases[basis] < total else "")
        for basis, text in words.items()
        if bases[basis]
    ]
    cause += " for some users" if learned else ""
    return f"{cause[0].upper()}{cause[1:]}; shown instead: {', '.join(parts)}."
