"""Read a table of ratings: CSV text, plain or gzipped, or Parquet.

What is not given is detected. Messages name the file and the line, never the content of a cell.
"""

from __future__ import annotations

import csv
import io
import itertools
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bgtplanner.data.csvtext import Rows, end_of_first_row, open_file, read_blocks
from bgtplanner.errors import ConfigError, DataError
from bgtplanner.text import LONGEST_LABEL, MOST_BYTES_OF_A_CATALOGUE, MOST_LABELS, read_bytes

__all__ = ["Column", "Table", "TableFormat", "item_names", "read_table"]

Column = str | int | None
"""A column by its name in the header, by its position from 0, or not given."""

_ROLES = ("user", "item", "rating", "time", "client")
_IDS = ("user", "item", "client")
_KNOWN_NAMES = {
    "user": ("user", "userid", "uid", "reviewerid", "customerid"),
    "item": ("item", "itemid", "iid", "movie", "movieid", "productid", "asin", "bookid"),
    "rating": ("rating", "ratings", "value", "score", "stars"),
    "time": ("timestamp", "time", "date"),
    "client": ("client", "clientid"),
}
_SNIFFED_BYTES = 1 << 16
_SNIFFED_ROWS = 20
_PARQUET_ROWS = 1 << 20
_AT_ONCE = min(os.cpu_count() or 1, 4)  # parts that are checked at a time
_KEPT_BYTES = 1 << 27
_MOST_DIGITS = 18
_DELIMITERS = ("\t", "::", ";", ",", "|", " ")
_SPELLED_OUT = {"tab": "\t", r"\t": "\t", "comma": ",", "semicolon": ";", "space": " "}
_WHOLE = f"^(0|[1-9][0-9]{{0,{_MOST_DIGITS - 1}}})$"  # integers that are written as they are read
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE | re.ASCII)


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
    r"""Read a table of ratings, in memory proportional to the number of rows.

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
    import pyarrow as pa

    path, wanted = Path(path), table_format or TableFormat()
    parts: dict[str, list[Any]] = {role: [] for role in _ROLES}
    found = (_parquet_parts if wanted.parquet else _csv_parts)(path, wanted)
    for some in _checked(found, wanted):
        for role, column in some.items():
            parts[role].append(column)
    if not parts["user"]:
        raise DataError("the file has a header and no ratings", path=path)
    columns: dict[str, Any] = dict.fromkeys(_ROLES)
    labels: dict[str, Any] = {}
    for role in [role for role in _ROLES if parts[role]]:
        if role in _IDS:
            columns[role], labels[role] = _joined(parts.pop(role))  # pop: they are large
        else:
            columns[role] = _end_to_end(parts.pop(role))
        if labels.get(role) is not None and len(labels[role]) > MOST_LABELS:
            raise DataError(f"names more than {MOST_LABELS:,} {role}s", path=path)
    if (pool := pa.default_memory_pool()).max_memory() > _KEPT_BYTES:
        pool.release_unused()  # less than that costs more time to get again than it is worth
    return Table(**columns, user_labels=labels["user"], item_labels=labels["item"])


def _checked(found: Iterator[_Read], wanted: TableFormat) -> Iterator[dict[str, Any]]:
    """The columns of all parts, in their order; some are checked while the next ones are read."""
    waiting: deque[Future[dict[str, Any]]] = deque()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            for read in found:
                waiting.append(pool.submit(_columns, read, wanted))
                if len(waiting) > _AT_ONCE:
                    yield waiting[0].result()
                    waiting.popleft()
            for last in waiting:
                yield last.result()
        except DataError:
            for earlier in waiting:  # the first error in the file is the one to report
                earlier.result()
            raise


def _columns(read: _Read, wanted: TableFormat) -> dict[str, Any]:
    part = read()
    ids, bounds = partial(part.ids, whole_only=wanted.whole_ids), wanted.bounds
    return {role: ids(role) if role in _IDS else part.numbers(role, bounds) for role in part.place}


@dataclass(frozen=True)
class _Part:
    """Some rows of a table.

    Attributes:
        columns: Arrow arrays by role. Ids can be cast to text; missing cells are null or empty.
        place: Position of each of them among all columns.
        fault: Makes the error about a cell, from its row, its column and the problem.
    """

    columns: Mapping[str, Any]
    place: Mapping[str, int]
    fault: Callable[[int, int, str], DataError]

    def _refuse(self, role: str, bad: NDArray[np.bool_], problem: str) -> None:
        if bad.any():
            raise self.fault(int(bad.argmax()), self.place[role], problem)

    def ids(self, role: str, whole_only: bool) -> Any:
        """The ids as integers, if all of them are; else as a dictionary array of text.

        It is checked that none is empty or too long.
        """
        import pyarrow as pa
        from pyarrow import compute

        column = self.columns[role]
        if column.null_count:
            self._refuse(role, _numpy(column.is_null()), "is empty")
        if (numbers := _whole(column)) is not None:
            return numbers
        coded = _used(column) if pa.types.is_dictionary(column.type) else _coded(column)
        labels, rows = coded.dictionary, _numpy(coded.indices)
        length = _numpy(compute.binary_length(labels))
        fits = _numpy(compute.match_substring_regex(labels, _WHOLE if whole_only else ""))
        for bad, problem in (
            (length == 0, "is empty"),
            (length > LONGEST_LABEL, f"is longer than {LONGEST_LABEL} bytes"),
            (~fits, "is not a whole number"),
            (_numpy(compute.match_substring(labels, "\0")), "holds a zero byte"),
        ):
            if bad.any():
                self._refuse(role, bad[rows], problem)
        return coded

    def numbers(self, role: str, bounds: tuple[float, float] | None) -> NDArray[np.float64]:
        """The numbers, exactly as ``float`` reads them; times may be ISO dates, in seconds."""
        import pyarrow as pa

        column = self.columns[role]
        if column.null_count:
            self._refuse(role, _numpy(column.is_null()), "is empty")
        try:
            value = _numpy(column.cast(pa.float64()))
        except pa.ArrowInvalid:
            value = np.array([np.nan])
        if not np.isfinite(value).all():  # some cell is a date, or invalid
            value = np.empty(len(column))
            for row, cell in enumerate(column.to_pylist()):
                try:
                    value[row] = _number(str(cell), dates=role == "time")
                except ValueError as error:
                    raise self.fault(row, self.place[role], str(error)) from None
        if role == "rating" and bounds is not None:
            low, high = bounds
            expected = f"from {low:g} to {high:g}" if np.isfinite(high) else f"at least {low:g}"
            problem = f"is out of range: expected a rating {expected}"
            self._refuse(role, ~((value >= low) & (value <= high)), problem)
        return value


_Read = Callable[[], _Part]


def _numpy(array: Any) -> NDArray[Any]:
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _whole(column: Any) -> NDArray[Any] | None:
    """The ids as integers, if each of them is one that is written as it is read; else None."""
    import pyarrow as pa

    text = None
    if pa.types.is_string(column.type):
        _, ends, cells = column.buffers()
        ends = np.frombuffer(ends, dtype=np.int32)[column.offset :][: len(column) + 1]
        text = np.frombuffer(cells or b"", dtype=np.uint8)[ends[0] : ends[-1]]
        if not len(text) or text.min() < ord("0") or text.max() > ord("9"):
            return None
        try:
            column = column.cast(pa.int64())
        except pa.ArrowInvalid:  # some cell is empty, or too long for a number
            return None
    elif not pa.types.is_integer(column.type):
        return None
    numbers = _numpy(column)
    if numbers.min(initial=0) < 0 or (high := int(numbers.max(initial=0))) >= 10**_MOST_DIGITS:
        return None
    if text is not None:
        powers = itertools.takewhile(
            lambda power: power <= high, (10**n for n in range(1, _MOST_DIGITS))
        )
        digits = len(numbers) + sum(int(np.count_nonzero(numbers >= power)) for power in powers)
        if digits < len(text):  # some have leading zeros: 007 is not 7
            return None
    return numbers.astype(np.int32 if high < 2**31 else np.int64, copy=False)


def _coded(column: Any) -> Any:
    """Ids as a dictionary array of text."""
    import pyarrow as pa

    coded = column.dictionary_encode()
    return pa.DictionaryArray.from_arrays(coded.indices, coded.dictionary.cast(pa.string()))


def _used(column: Any) -> Any:
    """A dictionary array with only those labels that occur in it."""
    import pyarrow as pa

    rows = _numpy(column.indices)
    used = np.zeros(len(column.dictionary), dtype=bool)
    used[rows] = True
    if used.all():
        return column
    place = np.cumsum(used, dtype=np.int32) - 1
    return pa.DictionaryArray.from_arrays(place[rows], column.dictionary.filter(pa.array(used)))


def _number(cell: str, *, dates: bool) -> float:
    """A cell as a number; a ValueError says what is wrong, but not what the cell holds."""
    if not cell:
        raise ValueError("is empty")
    cell = cell.strip(" \t\n\r\v\f")
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


def _end_to_end(parts: list[NDArray[Any]]) -> NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _joined(parts: list[Any]) -> tuple[NDArray[Any], NDArray[np.str_] | None]:
    """The ids as integers if all of them are; else as indices, with the sorted labels."""
    import pyarrow as pa
    from pyarrow import compute

    if all(isinstance(part, np.ndarray) for part in parts):
        return _end_to_end(parts), None
    parts = [_coded(pa.array(of)) if isinstance(of, np.ndarray) else of for of in parts]
    whole = pa.chunked_array(parts).unify_dictionaries().combine_chunks()
    labels, rows = whole.dictionary, _numpy(whole.indices)
    if compute.all(compute.match_substring_regex(labels, _WHOLE)).as_py():
        numbers = _numpy(labels.cast(pa.int64()))
        small = numbers.max(initial=0) < 2**31
        return numbers.astype(np.int32 if small else np.int64)[rows], None
    names, index = np.unique(np.array(labels.to_pylist()), return_inverse=True)
    return index[rows], names


def _csv_parts(path: Path, wanted: TableFormat) -> Iterator[_Read]:
    layout: tuple[str, int, dict[str, int]] | None = None
    with open_file(path) as file:
        for text, line in read_blocks(file, path):
            if layout is None:
                if text.isspace():
                    continue
                line += len(text) - len(text.lstrip(b"\n"))
                text = text.lstrip(b"\n")
                header, layout = _find_layout(text, wanted, path, line)
                if header:
                    end = end_of_first_row(text)
                    line, text = line + text.count(b"\n", 0, end), text[end:]
            if not text.lstrip(b"\n"):  # from the left: without a copy
                continue
            yield partial(_csv_part, text, line, layout, path)
    if layout is None:
        raise DataError("the file is empty; expected a header and ratings", path=path)


def _csv_part(
    text: bytes, line: int, layout: tuple[str, int, dict[str, int]], path: Path
) -> _Part:
    delimiter, width, place = layout
    rows = Rows(text, delimiter, path, line)
    cells = rows.columns(width, sorted(place.values()))
    return _Part({role: cells[at] for role, at in place.items()}, place, rows.fault)


def _parquet_parts(path: Path, wanted: TableFormat) -> Iterator[_Read]:
    from pyarrow import parquet

    with open_file(path) as file, _readable(path):
        table = parquet.ParquetFile(file)
        names = table.schema_arrow.names
        place = _places(names, wanted, True, path)
        if len(set(names)) < len(names):
            raise DataError("has two columns of the same name", path=path)
        ids = [names[at] for role, at in place.items() if role in _IDS]
        text = [name for name in ids if _is_text(table.schema_arrow.field(name).type)]
        table = parquet.ParquetFile(file, metadata=table.metadata, read_dictionary=text)
        first = 1
        for batch in table.iter_batches(
            _PARQUET_ROWS, columns=[names[at] for at in place.values()]
        ):
            columns = {role: batch[names[at]] for role, at in place.items()}
            yield partial(_parquet_part, columns, place, path, first)
            first += len(batch)


def _parquet_part(
    columns: Mapping[str, Any], place: Mapping[str, int], path: Path, first: int
) -> _Part:
    with _readable(path):
        columns = {role: _as_text(column, role) for role, column in columns.items()}
    return _Part(columns, place, partial(_fault_in_row, path, first))


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Say of what Arrow cannot read that it cannot be read."""
    import pyarrow as pa

    try:
        yield
    except pa.ArrowException:
        problem = "cannot be read; expected Parquet, with ids and ratings in text or numbers"
        raise DataError(problem, path=path) from None


def _fault_in_row(path: Path, first: int, row: int, column: int, problem: str) -> DataError:
    return DataError(f"row {first + row}: column {column + 1} {problem}", path=path)


def _is_text(kind: Any) -> bool:
    return str(kind) in ("string", "large_string", "string_view")


def _as_text(column: Any, role: str) -> Any:
    """A Parquet column in the form of a text table: ids can be text, timestamps in seconds."""
    import pyarrow as pa
    from pyarrow import compute

    if pa.types.is_dictionary(column.type):
        labels = column.dictionary
        if role in _IDS and _is_text(labels.type) and not labels.null_count:
            rows = column.indices.cast(pa.int32())
            return pa.DictionaryArray.from_arrays(rows, labels.cast(pa.string()))
        column = column.dictionary_decode()
    if role in _IDS:
        if pa.types.is_floating(column.type):
            column = compute.if_else(compute.is_finite(column), column, None)
        if pa.types.is_integer(column.type):  # as it is: only its distinct numbers become text
            return column
        return column.cast(pa.string())
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        moment = column.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
        return compute.divide(moment.cast(pa.float64()), 1e6)
    return column.cast(pa.string() if _is_text(column.type) else pa.float64())


def _find_layout(
    text: bytes, wanted: TableFormat, path: Path, line: int
) -> tuple[bool, tuple[str, int, dict[str, int]]]:
    """Whether there is a header; the delimiter, the number of columns, and their positions."""
    sample = text[:_SNIFFED_BYTES].decode(errors="replace")
    delimiter = _find_delimiter(sample, wanted.delimiter, path, line)
    first = _split(sample, delimiter)[0]
    given = {role: getattr(wanted, role) for role in _ROLES if not _without(wanted, role, first)}
    named = any(isinstance(column, str) for column in given.values())
    header = wanted.header
    if header is None:
        usual = {role: _usual_place(first, role) for role in _ROLES}
        at = wanted.rating if isinstance(wanted.rating, int) else usual["rating"]
        cell = first[at if at is not None and 0 <= at < len(first) else min(2, len(first) - 1)]
        header = named or usual["rating"] is not None or not _is_number(cell)
        if not named and (len(first) < 3 or "rating" not in given):  # ids alone: text or numbers
            header = usual["user"] is not None or usual["item"] is not None
            if not header and not all(map(_is_number, first)):
                raise ConfigError(
                    f"{path}: are there names in the first row? Say so with header=True or "
                    "header=False, or --set data.header=true on the command line"
                )
    if named and not header:
        raise ConfigError("columns are given by name, but data.header says there is no header")
    return header, (delimiter, len(first), _places(first, wanted, header, path, line))


def _without(wanted: TableFormat, role: str, first: Sequence[str]) -> bool:
    """Whether the format says that there is no rating, and not that its column is so called."""
    return role == "rating" and wanted.rating == "none" and "none" not in first


def _places(
    first: Sequence[str], wanted: TableFormat, header: bool, path: Path, line: int | None = None
) -> dict[str, int]:
    """The position of every column in use, by role."""
    usual = {role: _usual_place(first, role) if header else None for role in _ROLES}
    guessed = all(usual[role] is None for role in _ROLES[:3])
    spare = len(first) - sum(at is not None for at in usual.values())  # columns of no known use
    place: dict[str, int] = {}
    for position, role in enumerate(_ROLES):
        given, found = getattr(wanted, role), usual[role]
        if _without(wanted, role, first):
            continue
        nothing_left = len(first) == 2 or (header and not guessed and spare <= 0)
        if role == "rating" and given is None and found is None and nothing_left:
            continue
        if isinstance(given, str) and given not in first:
            raise ConfigError(
                f"{path}: {role}={given!r}: no such column; the header has {_names(first)}: "
                "choose one of these"
            )
        if isinstance(given, int) and given < 0:
            raise ConfigError(f"{role}={given}: columns count from 0: expected at least 0")
        if given is not None:
            place[role] = given if isinstance(given, int) else list(first).index(given)
        elif found is not None:
            place[role] = found
        elif position < 3 and guessed:
            place[role] = position
        elif position < 3:
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


def _find_delimiter(sample: str, given: str | None, path: Path, line: int) -> str:
    if given is not None:
        delimiter = _SPELLED_OUT.get(given, given)
        if not re.fullmatch(r'::|[^\x80-\U0010ffffA-Za-z0-9"\n\r.+\-\0]', delimiter):
            raise ConfigError(f"delimiter={given!r}: expected one ASCII character, '::' or 'tab'")
        return delimiter
    # Prefer what splits all rows alike over what splits the first; only clicks have two columns.
    for least, even in ((3, True), (3, False), (2, True)):
        for delimiter in _DELIMITERS:
            cells = [len(row) for row in _split(sample, delimiter)]
            if cells[0] >= least and (not even or len(set(cells)) == 1):
                return delimiter
    raise DataError(
        "expected at least 3 columns (2 for clicks without ratings) separated by tab, '::', ';', "
        "',', '|' or space",
        path=path,
        line=line,
    )


def _split(text: str, delimiter: str) -> list[list[str]]:
    """The cells of the first rows, without blank rows."""
    if delimiter == "::":
        return [row.split("::") for row in text.split("\n") if row][:_SNIFFED_ROWS]
    if delimiter == " ":
        text = re.sub(" +", " ", re.sub("^ +| +$", "", text, flags=re.MULTILINE))
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    filled = ([cell.strip(" ") for cell in row] for row in rows if row)
    return list(itertools.islice(filled, _SNIFFED_ROWS))


def _usual_place(first: Sequence[str], role: str) -> int | None:
    # A type may follow the name, as in "user_id:token".
    plain = [re.sub("[-_ ]", "", cell.partition(":")[0].lower()) for cell in first]
    return next((plain.index(name) for name in _KNOWN_NAMES[role] if name in plain), None)


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
