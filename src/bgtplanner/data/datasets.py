"""The data sets that are known by name: where their files are, and how they become ratings.

Real sets are not part of the package. They are looked for in the given folder, then in
``$BGTPLANNER_DATA``, then in the user's cache, as ``<folder>/<set>/<original file name>``.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bgtplanner.arguments import as_path, as_whole, refuse_unless
from bgtplanner.data.catalogue import Catalogue, read_items
from bgtplanner.data.files import Column
from bgtplanner.data.ratings import COUNT_CAP, Feedback, Ratings, Scale, as_scale
from bgtplanner.data.split import deal_users
from bgtplanner.data.synthetic import demo_ratings, synthetic_ratings
from bgtplanner.data.tables import TableFormat, read_table
from bgtplanner.durable import user_cache, with_home
from bgtplanner.errors import ConfigError, DataError
from bgtplanner.registry import Registry


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """What is known about a data set before it is read.

    Attributes:
        name: Its name for `load_ratings` and ``--dataset``.
        description: One line for lists.
        make: Generates the ratings from a `seed` and a shape, if nothing is read.
        folder: Folder under the data folder, if `files` are read: the ratings and, if only the
            users of a network are kept, its pairs of users. They are read as a `table`.
        url: The official page from which people get them, under the terms that it names.
        catalogue: File of all items, if there is one; its columns are the `items_columns`.
        scale: As for :meth:`Ratings.from_table`.
        split_within: Whether ratings are held out user by user or over all at once.
        pseudo_items: Number of items that a client adds to hide which it rated, as in the paper.
        clients: Number of clients that users are dealt to, or None for one client per user.
        merged: Whether the users of a client are merged into one.
        citation: What to cite; `terms` are those of the owner.
    """

    name: str
    description: str
    make: Callable[..., Ratings] | None = None
    folder: str | None = None
    files: tuple[str, ...] = ()
    table: TableFormat = field(default_factory=TableFormat)
    url: str | None = None
    catalogue: str | None = None
    items_columns: tuple[str, ...] | None = None
    scale: Scale | None = (0.0, 5.0)
    split_within: Literal["user", "all"] = "user"
    pseudo_items: int = 50
    clients: int | None = None
    merged: bool = False
    citation: str = ""
    terms: str = ""


_GENRES = (
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary",
    "Drama", "Fantasy", "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi",
    "Thriller", "War", "Western",
)  # fmt: skip
_TIMED = TableFormat(delimiter="\t", header=False, rating=2, time=3, bounds=(1, 5))
_MOVIELENS_100K = Dataset(
    name="ml-100k", description="MovieLens 100K: 943 users, one client per user",
    folder="ml-100k", files=("u.data",), table=_TIMED, catalogue="u.item",
    items_columns=("item", "title", "year", "video release", "address",
                   *(f"genre: {genre}" for genre in _GENRES)),
    url="https://grouplens.org/datasets/movielens/100k/",
    citation="F. Maxwell Harper and Joseph A. Konstan. 2015. The MovieLens Datasets: History and "
    "Context. ACM Transactions on Interactive Intelligent Systems 5, 4, Article 19. "
    "https://doi.org/10.1145/2827872",
    terms="Research use; acknowledge the data set, imply no endorsement, no redistribution and no "
    "commercial use without GroupLens' permission.",
)  # fmt: skip
_MOVIELENS_1M = replace(
    _MOVIELENS_100K, name="ml-1m",
    description="MovieLens 1M: 6,040 users dealt to 605 clients, as in the paper",
    folder="ml-1m", files=("ratings.dat",), table=replace(_TIMED, delimiter="::"),
    catalogue="movies.dat", items_columns=("item", "title", "genre"),
    url="https://grouplens.org/datasets/movielens/1m/",
    pseudo_items=400, clients=605,
)  # fmt: skip
_FILMTRUST = Dataset(
    name="filmtrust", description="FilmTrust: the 874 users in the trust network, as in the paper",
    folder="filmtrust", files=("ratings.txt", "trust.txt"),  # the second: trustor, trustee, 1
    table=replace(_TIMED, delimiter=" ", time=None, bounds=(0.5, 4)),
    url="https://guoguibing.github.io/librec/datasets.html",
    scale=(0.5, 4.0), split_within="all",
    citation="Guibing Guo, Jie Zhang and Neil Yorke-Smith. 2013. A Novel Bayesian Similarity "
    "Measure for Recommender Systems. IJCAI 2013.",
    terms="Copyright 2013 Guibing Guo; cite the paper in research. No other licence stated.",
)  # fmt: skip
_STEAM = Dataset(
    name="steam", folder="steam", files=("plays.csv",), scale=None,  # hours are counts
    description="hours that 9,418 people played 3,600 games; from a folder of your own",
    table=TableFormat(delimiter=",", header=True, user="user", item="game", rating="hours"),
    terms="Derived from steam-200k (Kaggle, tamber/steam-video-games); its terms were not "
    "verified: for experiments only.",
)  # fmt: skip
_SETS = (
    Dataset(name="demo", make=lambda seed: demo_ratings(),  # noqa: ARG005 - always the same
            description="the default: 300 made-up people with tastes, always the same"),
    Dataset(name="synthetic", make=functools.partial(synthetic_ratings, catalogue=True),
            description="synthetic ratings of 1,000 clients, by seed"),
    _FILMTRUST, _STEAM,
    _MOVIELENS_100K, _MOVIELENS_1M,
    replace(_MOVIELENS_1M, name="ml-1m-users", clients=None,
            description="MovieLens 1M: 6,040 users, one client per user"),
    replace(_MOVIELENS_1M, name="ml-1m-merged", merged=True,
            description="MovieLens 1M: 605 clients, each with ten users merged into one"),
)  # fmt: skip
DATASETS: Registry[Dataset] = Registry(
    "dataset", {one.name: one for one in _SETS}, expected="a Dataset",
    fits=lambda found: isinstance(found, Dataset),
)  # fmt: skip
"""The data sets known by name; the path of a table is the name of another one."""

_OWN = Dataset(
    name="csv:PATH", description="a table of your own: user, item, rating, maybe time and client",
    table=TableFormat(unnamed_times=True, bounds=(0, np.inf)), scale=None,
)  # fmt: skip


def path_of(name: str) -> str | None:
    """Return the path of a table for which a name of data stands; a path alone is one, too."""
    kind, colon, path = name.partition(":")
    if not colon:
        return name if "/" in name or "." in name else None
    return path if kind in ("csv", "parquet") else None


def dataset_info(name: str) -> Dataset:
    """Return the entry of a data set, by its name, or that of a table, by its path."""
    expected = "the name of a data set, or the path of a table"
    refuse_unless(isinstance(name, str), "dataset", name, expected)
    if (path := path_of(name)) is None:
        return DATASETS[name]
    ConfigError.unless(bool(path.strip()) and "\0" not in path, "dataset", name, expected)
    kind = name.partition(":")[0] if ":" in name else "csv"
    return replace(_OWN, name=f"{kind}:{Path(path).name}")


def load_ratings(
    name: str, *, data_dir: Path | str | None = None, seed: int = 0, weight: Column = None,
    scale: Scale | str | None = None, feedback: Feedback = "auto", count_cap: float = COUNT_CAP,
    items: Catalogue | Path | str = "auto",
    shape: Mapping[str, Any] | None = None, **table: Any,
) -> Ratings:  # fmt: skip
    """Load the ratings of a named set, or of a table: CSV text, plain or gzipped, or Parquet.

    Args:
        name: One of `DATASETS`, or the path of a table, maybe with ``csv:`` before it.
        data_dir: Folder to look in first for real data.
        seed: Seed of ``synthetic``, and of dealing the users of ``ml-1m`` to clients.
        weight: Column of counts, such as plays or hours, in the place of ratings.
        scale: How the values of a table become [0, 1]; by default ``max``.
        feedback: As for :meth:`Ratings.from_table`.
        count_cap: The largest count that counts.
        items: The public catalogue: ``auto`` takes the set's own file if it is there, ``none``
            takes the items that occur in the ratings; or a table of items, or a catalogue.
        shape: Size and shape of ``synthetic``, as for `synthetic_ratings`.
        table: How a table of your own is read: any attribute of `TableFormat`, such as
            ``user="who"`` or ``delimiter="tab"``; by default it is detected.

    Raises:
        ConfigError: If the name or an option cannot be used.
        DataError: If the data are missing or not a table of ratings; names the file and line.

    Example:
        >>> load_ratings("demo")
        Ratings(demo: 15000 ratings, 300 users, 300 items, 300 clients)
    """
    info, seed, path = dataset_info(name), as_whole("seed", seed, 0), path_of(name)
    if weight is not None:
        ConfigError.unless(table.get("rating") is None, "weight", weight, "no rating column also")
        table, feedback = table | {"rating": weight}, "clicks"
    given = {key: of for key, of in (table | {"scale": scale}).items() if of is not None}
    for option, value in given.items():
        expected = "nothing, as it is only for a table of your own; leave it out"
        ConfigError.unless(path is not None, option, value, expected)
    asked = as_scale(given.pop("scale")) if "scale" in given else info.scale
    if path is not None and asked not in (None, "max"):
        given["bounds"] = None if asked == "minmax" else asked
    info = replace(info, table=replace(info.table, **given), scale=asked)
    own: Catalogue | Path | None
    if info.make is not None:
        ratings = info.make(seed=seed, **(shape or {}))
        own = ratings.catalogue
    else:
        files = find_files(name, data_dir)
        ratings = _read(info, files, feedback, count_cap)
        own = None if info.catalogue is None else files[0].with_name(info.catalogue)
    ratings = _with_items(ratings, info, items, own)
    if info.clients is None:
        return ratings
    return deal_users(ratings, info.clients, seed=seed, merged=info.merged)


def _read(info: Dataset, paths: Sequence[Path], feedback: Feedback, cap: float) -> Ratings:
    """Return the ratings in a set's files."""
    table, users = read_table(paths[0], info.table), None
    for network in paths[1:]:  # keep its users, with or without ratings, and no others
        pairs = read_table(network, info.table)
        users = np.union1d(pairs.user.names, pairs.item.names)
        table = table.take(np.isin(table.user.rows(), users))
    try:
        return Ratings.from_table(
            table, users=users, scale=info.scale, usual="max", name=info.name,
            feedback=feedback, count_cap=cap,
        )  # fmt: skip
    except DataError as error:
        raise DataError(str(error), path=paths[0]) from error


def _with_items(
    ratings: Ratings, info: Dataset, items: Catalogue | Path | str, own: Catalogue | Path | None
) -> Ratings:
    """Return ratings with the catalogue asked for; the set's own file is known by its name."""
    auto = items == "auto"
    source = own if auto else items
    if isinstance(source, str):
        fits = bool(source.strip()) and "\0" not in source
        ConfigError.unless(fits, "--items", source, "a path")
        source = None if source == "none" else with_home(source)
    if source is None:
        return replace(ratings, catalogue=None)
    where = ""
    if isinstance(source, Path):
        path = existing_file(source)
        if path is None and auto:
            items = "The items are those that occur in the ratings, without titles and features."
            mend = f"Get it from {info.url or 'its owner'}, or give a table with --items."
            note = f"No catalogue: {source} is not there. {items} {mend}"
            return replace(ratings, notes=(*ratings.notes, note))
        named = source.name.removesuffix(".gz") == info.catalogue
        columns = info.items_columns if named else None
        where, source = f" from {source.name}", read_items(path or source, columns=columns)
    if source is not ratings.catalogue:
        ratings = ratings.with_catalogue(source)
    titles = "" if source.titles is None else ", titles"
    note = f"Catalogue{where}: {ratings.n_items:,} items, {len(source.names):,} features{titles}."
    return replace(ratings, notes=(*ratings.notes, note))


def data_folders(data_dir: Path | str | None = None) -> list[Path]:
    """Return the folders in which data sets are looked for, in order; a given one must exist."""
    folders = [] if data_dir is None else [with_home(as_path("data_dir", data_dir))]
    if folders and not folders[0].is_dir():
        raise ConfigError(f"--data-dir: {folders[0]} is not a folder; give one that exists")
    if from_environment := os.environ.get("BGTPLANNER_DATA"):
        folders.append(with_home(from_environment))
    return [*folders, user_cache()]


def find_files(name: str, data_dir: Path | str | None = None) -> list[Path]:
    """Return a table, or a set's files in the first folder that has all of them; or say where."""
    info, table = dataset_info(name), path_of(name)
    if info.folder is None:
        return [] if table is None else [with_home(table)]
    folders = [folder / info.folder for folder in data_folders(data_dir)]
    for folder in folders:
        found = [path for file in info.files if (path := existing_file(folder / file))]
        if len(found) == len(info.files):
            return found
    looked = ", ".join(map(str, folders))
    raise DataError(
        f"the data set '{name}' is not here: {by_hand(info, folders[0])}, or give the folder that "
        f"has {info.folder}/ with --data-dir. Looked in: {looked}"
    )


def by_hand(info: Dataset, folder: Path | str) -> str:
    """Return what to do for a set that is not here: its files, their address, their folder."""
    files = [*info.files, *([info.catalogue] if info.catalogue else [])]
    source = f" from {info.url}" if info.url else ""
    return f"unpack {' and '.join(files)}{source} into {folder}"


def existing_file(path: Path) -> Path | None:
    """Return the path, or the path with ``.gz`` added, or None if neither can be seen."""
    both = (path, path.with_name(path.name + ".gz"))
    return next((one for one in both if os.path.exists(one)), None)  # noqa: PTH110 - never raises
