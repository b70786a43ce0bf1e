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
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from bgtplanner.caches import with_home
from bgtplanner.data.datasets import Dataset, data_folders, dataset_info, existing_file
from bgtplanner.errors import ConfigError, DownloadError

_RETRIES = 2
_MOST_BYTES = 64 << 20  # of an unpacked file; stops zip bombs
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
    if info.folder is None or info.url is None:
        raise ConfigError(f"dataset={name!r}: there is nothing to fetch; use it as it is")
    address = url or info.url
    parts = urlsplit(address)
    local = parts.scheme == "http" and parts.hostname in ("127.0.0.1", "::1", "localhost")
    secure = parts.scheme == "https" or local
    ConfigError.unless(secure and bool(parts.hostname), "url", address, "an https address")
    folder = (data_folders()[0] if data_dir is None else with_home(data_dir)) / info.folder
    wanted = [*info.files, *([info.catalogue] if info.catalogue else [])]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        missing = [file for file in wanted if not existing_file(folder / file)]
        if missing:
            with tempfile.TemporaryDirectory(dir=folder, prefix=".fetched-") as beside:
                _unpack(_downloaded(address, info, Path(beside)), missing, info, Path(beside))
                for file in missing:
                    (Path(beside) / file).replace(folder / file)
    except (DownloadError, OSError) as error:
        problem = str(error)
        if not isinstance(error, DownloadError):
            problem = f"cannot write in {folder}: {error.strerror or type(error).__name__}"
        files = " and ".join(wanted)
        raise DownloadError(
            f"{problem}. By hand: get {info.url}, extract {files} and put them into {folder}"
        ) from error
    return folder


def _downloaded(url: str, info: Dataset, folder: Path) -> Path:
    """Download the archive, compare it with its checksum, and return its path."""
    import pooch
    import requests

    pooch.get_logger().setLevel(logging.WARNING)
    name = PurePosixPath(urlsplit(str(info.url)).path).name
    fetcher = pooch.create(
        folder,
        "",
        registry={name: info.sha256.get(name)},
        urls={name: url},
        retry_if_failed=_RETRIES,
    )
    try:
        return Path(fetcher.fetch(name, downloader=pooch.HTTPDownloader(timeout=_TIMEOUT)))
    except requests.HTTPError as error:
        problem = f"the server answers {getattr(error.response, 'status_code', 'with an error')}"
    except requests.RequestException as error:
        problem = f"no connection ({type(error).__name__})"
    except ValueError:  # Pooch's word for another checksum
        problem = "wrong checksum; the download was deleted"
    raise DownloadError(f"{url}: {problem}")


def _unpack(zipped: Path, files: Sequence[str], info: Dataset, folder: Path) -> None:
    """Take the files out of an archive, wherever in it they are, if they are what they must be."""
    try:
        with zipfile.ZipFile(zipped) as opened:
            for file in files:
                named = [of for of in opened.infolist() if of.filename.rpartition("/")[2] == file]
                if len(named) != 1:
                    raise DownloadError(f"the archive has {len(named)} files {file}; expected one")
                if named[0].file_size > _MOST_BYTES:  # no more than what it states is unpacked
                    raise DownloadError(f"{file}: unpacks to more than {_MOST_BYTES:,} bytes")
                content = opened.read(named[0])
                found = hashlib.sha256(content).hexdigest()
                if info.sha256.get(file, found) != found:
                    raise DownloadError(f"{file}: wrong checksum; the download was deleted")
                (folder / file).write_bytes(content)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        # A RuntimeError stands for an encrypted archive.
        raise DownloadError("not a valid zip file; the download was deleted") from error
