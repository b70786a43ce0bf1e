"""Somebody elsewhere who remembers the heads of a ledger: a file on another disk or host.

A ledger that was cut, or replaced by a backup, is a whole chain still: only who remembers a later
row can tell. A witness is told every head before the reservation is granted, in a file to which
lines are only ever added. Put it where whoever can change the ledger cannot change it: a mounted
share, a write-once store, a file with the append-only attribute (``chattr +a``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from bgtplanner.errors import LedgerError, StorageError
from bgtplanner.privacy._journal import Head

__all__ = ["Witness"]

_LINE = 200  # no line of ours is as long


class Witness:
    """A file with one line for each head: when it was told, and NUMBER:HASH.

    Args:
        path: The file. It is made by the first line; its folder has to be there, so that a disk
            that is not mounted is noticed.

    Example:
        >>> import tempfile
        >>> witness = Witness(Path(tempfile.mkdtemp()) / "heads.txt")
        >>> witness.newest() is None
        True
        >>> witness.append(Head(3, bytes(32)))
        >>> witness.newest().number
        3
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def append(self, head: Head) -> None:
        """Add a line; it is on the disk when this returns."""
        line = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {head}\n".encode()
        with self._errors():
            handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                size = os.fstat(handle).st_size
                if size and os.pread(handle, 1, size - 1) != b"\n":  # torn by a crash
                    line = b"\n" + line
                if os.write(handle, line) != len(line):
                    raise StorageError(f"{self.path}: a line was cut off; is the disk full?")
                os.fsync(handle)
            finally:
                os.close(handle)

    def newest(self) -> Head | None:
        """The head that was told last; None if none was. Reads the end of the file only."""
        with self._errors():
            try:
                with self.path.open("rb") as file:
                    size = file.seek(0, os.SEEK_END)
                    file.seek(max(0, size - 4 * _LINE))
                    end = file.read()
            except FileNotFoundError:
                return None
        found = _heads_in(end)
        if end and not found:
            raise LedgerError(f"{self.path}: expected lines with a time and NUMBER:HASH")
        return found[-1] if found else None

    def heads(self) -> list[Head]:
        """All heads that were told, oldest first; a line torn by a crash is left out."""
        with self._errors():
            return _heads_in(self.path.read_bytes())

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            then = "is the disk of the witness there?"
            raise StorageError.of(self.path, error, then) from error


def _heads_in(content: bytes) -> list[Head]:
    """The heads in whole lines; a line torn by a crash has none."""
    found = []
    for line in content.split(b"\n")[:-1]:
        _, _, text = line.decode("ascii", errors="replace").partition(" ")
        with contextlib.suppress(LedgerError):
            found.append(Head.parse(text))
    return found
