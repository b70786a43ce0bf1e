"""Turn the bytes of a text table into columns of text, one block of whole rows at a time.

Arrow parses the rows. The text is normalised first where Arrow cannot handle it: byte order marks,
``::``, runs of blanks, blanks around quotes. Arrow's own errors quote cells and name no line, so
if it fails the block is checked again, row by row, to find out what to report.
"""

from __future__ import annotations

import gzip
import io
import itertools
import re
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bgtplanner.errors import DataError
from bgtplanner.text import MOST_BLANK_LINES

__all__ = ["Rows", "end_of_first_row", "open_file", "read_blocks"]

_BLOCK_BYTES = 1 << 22
_LONGEST_ROW = 1 << 24  # such a long row has an open quote, or this is not a text table
_ROW = re.compile(rb'(?:"[^"]*"|[^"\n])+')
_QUOTED = re.compile(rb'"[^"]*"')
_QUOTE, _NEWLINE = b'"\n'


@contextmanager
def open_file(path: Path) -> Iterator[io.BufferedReader]:
    """Open a file for reading.

    Raises:
        DataError: If it cannot be opened or read.
    """
    try:
        if path.is_dir():
            raise DataError("is a folder; expected a file", path=path)
        with path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise DataError("no such file; expected a table of ratings", path=path) from None
    except PermissionError:
        raise DataError("permission to read it was denied", path=path) from None
    except OSError as error:
        said = error.strerror or "bad file"
        raise DataError(f"cannot be read: {said}; choose another", path=path) from error


def read_blocks(file: io.BufferedReader, path: Path) -> Iterator[tuple[bytes, int]]:
    """Yield blocks of whole rows, as UTF-8 with plain newlines, and their first line numbers.

    Gzip is detected by its first bytes, whatever the name of the file.

    Raises:
        DataError: If the file is binary, damaged, not UTF-8, or has a row without end.
    """
    zipped = file.peek(2)[:2] == b"\x1f\x8b"
    if path.suffix == ".gz" and not zipped and file.peek(1):
        raise DataError("is named .gz and is not a gzip file", path=path, line=1)
    stream = gzip.GzipFile(fileobj=file) if zipped else file
    rest, line, blank = b"", 1, 0
    while chunk := _read(stream, path, line):
        if line == 1 and not rest:
            chunk = chunk.removeprefix(b"\xef\xbb\xbf")
        if (zero := chunk.find(b"\0")) >= 0:
            bad = line + rest.count(b"\n") + chunk.count(b"\n", 0, zero)
            raise DataError(
                "holds a zero byte: expected CSV or TSV text in UTF-8", path=path, line=bad
            )
        rest += chunk
        cut = _end_of_rows(rest)
        if cut:
            text = _clean(rest[:cut], path, line)
            ends = _bytes(text) == _NEWLINE
            if (ends[1:] & ends[:-1]).any():
                blank += text.count(b"\n\n")  # counts at least half of the blank lines
            if blank > MOST_BLANK_LINES:
                raise DataError(
                    f"more than {MOST_BLANK_LINES:,} blank lines before the end of this block; "
                    "expected a table of ratings",
                    path=path,
                    line=line,
                )
            yield text, line
            line += int(np.count_nonzero(ends))
            rest = rest[cut:]
        elif len(rest) > _LONGEST_ROW:
            raise DataError("row without end (a quote left open?)", path=path, line=line)
    if rest.strip():
        if rest.count(b'"') % 2:
            raise DataError("a quote is opened and never closed", path=path, line=line)
        yield _clean(rest.rstrip(b"\r\n") + b"\n", path, line), line


def _read(stream: io.BufferedReader | gzip.GzipFile, path: Path, line: int) -> bytes:
    try:
        return stream.read(_BLOCK_BYTES)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        problem = "the gzip data is damaged or cut short from about here; get the file again"
        raise DataError(problem, path=path, line=line) from error


def _end_of_rows(text: bytes) -> int:
    """The end of the last whole row; a newline inside quotes does not end a row."""
    last, array = text.rfind(b"\n") + 1, _bytes(text)
    if np.count_nonzero(array[:last] == _QUOTE) % 2 == 0:
        return last
    inside = np.logical_xor.accumulate(array == _QUOTE)
    ends = np.flatnonzero((array == _NEWLINE) & ~inside)
    return int(ends[-1]) + 1 if len(ends) else 0


def _bytes(text: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(text, dtype=np.uint8)


def _clean(text: bytes, path: Path, line: int) -> bytes:
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError as error:
            bad = line + text.count(b"\n", 0, error.start)
            raise DataError("not UTF-8 text", path=path, line=bad) from None
    # One byte is looked for twenty times as fast as two.
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n")
    if (bare := text.find(b"\r")) >= 0:
        raise DataError(
            "has a carriage return without a line feed; save it with plain line ends",
            path=path,
            line=line + text.count(b"\n", 0, bare),
        )
    return re.sub(rb"(?m)^ +$", b"", text) if b" " in text and b" \n" in text else text


def end_of_first_row(text: bytes) -> int:
    """The position at which the second row begins."""
    found = _ROW.match(text)
    return found.end() + 1 if found else 0


class Rows:
    """Some whole rows of a text table.

    Args:
        text: The rows, each ending in a newline.
        delimiter: One character, or ``::`` as in MovieLens. A run of blanks counts as one.
        path: The file, for messages.
        line: Line number of the first row.
    """

    def __init__(self, text: bytes, delimiter: str, path: Path, line: int) -> None:
        self._path, self._line, between = path, line, delimiter.encode()
        if between == b" " and re.search(rb"(?m)  |^ | $", text):
            text = re.sub(rb"(?m)^ +| +$", b"", re.sub(rb" +", b" ", text))
        # Replacing it takes as long as parsing, so it is tried without; see `columns`.
        self._paired = len(between) > 1 and not (b" " in text or b'"' in text)
        if len(between) > 1 and not self._paired:
            text, between = text.replace(between, b"\x1f"), b"\x1f"
        pads = (between + b" ", b" " + between, b"\n ", b" \n")
        if b" " in text and between != b" " and any(pad in text for pad in pads):
            # Keep a quoted cell as it is; strip the blanks around whatever ends a cell.
            pattern = rb'("[^"]*")|(?<! ) *(%b|\n) *' % re.escape(between)
            text = re.sub(pattern, rb"\1\2", text)
        self._text, self._between = text.lstrip(b" "), between

    def columns(self, columns: int, wanted: Collection[int]) -> dict[int, Any]:
        """The cells of the wanted columns, as Arrow arrays of text.

        Args:
            columns: How many cells every row must have.
            wanted: Which of them to return, by position.

        Raises:
            DataError: If a row has another number of cells, or a wanted cell has a stray quote.
        """
        import pyarrow as pa

        if self._paired:  # between every two cells, Arrow finds one with nothing in it
            nothing = dict.fromkeys(range(1, 2 * columns - 1, 2), pa.null())
            kinds = nothing | {2 * column: pa.string() for column in wanted}
            try:
                table = _parsed(self._text, b":", 2 * columns - 1, kinds)
                return {column: table[str(2 * column)].chunk(0) for column in wanted}
            except pa.ArrowInvalid:  # a colon of its own, or another number of cells
                self._text, self._between = self._text.replace(b"::", b"\x1f"), b"\x1f"
        text = self._text
        if b'"' in text and not self._well_quoted():
            text = self._quoted_anew(columns, wanted)
        try:
            table = _parsed(text, self._between, columns, dict.fromkeys(wanted, pa.string()))
        except pa.ArrowInvalid:
            self._check_widths(columns)
            raise self._error(0, "the rows from here on cannot be parsed") from None
        return {column: table[str(column)].chunk(0) for column in wanted}

    def fault(self, row: int, column: int, problem: str) -> DataError:
        """The error to raise about a cell, which says where it is and never what it holds."""
        found = next(itertools.islice(_ROW.finditer(self._text), row, None))
        return self._error(found.start(), f"column {column + 1} {problem}")

    def _error(self, position: int, problem: str) -> DataError:
        line = self._line + self._text.count(b"\n", 0, position)
        return DataError(problem, path=self._path, line=line)

    def _cells(self, row: bytes) -> list[bytes]:
        masked = _QUOTED.sub(lambda quoted: b"_" * len(quoted[0]), row)
        cuts = [found.start() for found in re.finditer(re.escape(self._between), masked)]
        starts, ends = [0, *(cut + 1 for cut in cuts)], [*cuts, len(row)]
        return [row[start:end] for start, end in zip(starts, ends, strict=True)]

    def _check_widths(self, columns: int) -> None:
        for found in _ROW.finditer(self._text):
            if (width := len(self._cells(found[0]))) != columns:
                raise self._error(found.start(), f"expected {columns} columns, found {width}")

    def _well_quoted(self) -> bool:
        """Whether every quote begins a cell, ends one, or is doubled inside one."""
        array = _bytes(self._text)  # before its first byte, at -1, is the newline at its end
        quotes = np.flatnonzero(array == _QUOTE)
        around = np.concatenate([array[quotes[::2] - 1], array[quotes[1::2] + 1]])
        fits = (around == _QUOTE) | (around == _NEWLINE) | (around == self._between[0])
        return bool(fits.all())

    def _quoted_anew(self, columns: int, wanted: Collection[int]) -> bytes:
        """The rows with every cell quoted properly; stray quotes are refused in wanted columns."""
        self._check_widths(columns)

        def quoted_row(found: re.Match[bytes]) -> bytes:
            cells = self._cells(found[0])
            for column, cell in enumerate(cells):
                whole = len(cell) > 1 and cell[:1] == cell[-1:] == b'"'
                if b'"' in cell and not whole and column in wanted:
                    problem = f"column {column + 1} has a quote inside an unquoted cell"
                    raise self._error(found.start(), problem)
                plain = cell[1:-1].replace(b'""', b'"') if whole else cell
                cells[column] = b'"%b"' % plain.replace(b'"', b'""')
            return self._between.join(cells)

        return _ROW.sub(quoted_row, self._text)


def _parsed(text: bytes, between: bytes, columns: int, kinds: Mapping[int, Any]) -> Any:
    """An Arrow table of those columns of which a kind is given, by position."""
    import pyarrow as pa
    from pyarrow import csv

    names = [str(column) for column in range(columns)]
    return csv.read_csv(
        pa.BufferReader(text),
        # A single block, so that every column is one array.
        csv.ReadOptions(column_names=names, block_size=len(text) + 1, use_threads=False),
        csv.ParseOptions(delimiter=between.decode(), newlines_in_values=b'"' in text),
        csv.ConvertOptions(
            include_columns=[names[column] for column in kinds],
            column_types={names[column]: kind for column, kind in kinds.items()},
            null_values=[""],
            check_utf8=False,  # it has been checked
        ),
    )
