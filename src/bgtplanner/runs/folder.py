"""The run folder: the files of a run, none of which is ever half written.

::

    config.toml       every setting, the schema version, a fingerprint of the ratings, and what is
                      known before the first round
    rounds.jsonl      one line per round
    checkpoint.npz    the whole state after some round (plain arrays, no pickle); it holds what
                      clients keep to themselves, and goes when the run is done
    run.model         the model that was learned, once the run is done
    ledger.sqlite     who has spent how much; written before anything is released
    summary.json      the result, once the run is done
    examples.json     the lists of a few users, for the report of a simulation
    clients.json      for a run on real machines: its name, and a hash of each client's name
    report.html       the report, once it was requested
    .lock             locked while a process writes here

A file is written under a temporary name, flushed to the disk and then renamed, so that a crash
leaves either the old file or the new one. Lines of ``rounds.jsonl`` after the checkpoint belong to
rounds that will be run again; resuming cuts them off. Whatever is read has a size limit, and is
checked (:mod:`bgtplanner.runs.record`) before it is used.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import os
import platform
import shlex
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

import bgtplanner
from bgtplanner.durable import replace_file
from bgtplanner.errors import RunFolderError, RunLockedError, SchemaError, StorageError, quoted
from bgtplanner.runs import record as schemas
from bgtplanner.runs.config import Config, load_config, to_toml
from bgtplanner.text import MOST_BYTES_OF_ROUNDS, MOST_BYTES_OF_SETTINGS, read_bytes, visible

MODEL = "run.model"
"""The name of the model file in a folder."""

_OWN = {"config.toml", "rounds.jsonl", "checkpoint.npz", "report.html", MODEL, "ratings.npz"}
_OWN |= {f"ledger.sqlite{end}" for end in ("", "-journal", "-wal", "-shm")}
_OWN |= {".lock", *schemas.KINDS}
_BY_HAND = (
    "the folder was changed by hand: bring back the files that belong together, or run it again"
)


class RunFolder:
    """The folder of one run, locked while this object is open. Use it as a context manager."""

    def __init__(self, path: Path) -> None:
        if "\0" in str(path):
            raise RunFolderError(f"{str(path)!r}: holds a zero byte; choose another name")
        self.path = path
        self._lock: int | None = None

    @classmethod
    def create(
        cls,
        path: Path | str,
        config: Config,
        *,
        overwrite: bool = False,
        **noted: bool | str | Mapping[str, Any],
    ) -> Self:
        """Start a new run folder, lock it, and write down what is to be `noted`.

        That is whether it is ``deployed`` to real machines, the mark of its ``data``, with the
        ``key`` of it, that of its ``people``, and the ``facts`` known before the first round.
        """
        folder = cls(Path(path))
        folder.check_free(overwrite)  # before anything is written there
        with _disk_errors(folder.path):
            folder.path.mkdir(parents=True, exist_ok=True)
        folder._acquire()
        try:
            with _disk_errors(folder.path):
                for name in folder.check_free(overwrite):
                    (folder.path / name).unlink()
            versions = {
                name: metadata.version(name) for name in ("jax", "numpy", "optax", "scipy")
            }
            notes: dict[str, Any] = {
                "schema": schemas.SCHEMA,
                "version": bgtplanner.__version__,
                "versions": {"Python": platform.python_version()} | versions,
                **{name: value for name, value in noted.items() if value},
            }
            folder._replace("config.toml", to_toml(config, notes))
        except BaseException:
            folder.close()
            raise
        return folder

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Open an existing run folder to resume the run, and lock it."""
        folder = cls(Path(path))
        folder.notes()
        folder._acquire()
        with _disk_errors(folder.path):
            for left in folder.path.glob(".tmp-*"):  # left behind by a process that was killed
                left.unlink(missing_ok=True)
        return folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _acquire(self) -> None:
        with _disk_errors(self.path):
            self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BaseException:
                self.close()
                raise

    def in_use(self) -> bool:
        """Whether a run is going on in this folder, here or in another process."""
        try:
            with (self.path / ".lock").open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return isinstance(error, BlockingIOError)
        return False

    def check_free(self, overwrite: bool) -> list[str]:
        """Return the names of the files of an old run; refuse to replace any others."""
        with _disk_errors(self.path):
            there = self.path.iterdir() if self.path.exists() else ()
            names = sorted(entry.name for entry in there if entry.name != ".lock")
        foreign = [name for name in names if name not in _OWN and not name.startswith(".tmp-")]
        if foreign:
            other = f"holds other files ({', '.join(foreign[:3])})"
            raise RunFolderError(f"{self.path}: {other}; choose an empty folder with --out")
        if not overwrite and any(name in _OWN for name in names):
            raise RunFolderError(
                f"{self.path}: already holds a run; replace it with --overwrite, choose another "
                f"with --out, or continue with: {self.resume_command}"
            )
        return names

    def notes(self) -> dict[str, Any]:
        """Return the folder's own notes: schema, version, fingerprint of the ratings."""
        file = self.path / "config.toml"
        if (self.path / "study.json").exists():
            tables = "bgtplanner.load_study reads it, and 'bgtplanner compare --out' prints it"
            raise RunFolderError(f"{self.path}: holds a study; {tables}")
        try:
            tree = tomllib.loads(read_bytes(file, MOST_BYTES_OF_SETTINGS).decode())
        except (FileNotFoundError, NotADirectoryError) as error:
            none = "not a run folder (it has no config.toml); give one of 'bgtplanner run --out'"
            raise RunFolderError(f"{self.path}: {none}") from error
        except (OSError, ValueError, RecursionError) as error:
            raise RunFolderError(f"{file}: cannot be read: {error}; run it again") from error
        notes = tree.get("folder")
        if not isinstance(notes, dict) or "schema" not in notes:
            run = "it was not written by a run: give it to 'bgtplanner run --config'"
            raise SchemaError(f"{file}: has no [folder] schema; {run}")
        version = visible(notes.get("version") or "unknown")[:40]
        if notes["schema"] != schemas.SCHEMA or version.startswith("0.1."):
            other = f"schema {quoted(notes['schema'])}, version {version}"
            ours = f"this one reads schema {schemas.SCHEMA} of 0.2 and later"
            raise SchemaError(
                f"{self.path}: written by another version ({other}); {ours}. Use that version, or "
                f"run again with --config {file}"
            )
        schemas.check(schemas.NOTES, f"{file}, [folder]", notes)
        schemas.check(schemas.SUMMARY, f"{file}, [folder] facts", notes.get("facts", {}))
        return notes

    @property
    def deployed(self) -> bool:
        """Whether the run is on real machines; not if the folder's notes cannot be read."""
        with contextlib.suppress(RunFolderError):
            return self.notes().get("deployed") is True
        return False

    @property
    def resume_command(self) -> str:
        """The command that continues the run in this folder."""
        if self.deployed:
            return "flwr run APP SUPERLINK, with the app folder that it was started from"
        return f"bgtplanner resume {shlex.quote(str(self.path))}"

    def config(self) -> Config:
        """Return the settings of the run."""
        return load_config(file=self.path / "config.toml")

    def forget(self) -> None:
        """Delete from a finished folder what only resuming needs, and what shows the ratings.

        That are the checkpoint, which holds all clients' own state, and the mark of the ratings.
        Folders of 0.2 are left as they are: nothing else in them says what was learned.
        """
        notes = self.notes()
        if "key" in notes:
            kept = {name: of for name, of in notes.items() if name not in ("data", "key")}
            (self.path / "checkpoint.npz").unlink(missing_ok=True)
            self._replace("config.toml", to_toml(self.config(), kept))

    def _needed(self) -> str:
        """The signs of the keys that this run's summary and rounds must have."""
        return "!" + "~%" * (not self.deployed) + "$" * self.config().private

    def append_round(self, record: Mapping[str, Any]) -> None:
        """Add one line to ``rounds.jsonl``."""
        with _disk_errors(file := self.path / "rounds.jsonl"), file.open("a") as lines:
            lines.write(json.dumps(record) + "\n")

    def rounds(self, first: int | None = None) -> list[dict[str, Any]]:
        """Return the first records in ``rounds.jsonl``, or all but an incomplete last line."""
        file, signs = self.path / "rounds.jsonl", self._needed()
        lines = (_bytes(file, MOST_BYTES_OF_ROUNDS) or b"").split(b"\n")[:-1]
        records: list[dict[str, Any]] = []
        for index, line in enumerate(lines[:first]):
            where = f"{file}, line {index + 1}"
            record = schemas.object_in(where, line, schemas.ROUND, signs)
            if (number := record["round"]) != index:
                wrong = f"is round {number}, and {index} was expected; {_BY_HAND}"
                raise RunFolderError(f"{where}: {wrong}")
            records.append(record)
        return records

    def keep_rounds(self, number: int) -> list[dict[str, Any]]:
        """Cut ``rounds.jsonl`` to the rounds before the checkpoint, and return them."""
        records = self.rounds(number)  # later lines, left by a crash, do not matter
        if len(records) != number:
            wrong = f"does not hold the {number} rounds before the checkpoint; {_BY_HAND}"
            raise RunFolderError(f"{self.path / 'rounds.jsonl'}: {wrong}")
        self._replace("rounds.jsonl", "".join(json.dumps(r) + "\n" for r in records))
        return records

    def write_checkpoint(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Replace the checkpoint, after flushing the rounds before it to the disk."""
        with _disk_errors(file := self.path / "rounds.jsonl"), file.open("a") as lines:
            os.fsync(lines.fileno())
        with _disk_errors(target := self.path / "checkpoint.npz"):
            write_arrays(target, arrays)

    def checkpoint(self) -> dict[str, NDArray[Any]] | None:
        """Return the last checkpoint, or None if there is none yet."""
        return read_arrays(self.path / "checkpoint.npz")

    def summary(self) -> dict[str, Any] | None:
        """Return the whole result of a finished run, or None while it is not done."""
        return self.read("summary.json", self._needed())

    def read(self, name: str, signs: str = "") -> dict[str, Any] | None:
        """Return the object in a JSON file, after a check; None if there is no such file."""
        content = _bytes(file := self.path / name, MOST_BYTES_OF_SETTINGS)
        kind = schemas.KINDS[name]
        return None if content is None else schemas.object_in(file, content, kind, signs)

    def write(self, name: str, found: Mapping[str, Any]) -> None:
        """Write the object of a JSON file; with ``summary.json`` the run is done."""
        self._replace(name, json.dumps(found, indent=2, allow_nan=False) + "\n")

    def _replace(self, name: str, content: str) -> None:
        """Replace a file atomically."""
        with _disk_errors(target := self.path / name):
            replace_file(target, content.encode())


def _bytes(file: Path, most: int) -> bytes | None:
    """Return what is in a file; None if there is none."""
    try:
        return read_bytes(file, most)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunFolderError(f"{file}: cannot be read: {error}") from error


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Replace a file of arrays that only its owner can read: clients' own state is among them."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **dict(arrays))
    replace_file(path, buffer.getvalue(), private=True)


def read_arrays(path: Path) -> dict[str, NDArray[Any]] | None:
    """Return the arrays in a file; None if there is no such file. Nothing in it is run."""
    try:
        with zipfile.ZipFile(path) as archive:
            # Ours are not compressed; a compressed one could expand without limit.
            if any(entry.compress_type for entry in archive.infolist()):
                raise ValueError("it is compressed")
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        if not all(isinstance(array, np.ndarray) for array in arrays.values()):
            raise ValueError("it does not hold arrays only")
    except FileNotFoundError:
        return None
    except Exception as error:  # a damaged file makes the reader fail in many ways
        raise RunFolderError(
            f"{path}: damaged, or not a checkpoint ({error}); delete it to begin anew"
        ) from error
    return arrays


def write_whole(path: Path, text: str) -> None:
    """Replace a text file atomically."""
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise StorageError.of(path, error, "give the same command again") from error


@contextlib.contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into an error that says what to do."""
    try:
        yield
    except BlockingIOError as error:
        busy = "another process is running in this folder; wait for it"
        raise RunLockedError(f"{path}: {busy}, or choose another with --out") from error
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTDIR):
            raise RunFolderError(
                f"{path}: is a file, not a folder, or below one; choose another with --out"
            ) from error
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        then = "'bgtplanner resume'" if full else "choose another folder with --out"
        raise StorageError.of(path, error, then) from error
