"""A real browser, and pages that are opened in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser.visiting import Open, Visit
from processes import PATIENCE

FLAGS = [
    "--no-sandbox",  # tests may run as root
    *("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@pytest.fixture(scope="module")  # as long as it is open, an event loop runs
def browser() -> Iterator[Any]:
    """A browser with a new, empty profile."""
    why = "no playwright: pip install it"
    sync_api = pytest.importorskip("playwright.sync_api", reason=why)
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip("no browser: install Debian's package chromium, or Google Chrome")
    with sync_api.sync_playwright() as playwright:
        try:
            started = playwright.chromium.launch(
                executable_path=found, args=FLAGS, timeout=1000 * PATIENCE
            )
        except sync_api.Error as error:
            pytest.skip(f"{found} does not start: {str(error).splitlines()[0]}")
        yield started
        started.close()


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
        context.set_default_timeout(1000 * PATIENCE)
        contexts.append(context)
        address = place.absolute().as_uri() if isinstance(place, Path) else place
        return Visit(context.new_page(), address)

    yield open_page
    for context in contexts:
        context.close()
