"""What is publicly known about the items: labels, titles and features.

A catalogue costs no privacy: nothing in it comes from a rating. Features are numbers from 0 to 1,
most of them 0: categories that an item has or has not, numbers in five classes of equal size, and
words. A user's leanings towards them are learned on the client, from its own ratings alone.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgtplanner.errors import ConfigError, DataError
from bgtplanner.text import MOST_BYTES_OF_A_CATALOGUE, MOST_LABELS, read_bytes

__all__ = ["Catalogue", "ItemsFormat", "read_items"]

_IDS = ("id", "item", "itemid", "movieid", "productid", "asin", "bookid", "isbn", "sku")
_TITLES = ("title", "name", "itemname", "movietitle", "producttitle")
_DELIMITERS = ("\t", "::", "|", ";", ",")
_SEPARATORS = ("|", ";", ",")
_CLASSES = 5  # of a number
_MOST_FEATURES = 1024
_FEWEST_ITEMS = 2  # that a category must have, to say anything about one item from another
_FEW = 8  # categories that no table is too small for
_WORD = re.compile(r"[^\W\d_]{3,}")
_YEAR_IN_TITLE = re.compile(r"\((\d{4})\)\s*$")
_YEAR_IN_DATE = re.compile(r"(?:^|\D)((?:1[5-9]|20)\d\d)(?:\D|$)")
_BUCKETS = 256  # of words


@dataclass(frozen=True, kw_only=True)
class ItemsFormat:
    """How a table of items is read; None means: detect it.

    Attributes:
        columns: Names of the columns of a table that has no header.
        item: Column of the item's label, by name.
        title: Column of the title, by name; an empty text for none.
        features: The columns that are features; by default all others, as far as they can be.
        words: Columns of text whose words are features.
    """

    columns: tuple[str, ...] | None = None
    item: str | None = None
    title: str | None = None
    features: tuple[str, ...] | None = None
    words: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Catalogue:
    """Items by label.

    Attributes:
        labels: Of the items, as text, each once.
        titles: Of the items, or None.
        features: ``[n_items, n_features]``, from 0 to 1.
        names: Of the features, such as ``genre: Drama``.
        left_out: Columns that no feature was made of, each with the reason.
    """

    labels: NDArray[np.str_]
    titles: NDArray[np.str_] | None
    features: NDArray[np.float32]
    names: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        number, unless = len(self.labels), DataError
        shaped = self.features.shape == (number, len(self.names))
        if not shaped or (self.titles is not None and len(self.titles) != number):
            raise unless("a catalogue's labels, titles and features are not for the same items")
        if not np.isfinite(self.features).all():
            raise unless("a catalogue's features must be finite numbers")
        if len(set(self.labels.tolist())) < number:
            raise unless("a catalogue names an item twice")

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        titles = "" if self.titles is None else ", titles"
        return f"Catalogue({len(self):,} items, {len(self.names)} features{titles})"

    @classmethod
    def from_frame(
        cls, frame: Any, items_format: ItemsFormat | None = None, *, where: str = "the catalogue"
    ) -> Catalogue:
        """A catalogue from a table: a mapping of columns, or a frame of pandas, Polars or Arrow.

        Args:
            frame: The table.
            items_format: Which column is what; the rest is detected.
            where: What errors call it.

        Raises:
            DataError: If there is no column of labels, or a label is missing or named twice.
            ConfigError: If the format names a column that is not there.

        Example:
            >>> made = Catalogue.from_frame(
            ...     {"item": [7, 8, 9], "genre": ["Drama|War", "War", "Drama"]}
            ... )
            >>> made.names, made.features.tolist()
            (('genre: Drama', 'genre: War'), [[1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])
        """
        wanted, columns = items_format or ItemsFormat(), _columns(frame)
        item = _named(columns, wanted.item, _IDS, "item")
        if item is None:
            item = next(iter(columns), None)
        if item is None or not columns[item]:
            raise DataError(f"{where} has no items; expected a row for each")
        labels = [_text(cell) for cell in columns[item]]
        twice = [label for label, count in Counter(labels).items() if count > 1]
        if "" in labels or twice:
            row = (labels.index("") if "" in labels else labels.index(twice[0])) + 1
            fault = "has no label" if "" in labels else "has a label that comes again"
            raise DataError(f"{where}: item {row} {fault}; expected each item once")
        if len(labels) > MOST_LABELS:
            raise DataError(f"{where} has more than {MOST_LABELS:,} items")
        title = _named(columns, wanted.title, _TITLES, "title")
        titles = None if title is None else [_text(cell) for cell in columns[title]]
        made, left_out = _Features(len(labels)), []
        for name in wanted.features or [name for name in columns if name not in (item, title)]:
            if name not in columns:
                _named(columns, name, (), "features")
            reason = made.add(name, columns[name], words=name in wanted.words)
            left_out += [] if reason is None else [f"{name}: {reason}"]
        if titles is not None:
            found = [_YEAR_IN_TITLE.search(text) for text in titles]
            if sum(match is not None for match in found) > len(found) / 2:
                made.number("year", [float(match[1]) if match else np.nan for match in found])
            if title in wanted.words:
                made.words(str(title), titles)
        return cls(
            labels=np.array(labels),
            titles=None if titles is None else np.array(titles),
            features=made.matrix(),
            names=tuple(made.names),
            left_out=tuple(left_out),
        )

    def over(self, labels: ArrayLike) -> Catalogue:
        """The same for other items, in their order; one that it does not know has no features.

        Raises:
            DataError: If it knows none of them: it is of something else.
        """
        wanted = np.asarray(labels).astype(str)
        place = {label: index for index, label in enumerate(self.labels.tolist())}
        index = np.array([place.get(label, -1) for label in wanted.tolist()], dtype=np.int64)
        if len(wanted) and not (index >= 0).any():
            raise DataError(
                "the catalogue has none of the items that are rated; is it of these data, and "
                "are its labels in the right column?"
            )
        known = index >= 0
        features = np.where(known[:, None], self.features[index], np.float32(0))
        titles = None if self.titles is None else np.where(known, self.titles[index], wanted)
        return replace(self, labels=wanted, titles=titles, features=features)


class _Features:
    """Features as they are made, column by column."""

    def __init__(self, items: int) -> None:
        self.items, self.names, self._parts = items, list[str](), list[NDArray[np.float32]]()

    def matrix(self) -> NDArray[np.float32]:
        if not self._parts:
            return np.zeros((self.items, 0), dtype=np.float32)
        return np.stack(self._parts, axis=1)

    def add(self, name: str, cells: Sequence[Any], *, words: bool) -> str | None:
        """Make features of a column; returns why not, if none can be made."""
        texts = [_text(cell) for cell in cells]
        filled = [text for text in texts if text]
        if words:
            return self.words(name, texts)
        if not filled:
            return "all of it is empty"
        if any(isinstance(cell, list | tuple | np.ndarray) for cell in cells):
            return self._lists(name, cells)
        if filled[0].startswith(("http://", "https://")):
            return "addresses"
        numbers = _numbers(texts)
        if numbers is not None:
            return self.number(name, numbers)
        years = [_YEAR_IN_DATE.search(text) for text in texts]
        if sum(year is not None for year in years) > 0.9 * len(filled):
            return self.number(name, [float(year[1]) if year else np.nan for year in years])
        parts = _separated(texts)
        counts = Counter(part for row in parts for part in row if part)
        if len(counts) > max(_FEW, len(filled) / 2) or max(counts.values()) < _FEWEST_ITEMS:
            return "text that hardly comes twice; its words can be features"
        return self._categories(name, parts)

    def number(self, name: str, numbers: Iterable[float]) -> str | None:
        """A number in classes of equal size; as it is, if it is 0 or 1."""
        values = np.array(list(numbers), dtype=np.float64)
        known = values[np.isfinite(values)]
        if len(np.unique(known)) < 2:
            return "the same for all items"
        if np.isin(known, (0.0, 1.0)).all():
            self._append(name, np.nan_to_num(values))
            return None
        edges = np.unique(np.quantile(known, np.linspace(0, 1, _CLASSES + 1)))
        place = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
        for index, (low, high) in enumerate(itertools.pairwise(edges)):
            inside = (place == index) & np.isfinite(values)
            self._append(f"{name}: {low:g} to {high:g}", inside)
        return None

    def words(self, name: str, texts: Sequence[str]) -> str | None:
        """Words that some items share, hashed so that there are not too many."""
        rows = [set(_WORD.findall(text.lower())) for text in texts]
        counts = Counter(word for row in rows for word in row)
        shared = {word for word, count in counts.items() if 1 < count <= len(rows) / 2}
        if not shared:
            return "no word of it comes twice"
        bucket = {word: _bucket(word) for word in shared}
        made = np.zeros((len(rows), _BUCKETS), dtype=np.float32)
        for index, row in enumerate(rows):
            made[index, [bucket[word] for word in row & shared]] = 1.0
        for place in np.flatnonzero(made.any(axis=0)):
            self._append(f"{name}: words {place}", made[:, place])
        return None

    def _lists(self, name: str, cells: Sequence[Any]) -> str | None:
        rows = [list(cell) if cell is not None else [] for cell in cells]
        lengths = {len(row) for row in rows if row}
        numeric = all(isinstance(part, int | float | np.number) for row in rows for part in row)
        if not numeric or len(lengths) != 1:
            return self._categories(name, [[_text(part) for part in row] for row in rows])
        width = lengths.pop()
        values = np.array([row or [0.0] * width for row in rows], dtype=np.float64)
        if not np.isfinite(values).all():
            return "an embedding with numbers that are not finite"
        size = np.abs(values).max() or 1.0
        for index in range(width):  # an embedding: one scale for all of it keeps its angles
            self._append(f"{name}: {index}", values[:, index] / size)
        return None

    def _categories(self, name: str, rows: Sequence[Sequence[str]]) -> str | None:
        counts = Counter(part for row in rows for part in set(row) if part)
        kept = [part for part, count in counts.items() if _FEWEST_ITEMS <= count < len(rows)]
        if not kept:
            return "no category of it has two items, and not all"
        for part in sorted(kept, key=lambda part: (-counts[part], part))[:_MOST_FEATURES]:
            self._append(f"{name}: {part}", [part in row for row in rows])
        return None

    def _append(self, name: str, values: ArrayLike) -> None:
        if len(self.names) < _MOST_FEATURES:
            self.names.append(name)
            self._parts.append(np.asarray(values, dtype=np.float32))


def read_items(path: Path | str, items_format: ItemsFormat | None = None) -> Catalogue:
    """Read a table of items: CSV text with any usual delimiter, plain or gzipped, or Parquet.

    Args:
        path: The file.
        items_format: Which column is what; the rest is detected.

    Raises:
        DataError: If it cannot be read as items; names the file.
        ConfigError: If the format names a column that is not there.
    """
    path, wanted = Path(path), items_format or ItemsFormat()
    try:
        content = read_bytes(path, MOST_BYTES_OF_A_CATALOGUE)
    except FileNotFoundError:
        raise DataError("no such file; expected a table of items", path=path) from None
    except (OSError, ValueError) as error:
        raise DataError(f"cannot be read: {error}", path=path) from error
    if content[:4] == b"PAR1":
        return Catalogue.from_frame(_parquet(content, path), wanted, where=str(path))
    if content[:2] == b"\x1f\x8b":
        try:
            with gzip.open(io.BytesIO(content)) as zipped:
                content = zipped.read(MOST_BYTES_OF_A_CATALOGUE)
        except (OSError, EOFError) as error:
            raise DataError("the gzip data is damaged", path=path) from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:  # older catalogues, MovieLens' among them
        text = content.decode("latin-1")
    if "\0" in text:
        raise DataError("holds a zero byte: expected CSV or Parquet", path=path)
    rows = _rows(text, len(wanted.columns or ()))
    if not rows:
        raise DataError("is empty; expected a row for each item", path=path)
    names = list(wanted.columns or rows.pop(0))
    if len(set(names)) < len(names):
        raise DataError("has two columns of the same name", path=path, line=1)
    for line, row in enumerate(rows, start=1 if wanted.columns else 2):
        if len(row) != len(names):
            problem = f"expected {len(names)} columns, found {len(row)}"
            raise DataError(problem, path=path, line=line)
    columns = dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else {}
    return Catalogue.from_frame(columns, wanted, where=str(path))


def _rows(text: str, columns: int) -> list[list[str]]:
    """The cells of a text table; the delimiter makes most rows as wide as the first."""
    sample = text[: 1 << 16].splitlines()[:20]

    def fitness(delimiter: str) -> tuple[bool, float, int]:
        found = [len(row) for row in _split(sample, delimiter) if row]
        width = columns or (found[0] if found else 0)
        return width > 1, sum(one == width for one in found) / max(len(found), 1), width

    delimiter = max(_DELIMITERS, key=fitness)
    return [row for row in _split(text.splitlines(), delimiter) if any(row)]


def _split(lines: Iterable[str], delimiter: str) -> Iterable[list[str]]:
    if len(delimiter) > 1:
        return (line.split(delimiter) for line in lines)
    return csv.reader(lines, delimiter=delimiter)


def _parquet(content: bytes, path: Path) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.read_table(pa.BufferReader(content))
    except pa.ArrowException:
        raise DataError("cannot be read as Parquet", path=path) from None


def _columns(frame: Any) -> dict[str, list[Any]]:
    """The columns of a table of whatever kind, as lists."""
    if hasattr(frame, "to_pydict"):  # Arrow
        return dict(frame.to_pydict())
    if hasattr(frame, "to_dict") and not isinstance(frame, Mapping):
        try:
            found = frame.to_dict(orient="list")  # pandas
        except TypeError:
            found = frame.to_dict(as_series=False)  # Polars
        return {str(name): list(cells) for name, cells in found.items()}
    if not isinstance(frame, Mapping):
        kind = type(frame).__name__
        raise DataError(f"expected a table of items or a mapping of columns, not {kind}")
    columns = {str(name): list(cells) for name, cells in frame.items()}
    if len({len(cells) for cells in columns.values()}) > 1:
        raise DataError("the columns of the catalogue are not of the same length")
    return columns


def _named(
    columns: Mapping[str, Any], given: str | None, usual: Sequence[str], role: str
) -> str | None:
    """The column that is given, or else called as such columns are."""
    if given == "":
        return None
    if given is not None:
        expected = f"one of {', '.join(list(columns)[:20])}"
        ConfigError.unless(given in columns, f"items: {role}", given, expected)
        return given
    plain = {re.sub(r"[\W_]", "", name).lower(): name for name in columns}
    return next((plain[name] for name in usual if name in plain), None)


def _text(cell: Any) -> str:
    if cell is None or (isinstance(cell, float) and not np.isfinite(cell)):
        return ""
    if isinstance(cell, float | np.floating) and float(cell).is_integer():
        return str(int(cell))
    return str(cell).strip()


def _numbers(texts: Sequence[str]) -> list[float] | None:
    """The cells as numbers, missing ones as NaN; None if one is something else."""
    try:
        return [float(text) if text else np.nan for text in texts]
    except ValueError:
        return None


def _separated(texts: Sequence[str]) -> list[list[str]]:
    """The parts of each cell, by the separator that makes the fewest distinct ones."""
    best = [[text] if text else [] for text in texts]
    for separator in _SEPARATORS:
        parts = [[part.strip() for part in text.split(separator)] for text in texts]
        if len({p for row in parts for p in row}) < len({p for row in best for p in row}):
            best = parts
    return best


def _bucket(word: str) -> int:
    return int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "little") % _BUCKETS
