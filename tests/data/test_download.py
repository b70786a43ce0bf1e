"""Downloads from a server on this machine that can misbehave, or send something else."""

from __future__ import annotations

import hashlib
import io
import socket
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from bgtplanner.data.datasets import DATASETS
from bgtplanner.data.download import fetch_dataset
from bgtplanner.errors import ConfigError, DownloadError

FETCHED = [info for info in (DATASETS[name] for name in DATASETS) if info.url is not None]
CONTENT = b"".join(b"%d\t%d\t3\t0\n" % (n, n * n) for n in range(40_000))


def zip_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


GOOD_ZIP = zip_of({"ml-100k/README": b"terms", "ml-100k/u.data": CONTENT})


@dataclass
class Server:
    """What the server sends, and how it misbehaves."""

    body: bytes = GOOD_ZIP
    breaks: int = 0  # replies that are cut short
    statuses: list[int] = field(default_factory=list)  # of the first replies
    asked: int = 0


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Tests are quiet."""

        def do_GET(self) -> None:
            state.asked += 1
            if state.statuses:
                self.send_error(state.statuses.pop(0))
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(state.body)))
            self.end_headers()
            state.breaks -= 1
            self.wfile.write(state.body if state.breaks < 0 else state.body[:100])

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"http://127.0.0.1:{http.server_address[1]}/ml-100k.zip"
        monkeypatch.setitem(DATASETS._entries, "ml-100k", replace(DATASETS["ml-100k"], url=url))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setattr("pooch.core.time.sleep", lambda _: None)
        bind(monkeypatch, state.body)
        yield state
        http.shutdown()
        thread.join()


def bind(
    monkeypatch: pytest.MonkeyPatch, body: bytes, sha256: dict[str, str] | None = None,
    catalogue: str | None = None,
) -> None:  # fmt: skip
    """Make the body of the server the official one, by its checksum."""
    checked = {"ml-100k.zip": hashlib.sha256(body).hexdigest()} | (sha256 or {})
    changed = replace(DATASETS["ml-100k"], sha256=checked, catalogue=catalogue)
    monkeypatch.setitem(DATASETS._entries, "ml-100k", changed)


def fetch(folder: Path) -> Path:
    return fetch_dataset("ml-100k", folder)


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "ml-100k").iterdir())


def own_file(folder: Path, name: str) -> Path:
    (folder / "ml-100k").mkdir()
    (folder / "ml-100k" / name).write_bytes(b"mine")
    return folder / "ml-100k" / name


class TestGood:
    def test_only_the_wanted_file_is_left_and_nothing_is_fetched_twice(
        self, server: Server, tmp_path: Path
    ) -> None:
        for _ in range(2):
            folder = fetch(tmp_path / "new")
        assert folder == tmp_path / "new" / "ml-100k"
        assert files_in(tmp_path / "new") == ["u.data"]
        assert (folder / "u.data").read_bytes() == CONTENT
        assert server.asked == 1

    @pytest.mark.parametrize("name", ["u.data", "u.data.gz"])
    def test_own_file_is_left_alone(self, server: Server, tmp_path: Path, name: str) -> None:
        own_file(tmp_path, name)
        fetch(tmp_path)
        assert (server.asked, files_in(tmp_path)) == (0, [name])

    def test_only_what_is_missing_is_added(
        self, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server.body = zip_of({"u.data": b"theirs", "u.item": b"1|Toy Story"})
        bind(monkeypatch, server.body, catalogue="u.item")
        mine = own_file(tmp_path, "u.data")
        fetch(tmp_path)
        assert mine.read_bytes() == b"mine"
        assert mine.with_name("u.item").read_bytes() == b"1|Toy Story"

    def test_default_folder(
        self, server: Server, no_data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        assert fetch_dataset("ml-100k") == no_data / "ml-100k"
        monkeypatch.setenv("BGTPLANNER_DATA", str(tmp_path / "mine"))
        assert fetch_dataset("ml-100k") == tmp_path / "mine" / "ml-100k"


class TestBroken:
    """Whatever happens, no half of a file is left, and the error says what to do by hand."""

    def test_another_attempt_helps(self, server: Server, tmp_path: Path) -> None:
        server.breaks, server.statuses = 1, [503]
        fetch(tmp_path)
        assert (server.asked, files_in(tmp_path)) == (3, ["u.data"])

    @pytest.mark.parametrize(
        ("how", "problem"),
        [
            ({"statuses": [404] * 3}, "the server answers 404"),
            ({"breaks": 3}, "no connection|wrong checksum"),
            ({"body": zip_of({"u.data": b"other"})}, "wrong checksum; the download was deleted"),
        ],
    )
    def test_gives_up(
        self, server: Server, tmp_path: Path, how: dict[str, Any], problem: str
    ) -> None:
        for name, value in how.items():
            setattr(server, name, value)
        with pytest.raises(DownloadError, match=problem) as caught:
            fetch(tmp_path)
        assert f"put them into {tmp_path / 'ml-100k'}" in str(caught.value)
        assert str(DATASETS["ml-100k"].url) in str(caught.value)
        assert files_in(tmp_path) == []

    def test_no_network(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        with socket.socket() as nobody:  # has a port, and does not listen
            nobody.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{nobody.getsockname()[1]}/x.zip"
            closed = replace(DATASETS["ml-100k"], url=url)
            monkeypatch.setitem(DATASETS._entries, "ml-100k", closed)
            with pytest.raises(DownloadError, match=r"no connection.*By hand: get http"):
                fetch(tmp_path)

    def test_folder_that_cannot_be_made(self, server: Server, tmp_path: Path) -> None:
        (tmp_path / "ml-100k").write_text("in the way")
        with pytest.raises(DownloadError, match="cannot write in"):
            fetch(tmp_path)


class TestHostile:
    def test_wrong_checksum_of_a_file(
        self, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bind(monkeypatch, server.body, {"u.data": "0" * 64})
        with pytest.raises(DownloadError, match=r"u\.data: wrong checksum"):
            fetch(tmp_path)
        assert files_in(tmp_path) == []

    @pytest.mark.parametrize(
        ("body", "problem"),
        [
            (zip_of({"u.data/": b""}), "has 0 files u.data"),
            (zip_of({"a/u.data": b"x", "b/u.data": b"y"}), "has 2 files u.data"),
            (b"not a zip file at all", "not a valid zip file"),
            (GOOD_ZIP[:3000] + bytes(50) + GOOD_ZIP[3050:], "not a valid zip file"),
        ],
        ids=["folder", "two", "junk", "damaged"],
    )
    def test_archive(
        self, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes,
        problem: str,
    ) -> None:  # fmt: skip
        server.body = body
        bind(monkeypatch, body)
        with pytest.raises(DownloadError, match=problem):
            fetch(tmp_path / "in")
        assert files_in(tmp_path / "in") == []

    @pytest.mark.parametrize(
        "body", [zip_of({"../u.data": b"x"}), zip_of({"/etc/u.data": b"x"})], ids=["up", "root"]
    )
    def test_paths_in_an_archive_do_not_count(
        self, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes
    ) -> None:
        server.body = body
        bind(monkeypatch, body)
        fetch(tmp_path / "in")
        assert files_in(tmp_path / "in") == ["u.data"]
        assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize("name", ["demo", "synthetic", "csv:x.csv"])
def test_nothing_to_fetch(name: str) -> None:
    with pytest.raises(ConfigError, match="nothing to fetch"):
        fetch_dataset(name)


def test_official_addresses() -> None:
    for info in FETCHED:
        assert str(info.url).startswith("https://")
        assert str(info.url).rpartition("/")[2] in info.sha256 or {*info.files} <= {*info.sha256}


def test_known_checksums_fit_the_real_files(data_dir: Path) -> None:
    """Of the files as published; MovieLens 1M is bound by its archive's checksum."""
    checked = 0
    for info in FETCHED:
        for file in info.files:
            path = data_dir / str(info.folder) / file
            if file in info.sha256 and path.is_file():
                assert hashlib.sha256(path.read_bytes()).hexdigest() == info.sha256[file]
                checked += 1
    if not checked:
        pytest.skip("none of the files is there")
