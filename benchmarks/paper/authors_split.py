"""The authors' own split of FilmTrust, from the file that their code reads, where you have it.

``python -m benchmarks.paper.authors_split filmtrust_FedMF.pkl filmtrust-authors.csv`` writes a
table of users, items, ratings and parts (train or test); docs/paper.md says how to run with it.

The file is a pickle, which could run code. Here it cannot: nothing is looked up but containers.
"""

from __future__ import annotations

import csv
import pickle
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

_CONTAINERS = {("builtins", of.__name__): of for of in (dict, frozenset, list, set, tuple)}
_CONTAINERS |= {("collections", "defaultdict"): defaultdict}


class _Containers(pickle.Unpickler):
    """Reads numbers, text and containers, and refuses whatever else a pickle names."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _CONTAINERS:
            raise pickle.UnpicklingError(f"names {module}.{name}, which is not a container")
        return _CONTAINERS[module, name]


def rows_of(path: Path) -> list[tuple[int, int, float, str]]:
    """Return user, item, rating from 0 to 1 and part of every rating in the authors' file.

    It is a list of ratings to train on, to test on and to arrive later (none), users, items and
    friends. Ratings are triples of item, rating and -1, by user.

    Raises:
        ValueError: If it is no such file, or names anything that could run code.
    """
    try:
        with path.open("rb") as file:
            train, test, online, *_ = _Containers(file).load()
        rows = [
            (int(user), int(item), float(rating), part)
            for part, ratings in (("train", train), ("test", test), ("later", online))
            for user, own in ratings.items()
            for item, rating, _ in own
        ]
    except Exception as error:  # a damaged file makes the reader fail in many ways
        raise ValueError(f"{path}: is not the authors' file: {error}") from error
    if any(part == "later" for *_, part in rows):
        raise ValueError(f"{path}: has ratings that arrive later, which no column can say")
    return rows


if __name__ == "__main__":
    with Path(sys.argv[2]).open("w", newline="", encoding="utf-8") as target:
        head = ("user", "item", "rating", "part")
        csv.writer(target).writerows([head, *rows_of(Path(sys.argv[1]))])
