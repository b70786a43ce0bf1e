"""What a page in a browser did: what it said, what it asked for, how wide it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Visit:
    """A page, what it said in the console and what it asked for."""

    def __init__(self, page: Any, address: str) -> None:
        self.page = page
        self.said: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(address)

    def overflow(self) -> int:
        """Pixels by which the page is wider than its window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))


Open = Callable[..., Visit]
