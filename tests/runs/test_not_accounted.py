"""What leaves the clients without being paid for is named: the scale and the catalogue, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bgtplanner import Ratings, load_ratings, simulate
from bgtplanner.report.guarantee import guarantee
from bgtplanner.runs.config import load_config
from bgtplanner.runs.summary import about_ratings, facts_of

pytestmark = pytest.mark.usefixtures("compiled_once")

BOTH = ("scale", "catalogue")


def table(path: Path, last: list[tuple[str, int]]) -> Path:
    """Five clients; what the last one rated is given."""
    rows = [
        (f"user {user}", f"item {item}", 1 + (user + item) % 4)
        for user in range(4)
        for item in range(6)
    ]
    rows += [("user 4", item, rating) for item, rating in last]
    lines = ["user,item,rating", *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def neighbours(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two tables that differ in one client."""
    home = tmp_path_factory.mktemp("neighbours")
    return (
        table(home / "one.csv", [("item 0", 2), ("item 1", 3), ("item 2", 1)]),
        table(home / "other.csv", [("item 0", 2), ("item 1", 5), ("a rare film", 1)]),
    )


def facts(ratings: Ratings, **settings: Any) -> dict[str, Any]:
    """What a run on these ratings says before its first round."""
    config = load_config(settings={key.replace("__", "."): of for key, of in settings.items()})
    return facts_of(config, about_ratings(ratings))


class TestNeighbours:
    """One client's ratings can be seen in what every run takes for granted."""

    def test_whoever_gets_the_model_sees_it(self, neighbours: tuple[Path, Path]) -> None:
        result = simulate(f"csv:{neighbours[1]}", rounds=2, settings={"run.device": "cpu"})
        assert (result.model.low, result.model.high) == (0.0, 5.0)
        assert "a rare film" in result.model.items
        assert result.model.guarantee["not_accounted"] == [*BOTH]
        assert result.summary["not_accounted"] == [*BOTH]
        (public,) = [of for of in guarantee(result.summary) if "is public: " in of]
        assert "the scale" in public
        assert "which items" in public


def test_with_a_catalogue_it_is_accounted_for(
    tmp_path: Path, neighbours: tuple[Path, Path]
) -> None:
    """Both neighbours have the same items then, and clicks have the same scale without a word."""
    items = tmp_path / "items.csv"
    names = [*(f"item {number}" for number in range(8)), "a rare film"]
    items.write_text("\n".join(["item", *names]) + "\n")
    one, other = (load_ratings(f"csv:{path}", items=items, scale="1:5") for path in neighbours)
    assert facts(one)["not_accounted"] == facts(other)["not_accounted"] == []
    assert one.item_labels.tolist() == other.item_labels.tolist()
