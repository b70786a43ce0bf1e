"""The preset `paper`: its level on real data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bgtplanner.runs.run import simulate


def best_rmse(dataset: str, data_dir: Path, **settings: Any) -> float:
    result = simulate(
        dataset,
        preset="paper",
        rounds=100,
        seed=0,
        settings={"data.data_dir": str(data_dir), **settings},
    )
    assert result.summary["rounds_run"] == (100 if "privacy.mechanism" in settings else 84)
    return float(result.summary["rmse_best"])


NO_NOISE = {"privacy.mechanism": "none"}
AS_THE_AUTHORS_SPLIT_IT = {"data.train_share": 0.6, "data.initial_share": 1.0, "data.split": "all"}


# The level of this variant, the best of its rounds: without noise by a restatement of the authors'
# code, with noise by the paper's Table 2.


def test_movielens_100k(real_files: Callable[..., Path]) -> None:
    data_dir = real_files("ml-100k/u.data")
    assert best_rmse("ml-100k", data_dir, **NO_NOISE) == pytest.approx(0.2011, abs=0.004)
    assert best_rmse("ml-100k", data_dir) == pytest.approx(0.3223, abs=0.015)


def test_filmtrust(real_files: Callable[..., Path]) -> None:
    data_dir = real_files("filmtrust/ratings.txt")
    split = AS_THE_AUTHORS_SPLIT_IT
    assert best_rmse("filmtrust", data_dir, **split, **NO_NOISE) == pytest.approx(
        0.2961, abs=0.006
    )
    assert best_rmse("filmtrust", data_dir, **split) == pytest.approx(0.3746, abs=0.015)
