"""Read ratings from a table: which column is what, and what its cells mean.

What is not given is detected. Messages name the file and the line, never the content of a cell.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bgtplanner.data.columns import ROLES, Column, find_columns, has_header, is_count
from bgtplanner.data.files import DELIMITERS, OpenTable, open_table
from bgtplanner.errors import ConfigError, DataError
from bgtplanner.text import LONGEST_LABEL, MOST_LABELS

_IDS = ("user", "item", "client")
_YEAR_1980, _YEAR_2100 = 315_532_800, 4_102_444_800  # in seconds
_MOST_DIGITS = 18
_WHOLE = re.compile(f"(0|[1-9][0-9]{{0,{_MOST_DIGITS - 1}}})")  # written as it is read
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE | re.ASCII)
_Refuse = Callable[[NDArray[np.bool_], str], None]


@dataclass(frozen=True, kw_only=True)
class TableFormat:
    """How to read a table; what is None is detected.

    Attributes:
        delimiter: One character, or ``::``; also ``tab``, ``comma``, ``semicolon``, ``space``.
        header: Whether the first row holds names; by default, if its rating is not a number.
        user: Column of the user, by name or position from 0. By default it is found by its usual
            names, else it is the first column.
        item: Column of the item; by default likewise, else the second.
        rating: Column of the rating; by default likewise, else the third. ``"none"``: rows are
            clicks, plays or purchases without one, as they are by default if no column is left
            for it.
        time: Column of the time, in numbers or ISO dates; by default found by name.
        client: Column of the client; by default found by name only.
        whole_ids: Whether users and items must be plain integers, not text.
        bounds: Smallest and largest allowed rating.
        decimal_comma: Whether numbers are written as ``3,5``.
        unnamed_times: Whether the fourth column of a table without names is taken for the time if
            all of it could be: seconds or milliseconds since 1970. This looks at the data, so it
            is for whoever owns all of them, and not for one client.
    """

    delimiter: str | None = None
    header: bool | None = None
    user: Column = None
    item: Column = None
    rating: Column = None
    time: Column = None
    client: Column = None
    whole_ids: bool = False
    bounds: tuple[float, float] | None = None
    decimal_comma: bool = False
    unnamed_times: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """Columns of equal length. Ids are integers, or indices into the labels if there are any.

    Without a rating column, rows say what happened: clicks, plays, purchases. If `counts`, the
    name of its column says how often or how long it did.
    """

    user: NDArray[Any]
    item: NDArray[Any]
    rating: NDArray[np.float64] | None
    time: NDArray[np.float64] | None
    client: NDArray[Any] | None
    user_labels: NDArray[np.str_] | None
    item_labels: NDArray[np.str_] | None
    counts: bool = False

    def take(self, rows: NDArray[np.bool_]) -> Self:
        """Return only the given rows; ids and labels stay."""
        columns = {role: getattr(self, role) for role in ROLES}
        return replace(self, **{r: c[rows] for r, c in columns.items() if c is not None})


def read_table(path: Path | str, table_format: TableFormat | None = None) -> Table:
    r"""Read a table of ratings: CSV text, plain or gzipped, or Parquet.

    Args:
        path: The file. What it is shows in its first bytes, whatever the name.
        table_format: What is known about it; the rest is detected.

    Raises:
        DataError: If the file cannot be read as ratings; names the line.
        ConfigError: If the format has an impossible column or delimiter.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "ratings.csv")
        ...     _ = path.write_text("user,movieId,rating\nann,10,4.5\nbob,10,2\n")
        ...     table = read_table(path)
        >>> table.user.tolist(), table.user_labels.tolist(), table.rating.tolist()
        ([0, 1], ['ann', 'bob'], [4.5, 2.0])
    """
    import pyarrow as pa
    from pyarrow import compute

    path, wanted = Path(path), table_format or TableFormat()
    among = [of for of in DELIMITERS if of != "," or not wanted.decimal_comma]
    table = open_table(path, wanted.delimiter, among=among)
    if len(table.first) < 2:
        problem = "expected at least 3 columns (2 for clicks without ratings) separated by tab, "
        raise DataError(problem + "'::', ';', ',', '|' or space", path=path, line=table.line)
    place, header = _places(table, wanted)
    columns = dict(zip(place, table.columns(list(place.values()), header=header), strict=True))
    if wanted.unnamed_times and not header and wanted.time is None and len(table.first) > 3:
        (fourth,) = table.columns([3], header=header)
        if 3 not in place.values() and _are_times(fourth):
            place, columns = place | {"time": 3}, columns | {"time": fourth}
    if not len(columns["user"]):
        raise DataError("the file has a header and no ratings", path=path)
    found: dict[str, Any] = dict.fromkeys(ROLES)
    labels: dict[str, Any] = {}
    before = int(header and table.delimiter is not None)  # rows above the first rating
    for role in list(columns):
        column = columns.pop(role)  # they are large

        def refuse(bad: NDArray[np.bool_], problem: str, role: str = role) -> None:
            if bad.any():
                raise table.fault(int(bad.argmax()) + before, place[role], problem)

        try:
            if role in _IDS:
                found[role], labels[role] = _ids(column, refuse, wanted.whole_ids)
            else:
                if wanted.decimal_comma and pa.types.is_string(column.type):
                    column = compute.replace_substring(column, ",", ".")
                found[role] = _values(column, refuse, dates=role == "time")
        except pa.ArrowException:
            problem = f"column {place[role] + 1} cannot be read; expected text or numbers"
            raise DataError(problem, path=path) from None
        if role == "rating" and wanted.bounds is not None:
            low, high = wanted.bounds
            expected = f"from {low:g} to {high:g}" if np.isfinite(high) else f"at least {low:g}"
            outside = ~((found[role] >= low) & (found[role] <= high))
            refuse(outside, f"is out of range: expected a rating {expected}")
        if labels.get(role) is not None and len(labels[role]) > MOST_LABELS:
            raise DataError(f"names more than {MOST_LABELS:,} {role}s", path=path)
    counts = header and "rating" in place and is_count(table.first[place["rating"]])
    names = {"user_labels": labels["user"], "item_labels": labels["item"]}
    return Table(**found, **names, counts=counts)


def _places(table: OpenTable, wanted: TableFormat) -> tuple[dict[str, int], bool]:
    """Return the position of every column in use, by role, and whether there is a header."""
    given: dict[str, Column] = {role: getattr(wanted, role) for role in ROLES}
    header = wanted.header
    if table.delimiter is None:
        header = True
    elif header is None:
        header = has_header(table.first, given, table.path)
    elif not header and any(isinstance(of, str) and of != "none" for of in given.values()):
        raise ConfigError("columns are given by name, but data.header says there is no header")
    return find_columns(table.first, given, header=header, where=table.path), header


def _are_times(column: Any) -> bool:
    """Return whether all cells can be seconds or milliseconds since 1970, from 1980 to 2100."""
    import pyarrow as pa

    try:
        numbers = _numpy(column.cast(pa.float64()))
    except pa.ArrowInvalid:
        return False
    low, high = numbers.min(initial=np.inf), numbers.max(initial=-np.inf)
    return any(_YEAR_1980 * unit <= low <= high < _YEAR_2100 * unit for unit in (1, 1000))


def _ids(
    column: Any, refuse: _Refuse, whole_only: bool
) -> tuple[NDArray[Any], NDArray[np.str_] | None]:
    """Return ids as integers, if all of them are; else as places among the sorted labels."""
    import pyarrow as pa
    from pyarrow import compute

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_floating(column.type):
        column = compute.if_else(compute.is_finite(column), column, None)
    refuse(_numpy(column.is_null()), "is empty")
    if not pa.types.is_integer(column.type):
        column = column.cast(pa.string())
    if (whole := _as_integers(column)) is not None:
        return whole, None
    coded = column.cast(pa.string()).dictionary_encode()
    rows, labels = _numpy(coded.indices), compute.utf8_trim_whitespace(coded.dictionary)
    texts = labels.to_pylist()
    length = _numpy(compute.binary_length(labels))
    odd = np.array([whole_only and not _WHOLE.fullmatch(text) for text in texts], dtype=bool)
    zero = np.array(["\0" in text for text in texts], dtype=bool)
    blank = _numpy(compute.match_substring_regex(coded.dictionary, r'^\s+"'))
    for bad, problem in (
        (length == 0, "is empty"),
        (length > LONGEST_LABEL, f"is longer than {LONGEST_LABEL} bytes"),
        (odd, "is not a whole number"),
        (zero, "holds a zero byte"),
        (blank, "has a blank before its quote; remove it"),
    ):
        refuse(bad[rows], problem)
    if all(map(_WHOLE.fullmatch, texts)):  # such as numbers with blanks around them
        return _narrow(np.array(texts).astype(np.int64))[rows], None
    names, place = np.unique(np.array(texts), return_inverse=True)
    return place[rows], names


def _as_integers(column: Any) -> NDArray[Any] | None:
    """Return ids as integers, if each of them is one that is written as it is read; else None."""
    import pyarrow as pa

    numbers = column
    if pa.types.is_string(column.type):
        try:
            numbers = column.cast(pa.int64())
        except pa.ArrowInvalid:
            return None
        if not numbers.cast(pa.string()).equals(column):  # 007 is not 7
            return None
    found = _numpy(numbers)
    if found.min(initial=0) < 0 or int(found.max(initial=0)) >= 10**_MOST_DIGITS:
        return None
    return _narrow(found)


def _narrow(numbers: NDArray[Any]) -> NDArray[Any]:
    """Return whole numbers in four bytes each if they fit: they are sorted in half the time."""
    small = int(numbers.max(initial=0)) < 2**31
    return numbers.astype(np.int32 if small else np.int64, copy=False)


def _values(column: Any, refuse: _Refuse, *, dates: bool) -> NDArray[np.float64]:
    """Return numbers, exactly as ``float`` reads them; times may be dates, in seconds."""
    import pyarrow as pa
    from pyarrow import compute

    refuse(_numpy(column.is_null()), "is empty")
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        moment = column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
        column = compute.divide(moment.cast(pa.float64()), 1e6)
    if str(column.type) in ("string", "large_string", "string_view"):
        column = column.cast(pa.string())
        with contextlib.suppress(pa.ArrowInvalid):
            column = column.cast(pa.float64())
    else:
        column = column.cast(pa.float64())
    if not pa.types.is_string(column.type) and np.isfinite(value := _numpy(column)).all():
        return value
    value = np.empty(len(column))
    for row, cell in enumerate(column.to_pylist()):  # some cell is a date, or invalid
        try:
            value[row] = _number(str(cell), dates=dates)
        except ValueError as error:
            refuse(np.arange(len(column)) == row, str(error))
    return value


def _numpy(array: Any) -> NDArray[Any]:
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _number(cell: str, *, dates: bool) -> float:
    """Return a cell as a number; a ValueError says what is wrong, but not what the cell holds."""
    cell = cell.strip(" \t\n\r\v\f")
    if not cell:
        raise ValueError("is empty")
    if _NUMBER.fullmatch(cell):
        if np.isfinite(number := float(cell)):
            return number
    elif not _NOT_FINITE.fullmatch(cell):
        if not dates:
            raise ValueError("is not a number; expected a figure such as 3.5")
        try:
            moment = datetime.fromisoformat(cell)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            raise ValueError("is neither a number nor a date") from None
    raise ValueError("is not finite")
