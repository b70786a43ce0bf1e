"""Who is who in the ledger of a run, by the labels of the data."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bgtplanner.errors import BGTPlannerError, RunFolderError
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.run import fingerprint_of, ratings_of, split_of

__all__ = ["labels_of_run"]


def labels_of_run(path: Path | str) -> list[list[str]]:
    """Return the labels of the client's users for each place in the ledger of a run.

    In a run on real machines, a client is named by the hash by which the server knows it.

    Raises:
        RunFolderError: If the run's ratings cannot be loaded, or are not those of the run.
    """
    folder = RunFolder(Path(path))
    notes, config = folder.notes(), folder.config()
    if folder.deployed:
        return [[str(name)] for name in (folder.clients() or {}).get("clients", [])]
    try:
        ratings = ratings_of(config)
        same = fingerprint_of(split_of(config, ratings)) == notes.get("data")
    except BGTPlannerError as error:
        raise RunFolderError(f"{path}: its ratings cannot be loaded ({error})") from error
    if not same:
        raise RunFolderError(f"{path}: its ratings are not those that it was run with")
    labels: list[list[str]] = [[] for _ in range(ratings.n_clients)]
    for user, client in enumerate(np.asarray(ratings.client_of_user).tolist()):
        labels[client].append(str(ratings.user_labels[user]))
    return labels
