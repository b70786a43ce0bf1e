"""Divide ratings among clients, into training and test sets, and over time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgtplanner.data.ratings import IntArray, Ratings
from bgtplanner.errors import ConfigError, DataError

Within = Literal["user", "all", "last", "time", "leave-last", "marked"]
"""How a test set is held out; see :func:`split_ratings`."""

Arrival = Literal["random", "time"]
"""In which order the training ratings arrive."""


def deal_users(ratings: Ratings, clients: int, *, seed: int, merged: bool = False) -> Ratings:
    """Deal users at random to clients of about equal size, each protected with all its users.

    This is how the paper turns the 6,040 users of MovieLens 1M into 605 clients. If `merged`, as
    in the authors' code, they become one user, who may have rated an item several times.
    """
    expected = f"1 to {ratings.n_users} (the users)"
    ConfigError.unless(1 <= clients <= max(ratings.n_users, 1), "clients", clients, expected)
    shuffled = np.random.default_rng([seed, 0xC11E]).permutation(ratings.n_users)
    client_of_user = np.empty(ratings.n_users, dtype=np.int32)
    client_of_user[shuffled] = np.arange(ratings.n_users) % clients
    order = np.lexsort((ratings.item, ratings.user, client_of_user[ratings.user]))
    dealt = replace(ratings.take(order), client_of_user=client_of_user)
    if not merged:
        return dealt
    one, labels = np.arange(clients, dtype=np.int32), np.arange(clients)
    return replace(dealt, user=dealt.client, client_of_user=one, user_labels=labels)


class Pairs(NamedTuple):
    """Client-item pairs, and the first round in which one of the ratings of each is known."""

    client: NDArray[np.int64]
    item: NDArray[np.int64]
    first: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """Training and test ratings, and when each training rating becomes known to its client.

    Attributes:
        train, test: Training ratings and those held out, sorted by client.
        arrival: First round (from 0) in which each training rating can be used.
        in_order: Whether they arrive in the order of their times, so that it can be measured how
            well each is predicted before it arrives.
    """

    train: Ratings
    test: Ratings
    arrival: IntArray
    in_order: bool = False

    def present(self, round_index: int) -> NDArray[np.bool_]:
        """Which training ratings are known in this round."""
        return self.arrival <= round_index

    @cached_property
    def pairs(self) -> Pairs:
        """Every client-item pair that has a training rating, sorted by client, then by item."""
        train = self.train
        key = train.client.astype(np.int64) * train.n_items + train.item
        distinct, index = np.unique(key, return_inverse=True)
        first = np.full(len(distinct), np.iinfo(np.int32).max)
        np.minimum.at(first, index, self.arrival)
        return Pairs(distinct // train.n_items, distinct % train.n_items, first)


def split_ratings(
    ratings: Ratings, *, seed: int, rounds: int, train_share: float = 0.8,
    within: Within = "user", leave_last: int = 1, initial_share: float = 0.5,
    arrival: Arrival = "random",
) -> Split:  # fmt: skip
    """Hold out a test set, and let part of the training ratings arrive over time.

    A user's only rating belongs to the training set, however the others are held out.

    Args:
        ratings: What to split.
        seed: Decides what is drawn, and which of ratings with the same time is the earlier one.
        rounds: Rounds over which the late ratings arrive.
        train_share: Share of the ratings that is trained on (4 of 5 in the paper).
        within: ``"user"`` keeps floor(share * n) of every user's ratings for training, drawn at
            random (MovieLens); ``"all"`` draws over all ratings at once (FilmTrust); ``"last"``
            holds out the last ratings of every user, as many as under ``"user"``; ``"time"``
            holds out the last ratings of all, from one moment on; ``"leave-last"`` holds out the
            last `leave_last` ratings of every user, and leaves each at least one; ``"marked"``
            those that a column of the table marks.
        leave_last: How many ratings of a user ``"leave-last"`` holds out.
        initial_share: Share of each client's training ratings that is there from the start
            (rounded up); the rest arrives evenly over the rounds. 1 turns arrival off.
        arrival: ``"random"``: in an order drawn for each client. ``"time"``: in the order of their
            times; then the shares are those of all ratings, and not of each client's.

    Example:
        >>> ratings = Ratings.from_arrays([1] * 10, range(10), range(10))
        >>> split = split_ratings(ratings, seed=0, rounds=5)
        >>> len(split.train), len(split.test), int(split.present(0).sum())
        (8, 2, 4)
    """
    if not len(ratings):
        raise DataError(f"{ratings.name}: has no ratings to split")
    generator = np.random.default_rng([seed, 0x5917])
    draw = generator.random(len(ratings))
    group = np.zeros_like(ratings.user) if within in ("all", "time") else ratings.user
    timeless = within in ("user", "all", "marked")
    when = None if timeless else _times(ratings, f"data.split={within}")
    rank, sizes = _rank_within(group, draw, when)
    kept = np.floor(train_share * sizes + 1e-9)
    if within == "leave-last":
        kept = np.maximum(sizes - leave_last, 1)
    drawn = rank < kept.astype(np.int32)[group]
    # Who has a single rating trains on it: as a test it would be of someone never heard of.
    alone = np.bincount(ratings.user, minlength=ratings.n_users)[ratings.user] == 1
    if within == "marked":
        if ratings.test is None:
            problem = "no column marks its test ratings; name one with data.test_column"
            raise DataError(f"{ratings.name}: {problem}")
        drawn, alone = ~ratings.test, np.zeros(len(ratings), dtype=bool)
    train, test = ratings.take(drawn | alone), ratings.take(~(drawn | alone))

    # Single ratings draw last, so that the others' order is the same without them.
    draw, first_drawn = np.empty(len(train)), drawn[drawn | alone]
    draw[first_drawn] = generator.random(int(drawn.sum()))
    # A random phase per client, so that the first late ratings do not all come at once.
    phase = np.zeros(1) if arrival == "time" else generator.random(train.n_clients)
    draw[~first_drawn] = generator.random(len(train) - int(drawn.sum()))
    group, when = train.client, None
    if arrival == "time":
        group, when = np.zeros_like(train.user), _times(train, "data.arrival=time")
    rank, sizes = _rank_within(group, draw, when)
    initial = np.ceil(initial_share * sizes - 1e-9)
    step = (rank - initial[group] + phase[group]) * (rounds - 1)
    step /= np.maximum(sizes - initial, 1)[group]
    # The minimum matters with one round, or if rounding lifts the last step to a whole round.
    late = np.minimum(1 + np.floor(step), rounds - 1)
    first = np.where(rank >= initial[group], late, 0).astype(np.int32)
    return Split(train=train, test=test, arrival=first, in_order=arrival == "time")


def _times(ratings: Ratings, asked: str) -> NDArray[np.float64]:
    """The times of ratings, which someone has asked to go by."""
    if ratings.time is None:
        mend = "data.time_column, or set data.split=user and data.arrival=random"
        problem = f"has no times, which {asked} goes by; name their column with {mend}"
        raise DataError(f"{ratings.name}: {problem}")
    return ratings.time


def _rank_within(
    group: IntArray, draw: NDArray[np.float64], when: NDArray[np.float64] | None
) -> tuple[IntArray, NDArray[np.int64]]:
    """Rank of each row in its group, by time if given and then by draw, and the groups' sizes."""
    sizes = np.bincount(group)
    order = np.lexsort((draw, group) if when is None else (draw, when, group))
    rank = np.empty(len(group), dtype=np.int32)
    rank[order] = np.arange(len(group)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return rank, sizes
