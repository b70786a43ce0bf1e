"""The proofs: a page for each mechanism and rule, of the same parts, naming tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bgtplanner.privacy.accountants import ACCOUNTANTS
from bgtplanner.privacy.mechanisms import MECHANISMS

REPOSITORY = Path(__file__).parents[1]
PROOFS = REPOSITORY / "docs" / "proofs"
PAGES = sorted(path.stem for path in PROOFS.glob("*.md"))


def read(page: str) -> str:
    return (PROOFS / f"{page}.md").read_text(encoding="utf-8")


def test_every_mechanism_and_every_sound_rule_has_a_page() -> None:
    accountants = {
        name.partition("/")[2] for name, accountant in ACCOUNTANTS.items() if accountant.sound
    }
    # pure: three accountants
    others = {"aggregation", "shares", "joint", "schedules", "index", "pure"}
    assert set(PAGES) == {*MECHANISMS, *accountants - {"basic", "filter", "either"}, *others}
    contents = (REPOSITORY / "docs" / "index.md").read_text(encoding="utf-8")
    for page in PAGES:
        assert f"proofs/{page}\n" in contents
        assert page == "index" or f"({page}.md)" in read("index")


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_proof_names_exists(page: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", read(page))
    assert named
    assert len(named) == read(page).count("tests/")
    for file, test in named:
        path = REPOSITORY / file
        assert path.is_file(), file
        found = re.search(rf"^def {test}\(", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert found, f"{file}::{test}"
