"""The report page: self-contained, complete, and safe whatever the names are."""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from bgtplanner import load_model
from bgtplanner.errors import ConfigError, RunFolderError
from bgtplanner.report import page as page_module
from bgtplanner.report import pictures
from bgtplanner.report.facts import Facts, read_facts
from bgtplanner.report.page import follow, render, write_report
from bgtplanner.report.pictures import Picture, as_file
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.run import simulate
from bgtplanner.text import visible
from made_runs import make_run

SHORT: dict[str, Any] = {"federation.rounds": 12}

pytestmark = pytest.mark.usefixtures("compiled_once")
words_alone = pytest.mark.usefixtures("undrawn")
"""For tests of what a page says beside its pictures."""


class Outline(HTMLParser):
    """Collects tags, the addresses of what is loaded, and the visible text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loaded: list[str] = []
        self.alts: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loaded += [str(value) for name, value in attrs if name in ("src", "href")]
        self.alts += [str(value) for name, value in attrs if name == "alt"]

    def handle_data(self, data: str) -> None:
        self.text += data


def words_of(facts: Facts) -> str:
    return " ".join(line for section in facts.sections for line in section.words)


def heading(facts: Facts, name: str) -> Any:
    return next(section for section in facts.sections if section.heading == name)


def drawn(folder: Path) -> dict[str, tuple[Picture, Figure]]:
    found = {}
    for picture in [of for section in read_facts(folder).sections for of in section.pictures]:
        picture.draw(figure := Figure())
        found[picture.name] = picture, figure
    return found


class TestPage:
    def test_of_a_real_run(self, tmp_path: Path) -> None:
        result = simulate("demo", rounds=3, out=tmp_path / "run")
        text = write_report(tmp_path / "run").read_text(encoding="utf-8")
        assert text == render(tmp_path / "run"), "the same run gives the same page"
        own = load_model(tmp_path / "run" / "run.model").verdict()
        assert f"by its releases alone: {own}" in Outline(text).text
        assert result.verdict == own
        outline, summary = Outline(text), json.loads((tmp_path / "run/summary.json").read_text())
        assert "script" not in outline.tags
        assert outline.tags.count("img") == len(outline.alts) == 2
        for address in outline.loaded:
            kind, content = address.split(",")
            assert kind == "data:image/svg+xml;base64", "nothing comes from elsewhere"
            ElementTree.fromstring(base64.b64decode(content))
        for key in ("rmse_final", "rmse_constant", "rmse_client_alone", "rmse_served"):
            assert f"{summary[key]:.4f}" in outline.text
        for key in ("ndcg_at_10_served", "ndcg_at_10_popularity"):
            assert f"{summary[key]:.3f}" in outline.text
        assert "(10, 1e-05)-differential privacy for each whole client" in outline.text
        assert "(replace-special), whatever is seen becomes at most e^10 times as" in outline.text
        assert "bgtplanner run --config config.toml --out" in outline.text
        assert "[federation]" in outline.text, "all settings are there"
        assert "; it came to an error" in outline.text, "beside what the planner expected"

    @words_alone
    @pytest.mark.parametrize("state", ["finished", "running"])
    def test_only_our_script_may_run(self, tmp_path: Path, state: str) -> None:
        done = None if state == "finished" else 3
        text = render(make_run(tmp_path / "run", SHORT, rounds_done=done), state=state)
        policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
        assert policy is not None
        allowed = policy[1].replace("&#39;", "'")
        assert "default-src 'none'" in allowed
        script = "'none'" if state == "finished" else r"'sha256-[A-Za-z0-9+/]{43}='"
        assert re.search(f"script-src {script};", allowed)

    @pytest.mark.parametrize("missing", ["summary.json", "rounds.jsonl"])
    def test_unfinished_run_is_refused(self, tmp_path: Path, missing: str) -> None:
        folder = make_run(tmp_path / "run", SHORT)
        (folder / missing).unlink()
        words = "not finished; continue with 'bgtplanner resume .*', or watch it with --live"
        with pytest.raises(RunFolderError, match=words):
            write_report(folder)


class TestSections:
    def test_who_gains(self, tmp_path: Path) -> None:
        folder = make_run(tmp_path / "run", SHORT | {"privacy.budgets": "3:0.4,10:0.6"})
        (table,) = heading(read_facts(folder), "Who gains and who loses").tables
        assert table.rows[0] == (
            "by number of ratings",
            ["up to 20 ratings", "30", "0.2100", "0.2000", "-5.0%", "-8.0% to -2.0%", "60%"],
        )
        assert table.note.startswith("These groups lose: up to 20 ratings. Whether these gain ")
        assert "be told: 21 to 60 ratings. The gain" in table.note
        assert [row[1][0] for row in table.rows if row[0] == "by budget"] == ["ε 3", "ε 10"]

    def test_lists_of_public_data_ones_own_on_request_and_of_machines_never(
        self, tmp_path: Path
    ) -> None:
        folder = make_run(tmp_path / "run", SHORT)
        facts = read_facts(folder)
        tables = heading(facts, "What people would be shown").tables
        assert [table.title for table in tables] == ["User 1", "User 472", "User 943"]
        assert tables[0].rows[0] == ("", ["A Film of 1990", "4.2", "popular, and drama"])
        assert "everybody can get these data" in words_of(facts)
        own = SHORT | {"data.dataset": "csv:own.csv"}
        asked = read_facts(make_run(tmp_path / "asked", own | {"run.examples": 3}))
        assert "because run.examples asks for them" in words_of(asked)
        unasked = make_run(tmp_path / "own", own)
        (unasked / "examples.json").unlink()  # a run on such data writes none
        assert "--set run.examples=3" in words_of(read_facts(unasked))
        file = folder / "config.toml"
        file.write_text(file.read_text().replace("[folder]", "[folder]\ndeployed = true"))
        found, rounds = read_facts(folder), RunFolder(folder).rounds()
        assert "What people would be shown" not in [of.heading for of in found.sections]
        used, late = (sum(of[key] for of in rounds) for key in ("clients", "late"))
        assert f"Uploads used: {used:,}, {late:,} late." in words_of(found)


class TestPictures:
    def test_what_is_drawn_is_what_was_recorded(self, tmp_path: Path) -> None:
        folder = make_run(tmp_path / "run", SHORT | {"privacy.budgets": "3:0.4,10:0.6"})
        rounds, summary = RunFolder(folder).rounds(), RunFolder(folder).summary()
        assert summary is not None
        made, alone = drawn(folder), summary["rmse_client_alone"]
        axes = made["rmse"][1].axes[0]
        assert list(axes.lines[0].get_ydata()) == [record["rmse"] for record in rounds]
        beside = [float(line.get_ydata()[0]) for line in axes.lines[2:]]
        known = ("served", "constant", "user_mean", "client_alone")
        assert beside == [summary[f"rmse_{key}"] for key in known]
        low, high = axes.get_ylim()
        assert low <= 0.8 * alone < 1.1 * alone <= high, "a small change looks small"
        last = [float(line.get_ydata()[-1]) for line in made["spent"][1].axes[0].lines]
        assert last == pytest.approx([1 - share for share in rounds[-1]["left"]])
        paid = sum(record["charge"] > 0 for record in rounds)
        assert f"{last[1]:.1%} of ε 10. {paid} of 12 rounds were paid" in made["spent"][0].alt
        without = make_run(tmp_path / "none", SHORT | {"privacy.mechanism": "none"})
        assert set(drawn(without)) == {"rmse"}

    @pytest.mark.filterwarnings("ignore:constrained_layout not applied")  # too long a name
    def test_hostile_names_are_text(self) -> None:
        """What stands in a picture is no formula, no tag, and no damage to the file."""
        name = "<script>\x1b[2J$\\frac{1}{0}$\u202e-->]]>&amp;"
        text = as_file(pictures.quality({"model": name}, "rmse", [0.3, 0.2], 12))
        assert "<script" not in text
        assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", text)
        tree = ElementTree.fromstring(text)
        assert visible(name) in ["".join(of.itertext()).strip() for of in tree.iter()]


class TestLive:
    @pytest.mark.parametrize("done", [0, 7])
    def test_unfinished(self, tmp_path: Path, done: int) -> None:
        folder = make_run(tmp_path / "run", SHORT, rounds_done=done)
        facts = read_facts(folder, state="running")
        assert facts.headline.startswith(f"Round {done} of 12")
        assert facts.progress == (done, 12)
        assert ("each client alone" in render(folder, state="running")) == (done > 0)
        stopped = read_facts(folder, state="stopped")
        assert f"bgtplanner resume {folder}" in " ".join(stopped.lead)

    @words_alone
    def test_followed_from_before_it_begins_to_its_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(page_module, "_POLL", 0.02)
        folder, told = tmp_path / "run", list[Path]()
        thread = threading.Thread(target=follow, args=(folder, told.append), daemon=True)
        thread.start()
        file = folder / "report.html"

        def wait_for(words: str) -> None:
            end = time.monotonic() + 60
            while not (file.exists() and words in file.read_text(encoding="utf-8")):
                assert time.monotonic() < end, words
                time.sleep(0.02)

        make_run(folder, SHORT, rounds_done=4)
        wait_for("Stopped after round 4 of 12")
        with RunFolder.open(folder):
            wait_for("running: reload")
        wait_for("stopped: reload")
        whole = make_run(tmp_path / "whole", SHORT)
        for name in ("rounds.jsonl", "examples.json", "summary.json"):
            (folder / name).write_bytes((whole / name).read_bytes())
        thread.join(60)
        assert not thread.is_alive()
        assert told == [file], "it is opened once"
        assert "reload every" not in file.read_text(encoding="utf-8")
        assert "Over 12 rounds" in file.read_text(encoding="utf-8")


def test_a_result_reports_and_draws_itself(tmp_path: Path) -> None:
    result = simulate("demo", rounds=3, out=tmp_path / "run")
    assert result.report() == tmp_path / "run" / "report.html"
    assert "<h1" in (tmp_path / "run" / "report.html").read_text("utf-8")
    drawn = result.plot().axes[0].lines[0].get_ydata()
    assert drawn.tolist() == [record["rmse"] for record in result.rounds]
    with pytest.raises(ConfigError, match="metric"):
        result.plot("nonsense")
    with pytest.raises(ConfigError, match="out="):
        simulate("demo", rounds=1).report()
