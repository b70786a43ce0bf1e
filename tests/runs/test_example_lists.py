"""The lists that a report shows: whose, by which rule, and what they hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgtplanner import simulate
from bgtplanner.data.ratings import Ratings
from bgtplanner.runs.config import load_config
from bgtplanner.runs.result import TOP, example_users, number_of_examples, without_figures

pytestmark = pytest.mark.usefixtures("compiled_once")


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
