"""Downloads against a server on this machine that can misbehave in every way we know."""

from __future__ import annotations

import errno
import hashlib
import io
import re
import socket
import stat
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from bgtplanner.data import download
from bgtplanner.data.datasets import DATASETS, Archive
from bgtplanner.data.download import fetch_dataset
from bgtplanner.errors import ConfigError, DownloadError

ARCHIVES = {
    info.folder: info.archive
    for info in (DATASETS[name] for name in DATASETS)
    if info.folder is not None and info.archive is not None
}
CONTENT = b"".join(b"%d\t%d\t3\t0\n" % (n, n * n) for n in range(40_000))


def zip_of(files: dict[str, bytes], links: tuple[str, ...] = ()) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = (stat.S_IFLNK if name in links else stat.S_IFREG) << 16
            archive.writestr(info, content)
    return buffer.getvalue()


GOOD_ZIP = zip_of({"ml-100k/README": b"terms", "ml-100k/u.data": CONTENT})


@dataclass
class Server:
    """What the server sends, how it misbehaves, and what it was asked."""

    url: str = ""
    body: bytes = GOOD_ZIP
    ranges: bool = True
    lengths: bool = True
    break_after: list[int] = field(default_factory=list)  # bytes sent by the first replies
    statuses: list[int] = field(default_factory=list)  # of the first replies
    redirect: str | None = None
    wrong_range: bool = False
    asked: list[str | None] = field(default_factory=list)  # the Range of each request


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Tests are quiet."""

        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            state.asked.append(asked)
            if state.statuses:
                self.send_error(state.statuses.pop(0))
                return
            if state.redirect is not None and self.path != "/moved.zip":
                self.send_response(302)
                self.send_header("Location", state.redirect)
                self.end_headers()
                return
            start = 0
            if state.ranges and asked is not None:
                start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1])  # type: ignore[index]
                if start >= len(state.body):
                    self.send_response(416)
                    self.send_header("Content-Range", f"bytes */{len(state.body)}")
                    self.end_headers()
                    return
                self.send_response(206)
                said = 0 if state.wrong_range else start
                end = len(state.body)
                self.send_header("Content-Range", f"bytes {said}-{end - 1}/{end}")
                state.wrong_range = False
            else:
                self.send_response(200)
            rest = state.body[start:]
            if state.lengths:
                self.send_header("Content-Length", str(len(rest)))
            self.end_headers()
            self.wfile.write(rest[: state.break_after.pop(0)] if state.break_after else rest)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        state.url = f"http://127.0.0.1:{http.server_address[1]}/ml-100k.zip"
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        bind(monkeypatch, state.body)
        yield state
        http.shutdown()
        thread.join()


def bind(monkeypatch: pytest.MonkeyPatch, body: bytes, **changes: Any) -> None:
    """Make the body of the server the official one, by its checksum."""
    checked = {"sha256": hashlib.sha256(body).hexdigest(), "files": {"u.data": None}} | changes
    found_at(monkeypatch, "ml-100k", replace(ARCHIVES["ml-100k"], **checked))


def found_at(monkeypatch: pytest.MonkeyPatch, name: str, archive: Archive) -> None:
    monkeypatch.setitem(DATASETS._entries, name, replace(DATASETS[name], archive=archive))


def fetch(server: Server, folder: Path, **options: Any) -> Path:
    return fetch_dataset("ml-100k", folder, **({"url": server.url, "backoff": 0.0} | options))


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "ml-100k").iterdir())


def part_of(folder: Path) -> Path:
    (folder / "ml-100k").mkdir(parents=True, exist_ok=True)
    return folder / "ml-100k" / "ml-100k.zip.part"


class TestGood:
    def test_only_the_wanted_file_is_left(self, server: Server, tmp_path: Path) -> None:
        seen: list[tuple[int, int | None]] = []
        folder = fetch(server, tmp_path / "new", on_progress=lambda *step: seen.append(step))
        assert folder == tmp_path / "new" / "ml-100k"
        assert files_in(tmp_path / "new") == ["u.data"]
        assert (folder / "u.data").read_bytes() == CONTENT
        assert seen[0] == (0, len(GOOD_ZIP))
        assert seen[-1] == (len(GOOD_ZIP), len(GOOD_ZIP))

    def test_nothing_is_fetched_twice(self, server: Server, tmp_path: Path) -> None:
        fetch(server, tmp_path)
        fetch(server, tmp_path)
        assert len(server.asked) == 1

    @pytest.mark.parametrize("name", ["u.data", "u.data.gz"])
    def test_own_file_is_left_alone(self, server: Server, tmp_path: Path, name: str) -> None:
        part_of(tmp_path).with_name(name).write_bytes(b"mine")
        fetch(server, tmp_path)
        assert server.asked == []
        assert files_in(tmp_path) == [name]

    def test_only_what_is_missing_is_added(
        self, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server.body = zip_of({"ratings.txt": b"theirs", "trust.txt": b"1 2 1\n"})
        archive = Archive(
            url=ARCHIVES["filmtrust"].url, files={"ratings.txt": None, "trust.txt": None}
        )
        found_at(monkeypatch, "filmtrust", archive)
        found_at(monkeypatch, "filmtrust-full", archive)
        (tmp_path / "filmtrust").mkdir()
        (tmp_path / "filmtrust" / "ratings.txt").write_bytes(b"mine")
        fetch_dataset("filmtrust-full", tmp_path, url=server.url)
        assert server.asked == []
        fetch_dataset("filmtrust", tmp_path, url=server.url)
        assert (tmp_path / "filmtrust" / "ratings.txt").read_bytes() == b"mine"
        assert (tmp_path / "filmtrust" / "trust.txt").read_bytes() == b"1 2 1\n"

    def test_a_catalogue_that_is_missing_is_added(
        self, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server.body = zip_of({"u.data": b"theirs", "u.item": b"1|Toy Story"})
        bind(monkeypatch, server.body, files={"u.data": None, "u.item": None})
        part_of(tmp_path).with_name("u.data").write_bytes(b"mine")
        fetch(server, tmp_path)
        fetch(server, tmp_path)
        assert len(server.asked) == 1
        assert part_of(tmp_path).with_name("u.data").read_bytes() == b"mine"
        assert part_of(tmp_path).with_name("u.item").read_bytes() == b"1|Toy Story"

    def test_default_folder(
        self, server: Server, no_data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        assert fetch_dataset("ml-100k", url=server.url) == no_data / "ml-100k"
        monkeypatch.setenv("BGTPLANNER_DATA", str(tmp_path / "mine"))
        assert fetch_dataset("ml-100k", url=server.url) == tmp_path / "mine" / "ml-100k"

    def test_without_length(self, server: Server, tmp_path: Path) -> None:
        server.lengths = False
        fetch(server, tmp_path)
        assert files_in(tmp_path) == ["u.data"]

    def test_two_at_once(self, server: Server, tmp_path: Path) -> None:
        failures: list[Exception] = []

        def work() -> None:
            try:
                fetch(server, tmp_path)
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert len(server.asked) == 1
        assert (tmp_path / "ml-100k" / "u.data").read_bytes() == CONTENT


class TestBroken:
    def test_resumes_where_it_broke(self, server: Server, tmp_path: Path) -> None:
        server.break_after = [1000, 500]
        fetch(server, tmp_path)
        assert server.asked == [None, "bytes=1000-", "bytes=1500-"]
        assert (tmp_path / "ml-100k" / "u.data").read_bytes() == CONTENT

    def test_starts_anew_where_ranges_are_unknown(self, server: Server, tmp_path: Path) -> None:
        server.ranges, server.break_after = False, [1000]
        fetch(server, tmp_path)
        assert server.asked == [None, "bytes=1000-"]
        assert (tmp_path / "ml-100k" / "u.data").read_bytes() == CONTENT

    def test_resumes_what_an_earlier_run_left(self, server: Server, tmp_path: Path) -> None:
        part_of(tmp_path).write_bytes(GOOD_ZIP[:777])
        fetch(server, tmp_path)
        assert server.asked == ["bytes=777-"]

    def test_part_that_is_whole_already(self, server: Server, tmp_path: Path) -> None:
        part_of(tmp_path).write_bytes(GOOD_ZIP)
        fetch(server, tmp_path)
        assert files_in(tmp_path) == ["u.data"]

    def test_part_that_is_too_long(self, server: Server, tmp_path: Path) -> None:
        part_of(tmp_path).write_bytes(GOOD_ZIP + b"more")
        fetch(server, tmp_path)
        assert files_in(tmp_path) == ["u.data"]

    def test_wrong_part_is_not_glued_on(self, server: Server, tmp_path: Path) -> None:
        server.break_after, server.wrong_range = [1000], True
        fetch(server, tmp_path)
        assert server.asked == [None, "bytes=1000-", None]

    def test_gives_up_and_keeps_the_part(self, server: Server, tmp_path: Path) -> None:
        server.break_after = [10] * 3
        with pytest.raises(DownloadError, match="gave up after 3 attempts") as caught:
            fetch(server, tmp_path, attempts=3)
        assert f"put them into {tmp_path / 'ml-100k'}" in str(caught.value)
        assert ARCHIVES["ml-100k"].url in str(caught.value)
        assert part_of(tmp_path).stat().st_size == 30

    @pytest.mark.parametrize("status", [429, 500, 503])
    def test_busy_server(self, server: Server, tmp_path: Path, status: int) -> None:
        server.statuses = [status, status]
        fetch(server, tmp_path)
        assert len(server.asked) == 3

    def test_missing_page_is_not_retried(self, server: Server, tmp_path: Path) -> None:
        server.statuses = [404]
        with pytest.raises(DownloadError, match="answers 404"):
            fetch(server, tmp_path)
        assert len(server.asked) == 1

    def test_no_network(self, server: Server, tmp_path: Path) -> None:
        with socket.socket() as nobody:  # has a port, and does not listen
            nobody.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{nobody.getsockname()[1]}/x.zip"
            with pytest.raises(DownloadError, match="no connection"):
                fetch(server, tmp_path, url=url, attempts=2)

    def test_silent_server(self, server: Server, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"http://127.0.0.1:{silent.getsockname()[1]}/x.zip"
            with pytest.raises(DownloadError, match="timed out"):
                fetch(server, tmp_path, url=url, attempts=1, timeout=0.05)

    def test_waits_longer_each_time(
        self, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        waited: list[float] = []
        monkeypatch.setattr(download.time, "sleep", waited.append)
        server.statuses = [503, 503, 503]
        fetch(server, tmp_path, backoff=0.5)
        assert waited == [0.5, 1.0, 2.0]

    def test_disk_full(
        self, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(download, "_take_out", full)
        with pytest.raises(DownloadError, match="the disk is full"):
            fetch(server, tmp_path)
        assert files_in(tmp_path) == ["ml-100k.zip.part"]  # to go on from, not to fetch again

    def test_folder_that_cannot_be_made(self, server: Server, tmp_path: Path) -> None:
        (tmp_path / "ml-100k").write_text("in the way")
        with pytest.raises(DownloadError, match="cannot write in"):
            fetch(server, tmp_path)


class TestHostile:
    def test_wrong_checksum(self, server: Server, tmp_path: Path) -> None:
        server.body = zip_of({"u.data": b"other"})
        with pytest.raises(DownloadError, match="wrong checksum; the part file was deleted"):
            fetch(server, tmp_path)
        assert files_in(tmp_path) == []

    def test_wrong_checksum_of_a_file(
        self, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bind(monkeypatch, server.body, files={"u.data": "0" * 64})
        with pytest.raises(DownloadError, match=r"u\.data: wrong checksum"):
            fetch(server, tmp_path)
        assert files_in(tmp_path) == []

    @pytest.mark.parametrize(
        ("body", "problem"),
        [
            (zip_of({"../u.data": b"x"}), "unsafe path"),
            (zip_of({"/etc/u.data": b"x"}), "unsafe path"),
            (zip_of({"..\\a/u.data": b"x"}), "unsafe path"),
            (zip_of({"u.data": b"/etc/passwd"}, links=("u.data",)), "a link or a folder"),
            (zip_of({"u.data/": b""}), "a link or a folder"),
            (zip_of({"a/u.data": b"x", "b/u.data": b"y"}), "has 2 files u.data"),
            (zip_of({"README": b"x"}), "has 0 files u.data"),
            (zip_of({"u.data": bytes(2_000_000)}), "unpacks to more than the 1000000 bytes"),
            (b"not a zip file at all", "not a valid zip file"),
            (GOOD_ZIP[:3000] + bytes(50) + GOOD_ZIP[3050:], "not a valid zip file"),
        ],
        ids=[
            "up",
            "absolute",
            "backslash",
            "link",
            "folder",
            "two",
            "none",
            "bomb",
            "junk",
            "damaged",
        ],
    )
    def test_archive(
        self,
        server: Server,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        body: bytes,
        problem: str,
    ) -> None:
        server.body = body
        bind(monkeypatch, body, max_bytes=1_000_000)
        with pytest.raises(DownloadError, match=problem):
            fetch(server, tmp_path / "in")
        assert files_in(tmp_path / "in") == []
        assert [path.name for path in tmp_path.iterdir()] == ["in"]

    @pytest.mark.parametrize("lengths", [True, False])
    def test_endless_body(
        self, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lengths: bool
    ) -> None:
        server.lengths = lengths
        bind(monkeypatch, server.body, max_bytes=5000)
        with pytest.raises(DownloadError, match="larger than the 5000 bytes allowed"):
            fetch(server, tmp_path)

    def test_redirects(self, server: Server, tmp_path: Path) -> None:
        server.redirect = "http://example.org/ml-100k.zip"
        with pytest.raises(DownloadError, match="redirects to an address without https"):
            fetch(server, tmp_path)
        server.redirect = server.url.replace("ml-100k.zip", "moved.zip")
        fetch(server, tmp_path)
        assert files_in(tmp_path) == ["u.data"]

    @pytest.mark.parametrize(
        "url",
        [
            "http://example.org/x.zip",
            "file:///etc/passwd",
            "ftp://127.0.0.1/x",
            "x.zip",
            "https:///x",
        ],
    )
    def test_addresses(self, tmp_path: Path, url: str) -> None:
        with pytest.raises(ConfigError, match="https"):
            fetch_dataset("ml-100k", tmp_path, url=url)


class TestArguments:
    @pytest.mark.parametrize("name", ["demo", "synthetic", "csv:x.csv"])
    def test_nothing_to_fetch(self, name: str) -> None:
        with pytest.raises(ConfigError, match="nothing to fetch"):
            fetch_dataset(name)

    @pytest.mark.parametrize("bad", [{"attempts": 0}, {"timeout": 0}, {"backoff": -1}])
    def test_out_of_range(self, tmp_path: Path, bad: dict[str, Any]) -> None:
        with pytest.raises(ConfigError, match="attempts >= 1"):
            fetch_dataset("ml-100k", tmp_path, **bad)

    def test_official_addresses(self) -> None:
        for archive in ARCHIVES.values():
            assert archive.url.startswith("https://")
            assert archive.sha256 is not None or all(archive.files.values())

    def test_known_checksums_fit_the_real_files(self, data_dir: Path) -> None:
        """Of the files as published; MovieLens 1M is bound by its archive's checksum."""
        checked = 0
        for name, archive in ARCHIVES.items():
            for file, expected in archive.files.items():
                path = data_dir / name / file
                if expected is not None and path.is_file():
                    assert download._sha256_of(path) == expected
                    checked += 1
        if not checked:
            pytest.skip("none of the files is there")
