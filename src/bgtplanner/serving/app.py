"""The endpoint: lists for histories that are sent, what the model holds, and the page."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from bgtplanner.errors import InputError, NothingLearnedError
from bgtplanner.serving.gate import Gate
from bgtplanner.serving.live import LiveModel
from bgtplanner.serving.site import MODEL, PAGE
from bgtplanner.text import LONGEST_LABEL

_BYTES = "application/octet-stream"
_Label = Annotated[str, Field(max_length=LONGEST_LABEL)] | int | float


class Asked(BaseModel, extra="forbid", allow_inf_nan=False, strict=True):
    """A history, ratings by item or only the items, and what list of it is wanted."""

    history: dict[_Label, float] | list[_Label] = Field(default_factory=dict)
    top: int = Field(10, ge=1, le=100)
    exclude: list[_Label] = Field(default_factory=list)
    only: list[_Label] | None = None
    explain: bool = True


class Part(BaseModel, extra="forbid"):
    """Which items are wanted: `limit` of them, after the first `offset`."""

    offset: int = Field(0, ge=0)
    limit: int = Field(100, ge=1, le=1000)


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
            Route(f"/{MODEL}", lambda _: Response(live.current[1], media_type=_BYTES)),
        ]
        page = Mount("/", StaticFiles(directory=PAGE, html=True))
        kinds = (HTTPException, InputError, NothingLearnedError, ValidationError, ClientDisconnect)
        known: Any = dict.fromkeys(kinds, self.refused)
        app: Any = Starlette(
            routes=[*routes, page], exception_handlers=known, lifespan=live.followed
        )
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
            known = {*Asked.model_fields, *Part.model_fields}.intersection(first["loc"][:1])
            problem = f"{''.join(map(str, known)) or 'request'}: {first['msg']}"
        return JSONResponse({"error": problem}, status)

    async def recommend(self, request: Request) -> Response:
        """Answer with the list of a history, which is neither stored nor logged."""
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            raise HTTPException(415, "content-type: expected application/json")
        asked, (model, _) = Asked.model_validate_json(await request.body()), self.live.current
        rows = await run_in_threadpool(model.recommend, **dict(asked))
        items = [dict(zip(row._fields[1:], row[1:], strict=True)) for row in rows]  # no user
        return JSONResponse({"items": items, "note": model.verdict().headline})

    async def items(self, request: Request) -> Response:
        """Answer with some items; a search would show in the logs of proxies."""
        part, (model, _) = Part.model_validate(dict(request.query_params)), self.live.current
        some = slice(part.offset, part.offset + part.limit)
        titles: list[Any] = model.titles or [None] * len(model.items)
        pairs = zip(model.items[some], titles[some], strict=True)
        found = [{"item": item, "title": title} for item, title in pairs]
        return JSONResponse({"total": len(model.items), "items": found})

    async def model(self, _: Request) -> Response:
        """Answer with what the model is, what it promises, and what its lists are worth."""
        model, content = self.live.current
        scale = None if model.implicit else [model.low, model.high]
        return JSONResponse({
            "model": model.ranker, "items": len(model.items), "features": model.names,
            "scale": scale, "verdict": model.verdict()._asdict(), "guarantee": model.guarantee,
            "training": model.training, "sha256": hashlib.sha256(content).hexdigest(),
        })  # fmt: skip

    async def metrics(self, _: Request) -> Response:
        """Answer with what was counted, for Prometheus."""
        own = [f"bgtplanner_models_taken_up_total {self.live.taken_up}"]
        own += [f"bgtplanner_models_refused_total {self.live.refused}", ""]
        return PlainTextResponse("\n".join([*self.gate.metrics(), *own]))
