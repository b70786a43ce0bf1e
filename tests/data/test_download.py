"""Downloads that go well, break off, or bring something else; Pooch itself is not tested here."""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import requests

from bgtplanner.data.datasets import DATASETS, fetch_dataset
from bgtplanner.errors import ConfigError, DownloadError

FETCHED = [info for info in DATASETS.values() if info.url is not None]
CONTENT = b"".join(b"%d\t%d\t3\t0\n" % (n, n * n) for n in range(40_000))


def zip_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


GOOD_ZIP = zip_of({"ml-100k/README": b"terms", "ml-100k/u.data": CONTENT})


def change(monkeypatch: pytest.MonkeyPatch, **facts: Any) -> None:
    monkeypatch.setitem(DATASETS._entries, "ml-100k", replace(DATASETS["ml-100k"], **facts))


@dataclass
class Site:
    """What the official site sends, or the error instead; and how often it was asked."""

    monkeypatch: pytest.MonkeyPatch
    body: bytes = b""
    error: Exception | None = None
    asked: int = 0

    def __call__(self, url: str, output: str, _: object) -> None:
        self.asked += 1
        if self.error is not None:
            raise self.error
        Path(output).write_bytes(self.body)

    def send(self, body: bytes, *, catalogue: str | None = None, **sha256: str) -> None:
        """Send this archive, which is the official one, by its checksum."""
        self.body = body
        checked = {"ml-100k.zip": hashlib.sha256(body).hexdigest()} | sha256
        change(self.monkeypatch, sha256=checked, catalogue=catalogue)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    found = Site(monkeypatch)
    monkeypatch.setattr("pooch.HTTPDownloader", lambda **_: found)
    monkeypatch.setattr("pooch.core.time.sleep", lambda _: None)
    found.send(GOOD_ZIP)
    return found


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "ml-100k").iterdir())


def own_file(folder: Path, name: str) -> Path:
    (folder / "ml-100k").mkdir()
    (folder / "ml-100k" / name).write_bytes(b"mine")
    return folder / "ml-100k" / name


class TestGood:
    def test_only_the_wanted_file_is_left_and_nothing_is_fetched_twice(
        self, site: Site, tmp_path: Path
    ) -> None:
        for _ in range(2):
            folder = fetch_dataset("ml-100k", tmp_path / "new")
        assert folder == tmp_path / "new" / "ml-100k"
        assert files_in(tmp_path / "new") == ["u.data"]
        assert (folder / "u.data").read_bytes() == CONTENT
        assert site.asked == 1

    @pytest.mark.parametrize("name", ["u.data", "u.data.gz"])
    def test_own_file_is_left_alone(self, site: Site, tmp_path: Path, name: str) -> None:
        own_file(tmp_path, name)
        fetch_dataset("ml-100k", tmp_path)
        assert (site.asked, files_in(tmp_path)) == (0, [name])

    def test_only_what_is_missing_is_added(self, site: Site, tmp_path: Path) -> None:
        site.send(zip_of({"u.data": b"theirs", "u.item": b"1|Toy Story"}), catalogue="u.item")
        mine = own_file(tmp_path, "u.data")
        fetch_dataset("ml-100k", tmp_path)
        assert mine.read_bytes() == b"mine"
        assert mine.with_name("u.item").read_bytes() == b"1|Toy Story"


@pytest.mark.parametrize(
    ("error", "body", "problem"),
    [
        (requests.HTTPError(response=requests.Response()), b"", "the server answers "),
        (requests.ReadTimeout(), b"", "no connection"),
        (None, zip_of({"u.data/": b""}), "has 0 files u.data"),
        (None, zip_of({"a/u.data": b"x", "b/u.data": b"y"}), "has 2 files u.data"),
        (None, GOOD_ZIP[:3000] + bytes(50) + GOOD_ZIP[3050:], "not a valid zip file"),
    ],
    ids=["answer", "timeout", "folder", "two", "damaged"],
)
def test_whatever_happens_it_says_what_to_do_and_leaves_no_half_of_a_file(
    site: Site, tmp_path: Path, error: Any, body: bytes, problem: str
) -> None:
    site.send(body)
    site.error = error
    with pytest.raises(DownloadError, match=problem) as caught:
        fetch_dataset("ml-100k", tmp_path)
    assert f"put them into {tmp_path / 'ml-100k'}" in str(caught.value)
    assert str(DATASETS["ml-100k"].url) in str(caught.value)
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("of", ["ml-100k.zip", "u.data"])
def test_a_wrong_checksum_of_the_archive_or_of_a_file(site: Site, tmp_path: Path, of: str) -> None:
    site.send(GOOD_ZIP, **{of: "0" * 64})
    with pytest.raises(DownloadError, match=rf"{of}: wrong checksum; the download was deleted"):
        fetch_dataset("ml-100k", tmp_path)
    assert files_in(tmp_path) == []


@pytest.mark.usefixtures("site")
def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "ml-100k").write_text("in the way")
    with pytest.raises(DownloadError, match="cannot write in"):
        fetch_dataset("ml-100k", tmp_path)


def test_paths_in_an_archive_do_not_count(site: Site, tmp_path: Path) -> None:
    site.send(zip_of({"../u.data": b"x"}))
    fetch_dataset("ml-100k", tmp_path / "in")
    assert files_in(tmp_path / "in") == ["u.data"]
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize("name", ["demo", "synthetic", "csv:x.csv"])
def test_nothing_to_fetch(name: str) -> None:
    with pytest.raises(ConfigError, match="nothing to fetch"):
        fetch_dataset(name)


def test_known_checksums_fit_the_real_files(data_dir: Path) -> None:
    """Of the files as published; MovieLens 1M is bound by its archive's checksum."""
    checked = 0
    for info in FETCHED:
        for file in {*info.files} & {*info.sha256}:
            path = data_dir / str(info.folder) / file
            if path.is_file():
                assert hashlib.sha256(path.read_bytes()).hexdigest() == info.sha256[file]
                checked += 1
    if not checked:
        pytest.skip("none of the files is there")
