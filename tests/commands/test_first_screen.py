"""The first command: its output fits a screen and ends with what to do next."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import Call

pytestmark = pytest.mark.usefixtures("compiled_once", "undrawn")

COLUMNS, ROWS = 80, 24


def test_on_one_screen(
    command_line: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command_line("run", "--rounds", 4, "--out", "runs/first")
    lines = done.out.splitlines()
    assert (done.code, done.err) == (0, "")
    assert len(lines) <= ROWS
    assert max(map(len, lines)) <= COLUMNS
    assert lines[-3:] == [
        "Report: runs/first/report.html",
        "Next: bgtplanner recommend runs/first --user 0",
        "For a model of all ratings: bgtplanner train --ratings demo --out my.model",
    ]
    assert "held out" in lines[0]
    listed = command_line(*lines[-2].split()[2:])
    assert (listed.code, len(listed.out.splitlines())) == (0, 11), "what is next works"
    assert command_line(*lines[-1].split()[7:], "--set", "federation.rounds=1").code == 0
