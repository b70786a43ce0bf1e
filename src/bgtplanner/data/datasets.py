"""Which data sets are known by name, and where their files lie.

Real sets are not part of the package. They are looked for in the folder given, then in
``$BGTPLANNER_DATA``, then in the user's cache, as ``<folder>/<set>/<original file name>``.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from bgtplanner.data.ratings import Scale
from bgtplanner.errors import ConfigError, DataError

__all__ = [
    "DATASETS",
    "Dataset",
    "data_folders",
    "dataset_info",
    "existing_file",
    "find_files",
    "with_home",
]

_MOVIELENS_CITATION = (
    "F. Maxwell Harper and Joseph A. Konstan. 2015. The MovieLens Datasets: History and Context. "
    "ACM Transactions on Interactive Intelligent Systems 5, 4, Article 19. "
    "https://doi.org/10.1145/2827872"
)
_MOVIELENS_TERMS = (
    "Research use; acknowledge the data set, imply no endorsement, no redistribution and no "
    "commercial use without GroupLens' permission."
)
_FILMTRUST_CITATION = (
    "Guibing Guo, Jie Zhang and Neil Yorke-Smith. 2013. A Novel Bayesian Similarity Measure for "
    "Recommender Systems. IJCAI 2013."
)
_FILMTRUST_TERMS = (
    "Copyright 2013 Guibing Guo; cite the paper in research. No other licence stated."
)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """What is known about a data set before it is read.

    Attributes:
        name: Its name for `load_ratings` and ``--dataset``.
        description: One line for lists.
        folder: Folder under the data folder, or None where nothing is read from there.
        files: Original names of the files needed. Any may be gzipped, with ``.gz`` added.
        scale: How its raw values become [0, 1].
        raw_range: Smallest and largest raw value that is a rating.
        split_within: Whether ratings are held out user by user or over all at once.
        pseudo_items: Items a client adds to hide which it rated, as the paper sets it.
        clients: Clients that the users are dealt to, or None for one client a user.
        merged: Whether the users of a client are taken for one.
        citation: What to cite.
        terms: What the owner asks for.
    """

    name: str
    description: str
    folder: str | None = None
    files: tuple[str, ...] = ()
    scale: Scale = (0.0, 5.0)
    raw_range: tuple[float, float] = (1.0, 5.0)
    split_within: Literal["user", "all"] = "user"
    pseudo_items: int = 50
    clients: int | None = None
    merged: bool = False
    citation: str = ""
    terms: str = ""


_MOVIELENS_1M = Dataset(
    name="ml-1m",
    description="MovieLens 1M: 6,040 users dealt to 605 clients, as in the paper",
    folder="ml-1m",
    files=("ratings.dat",),
    pseudo_items=400,
    clients=605,
    citation=_MOVIELENS_CITATION,
    terms=_MOVIELENS_TERMS,
)
_FILMTRUST = Dataset(
    name="filmtrust",
    description="FilmTrust: the 874 users in the trust network, as in the paper",
    folder="filmtrust",
    files=("ratings.txt", "trust.txt"),
    scale=(0.5, 4.0),
    raw_range=(0.5, 4.0),
    split_within="all",
    citation=_FILMTRUST_CITATION,
    terms=_FILMTRUST_TERMS,
)
_CSV = Dataset(
    name="csv:PATH",
    description="a table of your own: user, item, rating, and time or client if you have them",
    scale="max",
    raw_range=(0.0, float("inf")),
)
DATASETS: dict[str, Dataset] = {
    dataset.name: dataset
    for dataset in (
        Dataset(name="demo", description="the default: 300 made-up clients, always the same"),
        Dataset(name="synthetic", description="made-up ratings of 1,000 clients, by seed"),
        _FILMTRUST,
        replace(
            _FILMTRUST,
            name="filmtrust-full",
            description="FilmTrust: all 1,508 users who rated",
            files=("ratings.txt",),
        ),
        Dataset(
            name="ml-100k",
            description="MovieLens 100K: 943 users, a client each",
            folder="ml-100k",
            files=("u.data",),
            citation=_MOVIELENS_CITATION,
            terms=_MOVIELENS_TERMS,
        ),
        _MOVIELENS_1M,
        replace(
            _MOVIELENS_1M,
            name="ml-1m-users",
            description="MovieLens 1M: 6,040 users, a client each",
            clients=None,
        ),
        replace(
            _MOVIELENS_1M,
            name="ml-1m-merged",
            description="MovieLens 1M: 605 clients, each with ten users taken as one",
            merged=True,
        ),
    )
}
"""The data sets known by name; ``csv:PATH`` is one more way to name one."""


def dataset_info(name: str) -> Dataset:
    """What is known about a set by its name, ``csv:PATH`` included.

    Raises:
        ConfigError: If there is no such set; suggests the nearest name.

    Example:
        >>> dataset_info("filmtrust").split_within
        'all'
        >>> dataset_info("csv:mine.csv").scale
        'max'
    """
    if name.startswith("csv:"):
        if not name.removeprefix("csv:").strip() or "\0" in name:
            raise ConfigError(f"dataset={name!r}: expected a path after 'csv:'")
        return replace(_CSV, name=name)
    if name in DATASETS:
        return DATASETS[name]
    near = difflib.get_close_matches(name.lower().replace("_", "-"), DATASETS, n=1, cutoff=0.5)
    if not near and ("/" in name or "." in name):
        near = [f"csv:{name}"]
    hint = f" Did you mean '{near[0]}'?" if near else ""
    known = ", ".join([*DATASETS, _CSV.name])
    raise ConfigError(f"dataset={name!r}: no such data set.{hint} There are: {known}")


def data_folders(data_dir: Path | str | None = None) -> list[Path]:
    """Folders in which real data is looked for, first to last; the first is for downloads.

    Raises:
        ConfigError: If `data_dir` is given and is no folder.
    """
    folders = []
    if data_dir is not None:
        given = with_home(data_dir)
        if not _is_folder(given):
            raise ConfigError(f"--data-dir: {given} is no folder; expected one that exists")
        folders.append(given)
    if from_environment := os.environ.get("BGTPLANNER_DATA"):
        folders.append(with_home(from_environment))
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return [*folders, with_home(cache) / "bgtplanner"]


def find_files(name: str, data_dir: Path | str | None = None) -> list[Path]:
    """The files of a real data set, from the first folder that has them all.

    Raises:
        DataError: If they are nowhere; says which file to put where.
    """
    info = dataset_info(name)
    if info.folder is None:
        return []
    folders = [folder / info.folder for folder in data_folders(data_dir)]
    best: tuple[Path, list[str]] | None = None
    for folder in folders:
        found = [existing_file(folder / file) for file in info.files]
        there = [path for path in found if path is not None]
        if len(there) == len(found):
            return there
        if there and best is None:  # name the one file that is missing next to the others
            best = folder, [f for f, path in zip(info.files, found, strict=True) if path is None]
    folder, missing = best or (folders[0], list(info.files))
    wanted = " and ".join(str(folder / file) for file in missing)
    looked = ", ".join(str(folder) for folder in folders)
    raise DataError(
        f"the data set '{name}' is not here: put {wanted} in place, or run "
        f"'bgtplanner data fetch {name}'. Looked in: {looked}"
    )


def existing_file(path: Path) -> Path | None:
    """The file itself, or the same with ``.gz``, or None if neither is there."""
    for candidate in (path, path.with_name(path.name + ".gz")):
        try:
            if candidate.exists():
                return candidate
        except PermissionError:  # reading it will say so, with its name
            return candidate
    return None


def with_home(path: Path | str) -> Path:
    """The path with ``~`` replaced, where the system knows whose home is meant."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False
