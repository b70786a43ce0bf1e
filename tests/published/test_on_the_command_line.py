"""Lists from a model file on the command line, where there is no JAX."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bgtplanner import load_model
from bgtplanner.signing import public_key
from made import tastes

WITHOUT_JAX = """
import sys
sys.modules.update(dict.fromkeys(("jax", "jaxlib", "optax", "flwr", "matplotlib")))
from bgtplanner.cli import main
main()
"""
HISTORY = {"film0": 5, "film2": 4.5, "film4": 1}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tastes().save(path := tmp_path / "films.model")
    return path


def bgtplanner(*arguments: object, given: str = "") -> Any:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_JAX, *map(str, arguments)],
        input=given, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()] if given else done.stdout


def test_whoever_asks_is_answered_by_a_line(model: Path) -> None:
    asked = [{"user": 7, "history": HISTORY}, {"user": "ann", "history": ["film0"]}]
    asked += [{"history": {}}, {"user": 8, "history": {"unknown": 3}}]
    lines = bgtplanner("recommend", model, "--top", 4, given="\n".join(map(json.dumps, asked)))
    made = load_model(model)
    for one, line in zip(asked, lines, strict=True):
        rows: Any = made.recommend(one["history"], top=4)
        assert line["user"] == one.get("user")
        assert [item["item"] for item in line["items"]] == [row.item for row in rows]
        assert [item["reason"] for item in line["items"]] == [row.reason for row in rows]
    assert "nothing of yours is known yet" in lines[3]["items"][0]["reason"]


def test_a_stranger_with_what_is_in_stock_and_what_is_new(model: Path, tmp_path: Path) -> None:
    mine, items = tmp_path / "mine.csv", tmp_path / "items.csv"
    mine.write_text("item,rating\n" + "".join(f"{of},{by}\n" for of, by in HISTORY.items()))
    rows = [f"film{at},Film No. {at},{'War' if at % 3 == 0 else 'Drama'}" for at in range(30)]
    items.write_text("\n".join(["item,title,genre", *rows, "new,A new war film,War"]) + "\n")
    (tmp_path / "sold.txt").write_text("film3\nfilm6\n")
    said = bgtplanner(
        "recommend", model, "--history", mine, "--items", items, "--only", "genre: War",
        "--exclude", tmp_path / "sold.txt", "--top", 30, "--json",
    )  # fmt: skip
    named = {row["item"] for row in json.loads(said)["items"]}
    assert named == {f"film{at}" for at in range(9, 30, 3)} | {"new"}


def test_what_changed_and_what_is_in_it(model: Path, tmp_path: Path) -> None:
    tastes(seed=2).save(tmp_path / "later.model")
    changed = json.loads(bgtplanner("model", "diff", model, tmp_path / "later.model", "--json"))
    assert (changed["came"], changed["went"], changed["stayed"]) == (0, 0, 30)
    shown = json.loads(bgtplanner("model", "show", model, "--json"))
    assert (shown["items"], shown["scale"], shown["guarantee"]["epsilon"]) == (30, [1.0, 5.0], 3.0)


def test_lists_without_reasons(model: Path, tmp_path: Path) -> None:
    (mine := tmp_path / "mine.json").write_text(json.dumps(HISTORY))
    asked = ("recommend", model, "--history", mine, "--json")
    told, plain = (
        json.loads(bgtplanner(*asked, *how))["items"] for how in ((), ("--no-explain",))
    )
    assert any(row["reason"] for row in told)
    assert plain == [row | {"reason": None} for row in told]


def test_a_file_that_somebody_else_signed(tmp_path: Path) -> None:
    key, path, mine = bytes(range(32)), tmp_path / "films.model", tmp_path / "mine.json"
    tastes().save(path, key=key)
    mine.write_text(json.dumps(HISTORY))
    asked = ("recommend", path, "--history", mine, "--json", "--verify")
    (tmp_path / "key").write_text(public_key(key) + "\n")
    for own in (public_key(key), tmp_path / "key"):
        assert json.loads(bgtplanner(*asked, own))["items"]
    for wrong, said in (("ab" * 32, "not signed by the given key"), ("ab", "--verify = 'ab'")):
        with pytest.raises(AssertionError, match=said):
            bgtplanner(*asked, wrong)
