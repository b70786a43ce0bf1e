"""A recommender recommends: `recommend`, `predict`, and the same in Python."""

from __future__ import annotations

import csv
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from bgtplanner import Ratings, simulate
from bgtplanner.cli import app
from bgtplanner.errors import (
    ConfigError,
    DataError,
    NothingLearnedError,
    RunFolderError,
    StorageError,
)
from bgtplanner.runs import run as runs
from bgtplanner.runs.run import load
from explaining import genre_ratings

SETTINGS = {
    "synthetic.clients": 12,
    "synthetic.items": 25,
    "synthetic.ratings_per_client": 6,
    "run.device": "cpu",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    simulate(
        "synthetic", rounds=5, epsilon=500, settings=SETTINGS, out=path
    )  # something is learned
    return path


def call(*arguments: object) -> tuple[Any, str]:
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return done.exception, done.output


def test_the_run_again(folder: Path) -> None:
    first = simulate("synthetic", rounds=5, epsilon=500, settings=SETTINGS)
    again = load(folder)
    users, items = again.ratings.user_labels[:3], again.ratings.item_labels[:3]
    assert (again.predict(users, items) == first.predict(users, items)).all()
    assert again.summary["rmse_final"] == first.summary["rmse_final"]
    assert len(again.rounds) == 5


def test_unrated_items_best_first(folder: Path) -> None:
    result = load(folder)
    user = result.ratings.user_labels[2]
    best = result.recommend(user, top=100)
    known = result.simulation.known()
    rated = set(result.ratings.item_labels[known.item[known.user == 2]].tolist())
    assert {item for item, _ in best}.isdisjoint(rated)
    assert len(rated) < (result.ratings.user == 2).sum(), "items of the test set are recommended"
    assert len(best) == result.ratings.n_items - len(rated) > 0
    items, values = zip(*best, strict=True)
    place = {label: at for at, label in enumerate(result.ratings.item_labels.tolist())}
    scores = np.asarray(result.simulation.rank(np.array([2])))[0][[place[item] for item in items]]
    assert scores.tolist() == sorted(scores.tolist(), reverse=True)
    assert np.ptp(scores) > 0
    assert result.recommend(user, top=2) == best[:2]
    assert values == pytest.approx(result.predict([user] * len(items), items))


def test_on_the_command_line(folder: Path, tmp_path: Path) -> None:
    result = load(folder)
    user = result.ratings.user_labels[2]
    item, value = result.recommend(user)[0]
    first = result.recommendations([user]).rows[0]
    assert result.ratings.catalogue is not None
    assert result.ratings.catalogue.titles is not None
    title = str(result.ratings.catalogue.titles[result.ratings.item_labels.tolist().index(item)])
    assert first.reason
    target = tmp_path / "model.npz"
    error, out = call("recommend", folder, "--client", user, "--export", target, "--json")
    assert error is None
    shown = json.loads(out)
    assert shown["items"][0] == {
        "place": 1, "item": item, "title": title, "predicted": value, "reason": first.reason
    }  # fmt: skip
    assert (shown["client"], shown["note"], shown["unfinished"]) == (user, None, None)
    with np.load(target) as stored:
        assert stored["items"].shape[0] == result.ratings.n_items
        assert set(stored.files) == {"items", "dense", "item_labels", "scale"}
    _, out = call("recommend", folder, "--client", user, "--top", 2)
    assert len(out.splitlines()) == 2
    _, out = call("predict", folder, "--user", user, "--item", item, "--json")
    assert json.loads(out) == {
        "client": str(user), "item": str(item), "title": title, "predicted": pytest.approx(value)
    }  # fmt: skip
    _, out = call("predict", folder, "--user", user, "--item", item)
    assert out == f"{value:.3f}  {title}\n"


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (["recommend", "{run}", "--client", "123456"], DataError, "not in the ratings"),
        (["recommend", "{run}", "--client", "9" * 30], DataError, "whole number"),
        (["recommend", "{run}", "--client", "1", "--top", "0"], ConfigError, "--top = 0"),
        (["recommend", "{run}"], ConfigError, "LABEL, or --all"),
        (["recommend", "{run}", "--client", "1", "--all"], ConfigError, "exclude each other"),
        (["recommend", "{run}", "--all", "--out", "x.txt"], ConfigError, "ends in .json"),
        (["recommend", "{run}", "--all", "--out", "/no/x.csv"], StorageError, "--out /no/x.csv"),
        (["recommend", "{run}", "--all", "--ratings", "csv:/no.csv"], RunFolderError, "/no.csv"),
        (["recommend", "", "--client", "1"], ConfigError, "FOLDER"),
        (["predict", "{run}", "--client", "1", "--item", "x"], DataError, "--item x"),
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
    with pytest.raises(DataError, match="user 1000000000 is not in the ratings"):
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


@pytest.fixture(scope="module")
def genres(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a model that explains its ranking, on items with titles and genres."""
    path = tmp_path_factory.mktemp("genres") / "run"
    settings = {"model.name": "explaining:Explaining", "run.device": "cpu"}
    settings |= {"server.optimizer": "posterior", "planning.policy": "uniform"}
    simulate(genre_ratings(), rounds=3, epsilon=1000.0, settings=settings, out=path)
    return path


@pytest.fixture
def by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the ratings of that run were a set with a name."""
    monkeypatch.setattr(runs, "ratings_of", lambda _: genre_ratings())


@pytest.mark.usefixtures("by_name")
class TestTitlesAndReasons:
    def test_table(self, genres: Path) -> None:
        error, out = call(
            "recommend", genres, "--user", "user 01", "--user", "user 02", "--top", 5
        )
        assert error is None
        lines = out.splitlines()
        assert len(lines) == 12
        assert (lines[0], lines[6]) == ("user 01:", "user 02:")
        found = load(genres, ratings=genre_ratings()).recommendations(["user 01"], top=5)
        for line, row in zip(lines[1:6], found.rows, strict=True):
            assert f"{row.item}" in line
            assert f"The {row.item}th" in line
            assert f"{row.predicted:.2f}" in line
            assert line.endswith(row.reason or "")
        assert "you pick War 2 times as often as others" in out
        assert "rated well by those who know it" in out

    def test_everybody_in_every_format(self, genres: Path, tmp_path: Path) -> None:
        whole = load(genres, ratings=genre_ratings()).recommendations(top=4)
        columns = whole.columns()
        assert len(whole.rows) == 48
        assert whole.note is None
        for name in ("a.csv", "a.json", "a.parquet"):
            error, out = call("recommend", genres, "--all", "--top", 4, "--out", tmp_path / name)
            assert error is None
            assert f"Lists of 12 users: {tmp_path / name}" in out
        assert parquet.read_table(tmp_path / "a.parquet").to_pydict() == columns
        with (tmp_path / "a.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [row["title"] for row in rows] == columns["title"]
        assert [float(row["predicted"]) for row in rows] == columns["predicted"]
        assert [row["reason"] or None for row in rows] == columns["reason"]
        users = json.loads((tmp_path / "a.json").read_text())
        assert [user["client"] for user in users] == [f"user {n:02d}" for n in range(12)]
        assert [item["reason"] for user in users for item in user["items"]] == columns["reason"]
        assert not list(tmp_path.glob(".tmp-*"))
        _, printed = call("recommend", genres, "--all", "--top", 4, "--json")
        assert json.loads(printed)["users"] == users
        _, printed = call("recommend", genres, "--all", "--out", tmp_path / "b.csv", "--json")
        assert json.loads(printed)["users"] == 12


def test_nothing_learned(tmp_path: Path) -> None:
    """Without features it refuses, with code 1."""
    without, path = SETTINGS | {"data.items": "none"}, tmp_path / "bare"
    bare = simulate("synthetic", rounds=3, epsilon=1e-3, settings=without, out=path)
    error, _ = call("recommend", tmp_path / "bare", "--all", "--out", tmp_path / "x.csv")
    assert isinstance(error, NothingLearnedError)
    assert error.exit_code == 1
    assert "--epsilon" in str(error)
    assert not (tmp_path / "x.csv").exists()
    with pytest.raises(NothingLearnedError):
        bare.recommend(bare.ratings.user_labels[0])


def test_nothing_learned_from_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With features the user's own ratings say more.

    Of noise alone a little is learned one time in three: not with this seed.
    """
    path, settings = tmp_path / "run", {"run.device": "cpu", "model.name": "tastes"}
    plain = genre_ratings(items=120)
    done = simulate(plain, rounds=3, epsilon=1e-3, seed=1, settings=settings, out=path)
    assert not done.simulation.learned
    monkeypatch.setattr(runs, "ratings_of", lambda _: plain)
    error, out = call("recommend", path, "--user", "user 01", "--top", 3)
    assert error is None
    assert out.startswith("Nothing was learned from others yet; shown instead: items with")
    assert "you pick Horror" in out.splitlines()[1]
    assert "times as often as chance would" in out.splitlines()[1]
    with pytest.warns(UserWarning, match="Nothing was learned"):
        assert len(done.recommend("user 01")) == 10


def test_where_the_ratings_have_moved(tmp_path: Path) -> None:
    table = tmp_path / "ratings.csv"
    lines = [f"{n % 6},{n % 11},{1 + n % 5}" for n in range(60)]
    table.write_text("\n".join(["user,item,rating", *lines, ""]))
    path, settings = tmp_path / "run", {"data.scale": "1:5", "run.device": "cpu"}
    done = simulate(f"csv:{table}", rounds=2, epsilon=100.0, settings=settings, out=path)
    assert not any(b"rating," in file.read_bytes() for file in path.iterdir())
    table.rename(tmp_path / "elsewhere.csv")
    error, _ = call("recommend", path, "--user", "1")
    assert isinstance(error, RunFolderError)
    assert "--ratings csv:PATH" in str(error)
    moved = f"csv:{tmp_path}/elsewhere.csv"
    _, out = call("recommend", path, "--user", "1", "--top", 2, "--ratings", moved, "--json")
    shown = [(item["item"], item["predicted"]) for item in json.loads(out)["items"]]
    assert shown == done.recommend(1, 2)
    _, out = call("predict", path, "--user", "1", "--item", "2", "--ratings", moved)
    assert out == f"{done.predict(1, 2):.3f}\n"
    (tmp_path / "elsewhere.csv").write_text("\n".join(["user,item,rating", *lines[:-1], ""]))
    error, _ = call("recommend", path, "--user", "1", "--ratings", moved)
    assert isinstance(error, RunFolderError)
    assert "not those" in str(error)


def test_a_result_that_was_pickled(folder: Path) -> None:
    result = load(folder)
    again = pickle.loads(pickle.dumps(result))
    user = result.ratings.user_labels[3]
    assert again.recommend(user) == result.recommend(user)
    assert again.summary == result.summary
    assert again.simulation.next_round == 5
    known = again.simulation.arrays()
    assert all(np.array_equal(of, known[name]) for name, of in result.simulation.arrays().items())
