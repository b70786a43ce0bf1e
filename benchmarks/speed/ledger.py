"""What the ledger costs a round, beside the cheapest durable thing one could do."""

from __future__ import annotations

import argparse
import json
import sqlite3
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Ledger

CLIENTS, MANY, FEW = 6040, 1_000_000, 1000
TURNS = 15
TARGET_INSERT, TARGET_MANY, TARGET_PAST = 2.0, 10.0, 1.5
PAST = 3000  # rounds behind the older of two ledgers


class Book:
    """A ledger on the disk that is charged round after round."""

    def __init__(
        self, folder: Path, name: str, clients: int, *, even: bool = True, classes: int = 1
    ) -> None:
        each = tuple(Budget(1000.0 + index, 1e-5) for index in range(classes))
        budgets = Budgets(each, np.random.default_rng(1).integers(0, classes, clients))
        self.ledger = Ledger.create(folder / f"{name}.sqlite", budgets, "gaussian/gdp")
        self.round = 0
        # If not even, every client pays something else: the longest rows there are.
        several = np.random.default_rng(0).uniform(1e-4, 2e-4, clients)
        self.charge = 1e-4 if even else several
        if classes > 1:
            self.charge = np.linspace(1e-4, 2e-4, classes)[budgets.class_of_client]

    def turn(self) -> float:
        """Seconds to reserve and settle one round."""
        begun = time.perf_counter()
        reservation = self.ledger.reserve(self.charge, run="bench", round=self.round)
        self.ledger.settle(reservation)
        self.round += 1
        return time.perf_counter() - begun


class Bare:
    """A row a client and round in a durable SQLite table, and nothing else."""

    def __init__(self, folder: Path, clients: int) -> None:
        self.connection = sqlite3.connect(folder / "bare.sqlite", isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute("PRAGMA synchronous = FULL")
        self.connection.execute("CREATE TABLE paid (run TEXT, round INT, client INT, charge INT)")
        self.clients, self.round = clients, 0

    def turn(self) -> float:
        """Seconds to insert one round."""
        rows = [("bench", self.round, client, 1_759_218_604) for client in range(self.clients)]
        begun = time.perf_counter()
        self.connection.execute("BEGIN IMMEDIATE")
        self.connection.executemany("INSERT INTO paid VALUES (?, ?, ?, ?)", rows)
        self.connection.execute("COMMIT")
        self.round += 1
        return time.perf_counter() - begun


def run() -> dict[str, Any]:
    """All books by turns, so that a busy moment hits all of them."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder = Path(name)
        books: dict[str, Book | Bare] = {
            "bare insert": Bare(folder, CLIENTS),
            "even": Book(folder, "even", CLIENTS),
            "uneven": Book(folder, "uneven", CLIENTS, even=False),
            "few": Book(folder, "few", FEW),
            "many": Book(folder, "many", MANY),
            "classes": Book(folder, "classes", MANY, classes=3),
        }
        old = Book(folder, "old", FEW)
        for _ in range(PAST):
            old.turn()
        books["old"] = old
        seconds: dict[str, list[float]] = {name: [] for name in books}
        for _ in range(TURNS):
            for label, book in books.items():
                seconds[label].append(book.turn())

    def ratio(one: str, other: str) -> float:
        return median(a / b for a, b in zip(seconds[one], seconds[other], strict=True))

    return {
        "seconds": seconds,
        "comparisons": [
            [
                "6,040 clients, one charge, against a bare insert",
                ratio("even", "bare insert"),
                TARGET_INSERT,
            ],
            [
                "6,040 clients, each its own charge, against it",
                ratio("uneven", "bare insert"),
                TARGET_INSERT,
            ],
            ["1,000,000 clients against 1,000", ratio("many", "few"), TARGET_MANY],
            [
                "1,000,000 in 3 classes, each its own charge, against 1,000",
                ratio("classes", "few"),
                TARGET_MANY,
            ],
            [f"after {PAST:,} rounds against none", ratio("old", "few"), TARGET_PAST],
        ],
    }


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(json.dumps(run()))
