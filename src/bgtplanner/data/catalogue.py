"""What is publicly known about the items: labels, titles and features.

A catalogue costs no privacy: nothing in it comes from a rating. Features are numbers from 0 to 1,
most of them 0: categories that an item has or has not, and numbers in five classes of equal size;
only given embeddings go from -1 to 1.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgtplanner.data import files
from bgtplanner.data.tables import labels_of
from bgtplanner.errors import DataError

_IDS = ("id", *files.ITEM_NAMES, "isbn", "sku")
_TITLES = (
    *("title", "name", "itemname", "movietitle", "producttitle", "artistname", "trackname"),
    *("songtitle", "booktitle", "appname", "businessname", "headline"),
)
_DATES = ("year", "date", "released", "releasedate", "releaseyear", "published")
_SEPARATORS = ("|", ";", ",")
_CLASSES = 5  # of a number
_MOST_FEATURES = 1024
_MOST_CATEGORIES = 256  # of one column, the most frequent ones
_LONGEST_TITLE = 256  # the rest is cut off: one endless title would make all of them take its room
_LONGEST_NAME = 80  # of a category
_FEW_ITEMS = 3.0  # the weight of a ridge, in items
_FEWEST_ITEMS = 2  # that a category must have, to say anything about one item from another
_FEW = 8  # categories that no table is too small for
_YEAR_IN_TITLE = re.compile(r"\((\d{4})\)\s*$")
_CLASS = re.compile(r"(-?\d[\d.e+-]*) to (-?\d[\d.e+-]*)")
_YEARS = re.compile(r"(\d{4}(?:\.\d+)?) to (\d{4}(?:\.\d+)?)")
_DATE = re.compile("year|date|released|published", re.IGNORECASE)
_TENS = ("twenties", "thirties", "forties", "fifties", "sixties", "seventies", "eighties")
_DECADES = dict(zip(range(1920, 2000, 10), (*_TENS, "nineties"), strict=True))
_HASHED = re.compile(r"(words )?\d+")
_LOOKED_AT = 1000  # rows, in search of a header
_YEAR_IN_DATE = re.compile(r"(?:^|\D)((?:1[5-9]|20)\d\d)(?:\D|$)")


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
        number = len(self.labels)
        titled = self.titles is None or len(self.titles) == number
        if not titled or self.features.shape != (number, len(self.names)):
            raise DataError("a catalogue's labels, titles and features are not for the same items")
        if not np.isfinite(self.features).all() or len(set(self.labels.tolist())) < number:
            raise DataError("a catalogue has features that are not finite, or an item twice")

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        titles = "" if self.titles is None else ", titles"
        return f"Catalogue({len(self):,} items, {len(self.names)} features{titles})"

    @classmethod
    def from_frame(cls, frame: Any) -> Catalogue:
        """A catalogue from a table: a mapping of columns, or a frame of pandas, Polars or Arrow.

        The column of labels is detected, as all the others are.

        Raises:
            DataError: If there is no column of labels, or a label is missing or named twice.

        Example:
            >>> films = {"item": [7, 8, 9], "genre": ["Drama|War", "War", "Drama"]}
            >>> Catalogue.from_frame(films).names
            ('genre: Drama', 'genre: War')
        """
        return _catalogue(files.OpenTable.from_frame(frame), None)

    @classmethod
    def of(cls, model: Any) -> Catalogue:
        """The items of a published model, or of anything else with the same attributes."""
        return cls(
            labels=np.array([str(label) for label in model.items]), names=tuple(model.names),
            titles=np.array(model.titles) if model.titles else None, features=model.features,
        )  # fmt: skip

    def take(self, order: NDArray[np.int64]) -> Catalogue:
        """Return the same items in another order."""
        titles, features = (
            None if self.titles is None else self.titles[order],
            self.features[order],
        )
        return replace(self, labels=self.labels[order], titles=titles, features=features)

    def followed_by(self, newer: Catalogue) -> Catalogue:
        """Return these items, and after them those that only a newer catalogue has.

        Features that the newer one calls otherwise, such as classes of a number, are found from
        those of the items in both.
        """
        place = {label: at for at, label in enumerate(self.labels.tolist())}
        labels = newer.labels.tolist()
        new = [at for at, label in enumerate(labels) if label not in place]
        both = [at for at, label in enumerate(labels) if label in place]
        added = np.zeros((len(new), len(self.names)), dtype=np.float32)
        if both:
            known = self.features[[place[labels[at]] for at in both]]
            added += ridge(newer.features[both], known, newer.features[new]) > 0.5
        column = {name: at for at, name in enumerate(newer.names)}
        for at, name in enumerate(self.names):
            if name in column:
                added[:, at] = newer.features[new, column[name]]
        titles = None
        if self.titles is not None or newer.titles is not None:
            old, later = (of.labels if of.titles is None else of.titles for of in (self, newer))
            titles = np.concatenate([old, later[new]])
        return replace(
            self, titles=titles, labels=np.concatenate([self.labels, newer.labels[new]]),
            features=np.concatenate([self.features, added]),
        )  # fmt: skip


def ridge(known: NDArray[Any], target: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
    """Return what rows are expected to have by their features, and no less than any known row."""
    known, target = known.astype(np.float64), target.astype(np.float64)
    centre = known.mean(axis=0)
    normal = (known - centre).T @ (known - centre) + _FEW_ITEMS * np.eye(known.shape[1])
    slopes = np.linalg.solve(normal, (known - centre).T @ (target - target.mean(axis=0)))
    usual = np.median(target - (known - centre) @ slopes, axis=0)  # a few have most of all picks
    return np.asarray(np.maximum(usual + (new - centre) @ slopes, target.min(axis=0)))


class _Made(NamedTuple):
    """Features ``[n_items, n]`` that were made of a column, and what of it was left out."""

    names: Sequence[str] = ()
    values: NDArray[Any] | None = None
    left_out: str = ""


def _features(name: str, cells: Sequence[Any]) -> _Made:
    """Return the features that a column makes, or why it makes none."""
    if any(isinstance(cell, list) for cell in cells):
        return _lists(name, cells)
    texts = [as_label(cell) for cell in cells]
    filled = [text for text in texts if text]
    if not filled:
        return _Made(left_out="all of it is empty")
    if filled[0].startswith(("http://", "https://")):
        return _Made(left_out="addresses")
    if all(map(files.is_number, filled)):
        return _number(name, np.array([float(text) if text else np.nan for text in texts]))
    years = [_YEAR_IN_DATE.search(text) for text in texts]
    if sum(year is not None for year in years) > 0.9 * len(filled):
        return _number(name, np.array([float(year[1]) if year else np.nan for year in years]))
    parts = _separated(texts)
    counts = Counter(itertools.chain.from_iterable(parts))
    if len(counts) > max(_FEW, len(filled) / 2) or max(counts.values()) < _FEWEST_ITEMS:
        return _Made(left_out="text that is hardly ever the same twice")
    return _categories(name, parts)


def _number(name: str, values: NDArray[np.float64]) -> _Made:
    """Return a number in classes of equal size, or as it is if it is 0 or 1."""
    known = values[np.isfinite(values)]
    distinct = len(np.unique(known))
    if name.lower().endswith("id") and distinct == len(known):
        return _Made(left_out="the number of each item in another list")
    if distinct < 2:
        return _Made(left_out="the same for all items")
    if np.isin(known, (0.0, 1.0)).all():
        return _Made([name], np.nan_to_num(values)[:, None])
    edges = np.unique(np.quantile(known, np.linspace(0, 1, _CLASSES + 1)))
    place = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(edges) - 2)
    inside = (place[:, None] == np.arange(len(edges) - 1)) & np.isfinite(values)[:, None]
    bounds = itertools.pairwise(f"{edge:.10g}" for edge in edges)
    return _Made([f"{name}: {low} to {high}" for low, high in bounds], inside)


def _lists(name: str, cells: Sequence[Any]) -> _Made:
    """Return a category for each part of lists, or the numbers of an embedding."""
    rows = [cell or [] for cell in cells]
    width = max(map(len, rows))
    if not any(isinstance(part, float) for row in rows for part in row):
        return _categories(name, [[*filter(None, map(as_label, row))] for row in rows])
    values = np.array([row if len(row) == width else [0.0] * width for row in rows], float)
    if any(len(row) not in (0, width) for row in rows) or not np.isfinite(values).all():
        return _Made(left_out="an embedding that is not finite, or not of the same length for all")
    values /= np.abs(values).max() or 1.0  # one scale for all of it keeps its angles
    return _Made([f"{name}: {index}" for index in range(width)], values)


def _categories(name: str, rows: Sequence[Sequence[str]]) -> _Made:
    """Return the categories that at least two items have, and not all; the most frequent ones."""
    counts = Counter(part for row in rows for part in set(row))
    kept = [part for part, count in counts.items() if _FEWEST_ITEMS <= count < len(rows)]
    if not kept:
        return _Made(left_out="each of its categories has a single item, or all of them")
    kept.sort(key=lambda part: (-counts[part], part))
    rare = len(kept) - _MOST_CATEGORIES
    place = {part: index for index, part in enumerate(kept[:_MOST_CATEGORIES])}
    marks = np.zeros((len(rows), len(place)), dtype=np.float32)
    for marked, row in zip(marks, rows, strict=True):
        marked[[place[part] for part in row if part in place]] = 1.0
    left_out = f"its {rare:,} rarest categories" * (rare > 0)
    return _Made([f"{name}: {part[:_LONGEST_NAME]}" for part in place], marks, left_out)


def _separated(texts: Sequence[str]) -> list[list[str]]:
    """Return the parts of each cell, by the separator that makes the fewest distinct ones."""
    best, fewest = [[text] if text else [] for text in texts], len(set(texts))
    for separator in (one for one in _SEPARATORS if any(one in text for text in texts)):
        parts = [[part.strip() for part in text.split(separator)] for text in texts]
        distinct = len(set(itertools.chain.from_iterable(parts)))
        if distinct < fewest + (separator != ","):  # a comma also stands in ordinary text
            best, fewest = [[part for part in row if part] for row in parts], distinct
    return best


def read_items(path: Path | str, columns: tuple[str, ...] | None = None) -> Catalogue:
    """Read a table of items: CSV text with any usual delimiter, plain or gzipped, or Parquet.

    A table without a header has these `columns`; if there is only one, every line is a label,
    whatever signs are in it. What is not given is detected.

    Raises:
        DataError: If it cannot be read as items; names the file.
    """
    least = len(columns or ("item", "title"))
    whole_lines = "::" if least == 1 else None  # between cells; quotes do not count beside it
    among = ("\t", "::", "|", ";", ",")  # titles have blanks and commas
    table = files.open_table(Path(path), whole_lines, columns=least, among=among, older=True)
    return _catalogue(table, columns)


def _catalogue(table: files.OpenTable, given: Sequence[str] | None) -> Catalogue:
    """Return the catalogue in an open table."""
    names, header = _header(table, given)
    own = files.usual_place(names, _IDS) or 0
    cells = table.columns(range(len(names)), header=header)
    if not cells or not len(cells[own]):
        raise DataError(f"{table.path or 'the catalogue'} has no items; expected a row for each")
    refuse = partial(table.refuse, own, header)
    labels = labels_of(cells[own], refuse)
    repeated = np.ones(len(labels), dtype=bool)
    repeated[np.unique(labels.index, return_index=True)[1]] = False
    refuse(repeated, "is a label that occurred before; expected each item once")
    titled, titles = files.usual_place(names, _TITLES), None
    rest = {names[at]: of.to_pylist() for at, of in enumerate(cells) if at not in (own, titled)}
    if titled is not None:
        titles = [as_label(cell) for cell in cells[titled].to_pylist()]
        years = [_YEAR_IN_TITLE.search(text) for text in titles]
        dated = files.usual_place(names, _DATES) is not None
        if not dated and sum(year is not None for year in years) > len(years) / 2:
            rest["year"] = [year and year[1] for year in years]
    made = {name: _features(name, of) for name, of in rest.items()}
    left_out = [f"{name}: {part.left_out}" for name, part in made.items() if part.left_out]
    feature_names = [name for part in made.values() for name in part.names]
    if len(feature_names) > _MOST_FEATURES:
        left_out.append(f"all features after the first {_MOST_FEATURES:,}")
    values = [part.values for part in made.values() if part.values is not None]
    features = np.concatenate([np.zeros((len(labels), 0)), *values], 1, dtype=np.float32)
    return Catalogue(
        labels=labels.rows().astype(np.str_), left_out=tuple(left_out),
        titles=None if titles is None else np.array([of[:_LONGEST_TITLE] for of in titles]),
        features=features[:, :_MOST_FEATURES], names=tuple(feature_names[:_MOST_FEATURES]),
    )  # fmt: skip


def _header(table: files.OpenTable, names: Sequence[str] | None) -> tuple[Sequence[str], bool]:
    """Return the names of the columns, and whether they stand in the first row.

    Without names the label comes first, and then the title, if that is text.
    """
    first, problem = table.first, ""
    named = files.usual_place(first, (*_IDS, *_TITLES)) is not None
    if names is None and table.delimiter and not named and _is_a_row(first, table):
        names = ("item", *["title"] * (len(first) > 1 and not files.is_number(first[1])))
        names += tuple(f"column {at + 1}" for at in range(len(names), len(first)))
    if not table.delimiter or names is None:
        problem = "has two columns of the same name" * (len(set(first)) < len(first))
        names = None
    elif len(first) != len(names):
        problem = f"expected {len(names)} columns, found {len(first)}"
    if problem:
        raise DataError(problem, path=table.path, line=table.line)
    return names or first, names is None


def _is_a_row(first: Sequence[str], table: files.OpenTable) -> bool:
    """Return whether a first row is no header: a name is no number, and not in its own column."""
    if len(first) == 1 or any(map(files.is_number, first)):
        return True
    rows = itertools.islice(table.rows(), 1, _LOOKED_AT)
    return any(
        cell and cell in row[at : at + 1] for _, row in rows for at, cell in enumerate(first)
    )


def as_label(cell: Any) -> str:
    """Return a cell as text: empty if it is missing; whole numbers have no point."""
    if cell is None or (isinstance(cell, float) and not math.isfinite(cell)):
        return ""
    whole = isinstance(cell, bool) or (isinstance(cell, float) and cell.is_integer())
    return str(int(cell) if whole else cell).strip()


def plain_name(name: str) -> str | None:
    """Return a feature as people would call it; None for hashed words and embeddings.

    Example:
        >>> plain_name("genre: Drama"), plain_name("is_new"), plain_name("title: words 17")
        ('Drama', 'is new', None)
        >>> plain_name("year: 1990 to 1998"), plain_name("year: 1994 to 1996")
        ('titles from the nineties', 'titles from the mid-nineties')
    """
    column, colon, part = name.partition(": ")
    if not colon:
        return name.replace("_", " ")
    if _HASHED.fullmatch(part):
        return None
    years = _YEARS.fullmatch(part) if _DATE.search(column) else None
    if years is None:
        return f"items with {column} {part}" if _CLASS.fullmatch(part) else part
    first, end = (math.ceil(float(year)) for year in years.groups())
    last, decade = max(first, end - 1), first - first % 10  # the end begins the next class
    if last - decade > 9:
        return f"titles from {first} to {last}"
    third = ("early ", "mid-", "late ")[(first + last - 2 * decade) // 7]
    called = _DECADES.get(decade, f"{decade}s")
    return f"titles from the {third if last - first < 6 else ''}{called}"


def strongest_feature(
    features: NDArray[Any], names: Sequence[str | None], values: Any, items: NDArray[Any]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return how far a feature with a name moved each item up at most, and which feature it was.

    It counts only as far as the item's features together moved it up: an item that is lifted by
    one feature and pulled down by two others is not recommended because of the one.
    """
    if values is None or not features.size or len(names) != np.shape(values)[1]:
        return np.zeros(items.shape), np.zeros(items.shape, dtype=np.int64)
    added = features[items] * np.asarray(values, np.float64)[:, None, :]
    together = added.sum(axis=2)
    added[:, :, [name is None for name in names]] = 0.0
    return np.minimum(added.max(axis=2), together), added.argmax(axis=2)
