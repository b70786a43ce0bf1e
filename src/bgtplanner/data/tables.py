"""Read ratings from a table, or some people's histories: which column is what, and what it means.

What is not given is detected. Messages name the file and the line, never the content of a cell.
Every column is coded: each distinct cell is read once, however many rows it stands in.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from bgtplanner.data import files
from bgtplanner.data.files import Column
from bgtplanner.errors import DataError
from bgtplanner.text import LONGEST_LABEL, MOST_LABELS

_YEAR_1980, _YEAR_2100 = 315_532_800, 4_102_444_800  # in seconds
_WHOLE = "^(0|[1-9][0-9]{0,17})$"  # a number that is written as it is read
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_MARKS = {"1": True, "true": True, "test": True, "0": False, "false": False, "train": False}
_Refuse = Callable[..., None]


@dataclass(frozen=True, kw_only=True)
class TableFormat:
    """How to read a table; what is None is detected.

    Attributes:
        delimiter: One character, or ``::``; also ``tab``, ``comma``, ``semicolon``, ``space``.
        header: Whether the first row holds names; by default, if its rating is not a number.
        user, item, rating: Columns by name or position from 0; by default found by their usual
            names, else the first three. With the rating ``"none"``, rows are clicks, plays or
            purchases, as they are by default if no column is left for it.
        time: Column of the time, in numbers or ISO dates, or ``"none"``; by default found by its
            usual names only, as is that of the `client`.
        test: Column that marks test ratings: 1 or 0, true or false, test or train; never detected.
        bounds: Smallest and largest allowed rating.
        decimal_comma: Whether numbers are written as ``3,5``.
        unnamed_times: Whether the fourth column of a table without names is the time if it can be:
            seconds or milliseconds since 1970. That looks at all data, so no client asks for it.
    """

    delimiter: str | None = None
    header: bool | None = None
    user: Column = None
    item: Column = None
    rating: Column = None
    time: Column = None
    client: Column = None
    test: Column = None
    bounds: tuple[float, float] | None = None
    decimal_comma: bool = False
    unnamed_times: bool = False


@dataclass(frozen=True, eq=False)
class Labels:
    """A column of labels: each of them once and in order, and which of them each row has."""

    names: NDArray[Any]
    index: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.index)

    @classmethod
    def from_column(cls, column: NDArray[Any]) -> Self:
        """Return the labels of an array with an entry for each row."""
        names, index = np.unique(column, return_inverse=True)
        return cls(names, index.astype(np.int32))

    def rows(self) -> NDArray[Any]:
        """Return the label of each row."""
        return self.names[self.index]

    def among(self, known: Any, name: str) -> Labels:
        """Return the same column with all the labels that there are, whether a row has them."""
        names = read_table({name: known, "item": known}, TableFormat(user=name)).user.names
        if names.dtype.kind != self.names.dtype.kind:
            names = np.unique(names.astype(np.str_))
        own = self.names.astype(names.dtype.kind)
        place = np.searchsorted(names, own)
        if not np.array_equal(names[place[place < len(names)]], own):
            raise DataError(f"there are labels that are not among the given {name}")
        return Labels(names, place[self.index].astype(np.int32))

    def __getitem__(self, rows: NDArray[np.bool_]) -> Labels:
        """Return the labels of some rows, without those that no row has any more."""
        return Labels.from_column(self.rows()[rows])


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """Columns of equal length.

    Without a rating column, rows say what happened: clicks, plays, purchases. If `counts`, the
    name of its column says how often or how long it did.
    """

    user: Labels
    item: Labels
    rating: NDArray[np.float64] | None
    time: NDArray[np.float64] | None
    client: Labels | None
    test: NDArray[np.bool_] | None = None
    counts: bool = False

    def take(self, rows: NDArray[np.bool_]) -> Self:
        """Return only the given rows."""
        columns = {role: getattr(self, role) for role in files.ROLES}
        return replace(self, **{role: of[rows] for role, of in columns.items() if of is not None})


def read_table(source: Any, table_format: TableFormat | None = None) -> Table:
    """Read a table of ratings: a file, known by its first bytes, or anything with named columns.

    What the format does not say is detected.

    Raises:
        DataError: If it cannot be read as ratings; names the line.
        ConfigError: If the format has an impossible column or delimiter.
    """
    wanted = table_format or TableFormat()
    if isinstance(source, str | Path):
        among = [of for of in files.DELIMITERS if of != "," or not wanted.decimal_comma]
        table = files.open_table(Path(source), wanted.delimiter, among=among)
    else:
        table = files.OpenTable.from_frame(source)
    if len(table.first) < 2:
        problem = "expected at least 3 columns (2 for clicks without ratings)"
        between = "separated by tab, '::', ';', ',', '|' or space"
        raise DataError(f"{problem} {between}", path=table.path, line=table.line)
    given: dict[str, Column] = {role: getattr(wanted, role) for role in files.ROLES}
    header = wanted.header if table.delimiter else True
    place, header = files.find_columns(table.first, given, header, where=table.path or "frame")
    guessed = wanted.unnamed_times and not header and wanted.time is None
    if guessed and len(table.first) > 3 and 3 not in place.values():
        place["time"] = 3
    cells = dict(zip(place, table.columns(list(place.values()), header=header), strict=True))
    if guessed and "time" in cells and not _are_times(cells["time"]):
        del cells["time"]
    if table.path is not None and not len(cells["user"]):
        raise DataError("there are names of columns and no ratings", path=table.path)
    read: dict[str, Callable[..., Any]] = {
        "user": labels_of, "item": labels_of, "client": labels_of, "test": _marks,
        "rating": partial(_numbers, comma=wanted.decimal_comma, bounds=wanted.bounds),
        "time": partial(_numbers, comma=wanted.decimal_comma, dates=True),
    }  # fmt: skip
    found: dict[str, Any] = dict.fromkeys(files.ROLES)
    for role in list(cells):  # which are large
        found[role] = read[role](cells.pop(role), partial(table.refuse, place[role], header))
    named = [table.first[place["rating"]]] if header and "rating" in place else []
    return Table(**found, counts=files.usual_place(named, files.COUNT_NAMES) is not None)


def _are_times(column: Any) -> bool:
    """Return whether all cells can be seconds or milliseconds since 1970, from 1980 to 2100."""
    import pyarrow as pa

    try:
        numbers = _numpy(column.dictionary.cast(pa.float64()))
    except pa.ArrowInvalid:
        return False
    low, high = numbers.min(initial=np.inf), numbers.max(initial=-np.inf)
    return any(_YEAR_1980 * unit <= low <= high < _YEAR_2100 * unit for unit in (1, 1000))


def labels_of(column: Any, refuse: _Refuse) -> Labels:
    """Return a column as labels: integers if all of them are, else text; bad cells are refused."""
    import pyarrow as pa
    from pyarrow import compute

    if pa.types.is_floating(column.type):
        column = compute.if_else(compute.is_finite(column), column, None)
    rows, cells = _coded(column, refuse)
    names = cells.cast(pa.string())
    whole = _numpy(compute.match_substring_regex(names, _WHOLE))
    long = _numpy(compute.binary_length(names)) > LONGEST_LABEL
    refuse(long, f"is longer than {LONGEST_LABEL} bytes", rows)
    refuse(_numpy(compute.match_substring(names, "\0")), "holds a zero byte", rows)
    found = _numpy(names.cast(pa.int64())) if whole.all() else _numpy(names).astype(np.str_)
    labels = Labels.from_column(found)
    refuse(labels.index >= MOST_LABELS, f"is one of more than {MOST_LABELS:,} labels", rows)
    return Labels(labels.names, labels.index[rows])


def _marks(column: Any, refuse: _Refuse) -> NDArray[np.bool_]:
    """Return which ratings a column marks as test ratings."""
    rows, cells = _coded(column, refuse)
    marks = [_MARKS.get(str(cell).lower()) for cell in cells.to_pylist()]
    unknown = np.array([mark is None for mark in marks], dtype=bool)
    refuse(unknown, "is not a mark; expected 1 or 0, true or false, test or train", rows)
    return np.array(marks, dtype=bool)[rows]


def _numbers(
    column: Any, refuse: _Refuse, comma: bool, dates: bool = False,
    bounds: tuple[float, float] | None = None,
) -> NDArray[np.float64]:  # fmt: skip
    """Return numbers, exactly as ``float`` reads them; times may be dates, in seconds."""
    import pyarrow as pa
    from pyarrow import compute

    rows, cells = _coded(column, refuse)
    if pa.types.is_timestamp(cells.type) or pa.types.is_date(cells.type):
        moment = cells.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
        cells = compute.divide(moment.cast(pa.float64()), 1e6)
    if comma and pa.types.is_string(cells.type):
        cells = compute.replace_substring(cells, ",", ".")
    try:
        numbers = _numpy(cells.cast(pa.float64()))
    except pa.ArrowInvalid:  # some cell is a date, written as Arrow does not know it, or invalid
        numbers = np.array([_number(str(cell), dates) for cell in cells.to_pylist()])
    what = "not a number; expected one such as 3.5 (3,5 needs data.decimal_comma=true)"
    refuse(np.isnan(numbers), f"is {'neither a number nor a date' if dates else what}", rows)
    refuse(np.isinf(numbers), "is not finite", rows)
    if bounds is not None:
        low, high = bounds
        expected = f"from {low:g} to {high:g}" if np.isfinite(high) else f"at least {low:g}"
        outside = ~((numbers >= low) & (numbers <= high))
        refuse(outside, f"is out of range: expected a rating {expected}", rows)
    return numbers[rows]


def _coded(column: Any, refuse: _Refuse) -> tuple[NDArray[np.int32], Any]:
    """Return which of its distinct cells each row has, and these; blanks around text are gone."""
    import pyarrow as pa
    from pyarrow import compute

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_duration(kind):
        refuse(np.ones(max(len(column), 1), dtype=bool), "holds neither text nor numbers")
    refuse(_numpy(column.is_null()), "is empty")
    coded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    rows, cells = _numpy(coded.indices), coded.dictionary
    if str(cells.type) in ("string", "large_string", "string_view"):
        cells = cells.cast(pa.string())
        if compute.any(compute.match_substring(cells, '"')).as_py():
            odd = compute.match_substring_regex(cells, r'^\s+"')
            refuse(_numpy(odd), "has a blank before its quote", rows)
        cells = compute.utf8_trim_whitespace(cells)
        refuse(_numpy(compute.binary_length(cells)) == 0, "is empty", rows)
    return rows, cells


def _numpy(array: Any) -> NDArray[Any]:
    """Return an Arrow array as one of NumPy."""
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _number(cell: str, dates: bool) -> float:
    """Return what a cell says, in seconds if it is a date; NaN if it is not a number."""
    if _NUMBER.fullmatch(cell):
        return float(cell)
    with contextlib.suppress(ValueError, OverflowError):
        if dates:
            moment = datetime.fromisoformat(cell)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return np.nan


def last_of_each(
    pair: NDArray[np.int64], time: NDArray[np.float64] | None = None
) -> NDArray[np.int64]:
    """Return the last row of every pair of a user and an item, in the order of the pairs."""
    order = np.argsort(pair, kind="stable") if time is None else np.lexsort((time, pair))
    return np.asarray(order[np.flatnonzero(np.diff(pair[order], append=-1))])


class Histories(NamedTuple):
    """What some people have rated, one person after the other."""

    starts: NDArray[np.int64]  # of each person's entries, and the end
    item: NDArray[np.int64]  # index of the item
    value: NDArray[np.float64]  # the rating from 0 to 1; NaN if it was only picked

    @property
    def person(self) -> NDArray[np.int64]:
        """Return whose each entry is."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

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
        columns = files.columns_of_frame(given)
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
