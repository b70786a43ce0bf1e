"""`bgtplanner report` as a user meets it."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import typer

from bgtplanner.report import live
from bgtplanner.report.page import pictures_of
from bgtplanner.runs.study import Study
from command_line import Call
from made_runs import make_run, make_study

SHORT = {"federation.rounds": 4}


@pytest.fixture
def call(command_line: Call) -> Call:
    """Run the command in this process."""
    return functools.partial(command_line, "report")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "run", SHORT)


def test_of_a_run(call: Call, run: Path) -> None:
    assert call(run) == (0, f"Report: {run}/report.html\n", "")
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    done = call(run, "--json")
    assert (done.code, json.loads(done.out), done.err) == (0, {"report": f"{run}/report.html"}, "")


def test_of_a_grid(call: Call, tmp_path: Path) -> None:
    asked = Study(policies=("uniform", "adap"), seeds=(0,), settings=SHORT)
    folder = make_study(tmp_path / "grid", asked)
    assert call(folder).out == f"Report: {folder}/report.html\n"


def test_open(call: Call, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(typer, "launch", opened.append)
    assert call(run, "--open").code == 0
    assert opened == [f"{run}/report.html"]


def test_figures(call: Call, run: Path, tmp_path: Path) -> None:
    done = call(run, "--figures", tmp_path / "figures", "--json")
    written = json.loads(done.out)["figures"]
    assert sorted(written) == sorted(str(path) for path in (tmp_path / "figures").iterdir())
    assert {Path(path).suffix for path in written} == {".svg", ".png"}
    names = {picture.name for picture in pictures_of(run)}
    assert {"rmse", "epsilon", "choices"} <= names
    assert {Path(path).stem for path in written} == names
    assert len(written) == 2 * len(names)
    done = call(run, "--figures", tmp_path / "figures")
    assert done.out == f"Pictures: {len(names)} in {tmp_path}/figures, each as .svg and .png\n"


class TestLive:
    def test_ends_with_ctrl_c(
        self, call: Call, run: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(live.LiveServer, "serve_forever", interrupted)
        before = sorted(run.iterdir())
        done = call(run, "--live")
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith("Live: http://127.0.0.1:")
        assert sorted(run.iterdir()) == before
        assert json.loads(call(run, "--live", "--json").out)["address"].endswith("/")

    def test_opens_the_address(
        self, call: Call, run: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        opened: list[str] = []
        monkeypatch.setattr(typer, "launch", opened.append)
        monkeypatch.setattr(live.LiveServer, "serve", live.LiveServer.server_close)
        assert call(run, "--live", "--open", "--port", 0).code == 0
        assert opened[0].startswith("http://127.0.0.1:")
