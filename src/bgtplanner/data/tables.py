"""Read a table of ratings: CSV text, plain or gzipped, or Parquet.

What is not given is detected. Messages name the file and the line, never the content of a cell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bgtplanner.arguments import in_words
from bgtplanner.data.textfile import TextTable, bytes_of
from bgtplanner.errors import ConfigError, DataError
from bgtplanner.text import LONGEST_LABEL, MOST_BYTES_OF_A_CATALOGUE, MOST_LABELS, read_bytes

Column = str | int | None
"""A column by its name in the header, by its position from 0, or not given."""

_ROLES = ("user", "item", "rating", "time", "client")
_IDS = ("user", "item", "client")
_NEEDED = ("user", "item", "rating")
_KNOWN_NAMES = {
    "user": ("user", "userid", "uid", "reviewerid", "customerid"),
    "item": ("item", "itemid", "iid", "movie", "movieid", "productid", "asin", "bookid"),
    "rating": ("rating", "ratings", "value", "score", "stars"),
    "time": ("timestamp", "time", "date"),
    "client": ("client", "clientid"),
}
_MOST_DIGITS = 18
_WHOLE = re.compile(f"(0|[1-9][0-9]{{0,{_MOST_DIGITS - 1}}})")  # written as it is read
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE | re.ASCII)
_Fault = Callable[[int, str, str], DataError]
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
        time: Column of the time, in numbers or ISO dates; by default found by name only.
        client: Column of the client; by default found by name only.
        whole_ids: Whether users and items must be plain integers, not text.
        bounds: Smallest and largest allowed rating.
        parquet: Whether the file is Parquet, which has no delimiter and always has names.
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
    parquet: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """Columns of equal length. Ids are integers, or indices into the labels if there are any.

    Without a rating column, rows say what happened: clicks, plays, purchases.
    """

    user: NDArray[Any]
    item: NDArray[Any]
    rating: NDArray[np.float64] | None
    time: NDArray[np.float64] | None
    client: NDArray[Any] | None
    user_labels: NDArray[np.str_] | None
    item_labels: NDArray[np.str_] | None

    def take(self, rows: NDArray[np.bool_]) -> Self:
        """Only the given rows; ids and labels stay."""
        columns = {role: getattr(self, role) for role in _ROLES}
        return replace(self, **{r: c[rows] for r, c in columns.items() if c is not None})


def read_table(path: Path | str, table_format: TableFormat | None = None) -> Table:
    r"""Read a table of ratings.

    Args:
        path: The file. Gzip is detected by the first bytes, whatever the name.
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
    path, wanted = Path(path), table_format or TableFormat()
    columns, fault = (_parquet if wanted.parquet else _text)(path, wanted)
    if not len(columns["user"]):
        raise DataError("the file has a header and no ratings", path=path)
    found: dict[str, Any] = dict.fromkeys(_ROLES)
    labels: dict[str, Any] = {}
    for role in list(columns):
        column = columns.pop(role)  # they are large

        def refuse(bad: NDArray[np.bool_], problem: str, role: str = role) -> None:
            if bad.any():
                raise fault(int(bad.argmax()), role, problem)

        refuse(_numpy(column.is_null()), "is empty")
        if role in _IDS:
            found[role], labels[role] = _ids(column, refuse, wanted.whole_ids)
        else:
            found[role] = _values(column, refuse, dates=role == "time")
        if role == "rating" and wanted.bounds is not None:
            low, high = wanted.bounds
            expected = f"from {low:g} to {high:g}" if np.isfinite(high) else f"at least {low:g}"
            outside = ~((found[role] >= low) & (found[role] <= high))
            refuse(outside, f"is out of range: expected a rating {expected}")
        if labels.get(role) is not None and len(labels[role]) > MOST_LABELS:
            raise DataError(f"names more than {MOST_LABELS:,} {role}s", path=path)
    return Table(**found, user_labels=labels["user"], item_labels=labels["item"])


def _ids(
    column: Any, refuse: _Refuse, whole_only: bool
) -> tuple[NDArray[Any], NDArray[np.str_] | None]:
    """Return ids as integers, if all of them are; else as places among the sorted labels."""
    from pyarrow import compute

    if (whole := _as_integers(column)) is not None:
        return whole, None
    coded = column.cast("string").dictionary_encode()
    rows, labels = _numpy(coded.indices), compute.utf8_trim_whitespace(coded.dictionary)
    texts = labels.to_pylist()
    length = _numpy(compute.binary_length(labels))
    blank = compute.match_substring_regex(coded.dictionary, r'^\s+"')
    refuse((length == 0)[rows], "is empty")
    refuse((length > LONGEST_LABEL)[rows], f"is longer than {LONGEST_LABEL} bytes")
    odd = [whole_only and not _WHOLE.fullmatch(text) for text in texts]
    refuse(np.array(odd, dtype=bool)[rows], "is not a whole number")
    refuse(np.array(["\0" in text for text in texts], dtype=bool)[rows], "holds a zero byte")
    refuse(_numpy(blank)[rows], "has a blank before its quote; remove it")
    if all(map(_WHOLE.fullmatch, texts)):  # such as numbers with blanks around them
        return _narrow(np.array(texts).astype(np.int64))[rows], None
    names, place = np.unique(np.array(texts), return_inverse=True)
    return place[rows], names


def _values(column: Any, refuse: _Refuse, *, dates: bool) -> NDArray[np.float64]:
    """Return numbers, exactly as ``float`` reads them; times may be ISO dates, in seconds."""
    import pyarrow as pa

    try:
        value = _numpy(column.cast(pa.float64()))
    except pa.ArrowInvalid:
        value = np.array([np.nan])
    if np.isfinite(value).all():
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


def _as_integers(column: Any) -> NDArray[Any] | None:
    """The ids as integers, if each of them is one that is written as it is read; else None."""
    import pyarrow as pa

    if pa.types.is_string(column.type):
        try:
            numbers = column.cast(pa.int64())
        except pa.ArrowInvalid:
            return None
        if not numbers.cast(pa.string()).equals(column):  # 007 is not 7
            return None
    elif pa.types.is_integer(column.type):
        numbers = column
    else:
        return None
    found = _numpy(numbers)
    if found.min(initial=0) < 0 or int(found.max(initial=0)) >= 10**_MOST_DIGITS:
        return None
    return _narrow(found)


def _narrow(numbers: NDArray[Any]) -> NDArray[Any]:
    small = int(numbers.max(initial=0)) < 2**31
    return numbers.astype(np.int32 if small else np.int64, copy=False)


def _number(cell: str, *, dates: bool) -> float:
    """A cell as a number; a ValueError says what is wrong, but not what the cell holds."""
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


def _text(path: Path, wanted: TableFormat) -> tuple[dict[str, Any], _Fault]:
    """Return the columns of a text table by role, and what makes the error about a cell."""
    table = TextTable.open(bytes_of(path), path, wanted.delimiter)
    if table is None:
        raise DataError("the file is empty; expected a header and ratings", path=path)
    if len(table.first) < 2:
        problem = "expected at least 3 columns (2 for clicks without ratings) separated by tab, "
        raise DataError(problem + "'::', ';', ',', '|' or space", path=path, line=table.line)
    header = _has_header(table.first, wanted, path)
    place = _places(table.first, wanted, header, path, table.line)
    columns = table.columns(list(place.values()), header=header)

    def fault(row: int, role: str, problem: str) -> DataError:
        return table.fault(row + header, place[role], problem)

    return dict(zip(place, columns, strict=True)), fault


def _parquet(path: Path, wanted: TableFormat) -> tuple[dict[str, Any], _Fault]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.ParquetFile(pa.BufferReader(bytes_of(path)))
        names = table.schema_arrow.names
        place = _places(names, wanted, True, path)
        if len(set(names)) < len(names):
            raise DataError("has two columns of the same name", path=path)
        read = table.read(columns=[names[at] for at in place.values()])
        columns = {
            role: _as_text(read[names[at]].combine_chunks(), role) for role, at in place.items()
        }
    except (pa.ArrowException, OSError):
        problem = "cannot be read; expected Parquet, with ids and ratings in text or numbers"
        raise DataError(problem, path=path) from None

    def fault(row: int, role: str, problem: str) -> DataError:
        return DataError(f"row {row + 1}: column {place[role] + 1} {problem}", path=path)

    return columns, fault


def _as_text(column: Any, role: str) -> Any:
    """A Parquet column in the form of a text table: ids can be text, timestamps in seconds."""
    import pyarrow as pa
    from pyarrow import compute

    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if role in _IDS:
        if pa.types.is_floating(column.type):
            column = compute.if_else(compute.is_finite(column), column, None)
        return column if pa.types.is_integer(column.type) else column.cast(pa.string())
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        moment = column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
        return compute.divide(moment.cast(pa.float64()), 1e6)
    is_text = str(column.type) in ("string", "large_string", "string_view")
    return column.cast(pa.string() if is_text else pa.float64())


def _has_header(first: Sequence[str], wanted: TableFormat, path: Path) -> bool:
    """Whether the first row of a text table holds names."""
    given = {role: getattr(wanted, role) for role in _ROLES if not _without(wanted, role, first)}
    named = any(isinstance(column, str) for column in given.values())
    if wanted.header is not None:
        if named and not wanted.header:
            raise ConfigError("columns are given by name, but data.header says there is no header")
        return wanted.header
    usual = {role: usual_place(first, _KNOWN_NAMES[role]) for role in _ROLES}
    if named or usual["rating"] is not None:
        return True
    if len(first) > 2 and "rating" in given:
        at = wanted.rating if isinstance(wanted.rating, int) else 2
        return not _is_number(first[at if 0 <= at < len(first) else 2])
    header = usual["user"] is not None or usual["item"] is not None
    if not header and not all(map(_is_number, first)):  # ids alone: text or numbers
        raise ConfigError(
            f"{path}: are there names in the first row? Say so with header=True or "
            "header=False, or --set data.header=true on the command line"
        )
    return header


def _without(wanted: TableFormat, role: str, first: Sequence[str]) -> bool:
    """Whether the format says that there is no rating, and not that its column is so called."""
    return role == "rating" and wanted.rating == "none" and "none" not in first


def _places(
    first: Sequence[str], wanted: TableFormat, header: bool, path: Path, line: int | None = None
) -> dict[str, int]:
    """The position of every column in use, by role."""
    usual = {role: usual_place(first, _KNOWN_NAMES[role]) if header else None for role in _ROLES}
    guessed = all(usual[role] is None for role in _NEEDED)
    spare = len(first) - sum(at is not None for at in usual.values())  # columns of no known use
    nothing_left = len(first) == 2 or (header and not guessed and spare <= 0)
    place: dict[str, int] = {}
    for position, role in enumerate(_ROLES):
        given = getattr(wanted, role)
        if _without(wanted, role, first):
            continue
        if given is not None:
            place[role] = _given_place(role, given, first, path)
        elif (found := usual[role]) is not None:
            place[role] = found
        elif role not in _NEEDED or (role == "rating" and nothing_left):
            continue
        elif guessed:
            place[role] = position
        else:
            clicks = "; for clicks without ratings: none" * (role == "rating")
            raise ConfigError(
                f"{path}: which column is the {role}? The header has {_names(first)}; name it "
                f"with {role}=..., or --set data.{role}_column=... on the command line{clicks}"
            )
    for role, position in place.items():
        if position >= len(first):
            problem = f"has {len(first)} columns; the {role} was expected in column {position + 1}"
            raise DataError(problem, path=path, line=line)
    if len(set(place.values())) < len(place):
        raise ConfigError(f"{path}: the same column is used twice: {place}")
    return place


def _given_place(role: str, given: str | int, first: Sequence[str], path: Path) -> int:
    if isinstance(given, int):
        if given < 0:
            raise ConfigError(f"{role}={given}: columns count from 0: expected at least 0")
        return given
    if given not in first:
        raise ConfigError(
            f"{path}: {role}={given!r}: no such column; the header has {_names(first)}: "
            "choose one of these"
        )
    return list(first).index(given)


def plain_name(name: str) -> str:
    """Return a column's name without case, blanks and signs, and without a type behind a colon."""
    return re.sub(r"[\W_]", "", name.partition(":")[0]).lower()


def usual_place(names: Sequence[str], usual: Sequence[str]) -> int | None:
    """Return the position of the column that is called by the first of these usual names."""
    plain = [plain_name(name) for name in names]
    return next((plain.index(name) for name in usual if name in plain), None)


def columns_of_frame(frame: Any) -> dict[str, Any]:
    """Return the columns, by name, of a frame of pandas, Polars or Arrow, or of a mapping.

    Raises:
        DataError: If it has no columns with names.
    """
    if hasattr(frame, "collect"):  # lazy ones of Polars, those of Spark
        raise DataError(f"frame = {in_words(frame)}: has no columns yet; collect it first")
    names = getattr(getattr(frame, "dtype", None), "names", None)  # a structured array of NumPy
    for attribute in ("columns", "column_names"):  # Arrow's columns are not their names
        names = getattr(frame, attribute, names)
    if names is None and isinstance(frame, Mapping):
        names = list(frame)
    if names is None:
        expected = "a table with named columns, such as a DataFrame or a dict of lists"
        raise DataError(f"frame = {in_words(frame)}: expected {expected}")
    return {str(name): frame[name] for name in names}


def is_missing(cell: Any) -> bool:
    """Return whether a cell is None, a NaN, or the missing value of a library of frames."""
    missing = cell is None or type(cell).__name__ in ("NAType", "NaTType")
    return missing or (isinstance(cell, float | np.floating) and bool(np.isnan(cell)))


def _names(first: Sequence[str]) -> str:
    """The header for a message, unless it holds a number: then it may be a row of data."""
    return "no names" if any(map(_is_number, first)) else ", ".join(map(repr, first))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def item_names(path: Path) -> tuple[str, ...]:
    """Read the items of a public catalogue: a file with a different name on every line.

    Raises:
        DataError: If it is too long, or a line holds no name, one that is too long, or one that
            another line has; names the line.
    """
    expected = "expected a different item name on every line"
    try:
        text = read_bytes(path, MOST_BYTES_OF_A_CATALOGUE).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise DataError(f"cannot be read: {error}; {expected}", path=path) from error
    place: dict[str, int] = {}
    for line, rest in enumerate(text.splitlines(), start=1):
        name = rest.strip()
        if not name:
            raise DataError(f"is empty; {expected}", path=path, line=line)
        if len(name.encode()) > LONGEST_LABEL:
            problem = f"is longer than {LONGEST_LABEL} bytes; {expected}"
            raise DataError(problem, path=path, line=line)
        if place.setdefault(name, line) != line:
            raise DataError(f"repeats line {place[name]}; {expected}", path=path, line=line)
        if line > MOST_LABELS:
            raise DataError(f"has more than {MOST_LABELS:,} items", path=path, line=line)
    if not place:
        raise DataError(f"the file is empty; {expected}", path=path)
    return tuple(place)
