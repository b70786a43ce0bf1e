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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bgtplanner.arguments import in_words
from bgtplanner.data.columns import columns_of_frame, is_missing
from bgtplanner.errors import ConfigError, DataError

DELIMITERS = ("\t", "::", ";", ",", "|", " ")
"""What may stand between two cells, in the order in which it is tried."""

DELIMITERS_OF_ITEMS = ("\t", "::", "|", ";", ",")
"""The same for tables of items: titles have blanks and commas."""

_MOST_BYTES = 1 << 36  # of a file, which is read as a whole
_BLOCK_BYTES = 1 << 24  # a longer row has an open quote, or this is not a text table
_SNIFFED_BYTES = 1 << 16
_SNIFFED_ROWS = 20
_SPELLED_OUT = {"tab": "\t", r"\t": "\t", "comma": ",", "semicolon": ";", "space": " "}
_NO_CELLS = (list, tuple, dict, set, frozenset, np.ndarray, complex)
_UNIT = "\x1f"  # stands between two cells for Arrow, where "::" does in the file


@dataclass(frozen=True, eq=False)
class OpenTable:
    """A table whose first row has been looked at.

    Attributes:
        first: The cells of the first row of text that is not blank, or the names of the columns.
        content: The text of all rows as Arrow reads it, or columns by name.
        path: The file.
        line: The line of the first row of text.
        delimiter: What stands between two cells of text; None if this is not text.
    """

    first: tuple[str, ...]
    content: bytes | Mapping[str, Any]
    path: Path | None = None
    line: int | None = None
    delimiter: str | None = None

    def columns(self, wanted: Sequence[int], *, header: bool) -> list[Any]:
        """Return the cells of some columns, by position, as Arrow arrays; text as a dictionary.

        A `header` in the first row of text is left out.

        Raises:
            DataError: If a row has another number of cells than the first; names the line.
        """
        import pyarrow as pa
        from pyarrow import csv as arrow

        if isinstance(self.content, Mapping):
            return [
                _as_arrow(name, self.content[name]) for name in map(self.first.__getitem__, wanted)
            ]
        names, double = [str(column) for column in range(len(self.first))], self.delimiter == "::"
        chosen = dict.fromkeys(
            (names[at] for at in wanted), pa.dictionary(pa.int32(), pa.string())
        )
        above = self.line if header else 0  # blank lines count
        try:
            table = arrow.read_csv(
                pa.BufferReader(self.content),
                arrow.ReadOptions(
                    column_names=names, block_size=_BLOCK_BYTES, skip_rows_after_names=above
                ),
                arrow.ParseOptions(
                    delimiter=_UNIT if double else self.delimiter,
                    quote_char=False if double else '"',
                    newlines_in_values=not double,
                ),
                arrow.ConvertOptions(
                    include_columns=list(chosen),
                    column_types=chosen,
                    check_utf8=False,  # it has been checked
                ),
            ).unify_dictionaries()
        except pa.ArrowInvalid:
            raise self._uneven() from None
        return [table[names[at]].combine_chunks() for at in wanted]

    def fault(self, row: int, column: int, problem: str) -> DataError:
        """Return the error about a cell, which says where it is and never what it holds.

        Rows and columns count from 0, and a header in text counts as a row.
        """
        if self.path is None:
            return DataError(f"{self.first[column]} {problem}, in row {row + 1}")
        problem = f"column {column + 1} {problem}"
        if self.delimiter is None:
            return DataError(f"row {row + 1}: {problem}", path=self.path)
        line = next((at for at, _ in itertools.islice(self._rows(), row, None)), None)
        return DataError(problem, path=self.path, line=line)

    def _rows(self) -> Iterator[tuple[int, tuple[str, ...]]]:
        """Yield the cells of every row of text that is not blank, with its first line."""
        text = self.content if isinstance(self.content, bytes) else b""
        return _rows(text, str(self.delimiter))

    def _uneven(self) -> DataError:
        """Return the error about the first row of another width."""
        width, line = len(self.first), self.line
        problem = "a row after this one cannot be read; is a quote opened and never closed?"
        for at, cells in self._rows():
            line = at
            if len(cells) != width:
                problem = f"expected {width} columns, found {len(cells)}"
                break
        return DataError(problem, path=self.path, line=line)


def open_frame(frame: Any) -> OpenTable:
    """Return a frame of pandas, Polars or Arrow, or a mapping of columns, as a table.

    Raises:
        DataError: If it has no columns with names, or they differ in length.
    """
    columns = columns_of_frame(frame)
    for name, column in columns.items():
        if isinstance(column, str | bytes | Mapping | set) or not hasattr(column, "__len__"):
            raise DataError(f"{name} = {in_words(column)}: expected a list or array")
    if len({len(column) for column in columns.values()}) > 1:
        sizes = ", ".join(f"{name} has {len(column)}" for name, column in columns.items())
        raise DataError(f"the columns are not of the same length: {sizes}")
    return OpenTable(tuple(columns), columns)


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
        if getattr(column, "ndim", 1) != 1:
            raise DataError(f"{name}: expected a column, found more dimensions") from None
        if any(isinstance(cell, _NO_CELLS) for cell in column):
            raise DataError(f"{name}: expected numbers or text in every row") from None
        found = pa.array([None if is_missing(cell) else str(cell) for cell in column])
    return found.dictionary_decode() if pa.types.is_dictionary(found.type) else found


def open_table(
    path: Path,
    delimiter: str | None = None,
    *,
    columns: int = 3,
    among: Sequence[str] = DELIMITERS,
    older: bool = False,
) -> OpenTable:
    """Return a file as a table, after a look at its first rows; Parquet is known by its content.

    Args:
        path: The file.
        delimiter: Delimiter of text; by default the one that splits the rows best.
        columns: How many columns are enough when a delimiter is looked for.
        among: Delimiters to look for.
        older: Whether text that is not UTF-8 is taken for Latin-1, as in older catalogues.

    Raises:
        DataError: If it is empty or cannot be read as a table; names the line.
        ConfigError: If the delimiter is impossible.
    """
    given = None if delimiter is None else _checked(delimiter)
    content = _bytes_of(path)
    if content.startswith(b"PAR1"):
        return _parquet(content, path)
    content = _checked_text(content, path, older)
    sample = content[:_SNIFFED_BYTES]
    if len(content) > _SNIFFED_BYTES:
        sample = sample[: sample.rfind(b"\n") + 1]
    text = sample.decode(errors="replace")
    if not text.strip():
        raise DataError("is empty; expected a table with a row for each entry", path=path)
    found = given or max(among, key=lambda one: _fitness(text, one, columns))
    line, first = next(_rows(_plain(text.encode(), found), found))
    return OpenTable(first, _plain(content, found), path, line, found)


def _bytes_of(path: Path) -> bytes:
    """Return what a file holds; gzip is known by its first bytes, whatever the file is called."""
    try:
        if path.exists() and not path.is_file():  # opening a pipe may wait forever
            what = "a folder" if path.is_dir() else "not a plain file"
            raise DataError(f"is {what}; expected a table", path=path)
        if path.stat().st_size > _MOST_BYTES:
            raise DataError(f"is longer than {_MOST_BYTES:,} bytes; divide it", path=path)
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError("no such file; expected a table", path=path) from None
    except OSError as error:
        problem = error.strerror or "bad file"
        raise DataError(f"cannot be read: {problem}; choose another", path=path) from error
    zipped = content[:2] == b"\x1f\x8b"
    if path.suffix == ".gz" and not zipped and content:
        raise DataError("is named .gz and is not a gzip file", path=path, line=1)
    try:
        return gzip.decompress(content) if zipped else content
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
    names = tuple(table.column_names)
    if len(set(names)) < len(names):
        raise DataError("has two columns of the same name", path=path)
    return OpenTable(names, dict(zip(names, table.columns, strict=True)), path)


def _checked_text(content: bytes, path: Path, older: bool) -> bytes:
    """Return the text in UTF-8 with plain line ends, or say on which line that is impossible."""

    def fault(problem: str, before: int) -> DataError:
        return DataError(problem, path=path, line=1 + content.count(b"\n", 0, before))

    content = content.removeprefix(codecs.BOM_UTF8)
    if (zero := content.find(b"\0")) >= 0:
        raise fault("holds a zero byte: expected CSV or TSV text", zero)
    if not content.isascii():
        try:
            content.decode()
        except UnicodeDecodeError as error:
            if not older:
                raise fault("is not UTF-8 text", error.start) from None
            content = content.decode("latin-1").encode()
    content = content.replace(b"\r\n", b"\n").removesuffix(b"\r")
    if (bare := content.find(b"\r")) >= 0:
        problem = "has a carriage return without a line feed; save it with plain line ends"
        raise fault(problem, bare)
    return content


def _checked(given: str) -> str:
    """Return a delimiter that was given, as one character or by its name."""
    delimiter = _SPELLED_OUT.get(given, given)
    fits = re.fullmatch(r'::|[^\x80-\U0010ffffA-Za-z0-9"\n\r.+\-\0]', delimiter) is not None
    ConfigError.unless(fits, "delimiter", given, "one ASCII character, '::' or 'tab'")
    return delimiter


def _fitness(sample: str, delimiter: str, columns: int) -> tuple[int, float]:
    """Return how well a delimiter splits the first rows: into enough columns, and as many each."""
    rows = _rows(_plain(sample.encode(), delimiter), delimiter)
    widths = [len(row) for _, row in itertools.islice(rows, _SNIFFED_ROWS)]
    if not widths:
        return 0, 0.0
    return min(widths[0], columns), sum(one == widths[0] for one in widths) / len(widths)


def _plain(content: bytes, delimiter: str) -> bytes:
    """Return text as Arrow can read it with this delimiter: one byte between two cells."""
    if delimiter == " ":
        return re.sub(rb"(?m)^ +| +$", b"", re.sub(rb" +", b" ", content))
    if b" \n" in content:
        content = re.sub(rb"(?m)^ +$", b"", content)
    return content.replace(b"::", _UNIT.encode()) if delimiter == "::" else content


def _rows(content: bytes, delimiter: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the cells of every row that is not blank, with the number of its first line.

    It ends before a cell that is too long for Python's reader.
    """
    text = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", newline="\n")
    if delimiter == "::":
        reader = csv.reader(text, delimiter=_UNIT, quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(text, delimiter=delimiter)
    line = 1
    with suppress(csv.Error):
        for row in reader:
            if row:
                yield line, tuple(cell.strip(" ") for cell in row)
            line = reader.line_num + 1
