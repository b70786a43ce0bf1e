"""A study as it is shown: its headline, tables of 80 columns, files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bgtplanner.report.terminal import as_text
from bgtplanner.runs.statistics import Comparison, summed_up, tables_of, write_tables
from bgtplanner.runs.study import Outcome, Study, parse_grid

LEVELS = {"bgt": 0.31, "uniform": 0.33, "late": 0.3301, "unlimited": 0.2}


def summary_of(policy: str, seed: int) -> dict[str, Any]:
    value = LEVELS.get(policy, 0.4) + 0.001 * seed**2 + 0.004 * (seed == 1) * (policy == "late")
    return {
        "objective": "served", "scale": [1, 5], "seconds_total": 1.0,
        "rmse_served": value, "rmse_final": value + 0.01, "rmse_best": value - 0.01,
        "f1_final": 0.64 - 0.001 * seed, "f1_best": 0.65 - 0.001 * seed,
        "ndcg_at_10": 0.21 + 0.01 * seed, "ndcg_at_10_popularity": 0.17,
        "rmse_constant": 0.26 + 0.002 * seed, "rmse_user_mean": 0.25, "rmse_client_alone": 0.24,
        "rmse_client_alone_served": 0.35, "f1_constant": 0.81, "f1_user_mean": 0.82,
        "f1_client_alone": 0.83,
    }  # fmt: skip


def comparison(*axes: str, lost: str = "nothing", **changes: Any) -> Comparison:
    """A study with made-up figures; what has `lost` in its name has failed."""
    given: dict[str, Any] = {"datasets": ("ml-100k",), "seeds": (0, 1, 2)}
    given |= {"policies": ("bgt", "uniform", "late", "unlimited")}
    varied = (parse_grid(axes),) if axes else ()
    study = Study(**(given | changes), variations=varied)
    outcomes = [
        Outcome(cell=cell, error="training diverged | in round 3")
        if lost in cell.name
        else Outcome(cell=cell, summary=summary_of(cell.policy, cell.seed))
        for cell in study.cells()
    ]
    return summed_up(study, outcomes)


def printed(found: Comparison, **options: Any) -> list[list[str]]:
    """The lines of the tables on a terminal, each split at its blanks."""
    text = as_text(tables_of(found, **options))
    assert max(map(len, text.splitlines())) <= 80
    return [line.split() for line in text.splitlines()]


class TestHeadline:
    def test_the_best_and_what_could_be_chance(self) -> None:
        said = "Lower errors than uniform's, and not by chance: bgt in {0} of {0} settings."
        assert comparison().headline == said.format(1)
        several = comparison(datasets=("ml-100k", "demo"), mechanisms=("gaussian", "laplace"))
        assert several.headline == said.format(4)
        assert comparison(policies=("bgt",)).headline == ""

    @pytest.mark.parametrize(
        "axes",
        [
            {"baseline": "bgt"},
            {"policies": ("uniform", "late", "unlimited")},  # late differs by chance
            {"seeds": (0,)},
        ],
    )
    def test_what_could_be_chance_is_never_called_better(self, axes: dict[str, Any]) -> None:
        against = axes.get("baseline", "uniform")
        said = f"No policy has an error below that of {against} by more than could be chance."
        assert comparison(**axes).headline == said


class TestTables:
    def test_means_and_differences(self) -> None:
        lines = printed(comparison())
        assert ["bgt", "3/3", "0.3117", "0.0052"] in lines
        assert ["each", "client", "alone", "3/3", "0.3500", "0.0000"] in lines
        assert ["bgt", "3", "-0.0200", "0.0000*"] in lines
        assert ["late", "3", "+0.0014", "0.0057"] in lines, "no star: it could be chance"
        assert len(printed(comparison(), planned=True)) < len(lines)
        found = comparison()
        for outcome in found.outcomes:  # of implicit ratings: there are lists, and no error
            for key in [key for key in outcome.summary or {} if key.startswith(("rmse", "f1"))]:
                del outcome.summary[key]
        lists = printed(summed_up(found.study, found.outcomes), planned=True)
        assert ["bgt", "3/3", "0.220", "0.025"] in lists
        lines = printed(comparison(lost="bgt"))
        assert ["bgt", "0/3", "failed"] in lines
        assert ["bgt", "0", "–"] in lines

    def test_never_wider_than_80(self) -> None:
        long = "csv:/home/somebody/with/a/long/path/[red]ratings[/red].csv"
        policies = ("bgtplanner.planning.schedules:Hong", "bgt")
        found = comparison(datasets=("filmtrust", long), policies=policies)
        text = "\n".join(" ".join(line) for line in printed(found))
        assert "schedules:Hong" in text
        assert "[/red].csv, gaussian" in text
        lines = printed(comparison("planning.options.initial_rounds=3,5", "privacy.epsilon=5,20"))
        assert ["bgt", "3", "20", "3/3", "0.3117", "0.0052"] in lines

    def test_files(self, tmp_path: Path) -> None:
        found = comparison(preset="paper", lost="uniform seed 2")
        write_tables(found, tmp_path)
        tree = json.loads((tmp_path / "comparison.json").read_text())
        assert (tree["baseline"], tree["reported"]) == ("uniform", ["rmse_best", "f1_best"])
        assert tree["failed"][0]["folder"] == "ml-100k/gaussian/uniform/seed-2"
