"""Text from outside: what is shown of it, and how much of it is read."""

from __future__ import annotations

import csv
import io
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bgtplanner.text import csv_text, read_bytes, visible

OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


class TestVisible:
    @pytest.mark.parametrize(
        ("text", "shown"),
        [("Amélie – 七人の侍 😀 [x] $y$", "Amélie – 七人の侍 😀 [x] $y$"),
         ("\x1b[2J", r"\u001b[2J"), ("plain", "plain"),
         ("a\nb\tc\r", r"a\u000ab\u0009c\u000d"), ("\x9b31m", r"\u009b31m"), (None, "None"),
         ("abc\u202efdp.exe", r"abc\u202efdp.exe"), ("\udcff", r"\udcff"),
         ("\u2066x\u2069\u200b", r"\u2066x\u2069\u200b"), ("\U000e0041", r"\U000e0041")],
    )  # fmt: skip
    def test_written_out(self, text: object, shown: str) -> None:
        assert visible(text) == shown

    @given(st.text())
    def test_nothing_is_left_that_a_terminal_obeys(self, text: str) -> None:
        shown = visible(text)
        assert not OBEYED.search(shown)
        assert "\n" not in shown
        assert visible(shown) == shown
        shown.encode()


class TestCsv:
    @pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", " =", "＝", "＠"])
    def test_no_formulas(self, start: str) -> None:
        (_, (cell,)) = csv.reader(
            io.StringIO(csv_text(["a"], [{"a": f"{start}cmd|' /C calc'!A0"}]))
        )
        assert cell.startswith("'")

    @pytest.mark.parametrize("value", [-1, -0.5, 1e-9, "-1", "+2.5e-3", "-.5", "plain", "a=b", ""])
    def test_numbers_and_words_stay(self, value: object) -> None:
        (_, cells) = csv.reader(io.StringIO(csv_text(["a", "b"], [{"a": value, "b": 1}])))
        assert cells == [str(value), "1"]

    @given(st.lists(st.text(min_size=1), min_size=1))
    def test_a_cell_stays_a_cell(self, cells: list[str]) -> None:
        names = [str(number) for number in range(len(cells))]
        text = csv_text(names, [dict(zip(names, cells, strict=True))])
        _, found = csv.reader(io.StringIO(text))
        assert len(found) == len(cells)
        for cell in found:
            assert not OBEYED.search(cell)
            number = re.fullmatch(r"[+-]?[\d.]+([eE][+-]?\d+)?", cell)
            assert number or not cell.lstrip().startswith(tuple("=+-@\t\r"))


class TestReading:
    def test_no_more_than_the_limit(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"12345")
        assert read_bytes(tmp_path / "a", 5) == b"12345"
        with pytest.raises(OSError, match="longer than 4 bytes"):
            read_bytes(tmp_path / "a", 4)

    def test_devices_pipes_and_folders(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        for path in (Path("/dev/zero"), tmp_path / "pipe"):
            with pytest.raises(OSError, match="is not a plain file"):
                read_bytes(path, 10)
        with pytest.raises(OSError, match="is a folder"):
            read_bytes(tmp_path, 10)
        with pytest.raises(OSError, match="longer than 1,000 bytes"):
            read_bytes(Path("/dev/zero"), 1000, plain=False)
