"""How a text table of ratings is read, row by row of whatever size, plain or gzipped.

Messages name the file and the line, never what a cell holds.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Self, cast

import numpy as np
from numpy.typing import NDArray

from bgtplanner.data.columns import Layout, TableFormat, find_layout
from bgtplanner.data.parsing import Block, LabelColumn, read_blocks
from bgtplanner.errors import DataError
from bgtplanner.text import LONGEST_LABEL, MOST_BYTES_OF_A_CATALOGUE, MOST_LABELS, read_bytes

__all__ = ["Table", "item_names", "read_table"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """Columns of equal length. Ids are integers, or indices into the labels where those exist."""

    user: NDArray[Any]
    item: NDArray[Any]
    rating: NDArray[np.float64]
    time: NDArray[np.float64] | None
    client: NDArray[Any] | None
    user_labels: NDArray[np.str_] | None
    item_labels: NDArray[np.str_] | None

    def take(self, rows: NDArray[np.bool_]) -> Self:
        """Only the given rows; ids and labels stay."""
        return replace(
            self,
            user=self.user[rows],
            item=self.item[rows],
            rating=self.rating[rows],
            time=None if self.time is None else self.time[rows],
            client=None if self.client is None else self.client[rows],
        )


def read_table(path: Path | str, table_format: TableFormat | None = None) -> Table:
    r"""Read a table of ratings, in memory proportional to its rows.

    Args:
        path: The file. A gzip file is known by its first bytes, whatever its name.
        table_format: What is known about it; the rest is found out.

    Raises:
        DataError: If the file cannot be read as ratings; names the line.
        ConfigError: If the format names a column or a delimiter that cannot be.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "ratings.csv")
        ...     _ = path.write_text("user,movieId,rating\nann,10,4.5\nbob,10,2\n")
        ...     table = read_table(path)
        >>> table.user.tolist(), table.user_labels.tolist(), table.rating.tolist()
        ([0, 1], ['ann', 'bob'], [4.5, 2.0])
    """
    path, wanted = Path(path), table_format or TableFormat()
    layout: Layout | None = None
    labels = {role: LabelColumn() for role in ("user", "item", "client")}
    ratings: list[NDArray[np.float64]] = []
    times: list[NDArray[np.float64]] = []
    with _open(path) as stream:
        for text, line in _damage_named(read_blocks(stream, path), path):
            skipped = 0
            if layout is None:
                if not text.strip():
                    continue
                layout = find_layout(text, wanted, path, line)
                if layout.header:
                    first_row = len(text) - len(text.lstrip(b"\n"))
                    skipped = text.index(b"\n", first_row) + 1
            block = Block(
                text[skipped:],
                delimiter=layout.delimiter.encode(),
                columns=layout.columns,
                path=path,
                line=line + text.count(b"\n", 0, skipped),
            )
            if not len(block):
                continue
            for role, column in labels.items():
                if role in layout.place:
                    column.add(block, layout.place[role], whole_only=wanted.whole_ids)
            ratings.append(_ratings_within(block, layout.place["rating"], wanted.bounds))
            if "time" in layout.place:
                times.append(block.numbers(layout.place["time"], dates=True))
    if layout is None:
        raise DataError("the file is empty; expected a header and ratings", path=path)
    if not ratings:
        raise DataError("the file has a header and no ratings", path=path)
    user, user_labels = labels["user"].finish()
    item, item_labels = labels["item"].finish()
    for role, names in (("users", user_labels), ("items", item_labels)):
        if names is not None and len(names) > MOST_LABELS:
            raise DataError(f"names more than {MOST_LABELS:,} {role}", path=path)
    return Table(
        user=user,
        item=item,
        rating=np.concatenate(ratings),
        time=np.concatenate(times) if times else None,
        client=labels["client"].finish()[0] if "client" in layout.place else None,
        user_labels=user_labels,
        item_labels=item_labels,
    )


def item_names(path: Path) -> tuple[str, ...]:
    """The items of a public catalogue: a different name on every line of a file.

    Raises:
        DataError: If it is too long, or a line holds no name, one that is too long, or one that
            another line has; names the line.
    """
    expected = "expected a different item name on every line"
    try:
        text = read_bytes(path, MOST_BYTES_OF_A_CATALOGUE).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise DataError(f"cannot be read: {error}; {expected}", path=path) from error
    place: dict[str, int] = {}
    for line, rest in enumerate(text.splitlines(), start=1):
        name = rest.strip()
        if not name:
            raise DataError(f"is empty; {expected}", path=path, line=line)
        if len(name.encode()) > LONGEST_LABEL:
            problem = f"is longer than {LONGEST_LABEL} bytes; {expected}"
            raise DataError(problem, path=path, line=line)
        if place.setdefault(name, line) != line:
            raise DataError(f"repeats line {place[name]}; {expected}", path=path, line=line)
        if line > MOST_LABELS:
            raise DataError(f"has more than {MOST_LABELS:,} items", path=path, line=line)
    if not place:
        raise DataError(f"the file is empty; {expected}", path=path)
    return tuple(place)


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    """The file's text as bytes, unzipped where needed."""
    try:
        if path.is_dir():
            raise DataError("is a folder; expected a file", path=path)
        with path.open("rb") as file:
            zipped = file.peek(2)[:2] == b"\x1f\x8b"
            if path.suffix == ".gz" and not zipped and file.peek(1):
                raise DataError("is named .gz and is not a gzip file", path=path, line=1)
            if zipped:
                with gzip.open(file, "rb") as unzipped:
                    yield cast(IO[bytes], unzipped)
            else:
                yield file
    except FileNotFoundError:
        raise DataError("no such file; expected a table of ratings", path=path) from None
    except PermissionError:
        raise DataError("permission to read it was denied", path=path) from None
    except OSError as error:
        said = error.strerror or "bad file"
        raise DataError(f"cannot be read: {said}; choose another", path=path) from error


def _damage_named(blocks: Iterator[tuple[bytes, int]], path: Path) -> Iterator[tuple[bytes, int]]:
    """The same blocks; a broken gzip file becomes an error that says how far it was good."""
    good_to = 1
    try:
        for text, line in blocks:
            yield text, line
            good_to = line + text.count(b"\n")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            "the gzip data is damaged or cut short from about here; get the file again",
            path=path,
            line=good_to,
        ) from error


def _ratings_within(
    block: Block, column: int, bounds: tuple[float, float] | None
) -> NDArray[np.float64]:
    rating = block.numbers(column)
    if bounds is not None:
        low, high = bounds
        outside = ~((rating >= low) & (rating <= high))
        if outside.any():
            expected = f"from {low:g} to {high:g}" if np.isfinite(high) else f"at least {low:g}"
            row = int(outside.argmax())
            raise block.error(row, column, f"is out of range: expected a rating {expected}")
    return rating
