"""The run folder: what a run leaves behind, and how nothing in it can be half written.

::

    config.toml       every setting, the schema version, a fingerprint of the ratings
    rounds.jsonl      one line a round
    checkpoint.npz    the whole state after some round (plain arrays, no pickle)
    summary.json      the result, once the run is done
    report.html       the same to look at, once it was asked for
    .lock             held while a process writes here

Files are written beside their place, flushed to the disk, then renamed over it, so a crash leaves
the old one or the new one. Lines of ``rounds.jsonl`` past the checkpoint belong to rounds that
will be run again; resuming cuts them off.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import secrets
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

import bgtplanner
from bgtplanner.errors import RunFolderError, RunLockedError, SchemaError, StorageError
from bgtplanner.experiments.config import Config, load_config, to_toml

__all__ = ["SCHEMA", "RunFolder"]

SCHEMA = 1
"""Version of the folder's layout. Raise it with a migration, never without."""

_OWN = ("config.toml", "rounds.jsonl", "checkpoint.npz", "summary.json", "report.html", ".lock")


class RunFolder:
    """One run's folder, locked while this object is open. Use it as a context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    @classmethod
    def create(
        cls, path: Path | str, config: Config, *, fingerprint: str, overwrite: bool = False
    ) -> Self:
        """Start a new run folder and lock it.

        Raises:
            RunFolderError: If the folder is in use for something else, or cannot be written.
        """
        folder = cls(Path(path))
        with _disk_errors(folder.path):
            folder.path.mkdir(parents=True, exist_ok=True)
        folder._acquire()
        try:
            old = folder.check_free(overwrite)
            with _disk_errors(folder.path):
                for name in old:
                    (folder.path / name).unlink()
            notes = {"schema": SCHEMA, "version": bgtplanner.__version__, "data": fingerprint}
            folder._write("config.toml", to_toml(config, notes).encode())
        except BaseException:
            folder.close()
            raise
        return folder

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Open an existing run folder to go on with it, and lock it.

        Raises:
            RunFolderError: If it is no run folder.
            SchemaError: If another version wrote it.
            RunLockedError: If a process is writing to it.
        """
        folder = cls(Path(path))
        folder.notes()
        folder._acquire()
        return folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def notes(self) -> dict[str, Any]:
        """The folder's own notes: schema, version, fingerprint of the ratings."""
        file = self.path / "config.toml"
        try:
            tree = tomllib.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise RunFolderError(f"{self.path}: no run folder (it has no config.toml)") from error
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{file}: cannot be read: {error}") from error
        notes = tree.get("folder")
        schema = notes.get("schema") if isinstance(notes, dict) else None
        if not isinstance(notes, dict) or not isinstance(schema, int):
            raise SchemaError(f"{file}: has no [folder] schema; it was not written by a run")
        if schema != SCHEMA:
            age = "a newer" if schema > SCHEMA else "an older"
            raise SchemaError(
                f"{self.path}: written by {age} version (schema {schema}, version "
                f"{notes.get('version', 'unknown')}); this one reads schema {SCHEMA}. "
                f"Use that version, or run anew with --config {file}"
            )
        return notes

    def config(self) -> Config:
        """The settings of the run."""
        return load_config(file=self.path / "config.toml")

    def append_round(self, record: Mapping[str, Any]) -> None:
        """Add one line to ``rounds.jsonl``."""
        with _disk_errors(self.path / "rounds.jsonl"), self._open_rounds() as file:
            file.write(json.dumps(record) + "\n")

    def _open_rounds(self) -> io.TextIOBase:
        return (self.path / "rounds.jsonl").open("a", encoding="utf-8")

    def rounds(self) -> list[dict[str, Any]]:
        """All complete lines of ``rounds.jsonl``; a torn last line is left out."""
        try:
            text = (self.path / "rounds.jsonl").read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        records: list[dict[str, Any]] = []
        for line in text.splitlines(keepends=True):
            if not line.endswith("\n"):
                break
            try:
                record = json.loads(line)
            except ValueError as error:
                raise RunFolderError(
                    f"{self.path / 'rounds.jsonl'}, line {len(records) + 1}: not JSON"
                ) from error
            records.append(record)
        return records

    def keep_rounds(self, number: int) -> list[dict[str, Any]]:
        """Cut ``rounds.jsonl`` to the rounds before the checkpoint, and return them."""
        records = self.rounds()[:number]
        if [record.get("round") for record in records] != list(range(number)):
            raise RunFolderError(
                f"{self.path / 'rounds.jsonl'}: does not hold the {number} rounds that the "
                "checkpoint follows; the folder was changed by hand"
            )
        self._write("rounds.jsonl", "".join(json.dumps(r) + "\n" for r in records).encode())
        return records

    def write_checkpoint(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Replace the checkpoint."""
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **dict(arrays))
        self._write("checkpoint.npz", buffer.getvalue())

    def checkpoint(self) -> dict[str, NDArray[Any]] | None:
        """The last checkpoint, or None if there was none yet."""
        file = self.path / "checkpoint.npz"
        try:
            with np.load(file, allow_pickle=False) as stored:
                return {name: stored[name] for name in stored.files}
        except FileNotFoundError:
            return None
        except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
            raise RunFolderError(f"{file}: damaged or no checkpoint ({error})") from error

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write ``summary.json``: the run is done."""
        text = json.dumps(summary, indent=2, allow_nan=False) + "\n"
        self._write("summary.json", text.encode())

    def write_report(self, page: str) -> Path:
        """Write ``report.html`` and say where it is."""
        self._write("report.html", page.encode())
        return self.path / "report.html"

    def summary(self) -> dict[str, Any] | None:
        """The result, or None while the run is not done."""
        file = self.path / "summary.json"
        try:
            result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{file}: cannot be read: {error}") from error
        return result

    def _acquire(self) -> None:
        with _disk_errors(self.path):
            handle = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            raise RunLockedError(
                f"{self.path}: another process is running in this folder; wait for it, or choose "
                "another with --out"
            ) from error
        self._lock = handle

    def check_free(self, overwrite: bool) -> list[str]:
        """Names of an old run's files that may be replaced, if all is well.

        Raises:
            RunFolderError: If there is anything else in the folder, or a run that may not go.
        """
        if not self.path.is_dir():
            return []
        entries = sorted(entry.name for entry in self.path.iterdir() if entry.name != ".lock")
        foreign = [name for name in entries if name not in _OWN and not name.startswith(".tmp-")]
        if foreign:
            raise RunFolderError(
                f"{self.path}: holds other files ({', '.join(foreign[:3])}); choose an empty "
                "folder with --out"
            )
        if entries and not overwrite:
            raise RunFolderError(
                f"{self.path}: holds a run already; go on with 'bgtplanner resume {self.path}', "
                "replace it with --overwrite, or choose another with --out"
            )
        return entries

    def _write(self, name: str, content: bytes) -> None:
        """Replace a file as a whole, or leave it as it was."""
        target = self.path / name
        with _disk_errors(target):
            temporary = self.path / f".tmp-{secrets.token_hex(8)}"
            try:
                with temporary.open("xb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(target)
            except BaseException:
                with contextlib.suppress(OSError):
                    temporary.unlink()
                raise


@contextlib.contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Say what the disk said in words that help."""
    try:
        yield
    except OSError as error:
        advice = {
            errno.ENOSPC: "no space left on the disk; free some, then 'bgtplanner resume'",
            errno.EDQUOT: "the disk quota is used up; free some space, then 'bgtplanner resume'",
            errno.EACCES: "no permission to write here; choose another folder with --out",
            errno.EROFS: "the disk is read-only; choose another folder with --out",
            errno.EEXIST: "is a file, not a folder; choose another with --out",
            errno.ENOTDIR: "a part of the path is a file, not a folder; choose another with --out",
        }.get(error.errno or 0, str(error))
        raise StorageError(f"{path}: {advice}") from error
