"""Data sets by name: what is known of them, where they are looked for, what they hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import csv as arrow_csv
from pyarrow import parquet

from bgtplanner.data.catalogue import read_items
from bgtplanner.data.datasets import DATASETS, data_folders, find_files, load_ratings
from bgtplanner.data.ratings import Ratings
from bgtplanner.errors import ConfigError, DataError


@pytest.fixture
def folder(no_data: Path, tmp_path: Path) -> Path:
    """A data folder with small sets in the original formats, and no other data anywhere."""
    root = tmp_path / "data"
    files = {
        "ml-100k/u.data": "1\t10\t3\t100\n2\t10\t5\t50\n1\t11\t1\t7\n1\t10\t4\t99\n",
        "ml-1m/ratings.dat": "".join(
            f"{user}::{user % 9}::{1 + user % 5}::0\n" for user in range(1, 1211)
        ),
        "filmtrust/ratings.txt": "1 5 2.5\n1 6 4\n2 5 0.5\n3 7 1\n3 7 3\n",
        "filmtrust/trust.txt": "1 2 1\n2 9 1\n",
    }
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


class TestRegistry:
    def test_a_set_of_somebody_else(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(DATASETS, "_entries", dict(DATASETS._entries))
        DATASETS.add("shop", replace(DATASETS["ml-100k"], name="shop", pseudo_items=7))
        assert repr(load_ratings("shop", data_dir=folder)).startswith("Ratings(shop: 3 ratings")
        assert DATASETS["shop"].pseudo_items == 7


class TestWhereDataIs:
    @pytest.mark.usefixtures("no_data")
    def test_the_cache_in_a_home(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", "/home/ann")
        assert data_folders()[-1] == Path("/home/ann/.cache/bgtplanner")

    def test_found_in_each_place(
        self, folder: Path, no_data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        environment = tmp_path / "environment"
        monkeypatch.setenv("BGTPLANNER_DATA", str(environment))
        assert find_files("demo") == []
        own, cached, theirs = (
            place / "ml-100k" / name
            for place, name in (
                (folder, "u.data"),
                (no_data, "u.data"),
                (environment, "u.data.gz"),
            )
        )
        for path in (cached, theirs, own):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        for path in (own, theirs, cached):
            assert find_files("ml-100k", folder) == [path]
            path.unlink()

    def test_missing_set(self, no_data: Path) -> None:
        with pytest.raises(DataError) as caught:
            load_ratings("ml-1m-users")
        message, url = str(caught.value), "https://grouplens.org/datasets/movielens/1m/"
        assert f"ratings.dat and movies.dat from {url} into {no_data / 'ml-1m'}" in message
        assert "--data-dir" in message


class TestNamedSets:
    def test_ml_100k(self, folder: Path) -> None:
        ratings = load_ratings("ml-100k", data_dir=folder)
        assert repr(ratings) == "Ratings(ml-100k: 3 ratings, 2 users, 2 items, 2 clients)"
        # The pair that occurs twice keeps the later rating, which stands first in the file.
        np.testing.assert_allclose(ratings.value, [0.6, 0.2, 1.0])
        assert load_ratings("ml-100k", data_dir=folder, feedback="clicks").implicit

    def test_ml_1m(self, folder: Path) -> None:
        users = load_ratings("ml-1m-users", data_dir=folder)
        assert users.n_clients == 1210
        dealt, again, other = (load_ratings("ml-1m", data_dir=folder, seed=s) for s in (0, 0, 1))
        assert dealt.n_clients == 605
        assert np.bincount(dealt.client_of_user).tolist() == [2] * 605
        assert np.array_equal(dealt.client_of_user, again.client_of_user)
        assert not np.array_equal(dealt.client_of_user, other.client_of_user)

    def test_filmtrust_keeps_who_is_in_the_trust_network(self, folder: Path) -> None:
        ratings = load_ratings("filmtrust", data_dir=folder)
        assert ratings.user_labels.tolist() == [1, 2, 9]
        assert (len(ratings), ratings.n_items, ratings.n_clients) == (3, 2, 3)
        np.testing.assert_allclose(ratings.value, [2 / 3.5, 1.0, 0.0], rtol=1e-6)

    @pytest.mark.parametrize(
        ("name", "file", "row", "line", "problem"),
        [
            ("ml-100k", "ml-100k/u.data", "777\t888\t9\t1\n", 5, "column 3 is out of range"),
            ("ml-100k", "ml-100k/u.data", "777\t888\t4\tnan\n", 5, "column 4 is neither a number"),
            ("ml-1m", "ml-1m/ratings.dat", "777::888::4:1\n", 1211, "expected 4 columns, found 3"),
            ("filmtrust", "filmtrust/trust.txt", "777 888\n", 3, "expected 3 columns, found 2"),
        ],
    )
    def test_bad_files(
        self, folder: Path, name: str, file: str, row: str, line: int, problem: str
    ) -> None:
        with (folder / file).open("a") as stream:
            stream.write(row)
        with pytest.raises(DataError, match=problem) as caught:
            load_ratings(name, data_dir=folder)
        assert (caught.value.path, caught.value.line) == (folder / file, line)
        message = str(caught.value).replace(str(folder), "")
        assert not any(cell in message for cell in ("777", "888", "four"))


class TestCatalogues:
    """The sets' own files, tables, and none."""

    @pytest.fixture
    def own(self, folder: Path) -> Path:
        genres = ["0"] * 19
        rows = [
            [str(item), f"Film {item} (19{item})", "01-Jan-1995", "", "http://x", *genres]
            for item in (9, 10, 11)
        ]
        rows[0][6] = rows[1][6] = rows[2][10] = "1"  # Action, Action, Comedy
        rows[0][1] = "Café (199)"
        text = "".join("|".join(row) + "\n" for row in rows)
        (folder / "ml-100k" / "u.item").write_bytes(text.encode("latin-1"))
        names = "".join(f"{item}::M::{'Drama|War' if item % 2 else 'War'}\n" for item in range(12))
        (folder / "ml-1m" / "movies.dat").write_text(names)
        return folder

    def test_own_files(self, own: Path) -> None:
        ratings = load_ratings("ml-100k", data_dir=own)
        assert ratings.item_labels.tolist() == [9, 10, 11]
        made = ratings.catalogue
        assert made is not None
        assert made.titles is not None
        assert made.titles[0] == "Café (199)"
        assert made.names == ("genre: Action", "genre: Comedy"), "the rest is the same for all"
        assert made.features[:, 0].tolist() == [1, 1, 0]
        assert ratings.public == {"scale", "catalogue"}
        assert ratings.notes[-1] == "Catalogue from u.item: 3 items, 2 features, titles."
        for name in ("ml-1m", "ml-1m-users", "ml-1m-merged"):
            dealt = load_ratings(name, data_dir=own)
            assert (dealt.n_items, dealt.features.shape[0]) == (12, 12)
            assert dealt.catalogue is not None
            assert dealt.catalogue.names == ("genre: Drama",), "all of them are of the other one"

    def test_none_and_missing(self, own: Path) -> None:
        plain = load_ratings("ml-100k", data_dir=own, items="none")
        assert (plain.n_items, plain.catalogue) == (2, None)
        assert plain.notes == ("1 of 4 rows repeat a user and an item: the last counts.",)
        assert plain.public == {"scale"}
        (own / "ml-100k" / "u.item").unlink()
        missing = load_ratings("ml-100k", data_dir=own)
        assert (missing.n_items, missing.public) == (2, {"scale"})
        assert "u.item is not there" in missing.notes[-1]
        assert "https://grouplens.org/datasets/movielens/100k/" in missing.notes[-1]

    def test_tables(self, own: Path, tmp_path: Path) -> None:
        table = tmp_path / "films.csv"
        table.write_text("key,title,plot\n10,A,space war\n11,B,space opera\n12,C,war\n13,D,none\n")
        made = load_ratings("ml-100k", data_dir=own, items=table)
        assert (made.n_items, made.features.shape) == (4, (4, 0))
        assert load_ratings("ml-100k", data_dir=own, items=read_items(table)).catalogue is not None
        again = tmp_path / "u.item"
        again.write_bytes((own / "ml-100k" / "u.item").read_bytes())
        assert load_ratings("ml-100k", data_dir=own, items=again).n_items == 3

    def test_what_cannot_be(self, own: Path, tmp_path: Path) -> None:
        table = tmp_path / "films.csv"
        table.write_text("item,title\n10,A\n12,B\n")
        with pytest.raises(DataError, match="the catalogue lacks"):
            load_ratings("ml-100k", data_dir=own, items=table)
        with pytest.raises(ConfigError, match="--items"):
            load_ratings("demo", items=" ")


class TestCsv:
    @pytest.fixture
    def load(self, tmp_path: Path) -> Callable[..., Ratings]:
        def load(content: str, **options: Any) -> Ratings:
            (tmp_path / "mine.csv").write_text(content)
            return load_ratings(f"csv:{tmp_path / 'mine.csv'}", **options)

        return load

    def test_scale(self, load: Any) -> None:
        both, bounds = [0.5, 1.0], [0.25, 0.5]
        for scale, expected in (
            (None, both), ("max", both), ("minmax", [0, 1]), ("0:8", bounds), ((0, 8), bounds),
        ):  # fmt: skip
            assert load("1,1,2\n1,2,4\n", scale=scale).value.tolist() == expected

    def test_parquet_is_the_same(self, load: Any, tmp_path: Path) -> None:
        expected, path = load("user,item,rating\n1,a,4\n1,a,2\n2,b,4\n"), tmp_path / "mine.parquet"
        parquet.write_table(arrow_csv.read_csv(tmp_path / "mine.csv"), path)
        ratings = load_ratings(f"parquet:{path}")
        assert repr(ratings) == repr(expected).replace("csv:mine.csv", "parquet:mine.parquet")
        assert load_ratings(str(path)).value.tolist() == expected.value.tolist()
        with pytest.raises(DataError, match=r"parquet: row 1: column 3 is out of range"):
            load_ratings(f"parquet:{path}", scale="1:3")

    def test_options_are_for_tables_only(self) -> None:
        for option, value in (("user", 0), ("delimiter", ","), ("scale", "1:5")):
            with pytest.raises(ConfigError, match=f"{option} = .*only for a table of your own"):
                load_ratings("demo", **{option: value})


@pytest.mark.parametrize(
    ("name", "files", "sizes", "counts"),
    [
        ("filmtrust", ("filmtrust/ratings.txt", "filmtrust/trust.txt"), (874, 18_662, 1_957, 874),
         [557, 687, 862, 1692, 2192, 4113, 3851, 4708]),
        ("ml-100k", ("ml-100k/u.data",), (943, 100_000, 1_682, 943),
         [6110, 11370, 27145, 34174, 21201]),
        ("ml-1m", ("ml-1m/ratings.dat",), (6_040, 1_000_209, 3_706, 605),
         [56174, 107557, 261197, 348971, 226310]),
    ],
)  # fmt: skip
def test_the_real_sets_have_the_counts_of_their_own_notes(
    real_files: Callable[..., Path], name: str, files: Any, sizes: Any, counts: list[int]
) -> None:
    found = load_ratings(name, data_dir=real_files(*files), items="none")
    assert (found.n_users, len(found), found.n_items, found.n_clients) == sizes
    raw = np.round(found.to_raw(found.value), 3)
    assert np.unique(raw, return_counts=True)[1].tolist() == counts


@pytest.mark.parametrize(
    ("fourth", "timed"), [((1_000_000_000, 1_100_000_000), True), ((3, 7), False)]
)
def test_times_without_a_name_are_found(
    tmp_path: Path, fourth: tuple[int, int], timed: bool
) -> None:
    file = tmp_path / "own.csv"
    file.write_text("".join(f"{u},{i},{1 + u},{fourth[u]}\n" for u in (0, 1) for i in (0, 1)))
    assert (load_ratings(str(file)).time is not None) == timed
