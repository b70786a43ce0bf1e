"""Runs with a catalogue, and in the order of time: what is said, kept, and found again."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgtplanner import resume, simulate
from bgtplanner.errors import RunFolderError
from bgtplanner.report.verdict import guarantee, is_sound
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.run import load

pytestmark = pytest.mark.usefixtures("compiled_once", "undrawn")

SMALL: dict[str, Any] = {
    "synthetic.clients": 8, "synthetic.items": 10, "synthetic.ratings_per_client": 6,
    "run.device": "cpu",
}  # fmt: skip


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Ratings with times, and a catalogue with an item that no one has rated."""
    rows = [
        f"u{user},{item},{1 + (user * item) % 5},{(user + 3 * item) % 40}\n"
        for user in range(6)
        for item in range(10)
    ]
    (tmp_path / "ratings.csv").write_text("user,item,rating,time\n" + "".join(rows))
    items = [f"{item},Thing {item},{'a' if item % 2 else 'b'}\n" for item in range(11)]
    (tmp_path / "items.csv").write_text("item,title,kind\n" + "".join(items))
    return tmp_path


def run_it(shop: Path, **settings: Any) -> Any:
    chosen = {key.replace("__", "."): value for key, value in settings.items()}
    given = {"run.device": "cpu", "data.scale": "1:5", **chosen}
    return simulate(f"csv:{shop / 'ratings.csv'}", rounds=3, settings=given, out=shop / "run")


class TestCatalogue:
    def test_another_one_is_detected(self, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(RunFolder, "forget", lambda _: None)  # what an interrupted run has
        result = run_it(shop, data__items=str(shop / "items.csv"))
        assert result.summary["not_accounted"] == []
        assert (result.summary["items"], result.ratings.n_items) == (11, 11)
        file = shop / "items.csv"
        content = file.read_text()
        file.write_text(content.replace("Thing", "Product"))
        again = load(shop / "run")  # titles change nothing that is computed
        assert again.ratings.features.shape == (11, 2)
        (shop / "run" / "summary.json").unlink()
        for change in (("3,Thing 3,a", "3,Thing 3,b"), ("10,Thing", "12,Thing")):
            file.write_text(content.replace(*change))
            with pytest.raises(RunFolderError, match="are not those it was started with"):
                resume(shop / "run")
        file.unlink()
        with pytest.raises(RunFolderError, match="no such file; expected a table"):
            resume(shop / "run")


class TestTime:
    def test_what_arrives_is_predicted_before(
        self, shop: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(RunFolder, "forget", lambda _: None)
        result = run_it(shop, data__arrival="time")
        first, *later = result.rounds
        assert "rmse_arriving" not in first
        assert all(record["rmse_arriving"] > 0 for record in later)
        counts = np.diff([record["ratings"] for record in result.rounds])
        squares = sum(
            n * record["rmse_arriving"] ** 2 for n, record in zip(counts, later, strict=True)
        )
        expected = (squares / counts.sum()) ** 0.5
        assert result.summary["rmse_arriving"] == pytest.approx(expected)
        (shop / "run" / "summary.json").unlink()
        again = resume(shop / "run")
        assert again.rounds == result.rounds
        assert again.summary["rmse_arriving"] == result.summary["rmse_arriving"]

    def test_a_client_joins_with_its_first_rating(self, shop: Path) -> None:
        """Who takes part shows who has rated by then, and that is said."""
        with (shop / "ratings.csv").open("a") as file:
            file.write("".join(f"late,{item},3,{1000 + item}\n" for item in range(5)))
        even: dict[str, Any] = {"planning__policy": "uniform", "privacy__epsilon": 30.0}
        result = run_it(shop, data__arrival="time", **even)
        assert [record["clients"] for record in result.rounds] == [6, 6, 7]
        assert [record["paid"] for record in result.rounds] == [6, 6, 7]
        assert result.summary["not_accounted"] == ["catalogue", "arrival"]
        assert result.model.guarantee["not_accounted"] == ["catalogue", "arrival"]
        assert is_sound(result.summary)
        said = " ".join(guarantee(result.summary))
        assert re.search("is public: which items .*when each client joined", said)
        shutil.rmtree(shop / "run")
        result = run_it(shop, **even)
        assert [record["clients"] for record in result.rounds] == [7, 7, 7]
        assert [record["paid"] for record in result.rounds] == [7, 7, 7]
        assert result.summary["not_accounted"] == ["catalogue"]
