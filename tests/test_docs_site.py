"""The documentation builds without a warning, and what it says of the code is so."""

from __future__ import annotations

import inspect
import os
import re
import sys
from html import unescape
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS))

from writing import reference  # noqa: E402

import bgtplanner  # noqa: E402
from processes import Processes  # noqa: E402

NOTEBOOKS = {
    "recommender": "Any two users share",
    "compare": "RMSE 0.",
}
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
