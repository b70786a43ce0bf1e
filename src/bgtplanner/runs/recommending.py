"""Recommendations of a run: from its simulation, as one object, and in a file.

A file is written block by block, so that the lists of everybody need no memory, and it appears
only when it is complete.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from numpy.typing import ArrayLike

from bgtplanner.data.ratings import Ratings
from bgtplanner.durable import replacing
from bgtplanner.errors import StorageError
from bgtplanner.federation.simulation import Simulation
from bgtplanner.models.recommending import Basis, Block, Recommended, Recommender, note_of
from bgtplanner.text import csv_text

__all__ = [
    "COLUMNS",
    "FORMATS",
    "Recommendations",
    "recommendations_of",
    "recommender_of",
    "rows_as_csv",
    "users_as_json",
    "writing",
]

Format = Literal["json", "csv", "parquet"]
FORMATS: tuple[Format, ...] = ("json", "csv", "parquet")
COLUMNS = Recommended._fields


@dataclass(frozen=True)
class Recommendations:
    """Lists of recommendations for some users.

    Attributes:
        rows: All lines of all lists, user by user, the best item first.
        note: What has to be said if a list does not come from the model; None if all do.

    Example:
        >>> from bgtplanner import simulate
        >>> found = simulate("demo", rounds=3).recommendations(top=2)
        >>> len(found.rows), list(found.columns())[:3]
        (600, ['user', 'place', 'item'])
    """

    rows: list[Recommended]
    note: str | None = None

    def columns(self) -> dict[str, list[Any]]:
        """Return the rows as columns by name, which any library makes a frame of."""
        return {name: [row[at] for row in self.rows] for at, name in enumerate(COLUMNS)}


def recommender_of(ratings: Ratings, simulation: Simulation) -> Recommender:
    """Return what recommends in a simulation, with all that has arrived by its last round."""
    return Recommender(
        ratings=ratings,
        known=simulation.known(),
        learned=simulation.learned,
        rank=simulation.rank,
        explain=simulation.explain,
        predict=simulation.predict,
    )


def recommendations_of(recommender: Recommender, users: ArrayLike, top: int) -> Recommendations:
    """Return the lists of some users, given by their indices.

    Raises:
        NothingLearnedError: If there is nothing to rank by for any of them.
    """
    rows: list[Recommended] = []
    bases: Counter[Basis] = Counter()
    for block in recommender.blocks(users, top):
        rows += [row for one in block.lists for row in one]
        bases.update(block.bases)
    return Recommendations(rows, note_of(bases, recommender.learned))


def users_as_json(block: Block) -> list[dict[str, Any]]:
    """Return the lists of a block, one mapping per user."""
    return [
        {"client": user, "items": [dict(zip(COLUMNS[1:], row[1:], strict=True)) for row in rows]}
        for user, rows in zip(block.users, block.lists, strict=True)
    ]


def rows_as_csv(block: Block, *, header: bool) -> str:
    """Return the rows of a block as CSV, with the names of the columns or without."""
    rows = ({name: _cell(of) for name, of in row._asdict().items()} for row in _rows(block))
    text = csv_text(COLUMNS, rows)
    return text if header else text.partition("\n")[2]


def _cell(value: Any) -> Any:
    return "" if value is None else value


def _rows(block: Block) -> list[Recommended]:
    return [row for rows in block.lists for row in rows]


@contextlib.contextmanager
def writing(path: Path, form: Format, ratings: Ratings) -> Iterator[Callable[[Block], None]]:
    """Yield a function that writes a block to a file, which appears at the end.

    Raises:
        StorageError: If it cannot be written.
    """
    made = {"json": _json, "csv": _csv, "parquet": _parquet}[form]
    try:
        with replacing(path) as file, made(file, ratings) as write:
            yield write
    except OSError as error:
        raise StorageError.of(f"--out {path}", error, "choose another with --out") from error


@contextlib.contextmanager
def _json(file: BinaryIO, _: Ratings) -> Iterator[Callable[[Block], None]]:
    before = "["

    def write(block: Block) -> None:
        nonlocal before
        for user in users_as_json(block):
            file.write(f"{before}\n{json.dumps(user, allow_nan=False)}".encode())
            before = ","

    yield write
    file.write(b"[]\n" if before == "[" else b"\n]\n")


@contextlib.contextmanager
def _csv(file: BinaryIO, _: Ratings) -> Iterator[Callable[[Block], None]]:
    header = True

    def write(block: Block) -> None:
        nonlocal header
        file.write(rows_as_csv(block, header=header).encode())
        header = False

    yield write


@contextlib.contextmanager
def _parquet(file: BinaryIO, ratings: Ratings) -> Iterator[Callable[[Block], None]]:
    import pyarrow as pa
    from pyarrow import parquet

    def kind(labels: Any) -> Any:
        return pa.int64() if labels.dtype.kind in "iu" else pa.string()

    of_labels = kind(ratings.user_labels), pa.int32(), kind(ratings.item_labels)
    kinds = (*of_labels, pa.string(), pa.float64(), pa.string())
    schema = pa.schema(list(zip(COLUMNS, kinds, strict=True)))
    with parquet.ParquetWriter(file, schema) as writer:

        def write(block: Block) -> None:
            rows = [row._asdict() for row in _rows(block)]
            if rows:
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))

        yield write
