"""The report page: self-contained, complete, and safe whatever the names are."""

import json
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from bgtplanner import Ratings, simulate
from bgtplanner.errors import RunFolderError
from bgtplanner.report.page import write_report


class Outline(HTMLParser):
    """Collects tags, what would be loaded from elsewhere, and the visible text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loaded: list[str] = []
        self.labels: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href") and not str(value).startswith("#"):
                self.loaded.append(str(value))
            if name == "aria-label":
                self.labels.append(str(value))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "run"
    simulate("demo", rounds=3, out=folder)
    return folder


def read(page: Path) -> Outline:
    outline = Outline()
    outline.feed(page.read_text(encoding="utf-8"))
    return outline


def test_page_is_whole_and_alone(run: Path) -> None:
    outline = read(write_report(run))
    summary = json.loads((run / "summary.json").read_text())
    assert outline.loaded == []
    assert "script" not in outline.tags
    assert outline.tags.count("svg") == 3
    assert len(outline.labels) == 3, "every picture says in words what it shows"
    for key in ("rmse_final", "rmse_constant", "rmse_user_mean", "rmse_client_alone"):
        assert f"{summary[key]:.4f}" in outline.text
    assert "(10, 1e-05)-differential privacy for each whole client" in outline.text
    assert "[federation]" in outline.text, "all settings are there"
    assert "best round" not in outline.text


def test_same_run_same_page(run: Path) -> None:
    first = write_report(run).read_bytes()
    assert write_report(run).read_bytes() == first


def test_paper_preset_shows_the_best_round_too(tmp_path: Path) -> None:
    simulate("demo", rounds=2, preset="paper", out=tmp_path / "run")
    assert "best round on the test set" in read(write_report(tmp_path / "run")).text


def test_names_are_text_not_markup(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    ratings = Ratings.from_arrays(
        generator.integers(0, 8, 80),
        np.arange(80) % 12,
        generator.integers(1, 6, 80),
        name="<script>alert(1)</script>",
    )
    simulate(ratings, rounds=2, out=tmp_path / "run")
    outline = read(write_report(tmp_path / "run"))
    assert "script" not in outline.tags
    assert "<script>alert(1)</script>" in outline.text


def test_several_users_a_client_have_a_line_of_their_own(tmp_path: Path) -> None:
    simulate("demo", rounds=2, settings={"data.clients": 30}, out=tmp_path / "run")
    page = write_report(tmp_path / "run").read_text()
    assert page.count("each client alone") > 1


def test_perfectly_predictable_ratings(tmp_path: Path) -> None:
    ratings = Ratings.from_arrays([1] * 10, range(10), [0.7] * 10, scale=(0, 1))
    simulate(ratings, rounds=2, out=tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    summary["rmse_client_alone"] = 0.0
    (tmp_path / "run" / "summary.json").write_text(json.dumps(summary))
    assert "0.0 %" in read(write_report(tmp_path / "run")).text


@pytest.mark.parametrize("missing", ["summary.json", "rounds.jsonl"])
def test_unfinished_run_is_refused(run: Path, tmp_path: Path, missing: str) -> None:
    for name in ("config.toml", "summary.json", "rounds.jsonl"):
        if name != missing:
            (tmp_path / name).write_bytes((run / name).read_bytes())
    with pytest.raises(RunFolderError, match="not finished; go on with 'bgtplanner resume"):
        write_report(tmp_path)


def test_summary_without_its_figures_is_refused(run: Path, tmp_path: Path) -> None:
    for name in ("config.toml", "rounds.jsonl"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(RunFolderError, match=r"summary\.json: has no clients, dataset"):
        write_report(tmp_path)
