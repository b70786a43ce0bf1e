"""A study as it is shown: tables of 80 columns, Markdown, CSV, JSON and progress."""

from __future__ import annotations

import csv
import importlib.util
import io
import itertools
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from bgtplanner.errors import MissingExtraError
from bgtplanner.report.study import (
    StudyView,
    duration,
    need_pictures,
    picture,
    tables,
    write_files,
)
from bgtplanner.runs import run as runner
from bgtplanner.runs.compare import compare
from bgtplanner.runs.config import Config
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.statistics import Comparison, Outcome, summed_up
from bgtplanner.runs.study import Cell, Study, Variation
from bgtplanner.runs.sweeps import parse_axis
from bgtplanner.runs.tables import markdown, tables_of


def summary_of(policy: str, seed: int) -> dict[str, Any]:
    level = {"bgt": 0.31, "uniform": 0.33, "unlimited": 0.2}.get(policy, 0.4)
    value = level + 0.001 * seed**2
    return {
        "rmse_final": value + 0.01,
        "rmse_best": value,
        "f1_final": 0.64 - 0.001 * seed,
        "f1_best": 0.65 - 0.001 * seed,
        "ndcg_at_10": 0.21 + 0.01 * seed,
        "recall_at_10": 0.1,
        "ndcg_at_10_popularity": 0.17,
        "rmse_constant": 0.26 + 0.002 * seed,
        "rmse_user_mean": 0.25,
        "rmse_client_alone": 0.24,
        "f1_constant": 0.81,
        "f1_user_mean": 0.82,
        "f1_client_alone": 0.83,
        "seconds_total": 1.0,
    }


def comparison_of(fails: tuple[tuple[str, int], ...] = (), **changes: Any) -> Comparison:
    given: dict[str, Any] = {
        "datasets": ("ml-100k",),
        "policies": ("bgt", "uniform", "unlimited"),
        "seeds": (0, 1, 2),
    }
    request = Study(**(given | changes))
    outcomes = [
        Outcome(cell=cell, error="training diverged | in round 3")
        if (cell.policy, cell.seed) in fails
        else Outcome(cell=cell, summary=summary_of(cell.policy, cell.seed))
        for cell in request.cells()
    ]
    return summed_up(request, outcomes)


def shown(comparison: Comparison) -> list[str]:
    console = Console(file=io.StringIO(), width=80)
    for table in tables(comparison):
        console.print(table)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return [line.rstrip() for line in text.splitlines()]


class TestTerminal:
    def test_last_round(self) -> None:
        assert shown(comparison_of()) == [
            "NDCG@10 and recall@10 (last round)",
            "policy                       n  NDCG@10     sd  ±95 %  recall@10     sd  ±95 %",
            "ml-100k, gaussian",
            "  bgt                      3/3    0.220  0.010  0.025      0.100  0.000  0.000",
            "  uniform                  3/3    0.220  0.010  0.025      0.100  0.000  0.000",
            "ml-100k, no privacy",
            "  unlimited †              3/3    0.220  0.010  0.025      0.100  0.000  0.000",
            "ml-100k, for reference",
            "  popularity, not private  3/3    0.170  0.000  0.000          –      –      –",
            "n: seeds finished of those requested; mean, standard deviation, half the",
            "t-interval. † differs in more than the policy: unlimited has privacy.mechanism",
            "none.",
            "RMSE (last round)",
            "policy                    n    RMSE      sd   ±95 %",
            "ml-100k, gaussian",
            "  bgt                   3/3  0.3217  0.0021  0.0052",
            "  uniform               3/3  0.3417  0.0021  0.0052",
            "ml-100k, no privacy",
            "  unlimited †           3/3  0.2117  0.0021  0.0052",
            "ml-100k, for reference",
            "  one constant for all  3/3  0.2620  0.0020  0.0050",
            "  each user's own mean  3/3  0.2500  0.0000  0.0000",
            "  each client alone     3/3  0.2400  0.0000  0.0000",
            "n: seeds finished of those requested; mean, standard deviation, half the",
            "t-interval.",
            "Difference from uniform, paired by seed (last round)",
            "policy             n  NDCG@10   ±95 %  recall@10   ±95 %",
            "ml-100k, gaussian",
            "  bgt              3   +0.000   0.000     +0.000   0.000",
            "  unlimited †      3   +0.000   0.000     +0.000   0.000",
            "A higher NDCG@10 and a higher recall@10 are better. * marks an interval that",
            "excludes zero. † differs in more than the policy: unlimited has",
            "privacy.mechanism none.",
            "Difference from uniform, paired by seed (last round)",
            "policy             n     RMSE    ±95 %",
            "ml-100k, gaussian",
            "  bgt              3  -0.0200  0.0000*",
            "  unlimited †      3  -0.1300  0.0000*",
            "A lower RMSE is better. * marks an interval that excludes zero.",
        ]

    def test_only_what_was_planned_for(self) -> None:
        """What a command prints: the error by which policies are compared, and no more."""
        titles = [sheet.title for sheet in tables_of(comparison_of(), planned=True)]
        apart = "Difference from uniform, paired by seed (last round)"
        assert titles == ["RMSE (last round)", apart]

    def test_all_that_differs_is_said(self) -> None:
        lines = shown(comparison_of(older=True))  # whose model was another without privacy
        assert max(map(len, lines)) <= 80
        assert (
            "† differs in more than the policy: unlimited has model.name factorization, "
            "server.optimizer adam, server.aggregation item-usage, privacy.mechanism none."
        ) in " ".join(lines)

    def test_beside_the_paper(self) -> None:
        lines = shown(comparison_of(preset="paper", mechanisms=("gaussian", "laplace")))
        assert lines[0] == "RMSE and F1 (best round on the test set, as in the paper)"
        assert (
            "  bgt                   3/3  0.3117  0.0021  0.0052  0.6490  0.0010  0.0025" in lines
        )
        start = lines.index("Beside the paper's Table 2")
        assert lines[start + 1 :] == [
            "policy                  RMSE   paper    diff.      F1   paper    diff.",
            "ml-100k, gaussian",
            "  bgt (OURS)          0.3117  0.3223  -0.0106  0.6490  0.6444  +0.0046",
            "  uniform (DPSGD)     0.3317  0.3356  -0.0039  0.6490  0.6412  +0.0078",
            "ml-100k, laplace",
            "  bgt (OURS)          0.3117  0.3449  -0.0332  0.6490  0.6421  +0.0069",
            "ml-100k, no privacy",
            "  unlimited (FedSGD)  0.2017  0.2017  -0.0000  0.6490  0.9018  -0.2528",
            "Ours is the mean over seeds of the best round; the difference is ours minus the",
            "paper's.",
        ]

    def test_failed_cells(self) -> None:
        found = comparison_of(fails=(("bgt", 0), ("bgt", 1), ("bgt", 2), ("uniform", 1)))
        lines = shown(found)
        assert any(line.split() == ["bgt", "0/3", "failed"] for line in lines)
        assert any(line.split()[:2] == ["uniform", "2/3"] for line in lines)
        assert any(line.split() == ["bgt", "0", "–", "–"] for line in lines)
        assert len(found.failed) == 4

    def test_one_seed_and_one_policy(self) -> None:
        lines = shown(comparison_of(seeds=(0,), policies=("bgt",)))
        assert any(
            line.split() == ["bgt", "1/1", "0.210", "–", "–", "0.100", "–", "–"] for line in lines
        )
        assert not any(line.startswith("Difference") for line in lines)

    def test_never_wider_than_80(self) -> None:
        long = "csv:/home/somebody/with/a/long/path/[red]ratings[/red].csv"
        for preset in ("paper", "recommended"):
            found = comparison_of(
                datasets=("filmtrust-full", long),
                policies=("bgtplanner.planning.schedules:Hong", "bgt"),
                preset=preset,
                seeds=tuple(range(12)),
            )
            lines = shown(found)
            assert max(map(len, lines)) <= 80
            assert any("schedules:Hong" in line for line in lines)
            assert any("[/red].csv, gaussian" in line for line in lines)


class TestFiles:
    def test_markdown(self) -> None:
        found = comparison_of(
            fails=(("bgt", 1),), preset="paper", settings={"federation.rounds": 7}
        )
        lines = markdown(found).splitlines()
        assert lines[0] == "# Comparison"
        assert "Preset `paper`, seeds 0, 1, 2, `federation.rounds = 7`." in lines
        assert "| data set | policy | n | RMSE | sd | ±95 % | F1 | sd | ±95 % |" in lines
        assert (
            "| ml-100k, gaussian | uniform (DPSGD) | 0.3317 | 0.3356 | -0.0039 | 0.6490 | 0.6412 "
            "| +0.0078 |"
        ) in lines
        assert "- ml-100k gaussian bgt seed 1: training diverged | in round 3" in lines
        assert any(
            line.endswith("other settings than the preset: federation.rounds.") for line in lines
        )
        for line, after in itertools.pairwise(lines):
            if line.startswith("|") and after.startswith("|"):
                assert line.count("|") == after.count("|")

    def test_csv(self) -> None:
        found = comparison_of(preset="paper")
        rows = list(csv.DictReader(io.StringIO(found.as_csv())))
        lists = (3 + 2) * 2 + 1  # popularity has one of them, which is none of the ratings'
        assert len(rows) == 4 * (3 + 3 + 2) + lists
        first = rows[3]
        assert (first["kind"], first["policy"], first["metric"]) == ("policy", "bgt", "rmse_best")
        row = found.rows[0].figures["rmse_best"]
        assert row is not None
        for name in ("mean", "std", "low", "high"):
            assert float(first[name]) == getattr(row, name)
        assert float(first["paper"]) == 0.3223
        assert float(first["minus_paper"]) == pytest.approx(row.mean - 0.3223)
        assert rows[0]["paper"] == ""
        assert {row["kind"] for row in rows} == {"policy", "reference", "difference"}
        assert {row["baseline"] for row in rows if row["kind"] == "difference"} == {"uniform"}

    def test_written(self, tmp_path: Path) -> None:
        found = comparison_of(fails=(("uniform", 2),), preset="paper")
        write_files(found, tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == {
            "comparison.csv",
            "comparison.json",
            "comparison.md",
        }
        tree = json.loads((tmp_path / "comparison.json").read_text())
        assert (tree["baseline"], tree["reported"]) == ("uniform", ["rmse_best", "f1_best"])
        assert tree["failed"][0]["folder"] == "ml-100k/gaussian/uniform/seed-2"
        assert tree["rows"][0]["paper"]["rmse"] == 0.3223
        assert tree["rows"][0]["figures"]["rmse_best"]["seeds"] == 3


def swept(*axes: str, lost: str = "", **changes: Any) -> Comparison:
    """A sweep with made-up figures; what has `lost` in its name has failed."""
    given: dict[str, Any] = {"policies": ("bgt", "uniform"), "seeds": (0, 1)} | changes
    sweep = Study(**given, variations=(Variation(axes=tuple(map(parse_axis, axes))),))
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
    return summed_up(sweep, outcomes)


def printed(found: Comparison) -> str:
    return "\n".join(shown(found))


class TestSweep:
    def test_a_terminal_of_80_columns_has_all(self) -> None:
        found = swept(
            *("planning.options.initial_rounds=3,5", "privacy.epsilon=5,20"),
            datasets=("ml-100k", "filmtrust"),
            lost="ml-100k gaussian uniform",
        )
        text = printed(found)
        lines = [line.split() for line in text.splitlines()]
        assert ["bgt", "3", "20", "2/2", "0.3500", "0.0707"] in lines
        assert ["uniform", "3", "5", "0/2", "failed"] in lines
        assert "(last round)" in text
        assert "…" not in text
        assert max(map(len, text.splitlines())) <= 80

    def test_best_round_with_the_paper_and_no_deviation_of_one_seed(self) -> None:
        text = printed(swept("privacy.epsilon=5", preset="paper", seeds=(0,)))
        assert "best round" in text
        assert "0.5000" in text
        assert "–" in text

    def test_markdown_says_what_failed(self) -> None:
        text = markdown(swept("privacy.epsilon=5,20", lost="epsilon=20"))
        assert "| demo, gaussian | bgt | 5 | 2/2 | 0.3500 | 0.0707 |" in text
        assert "- demo gaussian bgt seed 0, privacy.epsilon=20: lost" in text

    def test_files(self, tmp_path: Path) -> None:
        found = swept(
            "privacy.epsilon=5,20",
            mechanisms=("gaussian", "laplace"),
            policies=("bgt", "unlimited"),
        )
        assert write_files(found, tmp_path) == ["demo-gaussian.svg", "demo-laplace.svg"]
        names = {"sweep.json", "sweep.csv", "sweep.md", "demo-gaussian.svg", "demo-laplace.svg"}
        assert {file.name for file in tmp_path.iterdir()} == names
        assert "![demo, laplace](demo-laplace.svg)" in (tmp_path / "sweep.md").read_text()
        assert "unlimited" in words((tmp_path / "demo-laplace.svg").read_text())

    def test_files_without_any_mechanism(self, tmp_path: Path) -> None:
        found = swept("federation.rounds=2,3", policies=("unlimited",))
        assert write_files(found, tmp_path) == ["demo-none.svg"]


def words(svg: str) -> list[str]:
    tree = ElementTree.fromstring(svg)
    return ["".join(entry.itertext()).strip() for entry in tree.iter() if entry.tag[-4:] == "text"]


class TestPicture:
    def test_a_line_a_policy(self) -> None:
        found = words(picture(swept("privacy.epsilon=5,20"), "demo", "gaussian"))
        assert {"bgt", "uniform", "RMSE, last round", "privacy.epsilon", "5", "20"} <= set(found)

    def test_a_line_a_value_of_the_second_key(self) -> None:
        found = swept("privacy.epsilon=5,20", "planning.min_rounds=2,3", policies=("bgt",))
        said = words(picture(found, "demo", "gaussian"))
        assert {"min_rounds 2", "min_rounds 3"} <= set(said)

    def test_values_that_are_no_numbers_and_wide_ranges(self) -> None:
        text = picture(swept("planning.context=none,released"), "demo", "gaussian")
        assert {"none", "released"} <= set(words(text))
        text = picture(swept("privacy.clip=0.001,0.01,1"), "demo", "gaussian")
        assert {"0.001", "0.01", "1"} <= set(words(text))

    def test_nothing_done_and_names_like_formulas(self) -> None:
        found = swept("privacy.epsilon=5", lost="demo")
        assert "demo, gaussian" in words(picture(found, "demo", "gaussian"))
        assert "csv:$_$.csv, laplace" in words(picture(found, "csv:$_$.csv", "laplace"))

    def test_the_same_twice(self) -> None:
        found = swept("privacy.epsilon=5,20")
        assert picture(found, "demo", "gaussian") == picture(found, "demo", "gaussian")

    def test_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(MissingExtraError, match=r"pictures of a sweep .*bgtplanner\[report\]"):
            need_pictures(swept("privacy.epsilon=5").study)


class TestFunction:
    def test_compare(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def execute(config: Config, *, out: Path, **_: Any) -> None:
            assert config.privacy.epsilon == 4.0
            with RunFolder.create(out, config, fingerprint="x") as folder:
                folder.write_summary(summary_of(config.planning.policy, config.run.seed))

        monkeypatch.setattr(runner, "execute", execute)
        options: dict[str, Any] = {"seeds": [0, 1], "epsilon": 4.0, "baseline": "bgt"}
        kept = compare("demo", ["bgt", "uniform"], out=tmp_path / "grid", **options)
        assert (tmp_path / "grid/comparison.md").is_file()
        assert [(d.policy, d.baseline) for d in kept.differences] == [("uniform", "bgt")]
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        lost = compare(("demo",), ("bgt", "uniform"), mechanisms=["gaussian"], **options)
        assert lost.rows == kept.rows
        assert [path.name for path in tmp_path.iterdir()] == ["grid"]


class TestProgress:
    cell = Cell(dataset="demo", mechanism="gaussian", policy="bgt", seed=0)

    def watch(self, **options: Any) -> str:
        quiet = options.pop("quiet", False)
        console = Console(file=io.StringIO(), width=80, **options)
        view = StudyView(console, quiet)
        view.study_started(3, 0, None)
        view.cell_round(self.cell, 5, 10)
        done = Outcome(cell=self.cell, summary=summary_of("bgt", 0), seconds=4.0)
        view.cell_finished(done, 400.0)
        view.cell_finished(Outcome(cell=self.cell, error="no [such] file"), 200.0)
        view.cell_finished(done, 0.0)
        view.close()
        view.close()
        return str(console.file.getvalue())  # type: ignore[attr-defined]

    def test_lines(self) -> None:
        assert self.watch().splitlines() == [
            "3 cells",
            "1/3  demo gaussian bgt seed 0: RMSE 0.3200, 4 s, about 7 min left",
            "2/3  demo gaussian bgt seed 0: failed: no [such] file, about 3 min left",
            "3/3  demo gaussian bgt seed 0: RMSE 0.3200, 4 s",
        ]

    def test_live(self) -> None:
        text = self.watch(force_terminal=True, color_system=None)
        assert "demo gaussian bgt seed 0: RMSE 0.3200, 4 s, about 7 min left" in text
        assert "failed: no [such] file" in text
        assert text.count("RMSE 0.3200") == 1  # the first, with the estimate; then the bar moves

    def test_quiet(self) -> None:
        assert self.watch(quiet=True) == ""

    def test_going_on(self) -> None:
        console = Console(file=io.StringIO(), width=80)
        StudyView(console).study_started(6, 4, 130.0)
        text = console.file.getvalue()  # type: ignore[attr-defined]
        assert text == "6 cells, 4 of them finished before, about 2 min left\n"

    def test_durations(self) -> None:
        assert [duration(s) for s in (0.2, 99, 100, 5999, 6000)] == [
            "0 s",
            "99 s",
            "2 min",
            "100 min",
            "1.7 h",
        ]
