"""The rows of a ledger, chained by hash, and the file that never loses one.

Every row's hash covers the row and the hash before it, so an edited, removed or reordered row
breaks the chain. A chain that was cut at its end is still a valid chain. Only someone who knows
the *head* (the number and hash of the newest row) can detect that, so the head is also kept
elsewhere.

The SQLite file uses a rollback journal and ``synchronous = FULL``: when a reservation is granted,
it is in the file itself and on the disk, and a plain copy of the file contains it. There is no
write-ahead log, whose loss or damage SQLite would silently ignore.

Beside the rows, the file holds what is derived from them, so that opening it does not have to read
them all: which reservations were made for a round, which were never settled, the newest row, and a
*snapshot* of the sums at some row. Only the rows count. If the newest row is not the one that was
noted, or the snapshot is not the one that was written, the ledger is refused.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import secrets
import sqlite3
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from bgtplanner.errors import LedgerError, LedgerTamperedError, StorageError

__all__ = ["SCHEMA", "Head", "Journal", "Made", "Row", "Snapshot"]

SCHEMA = 2
"""Version of the file's layout, kept in SQLite's ``user_version``. Files of version 1, which hold
only the rows, are migrated when they are opened for writing."""

_APPLICATION = 0x42475450  # "BGTP", in SQLite's application_id: marks the file as a ledger
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
_TABLES = _ROWS + _DERIVED
_CHUNK = 64  # rows read at a time: a reader blocks a writer no longer than that
_START = b"\0" * 32
_WAIT_SECONDS = 30.0


class Head(NamedTuple):
    """The number and hash of the newest row. Keep it apart from the ledger.

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
        """Read a head as it is printed."""
        number, _, digest = text.strip().partition(":")
        try:
            head = cls(int(number), bytes.fromhex(digest))
        except ValueError as error:
            raise LedgerError(f"--head {text}: expected NUMBER:HASH") from error
        if not 0 <= head.number < 2**63 or len(head.hash) != 32:
            raise LedgerError(f"--head {text}: expected NUMBER:HASH, 64 hexadecimal digits")
        return head


class Row(NamedTuple):
    """One event: its kind is ``open``, ``reserve``, ``settle`` or ``loss``.

    The hash covers all other fields and the hash of the row before.
    """

    number: int
    kind: str
    run: str
    round: int
    payload: bytes
    hash: bytes

    @classmethod
    def after(cls, head: Head | None, kind: str, run: str, round_: int, payload: bytes) -> Row:
        """Return the row that follows a head."""
        number, previous = (0, _START) if head is None else (head.number + 1, head.hash)
        texts = (b"%d" % number, kind.encode(), run.encode(), b"%d" % round_)
        named = b"".join([len(text).to_bytes(8, "little") + text for text in texts])
        digest = hashlib.sha256(previous + named)
        digest.update(payload)
        return cls(number, kind, run, round_, payload, digest.digest())

    def follows(self, head: Head | None) -> bool:
        """Return whether this is the row that was written after that head."""
        return self == Row.after(head, self.kind, self.run, self.round, self.payload)


class Made(NamedTuple):
    """A reservation as the index holds it, without who paid."""

    run: str
    round: int
    attempt: int
    number: int
    fingerprint: bytes

    @classmethod
    def by(cls, row: Row) -> Made:
        """Return the index entry of a reserve row."""
        attempt, mark = attempt_of(named_values(row.payload))
        return cls(row.run, row.round, attempt, row.number, mark)


class Snapshot(NamedTuple):
    """What all rows up to a certain one amount to, so that only later rows have to be read.

    The state is packed by :class:`~bgtplanner.privacy._book.Book`. The mark is a hash of the rest
    with the ledger's key, so that an edit is detected.
    """

    number: int
    hash: bytes
    state: bytes
    mark: bytes


# ---- payloads of rows

_NOTHING = zlib.compress(b"", 1)  # most rows have none; setting up zlib would be slow
_in_order = json.JSONEncoder(sort_keys=True).encode
_parse = json.JSONDecoder().raw_decode  # json.loads takes several times as long for so few values


def pack(about: dict[str, Any] | str, data: bytes = b"") -> bytes:
    """Pack a few named values, or their text as it is written, and some bytes into one payload."""
    text = (about if isinstance(about, str) else _in_order(about)).encode()
    return len(text).to_bytes(4, "little") + text + (zlib.compress(data, 1) if data else _NOTHING)


def unpack(payload: bytes) -> tuple[dict[str, Any], bytes]:
    """Return what :func:`pack` was given."""
    about, data = named_values(payload), payload[4 + int.from_bytes(payload[:4], "little") :]
    try:
        return about, b"" if data == _NOTHING else zlib.decompress(data)
    except zlib.error as error:
        raise damaged() from error


def named_values(payload: bytes) -> dict[str, Any]:
    """Return only the named values of a payload, without its bytes, of which there may be many."""
    try:
        text = payload[4 : 4 + int.from_bytes(payload[:4], "little")].decode()
        about, end = _parse(text)
    except (ValueError, RecursionError) as error:
        raise damaged() from error
    if end < len(text) or not isinstance(about, dict):
        raise damaged()
    return about


def attempt_of(about: Mapping[str, Any]) -> tuple[int, bytes]:
    """Return the attempt of a reserve row and the fingerprint of its inputs."""
    attempt, mark = about.get("attempt"), about.get("fingerprint")
    if type(attempt) is not int or not 0 <= attempt < 2**62 or not isinstance(mark, str):
        raise damaged()
    try:
        return attempt, bytes.fromhex(mark)
    except ValueError as error:
        raise damaged() from error


def settled_by(about: Mapping[str, Any]) -> int:
    """Return the number of the reservation that a settle row settles."""
    number = about.get("settles")
    if type(number) is not int or not 0 < number < 2**62:
        raise damaged()
    return number


def damaged() -> LedgerTamperedError:
    """Return the error for a row that cannot have been written like this."""
    return LedgerTamperedError("a row cannot be read: edited or damaged")


# ---- where the rows are kept


class Journal:
    """Rows in an SQLite file, or in memory. Use :meth:`create`, :meth:`open` or :meth:`in_memory`.

    Attributes:
        key: A secret for fingerprints and snapshots; it is never exported with the rows.
        durable: Whether the rows outlive the process.
        path: The file; a name for errors if it is in memory.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.durable, self.path = True, path
        self._connection = connection
        self._lock = threading.RLock()
        self._process = os.getpid()
        found = self._one("SELECT key FROM secret")
        if found is None or not isinstance(found[0], bytes):
            raise LedgerError(f"{path}: damaged: it has lost its key")
        self.key: bytes = found[0]

    @classmethod
    def in_memory(cls, rows: Iterable[Row] = (), key: bytes | None = None) -> Journal:
        """Keep rows, unchecked, for as long as the process lives: for simulations and plans."""
        return _InMemory(rows, secrets.token_bytes(32) if key is None else key)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Journal:
        """Restore what :meth:`state_dict` returned, in memory; the chain is not checked."""
        try:
            rows = []
            for number, (place, kind, run, round_, payload, digest) in enumerate(state["rows"]):
                if int(place) != number:
                    raise ValueError("rows are missing, or out of order")
                said = (str(kind), str(run), int(round_), base64.b64decode(payload, validate=True))
                for text in said[:2]:
                    text.encode()  # no text at all with half a surrogate pair
                if not 0 <= said[2] < 2**63:
                    raise ValueError("no round of a ledger")
                rows.append(Row(number, *said, bytes.fromhex(digest)))
            return cls.in_memory(rows, base64.b64decode(state["key"], validate=True))
        except (KeyError, TypeError, ValueError, OverflowError, sqlite3.Error) as error:
            raise LedgerTamperedError(
                "the state cannot be read: edited, damaged, or not that of a ledger"
            ) from error

    def state_dict(self) -> dict[str, Any]:
        """Return the key and the rows as plain values."""
        rows = [
            [*row[:4], base64.b64encode(row.payload).decode(), row.hash.hex()]
            for row in self.rows()
        ]
        return {"key": base64.b64encode(self.key).decode(), "rows": rows}

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
                _write_new(connection, _TABLES, key, [first])
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
        """Let one writer at a time, over all processes, write all of its rows or none."""
        if os.getpid() != self._process:
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
            _append(self._connection, row)

    def rows(self, start: int = 0) -> Iterator[Row]:
        """Yield the rows from a number on, in order, unchecked."""
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
        """Return the head that was noted as the newest."""
        found = self._one("SELECT number, hash FROM newest")
        return None if found is None else Head._make(found)

    def newest_round(self, run: str) -> int | None:
        query = "SELECT max(round) FROM reservations WHERE run = ?"
        (newest,) = self._one(query, run)
        return None if newest is None else int(newest)

    def attempts(self, run: str, round_: int) -> int:
        query = "SELECT max(attempt) FROM reservations WHERE run = ? AND round = ?"
        (newest,) = self._one(query, run, round_)
        return 0 if newest is None else int(newest) + 1

    def made_for(self, run: str, round_: int, fingerprint: bytes) -> list[Made]:
        """Return the reservations of a round for the same inputs, oldest first."""
        query = (
            "SELECT run, round, attempt, number, fingerprint FROM reservations "
            "WHERE run = ? AND round = ? AND fingerprint = ? ORDER BY number"
        )
        return list(map(Made._make, self._all(query, run, round_, fingerprint)))

    def unsettled(self) -> set[int]:
        return {number for (number,) in self._all("SELECT number FROM unsettled")}

    def is_unsettled(self, number: int) -> bool:
        return self._one("SELECT 1 FROM unsettled WHERE number = ?", number) is not None

    def snapshot(self) -> Snapshot | None:
        """Return the latest snapshot, unchecked."""
        found = self._one("SELECT number, hash, state, mark FROM snapshot")
        if found is None:
            return None
        if [type(part) for part in found] != [int, bytes, bytes, bytes]:
            raise LedgerTamperedError(f"{self.path}: the snapshot cannot be read: damaged")
        return Snapshot._make(found)

    def keep_snapshot(self, snapshot: Snapshot) -> None:
        """Replace the latest snapshot, inside :meth:`writing`."""
        with _sqlite_errors(self.path):
            self._connection.execute("REPLACE INTO snapshot VALUES (1, ?, ?, ?, ?)", snapshot)

    def check(self) -> None:
        """Refuse a file that SQLite finds damaged, or whose index does not match its rows."""
        with self._lock, _sqlite_errors(self.path):
            self._connection.execute("BEGIN")  # all of it as it is at one moment
            try:
                (said,) = self._one("PRAGMA integrity_check(1)")
                if said != "ok":
                    raise LedgerTamperedError(f"{self.path}: SQLite finds it damaged: {said}")
                if not self._index_is_right():
                    raise LedgerTamperedError(
                        f"{self.path}: the index of reservations does not match the rows: "
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
        """Close the file, and leave nothing beside it. A journal in memory stays open."""
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


class _InMemory(Journal):
    """Rows in a list, where SQLite would take longer than everything else that a plan needs."""

    def __init__(self, rows: Iterable[Row], key: bytes) -> None:
        self.durable, self.path, self.key = False, Path("a ledger in memory"), key
        self._lock = threading.RLock()
        self._read(rows)

    def _read(self, rows: Iterable[Row]) -> None:
        self._rows: list[Row] = []
        self._made: dict[str, dict[int, list[Made]]] = {}  # by run, then by round
        self._newest: dict[str, int] = {}  # the highest of these rounds, by run
        self._unsettled: set[int] = set()
        for row in rows:
            self.append(row)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        with self._lock:
            before = len(self._rows)
            try:
                yield
            except BaseException:
                if len(self._rows) > before:
                    self._read(self._rows[:before])
                raise

    def append(self, row: Row) -> None:
        if row.number != len(self._rows):
            raise LedgerTamperedError(f"{self.path}: a row exists already, or one is missing")
        if row.kind == "reserve":
            of_run = self._made.setdefault(row.run, {})
            of_run.setdefault(row.round, []).append(Made.by(row))
            self._newest[row.run] = max(row.round, self._newest.get(row.run, row.round))
            self._unsettled.add(row.number)
        elif row.kind == "settle":
            self._unsettled.discard(settled_by(named_values(row.payload)))
        self._rows.append(row)

    def rows(self, start: int = 0) -> Iterator[Row]:
        return iter(self._rows[max(start, 0) :])

    def row(self, number: int) -> Row | None:
        return self._rows[number] if 0 <= number < len(self._rows) else None

    def head_at(self, number: int) -> Head | None:
        row = self.row(number)
        return None if row is None else Head(row.number, row.hash)

    def newest(self) -> Head | None:
        return self.head_at(len(self._rows) - 1)

    def newest_round(self, run: str) -> int | None:
        return self._newest.get(run)

    def attempts(self, run: str, round_: int) -> int:
        return 1 + max((made.attempt for made in self._of(run, round_)), default=-1)

    def made_for(self, run: str, round_: int, fingerprint: bytes) -> list[Made]:
        return [made for made in self._of(run, round_) if made.fingerprint == fingerprint]

    def _of(self, run: str, round_: int) -> list[Made]:
        return self._made.get(run, {}).get(round_, [])

    def unsettled(self) -> set[int]:
        return set(self._unsettled)

    def is_unsettled(self, number: int) -> bool:
        return number in self._unsettled

    def snapshot(self) -> Snapshot | None:
        return None

    def check(self) -> None:
        """Do nothing: no one else has had the rows in hand."""

    def close(self) -> None:
        """Stay open."""


def _row(values: tuple[Any, ...]) -> Row:
    """Return a row as it was read. A damaged file gives NULL where the layout allows none."""
    if [type(value) for value in values] != [int, str, str, int, bytes, bytes]:
        raise damaged()
    return Row._make(values)


def _append(connection: sqlite3.Connection, row: Row) -> None:
    connection.execute(_INSERT, row)
    _note(connection, row)


def _note(connection: sqlite3.Connection, row: Row) -> None:
    """Store what is derived from a row."""
    connection.execute("REPLACE INTO newest VALUES (1, ?, ?)", (row.number, row.hash))
    if row.kind == "reserve":
        connection.execute("INSERT INTO reservations VALUES (?, ?, ?, ?, ?)", Made.by(row))
        connection.execute("INSERT INTO unsettled VALUES (?)", (row.number,))
    elif row.kind == "settle":
        number = settled_by(named_values(row.payload))
        connection.execute("DELETE FROM unsettled WHERE number = ?", (number,))


# ---- how a file is created, migrated and opened


def _write_new(
    connection: sqlite3.Connection, tables: str, key: bytes, rows: Iterable[Row]
) -> None:
    connection.execute("PRAGMA synchronous = FULL")
    connection.executescript(
        f"PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {SCHEMA};"
        f"BEGIN IMMEDIATE; {tables}"
    )
    connection.execute("INSERT INTO secret VALUES (?)", (key,))
    for row in rows:
        _append(connection, row)
    connection.execute("COMMIT")


def _derive(connection: sqlite3.Connection) -> None:
    """Derive everything that this schema derives from the rows again."""
    for statement in filter(str.strip, _DERIVED.split(";")):
        connection.execute(f"DROP TABLE IF EXISTS {statement.split()[2]}")
        connection.execute(statement)
    for values in connection.execute(f"{_SELECT} ORDER BY number"):
        _note(connection, _row(values))
    connection.execute(f"PRAGMA user_version = {SCHEMA}")


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Derive what schema 1 does not have, as a whole or not at all."""
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # no other process gets in between
    (mode,) = connection.execute("PRAGMA journal_mode = TRUNCATE").fetchone()
    if mode == "wal":
        raise StorageError(f"{path}: another process has it open; stop that process first")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("BEGIN EXCLUSIVE")
    _derive(connection)  # if this fails, the caller closes the connection: all is rolled back
    connection.execute("COMMIT")
    connection.execute("PRAGMA locking_mode = NORMAL")  # releases the lock at the next read


def _migrated_copy(connection: sqlite3.Connection, path: Path) -> sqlite3.Connection:
    """Return a migrated copy in memory of a file that may not be written."""
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
    """Refuse a file whose last page is cut: SQLite would read zeros there."""
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    missing = pages * size - path.stat().st_size
    if missing > 0:
        raise LedgerError(f"{path}: damaged: its last {missing} bytes are missing")


def sqlite_warning(
    *, write_ahead: bool = False, version: tuple[int, ...] = sqlite3.sqlite_version_info
) -> str | None:
    """Return a warning about the SQLite version in use, or None if there is none."""
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
    """Return a connection that changes nothing, wherever the file lies.

    A file of schema 1 is in write-ahead mode: SQLite would create files beside it in order to read
    it, unless it is told that no one writes. No one does if there is no log. After a crash in the
    middle of a write, the file cannot be read before a writer has rolled the write back.
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
        pass  # the first read gives a better message
    return connection


def in_write_ahead_mode(path: Path) -> bool:
    """Return whether an SQLite file is in write-ahead mode, as ledgers of schema 1 are."""
    try:
        with path.open("rb") as file:
            return file.read(20)[18:] == b"\2\2"
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror}") from error


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
