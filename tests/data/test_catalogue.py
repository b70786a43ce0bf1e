"""What is known about items: read from tables of many kinds, and refused in words."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from bgtplanner.data.catalogue import Catalogue, read_items
from bgtplanner.errors import ConfigError, DataError

FRAME: dict[str, list[Any]] = {
    "movieId": [10, 20, 30, 40],
    "title": ["Able (1990)", "Baker (1991)", "Charlie (1999)", "Dog"],
    "genres": ["Drama|War", "War", "Drama", "Comedy"], "colour": [1, 0, 1, 1],
    "minutes": [90.0, 100.0, None, 200.0],
    "page": ["http://a", "http://b", "http://c", "http://d"],
    "plot": ["a long story", "another tale", "nothing alike", "no more words"],
    "nothing": ["", "", "", ""], "same": [5, 5, 5, 5], "imdbId": [71, 5, 13, 8],
}  # fmt: skip


def test_columns_become_features() -> None:
    made = Catalogue.from_frame(FRAME)
    assert made.labels.tolist() == ["10", "20", "30", "40"]
    assert made.titles is not None
    assert made.titles[0] == "Able (1990)"
    by_name = dict(zip(made.names, made.features.T.tolist(), strict=True))
    assert by_name["genres: Drama"] == [1, 0, 1, 0]
    assert by_name["genres: War"] == [1, 1, 0, 0]
    assert "genres: Comedy" not in by_name, "one item has it: nothing to learn it from"
    assert by_name["colour"] == [1, 0, 1, 1]
    minutes = [name for name in made.names if name.startswith("minutes: ")]
    assert np.array([by_name[name] for name in minutes]).sum(0).tolist() == [1, 1, 0, 1]
    years = [name for name in made.names if name.startswith("year: ")]
    assert np.array([by_name[name] for name in years]).sum(0).tolist() == [1, 1, 1, 0]
    left_out = dict(text.split(": ", 1) for text in made.left_out)
    assert set(left_out) == {"page", "plot", "nothing", "same", "imdbId"}
    assert repr(made) == f"Catalogue(4 items, {len(made.names)} features, titles)"


def test_lists_and_embeddings() -> None:
    embedding, tags = [[1.0, -2.0], [0.5, 0.0], [0.0, 4.0]], [["x", "y"], ["x"], []]
    frame = {"item": ["a", "b", "c"], "tags": tags, "embedding": embedding}
    made = Catalogue.from_frame(pa.table(frame))
    assert made.names == ("tags: x", "embedding: 0", "embedding: 1")
    assert made.features.tolist() == [[1, 0.25, -0.5], [1, 0.125, 0], [0, 0, 1]]


def test_cells_of_many_kinds() -> None:
    tags = [["a"], None, ["a", ""]]
    made = Catalogue.from_frame({"item": [1.0, 2, 3], "new": [True, False, None], "tags": tags})
    assert made.labels.tolist() == ["1", "2", "3"]
    assert made.names == ("new", "tags: a")
    assert made.features.tolist() == [[1, 1], [0, 0], [0, 1]]
    ragged = {"item": [1, 2], "vector": [[0.5, 1.0], [0.5]]}
    assert "not of the same length" in Catalogue.from_frame(ragged).left_out[0]
    whole = Catalogue.from_frame({"item": [1, 2, 3], "actors": [[7, 8], [8, 9], [7, 9]]})
    assert whole.names == ("actors: 7", "actors: 8", "actors: 9"), "whole numbers are names"


def test_many_categories_leave_room_for_others() -> None:
    tags = [[f"tag {number // 2}"] for number in range(700)]
    frame = {"item": range(700), "tag": tags, "long": [number % 2 for number in range(700)]}
    made = Catalogue.from_frame(frame)
    assert (len(made.names), made.names[-1]) == (257, "long")
    assert made.left_out == ("tag: its 94 rarest categories",)


def written(path: Path, delimiter: str) -> Path:
    names = ["movieId", "title", "genres"]
    rows = zip(*(map(str, FRAME[name]) for name in names), strict=True)
    path.write_text("\n".join(delimiter.join(row) for row in [names, *rows]) + "\n")
    return path


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "::"])
def test_text_tables(tmp_path: Path, delimiter: str) -> None:
    made = read_items(written(tmp_path / "items.txt", delimiter))
    assert {"genres: Drama", "genres: War"} < set(made.names)


def test_gzip_parquet_and_other_letters(tmp_path: Path) -> None:
    plain = written(tmp_path / "items.csv", ",")
    zipped = tmp_path / "items.csv.gz"
    zipped.write_bytes(gzip.compress(plain.read_bytes()))
    table = tmp_path / "items.parquet"
    parquet.write_table(pa.table({name: FRAME[name] for name in ("movieId", "genres")}), table)
    assert read_items(zipped).names == read_items(plain).names
    assert read_items(table).names == ("genres: Drama", "genres: War")
    old = tmp_path / "old.csv"
    old.write_bytes("item,title\n1,Café\n2,Thé\n".encode("latin-1"))
    titles = read_items(old).titles
    assert titles is not None
    assert titles.tolist() == ["Café", "Thé"]


@pytest.mark.parametrize(
    ("content", "titles", "names"),
    [
        ("1::Up::Drama|War\n2::Ran::War\n3::If::Drama\n", ["Up", "Ran", "If"], "column 3"),
        ("7,1990,Drama;War\n8,1991,War\n9,1999,Drama\n", None, "column 3"),
        ("a,Up,War\nb,Ran,Drama\nc,If,Drama\nd,Us,War\n", ["Up", "Ran", "If", "Us"], "column 3"),
        ("artistID,name,style\n7,Up,Drama;War\n8,Ran,War\n9,If,Drama\n", ["Up", "Ran", "If"],
         "style"),
    ],
)  # fmt: skip
def test_a_table_without_a_header(
    tmp_path: Path, content: str, titles: list[str] | None, names: str
) -> None:
    (tmp_path / "items.dat").write_text(content)
    made = read_items(tmp_path / "items.dat")
    assert (None if made.titles is None else made.titles.tolist()) == titles
    assert {f"{names}: Drama", f"{names}: War"} <= set(made.names)


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        ({}, "has no items"),
        ({"item": []}, "has no items"),
        ({"item": ["a", ""]}, "item is empty, in row 2"),
        ({"item": ["a", "b", "a"]}, "item is a label that occurred before.* in row 3"),
        ({"item": ["a", "x" * 300]}, "item is longer than 256 bytes, in row 2"),
        ({"item": [["a"], ["b"]]}, "item holds neither text nor numbers"),
        ({"item": ["a"], "x": [1, 2]}, "same length"),
        (7, "expected a table with named columns"),
    ],
)
def test_frames_that_cannot_be(frame: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        Catalogue.from_frame(frame)


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda path: path.write_bytes(b"item,x\n1,2\n3\n"), "line 3: expected 2 columns"),
        (lambda path: path.write_bytes(b"item,item\n1,2\n"), "two columns of the same name"),
    ],
)
def test_files_that_cannot_be(tmp_path: Path, write: Callable[[Path], Any], said: str) -> None:
    path = tmp_path / "items.csv"
    write(path)
    with pytest.raises(DataError, match=said) as caught:
        read_items(path)
    assert str(path) in str(caught.value)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.binary(max_size=120)
    | st.text(st.sampled_from('item,tle|;:\t\n\r"12.5é-()9x '), max_size=120).map(str.encode)
)
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "items.csv"
    for written in (content, b"item,title,kind\n" + content, gzip.compress(content)):
        path.write_bytes(written)
        try:
            made = read_items(path)
        except (ConfigError, DataError):
            continue
        assert made.features.shape == (len(made), len(made.names))


class TestNames:
    """A list of names, one on each line, whatever signs are in them."""

    def test_names(self, tmp_path: Path) -> None:
        path = tmp_path / "items.txt"
        path.write_text('Alien, the film\n Brazil \r\n"Ça|\n', encoding="utf-8")
        assert read_items(path, columns=("item",)).labels.tolist() == [
            "Alien, the film",
            "Brazil",
            '"Ça|',
        ]

    @pytest.mark.parametrize(
        ("content", "problem"),
        [(b"", ": is empty"), (b"a\nb\na\n", ", line 3: column 1 is a label that occurred before"),
         (b"a\n" + "ü".encode() * 129, ", line 2: column 1 is longer than 256 bytes")],
    )  # fmt: skip
    def test_refused(self, tmp_path: Path, content: bytes, problem: str) -> None:
        path = tmp_path / "items.txt"
        path.write_bytes(content)
        with pytest.raises(DataError, match=rf"items\.txt{problem}"):
            read_items(path, columns=("item",))
