"""A witness's file: one line a head, on the disk when it is told, readable after any crash."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import pytest

from bgtplanner.errors import LedgerError, StorageError
from bgtplanner.privacy._rows import Head
from bgtplanner.privacy.witness import Witness

HEADS = [Head(number, bytes([number]) * 32) for number in range(1, 40)]


@pytest.fixture
def witness(tmp_path: Path) -> Witness:
    return Witness(str(tmp_path / "heads.txt"))


def tell(witness: Witness, *heads: Head) -> None:
    for head in heads:
        witness.append(head)


def test_a_line_is_a_time_and_a_head(witness: Witness) -> None:
    tell(witness, HEADS[0])
    line = re.escape(str(HEADS[0]))
    text = witness.path.read_text()
    assert re.fullmatch(rf"\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ {line}\n", text)
    assert stat.S_IMODE(witness.path.stat().st_mode) == 0o600


def test_the_newest_is_the_one_that_was_told_last(witness: Witness) -> None:
    assert witness.newest() is None
    for head in (*HEADS[:20], HEADS[3]):
        tell(witness, head)
        assert witness.newest() == head
    assert witness.heads() == [*HEADS[:20], HEADS[3]]


def test_the_end_of_a_long_file_is_enough(witness: Witness) -> None:
    tell(witness, *HEADS)
    size = witness.path.stat().st_size
    with witness.path.open("r+b") as file:  # only its last lines are whole
        file.write(b"x" * (size - 300))
    assert witness.newest() == HEADS[-1]
    with witness.path.open("r+b") as file:
        file.write(b"x" * (size - 1) + b"\n")
    with pytest.raises(LedgerError, match=r"heads.txt: expected lines with a time and NUMBER"):
        witness.newest()


@pytest.mark.parametrize("left", [1, 20, 21, 60])
def test_a_line_torn_by_a_crash_is_left_out_and_none_is_lost_after_it(
    witness: Witness, left: int
) -> None:
    tell(witness, *HEADS[:3])
    content = witness.path.read_bytes()
    witness.path.write_bytes(content + content[:left])
    assert witness.newest() == HEADS[2]
    assert witness.heads() == HEADS[:3]
    tell(witness, HEADS[3])
    assert witness.newest() == HEADS[3]
    assert witness.heads() == HEADS[:4]


def test_an_untorn_file_gets_no_empty_lines(witness: Witness) -> None:
    tell(witness, *HEADS[:3])
    assert witness.path.read_bytes().count(b"\n") == 3
    assert b"\n\n" not in witness.path.read_bytes()


def test_lines_of_anything_else_are_passed_over(witness: Witness) -> None:
    tell(witness, HEADS[0])
    with witness.path.open("ab") as file:
        file.write(b"\xff\xfe 3:zz\nnothing\n\n")
    assert witness.newest() == HEADS[0]
    assert witness.heads() == HEADS[:1]


def test_an_empty_file_has_no_newest_and_a_foreign_one_is_refused(witness: Witness) -> None:
    witness.path.touch()
    assert witness.newest() is None
    assert witness.heads() == []
    witness.path.write_text("something else\n")
    with pytest.raises(LedgerError, match="expected lines with a time"):
        witness.newest()


def test_a_line_is_on_the_disk_when_it_was_told(
    witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    write, fsync, close = os.write, os.fsync, os.close
    monkeypatch.setattr(os, "write", lambda *a: (said.append("write"), write(*a))[1])
    monkeypatch.setattr(os, "fsync", lambda handle: (said.append("fsync"), fsync(handle))[1])
    monkeypatch.setattr(os, "close", lambda handle: (said.append("close"), close(handle))[1])
    tell(witness, HEADS[0])
    assert said == ["write", "fsync", "close"]


def test_a_line_that_was_cut_off_is_said(
    witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, close, closed = os.write, os.close, []
    monkeypatch.setattr(os, "write", lambda handle, line: write(handle, line[:-1]))
    monkeypatch.setattr(os, "close", lambda handle: (closed.append(handle), close(handle))[1])
    with pytest.raises(StorageError, match="a line was cut off"):
        tell(witness, HEADS[0])
    assert len(closed) == 1


def test_a_disk_that_is_not_there_is_noticed(tmp_path: Path) -> None:
    away = Witness(tmp_path / "not mounted" / "heads.txt")
    with pytest.raises(StorageError, match="is the disk of the witness mounted"):
        tell(away, HEADS[0])
    with pytest.raises(StorageError, match="is the disk of the witness mounted"):
        away.heads()
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError):
        Witness(tmp_path / "folder").newest()


def test_a_file_of_a_single_empty_line_is_no_witness(tmp_path: Path) -> None:
    path = tmp_path / "heads.txt"
    path.write_bytes(b"\n")
    with pytest.raises(LedgerError, match="expected lines with a time"):
        Witness(path).newest()
