"""The endpoint: equal to Python, closed to strangers, silent about what it is sent."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import Request, urlopen

import pytest

from bgtplanner import load_model
from bgtplanner.published.model import Model
from bgtplanner.serving import PAGE
from bgtplanner.serving.app import Asked, Endpoints, LiveModel
from command_line import Call
from made import tastes
from processes import Processes, wait_until

MINE = {"film0": 5, "film2": 4.5, "film4": 1}
PATHS = {"/recommend", "/items", "/model", "/healthz", "/metrics"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    tastes().save(file := tmp_path / "films.model")
    return file


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str

    def json(self) -> Any:
        return json.loads(self.text)


class App:
    """Calls the app as a server does, without one."""

    def __init__(self, path: Path, **how: Any) -> None:
        limits = {"cors": (), "rate": 0, "most": 2000} | how
        self._gate = Endpoints(LiveModel(path), {"localhost"}, **limits).gate

    def __call__(self, path: str, body: Any = None, method: str = "", **headers: str) -> Answer:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"host": "localhost", "content_length": str(len(content))}
        given |= {"content_type": "application/json"} | headers
        path, _, query = path.partition("?")
        scope = {
            "type": "http", "method": method or ("GET" if body is None else "POST"), "path": path,
            "query_string": query.encode(), "client": ("127.0.0.1", 1), "root_path": "",
            "headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in given.items()],
        }  # fmt: skip
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": content}

        async def send(message: Any) -> None:
            sent.append(message)

        asyncio.run(self._gate(scope, receive, send))
        found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        said = b"".join(of["body"] for of in sent[1:]).decode(errors="replace")
        return Answer(sent[0]["status"], found, said)


@pytest.fixture
def asked(path: Path) -> App:
    return App(path)


def test_answers_are_those_of_python(asked: App, path: Path) -> None:
    how = {"top": 5, "exclude": ["film1"], "only": ["genre: War", "film2", "film5"]}
    for history in (MINE, list(MINE), {}):
        answer = asked("/recommend", {"history": history, **how})
        rows = load_model(path).recommend(history, **how)
        expected = [{"place": row.place, **row._asdict()} for row in rows]
        assert [{"user": None} | line for line in answer.json()["items"]] == expected
    assert asked("/recommend", {}).json()["note"] == load_model(path).verdict().headline
    every = asked("/items").json()
    assert every["total"] == len(every["items"]) == 30
    assert every["items"][29] == {"item": "film29", "title": "Film No. 29"}
    assert asked("/model").json()["guarantee"]["epsilon"] == 3
    assert asked("/healthz").json() == {"status": "ok"}
    assert (asked("/").text, asked("/page.js").headers["content-type"]) == (
        (PAGE / "index.html").read_text(), "text/javascript; charset=utf-8",
    )  # fmt: skip
    assert asked("/public.model").headers["content-length"] == str(path.stat().st_size)


@pytest.mark.parametrize(
    ("named", "body"),
    [
        ("request", '{"history": {"SECRET": 9}, "SECRET": 1}'), ("request", '{"SECRET'),
        ("request", "[]"), ("request", f'{{"history": {"[" * 900}'), ("explain", '{"explain": 1}'),
        ("history", '{"history": {"SECRET": "5"}}'), ("history", '{"history": {"film1": 1e999}}'),
        ("history", '{"history": {"film1": 9}}'), ("history", '{"history": [["SECRET"]]}'),
        ("history", '{"history": {"a": true}}'), ("exclude", f'{{"exclude": ["{"x" * 300}"]}}'),
        ("top", '{"top": 101}'), ("top", '{"top": "1"}'), ("only", '{"only": ["SECRET"]}'),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_and_not_quoted(asked: App, named: str, body: str) -> None:
    answer = asked("/recommend", body.encode())
    assert answer.status == 400
    assert answer.json()["error"].startswith(f"{named}: ")
    assert "SECRET" not in answer.text


def test_what_may_not_pass(asked: App, path: Path) -> None:
    for host in ("evil.example", "", "localhost.evil.example", "[::1]:80"):
        assert asked("/model", host=host).status == 421
    assert asked("/model", host="LOCALHOST:8000").status == 200
    assert asked("/recommend", {"history": ["x" * 50] * 99}).status == 413
    assert asked("/recommend", {}, transfer_encoding="chunked").status == 411
    assert asked("/recommend", {}, content_type="text/plain").status == 415
    assert asked("/../app.py").status == 404
    limited = App(path, rate=3)
    assert {limited("/model").status for _ in range(20)} == {200, 429}
    assert limited("/healthz").status == 200, "who watches is never refused"


def test_other_sites_may_ask_only_if_they_are_named(asked: App, path: Path) -> None:
    allowed, theirs = App(path, cors=["https://films.example.org"]), "https://films.example.org"
    assert "access-control-allow-origin" not in asked("/model", origin=theirs).headers
    for origin, status in ((theirs, 200), ("https://other.example.org", 400)):
        preflight = {"origin": origin, "access_control_request_method": "POST"}
        assert allowed("/recommend", method="OPTIONS", **preflight).status == status


def test_nothing_of_a_request_is_kept(
    asked: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise KeyError("film0")

    asked("/recommend", {"history": MINE})
    asked("/film0")
    monkeypatch.setattr(Model, "recommend", broken)
    answer = asked("/recommend", {"history": MINE})
    metrics = asked("/metrics").text
    assert answer.status == 500
    assert 'bgtplanner_requests_total{route="/recommend",status="200"} 1' in metrics
    assert 'bgtplanner_requests_total{route="other",status="404"} 1' in metrics
    ours = [of.getMessage() for of in caplog.records if of.name.startswith("bgtplanner")]
    assert ours == ["A fault of ours: KeyError"]
    assert "film" not in answer.text + metrics


def test_a_damaged_file_is_not_taken_up(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    live, content = LiveModel(path), path.read_bytes()
    for spoilt in (content[:-1], content.replace(b"Promised", b"Promises"), b""):
        path.write_bytes(spoilt)
        live.look()
    path.unlink()
    live.look()
    assert (live.taken_up, live.refused, live.current[1]) == (0, 4, content)
    tastes(31).save(path)
    live.look()
    live.look()
    assert (live.taken_up, live.refused, len(live.current[0].items)) == (1, 4, 31)
    tastes(learned=False, names=(), features=tastes().features[:, :0]).save(path)
    live.look()
    assert len(live.current[0].items) == 31, "a model that makes no lists is not taken up"
    assert {of.levelno for of in caplog.records} == {logging.WARNING}


def test_the_description_is_of_what_is_there(asked: App) -> None:
    described = asked("/openapi.json").json()
    assert set(described["paths"]) == PATHS
    post = described["paths"]["/recommend"]["post"]["requestBody"]["content"]
    assert set(post["application/json"]["schema"]["properties"]) == set(Asked.model_fields)


def test_a_new_model_is_taken_up_and_no_request_dropped(path: Path, processes: Processes) -> None:
    command = [sys.executable, *f"-m bgtplanner serve {path} --port 0 --json --rate 0".split()]
    server = processes.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert server.stdout is not None
    address = json.loads("".join(iter(server.stdout.readline, "}\n")) + "}")["address"]
    assert address.startswith("http://127.0.0.1:")
    sizes, stop = list[int](), threading.Event()

    def ask() -> None:
        body = json.dumps({"history": MINE, "top": 100}).encode()
        while not stop.is_set():
            request = Request(f"{address}recommend", body, {"content-type": "application/json"})
            with urlopen(request, timeout=60) as answer:
                sizes.append(len(json.load(answer)["items"]))

    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(ask) for _ in range(3)]
        wait_until(lambda: len(sizes) > 20, "answers")
        tastes(40).save(path)
        wait_until(lambda: sizes[-1] == 37, "the new model")
        stop.set()
    assert [of.result() for of in asking] == [None] * 3
    assert set(sizes) == {27, 37}
    with urlopen(f"{address}metrics") as answer:
        assert f'{{route="/recommend",status="200"}} {len(sizes)}\n' in answer.read().decode()
    server.send_signal(signal.SIGINT)
    assert server.wait(60) == 0


def test_what_cannot_be_served(
    command_line: Call, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for flags, said in {
        "--host 300.1.1.1": "--host 300.1.1.1 --port 8000", "--host 0.0.0.0": "--host = '0.0.0.0'",
        "--port 65536": "--port = 65536", "--rate -1": "--rate = -1", "--cors *": "--cors = '*'",
        "--max-body 0": "--max-body = 0", "--allow-host a:80": "--allow-host = 'a:80'",
    }.items():  # fmt: skip
        done = command_line("serve", path, *flags.split())
        assert (done.code, done.err.startswith(f"error: {said}: ")) == (2, True), done.err
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'bgtplanner[serve]'" in command_line("serve", path).err


def test_a_page_is_written(command_line: Call, path: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    for _ in range(2):
        assert command_line("export", path, "--page", site).code == 0
    assert (site / "public.model").read_bytes() == path.read_bytes()
    assert {"index.html", "page.js", "texts.js", "worker.js"} <= {of.name for of in site.iterdir()}
    (site / "public.model").unlink()
    assert command_line("export", path, "--page", site).code == 2
    assert command_line("export", path).code == 2
    path.write_bytes(b"damaged")
    assert command_line("export", path, "--page", tmp_path / "other").code == 2
