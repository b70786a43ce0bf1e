"""Rows that were edited, removed or forged, and backups that were restored: all are noticed."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bgtplanner.errors import BudgetExceeded, LedgerError, LedgerTamperedError
from bgtplanner.privacy._rows import Head, Row, pack
from bgtplanner.privacy.accountants import TICK
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Ledger
from privacy.ledgers import budgets_of, charges, edited, says

BASIC, EITHER, GDP = "laplace/basic", "laplace/either", "gaussian/gdp"
MARK = b"m" * 32

Make = Callable[..., Ledger]


# ---- tampering


@pytest.fixture
def filled(path: Path) -> tuple[Path, Head]:
    """A ledger with a row of every kind, closed."""
    with Ledger.create(path, budgets_of(1.0, 2.0, 2.0), EITHER) as ledger:
        ledger.settle(ledger.reserve(0.25, run="a", round=0, fingerprint=MARK))
        ledger.reserve([0.25, 0.5, 0.125], run="a", round=1, clients=[1, 2])
        ledger.state_loss(ledger.head, 0.125)
        ledger.settle(ledger.reserve(0.25, run="b", round=0))
        return path, ledger.head


ROWS = 7
EDITS: dict[str, Any] = {
    "kind": "settle",
    "run": "c",
    "round": 77,
    "number": 100,
    "payload": b"\x02\0\0\0{}x\x9c\x03\0\0\0\0\x01",
    "hash": b"\1" * 32,
}


@pytest.mark.parametrize("row", range(ROWS))
@pytest.mark.parametrize("field", EDITS)
def test_an_edit_of_any_field_of_any_row_is_found(
    filled: tuple[Path, Head], field: str, row: int
) -> None:
    path, _ = filled
    opened = Ledger.open(path)
    value = "reserve" if field == "kind" and row in (2, 6) else EDITS[field]
    edited(path, f"UPDATE rows SET {field} = ? WHERE number = ?", value, row)
    with pytest.raises(LedgerTamperedError):
        opened.verify()
    opened.close()
    with pytest.raises((LedgerTamperedError, LedgerError)):
        Ledger.open(path)


@pytest.mark.parametrize("row", range(ROWS - 1))
def test_a_removed_row_is_found(filled: tuple[Path, Head], row: int) -> None:
    path, _ = filled
    opened = Ledger.open(path)
    edited(path, "DELETE FROM rows WHERE number = ?", row)
    with pytest.raises(LedgerTamperedError, match="is not the one that was written after row"):
        opened.verify()
    opened.close()
    with pytest.raises((LedgerTamperedError, LedgerError)):
        Ledger.open(path)
    # Closing the gap does not help.
    edited(path, "UPDATE rows SET number = -number WHERE number > ?", row)
    edited(path, "UPDATE rows SET number = -number - 1 WHERE number < 0")
    with pytest.raises((LedgerTamperedError, LedgerError)):
        Ledger.open(path)


def test_an_older_copy_that_is_put_over_an_open_ledger_is_noticed(tmp_path: Path) -> None:
    """What an open ledger has read before must still be there, before anything is granted."""
    path = tmp_path / "ledger.sqlite"
    with Ledger.create(path, Budgets.same(Budget(1.0, 0.0), 3), "laplace/basic") as ledger:
        ledger.reserve(0.25, run="a", round=0)
        older = path.read_bytes()
        ledger.reserve(0.25, run="a", round=1)
        with path.open("r+b") as file:  # in place: the same file, and so the same locks
            file.write(older)
            file.truncate()
        noted = "the newest row is not the one that was noted: rows were cut, or the file is"
        with pytest.raises(LedgerTamperedError, match=noted):
            ledger.reserve(0.25, run="a", round=2)


@pytest.mark.parametrize("kept", range(1, ROWS))
def test_a_cut_tail_is_found_by_who_knows_the_head(filled: tuple[Path, Head], kept: int) -> None:
    path, head = filled
    opened = Ledger.open(path)
    edited(path, "DELETE FROM rows WHERE number >= ?", kept)
    noted = "the newest row is not the one that was noted: rows were cut, or the file is damaged"
    with says(LedgerTamperedError, noted):
        opened.verify()
    opened.close()
    with says(LedgerTamperedError, noted):
        Ledger.open(path)  # by who does not know that the file notes its newest row
    edited(path, "REPLACE INTO newest SELECT 1, number, hash FROM rows WHERE number = ?", kept - 1)
    message = (
        f"row {head.number}, which was seen before, is not in this ledger (its newest is "
        f"{kept - 1}): rows were cut, or a backup was restored. State the loss first: "
        "bgtplanner ledger restore"
    )
    with says(LedgerTamperedError, message):
        Ledger.open(path, head=head)
    with Ledger.open(path) as cut:  # a chain cut at its end is still a chain
        assert cut.verify() == kept
        with says(LedgerTamperedError, message):
            cut.verify(head)
        with says(LedgerTamperedError, message):
            cut.check_head(head)
        if kept < ROWS - 1:  # nor does writing more rows over it help
            while cut.head.number < head.number:
                cut.state_loss(Head(0, bytes(32)), TICK)
            with pytest.raises(LedgerTamperedError, match="is not in this ledger"):
                cut.check_head(head)


def forged(path: Path, number: int, **change: Any) -> None:
    """Change a row and make the chain right again, as somebody with the code could."""
    connection = sqlite3.connect(path)
    rows = [Row._make(row) for row in connection.execute("SELECT * FROM rows ORDER BY number")]
    connection.execute("DELETE FROM rows")
    head = None
    for row in rows:
        new = row._replace(**change) if row.number == number else row
        row = Row.after(head, new.kind, new.run, new.round, new.payload)
        connection.execute("INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?)", row)
        head = Head(row.number, row.hash)
    connection.execute("REPLACE INTO newest VALUES (1, ?, ?)", head)
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("number", "change", "kind"),
    [
        (0, {"payload": pack({})}, LedgerTamperedError),
        (0, {"payload": pack({"rule": BASIC, "budgets": 3})}, LedgerTamperedError),
        (0, {"payload": pack({"rule": BASIC, "budgets": [[1.0, 1e-5]]}, b"abc")},
         LedgerTamperedError),
        (0, {"payload": pack({"rule": "new/rule", "budgets": [[1.0, 1e-5]]})}, LedgerError),
        (0, {"payload": pack({"rule": BASIC, "budgets": [[-1.0, 1e-5]]})}, LedgerError),
        (0, {"kind": "begin"}, LedgerError),
        (1, {"kind": "refund"}, LedgerTamperedError),
        (1, {"kind": "open"}, LedgerTamperedError),
    ],
)  # fmt: skip
def test_a_forged_row_that_makes_no_sense_is_refused(
    filled: tuple[Path, Head], number: int, change: dict[str, Any], kind: type[Exception]
) -> None:
    path, _ = filled
    forged(path, number, **change)
    with pytest.raises(kind) as caught:
        Ledger.open(path)
    assert caught.type is kind


def test_a_forged_chain_is_found_by_who_knows_the_head(filled: tuple[Path, Head]) -> None:
    path, head = filled
    forged(path, 1, run="z")
    Ledger.open(path).close()
    with pytest.raises(LedgerTamperedError, match="is not in this ledger"):
        Ledger.open(path, head=head)


# ---- damaged files


@pytest.mark.parametrize("key", [bytes(32), b"", b"0" * 31, b"short"])
def test_another_key_is_refused(filled: tuple[Path, Head], key: bytes) -> None:
    path, _ = filled
    edited(path, "UPDATE secret SET key = ?", key)
    with says(LedgerTamperedError, "the ledger's key is not the one it was created with"):
        Ledger.open(path)


# ---- backups


def backed_up(path: Path) -> Path:
    copy = path.with_name("backup.sqlite")
    shutil.copy(path, copy)
    return copy


def restored(path: Path, copy: Path) -> None:
    for ending in ("-wal", "-shm"):
        path.with_name(path.name + ending).unlink(missing_ok=True)
    shutil.copy(copy, path)


def test_a_restored_backup_is_found_and_its_loss_can_be_stated(path: Path) -> None:
    with Ledger.create(path, budgets_of(1.0, 2.0), BASIC) as ledger:
        ledger.reserve(0.25, run="a", round=0)
    copy = backed_up(path)
    with Ledger.open(path) as ledger:
        ledger.reserve(0.5, run="a", round=1)
        head = ledger.head
    restored(path, copy)
    with pytest.raises(LedgerTamperedError, match="a backup was restored"):
        Ledger.open(path, head=head)
    with Ledger.open(path) as ledger:
        ledger.state_loss(head, 0.5)
        assert charges(ledger) == [0.75, 0.75]
        assert ledger.check_head(head) is None
        assert ledger.verify(head) == 3
    with Ledger.open(path, head=head) as ledger:
        assert ledger.left().tolist() == [0.25, 1.25]
        # Other heads are not forgiven with it.
        with pytest.raises(LedgerTamperedError):
            ledger.check_head(Head(head.number, bytes(32)))
        with pytest.raises(LedgerTamperedError):
            ledger.check_head(Head(head.number + 1, head.hash))


@pytest.mark.parametrize("rule_name", [BASIC, EITHER, GDP, "laplace/filter", "gaussian/rdp"])
@pytest.mark.parametrize("delta", [1e-5, 0.9])
@pytest.mark.parametrize("epsilon", [1e-9, 0.1, 1.0, 30.0])
def test_a_loss_of_unknown_size_is_everything(
    make: Make, rule_name: str, delta: float, epsilon: float
) -> None:
    ledger = make(budgets_of(epsilon, epsilon / 2 if epsilon > 1e-9 else epsilon, delta=delta),
                  rule_name)  # fmt: skip
    ledger.state_loss(Head(9, bytes(32)))
    assert ledger.left().tolist() == [0.0, 0.0]
    with pytest.raises(BudgetExceeded):
        ledger.reserve(TICK, run="a", round=0)
    assert ledger.verify() == 2
