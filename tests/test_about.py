"""What ``--version`` says: the commit of a checkout or of a wheel, and the extras."""

from __future__ import annotations

from pathlib import Path

import pytest

from bgtplanner import about


def test_the_commit_of_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(about, "__file__", str(tmp_path / "about.py"))
    assert about.commit() is None
    (tmp_path / about.NOTE).write_text("0123456789ab\n")
    assert about.commit() == "0123456789ab"


def test_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"jax", "optax", "joblib", "matplotlib"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name in there)
    said = about.about("1.2.3")
    assert said[0] == "bgtplanner 1.2.3"
    assert said[2] == "extras: sim (not installed: report, flower)"
    there |= {"jinja2", "flwr"}
    assert about.about("1")[2] == "extras: sim, report, flower"
