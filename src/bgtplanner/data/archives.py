"""What the official archives of the data sets are, and how files are taken out of one safely."""

from __future__ import annotations

import hashlib
import stat
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from bgtplanner.errors import DownloadError

__all__ = ["ARCHIVES", "Archive", "sha256_of", "unpack"]

_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A zip file on the net.

    Attributes:
        url: Its official address.
        files: Names of the files to take out, wherever in the archive they lie, each with its
            SHA-256, or None where the archive's own is enough.
        sha256: Of the archive, if known.
        max_bytes: No archive and no file in it may be larger; stops zip bombs.
    """

    url: str
    files: Mapping[str, str | None]
    sha256: str | None = None
    max_bytes: int = 64 << 20


ARCHIVES: dict[str, Archive] = {
    "filmtrust": Archive(
        url="https://guoguibing.github.io/librec/datasets/filmtrust.zip",
        files={
            "ratings.txt": "241167424e24d588e8871d68641e94ead98d5b3a4f0db01ef3181a74ad35e7a1",
            "trust.txt": "64573a033add72b988a0fb140fdbc0ad3464cb9821f940007aff6fda44b09603",
        },
    ),
    "ml-100k": Archive(
        url="https://files.grouplens.org/datasets/movielens/ml-100k.zip",
        files={"u.data": "06416e597f82b7342361e41163890c81036900f418ad91315590814211dca490"},
        sha256="50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229",
    ),
    "ml-1m": Archive(
        url="https://files.grouplens.org/datasets/movielens/ml-1m.zip",
        files={"ratings.dat": None},
        sha256="a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
    ),
}
"""Where the data sets' folders are filled from."""


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def unpack(zipped: Path, folder: Path, archive: Archive) -> None:
    """Take the wanted files out of a zip file and delete it.

    All of them are complete and checked before the first is renamed into place, so that another
    process never sees half a file. If the disk is full the zip file stays, to go on from there.

    Raises:
        DownloadError: If the archive is damaged, unsafe or has the wrong content.
    """
    unpacked = {file: folder / f".{file}.part" for file in archive.files}
    try:
        with zipfile.ZipFile(zipped) as opened:
            for file, path in unpacked.items():
                _take_out(opened, _member(opened, file), path, archive.max_bytes)
                expected = archive.files[file]
                if expected is not None and sha256_of(path) != expected:
                    raise DownloadError(f"{file}: wrong checksum; what was fetched was deleted")
        for file, path in unpacked.items():
            path.replace(folder / file)
        zipped.unlink()
    except DownloadError:
        zipped.unlink()
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        zipped.unlink()  # RuntimeError: encrypted
        raise DownloadError("not a sound zip file; what was fetched was deleted") from error
    finally:
        for path in unpacked.values():
            path.unlink(missing_ok=True)


def _member(opened: zipfile.ZipFile, file: str) -> zipfile.ZipInfo:
    """The archive's entry of that name. It never decides where the file is written."""
    named = [m for m in opened.infolist() if PurePosixPath(m.filename).name == file]
    if len(named) != 1:
        raise DownloadError(f"the archive has {len(named)} files {file}; expected one")
    path = PurePosixPath(named[0].filename)
    if path.is_absolute() or ".." in path.parts or "\\" in named[0].filename:
        raise DownloadError(f"the archive holds {file} under an unsafe path")
    if named[0].is_dir() or stat.S_ISLNK(named[0].external_attr >> 16):
        raise DownloadError(f"{file} is a link or a folder in the archive; expected a file")
    return named[0]


def _take_out(
    opened: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path, max_bytes: int
) -> None:
    """Copy, counting: what the archive says about its sizes is not to be trusted."""
    copied = 0
    with opened.open(member) as source, target.open("wb") as file:
        while chunk := source.read(_CHUNK_BYTES):
            copied += len(chunk)
            if copied > max_bytes:
                raise DownloadError(
                    f"{PurePosixPath(member.filename).name}: unpacks to more than the "
                    f"{max_bytes} bytes allowed"
                )
            file.write(chunk)
