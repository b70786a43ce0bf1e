"""`bgtplanner report` as a user meets it."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
import typer

from command_line import Call
from made_runs import make_run

SHORT = {"federation.rounds": 4}


@pytest.fixture
def call(command_line: Call) -> Call:
    """Run the command in this process."""
    return functools.partial(command_line, "report")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "run", SHORT)


@pytest.mark.parametrize("flags", [[], ["--live"]], ids=["finished", "live"])
def test_of_a_run(call: Call, run: Path, flags: list[str]) -> None:
    """That of a finished run is written once, also with --live."""
    assert call(run, *flags) == (0, f"Report: {run}/report.html\n", "")
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    done = call(run, *flags, "--json")
    assert (done.code, json.loads(done.out), done.err) == (0, {"report": f"{run}/report.html"}, "")


def test_open(call: Call, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(typer, "launch", opened.append)
    assert call(run, "--open").code == 0
    assert opened == [f"{run}/report.html"]
