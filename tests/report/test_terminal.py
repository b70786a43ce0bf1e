"""A run and a study on a terminal of eighty columns, with and without colour."""

from __future__ import annotations

import io
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from rich.console import Console

from bgtplanner.data.ratings import Ratings
from bgtplanner.data.split import split_ratings
from bgtplanner.report.terminal import RunProgress, Screen, StudyProgress
from bgtplanner.runs.config import load_config
from bgtplanner.runs.result import Result
from bgtplanner.runs.study import Cell, Outcome

SUMMARY: dict[str, Any] = {
    "preset": "recommended", "model": "tastes", "clients": 300, "rounds_run": 30,
    "objective": "served", "rmse_served": 0.19, "rmse_final": 0.18, "rmse_constant": 0.23,
    "rmse_client_alone": 0.2, "rmse_client_alone_served": 0.25,
    "ndcg_at_10": 0.174, "ndcg_at_10_served": 0.15, "ndcg_at_10_popularity": 0.291,
    "scale": [1.0, 5.0], "gains": {"better": 0.743}, "seconds_total": 12.3,
}  # fmt: skip


def console(**options: Any) -> Console:
    return Screen(file=io.StringIO(), width=80, color_system=None, **options)


def text_of(target: Console) -> str:
    text = cast(io.StringIO, target.file).getvalue()
    assert max(map(len, re.split(r"[\r\n]", re.sub(r"\x1b\[[^a-zA-Z]*.", "", text)))) <= 80
    return text


def told(quiet: bool = False, total: int = 30, first: int = 0, **changes: Any) -> str:
    """What is printed of a run of so many rounds."""
    target = console(force_terminal=changes.pop("terminal", False))
    view = RunProgress(target, quiet)
    ratings = Ratings.from_arrays([0] * 10 + [1] * 10, [*range(10)] * 2, range(20), name="mine")
    config = load_config(settings={"federation.rounds": total})
    view.started(config, split_ratings(ratings, seed=0, rounds=5), first)
    for number in range(first, total):
        view.round({"round": number, "rmse": 0.25, "left": [0.5, 0.25]}, total)
    summary = SUMMARY | changes
    of = SimpleNamespace(summary=summary, rounds=[], folder=Path("x"), verdict=None)
    view.finished(cast(Result, of))
    view.close()
    return text_of(target)


class TestRun:
    def test_plain_lines_when_piped(self) -> None:
        text = told(first=2)
        assert "\x1b" not in text
        assert "mine: 2 clients, 10 items, 16 ratings to train on, 4 held out" in text
        assert ("gaussian" in text, "no privacy" in text) == (True, False)
        assert "continuing after round 2" in text
        assert re.findall(r"^round (\d+)/30 ", text, re.M) == ["8", "15", "23", "30"]
        assert len(text.splitlines()) <= 22, "with the lines of the command, less than 24"

    def test_live_on_a_terminal(self) -> None:
        text = told(terminal=True)
        assert "30/30" in text
        assert "budget left 50%" in text
        assert "\nround 8/30" not in text
        assert told(True) == told(True, terminal=True) == ""


def test_a_study() -> None:
    cell = Cell(dataset="demo", mechanism="gaussian", policy="bgt", seed=0)
    done = Outcome(cell=cell, summary=SUMMARY, seconds=4.0)
    lines = ["6 cells, 4 of them finished before"]
    lines += ["5/6  demo gaussian bgt seed 0: failed: no [such] file"]
    lines += ["6/6  demo gaussian bgt seed 0: RMSE 0.1900, 4 s"]
    for quiet, terminal in ((False, False), (False, True), (True, False)):
        target = console(force_terminal=terminal)
        view = StudyProgress(target, quiet)
        view(None, 4, 6)
        view(Outcome(cell=cell, error="no [such] file"), 5, 6)
        view(done, 6, 6)
        view.close()
        text = text_of(target)
        if not terminal:
            assert text.splitlines() == ([] if quiet else lines)
        assert ("6/6" in text) == (not quiet)
