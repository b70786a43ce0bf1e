"""A person's own page: their ratings, and what was spent, for whoever has the address, once."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from bgtplanner.serving.gate import Gate
from bgtplanner.serving.site import MODEL, PAGE


class OwnPage:
    """Serves the page with what is the person's own, which `mine` returns, to one tab.

    The token is in the part of the address that browsers do not send. The page exchanges it for a
    secret that only its tab has; from then on the token is refused. Requests have to name the one
    `host` that we listen at, and to come from our page: others cannot set the secret's header.
    """

    def __init__(self, model: Path, mine: Callable[[], Mapping[str, Any]], host: str) -> None:
        self._mine, self._origin = mine, f"http://{host}"
        self._secret, token = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        self._valid, self.address = [self._secret, token], f"{self._origin}/#token={token}"
        page = (PAGE / "index.html").read_text("utf-8").replace("<html", "<html data-own", 1)
        app = Starlette(routes=[
            Route("/mine", self.mine, methods=["POST"]),
            Route(f"/{MODEL}", lambda _: FileResponse(model)),
            *(Route(path, lambda _: HTMLResponse(page)) for path in ("/", "/index.html")),
            Mount("/", StaticFiles(directory=PAGE)),
        ])  # fmt: skip
        self.gate = Gate(app, {host.rpartition(":")[0]}, (), 100, 1024, cache=b"no-store")

    async def mine(self, request: Request) -> Response:
        """Answer with what is the person's own, and the secret by which to ask again."""
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        same = [secrets.compare_digest(given.encode(), of.encode()) for of in self._valid]
        ours = request.headers.get("origin") == self._origin
        if not (ours and kind == "Bearer" and any(same)):
            return JSONResponse({"error": "the address works once; start 'serve' again"}, 403)
        self._valid = [self._secret]
        return JSONResponse({"secret": self._secret, **self._mine()})
