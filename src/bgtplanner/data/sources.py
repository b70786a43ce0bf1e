"""Where ratings come from: a data set by its name, or a table of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bgtplanner.data.datasets import DATASETS, Dataset, dataset_info, find_files, with_home
from bgtplanner.data.ratings import Duplicates, Ratings, Scale
from bgtplanner.data.split import deal_users, merge_users
from bgtplanner.data.synthetic import demo_ratings, synthetic_ratings
from bgtplanner.data.tables import Column, Table, TableFormat, read_table
from bgtplanner.errors import ConfigError, DataError

__all__ = ["DATASETS", "Dataset", "dataset_info", "load_ratings", "parse_scale"]


def parse_scale(text: str) -> Scale:
    """A scale as written on the command line: ``max``, ``minmax`` or ``LOW:HIGH``.

    Example:
        >>> parse_scale("1:5")
        (1.0, 5.0)
    """
    if text == "max":
        return "max"
    if text == "minmax":
        return "minmax"
    try:
        low, high = (float(bound) for bound in text.split(":"))
    except ValueError:
        low = high = float("nan")
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        raise ConfigError(
            f"scale={text!r}: expected 'max', 'minmax' or LOW:HIGH, two numbers such as 1:5"
        )
    return low, high


def load_ratings(
    name: str,
    *,
    data_dir: Path | str | None = None,
    seed: int = 0,
    duplicates: Duplicates = "last",
    delimiter: str | None = None,
    header: bool | None = None,
    user: Column = None,
    item: Column = None,
    rating: Column = None,
    time: Column = None,
    client: Column = None,
    scale: Scale | str | None = None,
) -> Ratings:
    """Ratings by the name of their set, or from a table with ``csv:PATH``.

    Args:
        name: One of `DATASETS`, or ``csv:`` and the path of a table.
        data_dir: Folder to look in first for real data.
        seed: Draws ``synthetic``, and deals the users of ``ml-1m`` and ``ml-1m-merged`` to
            clients; nothing else.
        duplicates: Which rating stays when a user rated an item twice: by default the latest by
            time where there is one, else the last in the file.
        delimiter: Of a table; found out by default, like all that follows but the scale.
        header: Whether a table's first row holds names.
        user: A table's user column, by name or position from 0.
        item: A table's item column.
        rating: A table's rating column.
        time: A table's time column.
        client: A table's client column; without one every user is a client.
        scale: How a table's values become [0, 1]: ``max`` (the default), ``minmax`` or bounds,
            as two numbers or ``LOW:HIGH``. Give bounds where the largest value is not public.

    Raises:
        ConfigError: If the name or an option cannot be used.
        DataError: If the data is not there, or is no table of ratings; names file and line.

    Example:
        >>> load_ratings("demo")
        Ratings(demo: 15000 ratings, 300 users, 300 items, 300 clients)
    """
    info = dataset_info(name)
    columns = {"user": user, "item": item, "rating": rating, "time": time, "client": client}
    options = {"delimiter": delimiter, "header": header, "scale": scale, **columns}
    if name.startswith("csv:"):
        return _load_csv(info, options, duplicates)
    for option, given in options.items():
        if given is not None:
            raise ConfigError(
                f"{option}={given!r}: only for csv:PATH, not for '{name}'; leave it out"
            )
    if info.folder is None:
        return demo_ratings() if name == "demo" else synthetic_ratings(seed=seed)
    paths = find_files(name, data_dir)
    ratings = _READERS[info.folder](info, paths, duplicates)
    if info.clients is None:
        return ratings
    dealt = deal_users(ratings, info.clients, seed=seed)
    return merge_users(dealt) if info.merged else dealt


def _load_csv(info: Dataset, options: dict[str, Any], duplicates: Duplicates) -> Ratings:
    path = with_home(info.name.removeprefix("csv:"))
    scale = options.pop("scale")
    scale = info.scale if scale is None else scale
    scale = parse_scale(scale) if isinstance(scale, str) else scale
    bounds = None if scale == "minmax" else info.raw_range if scale == "max" else scale
    table = read_table(path, TableFormat(**options, bounds=bounds))
    return _as_ratings(
        table, path, replace(info, scale=scale, name=f"csv:{path.name}"), duplicates
    )


def _load_movielens(info: Dataset, paths: Sequence[Path], duplicates: Duplicates) -> Ratings:
    delimiter = "\t" if info.files == ("u.data",) else "::"
    table = read_table(
        paths[0],
        TableFormat(
            delimiter=delimiter, header=False, time=3, whole_ids=True, bounds=info.raw_range
        ),
    )
    return _as_ratings(table, paths[0], info, duplicates)


def _load_filmtrust(info: Dataset, paths: Sequence[Path], duplicates: Duplicates) -> Ratings:
    plain = TableFormat(delimiter=" ", header=False, whole_ids=True)
    table = read_table(paths[0], replace(plain, bounds=info.raw_range))
    if len(paths) == 1:
        return _as_ratings(table, paths[0], info, duplicates)
    trust = read_table(paths[1], plain)  # trustor, trustee, 1
    # The paper keeps who is in the trust network, with or without ratings, and nobody else.
    users = np.union1d(trust.user, trust.item)
    return _as_ratings(table.take(np.isin(table.user, users)), paths[0], info, duplicates, users)


_READERS: dict[str, Callable[[Dataset, Sequence[Path], Duplicates], Ratings]] = {
    "filmtrust": _load_filmtrust,
    "ml-100k": _load_movielens,
    "ml-1m": _load_movielens,
}


def _as_ratings(
    table: Table,
    path: Path,
    info: Dataset,
    duplicates: Duplicates,
    users: NDArray[np.int64] | None = None,
) -> Ratings:
    try:
        ratings = Ratings.from_arrays(
            table.user,
            table.item,
            table.rating,
            time=table.time,
            client=table.client,
            users=users,
            scale=info.scale,
            duplicates=duplicates,
            name=info.name,
        )
    except DataError as error:
        raise DataError(str(error), path=path) from error
    if table.user_labels is not None:
        ratings = replace(ratings, user_labels=table.user_labels[ratings.user_labels])
    if table.item_labels is not None:
        ratings = replace(ratings, item_labels=table.item_labels[ratings.item_labels])
    return ratings
