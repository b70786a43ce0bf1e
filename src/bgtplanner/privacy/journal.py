"""Rows that are written once, chained by hash, and never lost: what the ledger stands on.

Every row's hash covers the row and the hash before it, so an edited, removed or reordered row
breaks the chain. A chain cut at its end is still a chain: only somebody who knows the *head*
(number and hash of the newest row) can tell, which is why the head is also kept elsewhere.

The SQLite file is kept with a rollback journal and ``synchronous = FULL``: when a reservation is
granted, it is in the file itself and on the disk, and a plain copy of the file has it. There is no
write-ahead log, whose loss or damage SQLite would pass over in silence. The price is a millisecond
a reservation instead of a third, and that readers and the writer wait for one another, for as long
as a few rows take.

Beside the rows the file has what can be derived from them, so that nothing has to read them all:
which reservations were made for a round, which were never settled, the newest row, and a
*snapshot* of the sums at some row. The rows say what counts; if the newest one is not where it was
noted to be, or the snapshot is not what was written, the ledger is refused.
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
from bgtplanner.privacy.entries import attempt_of, named_values, settled_by

__all__ = [
    "SCHEMA",
    "Head",
    "Journal",
    "Made",
    "MemoryJournal",
    "Row",
    "Snapshot",
    "SqliteJournal",
    "in_write_ahead_mode",
    "sqlite_warning",
]

SCHEMA = 2
"""Version of the file's layout; kept in SQLite's ``user_version``. Files of version 1, which have
the rows alone, are brought to this one when they are opened for writing."""

_APPLICATION = 0x42475450  # "BGTP", in SQLite's application_id: tells our files from others
_INSERT = "INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?)"
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
_CHUNK = 64  # rows that are read at once: a reader holds up a writer no longer than that
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


class Made(NamedTuple):
    """A reservation as it is looked up again, without the list of who made it."""

    run: str
    round: int
    attempt: int
    number: int
    fingerprint: bytes

    @classmethod
    def by(cls, row: Row) -> Made:
        """What a reserve row says.

        Raises:
            LedgerTamperedError: If it says nothing of the kind.
        """
        attempt, mark = attempt_of(named_values(row.payload))
        return cls(row.run, row.round, attempt, row.number, mark)


class Snapshot(NamedTuple):
    """What all rows up to one amount to, so that only later ones have to be read.

    Attributes:
        number: The last row that it counts in.
        hash: Of that row.
        state: The sums, as :class:`~bgtplanner.privacy.book.Book` packs them.
        mark: Made with the ledger's key over all of this, so that an edit is noticed.
    """

    number: int
    hash: bytes
    state: bytes
    mark: bytes


class Journal(Protocol):
    """Where rows are kept."""

    key: bytes
    """A secret that never leaves with the rows: for fingerprints and snapshots."""

    durable: bool
    """Whether the rows outlive the process."""

    def writing(self) -> contextlib.AbstractContextManager[None]:
        """Nobody else writes inside; rows appended inside appear together, or not at all."""
        ...

    def rows(self, start: int = ...) -> Iterator[Row]:
        """Rows from a number on, in order, unchecked."""
        ...

    def row(self, number: int) -> Row | None:
        """One row, unchecked."""
        ...

    def head_at(self, number: int) -> Head | None:
        """Number and hash of one row, unchecked."""
        ...

    def newest(self) -> Head | None:
        """The row that was noted to be the newest one."""
        ...

    def append(self, row: Row) -> None:
        """Add a row, inside :meth:`writing`."""
        ...

    def newest_round(self, run: str) -> int | None:
        """The highest round of a run that has a reservation."""
        ...

    def attempts(self, run: str, round_: int) -> int:
        """How many attempts at a round there were."""
        ...

    def made_for(self, run: str, round_: int, fingerprint: bytes) -> list[Made]:
        """The reservations of a round that were made for the same inputs, oldest first."""
        ...

    def unsettled(self) -> set[int]:
        """The reservations that were never settled."""
        ...

    def is_unsettled(self, number: int) -> bool:
        """Whether a reservation was never settled."""
        ...

    def snapshot(self) -> Snapshot | None:
        """The snapshot that was kept last, unchecked."""
        ...

    def keep_snapshot(self, snapshot: Snapshot) -> None:
        """Put a snapshot in the place of the last one, inside :meth:`writing`."""
        ...

    def check(self) -> None:
        """Refuse what is derived from the rows if it is not what they say."""
        ...

    def close(self) -> None:
        """Let go of the file."""
        ...


class MemoryJournal:
    """Rows in memory, for simulations and plans that need not outlive the process."""

    durable = False

    def __init__(self, key: bytes | None = None, rows: Iterable[Row] = ()) -> None:
        self.key = secrets.token_bytes(32) if key is None else key
        self._rows: list[Row] = []
        self._made: dict[tuple[str, int], list[Made]] = {}
        self._newest: dict[str, int] = {}
        self._unsettled: set[int] = set()
        self._lock = threading.Lock()
        for row in rows:
            self._rows.append(row)
            self._note(row)

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
        except (KeyError, TypeError, ValueError, OverflowError) as error:
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
    def writing(self) -> Iterator[None]:
        """Nobody else writes inside; what was appended is taken back if something fails."""
        with self._lock:
            before = len(self._rows)
            try:
                yield
            except BaseException:
                del self._rows[before:]
                raise
            for row in self._rows[before:]:
                self._note(row)

    def rows(self, start: int = 0) -> Iterator[Row]:
        return iter(self._rows[start:])

    def row(self, number: int) -> Row | None:
        return self._rows[number] if 0 <= number < len(self._rows) else None

    def head_at(self, number: int) -> Head | None:
        row = self.row(number)
        return None if row is None else Head(row.number, row.hash)

    def newest(self) -> Head | None:
        return self.head_at(len(self._rows) - 1)

    def append(self, row: Row) -> None:
        if row.kind == "reserve":
            Made.by(row)  # what cannot be read again is not taken in
        self._rows.append(row)

    def newest_round(self, run: str) -> int | None:
        return self._newest.get(run)

    def attempts(self, run: str, round_: int) -> int:
        return 1 + max((made.attempt for made in self._made.get((run, round_), ())), default=-1)

    def made_for(self, run: str, round_: int, fingerprint: bytes) -> list[Made]:
        made = self._made.get((run, round_), ())
        return [one for one in made if one.fingerprint == fingerprint]

    def unsettled(self) -> set[int]:
        return set(self._unsettled)

    def is_unsettled(self, number: int) -> bool:
        return number in self._unsettled

    def snapshot(self) -> Snapshot | None:
        """None: what is in memory was read once."""
        return None

    def keep_snapshot(self, snapshot: Snapshot) -> None:
        """Nothing to keep."""

    def check(self) -> None:
        """Nothing that could have been changed from outside."""

    def close(self) -> None:
        """Nothing to let go of."""

    def _note(self, row: Row) -> None:
        if row.kind == "reserve":
            made = Made.by(row)
            self._made.setdefault((row.run, row.round), []).append(made)
            self._newest[row.run] = max(row.round, self._newest.get(row.run, row.round))
            self._unsettled.add(row.number)
        elif row.kind == "settle":
            self._unsettled.discard(settled_by(named_values(row.payload)))


class SqliteJournal:
    """Rows in an SQLite file. Use :meth:`create` or :meth:`open`."""

    durable = True

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.path = path
        self._connection = connection
        self._lock = threading.RLock()
        self._process = os.getpid()
        found = self._one("SELECT key FROM secret")
        if found is None or not isinstance(found[0], bytes):
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
            for ending in ("", "-journal"):
                with contextlib.suppress(OSError):
                    draft.with_name(draft.name + ending).unlink()
        return cls.open(path)

    @staticmethod
    def _write_new(path: Path, key: bytes, first: Row) -> None:
        with contextlib.closing(_connect(path, "rw")) as connection, _sqlite_errors(path):
            connection.execute("PRAGMA synchronous = FULL")
            connection.executescript(
                f"PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {SCHEMA};"
                f"BEGIN IMMEDIATE; {_ROWS} {_DERIVED}"
            )
            connection.execute("INSERT INTO secret VALUES (?)", (key,))
            connection.execute(_INSERT, first)
            _note(connection, first)
            connection.execute("COMMIT")

    @classmethod
    def open(
        cls, path: Path | str, *, read_only: bool = False, rebuild: bool = False
    ) -> SqliteJournal:
        """Open a file that exists.

        Args:
            path: The file.
            read_only: Change nothing.
            rebuild: Derive anew from the rows what is derived from them.

        Raises:
            LedgerError: If it is not there, is no ledger, is damaged, or has another schema.
            StorageError: If it is in use, or cannot be read without writing, and may not be.
        """
        path = Path(path)
        if not path.is_file():
            raise LedgerError(f"{path}: no such ledger")
        connection = _connect_to_read(path) if read_only else _connect(path, "rw")
        try:
            with _sqlite_errors(path):
                mark = connection.execute("PRAGMA application_id").fetchone()[0]
                schema = connection.execute("PRAGMA user_version").fetchone()[0]
                if mark != _APPLICATION:
                    raise LedgerError(
                        f"{path}: no ledger (another program's file, or cut to nothing)"
                    )
                if schema not in (1, SCHEMA):
                    raise LedgerError(
                        f"{path}: ledger of schema {schema}; this version reads {SCHEMA}"
                    )
                # Not before: another program's file is left as it is.
                if schema != SCHEMA and read_only:
                    connection = _migrated_copy(connection, path)
                elif schema != SCHEMA or rebuild:
                    _migrate(connection, path)
                if not read_only:
                    connection.execute("PRAGMA journal_mode = TRUNCATE")
                    connection.execute("PRAGMA synchronous = FULL")
                if schema == SCHEMA:
                    _refuse_cut(connection, path)
            return cls(connection, path)
        except BaseException:
            connection.close()
            raise

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """One writer at a time, over all processes; in the file and on the disk at the end."""
        if os.getpid() != self._process:
            raise LedgerError(f"{self.path}: opened by another process; open it again in this one")
        with self._lock, self._errors():
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise

    def rows(self, start: int = 0) -> Iterator[Row]:
        while True:
            found = self._all(f"{_SELECT} WHERE number >= ? ORDER BY number LIMIT {_CHUNK}", start)
            yield from map(_row, found)
            if len(found) < _CHUNK:
                return
            start = found[-1][0] + 1

    def row(self, number: int) -> Row | None:
        found = self._one(f"{_SELECT} WHERE number = ?", number)
        return None if found is None else _row(found)

    def head_at(self, number: int) -> Head | None:
        found = self._one("SELECT number, hash FROM rows WHERE number = ?", number)
        return None if found is None else Head._make(found)

    def newest(self) -> Head | None:
        found = self._one("SELECT number, hash FROM newest")
        return None if found is None else Head._make(found)

    def append(self, row: Row) -> None:
        with self._errors():
            self._connection.execute(_INSERT, row)
            _note(self._connection, row)

    def newest_round(self, run: str) -> int | None:
        query = "SELECT round FROM reservations WHERE run = ? ORDER BY round DESC LIMIT 1"
        found = self._one(query, run)
        return None if found is None else int(found[0])

    def attempts(self, run: str, round_: int) -> int:
        found = self._one(
            "SELECT attempt FROM reservations WHERE run = ? AND round = ? "
            "ORDER BY attempt DESC LIMIT 1",
            run,
            round_,
        )
        return 0 if found is None else int(found[0]) + 1

    def made_for(self, run: str, round_: int, fingerprint: bytes) -> list[Made]:
        found = self._all(
            "SELECT run, round, attempt, number, fingerprint FROM reservations "
            "WHERE run = ? AND round = ? AND fingerprint = ? ORDER BY number",
            run,
            round_,
            fingerprint,
        )
        return list(map(Made._make, found))

    def unsettled(self) -> set[int]:
        return {number for (number,) in self._all("SELECT number FROM unsettled")}

    def is_unsettled(self, number: int) -> bool:
        return self._one("SELECT 1 FROM unsettled WHERE number = ?", number) is not None

    def snapshot(self) -> Snapshot | None:
        found = self._one("SELECT number, hash, state, mark FROM snapshot")
        if found is None:
            return None
        snapshot = Snapshot._make(found)
        if [type(part) for part in snapshot] != [int, bytes, bytes, bytes]:
            raise LedgerTamperedError(f"{self.path}: the snapshot cannot be read: damaged")
        return snapshot

    def keep_snapshot(self, snapshot: Snapshot) -> None:
        with self._errors():
            query = "REPLACE INTO snapshot VALUES (1, ?, ?, ?, ?)"
            self._connection.execute(query, snapshot)

    def check(self) -> None:
        """Refuse a file that SQLite finds damaged, or whose index is not what its rows say.

        Raises:
            LedgerTamperedError: If it is so.
        """
        with self._lock, self._errors():
            self._connection.execute("BEGIN")  # all of it as it is at one moment
            try:
                (said,) = self._one("PRAGMA integrity_check(1)")
                if said != "ok":
                    raise LedgerTamperedError(f"{self.path}: SQLite finds it damaged: {said}")
                if not self._index_is_right():
                    raise LedgerTamperedError(
                        f"{self.path}: the index of reservations is not what the rows say: "
                        "edited or damaged"
                    )
            finally:
                self._connection.execute("ROLLBACK")

    def _index_is_right(self) -> bool:
        made, unsettled = 0, set()
        find = (
            "SELECT 1 FROM reservations WHERE run = ? AND round = ? AND attempt = ? "
            "AND number = ? AND fingerprint = ?"
        )
        for row in self.rows():
            if row.kind == "reserve":
                made += 1
                unsettled.add(row.number)
                if self._one(find, *Made.by(row)) is None:
                    return False
            elif row.kind == "settle":
                unsettled.discard(settled_by(named_values(row.payload)))
        noted = self._one("SELECT count(*) FROM reservations")
        return bool(noted == (made,)) and unsettled == self.unsettled()

    def close(self) -> None:
        """Let go of the file, and leave nothing beside it."""
        with contextlib.suppress(sqlite3.Error):
            if os.getpid() == self._process:  # deletes the empty journal, unless somebody writes
                self._connection.execute("PRAGMA journal_mode = DELETE")
        self._connection.close()

    def _one(self, query: str, *values: Any) -> Any:
        return next(iter(self._all(query, *values)), None)

    def _all(self, query: str, *values: Any) -> list[Any]:
        try:
            with self._lock, self._errors():
                return self._connection.execute(query, values).fetchall()
        except MemoryError as error:  # a damaged length asks for any size
            raise LedgerError(f"{self.path}: damaged: a row without end") from error

    def _errors(self) -> contextlib.AbstractContextManager[None]:
        return _sqlite_errors(self.path)


def _row(values: tuple[Any, ...]) -> Row:
    """A row as it was read. A damaged file gives NULL where the layout allows none."""
    if [type(value) for value in values] != [int, str, str, int, bytes, bytes]:
        raise LedgerTamperedError("a row cannot be read: edited or damaged")
    return Row._make(values)


def _note(connection: sqlite3.Connection, row: Row) -> None:
    """Write down what is derived from a row."""
    connection.execute("REPLACE INTO newest VALUES (1, ?, ?)", (row.number, row.hash))
    if row.kind == "reserve":
        query = "INSERT INTO reservations VALUES (?, ?, ?, ?, ?)"
        connection.execute(query, Made.by(row))
        connection.execute("INSERT INTO unsettled VALUES (?)", (row.number,))
    elif row.kind == "settle":
        number = settled_by(named_values(row.payload))
        connection.execute("DELETE FROM unsettled WHERE number = ?", (number,))


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Derive anew what this schema has and schema 1 has not: as a whole, or not at all."""
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # nobody comes in between
    (mode,) = connection.execute("PRAGMA journal_mode = TRUNCATE").fetchone()
    if mode == "wal":
        raise StorageError(f"{path}: another process has it open; end that one first")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("BEGIN EXCLUSIVE")
    _derive(connection)  # if that fails, whoever called closes the connection: all is taken back
    connection.execute("COMMIT")
    connection.execute("PRAGMA locking_mode = NORMAL")  # lets go of the lock when it reads next


def _migrated_copy(connection: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    """A copy in memory of a file that may not be written, brought to this schema."""
    copy = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    try:
        with _sqlite_errors(path), contextlib.closing(connection):
            connection.backup(copy)
            copy.execute("BEGIN")
            _derive(copy)
            copy.execute("COMMIT")
            copy.execute("PRAGMA query_only = ON")
    except BaseException:
        copy.close()
        raise
    return copy


def _refuse_cut(connection: sqlite3.Connection, path: Path) -> None:
    """SQLite reads zeros where the end of the last page is missing: refuse that."""
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    missing = pages * size - path.stat().st_size
    if missing > 0:
        raise LedgerError(f"{path}: damaged: its last {missing} bytes are missing")


def _derive(connection: sqlite3.Connection) -> None:
    for statement in filter(str.strip, _DERIVED.split(";")):
        table = statement.split()[2]
        connection.execute(f"DROP TABLE IF EXISTS {table}")
        connection.execute(statement)
    for values in connection.execute(f"{_SELECT} ORDER BY number"):
        _note(connection, _row(values))
    connection.execute(f"PRAGMA user_version = {SCHEMA}")


def sqlite_warning(
    *, write_ahead: bool = False, version: tuple[int, ...] = sqlite3.sqlite_version_info
) -> str | None:
    """What there is to worry about in the SQLite that is in use, in words; None: nothing known.

    Args:
        write_ahead: Whether the file is in write-ahead mode, as ledgers once were.
        version: Of SQLite.

    Example:
        >>> sqlite_warning(version=(3, 40, 1)) is None
        True
    """
    name = ".".join(map(str, version))
    if version < (3, 37):
        return f"SQLite {name} is too old for a ledger: use 3.37 or newer"
    mended = version >= (3, 51, 3) or (3, 50, 7) <= version < (3, 51)
    mended = mended or (3, 44, 6) <= version < (3, 45)
    if write_ahead and not mended:
        return (
            f"SQLite {name} can damage a file in write-ahead mode when two processes use it "
            "(sqlite.org/wal.html#walresetbug); use 3.51.3 or newer, or open the ledger once for "
            "writing, which takes it out of that mode"
        )
    return None


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    with _sqlite_errors(path):
        return sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            timeout=_WAIT_SECONDS,
            isolation_level=None,
            check_same_thread=False,
        )


def _connect_to_read(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing, wherever the file lies.

    A file of schema 1 is in write-ahead mode: SQLite would make files beside it in order to read
    it, unless it is told that nobody writes. Nobody does if there is no log. After a crash in the
    middle of writing, the file cannot be read before the half of it is taken back, by who may.
    """
    log = path.with_name(path.name + "-wal")
    if in_write_ahead_mode(path) and not (log.exists() and log.stat().st_size):
        return _connect(path, "ro&immutable=1")
    connection = _connect(path, "ro")
    try:
        connection.execute("PRAGMA schema_version")
    except sqlite3.OperationalError as error:
        connection.close()
        if error.sqlite_errorcode != sqlite3.SQLITE_READONLY_ROLLBACK:
            with _sqlite_errors(path):
                raise
        with _sqlite_errors(path), contextlib.closing(_connect(path, "rw")) as writer:
            writer.execute("PRAGMA schema_version")
        return _connect(path, "ro")
    except sqlite3.Error:
        pass  # said better by whoever reads it
    return connection


def in_write_ahead_mode(path: Path) -> bool:
    """Whether an SQLite file is in write-ahead mode, as ledgers of schema 1 are."""
    try:
        with path.open("rb") as file:
            return file.read(20)[18:] == b"\2\2"
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror}") from error


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
                f"{path}: another process has been using it for {_WAIT_SECONDS:.0f} s; try again"
            ) from error
        raise StorageError(f"{path}: {text}; nothing was reserved") from error
    except sqlite3.ProgrammingError as error:  # used after it was closed
        raise LedgerError(f"{path}: {error}") from error
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # of a message, even
        raise LedgerError(f"{path}: damaged or no ledger: {error}") from error
