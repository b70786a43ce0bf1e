"""A recommender recommends: `recommend`, `predict`, and the same in Python."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from bgtplanner import Ratings, simulate
from bgtplanner.cli import app
from bgtplanner.errors import ConfigError, DataError, RunFolderError, StorageError
from bgtplanner.runs.run import load

SETTINGS = {
    "synthetic.clients": 12,
    "synthetic.items": 25,
    "synthetic.ratings_per_client": 6,
    "run.device": "cpu",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    simulate("synthetic", rounds=5, settings=SETTINGS, out=path)
    return path


def call(*arguments: object) -> tuple[Any, str]:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return done.exception, done.output


def test_the_run_again(folder: Path) -> None:
    first = simulate("synthetic", rounds=5, settings=SETTINGS)
    again = load(folder)
    users, items = again.ratings.user_labels[:3], again.ratings.item_labels[:3]
    assert (again.predict(users, items) == first.predict(users, items)).all()
    assert again.summary["rmse_final"] == first.summary["rmse_final"]
    assert len(again.rounds) == 5


def test_unrated_items_best_first(folder: Path) -> None:
    result = load(folder)
    user = result.ratings.user_labels[2]
    best = result.recommend(user, top=100)
    rated = set(result.ratings.item_labels[result.ratings.item[result.ratings.user == 2]].tolist())
    assert {item for item, _ in best}.isdisjoint(rated)
    assert len(best) == result.ratings.n_items - len(rated) > 0
    values = [value for _, value in best]
    assert values == sorted(values, reverse=True)
    assert result.recommend(user, top=2) == best[:2]
    expected = result.predict(user, best[0][0])[0]
    assert values[0] == pytest.approx(expected)


def test_on_the_command_line(folder: Path, tmp_path: Path) -> None:
    result = load(folder)
    user, (item, value) = result.ratings.user_labels[2], result.recommend(
        result.ratings.user_labels[2]
    )[0]  # fmt: skip
    target = tmp_path / "model.npz"
    error, out = call("recommend", folder, "--client", user, "--export", target, "--json")
    assert error is None
    shown = json.loads(out)
    assert shown["items"][0] == {"item": item, "predicted": value}
    with np.load(target) as stored:
        assert stored["items"].shape[0] == result.ratings.n_items
        assert set(stored.files) == {"items", "dense", "item_labels", "scale"}
    _, out = call("recommend", folder, "--client", user, "--top", 2)
    assert len(out.splitlines()) == 2
    _, out = call("predict", folder, "--user", user, "--item", item, "--json")
    assert json.loads(out)["predicted"] == pytest.approx(value)
    _, out = call("predict", folder, "--user", user, "--item", item)
    assert out == f"{value:.3f}\n"


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (["recommend", "{run}", "--client", "no"], DataError, "--client no"),
        (["recommend", "{run}", "--client", "123456"], DataError, "not in the ratings"),
        (["recommend", "{run}", "--client", "1", "--top", "0"], ConfigError, "--top = 0"),
        (["recommend", "", "--client", "1"], ConfigError, "FOLDER"),
        (["predict", "{run}", "--client", "1", "--item", "x"], DataError, "--item x"),
        (["predict", "/nowhere", "--client", "1", "--item", "1"], RunFolderError, "/nowhere"),
    ],
)
def test_refused(folder: Path, arguments: list[str], kind: type, message: str) -> None:
    error, _ = call(*[argument.format(run=folder) for argument in arguments])
    assert isinstance(error, kind)
    assert message in str(error)


def test_not_finished_or_not_its_ratings(folder: Path, tmp_path: Path) -> None:
    result = load(folder)
    with pytest.raises(StorageError, match="cannot be written"):
        result.export(tmp_path / "no" / "model.npz")
    with pytest.raises(DataError, match="label"):
        result.recommend(10**9)
    other = Ratings.from_arrays(["a", "b"] * 9, range(18), [1.0] * 18)
    with pytest.raises(RunFolderError, match="not those"):
        load(folder, ratings=other)
    (tmp_path / "config.toml").write_bytes((folder / "config.toml").read_bytes())
    with pytest.raises(RunFolderError, match="not finished"):
        load(tmp_path)


def test_a_run_that_ends_with_its_budget_keeps_its_last_state(tmp_path: Path) -> None:
    path = tmp_path / "run"
    settings = SETTINGS | {"federation.after_budget": "stop", "planning.policy": "adpml"}
    done = simulate("synthetic", rounds=30, settings=settings, out=path)
    assert 1 <= done.summary["rounds_run"] < 30
    assert load(path).simulation.next_round == done.summary["rounds_run"]
