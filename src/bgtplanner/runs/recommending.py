"""Recommendations of a run: as one object, in a file, and a few of them in the report.

A list says something about a person. So a report shows only lists of a simulation, those of your
own data only if ``run.examples`` asks for them, of users chosen by the order of their labels, and
without a rating or a figure that was computed from the ratings of the person.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from bgtplanner.data.datasets import DATASETS
from bgtplanner.data.ratings import Ratings
from bgtplanner.durable import replacing
from bgtplanner.errors import NothingLearnedError, StorageError
from bgtplanner.federation.simulation import Simulation
from bgtplanner.models.ranking import Block, Recommender, note_of
from bgtplanner.published.model import Recommended
from bgtplanner.runs.config import Config
from bgtplanner.text import csv_text

TOP = 5  # items in each list of a report
_COLUMNS = Recommended._fields
_EXAMPLES = 3
_HIGHER = re.compile(r"[\d.e+-]+ (?:stars|points) above your mean")
_OFTEN = re.compile(r"[\d.e+-]+ times as often as ")


@dataclass(frozen=True)
class Recommendations:
    """Lists for some users, line by line, and what to say if not all come from the model."""

    rows: list[Recommended]
    note: str | None = None

    def columns(self) -> dict[str, list[Any]]:
        """Return the rows as columns by name, which any library makes a frame of."""
        return {name: [row[at] for row in self.rows] for at, name in enumerate(_COLUMNS)}


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
    """Return the lists of some users, given by their indices; refuse if there are none at all."""
    blocks = list(recommender.blocks(users, top))
    bases = Counter(basis for block in blocks for basis in block.bases)
    rows = [row for block in blocks for row in block.rows]
    return Recommendations(rows, note_of(bases, recommender.learned))


def users_as_json(block: Block) -> list[dict[str, Any]]:
    """Return the lists of a block, one mapping per user."""
    return [
        {"client": user, "items": [dict(zip(_COLUMNS[1:], row[1:], strict=True)) for row in rows]}
        for user, rows in zip(block.users, block.lists, strict=True)
    ]


@contextlib.contextmanager
def writing(path: Path, ratings: Ratings) -> Iterator[Callable[[Block], None]]:
    """Yield a function that writes a block to a .json, .csv or .parquet, whole when it ends."""

    def as_text(block: Block) -> None:
        first = not file.tell()
        if path.suffix == ".csv":
            text = csv_text(_COLUMNS, [row._asdict() for row in block.rows])
            file.write((text if first else text.partition("\n")[2]).encode())
        else:
            users = [json.dumps(user, allow_nan=False) for user in users_as_json(block)]
            file.write(("[\n" if first else ",\n").encode() + ",\n".join(users).encode())

    try:
        with replacing(path) as file:
            if path.suffix != ".parquet":
                yield as_text
                file.write(b"\n]\n" if path.suffix == ".json" else b"")
                return
            import pyarrow as pa
            from pyarrow import parquet

            labels = ratings.user_labels, ratings.item_labels
            user, item = (pa.int64() if of.dtype.kind in "iu" else pa.string() for of in labels)
            kinds = (user, pa.int32(), item, pa.string(), pa.float64(), pa.string())
            schema = pa.schema(list(zip(_COLUMNS, kinds, strict=True)))
            with parquet.ParquetWriter(file, schema) as writer:
                yield lambda block: writer.write_table(
                    pa.Table.from_pylist([row._asdict() for row in block.rows], schema=schema)
                )
    except OSError as error:
        raise StorageError.of(f"--out {path}", error, "choose another with --out") from error


def without_figures(reason: str) -> str:
    """Return a reason without how much and how often: that is a statistic of the person."""
    return _OFTEN.sub("more often than ", _HIGHER.sub("above your mean", reason))


def number_of_examples(config: Config) -> int:
    """Return how many lists a report of this run shows."""
    public = config.data.dataset in DATASETS
    return config.run.examples if config.run.examples is not None else _EXAMPLES * public


def example_users(ratings: Ratings, number: int) -> list[Any]:
    """Return labels of users, evenly spread over all labels in their order."""
    labels = np.sort(ratings.user_labels)
    places = np.linspace(0, len(labels) - 1, min(number, len(labels))).astype(int)
    return list(labels[places].tolist())


def examples_of(
    ratings: Ratings, simulation: Simulation, users: Sequence[Any]
) -> dict[str, Any] | None:
    """Return lists of users, given by their labels, without figures about them; None if none."""
    places = np.flatnonzero(np.isin(ratings.user_labels, users))
    try:
        found = recommendations_of(recommender_of(ratings, simulation), places, TOP)
    except NothingLearnedError:
        return None
    by_user = itertools.groupby(found.rows, lambda row: row.user)
    listed = [{"user": str(user), "items": list(map(_line, rows))} for user, rows in by_user]
    return {"note": found.note, "lists": listed} if listed else None


def _line(row: Recommended) -> dict[str, Any]:
    """Return a line of a report, without how much and how often: that is about the person."""
    reason = None if row.reason is None else without_figures(row.reason)
    title = str(row.item) if row.title is None else row.title
    return {"title": title, "predicted": row.predicted, "reason": reason}
