"""Download a data set from its official site, and verify it.

The archive is streamed to a ``.part`` file that a later attempt resumes, and compared with a known
checksum. Only the files needed are extracted, each renamed into place when complete. A file that
the user put there is never touched: checksums apply to downloads only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import http.client
import stat
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from bgtplanner.caches import with_home
from bgtplanner.data.datasets import Archive, data_folders, dataset_info, existing_file
from bgtplanner.errors import ConfigError, DownloadError

__all__ = ["fetch_dataset"]

_CHUNK_BYTES = 1 << 16
_RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
_Progress = Callable[[int, int | None], None]


class _BrokenTransferError(Exception):
    """The transfer failed in a way that another attempt may fix."""


def fetch_dataset(
    name: str,
    data_dir: Path | str | None = None,
    *,
    on_progress: _Progress = lambda _done, _total: None,
    url: str | None = None,
    attempts: int = 5,
    timeout: float = 30.0,
    backoff: float = 1.0,
) -> Path:
    """Download a data set, unless its files are already there, and return its folder.

    Two calls at once are safe: the second waits for the first and finds the files.

    Args:
        name: Data set, as for `load_ratings`.
        data_dir: Folder to put ``<set>/<file>`` into; created if needed. By default
            ``$BGTPLANNER_DATA``, else the user's cache.
        on_progress: Called with the bytes received so far and the total, if known.
        url: A mirror, https only; the checksum still applies.
        attempts: How often to try in total. A broken transfer is resumed where it broke.
        timeout: Seconds without a byte after which a transfer counts as broken.
        backoff: Seconds before the second attempt; doubled after each one.

    Raises:
        ConfigError: If the name is not that of a real data set, or an argument is out of range.
        DownloadError: If it cannot be downloaded; says what to do by hand.
    """
    info = dataset_info(name)
    archive = info.archive
    if info.folder is None or archive is None:
        raise ConfigError(f"dataset={name!r}: there is nothing to fetch; use it as it is")
    if attempts < 1 or not timeout > 0 or not backoff >= 0:
        raise ConfigError("expected attempts >= 1, timeout > 0 and backoff >= 0")
    address = _checked_url(url or archive.url)
    root = data_folders()[0] if data_dir is None else with_home(data_dir)
    folder = root / info.folder
    part = folder / (PurePosixPath(urlsplit(archive.url).path).name + ".part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _lock(root / f".{info.folder}.lock"):
            missing = {f: s for f, s in archive.files.items() if not existing_file(folder / f)}
            if missing.keys() & {*info.files, info.catalogue}:
                for attempt in range(attempts):
                    try:
                        _transfer(address, part, archive.max_bytes, on_progress, timeout)
                        break
                    except _BrokenTransferError as error:
                        if attempt == attempts - 1:
                            problem = f"{address}: gave up after {attempts} attempts: {error}"
                            raise DownloadError(problem) from error
                        time.sleep(backoff * 2**attempt)
                _unpack(part, folder, replace(archive, files=missing), address)
    except (DownloadError, OSError) as error:
        problem = str(error)
        if isinstance(error, OSError):
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            what = "the disk is full" if full else error.strerror or type(error).__name__
            problem = f"cannot write in {folder}: {what}"
        files = " and ".join(archive.files)
        raise DownloadError(
            f"{problem}. By hand: get {archive.url}, extract {files} and put them into {folder}"
        ) from error
    return folder


def _checked_url(url: str) -> str:
    parts = urlsplit(url)
    local = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "::1", "localhost")
    if not (parts.scheme == "https" or local) or not parts.hostname:
        raise ConfigError(f"url={url!r}: expected an https address")
    return url


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Lock out other processes; the system releases the lock when its holder dies."""
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows a redirect only to an address that is allowed itself."""

    def redirect_request(self, req: Any, fp: Any, *rest: Any) -> Any:
        try:
            _checked_url(rest[-1])
        except ConfigError:
            raise DownloadError(f"{req.full_url} redirects to an address without https") from None
        return super().redirect_request(req, fp, *rest)


def _transfer(
    url: str, part: Path, max_bytes: int, on_progress: _Progress, timeout: float
) -> None:
    """Make one attempt to fill `part`; raise `_BrokenTransferError` if another may help."""
    had = part.stat().st_size if part.exists() else 0
    # The scheme was checked by _checked_url.
    request = urllib.request.Request(url, headers={"User-Agent": "bgtplanner"})  # noqa: S310
    if had:
        request.add_header("Range", f"bytes={had}-")
    try:
        with urllib.request.build_opener(_SafeRedirects()).open(request, timeout=timeout) as reply:
            begun = reply.headers.get("Content-Range", "").startswith(f"bytes {had}-")
            if reply.status == 206 and not begun:
                part.unlink()
                raise _BrokenTransferError("the server sent a different part than requested")
            had = had if reply.status == 206 else 0
            length = reply.headers.get("Content-Length", "")
            total = had + int(length) if length.isdigit() else None
            with part.open("ab" if had else "wb") as file:
                while True:
                    if had > max_bytes or (total or 0) > max_bytes:
                        raise DownloadError(f"{url}: larger than the {max_bytes} bytes allowed")
                    on_progress(had, total)
                    try:  # a network error must not look like a disk error
                        chunk = reply.read(_CHUNK_BYTES)
                    except (http.client.HTTPException, OSError) as error:
                        problem = f"the connection broke ({type(error).__name__})"
                        raise _BrokenTransferError(problem) from error
                    if not chunk:
                        break
                    file.write(chunk)
                    had += len(chunk)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and had:  # nothing left to send: it is complete, or another file
            if error.headers.get("Content-Range", "").endswith(f"/{had}"):
                return
            part.unlink()
            raise _BrokenTransferError("the server has no such part") from error
        if error.code in _RETRIED:
            raise _BrokenTransferError(f"the server answers {error.code}") from error
        raise DownloadError(f"{url}: the server answers {error.code} {error.reason}") from error
    except (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError) as e:
        raise _BrokenTransferError(f"no connection ({getattr(e, 'reason', e)})") from e
    if total is not None and had < total:
        raise _BrokenTransferError(f"the connection broke after {had} of {total} bytes")


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unpack(zipped: Path, folder: Path, archive: Archive, url: str) -> None:
    """Verify a zip file, extract the wanted files and delete it.

    All files are complete and checked before the first is renamed into place, so that another
    process never sees half a file. If the disk is full, the zip file is kept for the next attempt.
    """
    unpacked = {file: folder / f".{file}.part" for file in archive.files}
    try:
        if archive.sha256 is not None and (found := _sha256_of(zipped)) != archive.sha256:
            raise DownloadError(
                f"{url}: wrong checksum; the part file was deleted. "
                f"Expected SHA-256 {archive.sha256}, found {found}"
            )
        with zipfile.ZipFile(zipped) as opened:
            for file, path in unpacked.items():
                _take_out(opened, file, path, archive.max_bytes)
                expected = archive.files[file]
                if expected is not None and _sha256_of(path) != expected:
                    raise DownloadError(f"{file}: wrong checksum; the download was deleted")
        for file, path in unpacked.items():
            path.replace(folder / file)
        zipped.unlink()
    except DownloadError:
        zipped.unlink()
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        zipped.unlink()  # RuntimeError: encrypted
        raise DownloadError("not a valid zip file; the download was deleted") from error
    finally:
        for path in unpacked.values():
            path.unlink(missing_ok=True)


def _take_out(opened: zipfile.ZipFile, file: str, target: Path, max_bytes: int) -> None:
    """Extract one file, without trusting the path or the size that the archive states."""
    named = [m for m in opened.infolist() if PurePosixPath(m.filename).name == file]
    if len(named) != 1:
        raise DownloadError(f"the archive has {len(named)} files {file}; expected one")
    path = PurePosixPath(named[0].filename)
    if path.is_absolute() or ".." in path.parts or "\\" in named[0].filename:
        raise DownloadError(f"the archive holds {file} under an unsafe path")
    if named[0].is_dir() or stat.S_ISLNK(named[0].external_attr >> 16):
        raise DownloadError(f"{file} is a link or a folder in the archive; expected a file")
    copied = 0
    with opened.open(named[0]) as source, target.open("wb") as copy:
        while chunk := source.read(_CHUNK_BYTES):
            copied += len(chunk)
            if copied > max_bytes:
                problem = f"unpacks to more than the {max_bytes} bytes allowed"
                raise DownloadError(f"{file}: {problem}")
            copy.write(chunk)
