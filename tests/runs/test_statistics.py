"""Means, intervals and differences over seeds, against SciPy and by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import scipy.stats

from bgtplanner.runs.statistics import summed_up
from bgtplanner.runs.study import Outcome, Study


def study_of(**changes: Any) -> Study:
    given: dict[str, Any] = {"policies": ("bgt", "uniform"), "seeds": (0, 1)} | changes
    return Study(**given)


def outcomes_of(study: Study) -> dict[tuple[str, str, int], Outcome]:
    """Outcomes with figures drawn at random, by mechanism, policy and seed."""
    rng, found = np.random.default_rng(7), {}
    for cell in study.cells():
        names = ("constant", "user_mean", "client_alone")
        summary = {
            f"{kind}_{name}": 0.5 + 0.01 * cell.seed for kind in ("rmse", "f1") for name in names
        }
        summary |= {f"{kind}_best": float(rng.normal(0.3, 0.02)) for kind in ("rmse", "f1")}
        summary |= {"rmse_final": 0.4, "f1_final": 0.6}
        found[cell.mechanism, cell.policy, cell.seed] = Outcome(cell=cell, summary=summary)
    return found


def test_paired_differences_are_scipys() -> None:
    study = study_of(
        policies=("bgt", "uniform", "unlimited"),
        mechanisms=("gaussian", "laplace"),
        seeds=(0, 1, 2, 3, 4),
    )
    outcomes = outcomes_of(study)
    # One seed of the baseline failed: its pair is left out, the means keep what they have.
    lost = ("gaussian", "uniform", 3)
    outcomes[lost] = Outcome(cell=outcomes[lost].cell, error="lost")
    found = summed_up(study, list(outcomes.values()))
    assert [outcome.error for outcome in found.failed] == ["lost"]
    assert [(row.mechanism, row.policy, row.baseline) for row in found.differences] == [
        (mechanism, policy, "uniform")
        for mechanism in ("gaussian", "laplace")
        for policy in ("bgt", "unlimited")
    ]
    for row in found.differences:
        seeds = (0, 1, 2, 4) if row.mechanism == "gaussian" else (0, 1, 2, 3, 4)
        kind = "none" if row.policy == "unlimited" else row.mechanism
        ours, theirs = (
            [(outcomes[(*place, seed)].summary or {})["rmse_best"] for seed in seeds]
            for place in ((kind, row.policy), (row.mechanism, "uniform"))
        )
        test = scipy.stats.ttest_rel(ours, theirs)
        figure = row.figures["rmse_best"]
        assert figure is not None
        assert figure.seeds == len(seeds)
        assert figure.mean == pytest.approx(np.mean(np.subtract(ours, theirs)))
        assert (figure.low, figure.high) == pytest.approx(tuple(test.confidence_interval(0.95)))
    bgt, uniform = (row.figures["rmse_best"] for row in found.rows[:2])
    assert bgt is not None
    assert uniform is not None
    assert (bgt.seeds, uniform.seeds, found.rows[1].asked) == (5, 4, 5)


def test_a_sweep_as_json() -> None:
    sweep = study_of(variations=({"privacy.epsilon": (5, 20)},))
    names = ("final", "best", "constant")
    outcomes = []
    for cell, config in sweep.cells().items():
        value = config.privacy.epsilon * (1 + (cell.policy == "bgt")) + cell.seed
        summary = {f"{kind}_{name}": value for kind in ("rmse", "f1") for name in names}
        lost = (cell.policy, config.privacy.epsilon, cell.seed) == ("bgt", 20, 1)
        what: dict[str, Any] = {"error": "lost"} if lost else {"summary": summary}
        outcomes.append(Outcome(cell=cell, **what))
    found = summed_up(sweep, outcomes)
    assert found.reported == ("rmse_final",)
    tree = json.loads(json.dumps(found.as_json()))
    rows = {(row["policy"], row["varied"]["privacy.epsilon"]): row for row in tree["rows"]}
    assert set(rows) == {(of, at) for of in ("bgt", "uniform", "constant") for at in (5, 20)}
    figure = rows["bgt", 5]["figures"]["rmse_final"]
    assert (figure["mean"], figure["std"]) == (10.5, pytest.approx(0.5**0.5))
    assert (tree["cells"], tree["failed"][0]["variant"]) == (8, "privacy.epsilon=20")
    apart = [(row["varied"], row["figures"]["rmse_final"]["mean"]) for row in tree["differences"]]
    assert apart == [({"privacy.epsilon": 5}, 5.0), ({"privacy.epsilon": 20}, 20.0)]
    figure = rows["bgt", 20]["figures"]["rmse_final"]
    assert (figure["seeds"], figure["mean"]) == (1, 40.0)
