"""Rows that are written once, chained by hash, and never lost: what the ledger stands on.

Every row's hash covers the row and the hash before it, so an edited, removed or reordered row
breaks the chain. A chain cut at its end is still a chain: only somebody who knows the *head*
(number and hash of the newest row) can tell, which is why the head is also kept elsewhere.

The SQLite file is in write-ahead mode: one writer at a time, readers never blocked. A reservation
is on the disk (``synchronous = FULL``) before it is granted.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from bgtplanner.errors import LedgerError, LedgerTamperedError, StorageError

__all__ = ["SCHEMA", "Head", "Journal", "MemoryJournal", "Row", "SqliteJournal"]

SCHEMA = 1
"""Version of the file's layout; kept in SQLite's ``user_version``."""

_APPLICATION = 0x42475450  # "BGTP", in SQLite's application_id: tells our files from others
_INSERT = "INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?)"
_START = b"\0" * 32
_WAIT_SECONDS = 30.0


class Head(NamedTuple):
    """The newest row: its number and its hash. Keep it where the ledger is not.

    Example:
        >>> str(Head.parse("3:" + "ab" * 32))[:8]
        '3:ababab'
    """

    number: int
    hash: bytes

    def __str__(self) -> str:
        return f"{self.number}:{self.hash.hex()}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """A head as it is printed.

        Raises:
            LedgerError: If it does not read as NUMBER:HASH.
        """
        number, _, digest = text.strip().partition(":")
        try:
            head = cls(int(number), bytes.fromhex(digest))
        except ValueError as error:
            raise LedgerError(f"--head {text}: expected NUMBER:HASH") from error
        if not 0 <= head.number < 2**63 or len(head.hash) != 32:
            raise LedgerError(f"--head {text}: expected NUMBER:HASH, 64 hexadecimal digits")
        return head


class Row(NamedTuple):
    """One thing that happened.

    Attributes:
        number: Its place, from 0.
        kind: ``open``, ``reserve``, ``settle`` or ``loss``.
        run: Which run.
        round: Which round of it.
        payload: What the kind says.
        hash: Over all of this and the hash before.
    """

    number: int
    kind: str
    run: str
    round: int
    payload: bytes
    hash: bytes

    @classmethod
    def after(cls, head: Head | None, kind: str, run: str, round_: int, payload: bytes) -> Row:
        """The row that follows a head."""
        number, previous = (0, _START) if head is None else (head.number + 1, head.hash)
        texts = [part.encode() for part in (str(number), kind, run, str(round_))]
        named = b"".join([len(text).to_bytes(8, "little") + text for text in texts])
        digest = hashlib.sha256(previous + named)
        digest.update(payload)
        return cls(number, kind, run, round_, payload, digest.digest())

    def follows(self, head: Head | None) -> bool:
        """Whether this is the row that was written after that head."""
        return self == Row.after(head, self.kind, self.run, self.round, self.payload)


class Journal(Protocol):
    """Where rows are kept."""

    key: bytes
    """A secret that never leaves with the rows: for fingerprints and repeatable noise."""

    durable: bool
    """Whether the rows outlive the process."""

    def writing(self, *, durable: bool = True) -> contextlib.AbstractContextManager[None]:
        """Nobody else writes inside; rows appended inside appear together, or not at all."""
        ...

    def rows(self, start: int = 0) -> Iterator[Row]:
        """Rows from a number on, in order, unchecked."""
        ...

    def append(self, row: Row) -> None:
        """Add a row, inside :meth:`writing`."""
        ...

    def close(self) -> None:
        """Let go of the file."""
        ...


class MemoryJournal:
    """Rows in memory, for simulations and plans that need not outlive the process."""

    durable = False

    def __init__(self, key: bytes | None = None, rows: Iterable[Row] = ()) -> None:
        self.key = secrets.token_bytes(32) if key is None else key
        self._rows = list(rows)
        self._lock = threading.Lock()

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> MemoryJournal:
        """Key and rows as :meth:`state_dict` gave them; the chain is not checked here.

        Raises:
            LedgerTamperedError: If they cannot be read.
        """
        try:
            rows = [
                Row(
                    int(number),
                    str(kind),
                    str(run),
                    int(round_),
                    base64.b64decode(payload, validate=True),
                    bytes.fromhex(digest),
                )
                for number, kind, run, round_, payload, digest in state["rows"]
            ]
            return cls(base64.b64decode(state["key"], validate=True), rows)
        except (KeyError, TypeError, ValueError) as error:
            raise LedgerTamperedError(
                "the state cannot be read: edited, damaged or no ledger's"
            ) from error

    def state_dict(self) -> dict[str, Any]:
        """Key and rows as plain values."""
        rows = [
            [*row[:4], base64.b64encode(row.payload).decode(), row.hash.hex()]
            for row in self.rows()
        ]
        return {"key": base64.b64encode(self.key).decode(), "rows": rows}

    @contextlib.contextmanager
    def writing(self, *, durable: bool = True) -> Iterator[None]:
        """Nobody else writes inside; what was appended is taken back if something fails."""
        del durable
        with self._lock:
            before = len(self._rows)
            try:
                yield
            except BaseException:
                del self._rows[before:]
                raise

    def rows(self, start: int = 0) -> Iterator[Row]:
        return iter(self._rows[start:])

    def append(self, row: Row) -> None:
        self._rows.append(row)

    def close(self) -> None:
        """Nothing to let go of."""


class SqliteJournal:
    """Rows in an SQLite file. Use :meth:`create` or :meth:`open`."""

    durable = True

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.path = path
        self._connection = connection
        self._lock = threading.RLock()
        self._process = os.getpid()
        with self._errors():
            found = connection.execute("SELECT key FROM secret").fetchone()
        if found is None:
            raise LedgerError(f"{path}: damaged: it has lost its key")
        self.key: bytes = found[0]

    @classmethod
    def create(cls, path: Path | str, key: bytes, first: Row) -> SqliteJournal:
        """Start a new file with its key and its first row.

        Raises:
            LedgerError: If there is a file already: a ledger is never started anew over another.
        """
        path = Path(path)
        if path.exists():
            raise LedgerError(f"{path}: exists already; open it instead of creating it")
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.touch(0o600, exist_ok=False)
            cls._write_new(draft, key, first)
            # Made aside and then given its name, whole: a crash leaves no half ledger, and of two
            # processes that create the same one only the first succeeds.
            os.link(draft, path)
        except OSError as error:
            if os.path.lexists(path):
                raise LedgerError(
                    f"{path}: exists already; open it instead of creating it"
                ) from error
            raise StorageError(f"{path}: cannot be created: {error.strerror}") from error
        finally:
            for ending in ("", "-wal", "-shm", "-journal"):
                with contextlib.suppress(OSError):
                    draft.with_name(draft.name + ending).unlink()
        return cls.open(path)

    @staticmethod
    def _write_new(path: Path, key: bytes, first: Row) -> None:
        with contextlib.closing(_connect(path)) as connection, _sqlite_errors(path):
            _write_ahead(connection)
            connection.executescript(
                f"PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {SCHEMA};"
                "BEGIN IMMEDIATE;"
                "CREATE TABLE rows (number INTEGER PRIMARY KEY, kind TEXT NOT NULL,"
                " run TEXT NOT NULL, round INTEGER NOT NULL, payload BLOB NOT NULL,"
                " hash BLOB NOT NULL) STRICT;"
                "CREATE TABLE secret (key BLOB NOT NULL) STRICT;"
            )
            connection.execute("INSERT INTO secret VALUES (?)", (key,))
            connection.execute(_INSERT, first)
            connection.execute("COMMIT")

    @classmethod
    def open(cls, path: Path | str, *, read_only: bool = False) -> SqliteJournal:
        """Open a file that exists.

        Raises:
            LedgerError: If it is not there, is no ledger, is damaged, or has another schema.
        """
        path = Path(path)
        if not path.is_file():
            raise LedgerError(f"{path}: no such ledger")
        connection = _connect(path, read_only=read_only)
        try:
            with _sqlite_errors(path):
                mark = connection.execute("PRAGMA application_id").fetchone()[0]
                schema = connection.execute("PRAGMA user_version").fetchone()[0]
            if mark != _APPLICATION:
                raise LedgerError(f"{path}: no ledger (another program's file, or cut to nothing)")
            if schema != SCHEMA:
                raise LedgerError(
                    f"{path}: ledger of schema {schema}; this version reads {SCHEMA}"
                )
            if not read_only:  # not before: another program's file is left as it is
                with _sqlite_errors(path):
                    _write_ahead(connection)
            return cls(connection, path)
        except BaseException:
            connection.close()
            raise

    @contextlib.contextmanager
    def writing(self, *, durable: bool = True) -> Iterator[None]:
        """One writer at a time, over all processes; on the disk at the end if `durable`."""
        if os.getpid() != self._process:
            raise LedgerError(f"{self.path}: opened by another process; open it again in this one")
        with self._lock, self._errors():
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise

    def rows(self, start: int = 0) -> Iterator[Row]:
        query = "SELECT number, kind, run, round, payload, hash FROM rows WHERE number >= ?"
        with self._lock, self._errors():
            yield from map(
                Row._make, self._connection.execute(query + " ORDER BY number", (start,))
            )

    def append(self, row: Row) -> None:
        with self._errors():
            self._connection.execute(_INSERT, row)

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def _errors(self) -> contextlib.AbstractContextManager[None]:
        return _sqlite_errors(self.path)


def _connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    with _sqlite_errors(path):
        address = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rw'}"
        return sqlite3.connect(
            address, uri=True, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False
        )


def _write_ahead(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")


@contextlib.contextmanager
def _sqlite_errors(path: Path) -> Iterator[None]:
    """SQLite's complaints, sorted: what the disk refuses, what is damaged, what is foreign."""
    try:
        yield
    except sqlite3.IntegrityError as error:
        raise LedgerTamperedError(f"{path}: a row is there already: {error}") from error
    except sqlite3.OperationalError as error:
        text = str(error)
        if "no such table" in text or "no such column" in text:
            raise LedgerError(f"{path}: no ledger: {text}") from error
        if "decode" in text:
            raise LedgerTamperedError(f"{path}: a row cannot be read: {text}") from error
        if "locked" in text or "busy" in text:
            raise StorageError(
                f"{path}: another process has been writing for {_WAIT_SECONDS:.0f} s; try again"
            ) from error
        raise StorageError(f"{path}: {text}; nothing was reserved") from error
    except sqlite3.ProgrammingError as error:  # used after it was closed
        raise LedgerError(f"{path}: {error}") from error
    except sqlite3.DatabaseError as error:
        raise LedgerError(f"{path}: damaged or no ledger: {error}") from error
