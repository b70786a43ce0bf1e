"""Reading a table of ratings, against pandas and polars: CSV and Parquet, numbers and names.

All sides end with the same: user, item, rating and time as arrays, and names as indices with their
labels. Ours also checks every row, and detects delimiter, header and columns.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.speed.child import quartiles, stopwatch

ROWS = 1_000_000
CLIENTS, ITEMS = 6040, 3706
COLUMNS = ("user", "item", "rating", "time")
Columns = dict[str, NDArray[Any]]


def write_tables(folder: Path, rows: int) -> dict[str, Path]:
    """Write the same made-up ratings four times."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    draw = np.random.default_rng(0)
    numbers = {
        "user": (CLIENTS * draw.random(rows) ** 1.7).astype(np.int64),
        "item": (ITEMS * draw.random(rows) ** 2).astype(np.int64),
        "rating": draw.integers(1, 11, rows) / 2,
        "time": draw.integers(9e8, 1e9, rows),
    }
    names = numbers | {
        "user": np.char.add("reader-", numbers["user"].astype(str)),
        "item": np.char.add("B00", numbers["item"].astype(str)),
    }
    found = {}
    for what, columns in (("numbers", numbers), ("names", names)):
        table = pa.table(columns)
        found[f"CSV, ids are {what}"] = folder / f"{what}.csv"
        csv.write_csv(table, folder / f"{what}.csv")
        found[f"Parquet, ids are {what}"] = folder / f"{what}.parquet"
        parquet.write_table(table, folder / f"{what}.parquet")
    return found


def by_us(path: Path) -> Columns:
    from bgtplanner.data.tables import TableFormat, read_table

    table = read_table(path, TableFormat(parquet=path.suffix == ".parquet"))
    found = {name: getattr(table, name) for name in COLUMNS}
    labels = {"user": table.user_labels, "item": table.item_labels}
    return found | {f"{name}s": of for name, of in labels.items() if of is not None}


def by_pandas(path: Path) -> Columns:
    import pandas as pd

    frame = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    found: Columns = {}
    for name in COLUMNS:
        if frame[name].dtype.kind in "iuf":
            found[name] = frame[name].to_numpy()
        else:
            found[name], labels = pd.factorize(frame[name])
            found[f"{name}s"] = labels.to_numpy()
    return found


def by_polars(path: Path) -> Columns:
    import polars as pl

    frame = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_csv(path)
    found: Columns = {}
    for name in COLUMNS:
        column = frame[name]
        if column.dtype.is_numeric():
            found[name] = column.to_numpy()
        else:
            labels = column.unique(maintain_order=True)
            found[name] = column.cast(pl.Enum(labels)).to_physical().to_numpy()
            found[f"{name}s"] = labels.to_numpy()
    return found


READERS: dict[str, Callable[[Path], Columns]] = {"pandas": by_pandas, "polars": by_polars}


def plain(columns: Columns, name: str) -> NDArray[Any]:
    """Return a column with names instead of indices."""
    labels = columns.get(f"{name}s")
    if labels is None:
        return columns[name].astype(np.float64)
    return np.asarray(labels).astype(str)[columns[name].astype(np.int64)]


def check_equal(reader: str, one: Columns, other: Columns) -> None:
    """See that two have read the same.

    Raises:
        SystemExit: If not; then there is nothing to time.
    """
    for name in COLUMNS:
        if not np.array_equal(plain(one, name), plain(other, name)):
            raise SystemExit(f"{reader} and ours read another column '{name}'")


def compare(turns: int, rows: int = ROWS) -> dict[str, Any]:
    """Check, then time the readers of each file by turns."""
    found: dict[str, Any] = {"rows": rows, "tables": {}}
    with tempfile.TemporaryDirectory() as folder:
        for what, path in write_tables(Path(folder), rows).items():
            ours = by_us(path)
            for reader, read in READERS.items():
                check_equal(reader, read(path), ours)
            seconds: dict[str, list[float]] = {name: [] for name in ("ours", *READERS)}
            for _ in range(turns):
                for name, read in {"ours": by_us, **READERS}.items():
                    with stopwatch() as taken:
                        read(path)
                    seconds[name].append(taken[0])
            ratios = {}
            for reader in READERS:
                both = zip(seconds[reader], seconds["ours"], strict=True)
                low, middle, high = quartiles([theirs / mine for theirs, mine in both])
                ratios[reader] = {"ratio": middle, "ratio_quartiles": [low, high]}
            found["tables"][what] = {"seconds": seconds, "readers": ratios}
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, required=True)
    print(json.dumps(compare(parser.parse_args().turns)))
