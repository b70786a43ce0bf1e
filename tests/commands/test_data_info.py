"""What is said about a data set before anything is trained on it."""

from __future__ import annotations

import json
from pathlib import Path

from bgtplanner.commands.data import describe
from bgtplanner.runs.config import load_config
from command_line import Call


def test_what_is_read(tmp_path: Path) -> None:
    table, items = tmp_path / "mine.csv", tmp_path / "items.csv"
    table.write_text("user,item,rating\n" + "".join(f"a,{i},{1 + i % 5}\n" for i in range(10)))
    items.write_text(
        "item,genre\n" + "".join(f"{i},{('Drama', 'War')[i % 2]}\n" for i in range(12))
    )
    settings = {"data.dataset": f"csv:{table}", "data.items": str(items), "data.scale": "0:5"}
    facts = describe(load_config(settings=settings))
    assert (facts["dataset"], facts["ratings"], facts["users"]) == ("csv:mine.csv", 10, 1)
    assert (facts["items"], facts["features"]) == (12, 2)
    assert (facts["scale"], facts["implicit"], facts["times"]) == ([0, 5], False, False)


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
