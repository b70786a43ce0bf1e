"""What `make results` writes into docs/results.md, from made-up results."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.paper.page import NOT_RUN, blank, body_of
from benchmarks.results import __main__ as command
from benchmarks.results import plan, play
from benchmarks.results.plan import (
    ABLATIONS,
    PARTS,
    TABLE,
    Cell,
    Place,
    Removal,
    Run,
    Study,
    Target,
)
from benchmarks.results.store import Store
from benchmarks.results.study import counts, findings, verdict
from benchmarks.results.tables import TITLES, excess

from bgtplanner.runs.cells import data_of
from bgtplanner.runs.config import load_config
from bgtplanner.runs.statistics import estimate

DOCS = Path(__file__).parents[1] / "docs" / "results.md"
SEEDS = (0, 1, 2)
RICH = Place("ml-100k", "secagg", "gaussian", 10.0)
POOR = Place("ml-100k", "local", "gaussian", 0.5)
SPECIAL = RICH._replace(neighbours="replace-special")
Of = Callable[[Run], dict[str, Any]]


@pytest.fixture
def study() -> Study:
    """A cell with something to gain and one with nothing, and two parts to remove."""
    return Study(
        table=TABLE[:1],
        datasets=("ml-100k",),
        seeds=SEEDS,
        cells=(Cell(RICH, SEEDS), Cell(POOR, SEEDS)),
        removals=tuple(Removal(one, SPECIAL, SEEDS) for one in ABLATIONS[:2]),
        rivals=("uniform", "adpml"),
    )


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "docs" / "results.md"
    path.parent.mkdir()
    path.write_text(blank(TITLES), encoding="utf-8")
    return path


def figures(run: Run) -> dict[str, Any]:
    """Alone .20; with something to gain hindsight has .18 by 5 payments, the planner .182.

    Differences to uniform are .004, .005 and .006; to ADPML -.01, .00 and .01. Over all rounds all
    of them have .01 more; who pays in the last round only has as much as a client alone.
    """
    planner = run.config.planning.policy not in ("fixed", "uniform", "adpml")
    rmse, name = 0.2, run.name.removeprefix("planned ")
    if run.place in (RICH, SPECIAL):
        rmse = {"5 early": 0.18, "3 growing": 0.181}.get(name, 0.19)
        if planner:
            rmse = 0.182
        elif name == "uniform":
            rmse = 0.182 + 0.004 + 0.001 * run.seed
        elif name == "adpml":
            rmse = 0.182 + 0.01 * (run.seed - 1)
        if name == "no-features":
            rmse = 0.183 + 0.001 * run.seed
    elif planner:
        rmse = 0.2 + 0.0001 * run.seed
    return {
        "rmse_final": rmse,
        "rmse_served": 0.01 + (0.2 if name == "1 last" else rmse),
        "rmse_client_alone": 0.2,
        "rmse_user_mean": 0.21,
        "rmse_features_alone": 0.205,
        "rmse_constant": 0.25,
        "ndcg_at_10": 0.25 if name == "no-features" else 0.28 + 0.01 * run.seed,
        "ndcg_at_10_popularity": 0.16,
        "recall_at_10": 0.1,
        "overlap": 1.25,
        "twins": 0.015,
        "epsilon_spent_max": run.place.epsilon * (1.0 if run.place == RICH else 0.25),
        "seconds": 2.0,
        "code": "other",
    }


def finish(path: Path, runs: list[Run], of: Of = figures) -> Store:
    store = Store(path)
    for run in runs:
        store.add({"key": run.key, "mark": run.mark, **of(run)})
    return Store(path)


def part(page: Path, name: str) -> str:
    return body_of(page.read_text(encoding="utf-8"), name)


def row(text: str, *labels: str) -> list[str]:
    """Cells of the first line of a table that begins with these."""
    start = f"| {' | '.join(labels)} |"
    line = next(line for line in text.splitlines() if line.startswith(start))
    return [cell.strip() for cell in line.split("|")[1 + len(labels) : -1]]


def test_the_docs_have_all_parts() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for name in TITLES:
        assert body_of(text, name), name


def test_all_that_is_asked_for() -> None:
    study = replace(plan.whole(), table=TABLE)
    schedules = len(study.schedules)
    assert schedules == 19
    names = 2 + len(study.rivals) + schedules  # the planner, for both objectives
    assert len(study.runs(["planner"])) == (45 * 5 + 6 * 3) * names
    assert len(study.runs(["table"])) == 6 * 4 * 5
    every = study.runs()
    assert len({run.key for run in every}) == len(every)  # shared, never twice
    assert len(every) < sum(len(study.runs([name])) for name in PARTS)
    some = study.only(["ml-1m"])
    assert {run.place.dataset for run in some.runs()} == {"ml-1m"}


def test_the_planner_is_studied_with_the_model_that_its_figures_are_of() -> None:
    for run in plan.whole().runs(["planner"])[:3]:
        assert run.config.model.name == "biases"
        assert run.config.privacy.neighbours == "replace-one"


def test_without_privacy_there_is_no_policy_and_the_same_model() -> None:
    run = next(run for run in plan.whole().runs(["table"]) if run.place.mechanism == "none")
    assert run.config.planning.policy == "unlimited"
    assert run.config.model.name == "tastes"
    assert run.place.guarantee == "without privacy"


def test_the_local_row_is_what_the_preset_does() -> None:
    local = next(row for row in TABLE if row.trust == "local")
    preset = load_config(settings={"privacy.trust": "local"})
    assert local.mechanism == preset.privacy.mechanism == "privunit"


def test_planner_by_hand(tmp_path: Path, study: Study) -> None:
    store = finish(tmp_path / "runs.jsonl", study.runs())
    found = findings(study, store)
    assert [(one.place, one.objective) for one in found] == [
        (RICH, "served"), (RICH, "last"), (POOR, "served"), (POOR, "last"),
    ]  # fmt: skip
    for rich, more in zip(found[:2], (0.01, 0.0), strict=True):
        assert rich.worth
        assert (rich.schedule, rich.apart, rich.spent) == ("5 early", True, 1.0)
        assert rich.alone == pytest.approx(0.2 + more)
        assert rich.planner == pytest.approx(0.182 + more)
        assert rich.hindsight == pytest.approx(0.18 + more)
        assert rich.closed == pytest.approx((0.2 - 0.182) / (0.2 - 0.18))
        difference = rich.less["uniform"]
        assert difference is not None
        assert difference.mean == pytest.approx(-0.005)
        # t(.975, 2) = 4.30265; deviation .001 over root 3.
        assert difference.half == pytest.approx(4.30265 * 0.001 / 3**0.5, rel=1e-5)
        assert verdict(difference) == "better"
        assert verdict(rich.less["adpml"]) == "same"
        assert replace(rich, planner=rich.planner - 1e-9).misses() == []
    for poor in found[2:]:
        assert not poor.worth  # .20 is all that hindsight has there
        assert not poor.apart
        assert poor.misses() == []


def test_misses_in_words(tmp_path: Path, study: Study) -> None:
    rich, *_ = findings(study, finish(tmp_path / "runs.jsonl", study.runs()))
    behind = replace(rich, planner=rich.planner + 0.008)
    assert behind.misses() == ["closes 50 % of the gap"]
    unsure = replace(rich, planner=rich.hindsight, less={"uniform": None})
    assert unsure.misses() == ["not significantly better than uniform"]
    worse = replace(rich, planner=rich.hindsight, less={"uniform": estimate([0.1, 0.1])})
    assert worse.misses() == [
        "not significantly better than uniform",
        "significantly worse than uniform by 0.10000",
    ]
    assert worse.misses() == replace(worse, spent=0.0).misses()
    said = counts([behind, replace(unsure, objective="last"), replace(worse, objective="last")])
    assert [(one.met, one.cells, one.good) for one in said] == [
        (0, 1, False),  # closed
        (1, 1, True),  # better than uniform
        (1, 1, True),  # never worse than uniform
        (1, 1, True),  # never worse than adpml
        (2, 2, True),
        (0, 2, False),
        (1, 2, False),
    ]
    assert [one.target.split(":")[0] for one in said] == ["served"] * 4 + ["last"] * 3


def test_verdicts() -> None:
    assert verdict(estimate([0.1, 0.1, 0.1])) == "worse"
    assert verdict(estimate([0.0, 0.0])) == "same"
    assert verdict(estimate([-0.1])) == "same"  # one seed says nothing
    assert verdict(None) == "same"


def test_targets() -> None:
    ours = {0: 0.19, 1: 0.20}
    of = {"user_mean": {0: 0.2, 1: 0.199}}
    assert excess(Target(limit=0.1925), ours, of) == pytest.approx(0.0025)
    assert excess(Target(limit=-0.005, minus="user_mean"), ours, of) == pytest.approx(0.0005)
    every = Target(limit=0.0, minus="user_mean", every_seed=True)
    assert excess(every, ours, of) == pytest.approx(0.001)
    assert str(every) == "never worse than user mean"
    assert str(Target(limit=-0.005, minus="user_mean")) == "user mean minus 0.0050"
    more = Target(limit=0.2, higher=True)
    assert excess(more, ours, of) == pytest.approx(0.005)
    assert str(more) == "at least 0.2000"
    popular = Target(limit=0.0, minus="user_mean", higher=True)
    assert excess(popular, ours, of) == pytest.approx(0.0045)
    assert str(popular) == "not worse than user mean"


def test_tables(tmp_path: Path, study: Study, page: Path) -> None:
    store = finish(tmp_path / "runs.jsonl", study.runs())
    assert command.write_page(study, store, page) == list(TITLES)
    text, where = part(page, "table"), ("secagg, epsilon 10, replace-special", "ML-100K")
    assert "Not finished" not in text
    # t(.975, 2) = 4.30265; deviation .01 over root 3.
    assert row(text, *where) == [
        "3",
        ".1820 ± .0000",
        ".2100",
        ".2050",
        ".2900 ± .0248",
        ".1600",
        ".1000",
        "1.25",
        ".015",
    ]
    second = text[text.index("paired by seed") :]
    assert row(second, *where) == [
        "-.0280 ± .0000",
        "at most 0.1868",
        "reached",
        "+.1300 ± .0248",
        "at least 0.2700",
        "reached",
    ]
    text = part(page, "cells")
    where = ("ML-100K", "secagg, epsilon 10, replace-one")
    last = row(text, "last", *where)
    assert last == ["3", ".2000", ".1800", "5 early", ".1820", "90 %", "100 %", "+", "="]
    served = row(text, "served", *where)
    assert served == ["3", ".2100", ".1900", "5 early", ".1920", "90 %", "100 %", "+", "="]
    poor = row(text, "served", "ML-100K", "local, epsilon 0.5")
    assert poor[5:] == ["–", "25 %", "=", "="]
    text = part(page, "targets")
    for objective in ("served", "last"):
        assert row(text, f"{objective}: never significantly worse than uniform") == [
            "2 of 2",
            "met",
        ]
        assert row(text, objective, "uniform") == ["1", "1", "0"]
    text = part(page, "ablation")
    assert row(text, "nothing") == [".1820 ± .0000"]
    assert row(text, "item features") == [".1840 (+.0020 ± .0025)"]
    assert row(text, "axes of taste") == [".1820 (+.0000 ± .0000)"]
    ranking = text[text.index("NDCG@10, more is better") :]
    assert row(ranking, "nothing") == [".2900 ± .0248"]
    assert row(ranking, "item features") == [".2500 (-.0400 ± .0248)"]


def test_writing_twice_changes_nothing(tmp_path: Path, study: Study, page: Path) -> None:
    store = finish(tmp_path / "runs.jsonl", study.runs())
    command.write_page(study, store, page)
    before = page.read_text(encoding="utf-8")
    command.write_page(study, store, page)
    assert page.read_text(encoding="utf-8") == before


def test_missing_parts(tmp_path: Path, study: Study, page: Path) -> None:
    store = finish(tmp_path / "runs.jsonl", study.runs(["table"])[:2])
    written = command.write_page(study, store, page)
    assert written == ["protocol", "table", "ablation", "rivals", "nonprivate"]
    assert part(page, "table").startswith("**Not finished:** 2 of 3 runs; `python -m")
    for name in ("targets", "cells"):
        assert part(page, name).startswith(NOT_RUN)
        assert "--run --parts planner" in part(page, name)
    # What is on the page stays there when its results are elsewhere.
    command.write_page(study, finish(tmp_path / "all.jsonl", study.runs()), page)
    before = part(page, "cells")
    command.write_page(study, store, page)
    assert part(page, "cells") == before


def test_a_torn_line_is_run_again(tmp_path: Path, study: Study) -> None:
    path = tmp_path / "runs.jsonl"
    runs = study.runs(["table"])
    finish(path, runs)
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    store = Store(path)
    assert store.missing(runs) == runs[-1:]
    store.add({"key": runs[-1].key, "mark": runs[-1].mark, **figures(runs[-1])})
    assert not Store(path).missing(runs)
    assert len(path.read_text(encoding="utf-8").splitlines()) == len(runs) + 1


def test_other_settings_are_other_runs(tmp_path: Path, study: Study) -> None:
    runs = study.runs(["table"])
    store = finish(tmp_path / "runs.jsonl", runs)
    changed = replace(study, settings={"privacy.delta": 1e-6}).runs(["table"])
    assert [run.key for run in changed] == [run.key for run in runs]
    assert store.missing(changed) == changed
    elsewhere = replace(study, settings={"data.data_dir": "elsewhere"}).runs(["table"])
    assert not store.missing(elsewhere)  # the same ratings in another folder


def test_other_code_is_told_of(tmp_path: Path, study: Study) -> None:
    runs = study.runs(["table"])
    store = finish(tmp_path / "runs.jsonl", runs)
    assert store.of_other_code(runs) == len(runs)
    assert Store(store.path, same_code=True).missing(runs) == runs


def test_pieces_keep_what_is_compiled_alike_together(study: Study) -> None:
    pieces = play.pieces_of(study.runs(), 4, {"ml-100k": 100.0})
    assert sorted(run.key for piece in pieces for [run] in piece) == sorted(
        run.key for run in study.runs()
    )
    assert all(len({run.group for [run] in piece}) == 1 for piece in pieces)
    assert len(pieces) > len({run.group for run in study.runs()})  # long groups are cut


def test_waves_have_the_same_data(study: Study) -> None:
    pieces = play.pieces_of(study.runs(), 4, together=8)
    waves = [wave for piece in pieces for wave in piece]
    assert sorted(run.key for wave in waves for run in wave) == sorted(
        run.key for run in study.runs()
    )
    assert max(map(len, waves)) == 8
    assert all(len({data_of(run.config) for run in wave}) == 1 for wave in waves)
    assert all(len({run.group for wave in piece for run in wave}) == 1 for piece in pieces)


def test_a_failure_leaves_the_others_of_its_wave_alone(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [run for run in study.runs(["planner"]) if run.seed == 0][:3]

    def played(run: Run, together: object) -> dict[str, Any]:
        if run is runs[1]:
            raise ValueError("no such thing")
        return {"key": run.key, "together": together is not None}

    monkeypatch.setattr(play, "play", played)
    monkeypatch.setattr(play._DATA, "of", lambda config: None)
    first, failed, last = play.play_wave(runs)
    assert (first["key"], last["key"]) == (runs[0].key, runs[2].key)
    assert first["together"]
    assert failed == play.Failure(runs[1].key, "ValueError: no such thing")


def test_a_failure_is_told_of_and_not_kept(
    tmp_path: Path, study: Study, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    runs = study.runs(["table"])

    def played(run: Run, together: object) -> dict[str, Any]:
        if run.seed == 1:
            raise ValueError("no such thing")
        return {"key": run.key, "mark": run.mark, **figures(run)}

    monkeypatch.setattr(play, "play", played)
    store = Store(tmp_path / "runs.jsonl")
    assert not command.run_all(runs, store, jobs=1, minutes=None)
    assert [run.seed for run in store.missing(runs)] == [1]
    assert "ValueError: no such thing" in " ".join(capsys.readouterr().out.split())
    stop = threading.Event()
    stop.set()
    assert list(play.play_all([[runs]], 1, stop)) == []


def test_failures_in_other_processes(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # and as it was afterwards
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    nowhere = RICH._replace(dataset="csv:no-such-file.csv")
    pieces = [[[study.run(nowhere, "uniform", seed)]] * 2 for seed in (0, 1)]
    found = list(play.play_all(pieces, 2, threading.Event()))
    assert len(found) == 4
    assert all(isinstance(one, play.Failure) and "no-such-file" in one.error for one in found)


def test_plan_says_how_much(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    results = ["--results", str(tmp_path / "runs.jsonl")]
    assert command.main(["--plan", "--parts", "table", "--jobs", "4", *results]) == 0
    out = capsys.readouterr().out
    assert "hours of one core" in out
    assert "with --jobs 4" in out
    assert not (tmp_path / "runs.jsonl").exists()


@pytest.mark.parametrize("wrong", [["--parts", "tables"], ["--datasets", "ml"], ["--jobs", "0"]])
def test_what_is_not_there(wrong: list[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--plan", *wrong])


def test_a_small_real_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    one = replace(
        plan.quick(),
        seeds=(0,),
        cells=tuple(Cell(place, (0,)) for place, _ in plan.quick().cells),
        removals=(),
    )
    monkeypatch.setattr(command, "quick", lambda: one)
    path, docs = tmp_path / "runs.jsonl", tmp_path / "results.md"
    words = ["--run", "--quick", "--results", str(path), "--docs", str(docs)]
    assert command.main(words) == 0
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == len(one.runs())
    uniform = next(row for row in rows if " uniform " in row["key"])
    assert uniform["epsilon_spent_max"] == pytest.approx(10.0)
    assert uniform["rounds_paid"] == 2
    assert uniform["not_accounted"] == []
    single = next(row for row in rows if " 1 early " in row["key"])
    assert single["rounds_paid"] == 1
    for objective in ("served", "last"):
        where = (objective, "synthetic", "secagg, epsilon 10, replace-one")
        assert row(part(docs, "cells"), *where)[0] == "1"
    capsys.readouterr()
    assert command.main(words) == 0  # nothing is run twice
    assert f"{len(rows)} runs, 0 of them to do" in capsys.readouterr().out
    assert len(path.read_text(encoding="utf-8").splitlines()) == len(rows)
