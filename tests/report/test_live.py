"""The live page: it follows the run, shows nothing else, and talks to this machine only."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bgtplanner.errors import ConfigError, RunFolderError
from bgtplanner.report import live
from bgtplanner.report.live import LivePage, LiveServer
from bgtplanner.runs.study import Study
from made_runs import make_run, make_study
from processes import PATIENCE, Processes

SHORT = {"federation.rounds": 6}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run", SHORT, rounds_done=2)


@contextlib.contextmanager
def serving(run: Path) -> Iterator[LiveServer]:
    made = LiveServer(LivePage(run))
    thread = threading.Thread(target=made.serve)
    thread.start()
    try:
        yield made
    finally:
        made.shutdown()
        thread.join()


@pytest.fixture
def server(run: Path) -> Iterator[LiveServer]:
    with serving(run) as made:
        yield made


class Answer(NamedTuple):
    status: int
    headers: Message
    text: str


@contextlib.contextmanager
def asked(
    server: LiveServer, path: str, method: str = "GET", host: str | None = None
) -> Iterator[http.client.HTTPResponse]:
    with contextlib.closing(
        http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENCE)
    ) as connection:
        connection.request(method, path, headers={} if host is None else {"Host": host})
        with connection.getresponse() as answer:
            yield answer


def ask(server: LiveServer, path: str = "/", **options: Any) -> Answer:
    with asked(server, path, **options) as answer:
        return Answer(answer.status, answer.headers, answer.read().decode())


def finish(run: Path, settings: dict[str, int]) -> None:
    """The rest of the run, as another process would write it."""
    whole = make_run(run.parent / "whole", settings)
    for name in ("rounds.jsonl", "summary.json"):
        (run / name).write_bytes((whole / name).read_bytes())


class TestWhatIsServed:
    def test_the_page(self, server: LiveServer) -> None:
        answer = ask(server)
        assert answer.status == 200
        assert "Round 2 of 6" in answer.text
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Frame-Options"] == "DENY"

    @pytest.mark.parametrize(
        "path",
        ["/config.toml", "/rounds.jsonl", "/../run/config.toml", "/ledger.sqlite", "/x/", "/?x"],
    )
    def test_nothing_else(self, server: LiveServer, path: str) -> None:
        answer = ask(server, path)
        assert (answer.status, answer.text) == (404, "the only page is /")

    @pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
    def test_only_to_look(self, server: LiveServer, method: str) -> None:
        assert ask(server, method=method).status == 501

    @pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "localhost:1", ""])
    @pytest.mark.parametrize("path", ["/", "/events"])
    def test_other_names_are_refused(self, server: LiveServer, host: str, path: str) -> None:
        """A page from elsewhere whose name was made to lead here (DNS rebinding)."""
        answer = ask(server, path, host=host)
        assert answer.status == 421
        assert "Round" not in answer.text

    def test_by_name(self, server: LiveServer) -> None:
        assert ask(server, host=f"localhost:{server.server_port}").status == 200

    def test_on_loopback_only(self, server: LiveServer) -> None:
        assert server.server_address[0] == "127.0.0.1"

    def test_nothing_is_written(self, server: LiveServer, run: Path) -> None:
        before = {path: path.stat().st_mtime_ns for path in run.iterdir()}
        ask(server)
        assert {path: path.stat().st_mtime_ns for path in run.iterdir()} == before

    def test_a_folder_that_breaks(self, server: LiveServer, run: Path) -> None:
        (run / "rounds.jsonl").write_text("no json\n")
        answer = ask(server)
        assert answer.status == 500
        assert "line 1: not a JSON object" in answer.text


class TestEvents:
    def test_until_the_run_is_done(self, server: LiveServer, run: Path) -> None:
        with asked(server, "/events") as answer:
            assert answer.headers["Content-Type"] == "text/event-stream"
            assert answer.readline() == b"event: page\n"
            first = answer.readline()
            answer.readline()
            finish(run, SHORT)
            rest = answer.read().decode()
        assert rest.endswith("event: done\ndata: done\n\n")
        assert "event: page\n" in rest
        assert first.decode() not in rest

    def test_the_page_follows(self, server: LiveServer, run: Path) -> None:
        assert "Round 2 of 6" in ask(server).text
        finish(run, SHORT)
        assert "Over 6 rounds of learning together, 300 clients" in ask(server).text

    @pytest.mark.parametrize("look", ["version", "done"])
    @pytest.mark.parametrize("number", [1, 2, 3])
    def test_a_run_that_ends_at_any_look(
        self, run: Path, monkeypatch: pytest.MonkeyPatch, look: str, number: int
    ) -> None:
        """Its last version is told, and then that it is done."""
        monkeypatch.setattr(live, "_POLL", 0.0)
        page, looks = LivePage(run), [0]
        real = getattr(page, look)

        def then_it_ends() -> Any:
            found = real()
            looks[0] += 1
            if looks[0] == number:
                finish(run, SHORT)
            return found

        monkeypatch.setattr(page, look, then_it_ends)
        told = list(page.changes(threading.Event()))
        assert told[-1] == LivePage(run).version()

    def test_a_reader_who_goes_away(self, server: LiveServer) -> None:
        with asked(server, "/events") as answer:
            answer.readline()
        assert ask(server).status == 200

    def test_stopped(self, run: Path) -> None:
        with serving(run) as made, asked(made, "/events") as answer:
            answer.readline()
            made.shutdown()
            assert not answer.read().endswith(b"event: done\ndata: done\n\n")


@pytest.fixture
def idle(run: Path) -> Iterator[LiveServer]:
    """One that is not serving yet; tests call what it does while it serves."""
    made = LiveServer(LivePage(run))
    yield made
    made.stopping.set()
    made.server_close()


class TestManners:
    """Who says nothing, too little or too often is not waited for."""

    def test_head(self, server: LiveServer) -> None:
        answer = ask(server, method="HEAD")
        assert (answer.status, answer.text) == (200, "")
        assert int(answer.headers["Content-Length"]) > 1000
        assert ask(server, "/events", method="HEAD").status == 404

    def test_who_says_nothing_is_cut_off(
        self, idle: LiveServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with socket.create_connection(idle.server_address[:2], timeout=PATIENCE) as silent:
            silent.sendall(b"GET / HT")  # and never the rest
            idle._handle_request_noblock()
            idle.service_actions()
            now = time.monotonic()
            monkeypatch.setattr(live.time, "monotonic", lambda: now + live._PATIENCE + 1)
            idle.service_actions()
            assert silent.recv(1000) == b""

    def test_a_limit_on_connections(self, idle: LiveServer) -> None:
        with contextlib.ExitStack() as stack:
            every = []
            for _ in range(live._MOST_CONNECTIONS + 1):
                made = socket.create_connection(idle.server_address[:2], timeout=PATIENCE)
                every.append(stack.enter_context(made))
                idle._handle_request_noblock()
            assert len(idle._open) == live._MOST_CONNECTIONS
            assert every[-1].recv(1) == b"", "one too many"
        # The others are gone, and have given their places back.
        for thread in threading.enumerate():
            if "process_request_thread" in thread.name:
                thread.join(PATIENCE)
        assert not idle._open

    def test_a_limit_on_pages_that_wait(self, server: LiveServer) -> None:
        for _ in range(live._MOST_LISTENERS):
            assert server.listeners.acquire(blocking=False)
        answer = ask(server, "/events")
        assert (answer.status, answer.text) == (503, "too many pages are open")
        assert ask(server).status == 200
        server.listeners.release()
        with asked(server, "/events") as events:
            assert events.status == 200

    def test_every_socket_has_a_timeout(self) -> None:
        assert live._Handler.timeout == live._PATIENCE


class TestPage:
    def test_drawn_once_for_all(self, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        page = LivePage(run)
        first = page.page()
        assert page.page() is first
        with (run / "rounds.jsonl").open("a") as file:
            file.write(json.dumps({"round": 2, "rmse": 0.2, "f1": 0.9}) + "\n")
        # a line without its figures is refused: it was looked at again
        with pytest.raises(RunFolderError, match="line 3: has no charge, clients, dropped"):
            page.page()

    def test_no_run_folder(self, tmp_path: Path) -> None:
        with pytest.raises(RunFolderError, match="not a run folder"):
            LivePage(tmp_path).page()

    def test_a_grid(self, tmp_path: Path) -> None:
        asked = Study(policies=("uniform",), seeds=(0, 1), settings=SHORT)
        folder = make_study(tmp_path / "grid", asked, leave_out=1)
        page = LivePage(folder)
        before = page.version()
        assert "1 of 2" in page.page()
        make_study(tmp_path / "other", asked)
        place = "demo/gaussian/uniform/seed-1"
        (tmp_path / "other" / place).rename(folder / place)
        assert page.version() != before
        assert "2 of 2" in page.page()


@pytest.mark.parametrize("port", [-1, 65536])
def test_no_such_port(run: Path, port: int) -> None:
    with pytest.raises(ConfigError, match=f"--port = {port}: expected 0"):
        LiveServer(LivePage(run), port)


def test_a_port_that_is_taken(run: Path, server: LiveServer) -> None:
    with pytest.raises(ConfigError, match=f"--port = {server.server_port}: .*choose another"):
        LiveServer(LivePage(run), server.server_port)


class TestRealProcess:
    """`bgtplanner report --live` as it is started from a shell."""

    @pytest.fixture
    def started(self, run: Path, processes: Processes) -> subprocess.Popen[str]:
        command = Path(sys.executable).parent / "bgtplanner"
        process = processes.start(
            [command, "report", run, "--live"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
        assert process.stdout is not None
        port = re.match(r"Live: http://127\.0\.0\.1:(\d+)/", process.stdout.readline())
        assert port is not None
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", int(port[1]), timeout=PATIENCE)
        ) as connection:
            connection.request("GET", "/no-such-page")  # it serves once it answers
            assert connection.getresponse().status == 404
        return process

    @pytest.mark.usefixtures("ctrl_c")
    def test_ctrl_c_ends_it(self, started: subprocess.Popen[str]) -> None:
        started.send_signal(signal.SIGINT)
        output, errors = started.communicate(timeout=PATIENCE)
        assert (started.returncode, output, errors) == (0, "", "")

    def test_in_the_background(self, request: pytest.FixtureRequest) -> None:
        """A shell has Ctrl-C ignored there; what is started so can be ended all the same."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            started: subprocess.Popen[str] = request.getfixturevalue("started")
        finally:
            signal.signal(signal.SIGINT, before)
        started.send_signal(signal.SIGINT)
        started.send_signal(signal.SIGTERM)
        started.communicate(timeout=PATIENCE)
        assert started.returncode == -signal.SIGTERM


class TestAGrid:
    """A page of a study says when nothing more is to come."""

    STUDY = Study(policies=("uniform",), seeds=(0, 1), settings=SHORT)

    def test_until_all_cells_are_done(self, tmp_path: Path) -> None:
        page = LivePage(make_study(tmp_path / "grid", self.STUDY, leave_out=1))
        assert not page.done()
        assert "Running: 1 of 2 cells are done; the figures are those so far." in page.page()
        with serving(page.folder) as server, asked(server, "/events") as answer:
            assert answer.readline() == b"event: page\n"
            make_study(tmp_path / "whole", self.STUDY)
            for cell in self.STUDY.cells():
                if not (page.folder / cell.place).exists():
                    (tmp_path / "whole" / cell.place).rename(page.folder / cell.place)
            assert answer.read().decode().endswith("event: done\ndata: done\n\n")
        assert page.done()
        assert "Finished: 2 of 2 cells are done." in page.page()
        assert "<progress" not in page.page()

    def test_with_a_cell_that_failed(self, tmp_path: Path) -> None:
        """The tables are written last, whatever failed; a later request is newer than they are."""
        page = LivePage(make_study(tmp_path / "grid", self.STUDY, leave_out=1))
        before = page.version()
        tables, request = (page.folder / name for name in ("comparison.json", "study.json"))
        tables.write_text("{}")
        os.utime(tables, ns=(2 * 10**18, 2 * 10**18))
        assert page.version() != before
        assert page.done()
        assert "Finished: 1 of 2 cells are done." in page.page()
        os.utime(request, ns=(3 * 10**18, 3 * 10**18))
        assert not page.done()
