"""A headless browser, where there is one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install it")

FLAGS = [
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A browser with a new, empty profile."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no browser: install Debian's package chromium, or Google Chrome")
    with sync_api.sync_playwright() as playwright:
        try:
            started = playwright.chromium.launch(executable_path=found, args=FLAGS)
        except sync_api.Error as error:
            pytest.skip(f"{found} does not start: {str(error).splitlines()[0]}")
        yield started
        started.close()


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


@pytest.fixture
def visit(browser: Any) -> Iterator[Open]:
    """Open a file or an address in a window of its own."""
    contexts = []

    def open_page(
        place: Path | str, *, width: int = 1280, dark: bool = False, scripts: bool = True
    ) -> Visit:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            java_script_enabled=scripts,
        )
        contexts.append(context)
        address = place.absolute().as_uri() if isinstance(place, Path) else place
        return Visit(context.new_page(), address)

    yield open_page
    for context in contexts:
        context.close()
