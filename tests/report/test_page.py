"""The report page: self-contained, complete, and safe whatever the names are."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from bgtplanner import simulate
from bgtplanner.errors import RunFolderError
from bgtplanner.report.page import pictures_of, render, write_report
from bgtplanner.runs.study import Study, Variation
from bgtplanner.runs.sweeps import parse_axis
from made_runs import make_run, make_study

SHORT = {"federation.rounds": 12}

pytestmark = pytest.mark.usefixtures("compiled_once")


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
            if name == "aria-label" and ("role", "img") in attrs:
                self.labels.append(str(value))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, compiled_once: Path) -> Path:
    folder = tmp_path_factory.mktemp("report") / "run"
    simulate("demo", rounds=3, out=folder)
    return folder


@pytest.fixture(scope="module")
def written(run: Path) -> str:
    """The page of that run."""
    return write_report(run).read_text(encoding="utf-8")


words_alone = pytest.mark.usefixtures("undrawn")
"""For tests of what a page says beside its pictures."""


def read(page: Path) -> Outline:
    outline = Outline()
    outline.feed(page.read_text(encoding="utf-8"))
    return outline


def test_page_is_whole_and_alone(run: Path, written: str) -> None:
    outline = Outline()
    outline.feed(written)
    summary = json.loads((run / "summary.json").read_text())
    assert outline.loaded == []
    assert outline.tags.count("script") == 1, "our own"
    assert outline.tags.count("svg") == 9
    assert len(outline.labels) == 9, "every picture says in words what it shows"
    for key in ("rmse_final", "rmse_constant", "rmse_user_mean", "rmse_client_alone"):
        assert f"{summary[key]:.4f}" in outline.text
    assert "(10, 1e-05)-differential privacy for each whole client" in outline.text
    assert "[federation]" in outline.text, "all settings are there"
    assert "best round" not in outline.text
    assert "bgtplanner run --preset recommended --rounds 3" in outline.text
    assert f"numpy {np.__version__}" in outline.text, "what the run was carried out with"


def test_same_run_same_page(run: Path, written: str) -> None:
    assert write_report(run).read_text(encoding="utf-8") == written


@words_alone
def test_paper_preset_shows_the_best_round_too(tmp_path: Path) -> None:
    make_run(tmp_path / "run", SHORT, preset="paper")
    assert "best round on the test set" in read(write_report(tmp_path / "run")).text


@words_alone
def test_names_are_text_not_markup(tmp_path: Path) -> None:
    name = "<script>alert(1)</script>"
    make_run(tmp_path / "run", SHORT | {"data.dataset": name})
    outline = read(write_report(tmp_path / "run"))
    assert outline.tags.count("script") == 1, "our own"
    assert name in outline.text
    assert "its ratings were given in Python" in outline.text


def test_one_user_a_client_needs_no_line_for_its_mean(tmp_path: Path) -> None:
    several = {picture.name: picture for picture in pictures_of(make_run(tmp_path / "a", SHORT))}
    assert "each user's own mean" in several["rmse"].alt
    one = make_run(tmp_path / "b", SHORT)
    changed = {"rmse_user_mean": 0.206, "rmse_client_alone": 0.206}
    summary = json.loads((one / "summary.json").read_text()) | changed
    (one / "summary.json").write_text(json.dumps(summary))
    alt = next(picture.alt for picture in pictures_of(one) if picture.name == "rmse")
    assert "each client alone" in alt
    assert "each user's own mean" not in alt


@words_alone
def test_perfectly_predictable_ratings(tmp_path: Path) -> None:
    make_run(tmp_path / "run", SHORT)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    summary |= {"rmse_client_alone": 0.0, "ndcg_at_10": None}
    (tmp_path / "run" / "summary.json").write_text(json.dumps(summary))
    text = read(write_report(tmp_path / "run")).text
    assert f"RMSE {summary['rmse_served']:.4f} as served over 12 rounds." in text


@pytest.mark.parametrize("missing", ["summary.json", "rounds.jsonl"])
def test_unfinished_run_is_refused(run: Path, tmp_path: Path, missing: str) -> None:
    for name in ("config.toml", "summary.json", "rounds.jsonl"):
        if name != missing:
            (tmp_path / name).write_bytes((run / name).read_bytes())
    words = "not finished; continue with 'bgtplanner resume .*', or watch it with --live"
    with pytest.raises(RunFolderError, match=words):
        write_report(tmp_path)


def test_summary_without_its_figures_is_refused(run: Path, tmp_path: Path) -> None:
    for name in ("config.toml", "rounds.jsonl"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(
        RunFolderError, match=r"summary\.json: has no accounting, clients, dataset"
    ):
        write_report(tmp_path)


def test_a_round_without_its_figures_is_refused(run: Path, tmp_path: Path) -> None:
    for name in ("config.toml", "summary.json"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    (tmp_path / "rounds.jsonl").write_text('{"round": 0}\n')
    with pytest.raises(RunFolderError, match=r"rounds\.jsonl, line 1: has no .* run it again"):
        write_report(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"), [("rmse_final", None), ("f1_best", "0.9"), ("policy", 3)]
)
def test_figures_that_are_none(run: Path, tmp_path: Path, key: str, value: object) -> None:
    for name in ("config.toml", "rounds.jsonl"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    summary = json.loads((run / "summary.json").read_text()) | {key: value}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(RunFolderError, match=rf"summary\.json: (has no )?{key}\b.*run it again"):
        write_report(tmp_path)


def test_a_policy_that_says_little(tmp_path: Path) -> None:
    """What one's own policy leaves out of its reasons is left out of the pictures."""
    folder = make_run(tmp_path / "run", MADE["bgt"][0])
    lines = []
    for line in (folder / "rounds.jsonl").read_text().splitlines():
        record = json.loads(line)
        reasons = record["why"].get("probability", [])
        record |= {"level": None, "why": {"probability": reasons}, "noise_norm": None}
        lines.append(json.dumps(record))
    (folder / "rounds.jsonl").write_text("\n".join(lines) + "\n")
    names = {picture.name for picture in pictures_of(folder)}
    assert names == {"rmse", "gain-ratings", "budget", "epsilon", "choices", "clients"}
    assert write_report(folder).is_file()


def test_only_our_script_may_run(written: str) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', written)
    assert policy is not None
    accountants = policy[1].replace("&#39;", "'")
    assert "default-src 'none'" in accountants
    assert "connect-src 'none'" in accountants
    assert re.search(r"script-src 'sha256-[A-Za-z0-9+/]{43}='", accountants)


def ids_of(page: str) -> list[str]:
    return re.findall(r'\bid="([^"]*)"', page)


MADE: dict[str, tuple[dict[str, Any], set[str]]] = {
    "forecast": (
        SHORT,
        {"budget", "epsilon", "choices", "rewards", "forecasts", "noise", "clients"},
    ),
    "bgt": (
        SHORT | {"planning.policy": "bgt", "model.name": "factorization"},
        {"budget", "epsilon", "choices", "rewards", "noise", "clients"},
    ),
    "uniform": (
        SHORT | {"planning.policy": "uniform", "privacy.mechanism": "laplace"},
        {"budget", "epsilon", "choices", "noise", "clients"},
    ),
    "unlimited": (SHORT | {"privacy.mechanism": "none"}, set()),
}


class TestKindsOfRuns:
    @pytest.mark.parametrize("kind", MADE)
    def test_pictures(self, tmp_path: Path, kind: str) -> None:
        settings, expected = MADE[kind]
        make_run(tmp_path / "run", settings)
        names = {picture.name for picture in pictures_of(tmp_path / "run")}
        assert names == {"rmse", "gain-ratings"} | expected

    @pytest.mark.parametrize("objective", ["served", "last"])
    def test_payments_by_forecast_are_dots(self, tmp_path: Path, objective: str) -> None:
        """Nothing is claimed about the rounds between payments."""
        folder = make_run(tmp_path / "run", {"planning.objective": objective})
        records = list(map(json.loads, (folder / "rounds.jsonl").read_text().splitlines()))
        paid = [record for record in records if record["charge"] > 0]
        assert 1 < len(paid) < len(records) / 5
        pictures = {picture.name: picture for picture in pictures_of(folder)}
        forecasts = sum(bool(record["why"].get("forecast")) for record in records)
        for name, labels in (
            ("rewards", ["predicted", "price"]),
            ("forecasts", ["forecast, if the plan is followed", "actual"]),
        ):
            pictures[name].draw(figure := Figure())
            (axes,) = figure.axes
            legend = axes.get_legend()
            assert legend is not None
            assert [text.get_text() for text in legend.get_texts()] == labels
            dots = [line for line in axes.lines if line.get_linestyle() == "None"]
            assert len(dots) == (2 if name == "rewards" else 1)
            assert all(line.get_marker() != "None" for line in dots)
            assert len(dots[0].get_xdata()) <= forecasts
        assert f"{len(paid)} of 100 rounds were paid for" in pictures["choices"].alt
        assert "actual" not in pictures["rewards"].title, "no reward is told"
        assert re.search(r"in the \d+ rounds with a prediction", pictures["rewards"].alt)
        first, last = (record["why"]["forecast"][0] for record in (paid[0], paid[-1]))
        assert f"{first:.1%} at first, {last:.1%} at the last payment" in pictures["forecasts"].alt
        for record in records:
            if record["why"].get("probability"):
                assert record["why"]["probability"][record["level"]] == 1.0, "as it was chosen"

    def test_no_line_through_rounds_without_noise(self, tmp_path: Path) -> None:
        folder = make_run(tmp_path / "run")
        picture = next(picture for picture in pictures_of(folder) if picture.name == "noise")
        picture.draw(figure := Figure())
        (axes,) = figure.axes
        assert [line.get_linestyle() for line in axes.lines] == ["None", "None"]
        top = axes.get_ylim()[1]
        assert axes.get_ylim()[0] == 0
        assert all(max(line.get_ydata()) < 0.95 * top for line in axes.lines)

    @words_alone
    def test_axes_do_not_dramatise(self, tmp_path: Path) -> None:
        """Small changes look small: around a client alone, or with zero, and the page says so."""
        folder = make_run(tmp_path / "run", SHORT)
        pictures = {picture.name: picture for picture in pictures_of(folder)}
        alone = json.loads((folder / "summary.json").read_text())["rmse_client_alone"]
        limits, page = {}, render(folder)
        for name, of in (("rmse", "y"), ("forecasts", "y"), ("gain-ratings", "x")):
            pictures[name].draw(figure := Figure())
            axes = figure.axes[0]
            limits[name] = axes.get_ylim() if of == "y" else axes.get_xlim()
            assert "The axis" in pictures[name].note
            assert pictures[name].note in page
        assert limits["rmse"][0] <= 0.8 * alone < 1.1 * alone <= limits["rmse"][1]
        for name in ("forecasts", "gain-ratings"):
            assert limits[name][0] < 0 < 0.05 <= limits[name][1]

    def test_errors_have_two_scales(self, tmp_path: Path) -> None:
        folder = make_run(tmp_path / "run", SHORT)
        summary = json.loads((folder / "summary.json").read_text()) | {"scale": [1, 5]}
        (folder / "summary.json").write_text(json.dumps(summary))
        page = render(folder)
        served = summary["rmse_served"]
        assert f"{4 * served:.2f} stars" in page
        assert f"RMSE {served:.4f} on 0 to 1" in page
        assert "RMSE · stars" in page, "on the axis"
        assert '<th scope="col" class="n">stars</th>' in page

    def test_ids_are_unique(self, tmp_path: Path) -> None:
        make_run(tmp_path / "run", MADE["bgt"][0])
        found = ids_of(render(tmp_path / "run"))
        assert len(found) == len(set(found)) > 50

    def test_classes(self, tmp_path: Path) -> None:
        settings = MADE["bgt"][0] | {"privacy.budgets": "3:0.4,10:0.6"}
        outline = read(write_report(make_run(tmp_path / "run", settings)))
        assert "By budget class" in outline.text
        assert outline.text.count("budget ε 3") >= 2, "in the picture and on a button"

    @words_alone
    def test_what_is_not_covered(self, tmp_path: Path) -> None:
        page = render(make_run(tmp_path / "run", SHORT, preset="paper"))
        assert "no finite ε" in page
        assert "which items each client rated" in page
        assert 'class="promise warn"' in page

    def test_of_an_earlier_version(self, tmp_path: Path) -> None:
        """Without what later versions note: fewer pictures, and still a page."""
        folder = make_run(tmp_path / "run", SHORT)
        config = (folder / "config.toml").read_text()
        (folder / "config.toml").write_text(
            "\n".join(
                line for line in config.splitlines() if not line.startswith(("facts", "ver"))
            )
        )
        lines = []
        for line in (folder / "rounds.jsonl").read_text().splitlines():
            record = json.loads(line)
            del record["spent"], record["why"]
            lines.append(json.dumps(record))
        (folder / "rounds.jsonl").write_text("\n".join(lines) + "\n")
        names = {picture.name for picture in pictures_of(folder)}
        assert names == {"rmse", "gain-ratings", "budget", "choices", "noise", "clients"}
        assert "bgtplanner unknown" in render(folder)


class TestWhoGains:
    @words_alone
    def test_groups(self, tmp_path: Path) -> None:
        settings = SHORT | {"privacy.budgets": "3:0.4,10:0.6"}
        folder = make_run(tmp_path / "run", settings)
        text = " ".join(read(write_report(folder)).text.split())
        row = "up to 20 ratings", "30", "0.2100", "0.2000", "-5.0%", "-8.0% to -2.0%", "60%"
        assert "".join(row) in text
        assert "These groups lose: up to 20 ratings." in text
        assert "Whether these gain cannot be told: 21 to 60 ratings." in text
        pictures = {picture.name: picture.alt for picture in pictures_of(folder)}
        assert "more than 60 ratings: 9.0% (6.0% to 12.0%)" in pictures["gain-ratings"]
        assert "ε 3: 5.0%" in pictures["gain-budget"]
        assert "62 %" in text

    @words_alone
    def test_nothing_learned(self, tmp_path: Path) -> None:
        folder = make_run(tmp_path / "run", SHORT)
        summary = json.loads((folder / "summary.json").read_text()) | {"learned": False}
        (folder / "summary.json").write_text(json.dumps(summary))
        page = render(folder)
        assert "<h1>Nothing was learned from others.</h1>" in page
        assert "each client&#39;s own doing" in page
        assert "of the clients have a lower error" not in page

    def test_edited(self, tmp_path: Path) -> None:
        folder = make_run(tmp_path / "run", SHORT)
        summary = json.loads((folder / "summary.json").read_text())
        summary["gains"]["ratings"][0]["clients"] = "many"
        (folder / "summary.json").write_text(json.dumps(summary))
        with pytest.raises(RunFolderError, match=r"gains = an object: expected"):
            render(folder)


@words_alone
class TestLists:
    def test_of_data_that_everybody_can_get(self, tmp_path: Path) -> None:
        page = render(make_run(tmp_path / "run", SHORT))
        assert "A Film of 1990" in page
        assert "because everybody can get these data" in page

    def test_names_are_text(self, tmp_path: Path) -> None:
        folder = make_run(tmp_path / "run", SHORT)
        lists = json.loads((folder / "examples.json").read_text())
        lists["lists"][0]["items"][0]["title"] = "<script>alert(1)</script>"
        (folder / "examples.json").write_text(json.dumps(lists))
        assert read(write_report(folder)).tags.count("script") == 1, "our own"

    def test_ones_own_are_not_shown_unless_asked_for(self, tmp_path: Path) -> None:
        own = SHORT | {"data.dataset": "csv:own.csv"}
        folder = make_run(tmp_path / "run", own)
        (folder / "examples.json").unlink()  # a run on such data writes none
        page = render(folder)
        assert "The ratings are your own" in page
        assert "--set run.examples=3" in page
        asked = render(make_run(tmp_path / "asked", own | {"run.examples": 3}))
        assert "because run.examples asks for them" in asked

    def test_of_real_machines_never(self, tmp_path: Path) -> None:
        folder = make_run(tmp_path / "run", SHORT)
        config = (folder / "config.toml").read_text()
        (folder / "config.toml").write_text(
            config.replace("[folder]", "[folder]\ndeployed = true")
        )
        page = render(folder)
        assert "A Film of 1990" not in page
        assert "What people would be shown" not in page

    def test_edited(self, tmp_path: Path) -> None:
        folder = make_run(tmp_path / "run", SHORT)
        (folder / "examples.json").write_text('{"lists": [{"user": 3}]}')
        with pytest.raises(RunFolderError, match=r"examples\.json: lists = a list of 1: expected"):
            render(folder)


class TestUnfinished:
    @pytest.mark.parametrize("done", [0, 1, 7])
    def test_live(self, tmp_path: Path, done: int) -> None:
        folder = make_run(tmp_path / "run", SHORT, rounds_done=done)
        page = render(folder, live="events", version="v1")
        assert f"Round {done} of 12" in page
        assert 'data-live="events"' in page
        assert "connect-src &#39;self&#39;" in page
        assert ("each client alone" in page) == (done > 0)

    @words_alone
    def test_what_rows_amount_to_is_not_guessed(self, tmp_path: Path) -> None:
        folder = make_run(tmp_path / "run", SHORT, preset="paper", rounds_done=3)
        page = render(folder, live="events")
        assert "is said when the run is done" in page
        assert "Not covered" in page

    def test_of_an_earlier_version(self, tmp_path: Path) -> None:
        folder = make_run(tmp_path / "run", SHORT, rounds_done=3)
        config = (folder / "config.toml").read_text()
        (folder / "config.toml").write_text(re.sub(r"(?m)^(facts|versions) = .*$", "", config))
        assert "Round 3 of 12" in render(folder, live="events")


GRID = Study(
    datasets=("demo", "csv:a <b>.csv"),
    mechanisms=("gaussian", "laplace"),
    policies=("bgt", "uniform", "unlimited"),
    seeds=(0, 1),
    settings=SHORT,
)


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_study(tmp_path_factory.mktemp("grids") / "grid", GRID, leave_out=1)


@pytest.fixture(scope="module")
def page_of_grid(grid: Path) -> str:
    return write_report(grid).read_text(encoding="utf-8")


class TestGrid:
    def test_page(self, page_of_grid: str) -> None:
        outline = Outline()
        outline.feed(page_of_grid)
        assert outline.loaded == []
        assert outline.tags.count("svg") == len(outline.labels) == 4 * 8
        for words in (
            "19 of 20",
            "RMSE (mean over all rounds, as served)",
            "NDCG@10 and RMSE (last round)",
            "RMSE, as served: mean and 95 % interval over seeds",
            "RMSE, last round, minus that of uniform, paired by seed",
            "† differs in more than the policy: unlimited has privacy.mechanism none",
            "Difference from uniform, paired by seed (mean over all rounds, as served)",
            "Difference from uniform, paired by seed (last round)",
            "demo, laplace",
            "csv:a <b>.csv, gaussian",
            "has the lowest mean error in",
            "bgtplanner compare --dataset demo --dataset 'csv:a <b>.csv'",
        ):
            assert words in outline.text, words
        found = ids_of(page_of_grid)
        assert len(found) == len(set(found))

    def test_one_colour_for_a_policy(self, page_of_grid: str) -> None:
        for policy, colour in (("bgt", "#0072b2"), ("uniform", "#009e73")):
            series = re.findall(rf'data-series="{policy}">(.*?)</g>', page_of_grid, re.DOTALL)
            drawn = {
                found.lower()
                for part in series
                for found in re.findall(r"(?:stroke|fill): (#[0-9a-fA-F]{6})", part)
            }
            assert colour in drawn
            assert not drawn & {"#d55e00", "#0072b2", "#009e73"} - {colour}

    @words_alone
    def test_the_papers_figures(self, tmp_path: Path) -> None:
        asked = Study(
            datasets=("filmtrust",), policies=("bgt",), seeds=(0,), preset="paper", settings=SHORT
        )
        text = read(write_report(make_study(tmp_path / "grid", asked))).text
        assert "Beside the paper's Table 2" in text
        assert "0.3746" in text

    def test_nothing_is_finished(self, tmp_path: Path) -> None:
        asked = Study(policies=("uniform", "adap"), seeds=(0,), settings=SHORT)
        folder = make_study(tmp_path / "grid", asked, leave_out=2)
        assert "0 of 2" in render(folder)
        with pytest.raises(RunFolderError, match="no cell is finished; continue with: bgtplanner"):
            pictures_of(folder)

    @words_alone
    def test_failed_cells(self, tmp_path: Path) -> None:
        folder = make_study(tmp_path / "grid", Study(policies=("uniform",), settings=SHORT))
        (folder / "demo/gaussian/uniform/seed-0/summary.json").write_text("{}")
        page = render(folder)
        assert "What failed" in page
        assert "has no f1_best, f1_client_alone" in page


class TestSweep:
    def test_page(self, tmp_path: Path) -> None:
        asked = Study(
            policies=("bgt", "uniform"),
            seeds=(0, 1),
            settings=SHORT,
            variations=(Variation(axes=(parse_axis("privacy.epsilon=1,10"),)),),
        )
        outline = read(write_report(make_study(tmp_path / "sweep", asked)))
        assert outline.tags.count("svg") == len(outline.labels) == 3
        assert "Effect of privacy.epsilon: the lowest error" in outline.text
        assert "privacy.epsilon (mean over all rounds, as served)" in outline.text
        assert "privacy.epsilon (last round)" in outline.text
        assert "bgtplanner sweep --vary privacy.epsilon=1,10" in outline.text
        assert "privacy.epsilon=10" in outline.labels[0]

    def test_nothing_is_finished(self, tmp_path: Path) -> None:
        asked = Study(
            policies=("uniform",),
            seeds=(0,),
            settings=SHORT,
            variations=(Variation(axes=(parse_axis("privacy.epsilon=1,10"),)),),
        )
        folder = make_study(tmp_path / "sweep", asked, leave_out=2)
        assert "no cell is finished yet" in render(folder)
