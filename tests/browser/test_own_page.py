"""A person's own page in a browser: their ratings, their ledger, nothing stored, one tab."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from browser.visiting import Open
from flower.doubles import own_page, taken_part
from processes import Processes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return taken_part(tmp_path / "own")


@pytest.fixture
def address(folder: Path, processes: Processes) -> str:
    return own_page(folder, processes)


def test_it_shows_what_is_the_persons_own_and_keeps_nothing(
    visit: Open, folder: Path, address: str, command_line: Any
) -> None:
    seen = visit(address)
    page = seen.page
    page.locator("#lines li").first.wait_for()
    rows = (folder / "ratings.csv").read_text().splitlines()[1:]
    assert page.locator("#mine summary").inner_text() == f"Your ratings: {len(rows)}"
    ledger = folder / "state" / "ledger.sqlite"
    shown = json.loads(command_line("ledger", "show", ledger, "--json").out)["classes"][0]
    said = page.locator("#said").inner_text()
    assert "Payments so far: 5," in said
    epsilon, left = (
        float(of) for of in re.findall(r"epsilon ([\d.]+);.* ([\d.]+)% of it", said)[0]
    )
    assert 0 <= epsilon - shown["epsilon_spent_most"] < 0.01
    assert 0 <= 100 * shown["left_least"] / shown["capacity"] - left < 0.1
    page.locator("#spent summary").click()
    assert page.locator("#rounds li").count() == 5
    newest = page.locator("#rounds li").first.inner_text()
    assert "Training 2, round 2: a charge of 0.08." in newest
    assert f"Epsilon so far: {epsilon:g}. Left: {left:g}%." in newest
    asked = [of.removeprefix(address.partition("#")[0]) for of in seen.requests]
    assert asked.count("mine") == 1
    assert address.partition("#token=")[2] not in page.url
    page.locator("#results li").first.get_by_role("radio").first.click()
    assert page.locator("#mine summary").inner_text() == f"Your ratings: {len(rows) + 1}"
    assert len(seen.requests) == len(asked), "what is tried out is sent nowhere"
    assert page.evaluate("Object.keys(localStorage)") == []
    assert page.evaluate("navigator.serviceWorker.getRegistrations().then(of => of.length)") == 0
    assert page.evaluate("caches.keys()") == []
    page.reload()  # the same tab may ask again
    page.locator("#lines li").first.wait_for()
    assert page.locator("#mine summary").inner_text() == f"Your ratings: {len(rows)}"
    assert seen.said == []
    other = visit(address)
    other.page.locator("#problem", has_text="This address was used already").wait_for()
    assert other.page.locator("main").is_hidden()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_nothing_sticks_out_and_it_is_accessible(
    visit: Open, address: str, width: int, dark: bool
) -> None:
    seen = visit(address, width=width, dark=dark)
    seen.page.locator("#lines li").first.wait_for()
    seen.page.locator("#spent summary").click()
    assert seen.overflow() <= 0
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe")
    found = axe.Axe().run(seen.page).response["violations"]
    assert [(of["id"], [node["html"] for node in of["nodes"]][:3]) for of in found] == []
