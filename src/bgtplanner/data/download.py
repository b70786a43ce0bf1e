"""Download a data set from its official site with Pooch, and verify it.

The archive is compared with its known checksum, or else every file taken out of it is. Only the
files needed are extracted, each renamed into place when it is complete. A file that the user put
there is never touched: checksums apply to downloads only.
"""

from __future__ import annotations

import hashlib
import logging
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from bgtplanner.caches import with_home
from bgtplanner.data.datasets import Archive, data_folders, dataset_info, existing_file
from bgtplanner.errors import ConfigError, DownloadError

_RETRIES = 2
_TIMEOUT = 30.0  # seconds without a byte after which a transfer counts as broken


def fetch_dataset(
    name: str,
    data_dir: Path | str | None = None,
    *,
    url: str | None = None,
) -> Path:
    """Download a data set, unless its files are already there, and return its folder.

    Args:
        name: Data set, as for `load_ratings`.
        data_dir: Folder to put ``<set>/<file>`` into; created if needed. By default
            ``$BGTPLANNER_DATA``, else the user's cache.
        url: A mirror, https only; the checksum still applies.

    Raises:
        ConfigError: If the name is not that of a real data set, or an argument is out of range.
        DownloadError: If it cannot be downloaded; says what to do by hand.
    """
    info = dataset_info(name)
    archive = info.archive
    if info.folder is None or archive is None:
        raise ConfigError(f"dataset={name!r}: there is nothing to fetch; use it as it is")
    address = _checked_url(url or archive.url)
    folder = (data_folders()[0] if data_dir is None else with_home(data_dir)) / info.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        missing = {f: s for f, s in archive.files.items() if not existing_file(folder / f)}
        if missing.keys() & {*info.files, info.catalogue}:
            with tempfile.TemporaryDirectory(dir=folder, prefix=".fetched-") as beside:
                zipped = _downloaded(address, archive, Path(beside))
                _unpack(zipped, missing, Path(beside), archive.max_bytes)
                for file in missing:
                    (Path(beside) / file).replace(folder / file)
    except (DownloadError, OSError) as error:
        problem = str(error)
        if not isinstance(error, DownloadError):
            problem = f"cannot write in {folder}: {error.strerror or type(error).__name__}"
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


def _downloaded(url: str, archive: Archive, folder: Path) -> Path:
    """Download the archive, compare it with its checksum, and return its path."""
    import pooch
    import requests

    pooch.get_logger().setLevel(logging.WARNING)
    name = PurePosixPath(urlsplit(archive.url).path).name

    def download(address: str, path: str, _: Any) -> None:
        with requests.get(address, timeout=_TIMEOUT, stream=True) as reply:
            if reply.status_code >= 400:
                problem = f"{url}: the server answers {reply.status_code}"
                raise requests.HTTPError(problem, response=reply)
            with Path(path).open("wb") as file:
                for chunk in reply.iter_content(1 << 16):
                    if file.write(chunk) and file.tell() > archive.max_bytes:
                        problem = f"{url}: larger than the {archive.max_bytes} bytes allowed"
                        raise DownloadError(problem)

    try:
        fetcher = pooch.create(
            folder, "", registry={name: archive.sha256}, urls={name: url}, retry_if_failed=_RETRIES
        )
        return Path(fetcher.fetch(name, downloader=download))
    except requests.HTTPError as error:
        raise DownloadError(str(error)) from error
    except requests.RequestException as error:
        raise DownloadError(f"{url}: no connection ({type(error).__name__})") from error
    except ValueError as error:  # Pooch's word for another checksum
        raise DownloadError(f"{url}: wrong checksum; the download was deleted") from error


def _unpack(zipped: Path, files: Mapping[str, str | None], folder: Path, most: int) -> None:
    """Take the files out of an archive, without trusting the paths and sizes that it states."""
    try:
        with zipfile.ZipFile(zipped) as opened:
            for file, checksum in files.items():
                named = [
                    member
                    for member in opened.infolist()
                    if PurePosixPath(member.filename).name == file and not member.is_dir()
                ]
                if len(named) != 1:
                    raise DownloadError(f"the archive has {len(named)} files {file}; expected one")
                with opened.open(named[0]) as source:
                    content = source.read(most + 1)
                if len(content) > most:
                    raise DownloadError(f"{file}: unpacks to more than the {most} bytes allowed")
                if checksum not in (None, hashlib.sha256(content).hexdigest()):
                    raise DownloadError(f"{file}: wrong checksum; the download was deleted")
                (folder / file).write_bytes(content)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        # A RuntimeError stands for an encrypted archive.
        raise DownloadError("not a valid zip file; the download was deleted") from error
