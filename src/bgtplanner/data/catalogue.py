"""What is publicly known about the items: labels, titles and features.

A catalogue costs no privacy: nothing in it comes from a rating. Features are numbers from 0 to 1,
most of them 0: categories that an item has or has not, numbers in five classes of equal size, and
words; only given embeddings go from -1 to 1. A user's leanings towards them are learned on the
client, from its own ratings alone.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgtplanner.data.tables import columns_of_frame, is_missing, usual_place
from bgtplanner.data.textfile import DELIMITERS_OF_ITEMS, TextTable, bytes_of
from bgtplanner.errors import ConfigError, DataError
from bgtplanner.text import LONGEST_LABEL, MOST_LABELS

_IDS = ("id", "item", "itemid", "movieid", "productid", "asin", "bookid", "isbn", "sku")
_TITLES = ("title", "name", "itemname", "movietitle", "producttitle")
_SEPARATORS = ("|", ";", ",")
_CLASSES = 5  # of a number
_MOST_FEATURES = 1024
_MOST_CATEGORIES = 256  # of one column, the most frequent ones
_LONGEST_TITLE = 256  # the rest is cut off: one endless title would make all of them take its room
_LONGEST_NAME = 80  # of a category
_FEWEST_ITEMS = 2  # that a category must have, to say anything about one item from another
_FEW = 8  # categories that no table is too small for
_LISTS = (list, tuple, np.ndarray)
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
        words: Columns of text whose words are features; the title can be one of them.
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
        features: ``[n_items, n_features]``, from 0 to 1; those of an embedding from -1 to 1.
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
        labels = _labels([as_label(cell) for cell in columns[item]], where)
        title = _named(columns, wanted.title, _TITLES, "title")
        titles = None if title is None else [as_label(cell) for cell in columns[title]]
        chosen = wanted.features or [name for name in columns if name not in (item, title)]
        for role, given in (("features", wanted.features or ()), ("words", wanted.words)):
            for name in given:
                _named(columns, name, (), role)
        made, left_out = _Features(len(labels)), []
        for name in dict.fromkeys((*chosen, *wanted.words)):
            reason = made.add(name, columns[name], words=name in wanted.words)
            left_out += [] if reason is None else [f"{name}: {reason}"]
        if titles is not None and not made.dated:
            found = [_YEAR_IN_TITLE.search(text) for text in titles]
            if sum(match is not None for match in found) > len(found) / 2:
                made.number("year", [float(match[1]) if match else np.nan for match in found])
        if made.too_many:
            left_out.append(
                f"{made.too_many:,} features: at most {_MOST_CATEGORIES} categories of a column "
                f"and {_MOST_FEATURES:,} features in all are used"
            )
        return cls(
            labels=np.array(labels),
            titles=None
            if titles is None
            else np.array([text[:_LONGEST_TITLE] for text in titles]),
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
    """Features as they are made, column by column.

    Attributes:
        names: Of those made so far.
        dated: Whether a column gave years.
        too_many: How many were left out because there are enough.
    """

    def __init__(self, items: int) -> None:
        self.items, self.names, self.dated, self.too_many = items, list[str](), False, 0
        self._parts = list[NDArray[np.float32]]()

    def matrix(self) -> NDArray[np.float32]:
        """Return all of them, ``[n_items, n_features]``."""
        return np.concatenate([np.zeros((self.items, 0), dtype=np.float32), *self._parts], axis=1)

    def add(self, name: str, cells: Sequence[Any], *, words: bool) -> str | None:
        """Make features of a column; returns why not, if none can be made."""
        if not words and any(isinstance(cell, _LISTS) for cell in cells):
            return self._lists(name, cells)
        texts = [as_label(cell) for cell in cells]
        filled = [text for text in texts if text]
        if not filled:
            return "all of it is empty"
        if words:
            return self._words(name, texts)
        if filled[0].startswith(("http://", "https://")):
            return "addresses"
        numbers = _numbers(texts)
        if numbers is not None:
            known = numbers[np.isfinite(numbers)]
            if name.lower().endswith("id") and len(np.unique(known)) == len(known):
                return "the number of each item in another list"
            self.dated |= bool(((known >= 1500) & (known < 2100) & (known % 1 == 0)).all())
            return self.number(name, numbers)
        years = [_YEAR_IN_DATE.search(text) for text in texts]
        if sum(year is not None for year in years) > 0.9 * len(filled):
            self.dated = True
            return self.number(name, [float(year[1]) if year else np.nan for year in years])
        parts = _separated(texts)
        counts = Counter(itertools.chain.from_iterable(parts))
        if len(counts) > max(_FEW, len(filled) / 2) or max(counts.values()) < _FEWEST_ITEMS:
            return "text that hardly comes twice; its words can be features"
        return self._categories(name, parts)

    def number(self, name: str, numbers: ArrayLike) -> str | None:
        """A number in classes of equal size; as it is, if it is 0 or 1."""
        values = np.asarray(numbers, dtype=np.float64)
        known = values[np.isfinite(values)]
        if len(np.unique(known)) < 2:
            return "the same for all items"
        if np.isin(known, (0.0, 1.0)).all():
            self._append([name], np.nan_to_num(values)[:, None])
            return None
        edges = np.unique(np.quantile(known, np.linspace(0, 1, _CLASSES + 1)))
        place = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
        inside = (place[:, None] == np.arange(len(edges) - 1)) & np.isfinite(values)[:, None]
        bounds = itertools.pairwise(f"{edge:.10g}" for edge in edges)
        self._append([f"{name}: {low} to {high}" for low, high in bounds], inside)
        return None

    def _words(self, name: str, texts: Sequence[str]) -> str | None:
        """Words that some items share, hashed so that there are not too many."""
        rows = [set(_WORD.findall(text.lower())) for text in texts]
        counts = Counter(itertools.chain.from_iterable(rows))
        bucket = {w: _bucket(w) for w, count in counts.items() if 1 < count <= len(rows) / 2}
        if not bucket:
            return "no word of it comes twice"
        made = _marked(rows, bucket, _BUCKETS)
        used = np.flatnonzero(made.any(axis=0))
        self._append([f"{name}: words {place}" for place in used], made[:, used])
        return None

    def _lists(self, name: str, cells: Sequence[Any]) -> str | None:
        rows = [
            list(cell) if isinstance(cell, list | tuple | np.ndarray) else [] for cell in cells
        ]
        first = next((row for row in rows if row), [])
        if not any(isinstance(part, float | np.floating) for part in first):
            return self._categories(name, [[*filter(None, map(as_label, row))] for row in rows])
        try:  # an embedding: one scale for all of it keeps its angles
            values = np.array([row or [0.0] * len(first) for row in rows], dtype=np.float64)
        except (TypeError, ValueError):
            return "an embedding that is not of the same length for all items"
        if not np.isfinite(values).all():
            return "an embedding with numbers that are not finite"
        values /= np.abs(values).max() or 1.0
        self._append([f"{name}: {index}" for index in range(len(first))], values)
        return None

    def _categories(self, name: str, rows: Sequence[Sequence[str]]) -> str | None:
        counts = Counter(part for row in rows for part in set(row))
        kept = [part for part, count in counts.items() if _FEWEST_ITEMS <= count < len(rows)]
        if not kept:
            return "no category of it has two items, and not all"
        kept.sort(key=lambda part: (-counts[part], part))
        self.too_many += max(len(kept) - _MOST_CATEGORIES, 0)
        place = {part: index for index, part in enumerate(kept[:_MOST_CATEGORIES])}
        names = [f"{name}: {part[:_LONGEST_NAME]}" for part in place]
        self._append(names, _marked(rows, place, len(place)))
        return None

    def _append(self, names: Sequence[str], values: ArrayLike) -> None:
        room = max(_MOST_FEATURES - len(self.names), 0)
        self.too_many += max(len(names) - room, 0)
        self.names += names[:room]
        self._parts.append(np.asarray(values, dtype=np.float32)[:, :room])


def _marked(
    rows: Sequence[Iterable[str]], place: Mapping[str, int], width: int
) -> NDArray[np.float32]:
    """A row of 0 for each row of texts, with 1 at the places of those that have one."""
    made = np.zeros((len(rows), width), dtype=np.float32)
    for index, row in enumerate(rows):
        made[index, [place[text] for text in row if text in place]] = 1.0
    return made


def _labels(labels: list[str], where: str) -> list[str]:
    """The labels, after checking that each item has one of its own."""
    if len(labels) > MOST_LABELS:
        raise DataError(f"{where} has more than {MOST_LABELS:,} items")
    seen = set[str]()
    for row, label in enumerate(labels, start=1):
        fault = None
        if not label:
            fault = "has no label"
        elif label in seen:
            fault = "has a label that came before"
        elif len(label.encode(errors="replace")) > LONGEST_LABEL:
            fault = f"has a label of more than {LONGEST_LABEL} bytes"
        if fault is not None:
            raise DataError(f"{where}: item {row} {fault}; expected each item once, by its label")
        seen.add(label)
    return labels


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
    content = bytes_of(path)
    if content[:4] == b"PAR1":
        return Catalogue.from_frame(_parquet(content, path), wanted, where=str(path))
    least = len(wanted.columns or ("item", "title"))
    table = TextTable.open(content, path, columns=least, among=DELIMITERS_OF_ITEMS, older=True)
    if table is None:
        raise DataError("is empty; expected a row for each item", path=path)
    names, header = _header(table, wanted)
    if len(table.first) != len(names):
        problem = f"expected {len(names)} columns, found {len(table.first)}"
        raise DataError(problem, path=path, line=table.line)
    cells = table.columns(range(len(names)), header=header)
    if len(cells[0]) > MOST_LABELS:
        raise DataError(f"has more than {MOST_LABELS:,} items", path=path)
    columns = {name: column.to_pylist() for name, column in zip(names, cells, strict=True)}
    return Catalogue.from_frame(columns, wanted, where=str(path))


def _header(table: TextTable, wanted: ItemsFormat) -> tuple[list[str], bool]:
    """The names of the columns, and whether they stand in the first row."""
    if wanted.columns is not None:
        return list(wanted.columns), False
    first = [cell.strip() for cell in table.first]
    usual = usual_place(first, (*_IDS, *_TITLES)) is not None
    if len(first) == 1 and not usual:  # a list of labels, as for a federation on real machines
        return ["item"], False
    problem = None
    if not usual and any(_numbers([cell]) is not None for cell in first if cell):
        problem = "has no header; expected names in the first row, such as item,title,genre"
    elif len(set(first)) < len(first):
        problem = "has two columns of the same name"
    if problem is not None:
        raise DataError(problem, path=table.path, line=table.line)
    return first, True


def _parquet(content: bytes, path: Path) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.read_table(pa.BufferReader(content))
    except (pa.ArrowException, OSError):
        raise DataError("cannot be read as Parquet", path=path) from None


def _columns(frame: Any) -> dict[str, list[Any]]:
    """The columns of a table of whatever kind, as lists."""
    columns = {}
    for name, cells in columns_of_frame(frame).items():
        as_list = ("to_pylist", "to_list", "tolist")  # of Arrow, of Polars and pandas, of NumPy
        method = next((getattr(cells, m) for m in as_list if hasattr(cells, m)), None)
        columns[name] = list(cells) if method is None else method()
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
    place = usual_place(list(columns), usual)
    return None if place is None else list(columns)[place]


def as_label(cell: Any) -> str:
    """A cell as text; an empty one if it is missing, and whole numbers without a point."""
    if isinstance(cell, str):  # most of them
        return cell.strip()
    if is_missing(cell) or (isinstance(cell, float) and not np.isfinite(cell)):
        return ""
    if isinstance(cell, bool | np.bool_):
        return str(int(cell))
    if isinstance(cell, float | np.floating) and float(cell).is_integer():
        return str(int(cell))
    return str(cell).strip()


def _numbers(texts: Sequence[str]) -> NDArray[np.float64] | None:
    """The cells as numbers, missing ones as NaN; None if one is something else."""
    try:
        return np.array([float(text) if text else np.nan for text in texts])
    except ValueError:
        return None


def _separated(texts: Sequence[str]) -> list[list[str]]:
    """The parts of each cell, by the separator that makes the fewest distinct ones."""
    best, fewest = [[text] if text else [] for text in texts], len(set(texts))
    for separator in (one for one in _SEPARATORS if any(one in text for text in texts)):
        parts = [[part.strip() for part in text.split(separator)] for text in texts]
        distinct = len(set(itertools.chain.from_iterable(parts)))
        if distinct < fewest + (separator != ","):  # a comma also stands in ordinary text
            best, fewest = [[part for part in row if part] for row in parts], distinct
    return best


def _bucket(word: str) -> int:
    return int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "little") % _BUCKETS
