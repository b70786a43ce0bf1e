"""Tables and pictures of a sweep."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from bgtplanner.errors import MissingExtraError
from bgtplanner.experiments.cells import Outcome
from bgtplanner.experiments.grid import Request
from bgtplanner.experiments.sweeps import Sensitivity, Study, Sweep, evaluate, parse_axis
from bgtplanner.report.sensitivity import (
    markdown,
    need_pictures,
    picture,
    sweep_tables,
    write_files,
)


def shown(*axes: str, lost: str = "", **base: Any) -> Sensitivity:
    """A sweep with made-up figures; what has `lost` in its name has failed."""
    request = Request(**({"policies": ("bgt", "uniform"), "seeds": (0, 1)} | base))
    sweep = Sweep(base=request, studies=(Study(axes=tuple(map(parse_axis, axes))),))
    names = ("final", "best", "constant", "user_mean", "client_alone")
    outcomes = []
    for cell in sweep.cells():
        summary = {
            f"{kind}_{name}": 0.3 + 0.1 * cell.seed + 0.2 * (name == "best")
            for kind in ("rmse", "f1")
            for name in names
        }
        failed = bool(lost) and lost in cell.name
        outcomes.append(
            Outcome(cell=cell, error="lost") if failed else Outcome(cell=cell, summary=summary)
        )
    return evaluate(sweep, outcomes)


def printed(found: Sensitivity) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    for table in sweep_tables(found):
        console.print(table)
    return console.export_text()


def test_a_terminal_of_80_columns_has_all() -> None:
    found = shown(
        *("planning.options.initial_rounds=3,5", "privacy.epsilon=5,20"),
        datasets=("ml-100k", "filmtrust"),
        lost="ml-100k gaussian uniform",
    )
    text = printed(found)
    lines = [line.split() for line in text.splitlines()]
    assert ["bgt", "3", "20", "2/2", "0.3500", "0.0707", "0.3500", "0.0707"] in lines
    assert ["uniform", "3", "5", "0/2", "failed", "failed"] in lines
    assert "(last round)" in text
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_best_round_with_the_paper_and_no_deviation_of_one_seed() -> None:
    text = printed(shown("privacy.epsilon=5", preset="paper", seeds=(0,)))
    assert "best round" in text
    assert "0.5000" in text
    assert "–" in text


def test_markdown_says_what_failed() -> None:
    text = markdown(shown("privacy.epsilon=5,20", lost="epsilon=20"))
    assert "| demo, gaussian | bgt | 5 | 2/2 | 0.3500 | 0.0707 | 0.3500 | 0.0707 |" in text
    assert "- demo gaussian bgt seed 0, privacy.epsilon=20: lost" in text


def words(svg: str) -> list[str]:
    tree = ElementTree.fromstring(svg)
    return ["".join(entry.itertext()).strip() for entry in tree.iter() if entry.tag[-4:] == "text"]


class TestPicture:
    def test_a_line_a_policy(self) -> None:
        found = words(picture(shown("privacy.epsilon=5,20"), "demo", "gaussian"))
        assert {"bgt", "uniform", "RMSE", "F1", "privacy.epsilon", "5", "20"} <= set(found)

    def test_a_line_a_value_of_the_second_key(self) -> None:
        found = shown("privacy.epsilon=5,20", "planning.min_rounds=2,3", policies=("bgt",))
        said = words(picture(found, "demo", "gaussian"))
        assert {"min_rounds 2", "min_rounds 3"} <= set(said)

    def test_values_that_are_no_numbers_and_wide_ranges(self) -> None:
        text = picture(shown("planning.context=none,released"), "demo", "gaussian")
        assert {"none", "released"} <= set(words(text))
        text = picture(shown("privacy.clip=0.001,0.01,1"), "demo", "gaussian")
        assert {"0.001", "0.01", "1"} <= set(words(text))

    def test_nothing_done_and_names_like_formulas(self) -> None:
        found = shown("privacy.epsilon=5", lost="demo")
        assert "demo, gaussian" in words(picture(found, "demo", "gaussian"))
        assert "csv:$_$.csv, laplace" in words(picture(found, "csv:$_$.csv", "laplace"))

    def test_the_same_twice(self) -> None:
        found = shown("privacy.epsilon=5,20")
        assert picture(found, "demo", "gaussian") == picture(found, "demo", "gaussian")

    def test_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(MissingExtraError, match=r"pictures of a sweep .*bgtplanner\[report\]"):
            need_pictures()


def test_files(tmp_path: Path) -> None:
    found = shown(
        "privacy.epsilon=5,20",
        mechanisms=("gaussian", "laplace"),
        policies=("bgt", "unlimited"),
    )
    assert write_files(found, tmp_path) == ["demo-gaussian.svg", "demo-laplace.svg"]
    names = {"sweep.json", "sweep.csv", "sweep.md", "demo-gaussian.svg", "demo-laplace.svg"}
    assert {file.name for file in tmp_path.iterdir()} == names
    assert "![demo, laplace](demo-laplace.svg)" in (tmp_path / "sweep.md").read_text()
    assert "unlimited" in words((tmp_path / "demo-laplace.svg").read_text())


def test_files_without_any_mechanism(tmp_path: Path) -> None:
    found = shown("federation.rounds=2,3", policies=("unlimited",))
    assert write_files(found, tmp_path) == ["demo-none.svg"]
