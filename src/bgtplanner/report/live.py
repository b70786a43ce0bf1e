"""The report page during a run, served to this machine only.

A small server on the loopback interface serves one page and tells it when there is something new
(server-sent events). It reads the folder and writes nothing, opens no ledger, serves no other
file, and answers only requests whose Host header is its own address, which defeats DNS rebinding.
Connections that send nothing, or too slowly, are closed, and their number is limited.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

from bgtplanner.errors import BGTPlannerError, ConfigError
from bgtplanner.report.page import render, study_ended
from bgtplanner.runs.study import Study

__all__ = ["LivePage", "LiveServer"]

_POLL = 0.25  # seconds between looks at the folder
_BREATHE = 2.0  # pause after a drawing, as a multiple of its time: training needs the processor
_KEEP_ALIVE = 10.0  # seconds between keep-alive messages, which detect a closed page
_PATIENCE = 10.0  # seconds within which a request must arrive, and each part of an answer be sent
_MOST_CONNECTIONS = 32  # at a time; each has a thread
_MOST_LISTENERS = 16  # of these, pages that wait for changes


class LivePage:
    """The page of a folder; it is drawn again on request if the folder has changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._version = ""
        self._page = ""
        self._rest_until = 0.0

    def version(self) -> str:
        """A tag of the folder's contents, which changes with every round or finished cell."""
        if (self.folder / "config.toml").exists():
            names = [self.folder / name for name in ("rounds.jsonl", "summary.json")]
        else:  # a study: its finished cells, and the tables that come last
            names = sorted(self.folder.rglob("summary.json"))
            names += [self.folder / f"{kind}.json" for kind in ("comparison", "sweep")]
        marks = []
        for name in names:
            with contextlib.suppress(OSError):
                found = name.stat()
                marks.append(f"{found.st_size:x}.{found.st_mtime_ns:x}")
        return "-".join([str(len(marks)), *marks[-2:]])

    def done(self) -> bool:
        """Whether the run is finished, or all cells of the study are."""
        if (self.folder / "config.toml").exists():
            return (self.folder / "summary.json").exists()
        study = Study.read(self.folder)
        return study is not None and study_ended(self.folder, study)

    def page(self) -> str:
        """The page of the current contents, drawn once for all requests."""
        with self._lock:
            now = self.version()
            if now != self._version:
                begun = time.monotonic()
                self._page = render(self.folder, live="events", version=now)
                self._version = now
                took = time.monotonic() - begun
                self._rest_until = time.monotonic() + _BREATHE * took
            return self._page

    def changes(self, stop: threading.Event) -> Iterator[str | None]:
        """Yield new versions, no faster than they can be drawn, and None as a keep-alive."""
        told, quiet = "", time.monotonic()
        while not stop.is_set():
            ended = self.done()  # before the version, which is then the last one
            now = self.version()
            if now != told and (ended or time.monotonic() >= self._rest_until):
                told, quiet = now, time.monotonic()
                yield now
            elif time.monotonic() - quiet > _KEEP_ALIVE:
                quiet = time.monotonic()
                yield None
            if ended and now == told:
                return
            stop.wait(_POLL)


class LiveServer(ThreadingHTTPServer):
    """Serves one live page on the loopback interface.

    Args:
        page: The page to serve.
        port: Its port; 0 for any free one.

    Raises:
        ConfigError: If the port is taken.
    """

    daemon_threads = True
    request_queue_size = _MOST_CONNECTIONS

    def __init__(self, page: LivePage, port: int = 0) -> None:
        ConfigError.unless(0 <= port <= 65535, "--port", port, "0 (any free port) to 65535")
        self.page = page
        self.stopping = threading.Event()
        self.listeners = threading.BoundedSemaphore(_MOST_LISTENERS)
        self._open: dict[socket.socket, float | None] = {}  # since when each has been silent
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except OSError as error:
            raise ConfigError(
                f"--port = {port}: {error.strerror}; choose another, or 0 for any free port"
            ) from error
        self.hosts = {f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost")}

    @property
    def address(self) -> str:
        """The address to open in a browser."""
        return f"http://127.0.0.1:{self.server_port}/"

    def serve(self) -> None:
        """Serve until interrupted."""
        try:
            self.serve_forever(poll_interval=_POLL)
        except KeyboardInterrupt:
            pass
        finally:
            self.stopping.set()
            self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Accept a connection, unless there are too many."""
        if len(self._open) >= _MOST_CONNECTIONS:  # only this thread adds to them
            self.shutdown_request(request)
        else:
            self._open[request] = time.monotonic()
            super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        self._open.pop(request, None)
        super().shutdown_request(request)

    def heard(self, request: socket.socket) -> None:
        """Note that a request is complete, so that its connection is not timed out."""
        if request in self._open:
            self._open[request] = None

    def service_actions(self) -> None:
        """Close connections that have been silent for too long; called repeatedly."""
        now = time.monotonic()
        for request, since in self._open.copy().items():
            if since is not None and now - since > _PATIENCE:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)  # its thread wakes up and closes it

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: a browser that disconnects is not an error."""


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    server_version = "bgtplanner"
    sys_version = ""
    timeout = _PATIENCE
    _TEXT: ClassVar = "text/plain; charset=utf-8"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server.heard(self.connection)
        if self.headers.get("Host", "").lower() not in self.server.hosts:
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, self._TEXT, "wrong host")
        elif self.path == "/":
            self._page()
        elif self.path == "/events" and self.command == "GET":
            self._events()
        else:
            self._answer(HTTPStatus.NOT_FOUND, self._TEXT, "the only page is /")

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - its name there
        """Log nothing: the terminal is for the run."""

    def _page(self) -> None:
        try:
            text = self.server.page.page()
        except BGTPlannerError as error:
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, self._TEXT, str(error))
        else:
            self._answer(HTTPStatus.OK, "text/html; charset=utf-8", text)

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _events(self) -> None:
        if not self.server.listeners.acquire(blocking=False):
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, self._TEXT, "too many pages are open")
            return
        try:
            self._tell()
        finally:
            self.server.listeners.release()

    def _tell(self) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        with contextlib.suppress(OSError):  # the page was closed
            for version in self.server.page.changes(self.server.stopping):
                said = ": still here" if version is None else f"event: page\ndata: {version}"
                self.wfile.write(f"{said}\n\n".encode())
            if not self.server.stopping.is_set():
                self.wfile.write(b"event: done\ndata: done\n\n")
