"""The report page as a browser shows it: quiet, whole, usable by hand and by keyboard."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bgtplanner.report.page import render, write_report
from browser.visiting import Open
from made_runs import make_run

KINDS = ("forecast", "bgt", "paper", "nothing")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of every kind."""
    folder = tmp_path_factory.mktemp("pages")
    short = {"federation.rounds": 20}
    long_name = {"data.dataset": "csv:" + "a-very-long-name" * 8}
    gradients = {"planning.policy": "bgt", "model.name": "factorization"}
    make_run(folder / "forecast", short)
    make_run(folder / "bgt", short | gradients | {"privacy.budgets": "3:0.4,10:0.6"} | long_name)
    make_run(folder / "paper", short, preset="paper")
    nothing = make_run(folder / "nothing", short) / "summary.json"
    stars = {"scale": [1, 5], "learned": False}
    nothing.write_text(json.dumps(json.loads(nothing.read_text()) | stars))
    return {kind: write_report(folder / kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
class TestEveryPage:
    def test_quiet_and_alone_and_every_picture_is_there(
        self, visit: Open, pages: dict[str, Path], kind: str
    ) -> None:
        seen = visit(pages[kind])
        assert seen.said == []
        assert seen.requests == [pages[kind].as_uri()]
        images = seen.page.eval_on_selector_all(
            "figure img", "all => all.map(e => [e.naturalWidth, e.clientWidth, e.alt.length])"
        )
        assert images
        assert all(drawn > 250 and wide > 250 and alt > 20 for drawn, wide, alt in images)

    @pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
    def test_nothing_sticks_out_and_it_is_accessible(
        self, visit: Open, pages: dict[str, Path], kind: str, dark: bool
    ) -> None:
        seen = visit(pages[kind], dark=dark)
        for width in (1280, 360):
            seen.page.set_viewport_size({"width": width, "height": 900})
            assert seen.overflow() <= 0, width
        background = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
        bright = sum(map(int, background[4:-1].split(","))) > 382
        assert bright != dark
        seen.page.set_viewport_size({"width": 800, "height": 900})
        axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe")
        found = axe.Axe().run(seen.page)
        serious = [
            (entry["id"], entry["impact"], [node["html"][:120] for node in entry["nodes"]][:3])
            for entry in found.response["violations"]
            if entry["impact"] in ("serious", "critical")
        ]
        assert serious == []


class TestARun:
    def test_lists_fit_on_a_phone(self, visit: Open, pages: dict[str, Path]) -> None:
        page = visit(pages["forecast"], width=400).page
        lists = page.locator(".lists table")
        assert lists.count() == 3
        assert lists.first.locator("caption").inner_text() == "User 1"
        assert lists.first.locator("tbody tr").count() == 5
        boxes = lists.evaluate_all(
            "all => all.map(e => [e.scrollWidth, e.parentNode.clientWidth])"
        )
        assert all(wide <= room for wide, room in boxes), "no list needs scrolling on a phone"


def test_live_during_a_run(visit: Open, tmp_path: Path) -> None:
    """The page of a run that goes on reloads itself, until it is that of the end."""
    folder, file = make_run(tmp_path / "run", rounds_done=3), tmp_path / "report.html"
    file.write_text(render(folder, state="running"), encoding="utf-8")
    seen = visit(file)
    seen.page.locator("h1", has_text="Round 3 of").wait_for()
    assert seen.page.get_by_label("running: reload every 5 seconds").is_checked()
    file.write_text(render(make_run(tmp_path / "whole")), encoding="utf-8")
    seen.page.locator("h1", has_text="rounds of learning together").wait_for()
    assert seen.page.get_by_role("checkbox").count() == 0
    assert seen.said == []
    assert set(seen.requests) == {file.as_uri()}
