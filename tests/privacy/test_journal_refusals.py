"""What a journal refuses, forces to the disk and lets go of, case by case."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from bgtplanner.errors import LedgerError, LedgerTamperedError
from bgtplanner.privacy import _journal as journal
from bgtplanner.privacy._journal import SCHEMA, Journal
from bgtplanner.privacy._rows import Head, Row, pack
from bgtplanner.privacy.ledger import Ledger

KEY = bytes(range(32))
FIRST = Row.after(None, "open", "", 0, b"first")
PAYLOAD = pack({"attempt": 0, "everybody": True, "fingerprint": "", "ticks": 5})
SECOND = Row.after(Head(0, FIRST.hash), "reserve", "run", 0, PAYLOAD)
OLD = Path(__file__).parents[1] / "assets" / "ledger-schema1.sqlite"


def made(path: Path) -> Journal:
    kept = Journal.create(path, KEY, FIRST)
    with kept.writing():
        kept.append(SECOND)
    return kept


def edit(path: Path, script: str) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()


@pytest.fixture
def old(path: Path) -> Path:
    shutil.copy(OLD, path)
    return path


# ---- in memory


def test_a_reservation_that_cannot_be_read_again_is_not_taken_in() -> None:
    kept = Journal.in_memory([FIRST], KEY)
    bad = Row.after(Head(0, FIRST.hash), "reserve", "run", 0, pack({"attempt": -1}))
    with pytest.raises(LedgerTamperedError), kept.writing():
        kept.append(bad)
    assert list(kept.rows()) == [FIRST]
    assert kept.newest() == Head(0, FIRST.hash)


# ---- damaged


def test_a_file_without_its_last_byte_is_refused(path: Path) -> None:
    made(path).close()
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)
    with pytest.raises(LedgerError, match="its last 1 bytes are missing"):
        Journal.open(path)


@pytest.mark.parametrize("values", ["1, 0, NULL, x'00', x'00'", "1, 0, x'00', 'text', x'00'"])
def test_a_snapshot_of_other_types_is_refused(path: Path, values: str) -> None:
    made(path).close()
    edit(
        path,
        "DROP TABLE snapshot; CREATE TABLE snapshot (one, number, hash, state, mark);"
        f"INSERT INTO snapshot VALUES ({values})",
    )
    kept = Journal.open(path)
    with pytest.raises(LedgerTamperedError, match="the snapshot cannot be read: damaged"):
        kept.snapshot()
    kept.close()


def test_a_row_of_other_types_is_refused(path: Path) -> None:
    made(path).close()
    edit(
        path,
        "CREATE TABLE other AS SELECT * FROM rows; DROP TABLE rows;"
        "ALTER TABLE other RENAME TO rows; UPDATE rows SET payload = NULL WHERE number = 1",
    )
    kept = Journal.open(path)
    assert kept.row(0) == FIRST
    with pytest.raises(LedgerTamperedError, match="a row cannot be read: edited or damaged"):
        kept.row(1)
    kept.close()


def test_what_sqlite_finds_damaged_is_refused(path: Path) -> None:
    kept = made(path)
    kept.check()
    edit(path, "PRAGMA ignore_check_constraints = ON; UPDATE newest SET one = 2")
    with pytest.raises(LedgerTamperedError, match="SQLite finds it damaged: CHECK"):
        kept.check()
    kept.close()


def test_a_row_that_asks_for_all_memory_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Endless:
        def execute(self, *_: Any) -> Any:
            raise MemoryError

    kept = made(path)
    with monkeypatch.context() as patch:
        patch.setattr(kept, "_connection", Endless())
        with pytest.raises(LedgerError, match="damaged: a row of impossible length"):
            kept.row(1)
    kept.close()


# ---- brought up to date


def locked(path: Path) -> bool:
    connection = sqlite3.connect(path, timeout=0)
    try:
        connection.execute("SELECT count(*) FROM rows").fetchone()
    except sqlite3.OperationalError as error:
        return "locked" in str(error)
    finally:
        connection.close()
    return False


class Watched(sqlite3.Connection):
    """A connection that tells before which statements nobody else could have come in."""

    alone: dict[str, bool]
    path: Path

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        self.alone[sql] = locked(self.path)
        return super().execute(sql, *values)


def test_nobody_comes_in_while_it_is_brought_up_to_date(old: Path) -> None:
    Watched.alone, Watched.path = {}, old
    connection = sqlite3.connect(old, isolation_level=None, factory=Watched)
    journal._migrate(connection, old)
    assert Watched.alone["BEGIN EXCLUSIVE"]  # from before it begins
    assert Watched.alone["COMMIT"]
    connection.close()


def test_others_can_use_it_once_it_is_up_to_date(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "_WAIT_SECONDS", 0.01)
    for rebuild in (False, True):
        first = Ledger.open(old, rebuild=rebuild)
        with Ledger.open(old) as second:
            second.reserve(0.0625, run="other", round=int(rebuild), clients=[2])
        assert first.newest_round("other") == int(rebuild)
        first.close()
    connection = sqlite3.connect(old)
    assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA,)
    connection.close()
