"""What is answered: lists for histories that are sent, what the model holds, and the page."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from bgtplanner.errors import BGTPlannerError, InputError, NothingLearnedError
from bgtplanner.published.model import Model, load_model
from bgtplanner.serving import MODEL, PAGE, facts_of
from bgtplanner.serving.gate import Gate
from bgtplanner.text import LONGEST_LABEL

_Label = Annotated[str, Field(max_length=LONGEST_LABEL)] | int | float


class Asked(BaseModel, extra="forbid", allow_inf_nan=False, strict=True):
    """A history, ratings by item or only the items, and what list of it is wanted."""

    history: dict[_Label, float] | list[_Label] = Field(default_factory=dict)
    top: int = Field(10, ge=1, le=100)
    exclude: list[_Label] = Field(default_factory=list)
    only: list[_Label] | None = None
    explain: bool = True


class LiveModel:
    """Follows a model file: a new one is taken up, and one that cannot be used is left alone.

    `current` is the model with the bytes of its file. A request keeps what was current when it
    began, so none is dropped.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.taken_up, self.refused, self._due = path, 0, 0, 0.0
        self._seen, self.current = self._state(), self._read()

    async def newest(self) -> tuple[Model, bytes]:
        """Return what is current, after a look once a second, while others are answered."""
        if (now := time.monotonic()) >= self._due:
            self._due = now + 1.0
            await asyncio.to_thread(self.look)
        return self.current

    def look(self) -> None:
        """Take up the file if it has changed and makes lists; otherwise keep the last good one."""
        state, log = self._state(), logging.getLogger(__name__)
        if state == self._seen:
            return
        self._seen = state
        try:
            self.current = self._read()
        except (BGTPlannerError, OSError) as error:
            self.refused += 1
            log.warning("The last good model is kept. %s", error)
        else:
            self.taken_up += 1
            log.warning("A new model is served: %s", self.path)

    def _read(self) -> tuple[Model, bytes]:
        model = load_model(self.path)
        model.recommend(top=1)  # refuses one that makes no lists
        return model, self.path.read_bytes()

    def _state(self) -> tuple[int, ...]:
        found = self.path.stat() if self.path.exists() else None
        return (found.st_mtime_ns, found.st_size, found.st_ino) if found else ()


class Endpoints:
    """What is answered, from the current model, and by whom it is reached: see `Gate`."""

    def __init__(
        self, live: LiveModel, hosts: Collection[str], cors: Sequence[str], rate: int, most: int
    ) -> None:
        self.live = live
        routes = [
            Route("/recommend", self.recommend, methods=["POST"]),
            Route("/items", self.items),
            Route("/model", self.model),
            Route("/metrics", self.metrics),
            Route("/healthz", lambda _: JSONResponse({"status": "ok"})),
            Route("/openapi.json", lambda _: FileResponse(PAGE.parent / "openapi.json")),
            Route(f"/{MODEL}", self.file),
        ]
        page = Mount("/", StaticFiles(directory=PAGE, html=True))
        kinds = (HTTPException, InputError, NothingLearnedError, ValidationError, ClientDisconnect)
        known: Any = dict.fromkeys(kinds, self.refused)
        app: Any = Starlette(routes=[*routes, page], exception_handlers=known)
        if cors:
            app = CORSMiddleware(app, cors, ("GET", "POST"), ("content-type",))
        self.gate = Gate(app, hosts, {"/", *(route.path for route in routes)}, rate, most)

    async def refused(self, _: Request, error: Exception) -> Response:
        """Say why there is no answer; no item and no rating is quoted."""
        status, problem = 422 if isinstance(error, NothingLearnedError) else 400, str(error)
        if isinstance(error, HTTPException):
            status, problem = error.status_code, error.detail
        elif isinstance(error, ValidationError):
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            known = {*Asked.model_fields}.intersection(first["loc"][:1])
            problem = f"{''.join(map(str, known)) or 'request'}: {first['msg']}"
        return JSONResponse({"error": problem}, status)

    async def recommend(self, request: Request) -> Response:
        """Answer with the list of a history, which is neither stored nor logged."""
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            raise HTTPException(415, "content-type: expected application/json")
        asked = Asked.model_validate_json(await request.body())
        model, _ = await self.live.newest()
        rows = await run_in_threadpool(model.recommend, **dict(asked))
        items = [dict(zip(row._fields[1:], row[1:], strict=True)) for row in rows]  # no user
        return JSONResponse({"items": items, "note": model.verdict().headline})

    async def items(self, _: Request) -> Response:
        """Answer with all items; a search would show in the logs of proxies."""
        model = (await self.live.newest())[0]
        pairs = itertools.zip_longest(model.items, model.titles or ())
        found = [{"item": item, "title": title} for item, title in pairs]
        return await run_in_threadpool(JSONResponse, {"total": len(found), "items": found})

    async def model(self, _: Request) -> Response:
        """Answer with what the model is, what it promises, and what its lists are worth."""
        model, content = await self.live.newest()
        return JSONResponse(facts_of(model) | {"sha256": hashlib.sha256(content).hexdigest()})

    async def file(self, _: Request) -> Response:
        """Answer with the model file, as the page reads it."""
        return Response((await self.live.newest())[1], media_type="application/octet-stream")

    async def metrics(self, _: Request) -> Response:
        """Answer with what was counted, for Prometheus."""
        own = [f"bgtplanner_models_taken_up_total {self.live.taken_up}"]
        own += [f"bgtplanner_models_refused_total {self.live.refused}", ""]
        return Response("\n".join([*self.gate.metrics(), *own]), media_type="text/plain")


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
