"""What is planned for: its settings, its figures in a summary, and what studies compare by."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgtplanner import simulate
from bgtplanner.errors import ConfigError
from bgtplanner.models.metrics import METRICS, lists_of
from bgtplanner.models.references import references
from bgtplanner.planning.objective import Objective
from bgtplanner.report.verdict import about_scores, planned_key
from bgtplanner.runs.config import BEFORE, identifying, load_config, to_toml
from bgtplanner.runs.reproduce import command_of
from bgtplanner.runs.run import ratings_of, resume, split_of
from bgtplanner.runs.statistics import Outcome, compared, metric_of, summed_up
from bgtplanner.runs.study import Study
from bgtplanner.runs.summary import alone_by_round, as_served, lists_served, rounds_to_rank

SERVED, LAST = Objective("served"), Objective("last")
FEW: dict[str, Any] = {
    "synthetic.clients": 40,
    "synthetic.items": 30,
    "synthetic.ratings_per_client": 10,
    "planning.policy": "uniform",
    "run.device": "cpu",
    "run.checkpoint_every": 3,
}


class TestSettings:
    def test_the_mean_over_rounds_by_default(self) -> None:
        assert load_config().planning.goal == Objective("served")
        assert load_config(preset="paper").planning.goal == Objective("last")

    @pytest.mark.parametrize("given", ["5,5.5, 10", [5, 5.5, 10], (5, 5.5, 10.0)])
    def test_traffic(self, given: Any) -> None:
        config = load_config(settings={"planning.traffic": given})
        assert config.planning.traffic == "5,5.5,10"
        assert config.planning.goal == Objective("served", (5, 5.5, 10))
        assert load_config(settings={"planning.traffic": 3}).planning.traffic == "3"

    def test_a_file_is_read_once(self, tmp_path: Path) -> None:
        file = tmp_path / "visits.txt"
        file.write_text("\ufeff5\r\n\n0.125\n")
        config = load_config(settings={"planning.traffic": str(file)})
        assert config.planning.traffic == "5,0.125"
        file.write_text("7")
        (tmp_path / "config.toml").write_text(to_toml(config))
        assert load_config(file=tmp_path / "config.toml") == config
        assert "--traffic 5,0.125" in command_of(config)

    @pytest.mark.parametrize("given", ["", "a", "1,", "1,-1", "0", "inf", "1e13", {"a": 1}, [[1]]])
    def test_what_is_no_traffic(self, given: Any) -> None:
        words = r"--traffic \(planning.traffic\) = .*expected numbers of 0 or more with commas"
        with pytest.raises(ConfigError, match=words):
            load_config(settings={"planning.traffic": given})

    def test_a_file_of_something_else(self, tmp_path: Path) -> None:
        for content in (b"", b"a\n", b"\xff\n", b"1 2\n"):
            (tmp_path / "visits").write_bytes(content)
            with pytest.raises(ConfigError, match=r"--traffic .*expected numbers"):
                load_config(settings={"planning.traffic": str(tmp_path / "visits")})

    def test_older_runs_stay_what_they_were(self, tmp_path: Path) -> None:
        assert BEFORE["planning.objective"] == "last"
        config = load_config(settings=BEFORE)
        assert config.planning.goal == Objective("last")
        assert not {"objective", "traffic"} & set(identifying(config)["planning"])
        mine = identifying(load_config(settings={"planning.traffic": "1,2"}))["planning"]
        assert (mine["objective"], mine["traffic"]) == ("served", "1,2")


class TestFigures:
    def test_the_mean_is_weighted_by_traffic(self) -> None:
        week = Objective("last", (1, 3))
        assert as_served(week, [0.2, 0.1, 0.2]) == pytest.approx(0.14), "whatever is planned for"
        assert as_served(SERVED, [0.2, 0.1]) == pytest.approx(0.15)
        assert as_served(SERVED, [0.2, None]) is as_served(SERVED, []) is None

    @pytest.mark.parametrize("rounds", [1, 2, 3, 10, 100, 5000])
    def test_few_rounds_are_ranked(self, rounds: int) -> None:
        found = rounds_to_rank(rounds)
        assert found == sorted(set(found))
        assert len(found) <= 7
        assert rounds == 1 or found[0] == 0
        assert all(0 <= index < rounds - 1 for index in found), "the last one is ranked anyway"

    def test_between_them_lists_go_with_the_error(self) -> None:
        """As in a run that spends late: nothing happens before."""
        errors = [0.2] * 90 + [0.18] * 10
        truth = [0.1] * 90 + [0.3] * 10
        records = [
            {"rmse": error} | ({"ndcg_at_10": value} if index in rounds_to_rank(100) else {})
            for index, (error, value) in enumerate(zip(errors, truth, strict=True))
        ]
        assert lists_served(SERVED, records, 0.3) == pytest.approx(np.mean(truth))
        crowd = Objective("served", [0.0] * 90 + [1.0] * 10)
        assert lists_served(crowd, records, 0.3) == pytest.approx(0.3)
        level = [record | {"rmse": 0.2} for record in records]
        even = lists_served(SERVED, level, 0.3)
        assert even is not None
        assert np.mean(truth) < even < 0.2, "evenly, if the error says nothing"

    def test_runs_without_them(self) -> None:
        assert lists_served(SERVED, [{"rmse": 0.2}] * 2, 0.3) is None, "an earlier version's"
        assert lists_served(SERVED, [{"rmse": 0.2, "ndcg_at_10": 0.1}] * 2, None) is None
        assert lists_served(SERVED, [{"rmse": None, "ndcg_at_10": 0.1}] * 2, 0.2) is None
        assert lists_served(SERVED, [{"rmse": 0.2}], 0.3) == 0.3

    def test_a_client_alone_is_served_by_what_it_knows(self) -> None:
        config = load_config(settings=FEW | {"data.dataset": "synthetic", "federation.rounds": 8})
        split = split_of(config, ratings_of(config))
        last = references(split.train, split.test).client_alone.rmse
        curve = alone_by_round(split, 8, last)
        assert curve is not None
        found = as_served(SERVED, curve)
        each = [
            references(split.train.take(split.present(index)), split.test).client_alone.rmse
            for index in range(8)
        ]
        assert found == pytest.approx(np.mean(each), rel=1e-3)
        assert found is not None
        assert found > last, "it learns, too"
        short = alone_by_round(split, 2, last)
        assert short == pytest.approx(each[:2]), "a run that ended early"
        assert alone_by_round(split, 8, None) is None


@pytest.mark.usefixtures("compiled_once")
class TestRuns:
    def test_both_are_in_the_summary(self) -> None:
        week = {"planning.traffic": "1,1,4", "federation.rounds": 6}
        found = simulate("synthetic", settings=FEW | week)
        errors = [record["rmse"] for record in found.rounds]
        served = np.average(errors, weights=[1, 1, 4, 1, 1, 4])
        assert found.summary["objective"] == "served"
        assert found.summary["rmse_served"] == pytest.approx(served)
        assert found.summary["rmse_objective"] == found.summary["rmse_served"]
        last = simulate("synthetic", settings=FEW | week | {"planning.objective": "last"})
        assert last.summary["objective"] == "last"
        assert last.summary["rmse_objective"] == errors[-1] == last.summary["rmse_final"]
        assert last.summary["rmse_served"] == pytest.approx(served), "also weighted by traffic"

    def test_lists_of_a_few_rounds(self, tmp_path: Path) -> None:
        settings = FEW | {"federation.rounds": 20}
        folder = tmp_path / "run"
        found = simulate("synthetic", settings=settings, out=folder)
        lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
        ranked = [line["round"] for line in lines if "ndcg_at_10" in line]
        assert ranked == rounds_to_rank(20)
        expected = lists_served(SERVED, found.rounds, found.summary["ndcg_at_10"])
        assert found.summary["ndcg_at_10_served"] == expected is not None
        short = simulate("synthetic", settings=settings | {"federation.rounds": 1})
        split = split_of(load_config(settings=settings), short.ratings)
        lists = lists_of(short.simulation.rank, split.train, split.test)
        assert short.summary["ndcg_at_10_served"] == METRICS["ndcg_at_10"].of(lists)

    def test_the_same_after_a_stop(self, tmp_path: Path) -> None:
        folder, settings = tmp_path / "run", FEW | {"federation.rounds": 9}
        whole = simulate("synthetic", settings=settings, out=folder)
        (folder / "summary.json").unlink()
        lines = (folder / "rounds.jsonl").read_text().splitlines(keepends=True)
        again = resume(folder)
        assert (folder / "rounds.jsonl").read_text().splitlines(keepends=True) == lines
        for key in ("ndcg_at_10_served", "rmse_objective", "rmse_client_alone_served"):
            assert again.summary[key] == whole.summary[key] is not None

    def test_not_where_lists_are_not_shown(self) -> None:
        settings = FEW | {"federation.rounds": 3}
        found = simulate("synthetic", preset="paper", settings=settings)
        assert not any("ndcg_at_10" in record for record in found.rounds)
        assert found.summary["ndcg_at_10_served"] is None


class TestStudies:
    def test_they_are_compared_by_it(self) -> None:
        def summary(policy: str, seed: int) -> dict[str, Any]:
            served, last = {"bgt": (0.2, 0.19), "uniform": (0.21, 0.18)}[policy]
            names = ("constant", "user_mean", "client_alone")
            every: dict[str, Any] = dict.fromkeys(compared(), 0.5) | {"seconds_total": 1.0}
            every |= {f"{of}_{name}": 0.25 for of in ("rmse", "f1") for name in names}
            every |= {"rmse_served": served + 0.001 * seed, "rmse_final": last}
            return every | {"rmse_client_alone_served": 0.26}

        best = {}
        for kind in ("served", "last"):
            study = Study(
                policies=("bgt", "uniform"), seeds=(0, 1), settings={"planning.objective": kind}
            )
            outcomes = [
                Outcome(cell=cell, summary=summary(cell.policy, cell.seed))
                for cell in study.cells()
            ]
            found = summed_up(study, outcomes)
            assert found.error == {"served": "rmse_served", "last": "rmse_final"}[kind]
            assert metric_of(found.reported[0]) == "ndcg_at_10"
            assert found.reported[1] == found.error
            assert {"rmse_served", "rmse_final", "ndcg_at_10_served"} <= set(found.reported)
            assert found.as_json()["objective"] == kind
            assert "rmse_served" in found.as_csv()
            assert "rmse_final" in found.as_csv()
            from bgtplanner.report.study import facts_of_comparison, headline
            from bgtplanner.runs.tables import markdown

            best[kind] = headline(found)
            assert (
                f"{'1 better' if kind == 'served' else '0 better'}"
                in facts_of_comparison(found).tiles[2].value
            )
            text = markdown(found)
            order = [text.index(f"({of})") for of in ("mean over all rounds, as served",
                                                      "last round")]  # fmt: skip
            assert (order[0] < order[1]) == (kind == "served")
            alone = [row for row in found.rows if row.policy == "client_alone"]
            values = [alone[0].figures[key] for key in ("rmse_served", "rmse_final")]
            assert [value.mean for value in values if value is not None] == [0.26, 0.25]
        assert best["served"] == (
            "bgt has the lowest mean error of 2 policies on demo, gaussian: RMSE 0.2005 as "
            "served, 22.9 % below a client alone."
        )
        assert best["last"].startswith("uniform has the lowest mean error of 2 policies")

    def test_earlier_versions_did_not_note_it(self) -> None:
        study = Study(policies=("bgt", "uniform"), seeds=(0,))
        old = dict.fromkeys(compared(), 0.5) | {"seconds_total": 1.0}
        del old["rmse_served"], old["ndcg_at_10_served"]
        outcomes = [Outcome(cell=cell, summary=old) for cell in study.cells()]
        assert summed_up(study, outcomes).error == "rmse_final"

    def test_a_metric_may_be_called_like_a_figure(self) -> None:
        assert metric_of("rmse_served") == metric_of("rmse_final") == "rmse"
        assert metric_of("ndcg_at_10_served") == metric_of("ndcg_at_10") == "ndcg_at_10"


def test_in_sentences() -> None:
    served = {"objective": "served", "rmse_served": 0.2, "rmse_final": 0.1, "rmse_arriving": 0.3}
    assert planned_key(served) == "rmse_served"
    assert planned_key(served, "ndcg_at_10") == "ndcg_at_10", "if it was not measured"
    assert planned_key(served | {"ndcg_at_10_served": 0.1}, "ndcg_at_10") == "ndcg_at_10_served"
    assert planned_key(served | {"objective": "last"}) == "rmse_final"
    old = {key: of for key, of in served.items() if key != "objective"}
    assert planned_key(old) == "rmse_final"
    said = " ".join(about_scores(served))
    assert "predicted, before they were learned, with RMSE 0.3000." in said


def test_the_objective_of_a_config_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        load_config().planning.goal.kind = "last"  # type: ignore[misc]
