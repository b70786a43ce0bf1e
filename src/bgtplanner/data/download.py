"""Download a data set from its official site with Pooch, and verify it.

The archive is compared with its known checksum, or else every file taken out of it is. Only the
files needed are kept, each renamed into place when it is complete. A file that the user put there
is never touched: checksums apply to downloads only.
"""

from __future__ import annotations

import logging
import tempfile
import zipfile
import zlib
from pathlib import Path

from bgtplanner.caches import with_home
from bgtplanner.data.datasets import Dataset, data_folders, dataset_info, existing_file
from bgtplanner.errors import ConfigError, DownloadError

_RETRIES = 2
_TIMEOUT = 30.0  # seconds without a byte after which a transfer counts as broken


def fetch_dataset(name: str, data_dir: Path | str | None = None) -> Path:
    """Download a data set, unless its files are already there, and return its folder.

    Args:
        name: Data set, as for `load_ratings`.
        data_dir: Folder to put ``<set>/<file>`` into; created if needed. By default
            ``$BGTPLANNER_DATA``, else the user's cache.

    Raises:
        ConfigError: If the name is not that of a real data set.
        DownloadError: If it cannot be downloaded; says what to do by hand.
    """
    info = dataset_info(name)
    if info.folder is None or info.url is None:
        raise ConfigError(f"dataset={name!r}: there is nothing to fetch; use it as it is")
    folder = (data_folders()[0] if data_dir is None else with_home(data_dir)) / info.folder
    wanted = [*info.files, *([info.catalogue] if info.catalogue else [])]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        missing = [file for file in wanted if not existing_file(folder / file)]
        if missing:
            with tempfile.TemporaryDirectory(dir=folder, prefix=".fetched-") as beside:
                found = _fetched(info.url, info, missing, Path(beside))
                for file, path in zip(missing, found, strict=True):
                    path.replace(folder / file)
    except (DownloadError, OSError) as error:
        problem = str(error)
        if not isinstance(error, DownloadError):
            problem = f"cannot write in {folder}: {error.strerror or type(error).__name__}"
        files = " and ".join(wanted)
        raise DownloadError(
            f"{problem}. By hand: get {info.url}, extract {files} and put them into {folder}"
        ) from error
    return folder


def _fetched(url: str, info: Dataset, files: list[str], folder: Path) -> list[Path]:
    """Download an archive into a folder, and return where these files of it are, verified."""
    import pooch
    import requests

    pooch.get_logger().setLevel(logging.WARNING)
    name = url.rpartition("/")[2]
    fetcher = pooch.create(
        folder, "", registry={name: info.sha256.get(name)}, urls={name: url},
        retry_if_failed=_RETRIES,
    )  # fmt: skip
    how = pooch.HTTPDownloader(timeout=_TIMEOUT)
    unpacked, problem = list[Path](), ""
    try:
        unpacked = [Path(of) for of in fetcher.fetch(name, pooch.Unzip(), how)]
    except requests.HTTPError as error:
        problem = f"the server answers {getattr(error.response, 'status_code', 'with an error')}"
    except requests.RequestException as error:
        problem = f"no connection ({type(error).__name__})"
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError):
        # A RuntimeError stands for an encrypted archive.
        problem = "not a valid zip file; the download was deleted"
    except ValueError:  # Pooch's word for another checksum
        problem = "wrong checksum; the download was deleted"
    if problem:  # raised here, where no connection is kept open by it
        raise DownloadError(f"{url}: {problem}")
    found = list[Path]()
    for file in files:
        named = [path for path in unpacked if path.name == file]
        if len(named) != 1:
            raise DownloadError(f"the archive has {len(named)} files {file}; expected one")
        if info.sha256.get(file) not in (None, pooch.file_hash(str(named[0]))):
            raise DownloadError(f"{file}: wrong checksum; the download was deleted")
        found += named
    return found
