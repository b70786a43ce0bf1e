"""Ratings as flat arrays: one row per rating, sorted by client, never padded.

A *user* is a person who rated; a *client* takes part in the federation and is the unit that
privacy protects. Usually they are the same; on MovieLens 1M the paper has about ten users per
client. All values are scaled to [0, 1].
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgtplanner.arguments import in_words, refuse_unless
from bgtplanner.data.catalogue import Catalogue, as_label
from bgtplanner.data.columns import columns_of_frame, is_missing
from bgtplanner.errors import ConfigError, DataError, quoted

IntArray = NDArray[np.int32]
FloatArray = NDArray[np.float32]

_WHOLE = re.compile("0|-?[1-9][0-9]{0,17}")  # integers that are written as they are read

_NO_LABELS = (list, tuple, dict, set, frozenset, np.ndarray)

Scale = Literal["max", "minmax"] | tuple[float, float]
"""How raw values become [0, 1]: ``max`` divides by the largest value, ``minmax`` maps the smallest
to 0 and the largest to 1, and explicit bounds ``(low, high)`` are mapped to 0 and 1."""

Duplicates = Literal["last", "first", "mean", "error"]
"""What happens when a user rated the same item twice."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Ratings:
    """Who rated what, as flat arrays sorted by client, then user, then item.

    Build it with :meth:`from_arrays`, :meth:`from_frame` or ``load_ratings``; the constructor
    trusts its arguments.

    Attributes:
        user: User index of each rating.
        item: Item index of each rating.
        value: Each rating, scaled to [0, 1].
        time: When it was given, in the unit of the source, if known.
        client_of_user: Client index of every user, including users without a rating.
        n_items: Number of items, including items without a rating.
        low: Raw value that became 0.
        high: Raw value that became 1.
        user_labels: Label of each user in the source.
        item_labels: Label of each item in the source.
        name: Name of this set in reports.
        public: What was given and not read off the ratings: ``scale``, ``catalogue``. Whatever was
            read off them reveals something about people, and no budget pays for that.
        catalogue: Titles and features of the items, in their order, if there are any.
        implicit: Whether these are clicks, plays or purchases, with the value 1, and no ratings.
        notes: What whoever starts a run should be told about how these were loaded.

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

    def __len__(self) -> int:
        return len(self.value)

    def __repr__(self) -> str:
        return (
            f"Ratings({self.name}: {len(self)} ratings, {self.n_users} users, "
            f"{self.n_items} items, {self.n_clients} clients)"
        )

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

    @property
    def density(self) -> float:
        """Share of the user-item pairs that have a rating."""
        return len(self) / (self.n_users * self.n_items) if len(self) else 0.0

    def take(self, rows: NDArray[Any]) -> Self:
        """The same users, items and clients, with only the given rows (a mask or indices)."""
        return replace(
            self,
            user=self.user[rows],
            item=self.item[rows],
            value=self.value[rows],
            time=None if self.time is None else self.time[rows],
        )

    @property
    def features(self) -> FloatArray:
        """Public features of the items, ``[n_items, n_features]``; without any, no columns."""
        if self.catalogue is None:
            return np.zeros((self.n_items, 0), dtype=np.float32)
        return self.catalogue.features

    def with_catalogue(
        self, catalogue: Catalogue, *, unknown: Literal["error", "leave-out"] = "error"
    ) -> Self:
        """The same ratings with the items of a public catalogue: all of them, rated or not.

        An item that no one has rated yet can then be recommended as well, and the list of items no
        longer reveals which ones were rated. Ratings of items that the catalogue lacks are an
        error, or they are left out, and :attr:`notes` has their number.

        Raises:
            DataError: If the catalogue lacks rated items, or has none of them.

        Example:
            >>> films = Catalogue.from_frame({"item": [7, 8, 9], "title": ["Up", "Ran", "If"]})
            >>> ratings = Ratings.from_arrays(["ann", "bob"], [7, 9], [1, 5], scale=(1, 5))
            >>> ratings.with_catalogue(films).item_labels.tolist()
            [7, 8, 9]
        """
        expected = "error or leave-out"
        ConfigError.unless(unknown in ("error", "leave-out"), "unknown", unknown, expected)
        fits = isinstance(catalogue, Catalogue)
        refuse_unless(fits, "catalogue", catalogue, "a Catalogue; see Catalogue.from_frame")
        texts = catalogue.labels
        numbers = self.item_labels.dtype.kind in "iuf" and all(map(_WHOLE.fullmatch, texts))
        labels = texts.astype(np.int64) if numbers else texts
        order = np.argsort(labels, kind="stable")
        labels = labels[order]
        here = {label: place for place, label in enumerate(labels.astype(str).tolist())}
        own = [n if isinstance(n, str) else as_label(n) for n in self.item_labels.tolist()]
        item = np.array([here.get(label, -1) for label in own], dtype=np.int64)[self.item]
        known, notes = item >= 0, self.notes
        if len(self) and not known.any():
            raise DataError(
                "the catalogue has none of the rated items; is it of these data, and are its "
                "labels those of the ratings? Name their column with data.items_column"
            )
        if not known.all():
            lacking = len(np.unique(self.item[~known]))
            problem = f"{(~known).sum():,} of {len(self):,} ratings are of {lacking:,} items that"
            if unknown == "error":
                raise DataError(
                    f"{problem} the catalogue lacks; complete it, or leave these ratings out with "
                    "data.unknown_items=leave-out"
                )
            notes = (*notes, f"{problem} the catalogue lacks: they are left out.")
        kept = replace(self.take(known), item=item[known].astype(np.int32), n_items=len(labels))
        return replace(
            kept.take(np.lexsort((kept.item, kept.user, kept.client))),
            item_labels=labels,
            catalogue=catalogue.take(order),
            public=self.public | {"catalogue"},
            notes=notes,
        )

    def to_raw(self, value: ArrayLike) -> NDArray[np.float64]:
        """Convert scaled values, such as predictions, back to the scale of the source."""
        try:
            scaled = np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError, OverflowError) as error:
            raise DataError(f"value = {in_words(value)}: expected numbers from 0 to 1") from error
        return scaled * (self.high - self.low) + self.low

    @classmethod
    def from_arrays(
        cls,
        user: ArrayLike,
        item: ArrayLike,
        value: ArrayLike | None = None,
        *,
        time: ArrayLike | None = None,
        client: ArrayLike | None = None,
        users: ArrayLike | None = None,
        items: ArrayLike | None = None,
        scale: Scale = "minmax",
        duplicates: Duplicates = "last",
        name: str = "ratings",
    ) -> Self:
        """Build ratings from columns of equal length, with any labels for users and items.

        Args:
            user: Label of the user of each rating (numbers or text).
            item: Label of the item of each rating.
            value: Raw rating; None for implicit feedback such as clicks, which have the value 1.
                Values above 0 that are all the same are taken for clicks, too, without bounds.
            time: When it was given. If given, `duplicates` goes by time, else by position.
            client: Label of the client of each rating; by default every user is a client.
            users: Labels of all users, if some have no rating.
            items: Labels of all items, if some have no rating; the public catalogue.
            scale: How raw values become [0, 1]; bounds are public.
            duplicates: Which rating is kept when a user rated an item twice.
            name: Name of this set in reports.

        Raises:
            DataError: If a column or a value cannot be used; names the column and the row.
        """
        refuse_unless(isinstance(name, str), "name", name, "text")
        length = len(_column(user, "user") if value is None else _column(value, "value"))
        raw = None if value is None else _as_float(value, "value", length)
        scaled, known = _scaled(raw, length, as_scale(scale))
        user_labels, user_index = _index_labels(user, users, "user", length)
        item_labels, item_index = _index_labels(item, items, "item", length)
        when = None if time is None else _as_float(time, "time", length)
        client_of_user = np.arange(len(user_labels), dtype=np.int32)
        if client is not None:
            _, client_index = _index_labels(client, None, "client", length)
            client_of_user = _clients_of_users(client_index, user_index, len(user_labels))
        place = np.empty_like(client_of_user)  # of each user, in the order of clients
        place[np.argsort(client_of_user, kind="stable")] = np.arange(len(place))
        pair = place[user_index].astype(np.int64) * len(item_labels) + item_index
        rows, scaled = _without_duplicates(pair, scaled, when, duplicates)
        if items is not None:
            known["public"] |= {"catalogue"}
        return cls(
            user=user_index[rows],
            item=item_index[rows],
            value=scaled.astype(np.float32),
            time=None if when is None else when[rows],
            client_of_user=client_of_user,
            n_items=len(item_labels),
            user_labels=user_labels,
            item_labels=item_labels,
            name=name,
            **known,
        )

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        user: str = "user",
        item: str = "item",
        value: str | None = "rating",
        time: str | None = None,
        client: str | None = None,
        **options: Any,
    ) -> Self:
        """Build ratings from anything with named columns: pandas, polars, Arrow, a dict of lists.

        Columns are given by name; ``value=None`` for implicit feedback such as clicks. Further
        options are those of :meth:`from_arrays`.

        Example:
            >>> Ratings.from_frame({"user": [1, 2], "item": [5, 5], "rating": [0.5, 4.0]})
            Ratings(ratings: 2 ratings, 2 users, 1 items, 2 clients)
        """
        named = {"user": user, "item": item, "value": value, "time": time, "client": client}
        known, columns = columns_of_frame(frame), dict[str, Any]()
        for argument, name in named.items():
            if name is not None and name not in known:
                clicks = "; for clicks without ratings: value=None" * (argument == "value")
                problem = f"no such column; the frame has {list(known)}{clicks}"
                raise DataError(f"{argument}={name!r}: {problem}")
            columns[argument] = None if name is None else known[name]
        return cls.from_arrays(**columns, **options)


def _scaled(
    raw: NDArray[np.float64] | None, length: int, scale: Scale
) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """Return values on the scale of 0 to 1, and what is known about the scale.

    If there are no values, or all are the same and above 0, they are clicks.
    """
    given = raw is None or not isinstance(scale, str)
    if raw is None and not isinstance(scale, str) and scale != (0, 1):
        expected = "nothing, or 0 and 1, as there are no values"
        raise ConfigError(f"scale = {quoted(scale)}: expected {expected}")
    public = frozenset({"scale"} if given else ())
    alike = raw is not None and length > 1 and bool((raw == raw[0]).all())
    if raw is None or (alike and not given and raw[0] > 0):
        why = "There is no rating column" if raw is None else "All ratings are the same"
        note = f"{why}: each row counts as a click (implicit feedback), with the value 1."
        known = {"low": 0.0, "high": 1.0, "implicit": True, "notes": (note,)}
        return np.ones(length), known | {"public": public}
    if alike and not given:
        raise DataError(
            f"all {length:,} values are the same and not above 0, so that there is "
            "nothing to learn; give values that differ, or bounds with scale=(low, high)"
        )
    low, high = (0.0, 1.0) if isinstance(scale, str) else scale
    if isinstance(scale, str) and length:
        low, high = 0.0 if scale == "max" else float(raw.min()), float(raw.max())
        if high / 2 - low / 2 > 1e300 or (scale == "max" and high <= 0):
            problem = "the values cannot be divided by the largest or are too far apart"
            raise DataError(f"{problem}; are they ratings? Give bounds with scale=(low, high)")
    outside = np.flatnonzero(~((raw >= low) & (raw <= high)))
    if outside.size:
        raise DataError(
            f"{outside.size} of {length} values lie outside the scale [{low:g}, {high:g}], "
            f"the first in row {outside[0] + 1}"
        )
    note = "All ratings have the same value: there is nothing to learn from them."
    known = {"low": low, "high": high, "notes": (note,) if alike else (), "public": public}
    return (raw - low) / ((high - low) or 1.0), known


def _column(column: ArrayLike, name: str, length: int | None = None) -> NDArray[Any]:
    """Return a column as an array with an entry for each rating, none of them masked."""
    try:
        array = np.asarray(column)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name}: expected one label or number per rating, in a list") from error
    if array.ndim != 1:
        what = in_words(column) if array.ndim == 0 else f"shape {array.shape}"
        raise DataError(f"{name} = {what}: expected a list or array with one entry per rating")
    if length not in (None, len(array)):
        expected = f"{length} were expected, as many as there are ratings"
        raise DataError(f"{name} has {len(array)} entries, and {expected}")
    if np.ma.is_masked(column):
        raise DataError(f"{name} must not hold masked entries; leave these ratings out")
    return array


def _as_float(column: ArrayLike, name: str, length: int) -> NDArray[np.float64]:
    """Return a column of finite numbers."""
    given = _column(column, name, length)
    if given.dtype == object:
        given = np.array([np.nan if is_missing(of) else of for of in given.tolist()])
    try:
        if given.dtype.kind == "c":
            raise TypeError
        array = given.astype(np.float64, copy=False)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{name} must be numbers") from error
    bad = np.flatnonzero(~np.isfinite(array))
    if bad.size:
        raise DataError(
            f"{name} must be finite; {bad.size} entries are not, the first in row {bad[0] + 1}"
        )
    return array


def _index_labels(
    column: ArrayLike, known: ArrayLike | None, name: str, length: int
) -> tuple[NDArray[Any], IntArray]:
    """Return the labels, each once and in order, and which of them each entry is."""
    array = _labels(column, name, length)
    if known is None:
        labels, index = np.unique(array, return_inverse=True)
        return labels, index.astype(np.int32)
    labels = np.unique(_labels(known, f"{name}s"))
    index = np.minimum(np.searchsorted(labels, array), max(len(labels) - 1, 0))
    if len(array) and not (len(labels) and np.array_equal(labels[index], array)):
        raise DataError(f"{name} holds labels that are not among the given {name}s")
    return labels, index.astype(np.int32)


def _labels(column: ArrayLike, name: str, length: int | None = None) -> NDArray[Any]:
    """Return a column of labels, each of them a number or text."""
    array = _column(column, name, length)
    if array.dtype == object:
        missing = [is_missing(label) for label in array.tolist()]
        if any(missing):
            row = missing.index(True) + 1
            raise DataError(f"{name} must not hold missing labels; the first is in row {row}")
        if not any(isinstance(label, _NO_LABELS) for label in array.tolist()):
            array = array.astype(str)
    if array.dtype.kind not in "biufUSMm":
        raise DataError(f"{name} must hold labels: whole numbers or text")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise DataError(f"{name} must not hold NaN or infinity")
    return array


def as_scale(given: Any) -> Scale:
    """Return a scale that was given as a pair of bounds, or as text.

    Example:
        >>> as_scale("1:5"), as_scale((0.5, 4)), as_scale("max")
        ((1.0, 5.0), (0.5, 4.0), 'max')
    """
    if isinstance(given, str) and given in ("max", "minmax"):
        return "max" if given == "max" else "minmax"
    try:
        low, high = (float(of) for of in (given.split(":") if isinstance(given, str) else given))
    except (TypeError, ValueError, OverflowError):
        low = high = np.nan
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        expected = "'max', 'minmax' or two finite numbers LOW:HIGH, such as 1:5"
        raise ConfigError(f"scale={quoted(given)}: expected {expected}")
    return low, high


def _without_duplicates(
    pair: NDArray[np.int64],
    value: NDArray[np.float64],
    time: NDArray[np.float64] | None,
    rule: Duplicates,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The rows to keep, in the order of their user-item pairs, and their values."""
    if rule not in ("last", "first", "mean", "error"):
        raise ConfigError(f"duplicates={rule!r}: expected 'last', 'first', 'mean' or 'error'")
    order = np.argsort(pair, kind="stable") if time is None else np.lexsort((time, pair))
    begins = np.flatnonzero(np.diff(pair[order], prepend=-1))
    if len(begins) == len(order):
        return order, value[order]
    if rule == "error":
        raise DataError(f"{len(order) - len(begins)} ratings repeat a user-item pair")
    if rule == "mean":
        sums = np.add.reduceat(value[order], begins)
        return order[begins], sums / np.diff(begins, append=len(order))
    rows = order[begins if rule == "first" else np.append(begins[1:], len(order)) - 1]
    return rows, value[rows]


def _clients_of_users(client: IntArray, user: IntArray, n_users: int) -> IntArray:
    client_of_user = np.full(n_users, -1, dtype=np.int32)
    client_of_user[user] = client
    if (client_of_user[user] != client).any():
        raise DataError("a user's ratings name more than one client")
    silent = np.flatnonzero(client_of_user < 0)  # users without a rating: one client per user
    client_of_user[silent] = client.max(initial=-1) + 1 + np.arange(len(silent))
    return client_of_user
