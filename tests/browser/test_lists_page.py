"""The page that makes lists in the browser: equal to Python, silent, and usable by everybody."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgtplanner.commands.recommend import write_page
from bgtplanner.data.tables import Histories
from bgtplanner.published.model import Model
from bgtplanner.published.ranking import RANKERS
from bgtplanner.serving import PAGE
from browser.visiting import Open, Visit
from made import TASTES, tastes

RANDOM = np.random.default_rng(5)
OTHERS = TASTES | {"factor_shrinkage": 3.0, "bias_shrinkage": 2.0}
YEARS = [f"year: {year} to {year + of}" for year, of in ((1971, 3), (1984, 16), (1999, 4))]
NAMES = ["is_new", "title: words 3", "size: 1 to 2.5", *YEARS, *(f"genre: {at}" for at in "ABCDE")]


def featured(number: int, axes: int, **changes: Any) -> Model:
    """A model with features of every kind."""
    features = RANDOM.random((number, len(NAMES)), np.float32) * (RANDOM.random(len(NAMES)) < 0.6)
    released = tastes(number, axes, seed=number).released
    released[:, 5:] *= np.linspace(0.4, 1.0, axes)  # not all of them stand out
    return tastes(number, axes, names=NAMES, features=features, released=released, **changes)


MODELS = {
    "tastes": featured(300, 5), "as large as MovieLens 1M": featured(3883, 8),
    "clicks": featured(100, 3, implicit=True), "points": featured(100, 0, low=0.0, high=100.0),
    "features alone": featured(200, 0, learned=False), "untitled": featured(60, 2, titles=None),
    "biases": tastes(200, ranker="biases"),
    "factorization": tastes(200, 4, ranker="factorization", settings=OTHERS),
}  # fmt: skip
RANK = """async (people) => {
    const { readModel } = await import(new URL("model.js", location));
    const { verdictOf } = await import(new URL("reasons.js", location));
    const file = await (await fetch("public.model")).arrayBuffer();
    const model = await readModel(new Uint8Array(file));
    const lists = people.map((mine) => {
        const { rows, ranked } = model.recommend(new Map(mine));
        return [rows, [...ranked.scores]];
    });
    return [lists, verdictOf(model)];
}"""


ASKED: list[str] = []
"""What web servers were asked for."""


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        ASKED.append(self.requestline)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Writes the page of a model to a plain web server."""
    servers: list[Any] = []

    def write(model: Model, spoil: bytes = b"") -> str:
        write_page(tmp_path, model)
        with (tmp_path / "public.model").open("ab") as file:
            file.write(spoil)
        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=tmp_path)))
        threading.Thread(target=servers[-1].serve_forever).start()
        return f"http://127.0.0.1:{servers[-1].server_port}/"

    yield write
    for server in servers:
        server.shutdown()
        server.server_close()


def opened(visit: Open, address: str, **how: Any) -> Visit:
    seen = visit(address, **how)
    seen.page.locator("#lines li").first.wait_for()
    seen.page.evaluate("navigator.serviceWorker.ready")
    seen.page.wait_for_load_state("networkidle")
    return seen


def titles(page: Any, where: str = "#lines") -> list[str]:
    return list(page.locator(f"{where} .title").all_text_contents())


@pytest.mark.parametrize("kind", MODELS)
def test_lists_scores_and_reasons_are_those_of_python(
    visit: Open, site: Callable[..., str], tmp_path: Path, kind: str
) -> None:
    model, people, random = MODELS[kind], [], np.random.default_rng(7)
    for size in random.integers(0, 40, 200).tolist():
        items = random.choice(model.items, size, replace=False).tolist()
        ratings = model.low + (model.high - model.low) / 4 * random.integers(0, 5, size)
        given = [None] * size if size % 5 == 4 else ratings.tolist()
        people.append(list(zip(items, given, strict=True)))
    lists, verdict = visit(site(model)).page.evaluate(RANK, people)
    assert verdict == [model.verdict().headline, *model.verdict().reasons]
    exact = (of.astype(np.float64) for of in (model.released, model.features))
    ranker = RANKERS[model.ranker](*exact, model.settings, model.implicit)
    for mine, (rows, scores) in zip(people, lists, strict=True):
        picked = model.implicit or None in dict(mine).values()
        expected = model.recommend([of for of, _ in mine] if picked else dict(mine))
        assert [row["item"] for row in rows] == [row.item for row in expected]
        assert [row["reason"] for row in rows] == [row.reason for row in expected]
        item = np.array([model.items.index(of) for of, _ in mine], dtype=np.int64)
        value = np.array([np.nan if picked else of for _, of in mine], dtype=np.float64)
        value = (value - model.low) / (model.high - model.low)
        ranked = ranker.ranked(Histories(np.array([0, len(mine)]), item, value))
        np.testing.assert_allclose(scores, ranked.scores[0], rtol=1e-6, atol=1e-6)
    assert (tmp_path / "public.model").stat().st_size < 1_500_000


def test_whoever_rates_sends_nothing_and_needs_no_network(
    visit: Open, site: Callable[..., str]
) -> None:
    seen = opened(visit, site(tastes()))
    page, before = seen.page, titles(seen.page)
    seen.requests.clear()
    ASKED.clear()
    page.locator("#results li").nth(0).get_by_role("radio").nth(4).click()
    page.get_by_label("Search by title").fill("no. 7")
    page.locator("#results li").first.get_by_role("radio").nth(1).click()
    page.get_by_label("Only").select_option("War")
    page.get_by_label("Only").select_option("everything")
    page.get_by_role("button", name="Show more").click()
    rated = titles(page, "#rated")
    assert "Film No. 7" in rated
    assert len(rated) == 2
    assert len(titles(page)) == 20
    assert not {*rated} & {*titles(page)}
    assert titles(page)[:10] != before
    assert (seen.requests, ASKED) == ([], [])
    page.context.set_offline(True)
    page.reload()
    page.locator("#lines li").first.wait_for()
    assert titles(page, "#rated") == rated, "both are kept by the browser: ratings and page"
    assert page.evaluate("document.cookie") == ""
    assert [of for of in seen.said if "ERR_INTERNET_DISCONNECTED" not in of] == []


def test_by_keyboard_and_for_a_screen_reader(visit: Open, site: Callable[..., str]) -> None:
    page = opened(visit, site(tastes())).page
    first = titles(page)[0]
    stars = page.locator("#lines").get_by_role("radiogroup", name=f"Rate {first}")
    stars.get_by_role("radio").first.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert titles(page)[0] == first, "moving does not rate"
    page.keyboard.press("Enter")
    assert titles(page)[0] != first
    assert page.locator("#lines li").first.locator(":focus").count() == 1
    assert page.locator("#changed").inner_text().endswith(f"First: {titles(page)[0]}.")
    page.locator("#mine summary").click()
    chosen = page.locator("#rated").get_by_role("radio", checked=True)
    assert chosen.get_attribute("aria-label") == "4 of 5"
    chosen.press("Enter")
    assert titles(page, "#rated") == []
    assert page.locator("#promise").inner_text().count("Promised.") == 1


def test_ratings_come_and_go_in_files(
    visit: Open, site: Callable[..., str], tmp_path: Path
) -> None:
    page, mine = opened(visit, site(tastes())).page, tmp_path / "mine.csv"
    for content, said in (
        ("item,rating\nfilm3,4\nelsewhere,2.5\n", "Loaded: 2."), ('{"film4": 5}', "Loaded: 1."),
        ('{"film5": 6}', "lies outside the scale, 1 to 5"), ("film1,a\nfilm2,b", "no ratings"),
    ):  # fmt: skip
        mine.write_text(content)
        page.locator("#import").set_input_files(mine)
        page.locator("#told", has_text=said).wait_for()
    page.locator("#mine summary", has_text="Your ratings: 3").wait_for()
    assert "does not know" in str(page.locator("#unknown").text_content())
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save to a file").click()
    kept = json.loads(Path(saved.value.path()).read_text())
    assert kept == {"film3": 4, "elsewhere": 2.5, "film4": 5}
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Erase all").click()
    assert "none yet" in page.locator("#mine summary").inner_text()
    assert page.evaluate("Object.values(localStorage)") == ["[]"]


def test_what_is_damaged_or_foreign_does_no_harm(visit: Open, site: Callable[..., str]) -> None:
    seen = visit(site(tastes(), spoil=b"x"))
    seen.page.locator("#problem", has_text="damaged or was altered").wait_for()
    assert seen.page.locator("main").is_hidden()
    evil = "<img src=x onerror=alert(1)><script>alert(1)</script>"
    seen = opened(visit, site(tastes(titles=[evil] * 30)))
    assert titles(seen.page)[0] == evil
    assert seen.page.locator("main img, main script").count() == 0
    assert seen.said == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_nothing_sticks_out_and_it_is_accessible(
    visit: Open, site: Callable[..., str], width: int, dark: bool
) -> None:
    seen = opened(visit, site(MODELS["tastes"]), width=width, dark=dark)
    for row in range(4):
        seen.page.locator("#results li").nth(row).get_by_role("radio").nth(row).click()
    seen.page.locator("#mine summary").click()
    assert seen.overflow() <= 0
    assert seen.said == []
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe")
    found = axe.Axe().run(seen.page).response["violations"]
    assert [(of["id"], [node["html"] for node in of["nodes"]][:3]) for of in found] == []


def test_all_words_stand_in_one_file() -> None:
    keys = set(re.findall(r' "([a-z0-9.]+)": "', (PAGE / "texts.js").read_text()))
    keys |= {key.rpartition(".")[0] for key in keys if key.endswith((".one", ".other"))}
    for path in PAGE.iterdir():
        content = path.read_text()
        files = {*(of.name for of in PAGE.iterdir()), "public.model", "my-ratings.json"}
        assert set(re.findall(r'"([a-z]+\.[a-z.]+)"', content)) <= keys | files, path.name
        assert not re.search(r"https?://(?!www.w3.org/2000/svg)", content), path.name
