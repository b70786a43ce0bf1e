"""`bgtplanner report` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from command_line import Call
from made_runs import make_run

SHORT = {"federation.rounds": 4}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "run", SHORT)


@pytest.mark.parametrize("flags", [[], ["--live"]], ids=["finished", "live"])
def test_of_a_run(command_line: Call, run: Path, flags: list[str]) -> None:
    """That of a finished run is written once, also with --live."""
    assert command_line("report", run, *flags) == (0, f"Report: {run}/report.html\n", "")
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    done = command_line("report", run, *flags, "--json")
    assert (done.code, json.loads(done.out), done.err) == (0, {"report": f"{run}/report.html"}, "")


def test_open(command_line: Call, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(typer, "launch", opened.append)
    assert command_line("report", run, "--open").code == 0
    assert opened == [f"{run}/report.html"]
