"""A split that others have fixed: a column of one's own table marks the test ratings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgtplanner import Ratings, simulate, train
from bgtplanner.errors import BGTPlannerError, ConfigError, DataError
from bgtplanner.runs.assembly import ratings_of, split_of
from bgtplanner.runs.config import load_config

pytestmark = pytest.mark.usefixtures("compiled_once", "undrawn")

ROWS = [(user, item, 1 + (user * item) % 5) for user in range(6) for item in range(8)]
MARKED = [(user + item) % 3 == 0 for user, item, _ in ROWS]


def table(path: Path, marks: Callable[[bool], object] = lambda mark: int(mark)) -> Path:
    rows = [f"{u},{i},{r},{marks(m)}\n" for (u, i, r), m in zip(ROWS, MARKED, strict=True)]
    path.write_text("user,item,rating,part\n" + "".join(rows))
    return path


def settings(**more: Any) -> dict[str, Any]:
    return {"data.test_column": "part", "data.scale": "1:5", "run.device": "cpu"} | {
        f"data.{name}": of for name, of in more.items()
    }


def pairs(ratings: Ratings) -> set[tuple[int, int]]:
    users, items = ratings.user_labels[ratings.user], ratings.item_labels[ratings.item]
    return set(zip(users.tolist(), items.tolist(), strict=True))


@pytest.mark.parametrize(
    "marks", [int, str, lambda mark: "Test" if mark else "train", lambda m: str(m).lower()]
)
@pytest.mark.parametrize("seed", [0, 3])
def test_it_is_the_split_with_any_seed(tmp_path: Path, marks: Any, seed: int) -> None:
    path = table(tmp_path / "mine.csv", marks)
    given = settings(dataset=str(path), initial_share=1.0) | {"run.seed": seed}
    config = load_config(settings=given)
    split = split_of(config, ratings_of(config))
    marked = {(u, i) for (u, i, _), mark in zip(ROWS, MARKED, strict=True) if mark}
    assert pairs(split.test) == marked
    assert pairs(split.train) == {(u, i) for u, i, _ in ROWS} - marked
    assert (split.arrival == 0).all()


def test_a_run_of_a_file_or_of_a_frame_has_it(tmp_path: Path) -> None:
    users, items, values = zip(*ROWS, strict=True)
    frame = {"user": users, "item": items, "rating": values, "part": np.array(MARKED)}
    for source in (str(table(tmp_path / "mine.csv")), frame):
        result = simulate(source, rounds=2, settings=settings())
        assert result.rounds[-1]["ratings"] == len(ROWS) - sum(MARKED)


def test_a_single_rating_obeys_its_mark() -> None:
    frame = {"user": [1, 2, 2], "item": [1, 1, 2], "rating": [1, 2, 3], "part": [1, 0, 0]}
    ratings = Ratings.from_frame(frame, test="part")
    split = split_of(load_config(), ratings)
    assert (len(split.train), split.test.user_labels[split.test.user].tolist()) == (2, [1])


@pytest.mark.parametrize(
    ("marks", "told"),
    [
        (lambda _: "maybe", r"line 2.*expected 1 or 0, true or false, test or train"),
        (lambda _: 1, r"0 for training, 48 for the test.*marks in data.test_column"),
        (lambda _: 0, r"48 for training, 0 for the test.*marks in data.test_column"),
    ],
)
def test_marks_that_are_none_are_refused(tmp_path: Path, marks: Any, told: str) -> None:
    path = table(tmp_path / "mine.csv", marks)
    with pytest.raises(DataError, match=told):
        simulate(str(path), rounds=2, settings=settings())


def test_a_rating_in_both_parts_is_refused() -> None:
    frame = {"user": [1, 1, 2], "item": [1, 1, 2], "rating": [1, 2, 3], "part": [1, 0, 0]}
    with pytest.raises(DataError, match="training in one row and as a test in another"):
        Ratings.from_frame(frame, test="part")


@pytest.mark.parametrize(
    ("source", "given", "told"),
    [
        ("demo", settings(), "only for a table of your own"),
        ("mine", settings(split="user"), "data.split = 'user': expected marked"),
        ("mine", settings(split="marked", test_column=None), "data.test_column"),
        ("mine", settings(test_column="other"), "no such column"),
        ("unmarked", settings(), "no column marks its test ratings"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, source: str, given: Any, told: str) -> None:
    there: Any = str(table(tmp_path / "mine.csv")) if source == "mine" else source
    if source == "unmarked":
        there = Ratings.from_arrays(*zip(*ROWS, strict=True), scale=(1, 5))
    with pytest.raises(BGTPlannerError, match=told):
        simulate(there, rounds=2, settings={k: v for k, v in given.items() if v is not None})


def test_a_training_refuses_it(tmp_path: Path) -> None:
    path, public = table(tmp_path / "mine.csv"), ("catalogue", "scale")
    for given in ({"data.test_column": "part"}, {"data.split": "marked"}):
        with pytest.raises(ConfigError, match="a training holds nothing out"):
            train(path, assume_public=public, ledger=None, settings=given)  # type: ignore[arg-type]
