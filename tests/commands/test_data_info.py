"""What is said about a data set before anything is trained on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgtplanner.commands.data import describe
from bgtplanner.runs.assembly import ratings_of, split_of
from bgtplanner.runs.config import load_config
from command_line import Call


def described(**settings: Any) -> dict[str, Any]:
    chosen = {key.replace("__", "."): value for key, value in settings.items()}
    return describe(load_config(settings=chosen))


def table(folder: Path, rows: list[tuple[Any, Any, Any]]) -> str:
    file = folder / "mine.csv"
    file.write_text("user,item,rating\n" + "".join(f"{u},{i},{r}\n" for u, i, r in rows))
    return f"csv:{file}"


def test_figures_are_those_a_run_is_measured_against() -> None:
    config, facts = load_config(), described()
    split = split_of(config, ratings_of(config))
    assert (facts["train"], facts["test"]) == (len(split.train), len(split.test))
    error = split.train.value.astype(float).mean() - split.test.value.astype(float)
    assert facts["rmse_constant"] == pytest.approx(np.sqrt((error**2).mean()))
    assert facts["rmse_client_alone"] <= facts["rmse_constant"]


def test_counts_by_hand(tmp_path: Path) -> None:
    rows = [("a", i, 1 + i % 2) for i in range(10)] + [("b", i, 4) for i in range(5)]
    facts = described(data__dataset=table(tmp_path, rows))
    assert facts["dataset"] == "csv:mine.csv"
    assert (facts["ratings"], facts["users"], facts["items"]) == (15, 2, 10)
    assert facts["ratings_per_user"] == {"min": 5, "median": 7.5, "max": 10}
    assert facts["ratings_per_item"] == {"min": 1, "median": 1.5, "max": 2}
    assert facts["histogram"] == {"1": 5, "2": 5, "4": 5}
    assert (facts["train"], facts["test"]) == (12, 3)


def test_where_to_get_what_is_not_here(command_line: Call, tmp_path: Path) -> None:
    (tmp_path / "ml-100k").mkdir()
    (tmp_path / "ml-100k" / "u.data").touch()
    done = command_line("data", "list", "--data-dir", tmp_path, "--json")
    sets = {row["name"]: row for row in json.loads(done.out)["datasets"]}
    own = tmp_path / "ml-1m"
    url = "https://grouplens.org/datasets/movielens/1m/"
    for name, status, unpack_to in (
        ("demo", "built in", None), ("ml-100k", "here", None), ("ml-1m", "not here", str(own)),
    ):  # fmt: skip
        assert (sets[name]["status"], sets[name]["unpack_to"]) == (status, unpack_to)
    assert sets["ml-1m"]["url"] == url
    assert "no redistribution" in sets["ml-1m"]["terms"]
    assert "Konstan" in sets["ml-1m"]["citation"]
    shown = command_line("data", "list", "--data-dir", tmp_path).out
    assert f"ratings.dat and movies.dat from {url} into {own}" in " ".join(shown.split())
    assert "movielens/100k" not in shown
