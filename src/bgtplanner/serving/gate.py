"""What every request passes: whom it may name, how much and how often, and what is counted."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_PATIENCE = 60.0  # seconds that a request may take, its body and its answer included
_HEADERS = {
    b"content-security-policy": b"frame-ancestors 'none'", b"referrer-policy": b"no-referrer",
    b"x-content-type-options": b"nosniff",
}  # fmt: skip


class Gate:
    """Lets requests pass that name a host of ours and are within the limits, and counts them.

    Nothing of a request is kept but its route, status and time. One for another host is refused,
    since a page on the web can give its own name to a server on the machine of whoever reads it.
    An address may make `rate` requests within a second (0: any number), of `most` bytes each.
    """

    def __init__(
        self, app: ASGIApp, hosts: Collection[str], routes: Collection[str], rate: int, most: int,
        cache: bytes = b"no-cache",
    ) -> None:  # fmt: skip
        self._app, self._hosts, self._routes = app, hosts, routes
        self._rate, self._most, self._headers = rate, most, _HEADERS | {b"cache-control": cache}
        self._second, self._asked = 0, Counter[str]()
        self._answers, self._seconds = Counter[tuple[str, int]](), defaultdict[str, float](float)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse; an error of ours is logged by its kind, as its words may quote."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began, status = time.perf_counter(), 0

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *self._headers.items()]
            await send(message)

        failed = None
        try:
            async with asyncio.timeout(_PATIENCE):
                await (self._refused(scope) or self._app)(scope, receive, sent)
        except TimeoutError:
            failed = _refusal(408, f"it took more than {_PATIENCE:g} seconds")
        except Exception as error:
            logging.getLogger(__name__).error("A fault of ours: %s", type(error).__name__)
            failed = _refusal(500, "a fault of ours")
        if failed and not status:
            await failed(scope, receive, sent)
        route = scope["path"] if scope["path"] in self._routes else "other"
        self._answers[route, status] += 1
        self._seconds[route] += time.perf_counter() - began
        return None

    def _refused(self, scope: Scope) -> ASGIApp | None:
        """Return what refuses a request that may not pass."""
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        named = headers.get(b"host", "").lower()
        host = named.partition("]")[0] + "]" if named[:1] == "[" else named.partition(":")[0]
        if host not in self._hosts:
            return _refusal(421, "not under this name; see --allow-host")
        if b"transfer-encoding" in headers:
            return _refusal(411, "a body needs a content-length")
        if int(headers.get(b"content-length", "0")) > self._most:
            return _refusal(413, f"the body has more than {self._most:,} bytes")
        if (second := int(time.monotonic())) != self._second:
            self._second, self._asked = second, Counter()
        address = (scope.get("client") or ("",))[0]
        self._asked[address] += 1
        if 0 < self._rate < self._asked[address] and scope["path"] != "/healthz":
            return _refusal(429, "too many requests; wait a second")
        return None

    def metrics(self) -> Iterator[str]:
        """Yield what was counted, as Prometheus reads it."""
        for (route, status), number in sorted(self._answers.items()):
            yield f'bgtplanner_requests_total{{route="{route}",status="{status}"}} {number}'
        for route, spent in sorted(self._seconds.items()):
            yield f'bgtplanner_seconds_total{{route="{route}"}} {spent:.6f}'


def _refusal(status: int, problem: str) -> ASGIApp:
    return JSONResponse({"error": problem}, status)
