"""A recommender recommends: `recommend`, `predict`, `export`, and the same in Python."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from bgtplanner import load_model, simulate
from bgtplanner.cli import app
from bgtplanner.errors import (
    ConfigError,
    DataError,
    NothingLearnedError,
    RunFolderError,
    StorageError,
)
from bgtplanner.runs import result as results
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.run import load, resume
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


def test_the_run_again_without_its_clients_states(folder: Path) -> None:
    first = simulate("synthetic", rounds=5, epsilon=500, settings=SETTINGS)
    again = load(folder)
    users, items = again.ratings.user_labels[:3], again.ratings.item_labels[:3]
    assert (again.predict(users, items) == first.predict(users, items)).all()
    assert first.simulation is not None
    theirs = first.simulation.predict([0, 1, 2], [0, 1, 2])
    assert again.predict(users, items) == pytest.approx(5 * theirs, abs=1e-4)
    assert again.summary["rmse_final"] == first.summary["rmse_final"]
    assert len(again.rounds) == 5
    assert not (folder / "checkpoint.npz").exists()
    assert not {"data", "key"} & RunFolder(folder).notes().keys(), "a guess could be checked"
    assert resume(folder).summary == again.summary


def test_nothing_that_the_person_has_rated_not_even_in_the_test_set(folder: Path) -> None:
    result = load(folder)
    of = result.ratings
    for place, (user, rows) in enumerate(result.recommend_many(top=100)):
        rated = of.item_labels[of.item[of.user == place]].tolist()
        assert user == of.user_labels[place]
        assert {row.item for row in rows} == set(of.item_labels.tolist()) - set(rated)
        assert [row.item for row in result.recommend(user, 2)] == [row.item for row in rows[:2]]


def test_on_the_command_line(folder: Path, tmp_path: Path) -> None:
    result = load(folder)
    user = result.ratings.user_labels[2]
    first = result.recommend(user)[0]
    assert first.reason
    error, out = call("recommend", folder, "--client", user, "--json")
    assert error is None
    shown = json.loads(out)
    assert shown["items"][0] == {key: of for key, of in first._asdict().items() if key != "user"}
    assert (shown["user"], shown["note"]) == (user, result.model.verdict().headline)
    mine, rows = tmp_path / "mine.csv", np.flatnonzero(result.ratings.user == 2)
    values = result.ratings.to_raw(result.ratings.value[rows])
    pairs = zip(result.ratings.item_labels[result.ratings.item[rows]], values, strict=True)
    mine.write_text("item,rating\n" + "".join(f"{item},{value}\n" for item, value in pairs))
    error, _ = call("export", folder, "--out", tmp_path / "run.model")
    assert error is None
    for model in (folder, tmp_path / "run.model"):
        _, out = call("recommend", model, "--history", mine, "--json")
        assert json.loads(out)["items"] == shown["items"], "the same code, of the same model"
    _, out = call("recommend", folder, "--client", user, "--top", 2)
    assert len(out.splitlines()) == 2 + 1
    item, value = str(first.item), result.predict(user, first.item)
    _, out = call("predict", folder, "--user", user, "--item", item, "--json")
    assert json.loads(out) == {
        "client": str(user), "item": item, "title": first.title, "predicted": value
    }  # fmt: skip
    _, out = call("predict", folder, "--user", user, "--item", item)
    assert out == f"{value:.3f}  {first.title}\n"


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (["recommend", "{run}", "--client", "123456"], DataError, "not in the ratings"),
        (["recommend", "{run}", "--client", "1", "--top", "0"], ConfigError, "--top = 0"),
        (["recommend", "{run}"], ConfigError, "LABEL, or --all"),
        (["recommend", "{run}", "--client", "1", "--all"], ConfigError, "exclude each other"),
        (["recommend", "{run}", "--all", "--history", "x"], ConfigError, "exclude each other"),
        (["recommend", "{run}", "--all", "--out", "x.txt"], ConfigError, "ends in .json"),
        (["recommend", "{run}", "--all", "--out", "/no/x.csv"], StorageError, "--out /no/x.csv"),
        (["recommend", "{run}", "--all", "--ratings", "csv:/no.csv"], RunFolderError, "/no.csv"),
        (["recommend", "", "--client", "1"], ConfigError, "MODEL"),
        (["predict", "{run}", "--client", "1", "--item", "x"], DataError, "item 'x'"),
        (["export", "{run}", "--out", "/no/x.model"], StorageError, "/no/x.model"),
        (["export", "{run}", "--out", "{run}/run.model"], RunFolderError, "exists"),
    ],
)
def test_refused(folder: Path, arguments: list[str], kind: type, message: str) -> None:
    error, _ = call(*[argument.format(run=folder) for argument in arguments])
    assert isinstance(error, kind)
    assert message in str(error)


def test_a_model_without_a_file_has_no_lists(tmp_path: Path) -> None:
    settings = SETTINGS | {"model.name": "fedgnn"}
    simulate("synthetic", rounds=2, settings=settings, out=tmp_path / "run")
    error, _ = call("recommend", tmp_path / "run", "--all")
    assert isinstance(error, ConfigError)
    assert "fedgnn, publishes none" in str(error)


def test_a_run_that_ends_with_its_budget_keeps_its_last_state(tmp_path: Path) -> None:
    path = tmp_path / "run"
    settings = SETTINGS | {"federation.after_budget": "stop", "planning.policy": "adpml"}
    done = simulate("synthetic", rounds=30, settings=settings, out=path)
    assert 1 <= done.summary["rounds_run"] < 30
    assert load_model(path / "run.model").training["rounds"] == done.summary["rounds_run"]
    np.testing.assert_array_equal(load(path).model.released, done.model.released)


@pytest.fixture
def genres(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run on items with titles and genres; as if its ratings were a set with a name."""
    path, settings = tmp_path / "genres", {"model.name": "tastes", "run.device": "cpu"}
    simulate(genre_ratings(), rounds=3, epsilon=1000.0, settings=settings, out=path)
    monkeypatch.setattr(results, "ratings_of", lambda _: genre_ratings())
    return path


def test_titles_and_reasons_for_everybody_in_every_format(genres: Path, tmp_path: Path) -> None:
    whole = list(load(genres).recommend_many(top=4))
    error, out = call("recommend", genres, "--user", "user 01", "--user", "user 02", "--top", 4)
    assert error is None
    assert [out.splitlines()[at] for at in (0, 5)] == ["user 01:", "user 02:"]
    for line, row in zip(out.splitlines()[1:5], whole[1][1], strict=True):
        assert f"The {row.item}th" in line
        assert f"{row.predicted:.2f}" in line
        assert line.endswith(row.reason or "")
    assert len(whole) == 12
    for name in ("a.csv", "a.json", "a.parquet"):
        error, out = call("recommend", genres, "--all", "--top", 4, "--out", tmp_path / name)
        assert error is None
        assert f"Lists of 12 users: {tmp_path / name}" in out
    rows = [row for _, rows in whole for row in rows]
    assert parquet.read_table(tmp_path / "a.parquet").to_pylist() == [
        row._asdict() for row in rows
    ]
    with (tmp_path / "a.csv").open(newline="") as file:
        listed = list(csv.DictReader(file))
    assert [row["title"] for row in listed] == [row.title for row in rows]
    assert [float(row["predicted"]) for row in listed] == [row.predicted for row in rows]
    assert [row["reason"] or None for row in listed] == [row.reason for row in rows]
    users = json.loads((tmp_path / "a.json").read_text())
    assert [user["user"] for user in users] == [f"user {n:02d}" for n in range(12)]
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
    shown = [item["item"] for item in json.loads(out)["items"]]
    assert shown == [row.item for row in done.recommend(1, 2)]
    _, out = call("predict", path, "--user", "1", "--item", "2", "--ratings", moved)
    assert out == f"{done.predict(1, 2):.3f}\n"
    new = "\n".join(["user,item,rating", *lines, "new,3,5", ""])
    (tmp_path / "elsewhere.csv").write_text(new)
    error, _ = call("recommend", path, "--user", "new", "--ratings", moved)
    assert error is None, "somebody new, or one more rating, needs no new run"


STRANGE = """
import pathlib
from bgtplanner.planning.schedules import Uniform
pathlib.Path("it-ran").touch()
class Strange(Uniform):
    pass
"""


@pytest.mark.parametrize(
    ("command", "ends"),
    [("load(at)", "finished"), ("render(at)", "finished"), ("RunFolder(at).config()", "finished"),
     ("resume(at)", "started")],
)  # fmt: skip
def test_opening_a_folder_runs_no_code_that_it_names(
    folder: Path, tmp_path: Path, command: str, ends: str
) -> None:
    copy = tmp_path / "run"
    copy.mkdir()
    for file in folder.iterdir():
        if ends == "finished" or file.name != "summary.json":
            (copy / file.name).write_bytes(file.read_bytes())
    text = (
        (copy / "config.toml").read_text().replace('policy = "bgt"', 'policy = "strange:Strange"')
    )
    (copy / "config.toml").write_text(text)
    (tmp_path / "strange.py").write_text(STRANGE)
    code = (
        "from pathlib import Path; from bgtplanner import load, resume; "
        "from bgtplanner.report.page import render; "
        f"from bgtplanner.runs.folder import RunFolder; at = Path('run'); {command}"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
    )  # fmt: skip
    assert not (tmp_path / "it-ran").exists()
    assert (done.returncode == 0) == (ends == "finished"), done.stderr[-600:]
    assert ends == "finished" or "trust_code" in done.stderr
