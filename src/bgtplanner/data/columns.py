"""Which column of a text table is what, and how its columns are parted.

What is not given is found out from the first rows.
"""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bgtplanner.errors import ConfigError, DataError

__all__ = ["Column", "Layout", "TableFormat", "find_layout"]

Column = str | int | None
"""A column by its name in the header, by its position from 0, or not given."""

_ROLES = ("user", "item", "rating", "time", "client")
_KNOWN_NAMES = {
    "user": ("user", "userid", "uid", "reviewerid", "customerid"),
    "item": ("item", "itemid", "iid", "movie", "movieid", "productid", "asin", "bookid"),
    "rating": ("rating", "ratings", "value", "score", "stars"),
    "time": ("timestamp", "time", "date"),
    "client": ("client", "clientid"),
}
_SNIFFED_BYTES = 1 << 16
_SNIFFED_ROWS = 20
_DELIMITERS = ("\t", "::", ";", ",", "|", " ")
_SPELLED_OUT = {"tab": "\t", r"\t": "\t", "comma": ",", "semicolon": ";", "space": " "}


@dataclass(frozen=True, kw_only=True)
class TableFormat:
    """How to read a table; None means: find out.

    Attributes:
        delimiter: One character, or ``::``; also ``tab``, ``comma``, ``semicolon``, ``space``.
        header: Whether the first row holds names. Found out: it does if its rating is no number.
        user: Column of the user, by name or position from 0. Found out: by its usual names, else
            the first column.
        item: Column of the item; else the second.
        rating: Column of the rating; else the third.
        time: Column of the time, in numbers or ISO dates; else by name only.
        client: Column of the client; else by name only.
        whole_ids: Whether users and items must be plain integers, not text.
        bounds: Smallest and largest allowed rating.
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


@dataclass(frozen=True)
class Layout:
    """What was given and what was found out, together."""

    delimiter: str
    columns: int
    place: dict[str, int]
    header: bool


def find_layout(text: bytes, wanted: TableFormat, path: Path, line: int) -> Layout:
    """Delimiter, header and columns, from the first rows and what was given."""
    sample = text.lstrip(b"\n")[:_SNIFFED_BYTES].decode(errors="replace")
    line += len(text[: len(text) - len(text.lstrip(b"\n"))])
    delimiter = _find_delimiter(sample, wanted.delimiter, path, line)
    first = _split(sample, delimiter)[0]
    named = any(isinstance(getattr(wanted, role), str) for role in _ROLES)
    usual = {role: _usual_place(first, role) for role in _ROLES}
    header = wanted.header
    if header is None:
        at = wanted.rating if isinstance(wanted.rating, int) else usual["rating"]
        cell = first[at if at is not None and 0 <= at < len(first) else min(2, len(first) - 1)]
        header = named or usual["rating"] is not None or not _is_number(cell)
    if named and not header:
        raise ConfigError("columns are given by name, and the table is said to have no header")
    found = {role: place for role, place in usual.items() if header and place is not None}
    guessed = not any(role in found for role in ("user", "item", "rating"))
    place: dict[str, int] = {}
    for position, role in enumerate(_ROLES):
        given = getattr(wanted, role)
        if given is not None:
            place[role] = _given_place(role, given, first, path)
        elif role in found:
            place[role] = found[role]
        elif position < 3 and guessed:
            place[role] = position
        elif position < 3:
            raise ConfigError(
                f"{path}: which column is the {role}? The header has {_names(first)}; "
                f"name it with {role}=..."
            )
    for role, position in place.items():
        if position >= len(first):
            raise DataError(
                f"has {len(first)} columns; the {role} was expected in column {position + 1}",
                path=path,
                line=line,
            )
    if len(set(place.values())) < len(place):
        raise ConfigError(f"{path}: the same column is used twice: {place}")
    return Layout(delimiter, len(first), place, header)


def _find_delimiter(sample: str, given: str | None, path: Path, line: int) -> str:
    if given is not None:
        delimiter = _SPELLED_OUT.get(given, given)
        if delimiter != "::" and (
            len(delimiter) != 1
            or not delimiter.isascii()
            or delimiter.isalnum()
            or delimiter in '"\n\r.+-\0'
        ):
            raise ConfigError(f"delimiter={given!r}: expected one ASCII character, '::' or 'tab'")
        return delimiter
    for even in (True, False):  # first what cuts all rows alike, then what cuts the first
        for delimiter in _DELIMITERS:
            cells = [len(row) for row in _split(sample, delimiter)]
            if cells[0] >= 3 and (not even or len(set(cells)) == 1):
                return delimiter
    raise DataError(
        "expected at least 3 columns parted by tab, '::', ';', ',', '|' or space",
        path=path,
        line=line,
    )


def _split(text: str, delimiter: str) -> list[list[str]]:
    """The cells of the first rows; blank rows are left out."""
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


def _given_place(role: str, given: str | int, first: Sequence[str], path: Path) -> int:
    if isinstance(given, int):
        if given < 0:
            raise ConfigError(f"{role}={given}: columns count from 0: expected such a number")
        return given
    if given not in first:
        raise ConfigError(
            f"{path}: {role}={given!r}: no such column; the header has {_names(first)}: "
            "choose out of these"
        )
    return list(first).index(given)


def _names(first: Sequence[str]) -> str:
    """The header for a message; not if it holds a number, for then it may be a row of data."""
    return "no names" if any(map(_is_number, first)) else ", ".join(map(repr, first))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
