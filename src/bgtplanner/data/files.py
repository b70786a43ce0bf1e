"""A table opened: text, plain or gzipped, Parquet, or a frame, with its columns as Arrow has them.

What Arrow cannot handle in text is normalised first: byte order marks, line ends of Windows,
``::`` between cells, runs of blanks. Arrow's errors quote cells and name no line, so if it fails,
the rows are gone through once more, slowly, to find the line to report.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import itertools
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bgtplanner.arguments import in_words
from bgtplanner.errors import ConfigError, DataError
from bgtplanner.text import read_bytes

DELIMITERS = ("\t", "::", ";", ",", "|", " ")
"""What may stand between two cells, in the order in which it is tried."""

_MOST_BYTES = 1 << 36  # of a file, which is read as a whole
_BLOCK_BYTES = 1 << 24  # a longer row has an open quote, or this is not a text table
_SNIFFED_BYTES = 1 << 16
_SNIFFED_ROWS = 20
_DELIMITER = r'::|[^\x80-\U0010ffffA-Za-z0-9"\n\r.+\-\0]'  # that can be given
_SPELLED_OUT = {"tab": "\t", r"\t": "\t", "comma": ",", "semicolon": ";", "space": " "}
_NO_CELLS = (list, tuple, dict, set, frozenset, np.ndarray, complex)
_UNIT = "\x1f"  # stands between two cells for Arrow, where "::" does in the file


@dataclass(frozen=True, eq=False)
class OpenTable:
    """A table whose first row has been looked at: a text, or a frame with names of columns.

    Attributes:
        first: The cells of the first row of text that is not blank, or the names of the columns.
        frame: The columns of a frame by name; there is no text then.
        text: All rows as Arrow reads them, with a `delimiter` between two cells.
        line: The line of the first row of text in the file, which is at `path`.
    """

    first: tuple[str, ...]
    frame: Mapping[str, Any] = field(default_factory=dict)
    path: Path | None = None
    text: bytes = b""
    delimiter: str = ""
    line: int | None = None

    @classmethod
    def from_frame(cls, frame: Any, path: Path | None = None) -> Self:
        """Return a frame of pandas, Polars or Arrow, or a mapping of columns, as a table."""
        columns = columns_of_frame(frame)
        return cls(tuple(columns), columns, path)

    def columns(self, wanted: Sequence[int], *, header: bool) -> list[Any]:
        """Return the cells of some columns, by position, as Arrow arrays; text as a dictionary.

        A `header` in the first row of text is left out. All rows must be as wide as the first.
        """
        import pyarrow as pa
        from pyarrow import csv as arrow

        if not self.delimiter:
            return [_as_arrow(self.first[at], self.frame[self.first[at]]) for at in wanted]
        names = [str(column) for column in range(len(self.first))]
        chosen = {names[at]: pa.dictionary(pa.int32(), pa.string()) for at in wanted}
        how = arrow.ReadOptions(column_names=names, block_size=_BLOCK_BYTES)
        how.skip_rows_after_names = self.line if header else 0  # blank lines count
        quotes = {"quote_char": False} if self.delimiter == _UNIT else {"newlines_in_values": True}
        cells = arrow.ParseOptions(delimiter=self.delimiter, **quotes)
        kinds = arrow.ConvertOptions(column_types=chosen, include_columns=list(chosen))
        kinds.check_utf8 = False  # it has been checked
        try:
            table = arrow.read_csv(pa.BufferReader(self.text), how, cells, kinds)
        except pa.ArrowInvalid:
            line, width = self.line, len(self.first)
            problem = "a row after this one cannot be read; is a quote never closed?"
            for line, row in self.rows():  # noqa: B007 - the last is named
                if len(row) != width:
                    problem = f"expected {width} columns, found {len(row)}"
                    break
            raise DataError(problem, path=self.path, line=line) from None
        table = table.unify_dictionaries()
        return [table[names[at]].combine_chunks() for at in wanted]

    def rows(self) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Yield the cells of every row of text, with the number of its first line."""
        return _rows(self.text, self.delimiter)

    def refuse(
        self, column: int, header: bool, bad: NDArray[np.bool_], problem: str,
        rows: NDArray[np.int32] | None = None,
    ) -> None:  # fmt: skip
        """Refuse the first bad cell of a column; the error says where, and never what it holds.

        With `rows`, it is said of each distinct cell, and `rows` are those that the rows have.
        """
        if rows is not None and bad.any():
            bad = bad[rows]
        if not bad.any():
            return
        row = int(bad.argmax())
        if self.path is None:
            raise DataError(f"{self.first[column]} {problem}, in row {row + 1}")
        problem = f"column {column + 1} {problem}"
        if not self.delimiter:
            raise DataError(f"row {row + 1}: {problem}", path=self.path)
        lines = (line for line, _ in self.rows())
        line = next(itertools.islice(lines, row + header, None), None)
        raise DataError(problem, path=self.path, line=line)


def _as_arrow(name: str, column: Any) -> Any:
    """Return a column as an Arrow array without a dictionary; cells of mixed kinds become text."""
    import pyarrow as pa

    try:
        if hasattr(column, "to_arrow"):  # of Polars
            column = column.to_arrow()
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        found = pa.array(column, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        if getattr(column, "ndim", 1) != 1 or any(isinstance(cell, _NO_CELLS) for cell in column):
            raise DataError(f"{name}: expected one number or text in every row") from None
        gone = ("NoneType", "NAType", "NaTType")  # what is missing in lists and frames, as is NaN
        texts = [None if type(of).__name__ in gone or of != of else str(of) for of in column]
        found = pa.array(texts)
    return found.dictionary_decode() if pa.types.is_dictionary(found.type) else found


def open_table(
    path: Path, delimiter: str | None = None, *, columns: int = 3,
    among: Sequence[str] = DELIMITERS, older: bool = False,
) -> OpenTable:  # fmt: skip
    """Return a file as a table, after a look at its first rows; Parquet is known by its content.

    The delimiter of text is the one among those given that splits the rows best, into as many
    `columns` as are enough. If `older`, text that is not UTF-8 is taken for Latin-1.
    """
    given = None if delimiter is None else _SPELLED_OUT.get(delimiter, delimiter)
    fits = given is None or re.fullmatch(_DELIMITER, given) is not None
    ConfigError.unless(fits, "delimiter", delimiter, "one ASCII character, '::' or 'tab'")
    content = _bytes_of(path)
    if content.startswith(b"PAR1"):
        return _parquet(content, path)
    content = _checked_text(content, path, older)
    sample = content[:_SNIFFED_BYTES]
    sample = sample[: sample.rfind(b"\n") + 1] if len(content) > len(sample) else sample
    if not sample.decode().strip():
        raise DataError("is empty; expected a table with a row for each entry", path=path)
    found = given or max(among, key=lambda one: _fitness(sample, one, columns))
    text, found = _plain(content, found)
    line, first = next(_rows(text, found))
    return OpenTable(first, path=path, text=text, delimiter=found, line=line)


def _bytes_of(path: Path) -> bytes:
    """Return what a file holds; gzip is known by its first bytes, whatever the file is called."""
    try:
        content = read_bytes(path, _MOST_BYTES)
    except FileNotFoundError:
        raise DataError("no such file; expected a table", path=path) from None
    except OSError as error:
        problem = f"cannot be read: {error.strerror}" if error.strerror else str(error)
        raise DataError(f"{problem}; choose another", path=path) from error
    try:
        return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        problem = "the gzip data is damaged or cut short; get the file again"
        raise DataError(problem, path=path) from error


def _parquet(content: bytes, path: Path) -> OpenTable:
    """Return a Parquet file as a table, read as a whole."""
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.read_table(pa.BufferReader(content))
    except (pa.ArrowException, OSError):
        raise DataError("cannot be read as Parquet; get the file again", path=path) from None
    if len(set(table.column_names)) < table.num_columns:
        raise DataError("has two columns of the same name", path=path)
    return OpenTable.from_frame(table, path)


def _checked_text(content: bytes, path: Path, older: bool) -> bytes:
    """Return the text in UTF-8 with plain line ends, or say on which line that is impossible."""
    content = content.removeprefix(codecs.BOM_UTF8).replace(b"\r\n", b"\n").removesuffix(b"\r")
    bare = "has a carriage return without a line feed; save it with plain line ends"
    zero = "holds a zero byte: expected CSV or TSV text"
    faults = {zero: content.find(b"\0"), bare: content.find(b"\r")}
    try:
        content.decode()
    except UnicodeDecodeError as error:
        faults["is not UTF-8 text"] = -1 if older else error.start
        content = content.decode("latin-1").encode() if older else content
    for problem, at in faults.items():
        if at >= 0:
            raise DataError(problem, path=path, line=1 + content.count(b"\n", 0, at))
    return content


def _fitness(sample: bytes, delimiter: str, columns: int) -> tuple[int, float]:
    """Return how well a delimiter splits the first rows: into enough columns, and as many each."""
    rows = itertools.islice(_rows(*_plain(sample, delimiter)), _SNIFFED_ROWS)
    widths = [len(row) for _, row in rows] or [0]
    return min(widths[0], columns), widths.count(widths[0]) / len(widths)


def _plain(content: bytes, delimiter: str) -> tuple[bytes, str]:
    """Return text as Arrow can read it, with one byte between two cells, and which one that is."""
    if delimiter == " ":
        return re.sub(rb"(?m)^ +| +$", b"", re.sub(rb" +", b" ", content)), delimiter
    if b" \n" in content:
        content = re.sub(rb"(?m)^ +$", b"", content)
    if delimiter == "::":
        return content.replace(b"::", _UNIT.encode()), _UNIT
    return content, delimiter


def _rows(content: bytes, delimiter: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the cells of every row that is not blank, with the number of its first line.

    It ends before a cell that is too long for Python's reader.
    """
    text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", newline="\n")
    plain = delimiter == _UNIT  # quotes do not count then
    reader = csv.reader(text, delimiter=delimiter, quoting=csv.QUOTE_NONE if plain else 0)
    line = 1
    with suppress(csv.Error):
        for row in reader:
            if row:
                yield line, tuple(cell.strip(" ") for cell in row)
            line = reader.line_num + 1


Column = str | int | None
"""A column by its name in the header, by its position from 0, or not given."""

ROLES = ("user", "item", "rating", "time", "client", "test")
"""What the columns of a table of ratings are for, in the usual order."""

ITEM_NAMES = (
    *("item", "i", "movie", "product", "asin", "book", "film", "track", "song", "artist", "album"),
    *("game", "app", "business", "article", "recipe", "anime", "video", "news"),
)
"""What columns of items are usually called, as :func:`usual_place` compares them."""

COUNT_NAMES = (
    *("weight", "count", "counts", "plays", "playcount", "nplays", "listens", "hours"),
    *("hoursplayed", "playtime", "minutes", "clicks", "views", "visits", "purchases", "quantity"),
)
"""What columns are called that say how often or how long a user had to do with an item."""

_NEEDED = ("user", "item", "rating")
_USUAL_NAMES = {
    "user": ("user", "u", "reviewer", "customer", "person", "username", "member", "visitor",
             "account"),
    "item": ITEM_NAMES,
    "rating": ("rating", "ratings", "value", "score", "stars", "overall", "userrating",
               *COUNT_NAMES),
    "time": ("timestamp", "time", "date", "datetime", "unixreviewtime", "ratedat", "createdat",
             "unixtime", "reviewtime", "reviewdate"),
    "client": ("client",),
    "test": (),  # ratings are held out only if someone says so
}  # fmt: skip


def usual_place(names: Sequence[str], usual: Sequence[str]) -> int | None:
    """Return the position of the column that is called by the first of these usual names.

    Case, blanks, signs, a type behind a colon, and "id" at the end do not count.

    Example:
        >>> usual_place(["User ID", "artist_id:token"], ITEM_NAMES)
        1
    """
    plain = [re.sub(r"[\W_]", "", name.partition(":")[0]).lower() for name in names]
    plain = [name.removesuffix("id") or name for name in plain]
    return next((plain.index(name) for name in usual if name in plain), None)


def find_columns(
    first: Sequence[str], given: Mapping[str, Column], header: bool | None, *, where: object
) -> tuple[dict[str, int], bool]:
    """Return the position of every column in use, by role, and whether there is a header.

    Whatever is given as None is detected. Columns that are not there, or have to be named, are
    asked for all at once.
    """
    texts = {role: of for role, of in given.items() if isinstance(of, str) and of != "none"}
    if header is None:
        header = bool(texts) or _has_header(first, given, where)
    elif texts and not header:
        raise ConfigError("columns are given by name, but data.header says there is no header")
    names = "no names" if any(map(is_number, first)) else ", ".join(map(repr, first[:20]))
    usual = {role: usual_place(first, _USUAL_NAMES[role]) if header else None for role in ROLES}
    known = any(usual[role] is not None for role in _NEEDED)
    spare = len(first) - sum(at is not None for at in usual.values())  # columns of no known use
    optional = len(first) == 2 or (known and spare <= 0)  # nothing is left for the rating
    if absent := [f"{role}={of!r}" for role, of in texts.items() if of not in first]:
        problem = f"no such column; the header has {names}: choose one of these"
        raise ConfigError(f"{where}: {', '.join(absent)}: {problem}")
    place, missing = dict[str, int](), list[str]()
    for position, role in enumerate(ROLES):
        wanted, at = given[role], usual[role]
        if isinstance(wanted, str):
            at = first.index(wanted) if role in texts else None
        elif wanted is not None:
            ConfigError.unless(wanted >= 0, role, wanted, "a position of 0 or more")
            at = wanted
        elif at is None and role in _NEEDED and not (role == "rating" and optional):
            missing += [role] * known
            at = position
        if at is not None:
            place[role] = at
    if missing:
        asked = " ".join(f"which column is the {role}?" for role in missing)
        python = ", ".join(f"{role}=..." for role in missing)
        flags = " ".join(f"--set data.{role}_column=..." for role in missing)
        none = "; for clicks without ratings: none" * ("rating" in missing)
        how = f"name them with {python}, or {flags} on the command line{none}"
        raise ConfigError(f"{where}: {asked} The header has {names}; {how}")
    for role, at in place.items():
        if at >= len(first):
            problem = f"has {len(first)} columns; the {role} was expected in column {at + 1}"
            raise DataError(f"{where}: {problem}")
    if len(set(place.values())) < len(place):
        raise ConfigError(f"{where}: the same column is used twice: {place}")
    return place, header


def _has_header(first: Sequence[str], given: Mapping[str, Column], where: object) -> bool:
    """Return whether the first row of a text table holds names, as far as nobody has said."""
    if any(usual_place(first, _USUAL_NAMES[role]) is not None for role in _NEEDED):
        return True
    if len(first) > 2 and given["rating"] != "none":
        at = given["rating"]
        cell = first[at if isinstance(at, int) and 0 <= at < len(first) else 2]
        return not is_number(cell.replace(",", "."))
    if not all(map(is_number, first)):  # ids alone: text or numbers
        asked = "are there names in the first row? Say so with header=True or header=False"
        raise ConfigError(f"{where}: {asked}, or --set data.header=true on the command line")
    return False


def is_number(cell: str) -> bool:
    """Return whether a cell is a number, and so no name of a column."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def columns_of_frame(frame: Any) -> dict[str, Any]:
    """Return the columns, by name and of one length, of a frame, an array or a mapping."""
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
    columns = {str(name): frame[name] for name in names}
    for name, column in columns.items():
        if isinstance(column, str | bytes | Mapping | set) or not hasattr(column, "__len__"):
            raise DataError(f"{name} = {in_words(column)}: expected a list or array")
    if len({len(column) for column in columns.values()}) > 1:
        sizes = ", ".join(f"{name} has {len(column)}" for name, column in columns.items())
        raise DataError(f"the columns are not of the same length: {sizes}")
    return columns
