"""Text tables: what is accepted, what is refused, and what an error may say."""

from __future__ import annotations

import contextlib
import gzip
import re
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bgtplanner.data.tables import Table, TableFormat, read_table
from bgtplanner.errors import ConfigError, DataError

in_one_folder = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture
def read(tmp_path: Path) -> Any:
    def read(content: str | bytes, name: str = "table.csv", **options: Any) -> Table:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return read_table(path, TableFormat(**options))

    return read


def users(table: Table) -> list[Any]:
    return table.user.rows().tolist()


def items(table: Table) -> list[Any]:
    return table.item.rows().tolist()


PLAIN = "1,10,3\n2,20,4.5\n"


@pytest.mark.parametrize(
    "content",
    [
        PLAIN,
        PLAIN.replace(",", "\t"),
        PLAIN.replace(",", ";"),
        PLAIN.replace(",", "::"),
        PLAIN.replace(",", " "),
        PLAIN.replace(",", "|"),
        PLAIN.replace("\n", "\r\n"),
        PLAIN + "\n\n\r\n  \n",
        "\ufeff\n\n" + PLAIN,
        "who,what,stars given\n" + PLAIN,
        "user_id:token\titem_id:token\trating:float\n" + PLAIN.replace(",", "\t"),
        "rating,user,item\n3,1,10\n4.5,2,20\n",
        '"1","10","3"\n"2","20","4.5"\n',
        " 1 , 10 ,3\n2, 20,  4.5 \n",
        "1,10,+3\n2,20,45e-1\n",
    ],
)
def test_accepted(read: Any, content: str) -> None:
    table = read(content)
    assert (users(table), items(table), table.rating.tolist()) == ([1, 2], [10, 20], [3.0, 4.5])
    assert table.time is None
    assert table.client is None


@pytest.mark.parametrize(
    ("content", "options"),
    [
        ("1,10\n2,20\n", {}),
        ("user,item\n1,10\n2,20\n", {}),
        ("who;what\n1;10\n2;20\n", {"header": True}),
        ("who;what\n1;10\n2;20\n", {"user": "who", "item": "what"}),
        ("time,item,user\n5,10,1\n6,20,2\n", {}),
        ("user,item,price\n1,10,9.5\n2,20,3\n", {"rating": "none"}),
        ("1,10,9.5\n2,20,3\n", {"rating": "none", "time": 2}),
    ],
)
def test_clicks_have_no_rating(read: Any, content: str, options: dict[str, Any]) -> None:
    table = read(content, **options)
    assert (users(table), items(table), table.rating) == ([1, 2], [10, 20], None)
    assert (table.time is None) == ("time" not in content and "time" not in options)


def test_a_column_that_might_be_the_rating_is_asked_for(read: Any) -> None:
    for content in ("user,item,grade\n1,10,3\n", "user,item,time,price\n1,10,3,4\n"):
        said = r"which column is the rating\?.*data\.rating_column=.*for clicks .*: none"
        with pytest.raises(ConfigError, match=said):
            read(content)
    assert read("user,item,none\n1,10,3\n", rating=2).rating.tolist() == [3.0]
    with pytest.raises(
        ConfigError, match=r"are there names in the first row\?.*data\.header=true"
    ):
        read("ann,solaris\nbob,stalker\n")
    assert users(read("ann,solaris\nbob,stalker\n", header=False)) == ["ann", "bob"]


def test_gzip_is_known_by_content(read: Any) -> None:
    for name in ("table.csv.gz", "table.csv"):
        assert read(gzip.compress(PLAIN.encode(), mtime=0), name).rating.tolist() == [3.0, 4.5]


def test_time_and_client(read: Any) -> None:
    table = read("user,item,rating,timestamp,client\n1,2,3,100,b\n2,2,3,2001-09-09T01:46:41Z,a\n")
    assert table.time.tolist() == [100, 1_000_000_001]
    assert table.client.rows().tolist() == ["b", "a"]
    assert read("1,2,3,2000-01-02\n", time=3).time.tolist() == [946_771_200]


def test_columns_given(read: Any) -> None:
    content = "a,b,c,d\n3,1,10,9\n4.5,2,20,9\n"
    for chosen in ({"user": "b", "item": "c", "rating": "a"}, {"user": 1, "item": 2, "rating": 0}):
        table = read(content, **chosen)
        assert (users(table), items(table)) == ([1, 2], [10, 20])
    assert len(read("1,2,3\n4,5,6\n", header=True).rating) == 1
    assert len(read("1;2;3\n", delimiter="semicolon").rating) == 1


@pytest.mark.parametrize(
    ("content", "options", "problem"),
    [
        (PLAIN, {"delimiter": ",,"}, "delimiter = ',,'"),
        (PLAIN, {"delimiter": "1"}, "delimiter = '1'"),
        (PLAIN, {"delimiter": '"'}, "delimiter ="),
        (PLAIN, {"user": -1}, "user = -1: expected a position of 0 or more"),
        (PLAIN, {"user": 1}, "used twice"),
        (PLAIN, {"user": "who", "header": False}, "no header"),
        ("a,b,c\n1,2,3\n", {"user": "x", "item": "y"}, "user='x', item='y': no such column; the"),
        ("a,film,b\n1,2,3\n", {}, "column is the user? which column is the rating?"),
        ("user," + ",".join(f"i{n}" for n in range(99)) + "\n", {}, "'i18'; name them with"),
        (PLAIN, {"user": "who"}, "the header has no names"),
    ],
)
def test_bad_format(read: Any, content: str, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)) as caught:
        read(content, **options)
    assert "20" not in str(caught.value).replace(str(caught.value).split(": ")[0], "")


# A table of three columns in which every cell is recognisable, and one thing wrong with it.
GOOD = "7771,8881,4.125\n7772,8882,4.125\n"
SECRET = re.compile(r"777|888|4\.125|abc")


@pytest.mark.parametrize(
    ("content", "line", "problem"),
    [
        (GOOD + "\n\n7773,8883,4.125,1\n", 5, "expected 3 columns, found 4"),
        (GOOD + "7773,8883,abc\n", 3, "column 3 is not a number"),
        (GOOD + "7773,8883,\n", 3, "column 3 is empty"),
        (GOOD + '7773,"",4.125\n', 3, "column 2 is empty"),
        (GOOD + "7773,8883,nan\n", 3, "column 3 is not a number"),
        (GOOD + "7773,8883,1e999\n", 3, "column 3 is not finite"),
        (GOOD + "7773,8883,6.125\n", 3, "column 3 is out of range: expected a rating from 0 to 5"),
        (GOOD + '7773,"8883,4.125\n', 3, "expected 3 columns, found 2"),
        (GOOD + "7773,8883" + "x" * 300 + ",4.125\n", 3, "column 2 is longer than 256 bytes"),
        (GOOD + "7773,8883,4.125\r7774,8884,4.125\n", 3, "carriage return"),
        (GOOD.encode() + b"7773,888\xff3,4.125\n", 3, "not UTF-8"),
        (GOOD.encode() + b"7773,888\x003,4.125\n", 3, "zero byte"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 3, "zero byte"),
        ('"two\nlines",8881,4.125\n7772,8882,abc\n', 3, "column 3 is not a number"),
        ("7771\n", 1, "at least 3 columns"),
        ("", None, "empty"),
        ("user,item,rating\n", None, "names of columns and no ratings"),
        (gzip.compress(GOOD.encode(), mtime=0)[:20] + b"\xff" * 30, None, "damaged or cut short"),
        (gzip.compress(b"", mtime=0), None, "empty"),
    ],
)
def test_refused(read: Any, content: str | bytes, line: int | None, problem: str) -> None:
    with pytest.raises(DataError, match=re.escape(problem)) as caught:
        read(content, bounds=(0.0, 5.0))
    assert caught.value.line == line
    assert caught.value.path is not None
    assert caught.value.path.name == "table.csv"
    assert not SECRET.search(str(caught.value).replace(str(caught.value.path), ""))


def test_position_that_is_not_there(read: Any) -> None:
    with pytest.raises(DataError, match="has 3 columns; the time was expected in column 5"):
        read(GOOD, time=4)


def test_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a folder"):
        read_table(tmp_path)
    with pytest.raises(DataError, match="no such file"):
        read_table(tmp_path / "none.csv")
    (tmp_path / "plain.gz").write_text(GOOD)
    assert len(read_table(tmp_path / "plain.gz").user) == 2


@in_one_folder
@given(
    st.lists(
        st.tuples(
            st.text(
                st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1, max_size=9
            ),
            st.integers(0, 10**17),
            st.floats(-1e6, 1e6) | st.integers(0, 50).map(lambda half: half / 2),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_whatever_is_quoted_comes_back(read: Any, rows: list[tuple[str, int, float]]) -> None:
    text = "user,item,rating\n" + "".join(
        '"u{}",{},{!r}\n'.format(user.replace('"', '""'), item, rating)
        for user, item, rating in rows
    )
    table = read(text)
    assert [str(user) for user in users(table)] == [f"u{user}".strip() for user, _, _ in rows]
    assert items(table) == [item for _, item, _ in rows]
    assert table.rating.tolist() == [rating for _, _, rating in rows]


@in_one_folder
@given(st.text(st.sampled_from("12.,;:\"\t \n\r'-eaé"), max_size=60))
def test_near_tables_are_read_or_refused(read: Any, content: str) -> None:
    with contextlib.suppress(DataError, ConfigError):
        table = read(content)
        assert table.rating is None or np.isfinite(table.rating).all()


@pytest.mark.parametrize(
    ("cell", "number"),
    [("7", 7), (" .5", 0.5), ("5.\t", 5), ("1e-400", 0), ("1234567.1234567", 1234567.1234567),
     ("0x1F", None), ("1_0", None), ("\u0663", None), ("1e400", None), ("infinity", None)],
)  # fmt: skip
def test_a_number_is_what_float_reads(read: Any, cell: str, number: float | None) -> None:
    if number is not None:
        assert read(f"1,10,{cell}\n", header=False).rating.tolist() == [number]
        return
    with pytest.raises(DataError, match="line 1: column 3 is not"):
        read(f"1,10,{cell}\n", header=False)


def test_blanks_around_labels_do_not_count(read: Any) -> None:
    assert users(read("ann , x,3\nann,x ,4\n", header=False)) == ["ann", "ann"]
    with pytest.raises(DataError, match="line 2: column 1 has a blank before its quote"):
        read('ann,x,3\n "ann",x,4\n', header=False)


def test_a_header_of_two_lines(read: Any) -> None:
    table = read('user,item,rating,"seen\non"\nann,x,4,tv\nbob,y,5,tv\n')
    assert (users(table), table.rating.tolist()) == (["ann", "bob"], [4.0, 5.0])
    with pytest.raises(DataError, match="line 4: column 3 is not a number"):
        read('user,item,rating,"seen\non"\nann,x,4,tv\nbob,y,good,tv\n', header=True)


def test_odd_quotes_where_nobody_looks(read: Any) -> None:
    for cell in ('a "b" c', '"b" c', '"a" b "c"'):
        table = read(f'user,item,rating,note\nann,"x, y",4,{cell}\nbob,"""z""",5,\n')
        assert items(table) == ["x, y", '"z"']


class TestParquet:
    """The same columns and errors as in text tables, with rows in the place of lines."""

    @pytest.fixture
    def parquet(self, tmp_path: Path) -> Any:
        def read(options: dict[str, Any] | None = None, **columns: Any) -> Table:
            pq.write_table(pa.table(columns), tmp_path / "table.parquet")
            return read_table(tmp_path / "table.parquet", TableFormat(**(options or {})))

        return read

    def test_kinds_of_columns(self, parquet: Any) -> None:
        start = datetime(2001, 9, 9, 1, 46, 40, 500_000, tzinfo=UTC)
        movies = pa.array(["b", "a"]).dictionary_encode()
        for rating in ([1, 2], ["1", "2"], pa.array(["1", "2"], pa.large_string())):
            table = parquet(rating=rating, user=[7.0, 8.0], movieId=movies, time=[start, start])
            assert (users(table), items(table)) == ([7, 8], ["b", "a"])
            assert (table.rating.tolist(), table.time.tolist()) == ([1, 2], [1_000_000_000.5] * 2)
        table = parquet(user=[1], item=[2], rating=[3], date=[date(1970, 1, 2)], client=["x"])
        assert (table.time.tolist(), table.client.rows().tolist()) == ([86_400.0], ["x"])

    @in_one_folder
    @given(
        st.lists(st.integers(-3, 9) | st.integers(-(2**63), 2**64 - 1), min_size=1, max_size=9),
        st.sampled_from(["i1", "u1", "i4", "i8", "u8", "str", "large_string", "coded"]),
    )
    def test_ids_are_the_same_in_every_kind(self, parquet: Any, ids: list[int], kind: str) -> None:
        text = pa.array(list(map(str, ids)))
        try:
            column = {
                "str": lambda: text,
                "large_string": lambda: text.cast(pa.large_string()),
                "coded": lambda: text.dictionary_encode(),
            }.get(kind, lambda: pa.array(ids, np.dtype(kind).name))()
        except (pa.ArrowInvalid, OverflowError):  # too large for this kind
            return
        table = parquet(user=column, item=ids[:1] * len(ids), rating=[1.0] * len(ids))
        whole = all(0 <= one < 10**18 for one in ids)
        assert users(table) == (ids if whole else list(map(str, ids)))

    def test_labels_that_no_row_has_do_not_count(self, parquet: Any) -> None:
        some = pa.DictionaryArray.from_arrays(
            pa.array([1, 3, 1], pa.int8()), ["ann", "7", "", "8", "x" * 300]
        )
        table = parquet(user=some, item=some.cast(pa.string()), rating=[1, 2, 3])
        assert users(table) == [7, 8, 7]
        with pytest.raises(DataError, match="row 2: column 1 is empty"):
            parquet(user=some.take(pa.array([0, None])), item=["a", "b"], rating=[1, 2])

    @pytest.mark.parametrize(
        ("column", "cells", "problem"),
        [
            ("user", [7771, None], "row 2: column 1 is empty"),
            ("user", ["7771", "7771\0"], "row 2: column 1 holds a zero byte"),
            ("user", [7771.0, float("nan")], "row 2: column 1 is empty"),
            ("item", [["8881"], ["8882"]], "column 2 holds neither text nor numbers"),
            ("rating", [4.125, float("nan")], "row 2: column 3 is empty|not a number"),
            ("rating", ["4.125", "abc"], "row 2: column 3 is not a number"),
            ("rating", [[4.125], [4.125]], "column 3 holds neither text nor numbers"),
            ("time", ["1", "abc"], "row 2: column 4 is neither a number nor a date"),
        ],
    )
    def test_refused(self, parquet: Any, column: str, cells: list[Any], problem: str) -> None:
        good = {"user": [7771, 7772], "item": ["8881", "8882"], "rating": [4.125, 4.125]}
        with pytest.raises(DataError, match=problem) as caught:
            parquet({"bounds": (0.0, 5.0)}, **(good | {column: cells}))
        assert not SECRET.search(str(caught.value).replace(str(caught.value.path), ""))

    def test_not_parquet(self, tmp_path: Path, parquet: Any) -> None:
        path, wanted = tmp_path / "table.parquet", TableFormat()
        with pytest.raises(DataError, match="names of columns and no ratings"):
            parquet(user=pa.array([], "str"), item=pa.array([], "str"), rating=pa.array([], "f8"))
        path.write_bytes(b"PAR1 and nothing else")
        with pytest.raises(DataError, match=r"table\.parquet: cannot be read as Parquet"):
            read_table(path, wanted)
        path.write_text("user,item,rating\n1,2,3\n")
        assert users(read_table(path, wanted)) == [1], "what it is shows in its content"


def test_too_many_labels(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bgtplanner.data.tables.MOST_LABELS", 2)
    with pytest.raises(DataError, match="line 4: column 2 is one of more than 2 labels"):
        read("user,item,rating\na,b,1\na,c,2\na,d,2\n")
