"""What ``--version`` says: the commit of a checkout or of a wheel, and the extras."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bgtplanner import about


def git(at: Path, *words: str) -> str:
    own = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", *own, *words], cwd=at, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("one")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "-m", "one")
    return tmp_path


class TestCommit:
    def test_of_a_checkout(self, checkout: Path) -> None:
        head = git(checkout, "rev-parse", "HEAD")[:12]
        assert about.commit_of(checkout) == head
        (checkout / "file").write_text("two")
        assert about.commit_of(checkout) == f"{head}, changed since"

    def test_not_that_of_a_checkout_around_it(self, checkout: Path) -> None:
        inside = checkout / "site-packages"
        inside.mkdir()
        assert about.commit_of(inside) is None

    def test_of_a_wheel(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        package = tmp_path / "site-packages" / "bgtplanner"
        package.mkdir(parents=True)
        monkeypatch.setattr(about, "__file__", str(package / "about.py"))
        assert about.commit() is None
        (package / about.NOTE).write_text("0123456789ab\n")
        assert about.commit() == "0123456789ab"


def test_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"jax", "optax", "joblib", "matplotlib"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name in there)
    said = about.about("1.2.3")
    assert said[0] == "bgtplanner 1.2.3"
    assert said[2] == "extras: sim (not installed: report, flower)"
    there |= {"jinja2", "flwr"}
    assert about.about("1")[2] == "extras: sim, report, flower"
