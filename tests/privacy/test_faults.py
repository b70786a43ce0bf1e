"""A disk that fails at any moment: what was granted is booked, and memory is never ahead of it."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgtplanner.errors import StorageError
from bgtplanner.privacy.accountants import TICK
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Ledger

BUDGETS = Budgets((Budget(2.0), Budget(4.0)), np.array([0, 1, 1]))


class Crash(BaseException):
    """The machine stops here."""


class Failing:
    """A connection that fails at its n-th statement.

    Args:
        connection: The real one.
        at: Which statement, from 0; a read counts as well.
        how: ``refused``: it is not done; ``done``: it is, and an error is told all the same;
            ``crash``: the process ends there.
        error: What is told.
    """

    def __init__(self, connection: Any, at: int, how: str, error: str) -> None:
        self.connection, self.left, self.how, self.error = connection, at, how, error
        self.failed: str | None = None

    def execute(self, statement: str, *values: Any) -> Any:
        due, self.left = self.left == 0, self.left - 1
        if due:
            self.failed = statement
        if due and self.how == "crash":
            raise Crash
        if due and self.how == "refused":
            raise sqlite3.OperationalError(self.error)
        result = self.connection.execute(statement, *values)
        if due:
            raise sqlite3.OperationalError(self.error)
        return result

    def close(self) -> None:
        self.connection.close()


def history(ledger: Ledger, granted: dict[str, float]) -> None:
    """A few rounds; what each is granted is written down as soon as it is known."""
    for number in range(3):
        reservation = ledger.reserve(0.125, run="a", round=number, rising=True)
        granted[f"a{number}"] = float(reservation.charge[0])
        ledger.settle(reservation)
    reservation = ledger.reserve([0.25, 0.5, 0.5], run="b", round=0, fingerprint=b"m")
    granted["b0"] = 0.25
    reservation = ledger.reserve([0.25, 0.5, 0.5], run="b", round=0, fingerprint=b"m")
    ledger.settle(reservation)


def carried_on(ledger: Ledger, granted: dict[str, float]) -> None:
    """The same history until nothing fails any more; what is granted again is charged again."""
    for number in range(3):
        reservation = ledger.reserve(0.125, run="a", round=10 + number, rising=True)
        granted[f"again {number}"] = float(reservation.charge[0])
        ledger.settle(reservation)


def spent(ledger: Ledger) -> float:
    return float(ledger.spent()[0, 0]) * TICK


@pytest.mark.parametrize(
    ("how", "error"),
    [("refused", "database or disk is full"), ("done", "disk I/O error"), ("crash", "")],
)
def test_at_whichever_statement_it_fails(tmp_path: Path, how: str, error: str) -> None:
    path = tmp_path / "ledger.sqlite"
    failed = set()
    Ledger.create(path, BUDGETS, "laplace/either").close()
    new = path.read_bytes()
    for at in range(10_000):
        path.write_bytes(new)
        ledger = Ledger.open(path)
        connection = ledger._journal._connection  # type: ignore[attr-defined]
        connection.execute("PRAGMA synchronous = OFF")
        failing = Failing(connection, at, how, error)
        ledger._journal._connection = failing  # type: ignore[attr-defined]
        granted: dict[str, float] = {}
        with contextlib.suppress(StorageError, Crash):
            history(ledger, granted)
        if failing.failed is None:
            connection.close()
            break
        failed.add(failing.failed.split()[0])
        with Ledger.open(path, read_only=True) as seen:
            booked, on_disk = spent(seen), seen.head
            assert sum(granted.values()) <= booked <= sum(granted.values()) + 0.25
            seen.verify()
        assert spent(ledger) <= booked  # what is in memory is on the disk
        assert ledger.head.number <= on_disk.number
        if how == "crash":
            connection.close()
            ledger = Ledger.open(path)
        carried_on(ledger, granted)
        assert sum(granted.values()) <= spent(ledger) <= sum(granted.values()) + 0.25
        ledger.verify()
        ledger.close()
        with Ledger.open(path) as again:
            assert spent(again) == spent(ledger)
            assert again.verify() == again.head.number + 1
    assert failed >= {"BEGIN", "SELECT", "INSERT", "REPLACE", "DELETE", "COMMIT"}
    assert at > 60


NO_SPACE = """
import json, resource, signal, sys
from pathlib import Path
from bgtplanner.errors import BudgetExceeded, StorageError
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Ledger
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path, hard = Path(sys.argv[1]), resource.getrlimit(resource.RLIMIT_FSIZE)[1]
granted, refused, number = 0, 0, 0
with Ledger.create(path, Budgets.same(Budget(1e4), 3), "laplace/basic") as ledger:
    size = path.stat().st_size
    # No file may grow beyond this: the file itself, or what is written aside, hits it anywhere.
    for limit in [*range(512, size + 20_000, 1500)] * 2 + [size + 60_000]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        for _ in range(4):
            number += 1
            try:
                leave = ledger.reserve(1.0, run="x" * 300, round=number, rising=True)
                granted += 1
                ledger.settle(leave)
            except StorageError:
                refused += 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        spent = round(float(ledger.epsilon_spent()[0]))
        with Ledger.open(path, read_only=True) as other:
            booked = round(float(other.epsilon_spent()[0]))
            assert spent <= booked, (limit, spent, booked)
            assert granted <= booked <= granted + 4, (limit, granted, booked)
            other.verify()
print(json.dumps({"granted": granted, "refused": refused}))
"""


def test_files_that_cannot_grow(tmp_path: Path) -> None:
    """Real writes that fail half-way, in the middle of whatever SQLite is writing."""
    result = subprocess.run(
        [sys.executable, "-c", NO_SPACE, str(tmp_path / "ledger.sqlite")],
        capture_output=True,
        text=True,
    )
    assert (result.returncode, result.stderr) == (0, "")
    counted = json.loads(result.stdout)
    assert counted["granted"] > 8
    assert counted["refused"] > 20
