"""The report page as a browser shows it: quiet, whole, usable by hand and by keyboard."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bgtplanner.report.live import LivePage, LiveServer
from bgtplanner.report.page import write_report
from bgtplanner.runs.study import Study, Variation
from bgtplanner.runs.sweeps import parse_axis
from made_runs import make_run, make_study
from processes import PATIENCE, Processes, wait_until

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
            started = playwright.chromium.launch(
                executable_path=found, args=FLAGS, timeout=1000 * PATIENCE
            )
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
        context.set_default_timeout(1000 * PATIENCE)
        contexts.append(context)
        address = place.absolute().as_uri() if isinstance(place, Path) else place
        return Visit(context.new_page(), address)

    yield open_page
    for context in contexts:
        context.close()


KINDS = ("forecast", "bgt", "paper", "unlimited", "nothing", "grid", "sweep")


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
    make_run(folder / "unlimited", short | {"privacy.mechanism": "none"})
    nothing = make_run(folder / "nothing", short) / "summary.json"
    stars = {"scale": [1, 5], "learned": False}
    nothing.write_text(json.dumps(json.loads(nothing.read_text()) | stars))
    asked = Study(
        datasets=("filmtrust",),
        mechanisms=("gaussian", "laplace"),
        policies=("bgt", "uniform", "adap", "unlimited"),
        seeds=(0, 1),
        preset="paper",
        settings=short,
    )
    make_study(folder / "grid", asked, leave_out=1)
    varied = Variation(axes=(parse_axis("privacy.epsilon=1,3,10"),))
    asked = Study(policies=("bgt", "uniform"), seeds=(0, 1), settings=short, variations=(varied,))
    make_study(folder / "sweep", asked)
    return {kind: write_report(folder / kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
class TestEveryPage:
    def test_quiet_and_alone_and_every_picture_is_there(
        self, visit: Open, pages: dict[str, Path], kind: str
    ) -> None:
        seen = visit(pages[kind])
        assert seen.said == []
        assert seen.requests == [pages[kind].as_uri()]
        boxes = seen.page.eval_on_selector_all(
            "figure:not([hidden]) svg",
            "all => all.map(e => [e.getBoundingClientRect().width,"
            " e.querySelectorAll('path').length])",
        )
        assert len(boxes) >= 1
        assert all(width > 250 and paths > 5 for width, paths in boxes)
        labels = seen.page.eval_on_selector_all(
            "figure [role=img]", "all => all.map(e => e.getAttribute('aria-label'))"
        )
        assert all(len(label) > 20 for label in labels)

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
    def test_lists(self, visit: Open, pages: dict[str, Path]) -> None:
        page = visit(pages["forecast"], width=400).page
        lists = page.locator("#lists table")
        assert lists.count() == 3
        assert lists.first.locator("caption").inner_text() == "User 1"
        assert lists.first.locator("tbody tr").count() == 5
        assert lists.first.get_by_text("A Film of 1990").is_visible()
        boxes = lists.evaluate_all(
            "all => all.map(e => [e.scrollWidth, e.parentNode.clientWidth])"
        )
        assert all(wide <= room for wide, room in boxes), "no list needs scrolling on a phone"

    def test_who_gains(self, visit: Open, pages: dict[str, Path]) -> None:
        page = visit(pages["bgt"]).page
        for name in ("Gain over a client alone, by number of ratings", "by budget"):
            figure = page.locator("figure", has_text=name).first
            assert figure.is_visible()
            assert "includes zero" in figure.locator(".axis").inner_text()
        table = page.get_by_role("region", name="Error in the last round")
        assert "-5.0%" in table.get_by_role("row", name="up to 20 ratings").inner_text()
        assert "These groups lose: up to 20 ratings" in page.locator("main").inner_text()

    def test_nothing_learned(self, visit: Open, pages: dict[str, Path]) -> None:
        page = visit(pages["nothing"]).page
        assert page.locator("h1").inner_text() == "Nothing was learned from others."
        assert "What helps:" in page.locator(".lead").inner_text()
        assert "stars" in page.locator(".tiles .warn .value").first.inner_text()

    def test_all_of_it_without_scripts_and_on_paper(
        self, visit: Open, pages: dict[str, Path]
    ) -> None:
        for scripts in (True, False):
            page = visit(pages["forecast"], scripts=scripts).page
            if scripts:
                page.emulate_media(media="print")
            assert page.locator("#lists table:visible").count() == 3
            assert page.get_by_role("region", name="Error in the last round").is_visible()
            assert page.locator("figure").count() == page.locator("figure:visible").count()


class TestByHand:
    def test_theme(self, visit: Open, pages: dict[str, Path]) -> None:
        page = visit(pages["forecast"]).page
        before = page.evaluate("getComputedStyle(document.body).backgroundColor")
        page.get_by_role("button", name="dark").click()
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert dark != before
        assert page.get_by_role("button", name="dark").get_attribute("aria-pressed") == "true"
        page.get_by_role("button", name="auto").click()
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == before

    def test_series(self, visit: Open, pages: dict[str, Path]) -> None:
        page = visit(pages["grid"]).page
        series = page.locator('figure:not([hidden]) .series[data-series="uniform"]')
        shown = series.count()
        assert shown > 5
        button = page.get_by_role("button", name="uniform")
        button.click()
        hidden = series.evaluate_all(
            "all => all.filter(e => getComputedStyle(e).display == 'none').length"
        )
        assert (hidden, button.get_attribute("aria-pressed")) == (shown, "false")
        others = page.locator('figure:not([hidden]) .series[data-series="bgt"]')
        assert others.evaluate_all("all => all.every(e => getComputedStyle(e).display != 'none')")
        button.click()
        assert button.get_attribute("aria-pressed") == "true"

    def test_metric(self, visit: Open, pages: dict[str, Path]) -> None:
        page = visit(pages["grid"]).page
        assert page.locator('figure[data-view="rmse"]').first.is_visible()
        assert not page.locator('figure[data-view="f1"]').first.is_visible()
        page.get_by_role("button", name="F1").click()
        assert not page.locator('figure[data-view="rmse"]').first.is_visible()
        assert page.locator('figure[data-view="f1"]').first.is_visible()

    def test_by_keyboard(self, visit: Open, pages: dict[str, Path]) -> None:
        page = visit(pages["grid"]).page
        for _ in range(12):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.dataset.toggle") == "uniform":
                break
        page.keyboard.press("Space")
        assert page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "false"
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"

    def test_settings_unfold(self, visit: Open, pages: dict[str, Path]) -> None:
        page = visit(pages["forecast"]).page
        page.get_by_text("All settings").click()
        assert page.get_by_text("[federation]").is_visible()

    def test_without_scripts(self, visit: Open, pages: dict[str, Path]) -> None:
        page = visit(pages["grid"], scripts=False).page
        assert page.locator("figure").count() == page.locator("figure:visible").count()
        assert page.locator("button:visible").count() == 0

    def test_print(self, visit: Open, pages: dict[str, Path]) -> None:
        page = visit(pages["grid"], dark=True).page
        page.emulate_media(media="print")
        assert page.locator("figure").count() == page.locator("figure:visible").count()
        assert page.locator("button:visible").count() == 0
        ink = page.evaluate("getComputedStyle(document.body).color")
        assert ink == "rgb(0, 0, 0)"


RUN = """
import sys, time
from pathlib import Path
from bgtplanner import simulate

class Gate:
    '''A run that waits for leave to go on, so that no test depends on how fast it is.'''
    def started(self, *_): pass
    def finished(self, *_): pass
    def round(self, record, total):
        leave = Path(sys.argv[2]) / str(record["round"] + 1)
        while record["round"] + 1 in (3, 9) and not leave.exists():
            time.sleep(0.02)

small = {"synthetic.clients": 20, "synthetic.items": 15, "synthetic.ratings_per_client": 8}
simulate("synthetic", rounds=12, settings=small, out=sys.argv[1], observer=Gate())
"""


@pytest.mark.usefixtures("ctrl_c")
def test_live_during_a_run(visit: Open, processes: Processes, tmp_path: Path) -> None:
    """A run writes the folder, `report --live` shows it, and the page follows to the end."""
    command = Path(sys.executable).parent / "bgtplanner"
    folder, reservation = tmp_path / "run", tmp_path / "leave"
    reservation.mkdir()
    quick = os.environ | {"PYTHONUNBUFFERED": "1"}
    run = processes.start([sys.executable, "-c", RUN, folder, reservation], env=quick)
    begun = folder / "rounds.jsonl"
    wait_until(lambda: begun.exists() or run.poll() is not None, "the first round")
    server = processes.start(
        [command, "report", folder, "--live", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=quick,
    )
    assert server.stdout is not None
    lines = [server.stdout.readline() for _ in range(3)]
    address = json.loads("".join(lines))["address"]
    seen = visit(address)
    page = seen.page
    page.locator("h1", has_text="Round 3 of 12").wait_for()
    page.get_by_role("button", name="one constant for all").click()
    page.locator("#live", has_text="live").wait_for()
    (reservation / "3").touch()
    page.locator("h1", has_text="Round 9 of 12").wait_for()
    constant = page.locator('.series[data-series="constant"]').first
    assert constant.evaluate("e => getComputedStyle(e).display") == "none", "still hidden"
    (reservation / "9").touch()
    page.locator("h1", has_text="of learning together").wait_for()
    page.locator("#live", has_text="finished").wait_for()
    assert seen.said == []
    assert all(request.startswith(address) for request in seen.requests)
    assert run.wait(PATIENCE) == 0
    assert not (folder / "report.html").exists()
    server.send_signal(signal.SIGINT)  # Ctrl-C
    output, errors = server.communicate(timeout=PATIENCE)
    assert (server.returncode, output, errors) == (0, "", "")


def test_live_until_a_grid_is_finished(visit: Open, tmp_path: Path) -> None:
    """The page of a study follows its cells, and says when there are no more to come."""
    asked = Study(policies=("uniform",), seeds=(0, 1), settings={"federation.rounds": 6})
    folder = make_study(tmp_path / "grid", asked, leave_out=1)
    whole = make_study(tmp_path / "whole", asked)
    server = LiveServer(LivePage(folder))
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        page = visit(server.address).page
        page.locator("#live", has_text="live").wait_for()
        page.get_by_text("Running: 1 of 2 cells are done").wait_for()
        for cell in asked.cells():
            if not (folder / cell.place).exists():
                (whole / cell.place).rename(folder / cell.place)
        page.get_by_text("Finished: 2 of 2 cells are done.").wait_for()
        page.locator("#live", has_text="finished").wait_for()
    finally:
        server.shutdown()
        thread.join()
