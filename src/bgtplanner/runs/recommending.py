"""Recommendations of a run: as one object, in a file, and a few of them in the report.

A file is written block by block, so that the lists of everybody need no memory, and it appears
only when it is complete.

A list says something about the person that it is for, even though it has only items that the
person has not rated. So a report shows lists by these rules.

* Only a simulation has them: whoever simulates holds all ratings anyway. A server on real machines
  holds none, and its folder never has lists.
* By default, only lists of data sets that everybody can get or make are shown. Those of your own
  data are shown only if you ask for them with ``run.examples``.
* The users are the first, the middle and the last one in the order of their labels, and so on:
  they are chosen without looking at a rating.
* A line has a title, a predicted rating and a reason. It has no rating and no figure that was
  computed from the ratings of the person, and no label of an item unless there are no titles.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from bgtplanner.data.datasets import DATASETS
from bgtplanner.data.ratings import Ratings
from bgtplanner.durable import replacing
from bgtplanner.errors import NothingLearnedError, StorageError
from bgtplanner.federation.simulation import Simulation
from bgtplanner.models.recommending import Basis, Block, Recommended, Recommender, note_of
from bgtplanner.runs.config import Config
from bgtplanner.text import csv_text

Format = Literal["json", "csv", "parquet"]
FORMATS: tuple[Format, ...] = ("json", "csv", "parquet")
COLUMNS = Recommended._fields

TOP = 5
"""How many items each list of a report has."""

_EXAMPLES = 3
_HIGHER = re.compile(r"[\d.e+-]+ (?:stars|points) above your mean")
_OFTEN = re.compile(r"(?:more than )?[\d.e+-]+ times as often as ")


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
        rows += _rows(block)
        bases.update(block.bases)
    return Recommendations(rows, note_of(bases, recommender.learned))


def _rows(block: Block) -> list[Recommended]:
    return [row for rows in block.lists for row in rows]


def users_as_json(block: Block) -> list[dict[str, Any]]:
    """Return the lists of a block, one mapping per user."""
    return [
        {"client": user, "items": [dict(zip(COLUMNS[1:], row[1:], strict=True)) for row in rows]}
        for user, rows in zip(block.users, block.lists, strict=True)
    ]


def rows_as_csv(block: Block, *, header: bool) -> str:
    """Return the rows of a block as CSV, with the names of the columns or without."""
    rows = [
        {name: "" if cell is None else cell for name, cell in row._asdict().items()}
        for row in _rows(block)
    ]
    text = csv_text(COLUMNS, rows)
    return text if header else text.partition("\n")[2]


@contextlib.contextmanager
def writing(path: Path, form: Format, ratings: Ratings) -> Iterator[Callable[[Block], None]]:
    """Yield a function that writes a block to a file, which appears at the end.

    Raises:
        StorageError: If it cannot be written.
    """
    try:
        with replacing(path) as file, contextlib.ExitStack() as closing:
            first = True

            def as_text(block: Block) -> None:
                nonlocal first
                if form == "csv":
                    file.write(rows_as_csv(block, header=first).encode())
                else:
                    users = [json.dumps(user, allow_nan=False) for user in users_as_json(block)]
                    file.write(("\n" if first else ",\n").encode() + ",\n".join(users).encode())
                first = False

            if form == "parquet":
                yield closing.enter_context(_parquet(file, ratings))
                return
            file.write(b"[" if form == "json" else b"")
            yield as_text
            file.write(b"\n]\n" if form == "json" else b"")
    except OSError as error:
        raise StorageError.of(f"--out {path}", error, "choose another with --out") from error


@contextlib.contextmanager
def _parquet(file: Any, ratings: Ratings) -> Iterator[Callable[[Block], None]]:
    import pyarrow as pa
    from pyarrow import parquet

    user, item = (
        pa.int64() if labels.dtype.kind in "iu" else pa.string()
        for labels in (ratings.user_labels, ratings.item_labels)
    )
    kinds = (user, pa.int32(), item, pa.string(), pa.float64(), pa.string())
    schema = pa.schema(list(zip(COLUMNS, kinds, strict=True)))
    with parquet.ParquetWriter(file, schema) as writer:

        def write(block: Block) -> None:
            rows = [row._asdict() for row in _rows(block)]
            if rows:
                writer.write_table(pa.Table.from_pylist(rows, schema=schema))

        yield write


# ---- lists in a report


def without_figures(reason: str) -> str:
    """Return a reason without how much and how often: that is a statistic of the person.

    Example:
        >>> without_figures("you rate Drama 0.2 stars above your mean")
        'you rate Drama above your mean'
        >>> without_figures("popular; you pick Action 1.6 times as often as others")
        'popular; you pick Action more often than others'
    """
    return _OFTEN.sub("more often than ", _HIGHER.sub("above your mean", reason))


def number_of_examples(config: Config) -> int:
    """Return how many lists a report of this run shows."""
    if config.run.examples is not None:
        return config.run.examples
    return _EXAMPLES if config.data.dataset in DATASETS else 0


def example_users(ratings: Ratings, number: int) -> list[Any]:
    """Return labels of users, evenly spread over all labels in their order.

    Example:
        >>> from bgtplanner.data.ratings import Ratings
        >>> example_users(Ratings.from_arrays([7, 1, 4, 9], [0, 0, 0, 0], [1, 2, 3, 4]), 3)
        [1, 4, 9]
    """
    labels = np.sort(ratings.user_labels)
    number = min(number, len(labels))
    places = np.linspace(0, len(labels) - 1, max(number, 1)).astype(int)[:number]
    return list(labels[places].tolist())


def examples_of(
    ratings: Ratings, simulation: Simulation, users: Sequence[Any]
) -> dict[str, Any] | None:
    """Return the lists of some users, given by their labels, and the note; None if there are none.

    They are in the words of a report: without a figure about a person.
    """
    if not users:
        return None
    places = np.flatnonzero(np.isin(ratings.user_labels, users))
    try:
        found = recommendations_of(recommender_of(ratings, simulation), places, TOP)
    except NothingLearnedError:
        return None
    lists: dict[Any, list[dict[str, Any]]] = {user: [] for user in users}
    for row in found.rows:
        title = str(row.item) if row.title is None else row.title
        reason = None if row.reason is None else without_figures(row.reason)
        lists[row.user].append({"title": title, "predicted": row.predicted, "reason": reason})
    return {
        "note": found.note,
        "lists": [{"user": str(user), "items": lines} for user, lines in lists.items() if lines],
    }
