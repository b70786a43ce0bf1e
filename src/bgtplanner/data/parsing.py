"""How the bytes of a text table become arrays, a block of rows at a time.

Nothing here loops over rows: separators are found with one comparison of the whole block, and a
column of numbers is summed up digit by digit over all rows at once. That reads about a million
ratings a second, knows the line of every cell, and needs memory for one block only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from bgtplanner.errors import DataError
from bgtplanner.text import LONGEST_LABEL, MOST_BLANK_LINES

__all__ = ["Block", "LabelColumn", "read_blocks"]

_BLOCK_BYTES = 1 << 22
_LONGEST_ROW = 1 << 24  # a row that long is no rating: an unclosed quote, or not a text table
_EXACT_DIGITS = 15  # integers of so many digits, and their quotient by a power of ten, are exact
_POWERS = 10.0 ** np.arange(_EXACT_DIGITS + 1)
_NUMBER = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_NOT_FINITE = re.compile(rb"[+-]?(nan|inf|infinity)", re.IGNORECASE)
_QUOTE, _NEWLINE, _SPACE, _ZERO, _POINT = b'"\n 0.'


def read_blocks(stream: IO[bytes], path: Path) -> Iterator[tuple[bytes, int]]:
    """Whole rows as UTF-8 with plain newlines, in blocks, each with its first line's number.

    Raises:
        DataError: If the file is binary, not UTF-8, or has a row without end.
    """
    rest, line, blank = b"", 1, 0
    while chunk := stream.read(_BLOCK_BYTES):
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
            blank += text.count(b"\n\n")  # those in a row by twos: no fewer than half of them
            if blank > MOST_BLANK_LINES:
                raise DataError(
                    f"more than {MOST_BLANK_LINES:,} blank lines before the end of this block; "
                    "expected a table of ratings",
                    path=path,
                    line=line,
                )
            yield text, line
            line += rest.count(b"\n", 0, cut)
            rest = rest[cut:]
        elif len(rest) > _LONGEST_ROW:
            raise DataError("row without end (a quote left open?)", path=path, line=line)
    if rest.strip():
        if rest.count(b'"') % 2:
            raise DataError("a quote is opened and never closed", path=path, line=line)
        yield _clean(rest.rstrip(b"\r\n") + b"\n", path, line), line


def _end_of_rows(text: bytes) -> int:
    """Where the last whole row ends; a newline inside quotes ends no row."""
    if b'"' not in text:
        return text.rfind(b"\n") + 1
    array = np.frombuffer(text, dtype=np.uint8)
    ends = np.flatnonzero((array == _NEWLINE) & ~_inside_quotes(array))
    return int(ends[-1]) + 1 if len(ends) else 0


def _inside_quotes(array: NDArray[np.uint8]) -> NDArray[np.bool_]:
    return np.asarray(np.logical_xor.accumulate(array == _QUOTE))


def _clean(text: bytes, path: Path, line: int) -> bytes:
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError as error:
            bad = line + text.count(b"\n", 0, error.start)
            raise DataError("not UTF-8 text", path=path, line=bad) from None
    text = text.replace(b"\r\n", b"\n")
    if (bare := text.find(b"\r")) >= 0:
        raise DataError(
            "has a carriage return without a line feed; save it with plain line ends",
            path=path,
            line=line + text.count(b"\n", 0, bare),
        )
    return re.sub(rb"(?m)^ +$", b"", text) if b" \n" in text else text


class Block:
    """The cells of some whole rows.

    Args:
        text: The rows, each ending in a newline.
        delimiter: One byte, or two for MovieLens' ``::``. Runs of blanks count as one.
        columns: How many cells every row must have.
        path: For messages.
        line: Number of the first row's line.

    Raises:
        DataError: If a row has another number of cells; names its line.
    """

    def __init__(self, text: bytes, *, delimiter: bytes, columns: int, path: Path, line: int):
        if delimiter == b" " and re.search(rb"  |^ | $", text, re.MULTILINE):
            text = re.sub(rb"^ +| +$", b"", re.sub(rb" +", b" ", text), flags=re.MULTILINE)
        if len(delimiter) > 1:
            text, delimiter = text.replace(delimiter, b"\x1f"), b"\x1f"
        self._text, self._path, self._line = text, path, line
        self._bytes = np.frombuffer(text, dtype=np.uint8)
        self._quoted = b'"' in text
        is_separator = (self._bytes == delimiter[0]) | (self._bytes == _NEWLINE)
        if self._quoted:
            is_separator &= ~_inside_quotes(self._bytes)
        end = np.flatnonzero(is_separator)
        start = np.r_[0, end + 1][:-1]
        ends_row = self._bytes[end] == _NEWLINE
        blank = ends_row & (start == end) & np.r_[True, ends_row[:-1]]
        if blank.any():
            start, end, ends_row = start[~blank], end[~blank], ends_row[~blank]
        cells = np.diff(np.flatnonzero(ends_row), prepend=-1)
        wrong = np.flatnonzero(cells != columns)
        if len(wrong):
            row = int(wrong[0])  # all rows before it have the right number of cells
            raise DataError(
                f"expected {columns} columns, found {cells[row]}",
                path=path,
                line=self._line_at(int(start[row * columns])),
            )
        self._start, self._end = start.reshape(-1, columns), end.reshape(-1, columns)

    def __len__(self) -> int:
        return len(self._start)

    def _line_at(self, position: int) -> int:
        return self._line + self._text.count(b"\n", 0, position)

    def error(self, row: int, column: int, problem: str) -> DataError:
        """The error to raise about one cell: says where it is and never what it holds."""
        line = self._line_at(int(self._start[row, 0]))
        return DataError(f"column {column + 1} {problem}", path=self._path, line=line)

    def _column(self, column: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where the cells of a column start and how wide they are, without blanks and quotes."""
        start, end = self._start[:, column].copy(), self._end[:, column].copy()
        for _ in range(LONGEST_LABEL):
            padded = (start < end) & (self._bytes.take(start, mode="clip") == _SPACE)
            if not padded.any():
                break
            start += padded
        for _ in range(LONGEST_LABEL):
            padded = (start < end) & (self._bytes.take(end - 1, mode="clip") == _SPACE)
            if not padded.any():
                break
            end -= padded
        if self._quoted:
            quotes = np.flatnonzero(self._bytes == _QUOTE)
            holds = np.searchsorted(quotes, end) > np.searchsorted(quotes, start)
            first, last = self._bytes[start], self._bytes[end - 1]
            odd = holds & ~((first == _QUOTE) & (last == _QUOTE) & (end - start > 1))
            if odd.any():
                raise self.error(int(odd.argmax()), column, "has a quote inside an unquoted cell")
            start, end = start + holds, end - holds
        empty = start >= end
        if empty.any():
            raise self.error(int(empty.argmax()), column, "is empty")
        return start, end - start

    def numbers(self, column: int, *, dates: bool = False) -> NDArray[np.float64]:
        """A column of numbers, each exactly as ``float`` reads it; with `dates`, also ISO dates.

        Raises:
            DataError: If a cell is no finite number; names its line.
        """
        start, width = self._column(column)
        mantissa = np.zeros(len(start), dtype=np.int64)
        decimals = np.zeros(len(start), dtype=np.int64)
        after_point = np.zeros(len(start), dtype=np.bool_)
        odd = width > _EXACT_DIGITS
        for offset in range(min(int(width.max(initial=0)), _EXACT_DIGITS)):
            byte = self._bytes.take(start + offset, mode="clip")
            inside = width > offset
            digit = byte - _ZERO  # of an unsigned byte: anything but a digit wraps to above 9
            is_digit = inside & (digit <= 9)
            is_point = inside & (byte == _POINT) & ~after_point
            odd |= inside & ~is_digit & ~is_point
            mantissa = np.where(is_digit, mantissa * 10 + digit, mantissa)
            decimals += is_digit & after_point
            after_point |= is_point
        odd |= width - after_point < 1
        value = mantissa / _POWERS[decimals]
        for row in np.flatnonzero(odd):  # signs, exponents, long fractions: rare in ratings
            cell = self._text[start[row] : start[row] + width[row]].strip()
            value[row] = self._odd_number(cell, int(row), column, dates)
        return value

    def _odd_number(self, cell: bytes, row: int, column: int, dates: bool) -> float:
        if _NUMBER.fullmatch(cell):
            number = float(cell)
            if np.isfinite(number):
                return number
        elif not _NOT_FINITE.fullmatch(cell):
            if dates:
                try:
                    moment = datetime.fromisoformat(cell.decode())
                    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
                except (ValueError, OverflowError):
                    raise self.error(row, column, "is neither a number nor a date") from None
            raise self.error(row, column, "is not a number; expected a figure such as 3.5")
        raise self.error(row, column, "is not finite")

    def integers(self, column: int) -> NDArray[np.int64] | None:
        """A column of plain integers, or None if a cell would not read the same written back."""
        start, width = self._column(column)
        widest = int(width.max(initial=0))
        if widest > 18 or ((width > 1) & (self._bytes[start] == _ZERO)).any():
            return None
        value = np.zeros(len(start), dtype=np.int64)
        for offset in range(widest):
            digit = self._bytes.take(start + offset, mode="clip") - _ZERO
            inside = width > offset
            if (inside & (digit > 9)).any():
                return None
            value = np.where(inside, value * 10 + digit, value)
        return value

    def labels(self, column: int) -> tuple[NDArray[np.int64], NDArray[np.str_]]:
        """A column of text: the index of each cell, and the distinct labels it points into."""
        start, width = self._column(column)
        widest = int(width.max(initial=0))
        if widest > LONGEST_LABEL:
            raise self.error(int(width.argmax()), column, f"is longer than {LONGEST_LABEL} bytes")
        offsets = np.arange(widest)
        matrix = self._bytes.take(start[:, None] + offsets, mode="clip")
        matrix[offsets >= width[:, None]] = 0
        names, index = np.unique(matrix.view(f"S{widest}")[:, 0], return_inverse=True)
        decoded = np.char.decode(names, "utf-8")
        if self._quoted:
            decoded = np.char.replace(decoded, '""', '"')
        return index, decoded


class LabelColumn:
    """A column of ids, gathered over blocks: integers if all of them are, else text."""

    def __init__(self) -> None:
        self._parts: list[tuple[NDArray[Any], NDArray[np.str_] | None]] = []

    def add(self, block: Block, column: int, *, whole_only: bool = False) -> None:
        """Append one block's cells; with `whole_only`, refuse any that is no plain integer."""
        whole = block.integers(column)
        if whole is not None:
            self._parts.append((whole, None))
            return
        index, names = block.labels(column)
        if whole_only:
            plain = [re.fullmatch("0|[1-9][0-9]{0,17}", name) is not None for name in names]
            row = int(np.array(plain)[index].argmin())
            raise block.error(row, column, "is not a whole number")
        self._parts.append((index.astype(np.int32), names))

    def finish(self) -> tuple[NDArray[Any], NDArray[np.str_] | None]:
        """The ids; or indices and the sorted labels that they point into."""
        if all(names is None for _, names in self._parts):
            return np.concatenate([ids for ids, _ in self._parts]), None
        coded: list[tuple[NDArray[Any], NDArray[np.str_]]] = []
        for ids, names in self._parts:
            if names is None:  # plain integers read the same written back, so nothing is lost
                distinct, index = np.unique(ids, return_inverse=True)
                coded.append((index.astype(np.int32), distinct.astype(str)))
            else:
                coded.append((ids, names))
        labels = np.unique(np.concatenate([names for _, names in coded]))
        return np.concatenate(
            [np.searchsorted(labels, names)[ids] for ids, names in coded]
        ), labels
