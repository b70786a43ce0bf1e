"""The metrics of the benchmark of models without privacy, and how it chooses and keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.nonprivate import __main__ as command
from benchmarks.nonprivate.measure import METRICS, Fitted, measure, ranking_metrics, raw, top_lists
from benchmarks.nonprivate.models import Model
from sklearn.metrics import ndcg_score

from bgtplanner.data.ratings import Ratings
from bgtplanner.data.split import split_ratings
from bgtplanner.data.synthetic import synthetic_ratings
from bgtplanner.runs.config import load_config
from bgtplanner.runs.run import ratings_of, split_of

BOUNDS = (1.0, 5.0)


def some_ratings(*rows: tuple[int, int, float]) -> Ratings:
    user, item, value = zip(*rows, strict=True)
    return Ratings.from_arrays(user, item, value, users=[0, 1], items=range(5), scale=(0, 5))


def test_ndcg_is_that_of_scikit_learn() -> None:
    generator = np.random.default_rng(0)
    scores = generator.random((60, 40))
    relevant = generator.random((60, 40)) < np.linspace(0, 0.9, 60)[:, None]  # none to most
    nobody = synthetic_ratings(clients=60, items=40, ratings_per_client=10, seed=0)
    nobody = nobody.take(np.zeros(len(nobody), dtype=bool))
    lists = top_lists(scores, nobody)
    anything = relevant.any(axis=1)
    assert not anything.all()
    ndcg, recall = ranking_metrics(lists, relevant)
    assert ndcg == pytest.approx(ndcg_score(relevant[anything], scores[anything], k=10))
    shares = [
        relevant[user, lists[user]].sum() / min(relevant[user].sum(), 10)
        for user in np.flatnonzero(anything)
    ]
    assert recall == pytest.approx(np.mean(shares))


def test_lists_leave_out_what_was_trained_on_and_end_with_what_has_no_score() -> None:
    train = some_ratings((0, 0, 5), (0, 3, 1), (1, 3, 4), (1, 4, 4))
    missing = np.nan
    scores = np.array([[9.0, 1.0, 2.0, missing, missing], [1.0, 1.0, missing, 7.0, 8.0]])
    lists = top_lists(scores, train)
    assert lists[:, :3].tolist() == [[2, 1, 4], [0, 1, 2]]  # the rest was trained on
    assert sorted(lists[0, 3:].tolist()) == [0, 3]
    assert sorted(lists[1, 3:].tolist()) == [3, 4]
    cold = top_lists(np.full((2, 5), missing), some_ratings((1, 3, 4), (1, 4, 4)))
    assert cold[0].tolist() == [3, 4, 0, 1, 2]  # the most rated first


def test_measured_by_hand() -> None:
    train, test = some_ratings((0, 0, 5)), some_ratings((0, 1, 4), (0, 2, 3), (1, 4, 5))
    ratings = np.tile([1.0, 3.0, 2.0, 1.0, 9.0], (2, 1))
    found = measure(Fitted(ratings, ratings), train, test, BOUNDS)
    # Off by 1, by 1 and, once 9 is clipped to 5, by nothing.
    assert found["rmse_stars"] == pytest.approx((2 / 3) ** 0.5)
    assert found["rmse"] == pytest.approx((2 / 3) ** 0.5 / 5)
    # A rating of 3 is not liked; user 0 has the liked item second, user 1 first.
    assert found["ndcg_at_10"] == pytest.approx((1 / np.log2(3) + 1) / 2)
    assert found["recall_at_10"] == 1.0
    assert measure(Fitted(ratings, None), train, test, BOUNDS)["rmse"] is None


def test_settings_are_chosen_without_the_test_ratings() -> None:
    ratings = synthetic_ratings(clients=40, items=30, ratings_per_client=15, seed=0)
    split = split_ratings(ratings, seed=0, rounds=1, initial_share=1.0)
    known = {*zip(split.train.user.tolist(), split.train.item.tolist(), strict=True)}
    asked = []

    def fit(train: Ratings, options: dict[str, Any], seed: int, users: Any) -> Fitted:
        asked.append({*zip(train.user.tolist(), train.item.tolist(), strict=True)})
        level = raw(train).mean() + options["too_high"]
        found = np.full((train.n_users, train.n_items), level)
        return Fitted(found, found)

    model = Model("ratings", fit, settings={"too_high": (0.5, 0.0, -0.5)})
    assert command.choose(model, split, 0, (0.0, 5.0)) == {"too_high": 0.0}
    assert len(asked) == 3
    assert all(pairs < known for pairs in asked)
    assert command.choose(Model("ratings", fit), split, 0, (0.0, 5.0)) == {}


def test_what_was_measured_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, asked = tmp_path / "found.json", []

    def run(name: str, dataset: str, seed: int, options: Any) -> dict[str, Any]:
        asked.append((name, dataset, seed, options))
        figures = dict.fromkeys(METRICS, 0.25 + 0.01 * seed)
        return {"options": options or {"regularization": seed}, **figures, "rmse": None}

    monkeypatch.setattr(command, "run", run)
    monkeypatch.setattr(command, "_versions", lambda: {"lenskit": "1.0"})
    words = ["--models", "ease,svd", "--out", str(out)]
    assert command.main([*words, "--dataset", "filmtrust", "--seeds", "0"]) == 0
    assert command.main([*words, "--dataset", "filmtrust", "--seeds", "0,2"]) == 0
    name = "LensKit EASE"  # and no Surprise
    assert asked == [(name, "filmtrust", 0, None), (name, "filmtrust", 2, None)]
    rows = json.loads(out.read_text(encoding="utf-8"))["datasets"]["filmtrust"][name]
    assert list(rows) == ["0", "2"]
    text = out.with_suffix(".md").read_text(encoding="utf-8")
    assert f"| {name} | ranking | – | .260 ± .127 | .2600 ± .1271 | .2600 ± .1271 | 2 |" in text
    assert "| 0 (1); 2 (1) |" in text
    assert command.main([*words, "--seeds", "1", "--like", "filmtrust"]) == 0
    assert asked[2:] == [(name, "ml-100k", 1, {"regularization": 0})]
    assert "| 0 (1); 2 (1) | 0, as on FilmTrust (1) |" in out.with_suffix(".md").read_text("utf-8")
    assert command.main([*words, "--seeds", "2", "--like", "ml-1m-users"]) == 2
    # What lacks a metric is measured again, with the settings that were chosen.
    results = json.loads(out.read_text(encoding="utf-8"))
    del results["datasets"]["filmtrust"][name]["2"]["recall_at_10"]
    out.write_text(json.dumps(results), encoding="utf-8")
    assert command.main([*words, "--dataset", "filmtrust", "--seeds", "0,2"]) == 0
    assert asked[3:] == [(name, "filmtrust", 2, {"regularization": 2})]


@pytest.mark.parametrize("wrong", ["one", "-1", ""])
def test_seeds_are_whole_numbers(wrong: str) -> None:
    with pytest.raises(SystemExit):
        command.main([f"--seeds={wrong}"])


def test_the_split_is_that_of_a_run() -> None:
    config = load_config(settings={"data.dataset": "demo", "run.seed": 3})
    theirs, ours = split_of(config, ratings_of(config)), command.split_of("demo", 3)
    for mine, other in ((ours.train, theirs.train), (ours.test, theirs.test)):
        for name in ("user", "item", "value"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(other, name))
