"""What is planned for: its settings, its figures in a summary, and what studies compare by."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bgtplanner.models.references import references
from bgtplanner.planning.objective import Objective
from bgtplanner.runs.assembly import ratings_of, split_of
from bgtplanner.runs.config import load_config
from bgtplanner.runs.summary import (
    alone_by_round,
    as_served,
    lists_served,
    rounds_to_rank,
    summarise,
)

SERVED, LAST = Objective("served"), Objective("last")
FEW: dict[str, Any] = {"synthetic.items": 30, "synthetic.ratings_per_client": 10}


class TestFigures:
    def test_the_mean_is_weighted_by_traffic(self) -> None:
        week = Objective("last", (1, 3))
        assert as_served(week, [0.2, 0.1, 0.2]) == pytest.approx(0.14), "whatever is planned for"
        assert as_served(SERVED, [0.2, 0.1]) == pytest.approx(0.15)
        assert as_served(SERVED, [0.2, None]) is as_served(SERVED, []) is None

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
        world = {"data.dataset": "synthetic", "synthetic.clients": 200, "synthetic.noise": 0.1}
        config = load_config(settings=FEW | world | {"federation.rounds": 8})
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
        assert alone_by_round(split, 2, last) == pytest.approx(each[:2]), "a run that ended early"
        assert alone_by_round(split, 8, None) is None


def test_figures_of_a_run_by_hand() -> None:
    """Last, best, as served and on the data's own scale."""
    errors = [0.4, 0.1, 0.2]
    records = [
        {"round": number, "rmse": error, "seconds": float(number), "left": [0.75, 0.25]}
        for number, error in enumerate(errors)
    ]
    config = load_config(settings={"privacy.mechanism": "none", "planning.policy": "unlimited"})
    found = summarise(config, {"scale": [1, 5]}, records, 9.0)
    assert (found["rmse_final"], found["rmse_best"], found["rmse_best_round"]) == (0.2, 0.1, 1)
    assert found["rmse_final_raw"] == pytest.approx(0.8)
    assert found["budget_left"] == 0.25, "of the class that has least"
    assert found["rmse_objective"] == found["rmse_served"] == pytest.approx(0.7 / 3)
    assert (found["target_reached"], found["rounds_run"]) == (None, 3)
    assert (found["seconds_total"], found["seconds_per_round"]) == (9.0, 1.5)
