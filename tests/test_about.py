"""What ``--version`` says: the commit of a checkout or of a wheel."""

from __future__ import annotations

from pathlib import Path

import pytest

from bgtplanner import about


def test_the_commit_of_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(about, "__file__", str(tmp_path / "about.py"))
    assert about.commit() is None
    (tmp_path / about.NOTE).write_text("0123456789ab\n")
    assert about.commit() == "0123456789ab"
