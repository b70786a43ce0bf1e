"""The file that never loses a row of a ledger.

The SQLite file uses a rollback journal and ``synchronous = FULL``: when a reservation is granted,
it is in the file itself and on the disk, and a plain copy of the file contains it. There is no
write-ahead log, whose loss or damage SQLite would silently ignore. A ledger that is to live as
long as its process is the same database in memory.

Beside the rows, the file notes which row is the newest, so that one whose end was cut is refused.
Further tables hold what earlier versions derive from the rows. They are written and never read.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import threading
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

from bgtplanner.errors import LedgerError, LedgerTamperedError, StorageError
from bgtplanner.privacy._rows import Head, Row, attempt_of, damaged, named_values, settled_by

SCHEMA = 3
"""Version of the file's layout, kept in SQLite's ``user_version``. Files of version 1, which hold
only the rows, in write-ahead mode, are migrated when they are opened for writing. A file is of
version 3 from the first row on that says who joins or leaves, which earlier readers do not know;
until then it stays one of version 2, to the bit."""

_WITHOUT_MEMBERS = 2

_APPLICATION = 0x42475450  # "BGTP", in SQLite's application_id: marks the file as a ledger
_SELECT = "SELECT number, kind, run, round, payload, hash FROM rows"
_ROWS = """
CREATE TABLE rows (number INTEGER PRIMARY KEY, kind TEXT NOT NULL, run TEXT NOT NULL,
    round INTEGER NOT NULL, payload BLOB NOT NULL, hash BLOB NOT NULL) STRICT;
CREATE TABLE secret (key BLOB NOT NULL) STRICT;
"""
_DERIVED = """
CREATE TABLE reservations (run TEXT NOT NULL, round INTEGER NOT NULL, attempt INTEGER NOT NULL,
    number INTEGER NOT NULL, fingerprint BLOB NOT NULL,
    PRIMARY KEY (run, round, attempt, number)) STRICT, WITHOUT ROWID;
CREATE TABLE unsettled (number INTEGER PRIMARY KEY) STRICT;
CREATE TABLE newest (one INTEGER PRIMARY KEY CHECK (one = 1), number INTEGER NOT NULL,
    hash BLOB NOT NULL) STRICT;
CREATE TABLE snapshot (one INTEGER PRIMARY KEY CHECK (one = 1), number INTEGER NOT NULL,
    hash BLOB NOT NULL, state BLOB NOT NULL, mark BLOB NOT NULL) STRICT;
"""
_NEWEST_IN_SCHEMA_1 = """
CREATE TEMP VIEW newest AS SELECT number, hash FROM rows ORDER BY number DESC LIMIT 1
"""
_CHUNK = 64  # rows read at a time: a reader blocks a writer no longer than that
_WAIT_SECONDS = 30.0


# ---- where the rows are kept


class Journal:
    """Rows in an SQLite file, or in memory. Use :meth:`create`, :meth:`open` or :meth:`in_memory`.

    The key is a secret for fingerprints; it is never exported with the rows.
    """

    def __init__(
        self, connection: sqlite3.Connection, path: Path, *, durable: bool = True
    ) -> None:
        self.durable, self.path = durable, path
        self._connection = connection
        self._lock = threading.RLock()
        self._process = os.getpid()
        found = self._one("SELECT key FROM secret")
        if found is None or not isinstance(found[0], bytes):
            raise LedgerError(f"{path}: damaged: it has lost its key")
        self.key: bytes = found[0]
        if not durable:  # it is never closed by hand
            weakref.finalize(self, connection.close)

    @classmethod
    def in_memory(cls, rows: Iterable[Row], key: bytes) -> Self:
        """Keep rows, unchecked, for as long as the process lives: for simulations and plans."""
        path = Path("a ledger in memory")
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        with _sqlite_errors(path):
            _write_new(connection, key, rows)
        return cls(connection, path, durable=False)

    @classmethod
    def create(cls, path: Path | str, key: bytes, first: Row) -> Self:
        """Start a new file with its key and its first row."""
        path = Path(path)
        taken = f"{path}: exists already; open it instead of creating it"
        if path.exists():
            raise LedgerError(taken)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.touch(0o600, exist_ok=False)
            with contextlib.closing(_connect(draft, "rw")) as connection, _sqlite_errors(draft):
                _write_new(connection, key, [first])
            # Written under another name and then linked: a crash leaves no half-written ledger,
            # and of two processes that create the same one only the first succeeds.
            os.link(draft, path)
        except OSError as error:
            if os.path.lexists(path):
                raise LedgerError(taken) from error
            raise StorageError(f"{path}: cannot be created: {error.strerror}") from error
        finally:
            for ending in ("", "-journal"):
                with contextlib.suppress(OSError):
                    draft.with_name(draft.name + ending).unlink()
        return cls.open(path)

    @classmethod
    def open(cls, path: Path | str, *, read_only: bool = False, rebuild: bool = False) -> Self:
        """Open an existing file; `rebuild` derives everything from the rows again."""
        path = Path(path)
        if not path.is_file():
            raise LedgerError(f"{path}: no such ledger")
        connection = _connect_to_read(path) if read_only else _connect(path, "rw")
        try:
            with _sqlite_errors(path):
                (mark,) = connection.execute("PRAGMA application_id").fetchone()
                (schema,) = connection.execute("PRAGMA user_version").fetchone()
                if mark != _APPLICATION:  # another program's file is left as it is
                    raise LedgerError(
                        f"{path}: not a ledger (another program's file, or an emptied one)"
                    )
                if not 1 <= schema <= SCHEMA:
                    raise LedgerError(
                        f"{path}: a ledger of schema {schema}; this version reads up to {SCHEMA}. "
                        "Another version wrote it: update bgtplanner to open it"
                    )
                if schema == 1 and read_only:
                    connection.execute(_NEWEST_IN_SCHEMA_1)
                elif schema == 1 or rebuild:
                    _migrate(connection, path)
                if not read_only:
                    connection.execute("PRAGMA journal_mode = TRUNCATE")
                    connection.execute("PRAGMA synchronous = FULL")
                if schema > 1:
                    _refuse_cut(connection, path)
            return cls(connection, path)
        except BaseException:
            connection.close()
            raise

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Let one writer at a time, over all processes, write all of its rows or none."""
        if self.durable and os.getpid() != self._process:
            raise LedgerError(f"{self.path}: opened by another process; open it again in this one")
        with self._lock, _sqlite_errors(self.path):
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise

    def append(self, row: Row) -> None:
        """Append a row, inside :meth:`writing`."""
        with _sqlite_errors(self.path):
            _write(self._connection, row)

    def rows(self, start: int = 0) -> Iterator[Row]:
        """Yield the rows from a number on, in order, unchecked."""
        while True:
            found = self._all(f"{_SELECT} WHERE number >= ? ORDER BY number LIMIT {_CHUNK}", start)
            yield from map(_row, found)
            if len(found) < _CHUNK:
                return
            start = found[-1][0] + 1

    def head_at(self, number: int) -> Head | None:
        found = self._one("SELECT number, hash FROM rows WHERE number = ?", number)
        return None if found is None else Head._make(found)

    def newest(self) -> Head | None:
        """Return the head that was noted as the newest."""
        found = self._one("SELECT number, hash FROM newest")
        return None if found is None else Head._make(found)

    def check(self) -> None:
        """Refuse a file that SQLite finds damaged."""
        (said,) = self._one("PRAGMA integrity_check(1)")
        if said != "ok":
            raise LedgerTamperedError(f"{self.path}: SQLite finds it damaged: {said}")

    def close(self) -> None:
        """Close the file, and leave nothing beside it. A journal in memory stays open."""
        if not self.durable:
            return
        with contextlib.suppress(sqlite3.Error):
            if os.getpid() == self._process:  # deletes the empty journal, unless someone writes
                self._connection.execute("PRAGMA journal_mode = DELETE")
        self._connection.close()

    def _one(self, query: str, *values: Any) -> Any:
        return next(iter(self._all(query, *values)), None)

    def _all(self, query: str, *values: Any) -> list[Any]:
        try:
            with self._lock, _sqlite_errors(self.path):
                return self._connection.execute(query, values).fetchall()
        except MemoryError as error:  # a damaged length asks for any size
            raise LedgerError(f"{self.path}: damaged: a row of impossible length") from error


def _row(values: tuple[Any, ...]) -> Row:
    """Return a row as it was read. A damaged file gives NULL where the layout allows none."""
    if [type(value) for value in values] != [int, str, str, int, bytes, bytes]:
        raise damaged()
    return Row._make(values)


def _write(connection: sqlite3.Connection, row: Row) -> None:
    connection.execute("INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?)", row)
    _note(connection, row)


def _note(connection: sqlite3.Connection, row: Row) -> None:
    """Store what is derived from a row."""
    connection.execute("REPLACE INTO newest VALUES (1, ?, ?)", (row.number, row.hash))
    if row.kind == "reserve":
        attempt, mark = attempt_of(named_values(row.payload))
        made = row.run, row.round, attempt, row.number, mark
        connection.execute("INSERT INTO reservations VALUES (?, ?, ?, ?, ?)", made)
        connection.execute("INSERT INTO unsettled VALUES (?)", (row.number,))
    elif row.kind == "settle":
        connection.execute("DELETE FROM unsettled WHERE number = ?", (settled_by(row),))
    elif row.kind in ("join", "leave"):
        connection.execute(f"PRAGMA user_version = {SCHEMA}")


# ---- how a file is created, migrated and opened


def _write_new(connection: sqlite3.Connection, key: bytes, rows: Iterable[Row]) -> None:
    connection.execute("PRAGMA synchronous = FULL")
    connection.executescript(
        f"PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {_WITHOUT_MEMBERS};"
        f"BEGIN IMMEDIATE; {_ROWS} {_DERIVED}"
    )
    connection.execute("INSERT INTO secret VALUES (?)", (key,))
    for row in rows:
        _write(connection, row)
    connection.execute("COMMIT")


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Derive from the rows what schema 1 does not have, as a whole or not at all."""
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # no other process gets in between
    (mode,) = connection.execute("PRAGMA journal_mode = TRUNCATE").fetchone()
    if mode == "wal":
        raise StorageError(f"{path}: another process has it open; stop that process first")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("BEGIN EXCLUSIVE")  # if it fails, the caller closes: all is rolled back
    for statement in filter(str.strip, _DERIVED.split(";")):
        connection.execute(f"DROP TABLE IF EXISTS {statement.split()[2]}")
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {_WITHOUT_MEMBERS}")
    for values in connection.execute(f"{_SELECT} ORDER BY number"):
        _note(connection, _row(values))
    connection.execute("COMMIT")
    connection.execute("PRAGMA locking_mode = NORMAL")  # releases the lock at the next read


def _refuse_cut(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a file whose last page is cut: SQLite would read zeros there."""
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    missing = pages * size - path.stat().st_size
    if missing > 0:
        raise LedgerError(f"{path}: damaged: its last {missing} bytes are missing")


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    with _sqlite_errors(path):
        return sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=_WAIT_SECONDS,
            isolation_level=None, check_same_thread=False,
        )  # fmt: skip


def _connect_to_read(path: Path) -> sqlite3.Connection:
    """Return a connection that changes nothing, except that it rolls back what a crash cut short.

    A file of schema 1 is in write-ahead mode: SQLite would create files beside it in order to read
    it, unless it is told that no one writes. No one does if there is no log.
    """

    def holds_something(ending: str) -> bool:
        beside = path.with_name(path.name + ending)
        return beside.exists() and beside.stat().st_size > 0

    if holds_something("-journal"):  # after a crash, only a writer can read on
        with (
            contextlib.suppress(sqlite3.Error),
            contextlib.closing(_connect(path, "rw")) as writer,
        ):
            writer.execute("PRAGMA schema_version")  # the first read gives a better message
    with path.open("rb") as file:
        write_ahead = file.read(20)[18:] == b"\2\2"
    quiet = write_ahead and not holds_something("-wal")
    return _connect(path, "ro&immutable=1" if quiet else "ro")


@contextlib.contextmanager
def _sqlite_errors(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into ours: storage failures, damaged files, foreign files."""
    try:
        yield
    except sqlite3.IntegrityError as error:
        raise LedgerTamperedError(f"{path}: a row exists already: {error}") from error
    except sqlite3.OperationalError as error:
        text = str(error)
        if "no such table" in text or "no such column" in text:
            raise LedgerError(f"{path}: not a ledger: {text}") from error
        if "decode" in text:
            raise LedgerTamperedError(f"{path}: a row cannot be read: {text}") from error
        if "locked" in text or "busy" in text:
            raise StorageError(
                f"{path}: another process has been using it for {_WAIT_SECONDS:.0f} s; try again"
            ) from error
        raise StorageError(f"{path}: {text}; nothing was reserved") from error
    except sqlite3.ProgrammingError as error:  # used after it was closed
        raise LedgerError(f"{path}: {error}") from error
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # even of its message
        raise LedgerError(f"{path}: damaged, or not a ledger: {error}") from error
