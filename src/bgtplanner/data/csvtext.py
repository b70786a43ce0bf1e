"""Text tables of ratings and of items: Arrow reads them, strictly, in batches of rows.

What Arrow cannot handle is normalised while it reads: byte order marks, line ends of Windows,
``::`` between cells, runs of blanks. Its errors quote cells and name no line, so if it fails, the
file is read once more, slowly, to find the line to report.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import itertools
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from bgtplanner.errors import ConfigError, DataError

__all__ = ["DELIMITERS", "DELIMITERS_OF_ITEMS", "TextTable", "open_file"]

DELIMITERS = ("\t", "::", ";", ",", "|", " ")
"""What may stand between two cells, in the order in which it is tried."""

DELIMITERS_OF_ITEMS = ("\t", "::", "|", ";", ",")
"""The same for tables of items: titles have blanks and commas."""

_BLOCK_BYTES = 1 << 22
_LONGEST_ROW = 1 << 24  # such a long row has an open quote, or this is not a text table
_SNIFFED_BYTES = 1 << 16
_SNIFFED_ROWS = 20
_SPELLED_OUT = {"tab": "\t", r"\t": "\t", "comma": ",", "semicolon": ";", "space": " "}
_UNIT = "\x1f"  # stands between two cells for Arrow, where "::" does in the file


@contextmanager
def open_file(path: Path) -> Iterator[io.BufferedReader]:
    """Open a file for reading.

    Raises:
        DataError: If it cannot be opened or read.
    """
    try:
        if path.exists() and not path.is_file():  # opening a pipe may wait forever
            what = "a folder" if path.is_dir() else "not a plain file"
            raise DataError(f"is {what}; expected a table", path=path)
        with path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise DataError("no such file; expected a table", path=path) from None
    except PermissionError:
        raise DataError("permission to read it was denied", path=path) from None
    except OSError as error:
        problem = error.strerror or "bad file"
        raise DataError(f"cannot be read: {problem}; choose another", path=path) from error


@contextmanager
def _normalised(path: Path, delimiter: str, older: bool) -> Iterator[_Normalised]:
    """The content of a file; gzip is known by its first bytes, whatever the file is called."""
    with open_file(path) as file:
        zipped = file.peek(2)[:2] == b"\x1f\x8b"
        if path.suffix == ".gz" and not zipped and file.peek(1):
            raise DataError("is named .gz and is not a gzip file", path=path, line=1)
        content = cast(BinaryIO, gzip.GzipFile(fileobj=file) if zipped else file)
        yield _Normalised(content, path, delimiter, older)


class _Normalised(io.RawIOBase):
    """The bytes of a text table in UTF-8, with plain line ends and one byte between two cells.

    It checks what it reads, line by line, and raises a DataError that names the line.
    """

    def __init__(self, file: BinaryIO, path: Path, delimiter: str, older: bool) -> None:
        self._file, self._path, self._delimiter = file, path, delimiter
        self._older = older
        self._line, self._rest, self._ready = 1, b"", b""

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer as far as possible; return 0 at the end of the file."""
        piece = self.read(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)

    def read(self, size: int = -1) -> bytes:
        """Return at most `size` bytes, and none at the end of the file."""
        while not self._ready:
            block = self._block()
            whole = self._rest + block
            cut = whole.rfind(b"\n") + 1 if block else len(whole)
            if not whole:
                return b""
            if len(whole) - cut > _LONGEST_ROW:
                raise self._fault("has a row without end (a quote left open?)")
            text, self._rest = whole[:cut], whole[cut:]
            self._ready = self._clean(text)
            self._line += text.count(b"\n")
        size = len(self._ready) if size < 0 else size
        piece, self._ready = self._ready[:size], self._ready[size:]
        return piece

    def _block(self) -> bytes:
        try:
            block = self._file.read(_BLOCK_BYTES)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            problem = "the gzip data is damaged or cut short from about here; get the file again"
            raise self._fault(problem) from error
        if self._line == 1 and not self._rest:
            block = block.removeprefix(codecs.BOM_UTF8)
        return block

    def _clean(self, text: bytes) -> bytes:
        if (zero := text.find(b"\0")) >= 0:
            raise self._fault("holds a zero byte: expected CSV or TSV text", text[:zero])
        if not text.isascii():
            try:
                text.decode()
            except UnicodeDecodeError as error:
                if not self._older:
                    raise self._fault("is not UTF-8 text", text[: error.start]) from None
                text = text.decode("latin-1").encode()
        text = text.replace(b"\r\n", b"\n").removesuffix(b"\r")
        if (bare := text.find(b"\r")) >= 0:
            problem = "has a carriage return without a line feed; save it with plain line ends"
            raise self._fault(problem, text[:bare])
        if self._delimiter == " ":
            text = re.sub(rb"(?m)^ +| +$", b"", re.sub(rb" +", b" ", text))
        elif b" \n" in text:
            text = re.sub(rb"(?m)^ +$", b"", text)
        return text.replace(b"::", _UNIT.encode()) if self._delimiter == "::" else text

    def _fault(self, problem: str, before: bytes = b"") -> DataError:
        line = self._line + before.count(b"\n")
        return DataError(problem, path=self._path, line=line)


@dataclass(frozen=True)
class TextTable:
    """A text table whose first row has been looked at.

    Attributes:
        path: The file.
        delimiter: What stands between two cells.
        first: The cells of the first row that is not blank.
        line: The line of that row.
        older: Whether text that is not UTF-8 is taken for Latin-1, as in older catalogues.
    """

    path: Path
    delimiter: str
    first: tuple[str, ...]
    line: int
    older: bool = False

    @classmethod
    def open(
        cls,
        path: Path,
        delimiter: str | None = None,
        *,
        columns: int = 3,
        among: Sequence[str] = DELIMITERS,
        older: bool = False,
    ) -> TextTable | None:
        """Look at the first rows of a table; return None if there are none.

        Args:
            path: The file, maybe gzipped.
            delimiter: Delimiter; by default the one that splits the rows best.
            columns: How many columns are enough when a delimiter is looked for.
            among: Delimiters to look for.
            older: Whether text that is not UTF-8 is taken for Latin-1.

        Raises:
            DataError: If it cannot be read as text.
            ConfigError: If the delimiter is impossible.
        """
        given = None if delimiter is None else _checked(delimiter)
        with _normalised(path, "", older) as source:
            sample = source.read(_SNIFFED_BYTES)
        if len(sample) == _SNIFFED_BYTES:
            sample = sample[: sample.rfind(b"\n") + 1]
        text = sample.decode(errors="replace")
        if not text.strip():
            return None
        delimiter = given or max(among, key=lambda one: _fitness(text, one, columns))
        line, first = next(_rows(io.StringIO(_plain(text, delimiter)), delimiter))
        return cls(path, delimiter, first, line, older)

    def batches(self, columns: Sequence[int], *, header: bool) -> Iterator[Any]:
        """Yield the cells of some columns, as Arrow record batches of text, in the order asked.

        Args:
            columns: Which columns, by position.
            header: Whether the first row is left out.

        Raises:
            DataError: If a row has another number of cells than the first; names the line.
        """
        import pyarrow as pa
        from pyarrow import csv as arrow

        names = [str(column) for column in range(len(self.first))]
        chosen = [names[column] for column in columns]
        skipped = int(header)
        try:
            with _normalised(self.path, self.delimiter, self.older) as source:
                for batch in arrow.open_csv(
                    pa.PythonFile(source, mode="r"),
                    arrow.ReadOptions(column_names=names, block_size=_BLOCK_BYTES),
                    arrow.ParseOptions(
                        delimiter=_UNIT if self.delimiter == "::" else self.delimiter,
                        quote_char=False if self.delimiter == "::" else '"',
                        newlines_in_values=self.delimiter != "::",
                    ),
                    arrow.ConvertOptions(
                        include_columns=chosen,
                        column_types=dict.fromkeys(chosen, pa.string()),
                        check_utf8=False,  # it has been checked
                    ),
                ):
                    rest = batch.slice(skipped)
                    skipped = max(skipped - len(batch), 0)
                    if len(rest):
                        yield rest
        except pa.ArrowInvalid:
            raise self._uneven() from None

    def fault(self, row: int, column: int, problem: str) -> DataError:
        """Return the error about a cell, which says where it is and never what it holds.

        Args:
            row: Which row, from 0; a header counts.
            column: Which column, from 0.
            problem: What is wrong with it.
        """
        line: int | None = None
        with suppress(csv.Error, DataError):
            line = next((at for at, _ in itertools.islice(self._lines(), row, None)), None)
        return DataError(f"column {column + 1} {problem}", path=self.path, line=line)

    def _uneven(self) -> DataError:
        """Return the error about the first row of another width."""
        width, line = len(self.first), self.line
        problem = "a row after this one cannot be read; is a quote opened and never closed?"
        with suppress(csv.Error):  # a cell that is too long
            for at, cells in self._lines():
                line = at
                if len(cells) != width:
                    problem = f"expected {width} columns, found {len(cells)}"
                    break
        return DataError(problem, path=self.path, line=line)

    def _lines(self) -> Iterator[tuple[int, tuple[str, ...]]]:
        with _normalised(self.path, self.delimiter, self.older) as source:
            text = io.TextIOWrapper(io.BufferedReader(source), encoding="utf-8", newline="\n")
            yield from _rows(text, self.delimiter)


def _checked(given: str) -> str:
    delimiter = _SPELLED_OUT.get(given, given)
    fits = re.fullmatch(r'::|[^\x80-\U0010ffffA-Za-z0-9"\n\r.+\-\0]', delimiter) is not None
    ConfigError.unless(fits, "delimiter", given, "one ASCII character, '::' or 'tab'")
    return delimiter


def _fitness(sample: str, delimiter: str, columns: int) -> tuple[int, float]:
    """How well a delimiter splits the first rows: into enough columns, and into as many each."""
    try:
        rows = _rows(io.StringIO(_plain(sample, delimiter)), delimiter)
        widths = [len(row) for _, row in itertools.islice(rows, _SNIFFED_ROWS)]
    except csv.Error:
        return 0, 0.0
    return min(widths[0], columns), sum(one == widths[0] for one in widths) / len(widths)


def _plain(sample: str, delimiter: str) -> str:
    """A sample as it would have been read with this delimiter."""
    if delimiter == " ":
        return re.sub(r"(?m)^ +| +$", "", re.sub(" +", " ", sample))
    return sample.replace("::", _UNIT) if delimiter == "::" else sample


def _rows(text: Any, delimiter: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the cells of every row that is not blank, with the number of its first line."""
    if delimiter == "::":
        reader = csv.reader(text, delimiter=_UNIT, quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(text, delimiter=delimiter)
    line = 1
    for row in reader:
        if row:
            yield line, tuple(cell.strip(" ") for cell in row)
        line = reader.line_num + 1
