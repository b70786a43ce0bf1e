"""Rows that are written once, chained, durable: the file, its errors, its locks."""

from __future__ import annotations

import os
import re
import sqlite3
import stat
from pathlib import Path
from typing import Any

import pytest

from bgtplanner.errors import LedgerError, LedgerTamperedError, StorageError
from bgtplanner.privacy import _journal as journal
from bgtplanner.privacy._journal import SCHEMA, Journal
from bgtplanner.privacy._rows import Head, Row, pack
from privacy.ledgers import says

FIRST = Row.after(None, "open", "", 0, b"first")
KEY = bytes(range(32))
PAYLOAD = pack({"attempt": 0, "everybody": True, "fingerprint": "", "ticks": 5})


def filled(path: Path, number: int = 3) -> Journal:
    """A journal with some rows after the first."""
    kept = Journal.create(path, KEY, FIRST)
    last = FIRST
    with kept.writing():
        for index in range(number):
            last = Row.after(Head(last.number, last.hash), "reserve", "run", index, PAYLOAD)
            kept.append(last)
    return kept


# ---- rows and heads


def test_a_head_is_printed_and_read_again() -> None:
    head = Head(12, bytes(range(32)))
    assert str(head) == "12:" + bytes(range(32)).hex()
    assert Head.parse(f"  {head}\n") == head
    assert Head.parse("0:" + "00" * 32) == Head(0, bytes(32))
    assert Head.parse(f"{2**63 - 1}:" + "00" * 32).number == 2**63 - 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "3",
        "3:",
        "x:" + "00" * 32,
        "3:zz",
        ":" + "00" * 32,
        "3:0",
        "-1:" + "00" * 32,
        "3:" + "00" * 31,
        "3:" + "00" * 33,
        f"{2**63}:" + "00" * 32,
    ],
)
def test_what_is_no_head_is_refused(text: str) -> None:
    with pytest.raises(LedgerError, match=f"^--head {re.escape(text)}: expected NUMBER:HASH"):
        Head.parse(text)


# ---- the file


def test_a_new_file_holds_its_first_row_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "a [new]*folder" / "ledger[1]?.sqlite"
    kept = Journal.create(str(path), KEY, FIRST)
    assert list(kept.rows()) == [FIRST]
    assert kept.path == path
    kept.close()
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    kept = filled(path)
    files = list(tmp_path.iterdir())
    assert {file.name for file in files} == {"ledger.sqlite", "ledger.sqlite-journal"}
    for file in files:
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file.name
    kept.close()


def test_the_layout_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    filled(path).close()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA application_id").fetchone() == (0x42475450,)
    assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA - 1,) == (2,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    layout = {
        "rows": ["number INTEGER 1", "kind TEXT 0", "run TEXT 0", "round INTEGER 0",
                 "payload BLOB 0", "hash BLOB 0"],
        "reservations": ["run TEXT 1", "round INTEGER 2", "attempt INTEGER 3", "number INTEGER 4",
                         "fingerprint BLOB 0"],
        "unsettled": ["number INTEGER 1"],
        "snapshot": ["one INTEGER 1", "number INTEGER 0", "hash BLOB 0", "state BLOB 0",
                     "mark BLOB 0"],
    }  # fmt: skip
    for table, expected in layout.items():
        columns = connection.execute("SELECT name, type, pk FROM pragma_table_info(?)", (table,))
        assert [" ".join(map(str, column)) for column in columns] == expected, table
    assert [len(key) for (key,) in connection.execute("SELECT key FROM secret")] == [32]
    connection.close()


def test_what_is_written_is_forced_to_the_disk_and_in_the_file_itself(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    kept = filled(path, 0)
    assert kept._connection.execute("PRAGMA journal_mode").fetchone() == ("truncate",)
    assert kept._connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    head = Head(0, FIRST.hash)
    for number in range(40):
        with kept.writing():
            assert kept._connection.in_transaction
            row = Row.after(head, "reserve", "run", number, PAYLOAD)
            kept.append(row)
            head = Head(row.number, row.hash)
        assert not kept._connection.in_transaction
        assert path.with_name("ledger.sqlite-journal").stat().st_size == 0
        copy = tmp_path / "copy.sqlite"
        copy.write_bytes(path.read_bytes())  # a plain copy of the file alone is whole
        again = Journal.open(copy, read_only=True)
        assert again.head_at(row.number) == head
        again.close()
    kept.close()
    assert {file.name for file in tmp_path.iterdir()} == {"ledger.sqlite", "copy.sqlite"}


# ---- creating


@pytest.mark.parametrize("what", ["file", "folder", "ledger", "dangling link"])
def test_nothing_is_ever_started_anew_over_something(tmp_path: Path, what: str) -> None:
    path = tmp_path / "ledger.sqlite"
    if what == "file":
        path.write_text("precious")
    elif what == "folder":
        path.mkdir()
    elif what == "ledger":
        filled(path).close()
    else:
        path.symlink_to(tmp_path / "nowhere")
    before = path.read_bytes() if path.is_file() else None
    with says(LedgerError, f"{path}: exists already; open it instead of creating it"):
        Journal.create(path, KEY, FIRST)
    assert (path.read_bytes() if path.is_file() else None) == before
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_folder_that_cannot_be_written_is_a_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    inside = tmp_path / "file" / "ledger.sqlite"
    with pytest.raises(StorageError, match=": cannot be created: "):
        Journal.create(inside, KEY, FIRST)

    def read_only(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    path = tmp_path / "ledger.sqlite"
    monkeypatch.setattr(os, "link", read_only)
    with says(StorageError, f"{path}: cannot be created: Permission denied"):
        Journal.create(path, KEY, FIRST)
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


# ---- opening


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    for path in (tmp_path / "none.sqlite", tmp_path):
        with says(LedgerError, f"{path}: no such ledger"):
            Journal.open(path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("read_only", [False, True])
def test_foreign_files_are_refused_and_left_as_they_are(tmp_path: Path, read_only: bool) -> None:
    text = tmp_path / "text"
    text.write_text("user,item,rating\n" * 100)
    empty = tmp_path / "empty"
    empty.touch()
    foreign = tmp_path / "foreign.sqlite"
    connection = sqlite3.connect(foreign)
    connection.executescript("CREATE TABLE rows (number); INSERT INTO rows VALUES (1);")
    connection.close()
    newer = tmp_path / "newer.sqlite"
    filled(newer).close()
    connection = sqlite3.connect(newer)
    connection.execute("PRAGMA user_version = 4")
    connection.close()
    expected = {
        text: "damaged, or not a ledger: file is not a database",
        empty: "not a ledger (another program's file, or an emptied one)",
        foreign: "not a ledger (another program's file, or an emptied one)",
        newer: "a ledger of schema 4; this version reads up to 3. Another version wrote it: "
        "update bgtplanner to open it",
    }
    for path, message in expected.items():
        before = path.read_bytes()
        with says(LedgerError, f"{path}: {message}"):
            Journal.open(path, read_only=read_only)
        assert path.read_bytes() == before, path.name


# ---- others


def test_a_second_writer_waits_and_then_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.sqlite"
    filled(path).close()
    monkeypatch.setattr(journal, "_WAIT_SECONDS", 0.01)
    one, two = Journal.open(path), Journal.open(path)
    with one.writing():
        message = f"{path}: another process has been using it for 0 s; try again"
        with says(StorageError, message), two.writing():
            pass
    with two.writing():
        pass
    one.close()
    two.close()


def edit(path: Path, script: str) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()


# ---- in memory


def test_a_row_is_written_once(tmp_path: Path) -> None:
    kept = filled(tmp_path / "ledger.sqlite")
    last = list(kept.rows())[-1]
    with pytest.raises(LedgerTamperedError, match="exists already"), kept.writing():
        kept.append(last)
    kept.close()


def test_a_reservation_that_cannot_be_read_again_is_not_taken_in() -> None:
    kept = Journal.in_memory([FIRST], KEY)
    bad = Row.after(Head(0, FIRST.hash), "reserve", "run", 0, pack({"attempt": -1}))
    with pytest.raises(LedgerTamperedError), kept.writing():
        kept.append(bad)
    assert list(kept.rows()) == [FIRST]
    assert kept.newest() == Head(0, FIRST.hash)


# ---- damaged


def test_a_row_of_other_types_is_refused(path: Path) -> None:
    filled(path, 1).close()
    edit(
        path,
        "CREATE TABLE other AS SELECT * FROM rows; DROP TABLE rows;"
        "ALTER TABLE other RENAME TO rows; UPDATE rows SET payload = NULL WHERE number = 1",
    )
    kept = Journal.open(path)
    rows = kept.rows()
    assert next(rows) == FIRST
    with pytest.raises(LedgerTamperedError, match="a row cannot be read: edited or damaged"):
        next(rows)
    kept.close()


def test_what_sqlite_finds_damaged_is_refused(path: Path) -> None:
    kept = filled(path, 1)
    kept.check()
    edit(path, "PRAGMA ignore_check_constraints = ON; UPDATE newest SET one = 2")
    with pytest.raises(LedgerTamperedError, match="SQLite finds it damaged: CHECK"):
        kept.check()
    kept.close()
