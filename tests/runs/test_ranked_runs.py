"""Lists of a run: their scores and those beside them, metrics of one's own, and who is shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bgtplanner import simulate
from bgtplanner.data.catalogue import Catalogue
from bgtplanner.data.ratings import Ratings
from bgtplanner.data.synthetic import synthetic_ratings
from bgtplanner.models.metrics import METRICS, Metric, ranked
from bgtplanner.report.page import render
from bgtplanner.runs.config import load_config
from bgtplanner.runs.result import TOP, example_users, number_of_examples, without_figures
from bgtplanner.runs.run import load

pytestmark = pytest.mark.usefixtures("compiled_once")
FEW = {
    "federation.rounds": 3,
    "run.device": "cpu",
    "synthetic.clients": 8,
    "synthetic.items": 12,
    "synthetic.ratings_per_client": 8,
}


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
    known = FEW | {"privacy.epsilon": 1000.0}  # so that popularity is learned from ten people
    result = simulate(with_features(), settings=known, out=tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert dict(result.summary) == summary
    for name in ("ndcg_at_10", "recall_at_10", "mrr", "coverage"):
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


WORST = Metric(
    label="Worst",
    better="lower",
    sums=(lambda predicted, actual: abs(predicted - actual).max(),),
    of=lambda worst, n: worst if n else float("nan"),
    digits=2,
    unit="ratings",
)
HITS = Metric(label="Hits@10", better="higher", of=lambda lists: lists.hits.any(axis=1).mean())


@pytest.fixture
def more(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A metric of ratings and one of lists, for the time of a test."""
    monkeypatch.setattr(METRICS, "_entries", dict(METRICS._entries))
    METRICS.add("worst", WORST)
    METRICS.add("hits_at_10", HITS)
    yield
    jax.clear_caches()


@pytest.mark.usefixtures("more")
def test_it_is_everywhere(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = simulate("synthetic", settings=FEW, out=folder)
    summary = json.loads((folder / "summary.json").read_text())
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert summary["worst_final"] == lines[-1]["worst"] >= lines[-1]["rmse"] > 0
    assert summary["worst_best"] == min(line["worst"] for line in lines)
    assert summary["worst_constant"] >= summary["rmse_constant"]
    assert 0 <= summary["hits_at_10"] <= 1
    assert load(folder).summary["hits_at_10"] == result.summary["hits_at_10"]


@pytest.mark.parametrize(
    ("settings", "number"),
    [
        ({}, 3),
        ({"data.dataset": "ml-100k"}, 3),
        ({"data.dataset": "csv:own.csv"}, 0),
        ({"data.dataset": "own"}, 0),
        ({"data.dataset": "csv:own.csv", "run.examples": 5}, 5),
        ({"run.examples": 0}, 0),
    ],
)
def test_only_of_data_that_everybody_can_get(settings: dict[str, Any], number: int) -> None:
    assert number_of_examples(load_config(settings=settings)) == number


def test_users_are_chosen_without_looking_at_a_rating() -> None:
    rng = np.random.default_rng(0)
    labels = [f"u{number:03d}" for number in range(50)]
    for _ in range(2):
        item, value = rng.integers(0, 9, 150), rng.integers(1, 6, 150)
        ratings = Ratings.from_arrays(np.repeat(labels, 3), item, value)
        chosen = ratings.user_labels[example_users(ratings, 3)]
        assert chosen.tolist() == ["u000", "u024", "u049"]


def test_what_recommend_says(tmp_path: Path) -> None:
    """The same lists, and no rating, no label of an item, and nothing else."""
    result = simulate("demo", rounds=3, out=tmp_path / "run")
    found = json.loads((tmp_path / "run" / "examples.json").read_text())
    users = result.ratings.user_labels[example_users(result.ratings, 3)]
    assert [entry["user"] for entry in found["lists"]] == [str(user) for user in users]
    rows = [row for _, rows in result.recommend_many(users, TOP) for row in rows]
    lines = [line for entry in found["lists"] for line in entry["items"]]
    assert [line["title"] for line in lines] == [row.title for row in rows]
    assert any(line["reason"] for line in lines)
    assert not any("because" in (line["reason"] or "") for line in lines), "names what was rated"
    assert np.allclose([line["predicted"] for line in lines], [row.predicted for row in rows])
    assert all(set(line) == {"title", "predicted", "reason"} for line in lines)
    assert result.summary["learned"] is True
    assert result.summary["gains"]["ratings"]


@pytest.mark.parametrize(
    "number", ["0.2 stars above your mean", "1e+01 points above your mean",
               "1.6 times as often as others", "20 times as often as chance would"]
)  # fmt: skip
def test_no_statistic_of_a_person(number: str) -> None:
    said = without_figures(f"liked by many; you pick films of 1990 to 1995 {number}")
    assert said.startswith("liked by many; you pick films of 1990 to 1995 ")
    rest = said.removeprefix("liked by many; you pick films of 1990 to 1995 ")
    assert not any(letter.isdigit() for letter in rest)
