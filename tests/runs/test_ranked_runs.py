"""Lists in the summary of a run: the model's, and those beside them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from bgtplanner import simulate
from bgtplanner.data.catalogue import Catalogue
from bgtplanner.data.ratings import Ratings
from bgtplanner.data.synthetic import synthetic_ratings
from bgtplanner.models.factorization import Factorization
from bgtplanner.models.interactions import Shared
from bgtplanner.models.metrics import ranked
from bgtplanner.report.page import render

pytestmark = pytest.mark.usefixtures("compiled_once")
FEW = {"federation.rounds": 3, "run.device": "cpu"}


@dataclass(frozen=True)
class Popular(Factorization):
    """Says that the first items are the most popular ones."""

    def popularity(self, shared: Shared) -> Array:
        return -jnp.arange(float(len(shared.items)))


def with_features() -> Ratings:
    ratings = synthetic_ratings(clients=10, items=30, ratings_per_client=8, seed=0)
    kinds = np.arange(ratings.n_items)[:, None] % 3 == np.arange(3)
    made = Catalogue(
        labels=ratings.item_labels.astype(str),
        titles=None,
        features=kinds.astype(np.float32),
        names=("a", "b", "c"),
    )
    return replace(ratings, catalogue=made)


def test_summary_and_page(tmp_path: Path) -> None:
    result = simulate(with_features(), settings=FEW, out=tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert dict(result.summary) == summary
    for name in ("ndcg_at_10", "recall_at_10", "mrr", "coverage", "twins"):
        assert 0 <= summary[name] <= 1
    assert 0 <= summary["overlap"] <= 10
    assert summary["users_ranked"] == 10
    beside = {key for key in summary if key.startswith("ndcg_at_10_")}
    others = ("popularity", "popularity_released", "random", "features_alone", "served")
    assert beside == {f"ndcg_at_10_{of}" for of in others}
    assert summary["rmse_features_alone"] > 0
    assert summary["rmse_final_raw"] == pytest.approx(5 * summary["rmse_final"])
    assert summary["mae_final_raw"] == pytest.approx(5 * summary["mae_final"])
    assert summary["scale"] == [0, 5]
    errors = [record["rmse"] for record in result.rounds]
    assert summary["rmse_served"] == pytest.approx(np.mean(errors))
    page = render(tmp_path / "run")
    for figure in (f"{summary['ndcg_at_10']:.3f}", f"{5 * summary['rmse_served']:.2f}"):
        assert f"<td>{figure}</td>" in page
    assert ">F1<" not in page


def test_popularity_that_was_released() -> None:
    ratings = with_features()
    result = simulate(ratings, model=Popular(dim=0), settings=FEW)
    found = result.summary["ndcg_at_10_popularity_released"]
    assert found is not None
    assert found != result.summary["ndcg_at_10_popularity"]


def test_nothing_to_find_is_nothing() -> None:
    """No held-out rating is good enough: a summary must be JSON all the same."""
    low = Ratings.from_arrays(
        [0, 0, 0, 0, 1, 1, 1, 1], [0, 1, 2, 3] * 2, [1, 2, 1, 2] * 2, scale=(0, 5)
    )
    summary = simulate(low, settings=FEW).summary
    assert summary["ndcg_at_10"] is None
    assert summary["ndcg_at_10_popularity"] is None
    assert summary["coverage"] > 0
    json.dumps(dict(summary), allow_nan=False)
    assert np.isnan(ranked(lambda users: np.zeros((len(users), 4)), low, low)["mrr"])
