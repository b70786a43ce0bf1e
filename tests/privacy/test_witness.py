"""A file elsewhere that remembers the heads of a ledger."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from bgtplanner.errors import LedgerError, LedgerTamperedError, StorageError
from bgtplanner.privacy._rows import Head
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.privacy.witness import Witness

BUDGETS = Budgets.same(Budget(1.0), 2)
RULE = "laplace/basic"


@pytest.fixture
def witness(tmp_path: Path) -> Witness:
    (tmp_path / "elsewhere").mkdir()
    return Witness(tmp_path / "elsewhere" / "heads.txt")


def head(number: int) -> Head:
    return Head(number, bytes([number]) * 32)


def test_a_line_for_each_head(witness: Witness) -> None:
    assert witness.newest() is None
    for number in range(1, 30):
        witness.append(head(number))
        assert witness.newest() == head(number)
    lines = witness.path.read_text().splitlines()
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ \d+:[0-9a-f]{64}", x) for x in lines)
    assert witness.heads() == [head(number) for number in range(1, 30)]
    assert witness.path.stat().st_mode & 0o777 == 0o600


def test_lines_are_added_and_never_changed(
    witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags: list[int] = []
    synced: list[int] = []
    real, sync = os.open, os.fsync
    monkeypatch.setattr(os, "open", lambda *a, **k: flags.append(a[1]) or real(*a, **k))
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(fd) or sync(fd))
    witness.append(head(1))
    before = witness.path.read_bytes()
    witness.append(head(2))
    assert witness.path.read_bytes().startswith(before)
    assert len(synced) == 2
    assert all(flag & os.O_APPEND for flag in flags)


@pytest.mark.parametrize("left", [1, 20, 40, 86])
def test_a_line_torn_by_a_crash_is_left_out(witness: Witness, left: int) -> None:
    witness.append(head(1))
    whole = witness.path.read_bytes()
    witness.append(head(2))
    witness.path.write_bytes(whole + witness.path.read_bytes()[len(whole) :][:left])
    assert witness.newest() == head(1)
    witness.append(head(3))
    assert witness.newest() == head(3)
    assert witness.heads() == [head(1), head(3)]


@pytest.mark.parametrize("content", [b"user,item,rating\n" * 9, b"\xff\xfe\n", b"x" * 5000])
def test_a_file_of_something_else_is_refused(witness: Witness, content: bytes) -> None:
    witness.path.write_bytes(content)
    with pytest.raises(LedgerError, match="expected lines with a time and NUMBER:HASH"):
        witness.newest()


def test_a_disk_that_is_not_there_is_noticed_and_nothing_is_granted(path: Path) -> None:
    absent = Witness(path.parent / "not mounted" / "heads.txt")
    with pytest.raises(StorageError, match="is the disk of the witness mounted"):
        Ledger.create(path, BUDGETS, RULE, witness=absent)
    with Ledger.open(path, witness=absent) as ledger:
        with pytest.raises(StorageError, match="is the disk of the witness mounted"):
            ledger.reserve(0.25, run="a", round=0)
        assert ledger.left().tolist() == [0.75, 0.75]  # charged, though nothing may be released


def test_every_reservation_is_witnessed_before_it_is_granted(path: Path, witness: Witness) -> None:
    with Ledger.create(path, BUDGETS, RULE, witness=witness) as ledger:
        assert witness.newest() == ledger.head
        reservation = ledger.reserve(0.25, run="a", round=0)
        assert witness.newest() == ledger.head
        ledger.settle(reservation)
        assert [one.number for one in witness.heads()] == [0, 1]  # a settlement charges no one
    with Ledger.open(path, witness=witness) as ledger:
        ledger.reserve(0.25, run="a", round=1)
    assert [one.number for one in witness.heads()] == [0, 1, 3]


def test_one_witness_is_for_one_ledger(path: Path, witness: Witness) -> None:
    Ledger.create(path, BUDGETS, RULE, witness=witness).close()
    other = path.with_name("other.sqlite")
    with pytest.raises(LedgerError, match="already the witness of another ledger"):
        Ledger.create(other, BUDGETS, RULE, witness=witness)
    Ledger.create(other, BUDGETS, RULE).close()
    with pytest.raises(LedgerTamperedError, match="is not in this ledger"):
        Ledger.open(other, witness=witness)


def test_a_line_that_was_cut_off_is_said(
    witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, close, closed = os.write, os.close, []
    monkeypatch.setattr(os, "write", lambda handle, line: write(handle, line[:-1]))
    monkeypatch.setattr(os, "close", lambda handle: (closed.append(handle), close(handle))[1])
    with pytest.raises(StorageError, match="a line was cut off"):
        witness.append(head(1))
    assert len(closed) == 1
