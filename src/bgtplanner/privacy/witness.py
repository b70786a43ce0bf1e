"""A witness that remembers the heads of a ledger: a file on another disk or host.

A ledger that was cut, or replaced by a backup, is still a valid chain. Only someone who remembers
a later row can detect the loss. Every head is appended to the witness before its reservation is
granted. Keep the file where those who can change the ledger cannot change it: on a mounted share,
in a write-once store, or with the append-only attribute (``chattr +a``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from bgtplanner.errors import LedgerError, StorageError
from bgtplanner.privacy._rows import Head


class Witness:
    """A file with one line per head: the time, and NUMBER:HASH.

    The first line creates it. Its folder must exist: a disk that is not mounted is noticed.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def append(self, head: Head) -> None:
        """Append a head; the line is on the disk when this returns."""
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
        """Return the newest head, or None if there is none."""
        with self._errors():
            if not self.path.exists():
                return None
            found = self.heads()
            if not found and self.path.stat().st_size:
                raise LedgerError(f"{self.path}: expected lines with a time and NUMBER:HASH")
            return found[-1] if found else None

    def heads(self) -> list[Head]:
        """Return all heads, oldest first, without lines torn by a crash."""
        return [head for _, head in self.entries()]

    def entries(self) -> list[tuple[str, Head]]:
        """Return all heads with their times, oldest first, without lines torn by a crash."""
        found = []
        with self._errors():
            for line in self.path.read_bytes().split(b"\n")[:-1]:
                time, _, head = line.decode("ascii", "replace").partition(" ")
                with contextlib.suppress(LedgerError):
                    found.append((time, Head.parse(head)))
        return found

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            then = "is the disk of the witness mounted?"
            raise StorageError.of(self.path, error, then) from error
