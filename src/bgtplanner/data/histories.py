"""What some people have rated, read from whatever holds it; a list is made of each history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgtplanner.data.files import columns_of_frame
from bgtplanner.data.ratings import last_of_each
from bgtplanner.errors import DataError


class Histories(NamedTuple):
    """What some people have rated, one person after the other."""

    starts: NDArray[np.int64]  # of each person's entries, and the end
    item: NDArray[np.int64]  # index of the item
    value: NDArray[np.float64]  # the rating from 0 to 1; NaN if it was only picked

    def some(self, begin: int, end: int) -> Histories:
        """Return the histories of the people from one index up to another."""
        starts = self.starts[begin : end + 1]
        rows = slice(starts[0], starts[-1])
        return Histories(starts - starts[0], self.item[rows], self.value[rows])

    def sums(self, entries: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sum of entries over each person."""
        begin, end = self.starts[:-1], self.starts[1:]
        summed = np.zeros((len(begin), *entries.shape[1:]))
        summed[end > begin] = np.add.reduceat(entries, begin[end > begin], axis=0)
        return summed


def read_histories(
    given: Any, place: Mapping[str, int], scale: tuple[float, float] | None
) -> tuple[list[Any], Histories]:
    """Return people, and what they have rated of the items that have a place.

    A mapping has what each person has rated: ratings by item, or only the items. A frame has the
    columns ``user``, ``item`` and, unless there is no `scale`, ``rating``. Of several ratings of
    an item, the last counts. Errors do not name a rating.
    """
    if isinstance(given, Mapping) and not {"user", "item"} <= set(given):
        labels = list(given)
        parts = [of if isinstance(of, Mapping) else list(of) for of in given.values()]
        person = np.repeat(np.arange(len(labels)), [len(part) for part in parts])
        item = np.array([str(of) for part in parts for of in part], dtype=str)
        value = np.concatenate([np.zeros(0), *(_scaled(part, scale) for part in parts)])
    else:
        columns = columns_of_frame(given)
        needed = ("user", "item") if scale is None else ("user", "item", "rating")
        if missing := [name for name in needed if name not in columns]:
            lacking, has = " and ".join(missing), ", ".join(columns)
            raise DataError(f"the frame has no column {lacking}; it has {has}")
        found, person = np.unique(np.asarray(columns["user"]), return_inverse=True)
        labels, item = found.tolist(), np.asarray(columns["item"])
        value = _scaled(np.asarray(columns[needed[-1]]), scale)
    known, which = np.unique(item, return_inverse=True)
    places = [place.get(str(of), -1) for of in known.tolist()]
    index = np.array(places, dtype=np.int64)[which]
    rows = last_of_each(np.where(index < 0, -1, person * len(place) + index))
    rows = rows[index[rows] >= 0]
    starts = np.searchsorted(person[rows], np.arange(len(labels) + 1))
    return labels, Histories(starts, index[rows], value[rows])


def _scaled(ratings: Any, scale: tuple[float, float] | None) -> NDArray[np.float64]:
    """Return ratings from 0 to 1, NaN for items that were only picked."""
    if scale is None or isinstance(ratings, list):
        return np.full(len(ratings), np.nan)
    low, high = scale
    given = list(ratings.values()) if isinstance(ratings, Mapping) else ratings
    try:
        found = (np.asarray(given, dtype=np.float64) - low) / (high - low)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError("history: expected a number for each item") from error
    if not ((found >= -1e-9) & (found <= 1 + 1e-9)).all():
        raise DataError(f"history: a rating lies outside the model's scale, {low:g} to {high:g}")
    return np.asarray(found)
