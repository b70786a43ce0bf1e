"""The preset worth using, on made-up ratings: a guard against falling back.

What it reaches here: errors 10.4 % (Gaussian), 8.2 % (Laplace) and 2.9 % (PrivUnit, local)
below a client's own. The limits leave room for another machine's arithmetic, not for another
method.
"""

from __future__ import annotations

from typing import Any

import pytest

from bgtplanner import Result, simulate
from bgtplanner.data.synthetic import synthetic_ratings

pytestmark = pytest.mark.usefixtures("compiled_once")


SIZES = {"clients": 300, "items": 300, "ratings_per_client": 50, "seed": 20_250_101}


def run(*, features: bool = True, **settings: Any) -> Result:
    people = synthetic_ratings(**SIZES, catalogue=features)  # type: ignore[arg-type]
    named = {key.replace("__", "."): value for key, value in settings.items()}
    return simulate(people, rounds=10, settings=named | {"run.device": "cpu"})


def against_alone(result: Result) -> float:
    return float(result.summary["rmse_final"] / result.summary["rmse_client_alone"])


@pytest.mark.parametrize(("mechanism", "most"), [("gaussian", 0.93), ("laplace", 0.95)])
def test_worth_sharing_at_ten(mechanism: str, most: float) -> None:
    result = run(privacy__mechanism=mechanism)
    assert against_alone(result) < most
    assert result.summary["not_accounted"] == []
    assert result.summary["f1_final"] > result.summary["f1_constant"] - 0.002
    assert 9.5 < result.summary["epsilon_spent_max"] <= 10
    assert result.summary["planner_note"].startswith("aimed at all rounds")


def test_lists_of_the_demo_beat_popularity() -> None:
    """By 1.78 times after 100 rounds with seed 0, and 1.64 as served; 1.4 with other seeds."""
    summary = simulate("demo", rounds=10, settings={"run.device": "cpu"}).summary
    assert summary["ndcg_at_10"] > 1.3 * summary["ndcg_at_10_popularity"]
    assert summary["overlap"] < 0.8 * summary["overlap_popularity"]


def test_worth_sharing_with_nobody_trusted() -> None:
    result = run(privacy__trust="local")
    assert result.summary["mechanism"] == "privunit"
    assert against_alone(result) < 0.98
    assert result.summary["not_accounted"] == []
    assert result.summary["epsilon_client_level"] == pytest.approx(10)


@pytest.mark.parametrize("features", [True, False])
def test_not_worth_sharing(features: bool) -> None:
    """Then a client does as well as it would alone; features cost nothing, and help it still."""
    result = run(features=features, privacy__epsilon=0.1, privacy__trust="local")
    assert features or against_alone(result) == pytest.approx(1.0, abs=1e-6)
    if features:
        summary = result.summary
        assert summary["rmse_final"] < 1.005 * summary["rmse_features_alone"]
        assert summary["rmse_features_alone"] < 0.995 * summary["rmse_client_alone"]
    assert result.summary["rounds_paid"] <= 1
