"""Results that are kept: a folder that can be loaded anywhere, and how data are found again.

A saved result is a run folder with the ratings and without a ledger. The ledger of a run exists
once: of two copies, each would grant what the other has already spent.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bgtplanner.arguments import as_path
from bgtplanner.data.catalogue import Catalogue
from bgtplanner.data.ratings import Ratings
from bgtplanner.durable import replacing
from bgtplanner.errors import DataError, RunFolderError, StorageError
from bgtplanner.runs.config import Config
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.result import Result

__all__ = ["found_again", "save", "saved_ratings"]

_FILE = "ratings.npz"
_ARRAYS = ("user", "item", "value", "time", "client_of_user", "user_labels", "item_labels")
_FACTS = ("n_items", "low", "high", "name", "implicit", "notes")
_OF_CATALOGUE = ("labels", "titles", "features")


def save(result: Result, path: Path | str, *, fingerprint: str, overwrite: bool = False) -> Path:
    """Write a result into a folder of its own, from which :func:`load` reads it anywhere.

    Raises:
        RunFolderError: If the folder is in use for something else, or the run is not finished.
        StorageError: If it cannot be written.
    """
    target = as_path("path", path)
    if result.unfinished is not None:
        raise RunFolderError("the run is not finished; finish it, then save its result")
    folder = RunFolder.create(
        target,
        result.config,
        fingerprint=fingerprint,
        facts={},
        overwrite=overwrite,
        given=[name for name in result.given if name == "model"],
        saved=True,
    )
    with folder:
        _write(target / _FILE, result.ratings)
        for record in result.rounds:
            folder.append_round(record)
        folder.write_checkpoint(result.simulation.arrays())
        folder.write_summary(result.summary)
    return target


def _write(path: Path, ratings: Ratings) -> None:
    arrays = {name: getattr(ratings, name) for name in _ARRAYS}
    about: dict[str, Any] = {name: getattr(ratings, name) for name in _FACTS}
    about["public"] = sorted(ratings.public)
    if (catalogue := ratings.catalogue) is not None:
        arrays |= {f"catalogue/{name}": getattr(catalogue, name) for name in _OF_CATALOGUE}
        about["catalogue"] = {"names": catalogue.names, "left_out": catalogue.left_out}
    known = {name: array for name, array in arrays.items() if array is not None}
    try:
        with replacing(path) as file:
            np.savez(file, allow_pickle=False, about=np.array(json.dumps(about)), **known)
    except OSError as error:
        raise StorageError.of(path, error, "choose another folder") from error


def saved_ratings(folder: RunFolder) -> Ratings | None:
    """Return the ratings that were saved with a result; None if there are none.

    Whether they are those of the run is for its fingerprint to say.
    """
    arrays = folder.arrays(_FILE, "saved ratings")
    if arrays is None:
        return None
    try:
        return _ratings(arrays, json.loads(str(arrays.pop("about"))))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        file = folder.path / _FILE
        raise RunFolderError(f"{file}: damaged, or not saved ratings ({error})") from error


def _ratings(arrays: dict[str, Any], about: dict[str, Any]) -> Ratings:
    catalogue, own = None, about.pop("catalogue", None)
    if own is not None:
        parts = {name: arrays.pop(f"catalogue/{name}", None) for name in _OF_CATALOGUE}
        own = {name: tuple(map(str, of)) for name, of in own.items()}
        catalogue = Catalogue(**parts, **own)
    arrays.setdefault("time", None)
    about["public"], about["notes"] = frozenset(about["public"]), tuple(about["notes"])
    found = Ratings(**arrays, **about, catalogue=catalogue)
    columns: list[NDArray[Any]] = [
        found.user,
        found.item,
        found.value,
        *([] if found.time is None else [found.time]),
    ]
    fits = len({len(column) for column in columns}) == 1
    for places, labels, number in (
        (found.user, found.user_labels, found.n_users),
        (found.item, found.item_labels, found.n_items),
    ):
        inside = not len(places) or bool(places.min() >= 0 and places.max() < number)
        fits = fits and inside and len(labels) == number
    if not fits:
        raise DataError("its columns do not fit together")
    return found


def found_again(config: Config, folder: RunFolder) -> Config:
    """Return the config with relative paths of data as they are found from here.

    A path is tried in the current folder, then in the one where the run began, then in the same
    place beside the run folder, in case both have moved together.
    """
    found: dict[str, str] = {}
    for key, path in config.data.paths.items():
        relative = Path(path).expanduser()
        places = [folder.path.absolute() / place / relative for place in folder.began_in]
        there = [place.resolve() for place in places if place.exists()]
        if there and not relative.is_absolute() and not relative.exists():
            kind = config.data.dataset.partition(":")[0]
            found[key] = f"{kind}:{there[0]}" if key == "dataset" else str(there[0])
    return config.model_copy(update={"data": config.data.model_copy(update=found)})
