"""Ratings as flat arrays: one row per rating, sorted by client, never padded.

A *user* is a person who rated; a *client* takes part in the federation and is the unit that
privacy protects. Usually they are the same; on MovieLens 1M the paper has about ten users per
client. All values are scaled to [0, 1].
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgtplanner.arguments import in_words, refuse_unless
from bgtplanner.data.catalogue import Catalogue, as_label
from bgtplanner.data.files import Column
from bgtplanner.data.tables import Labels, Table, TableFormat, last_of_each, read_table
from bgtplanner.errors import ConfigError, DataError

Scale = Literal["max", "minmax"] | tuple[float, float]
"""How raw values become [0, 1]: ``max`` divides by the largest value, ``minmax`` maps the smallest
to 0 and the largest to 1, and explicit bounds ``(low, high)`` are mapped to 0 and 1."""

Feedback = Literal["auto", "ratings", "clicks"]
"""What values are: ratings, or counts of clicks, plays or hours; ``auto``: as the column says."""

COUNT_CAP = 100.0
"""The largest count that counts; read off the data, it would reveal who has the most."""

_FEWEST_JUDGED = 20  # values, below which nothing is said about how they are distributed
_FAR = 10.0  # the largest of ratings is at most this, or this times what is usual


def as_scale(given: Any) -> Scale:
    """Return a scale that was given as a pair of bounds, or as text, such as ``1:5``."""
    if given in ("max", "minmax"):
        return "max" if given == "max" else "minmax"
    try:
        low, high = (float(of) for of in (given.split(":") if isinstance(given, str) else given))
    except (TypeError, ValueError, OverflowError):
        low = high = np.nan
    expected = "'max', 'minmax' or two finite numbers LOW:HIGH, such as 1:5"
    fits = bool(np.isfinite(low) and np.isfinite(high) and low < high)
    ConfigError.unless(fits, "scale", given, expected)
    return low, high


def scaled_values(
    raw: NDArray[np.float64] | None, length: int, scale: Any, usual: Scale, cap: float | None
) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """Return values on the scale of 0 to 1, by default the `usual` one, and what is known of it.

    With a `cap` they are counts, which become weights. If there are no values, or all are the
    same and above 0, they are clicks. Counts that nobody has called so are asked about.
    """
    asked = None if scale is None else as_scale(scale)
    click = "each row counts as a click (implicit feedback), with the value 1."
    clicks = {"low": 0.0, "high": 1.0, "implicit": True, "public": frozenset({"scale"})}
    if raw is None:
        fits = not isinstance(asked, tuple) or asked == (0, 1)
        ConfigError.unless(fits, "scale", scale, "nothing, or 0 and 1, as there are no values")
        return np.ones(length), clicks | {"notes": (f"There is no rating column: {click}",)}
    if cap is not None:
        ConfigError.unless(0 < cap < np.inf, "count_cap", cap, "a number above 0")
        if raw.min(initial=0.0) < 0:
            row = int((raw < 0).argmax()) + 1
            raise DataError(f"a count is below 0, first in row {row}; expected 0 or more")
        how = f"weighted by log(1 + count), up to a count of {cap:g}"
        known = clicks | {"notes": (f"Each row counts as clicks: {how}.",)}
        return np.log1p(np.minimum(raw, cap)) / np.log1p(cap), known
    second = float(np.sort(raw)[-2]) if length > 2 else np.inf
    most = min(np.median(raw), second / 5) if length >= _FEWEST_JUDGED else second
    if asked is None and raw.max(initial=0.0) > _FAR * max(1, most):  # counts, or one mistake?
        raise DataError(
            "the largest value is many times as large as most or as the next: are these counts, "
            "such as plays or hours? Say data.feedback=clicks (feedback='clicks' in Python); or "
            "state the scale of ratings, such as data.scale=1:5, and mend what is outside"
        )
    alike = length > 1 and bool((raw == raw[0]).all())
    low, high = asked if isinstance(asked, tuple) else (0.0, 1.0)
    if not isinstance(asked, tuple) and length:
        if alike and raw[0] > 0:
            note = f"All ratings are the same: {click}"
            return np.ones(length), clicks | {"notes": (note,), "public": frozenset()}
        to_zero = (asked or usual) == "minmax"
        low, high = float(raw.min()) if to_zero else 0.0, float(raw.max())
        if high / 2 - low / 2 > 1e300 or (high <= 0 and not to_zero):
            problem = "the values cannot be divided by the largest or are too far apart"
            raise DataError(f"{problem}; are they ratings? Give bounds with scale=(low, high)")
    outside = np.flatnonzero(~((raw >= low) & (raw <= high)))
    if outside.size:
        many = f"{outside.size} of {length} values lie outside the scale [{low:g}, {high:g}]"
        raise DataError(f"{many}, the first in row {outside[0] + 1}")
    note = "All ratings have the same value: there is nothing to learn from them."
    known = {"low": low, "high": high, "notes": (note,) if alike else ()}
    public = frozenset({"scale"} if isinstance(asked, tuple) else ())
    return (raw - low) / ((high - low) or 1.0), known | {"public": public}


IntArray = NDArray[np.int32]
FloatArray = NDArray[np.float32]

_WHOLE = re.compile("0|-?[1-9][0-9]{0,17}")  # integers that are written as they are read


@dataclass(frozen=True, kw_only=True, eq=False)
class Ratings:
    """Who rated what, as flat arrays sorted by client, then user, then item.

    Build it with :meth:`from_arrays`, :meth:`from_frame` or ``load_ratings``; the constructor
    trusts its arguments.

    Attributes:
        user, item: User index and item index of each rating.
        value: Each rating, scaled to [0, 1]; `low` and `high` are the raw values of 0 and 1.
        time: When it was given, in the unit of the source, if known.
        client_of_user: Client index of every user, including users without a rating.
        n_items: Number of items, including items without a rating.
        user_labels, item_labels: Label of each user and item in the source.
        name: Name of this set in reports.
        public: What was given, ``scale`` or ``catalogue``. What was read off the ratings instead
            reveals something about people, and no budget pays for that.
        catalogue: Titles and features of the items, in their order, if there are any.
        implicit: Whether these are clicks, plays or purchases. Their values are weights: 1, or the
            logarithm of a count as a share of that of the largest that counts.
        notes: What whoever starts a run should be told about how these were loaded.
        test: Which of them are marked as test ratings, if a column says so.

    Example:
        >>> ratings = Ratings.from_arrays(["ann", "bob", "ann"], [7, 7, 9], [1, 5, 3], scale="max")
        >>> ratings.n_users, ratings.n_items, ratings.n_clients
        (2, 2, 2)
        >>> ratings.value.tolist()
        [0.20000000298023224, 0.6000000238418579, 1.0]
    """

    user: IntArray
    item: IntArray
    value: FloatArray
    time: NDArray[np.float64] | None
    client_of_user: IntArray
    n_items: int
    low: float
    high: float
    user_labels: NDArray[Any]
    item_labels: NDArray[Any]
    name: str = "ratings"
    public: frozenset[str] = frozenset()
    catalogue: Catalogue | None = None
    implicit: bool = False
    notes: tuple[str, ...] = ()
    test: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.value)

    def __repr__(self) -> str:
        people = f"{self.n_users} users, {self.n_items} items, {self.n_clients} clients"
        return f"Ratings({self.name}: {len(self)} ratings, {people})"

    @property
    def n_users(self) -> int:
        """Number of users, including users without a rating."""
        return len(self.client_of_user)

    @cached_property
    def n_clients(self) -> int:
        """Number of clients; every client has at least one user."""
        return int(self.client_of_user.max(initial=-1)) + 1

    @cached_property
    def client(self) -> IntArray:
        """Client index of each rating, in ascending order."""
        return self.client_of_user[self.user]

    def take(self, rows: NDArray[Any]) -> Self:
        """The same users, items and clients, with only the given rows (a mask or indices)."""
        names = ("user", "item", "value", "time", "test")
        columns = {name: getattr(self, name) for name in names}
        return replace(self, **{name: of[rows] for name, of in columns.items() if of is not None})

    @property
    def features(self) -> FloatArray:
        """Public features of the items, ``[n_items, n_features]``; without any, no columns."""
        if self.catalogue is None:
            return np.zeros((self.n_items, 0), dtype=np.float32)
        return self.catalogue.features

    def labels_of_clients(self) -> list[tuple[Any, ...]]:
        """Return the labels of each client's users, by the client's place."""
        order = np.argsort(self.client_of_user, kind="stable")
        ends = np.bincount(self.client_of_user, minlength=self.n_clients).cumsum()[:-1]
        return [tuple(of.tolist()) for of in np.split(self.user_labels[order], ends)]

    def with_catalogue(self, catalogue: Catalogue) -> Self:
        """The same ratings with the items of a public catalogue: all of them, rated or not.

        The list of items then no longer reveals which ones were rated.
        """
        fits = isinstance(catalogue, Catalogue)
        refuse_unless(fits, "catalogue", catalogue, "a Catalogue; see Catalogue.from_frame")
        numbers = all(map(_WHOLE.fullmatch, catalogue.labels))  # whatever has been rated
        labels = catalogue.labels.astype(np.int64) if numbers else catalogue.labels
        order = np.argsort(labels, kind="stable")
        labels = labels[order]
        here = {label: place for place, label in enumerate(labels.astype(str).tolist())}
        own = [here.get(as_label(label), -1) for label in self.item_labels.tolist()]
        item = np.array(own, dtype=np.int64)[self.item]
        lacking = item < 0
        if lacking.any():
            number = len(np.unique(self.item[lacking]))
            problem = f"{lacking.sum():,} of {len(self):,} ratings are of {number:,} items that"
            asked = "are its labels those of the ratings? Complete it, or leave these ratings out"
            raise DataError(f"{problem} the catalogue lacks; {asked}")
        kept = replace(self, item=item.astype(np.int32), n_items=len(labels))
        return replace(
            kept.take(np.lexsort((kept.item, kept.user, kept.client))),
            item_labels=labels, catalogue=catalogue.take(order),
            public=self.public | {"catalogue"},
        )  # fmt: skip

    def to_raw(self, value: ArrayLike) -> NDArray[np.float64]:
        """Convert scaled values, such as predictions, back to the scale of the source."""
        try:
            scaled = np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise DataError(f"value = {in_words(value)}: expected numbers from 0 to 1") from error
        return scaled * (self.high - self.low) + self.low

    @classmethod
    def from_arrays(
        cls, user: ArrayLike, item: ArrayLike, value: ArrayLike | None = None, *,
        time: ArrayLike | None = None, client: ArrayLike | None = None, **options: Any,
    ) -> Self:  # fmt: skip
        """Build ratings from columns of equal length, with any labels for users and items.

        Without `client`, every user is a client. Without `value`, or without bounds if all values
        are the same and above 0, these are clicks with the value 1. Of several ratings of an item
        by a user, the latest counts if there are times, else the last. Further options are those
        of :meth:`from_table`.

        Raises:
            DataError: If a column or a value cannot be used; names the column and the row.
        """
        maybe = {"value": value, "time": time, "client": client}
        given = {name: column for name, column in maybe.items() if column is not None}
        names: Any = {name: name if name in given else None for name in maybe}
        return cls.from_frame({"user": user, "item": item} | given, **names, **options)

    @classmethod
    def from_frame(
        cls, frame: Any, *, user: Column = "user", item: Column = "item",
        value: Column = "rating", time: Column = "time", client: Column = "client",
        test: Column = None, decimal_comma: bool = False, **options: Any,
    ) -> Self:  # fmt: skip
        """Build ratings from anything with named columns: pandas, Polars, Arrow, a dict of lists.

        Columns of other names are found as in a file, by usual names, else by their places; None
        stands for no such column. With `decimal_comma`, numbers in columns of text are written as
        ``3,5``. `test` marks test ratings. Further options are those of :meth:`from_table`.

        Raises:
            ConfigError: If a column is not there, or has to be named; names all that are missing.

        Example:
            >>> Ratings.from_frame({"userId": [1, 2], "movieId": [5, 5], "rating": [0.5, 4.0]})
            Ratings(ratings: 2 ratings, 2 users, 1 items, 2 clients)
        """
        asked = {"user": user, "item": item, "rating": value, "time": time, "client": client}
        given = {role: name for role, name in (asked | {"test": test}).items() if name != role}
        known: Any = {role: "none" if name is None else name for role, name in given.items()}
        wanted = TableFormat(**known, decimal_comma=decimal_comma)
        return cls.from_table(read_table(frame, wanted), **options)

    @classmethod
    def from_table(
        cls, table: Table, *, users: ArrayLike | None = None, items: ArrayLike | None = None,
        scale: Scale | str | None = None, feedback: Feedback = "auto",
        count_cap: float = COUNT_CAP, name: str = "ratings", usual: Scale = "minmax",
    ) -> Self:  # fmt: skip
        """Build ratings from a table that was read.

        Args:
            table: Who rated what, and when.
            users: Labels of all users, if some have no rating.
            items: Labels of all items, if some have no rating; the public catalogue.
            scale: How raw values become [0, 1]; bounds, as two numbers or ``LOW:HIGH``, are
                public. By default it is `usual`, unless the values look like counts or one of
                them like a mistake: then it is asked for.
            feedback: ``clicks``: values are counts, such as plays or hours, and weigh the clicks
                by ``log(1 + count)``; ``auto``: what the name of their column says.
            count_cap: The largest count that counts; public, as bounds are.
            name: Name of this set in reports.
            usual: The scale of values about which nothing is asked.
        """
        refuse_unless(isinstance(name, str), "name", name, "text")
        possible = get_args(Feedback)
        ConfigError.unless(feedback in possible, "feedback", feedback, " or ".join(possible))
        counts = feedback == "clicks" or (feedback == "auto" and table.counts and scale is None)
        scaled, known = scaled_values(
            table.rating, len(table.user), scale, usual, count_cap if counts else None
        )
        user = table.user if users is None else table.user.among(users, "users")
        item = table.item if items is None else table.item.among(items, "items")
        client_of_user = np.arange(len(user.names), dtype=np.int32)
        if table.client is not None:
            client_of_user = _clients_of_users(table.client, user)
        place = np.empty_like(client_of_user)  # of each user, in the order of clients
        place[np.argsort(client_of_user, kind="stable")] = np.arange(len(place))
        pair = place[user.index].astype(np.int64) * len(item.names) + item.index
        marks = None if table.test is None else 2 * pair + table.test
        if marks is not None and len(np.unique(marks)) > len(np.unique(pair)):
            raise DataError("a rating is marked for training in one row and as a test in another")
        rows = last_of_each(pair, table.time)
        if repeated := len(pair) - len(rows):
            problem = f"{repeated:,} of {len(pair):,} rows repeat a user and an item"
            known["notes"] += (f"{problem}: the last counts.",)
        if items is not None:
            known["public"] |= {"catalogue"}
        return cls(
            user=user.index[rows], item=item.index[rows], value=scaled[rows].astype(np.float32),
            time=None if table.time is None else table.time[rows],
            test=None if table.test is None else table.test[rows],
            client_of_user=client_of_user, n_items=len(item.names),
            user_labels=user.names, item_labels=item.names, name=name, **known,
        )  # fmt: skip


def _clients_of_users(client: Labels, user: Labels) -> IntArray:
    """Return the client of each user; one without a rating is a client of its own."""
    client_of_user = np.full(len(user.names), -1, dtype=np.int32)
    client_of_user[user.index] = client.index
    if (client_of_user[user.index] != client.index).any():
        raise DataError("a user's ratings name more than one client")
    silent = np.flatnonzero(client_of_user < 0)
    client_of_user[silent] = len(client.names) + np.arange(len(silent))
    return client_of_user
