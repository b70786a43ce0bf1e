"""`bgtplanner report` as a user meets it."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
import typer

from bgtplanner.report.page import pictures_of
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


def test_figures(call: Call, run: Path, tmp_path: Path) -> None:
    done = call(run, "--figures", tmp_path / "figures", "--json")
    written = json.loads(done.out)["figures"]
    assert sorted(written) == sorted(str(path) for path in (tmp_path / "figures").iterdir())
    names = {picture.name for picture in pictures_of(run)}
    assert {Path(path).name for path in written} == {
        f"{name}.{kind}" for name in names for kind in ("svg", "png")
    }
    assert call(run, "--figures", tmp_path / "figures", "--live").code == 2
