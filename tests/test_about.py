"""What a build adds: the commit that ``--version`` names, and links that work anywhere."""

from __future__ import annotations

import runpy
import subprocess
from pathlib import Path

import pytest

from bgtplanner import about


def test_the_commit_of_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(about, "__file__", str(tmp_path / "about.py"))
    assert about.commit() is None
    (tmp_path / about.NOTE).write_text("0123456789ab\n")
    assert about.commit() == "0123456789ab"


def test_links_of_the_readme_lead_somewhere_from_a_package_index(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling is not installed: pip install --group dev")
    build = runpy.run_path(str(Path(__file__).parents[1] / "hatch_build.py"))
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    for origin, address in {
        "git@g.org:a/b.git": "https://g.org/a/b",
        "https://g.org/a/b": "https://g.org/a/b",
        "https://name:secret@g.org/a/b.git": None,  # no password in a package
        "/srv/b": None,
    }.items():
        subprocess.run(["git", "-C", tmp_path, "config", "remote.origin.url", origin], check=True)
        assert build["address_of"](tmp_path) == address
    text = "![a page](docs/p.png) and [a x](docs/x.md#y) or [z](https://z.org)"
    assert build["readme_for"](text, "https://g.org/a/b", "1.2") == (
        "![a page](https://g.org/a/b/raw/v1.2/docs/p.png) and "
        "[a x](https://g.org/a/b/blob/v1.2/docs/x.md#y) or [z](https://z.org)"
    )
    assert build["readme_for"](text, None, "1.2") == " and a x or [z](https://z.org)"
