"""The documentation builds without a warning, and what it says of the code is so."""

from __future__ import annotations

import inspect
import math
import os
import re
import sys
from html import unescape
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS))

from writing import headline, reference  # noqa: E402

import bgtplanner  # noqa: E402
from bgtplanner import Budget  # noqa: E402
from bgtplanner.commands.options import default  # noqa: E402
from bgtplanner.privacy.accountants import accountant_named, guessed_right, rounded_up  # noqa: E402
from processes import Processes  # noqa: E402

NOTEBOOKS = {"recommender": "Any two users share"}
"""With what each of them says in an output."""


def built(processes: Processes, out: Path) -> Path:
    """The pages, as `make docs` has them, with the notebooks executed."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html"]
    done = processes.run(
        [*command, "-d", out / "trees", DOCS, out / "html"],
        env=os.environ | {"PYTHONWARNINGS": "default"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return out / "html"


def test_the_site(processes: Processes, tmp_path: Path) -> None:
    """One test, since a build takes half a minute."""
    pytest.importorskip("sphinx", reason="sphinx is not installed: pip install --group docs")
    assert sorted(NOTEBOOKS) == sorted(path.stem for path in (DOCS / "notebooks").glob("*.md"))
    site = built(processes, tmp_path)
    for page in DOCS.rglob("*.md"):
        assert (site / page.relative_to(DOCS).with_suffix(".html")).is_file(), page
    for name in NOTEBOOKS:
        source = (DOCS / "notebooks" / f"{name}.md").read_text(encoding="utf-8")
        html = (site / "notebooks" / f"{name}.html").read_text(encoding="utf-8")
        assert html.count("cell_input") == source.count("{code-cell}")
        assert html.count("cell_output") >= 2, "executed to its end"
        assert NOTEBOOKS[name] in unescape(re.sub(r"<[^>]+>", "", html))
    assert (site / "_images" / "page.png").is_file()
    assert 'alt="The page that a' in (site / "index.html").read_text(encoding="utf-8")
    html = (site / "reference" / "python.html").read_text(encoding="utf-8")
    for name in (*bgtplanner._HOMES, "errors"):
        kind = "module-" if inspect.ismodule(getattr(bgtplanner, name)) else ""
        assert f'id="{kind}bgtplanner.{name}"' in html, name
    for page in site.rglob("*.html"):  # nothing from elsewhere is needed to read them
        html = page.read_text(encoding="utf-8")
        assert not re.search(
            r"<(?:script|img)[^>]*src=\"https?:|<link[^>]*href=\"https?:", html
        ), page


@pytest.mark.parametrize("page", reference.PAGES)
def test_the_pages_are_those_of_the_code(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    assert text == reference.written(page, text), "run `make docs-output`"


def test_every_number_of_the_readme_is_known() -> None:
    """Figures are stored, or computed here; what else is a number has to stand below."""
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 120
    assert headline.table() in readme, "run `make docs-output`"
    assert headline.commands() in (DOCS / "results.md").read_text(encoding="utf-8")
    known = {f"{of:.3f}" for figures in headline.facts()["stars"].values() for of in figures}
    gdp = accountant_named("gaussian/gdp")
    for epsilon in (1.0, 3.0, 10.0):
        reading = gdp.other_promise(Budget(epsilon, 1e-5), "replace-special")
        known |= {
            f"{math.ceil(100 * guessed_right(epsilon, 1e-5, 'gaussian'))}",
            rounded_up(reading or 0.0),
        }
    assert default("privacy.delta") == 1e-5
    assert (default("privacy.epsilon"), default("federation.rounds")) == (10.0, 100)
    known |= {"1e-5", "1", "3", "10", "100", "0", "50"}  # budgets, rounds, a coin
    known |= {"19", "24", "5", "2025", "2.0", "100K", "1M"}  # the paper, licence, data sets
    known |= {"30", "100,000"}  # clients, as in docs/right-for-me.md
    prose = re.sub(r"^```.*?^```|^\|.*?$|\]\([^)]*\)|`[^`]*`", "", readme, flags=re.M | re.S)
    numbers = set(re.findall(r"(?<![\w@-])\d+(?:[.,]\d+)*(?:e-\d+|[KM])?\b", prose))
    assert not numbers - known
