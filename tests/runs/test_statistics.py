"""Means, intervals and differences over seeds, against SciPy and by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

from bgtplanner.paper.table2 import NAMES, published
from bgtplanner.runs.statistics import Outcome, estimate, summed_up
from bgtplanner.runs.study import Study


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


@pytest.mark.parametrize("number", [2, 3, 5, 30])
def test_an_estimate_is_scipys_interval(number: int) -> None:
    values = np.random.default_rng(number).normal(0.3, 0.02, number)
    found = estimate(values.tolist())
    assert found is not None
    interval = scipy.stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert found.mean == pytest.approx(values.mean(), rel=1e-12)
    assert found.std == pytest.approx(values.std(ddof=1), rel=1e-12)
    assert (found.low, found.high) == pytest.approx(tuple(interval), rel=1e-12)
    assert found.half == pytest.approx((interval.high - interval.low) / 2)


def test_few_values() -> None:
    assert estimate([]) is None
    one, same = estimate([0.5]), estimate([0.5, 0.5])
    assert one is not None
    assert same is not None
    assert (one.seeds, one.mean, one.std, one.low, one.half) == (1, 0.5, None, None, None)
    assert (same.std, same.low, same.high) == (0, 0.5, 0.5)


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
    bgt, uniform = found.rows[0].figures["rmse_best"], found.rows[1].figures["rmse_best"]
    assert bgt is not None
    assert uniform is not None
    assert (bgt.seeds, uniform.seeds, found.rows[1].asked) == (5, 4, 5)


def test_references_once_a_data_set() -> None:
    study = study_of(datasets=("demo", "synthetic"), seeds=(0, 1, 2))
    outcomes = [
        Outcome(
            cell=cell,
            summary=(outcomes_of(study_of(seeds=(0, 1, 2)))["gaussian", "bgt", cell.seed]).summary,
        )
        for cell in study.cells()
    ]
    rows = [row for row in summed_up(study, outcomes).rows if row.reference]
    assert [row.policy for row in rows] == ["constant", "user_mean", "client_alone"] * 2
    assert [row.dataset for row in rows] == ["demo"] * 3 + ["synthetic"] * 3
    figure = rows[0].figures["rmse_final"]
    assert figure is not None
    assert (figure.mean, figure.std) == pytest.approx((0.51, 0.01))


def test_baselines() -> None:
    study = study_of(policies=("bgt", "unlimited"))
    found = summed_up(study, list(outcomes_of(study).values()))
    assert [(row.policy, row.baseline) for row in found.differences] == [("bgt", "unlimited")]
    assert not summed_up(study_of(policies=("bgt",)), []).differences


def test_nothing_done() -> None:
    study = study_of()
    found = summed_up(study, [Outcome(cell=cell, error="x") for cell in study.cells()])
    assert all(figure is None for row in found.rows for figure in row.figures.values())
    assert len(found.failed) == 4
    json.dumps(found.as_json(), allow_nan=False)


class TestTable2:
    def test_as_printed(self) -> None:
        """Against the paper's source, where it lies beside the checkout."""
        paper = Path(__file__).parents[3] / "shared/paper/bgtplanner.tex"
        if not paper.is_file():
            pytest.skip(f"no paper: {paper} is not there")
        rows = {}
        for line in paper.read_text(encoding="utf-8").splitlines():
            name = line.partition("&")[0].strip()
            if name in NAMES.values():
                plain = line.replace(r"\diagbox[]{}{}", "").replace(r"\\", "").split("&")[1:]
                wide = 2 if "multicolumn" in line else 1
                rows[name] = [_number(cell) for cell in plain for _ in range(wide)]
        assert list(rows) == list(NAMES.values())
        for policy, name in NAMES.items():
            assert len(rows[name]) == 12
            for place, dataset in enumerate(("filmtrust", "ml-100k", "ml-1m")):
                for side, mechanism in enumerate(("gaussian", "laplace")):
                    kind = "none" if policy == "unlimited" else mechanism
                    ours = published(dataset, kind, policy)
                    theirs = [rows[name][2 * place + side + shift] for shift in (0, 6)]
                    assert list(ours or (None, None)) == theirs

    @pytest.mark.parametrize(
        ("preset", "settings", "comparable"),
        [
            ("paper", {}, True),
            ("paper", {"privacy.epsilon": 10}, True),
            ("paper", {"privacy.epsilon": 5.0}, False),
            ("paper", {"privacy.budgets": "1:1"}, False),
            ("recommended", {}, False),
        ],
    )
    def test_only_where_it_can_be_compared(
        self, preset: str, settings: dict[str, Any], comparable: bool
    ) -> None:
        asked = study_of(
            datasets=("ml-100k",), policies=("bgt",), preset=preset, settings=settings
        )
        [row] = [row for row in summed_up(asked, []).rows if not row.reference]
        assert row.paper == (published("ml-100k", "gaussian", "bgt") if comparable else None)


def _number(cell: str) -> float | None:
    digits = cell.replace(r"\multicolumn{2}{c|}", "").replace(r"\textbf", "").strip(" {}")
    return float(digits) if digits else None
