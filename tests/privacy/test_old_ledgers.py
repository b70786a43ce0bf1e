"""Ledgers of earlier versions, as they were left: nothing of what was spent is forgotten.

``tests/assets/ledger-schema1.sqlite`` was written and closed by version 0.1.0 at commit 29ffb3e;
``ledger-schema1-killed.sqlite`` was copied while it was open, with nearly everything still in its
write-ahead log. ``ledger-schema2.sqlite`` was written and closed by the first version that made
classes pay, long enough to hold a snapshot. ``ledger-c051004.sqlite`` was written by commit
c051004, which still kept sums per class: it has a row of every form that says who paid.
``ledger-schema3.sqlite`` was written by the first version in which people join and leave.
"""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from bgtplanner.errors import LedgerError, LedgerTamperedError, StorageError
from bgtplanner.privacy._journal import SCHEMA
from bgtplanner.privacy._rows import Head
from bgtplanner.privacy.ledger import Ledger

ASSETS = Path(__file__).parents[1] / "assets"
SPENT = [
    [9345848836096, 19241453486080, 17042430230528, 11544872091648, 12644383719424],
    [1529008357376, 6682969112576, 5858335391744, 2353642078208, 2559800508416],
]
LEFT = [0.46875, 0.90625, 3.03125, 1.34375, 0.28125]
HEADS = {
    "ledger-schema1": "9:a790b63d5c2233c6f96111265d4c72999b6defc290de2b8e29671e1036ae4495",
    "ledger-schema1-killed": "9:567158bf405b59e2d7ca7bd3552a9b9619ad96651a817875786ff90deb27be22",
}


@pytest.fixture(params=HEADS)
def old(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Head]:
    name = str(request.param)
    for ending in ("", "-wal"):
        source = ASSETS / f"{name}.sqlite{ending}"
        if source.exists():
            shutil.copy(source, tmp_path / f"ledger.sqlite{ending}")
    return tmp_path / "ledger.sqlite", Head.parse(HEADS[name])


def same(ledger: Ledger, head: Head) -> None:
    assert ledger.spent().tolist() == SPENT
    assert ledger.left().tolist() == LEFT
    assert (ledger.head, ledger.unsettled) == (head, 2)
    assert ledger.check_head(Head(9, bytes(range(32)))) is None  # a loss was stated
    assert (ledger.newest_round("first"), ledger.newest_round("second")) == (2, 0)
    assert [entry["kind"] for entry in ledger.history()] == [
        "open", "reserve", "settle", "reserve", "reserve", "settle", "loss", "reserve", "settle",
        "reserve",
    ]  # fmt: skip
    assert ledger.verify(head) == 10


def test_it_opens_with_the_same_balances_and_goes_on(old: tuple[Path, Head]) -> None:
    path, head = old
    with Ledger.open(path, head=head) as ledger:
        same(ledger, head)
        mark = ledger.fingerprint(b"public inputs")
        again = ledger.reserve(0.25, run="first", round=0, fingerprint=mark)
        assert again.replayed.all()
        some = ledger.reserve(0.0625, run="second", round=0, fingerprint=mark, clients=[0, 3])
        assert (some.replayed.sum(), some.attempt, ledger.head) == (2, 0, head)
        reservation = ledger.reserve(0.125, run="second", round=1, rising=True)
        ledger.settle(reservation)
    assert [file.name for file in path.parent.iterdir()] == [path.name]  # no log is left
    with Ledger.open(path, head=head) as ledger:
        assert (ledger.head.number, ledger.unsettled) == (11, 2)
        assert ledger.left()[2] == LEFT[2] - 0.125
        assert ledger.verify() == 12


def test_to_look_at_it_does_not_change_it(old: tuple[Path, Head]) -> None:
    path, head = old
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    with Ledger.open(path, read_only=True, head=head) as ledger:
        same(ledger, head)
        with pytest.raises(StorageError, match="readonly"):
            ledger.reserve(0.001, run="a", round=0)
    after = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    after.pop("ledger.sqlite-shm", None)  # the log's index is made by whoever reads the log
    assert after == before


def test_it_is_brought_up_to_date_as_a_whole_or_not_at_all(
    old: tuple[Path, Head], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, head = old
    from bgtplanner.privacy import _journal as journal

    real = journal._note
    for failing in range(1, 10):
        count = 0

        def note(connection: sqlite3.Connection, row: journal.Row) -> None:
            nonlocal count
            count += 1
            if count > failing:  # noqa: B023
                raise OSError("the machine stopped here")
            real(connection, row)

        with monkeypatch.context() as patch:
            patch.setattr(journal, "_note", note)
            with pytest.raises(OSError, match="stopped here"):
                Ledger.open(path)
        connection = sqlite3.connect(path)
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        connection.close()
        assert tables == {"rows", "secret"}
    with Ledger.open(path, head=head) as ledger:
        same(ledger, head)


def test_one_that_is_in_use_by_an_earlier_version_is_left_alone(
    old: tuple[Path, Head], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, head = old
    from bgtplanner.privacy import _journal as journal

    monkeypatch.setattr(journal, "_WAIT_SECONDS", 0.01)
    other = sqlite3.connect(path)
    assert other.execute("SELECT count(*) FROM rows").fetchone() == (10,)
    with pytest.raises(StorageError, match="another process has"):
        Ledger.open(path)
    assert other.execute("PRAGMA user_version").fetchone() == (1,)
    other.close()
    with Ledger.open(path) as ledger:
        same(ledger, head)


def test_a_lost_log_of_an_earlier_version_is_found_by_who_knows_the_head(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    shutil.copy(ASSETS / "ledger-schema1-killed.sqlite", path)  # without its log
    head = Head.parse(HEADS["ledger-schema1-killed"])
    with pytest.raises((LedgerError, LedgerTamperedError)):
        Ledger.open(path, head=head)


# ---- schema 2, and the rule for every schema


def test_a_ledger_of_schema_2_opens_with_the_same_balances_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    shutil.copy(ASSETS / "ledger-schema2.sqlite", path)
    head = Head.parse("87:921530cd20d46974f741dd5dc63c15f2c012a12f353316250c7a6f8e61eec712")
    spent = [
        [6871947673600, 13194139533312, 23364622090240, 14843406974976, 6871947673600],
        [375809638400, 1451698946048, 4900557684736, 1571958030336, 410169376768],
    ]
    before = path.read_bytes()
    for read_only in (True, False):
        with Ledger.open(path, head=head, read_only=read_only) as ledger:
            assert ledger.spent().tolist() == spent
            assert ledger.left().tolist() == [0.609375, 1.25, 2.671875, 1.15625, 0.609375]
            assert ledger.epsilon_spent().tolist() == [0.390625, 0.75, 1.328125, 0.84375, 0.390625]
            assert (ledger.head, ledger.unsettled) == (head, 2)
            assert ledger.check_head(Head(9, bytes(range(32)))) is None  # a loss was stated
            assert (ledger.newest_round("classes"), ledger.newest_round("second")) == (39, 1)
            assert ledger.verify(head) == 88
        assert path.read_bytes() == before
    with Ledger.open(path) as ledger:
        mark = ledger.fingerprint(b"public inputs")
        again = ledger.reserve(
            np.array([0, 0.25, 0.5])[ledger.budgets.class_of_client],
            run="first",
            round=1,
            fingerprint=mark,
        )
        assert (again.replayed.sum(), again.number, ledger.head) == (3, 83, head)
        ledger.settle(again)
        ledger.settle(ledger.reserve(0.125, run="third", round=0))
    with Ledger.open(path, head=head, rebuild=True) as ledger:
        assert (ledger.head.number, ledger.unsettled) == (90, 1)
        assert ledger.left()[2] == 2.671875 - 0.125
        assert ledger.verify() == 91


def test_rows_of_every_form_say_the_same_as_when_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    shutil.copy(ASSETS / "ledger-c051004.sqlite", path)
    head = Head.parse("145:e3235ced792db6d7571ed8b3543677ce470509f6e2d03b6720d748713f9ae507")
    for rebuild in (False, True):
        with Ledger.open(path, head=head, rebuild=rebuild) as ledger:
            assert ledger.spent().sum(axis=1).tolist() == [10728991514165248, 1371005394092032]
            assert ledger.left()[:3].tolist() == [2.796142578125, 6.8466796875, 13.817626953125]
            assert ledger.left().sum() == 3118.12744140625
            assert (ledger.unsettled, ledger.neighbours) == (4, "replace-special")
            assert ledger.verify(head) == 146
            paid = [(row.get("clients"), row.get("charge_most")) for row in ledger.history()]
            assert [entry[0] for entry in paid[3:6]] == [267, None, 400]
            assert [entry[0] for entry in paid[-6:]] == [None, 400, 133, 130, 266, None]
            even = np.array([1 / 64, 0, 1 / 32])[ledger.budgets.class_of_client]
            again = ledger.reserve(even, run="even", round=7, fingerprint=ledger.fingerprint(b"7"))
            assert (again.replayed.sum(), ledger.head) == (267, head)


def test_a_ledger_of_schema_3_knows_who_is_who(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    shutil.copy(ASSETS / "ledger-schema3.sqlite", path)
    head = Head.parse("10:7eca288a2eecf9e1cb64548657d8808e9dbcbfe2e934c74fdd9205511037c6bf")
    before = path.read_bytes()
    for read_only in (True, False):
        with Ledger.open(path, head=head, read_only=read_only) as ledger:
            assert (ledger.spent() / 2**38).tolist() == [[13.0, 13.0, 17.0, 5.0, 3.0, 5.0]]
            assert (ledger.head, ledger.unsettled, ledger.verify(head)) == (head, 1, 11)
            labels = ("ann", "bob", "kid", "eve", "zoe", "7", "max")
            assert [ledger.place(one) for one in labels] == [0, 1, 1, 2, 3, 4, 5]
            assert not ledger.gone.any()
        assert path.read_bytes() == before
    with Ledger.open(path) as ledger:
        mark = ledger.fingerprint(b"first")
        again = ledger.reserve(0.125, run="first", round=0, fingerprint=mark, clients=[0, 1, 2])
        assert (again.replayed.sum(), ledger.head) == (3, head)
        ledger.leave("kid")
        assert ledger.join(["new", "ann"]).tolist() == [6, 0]
    with Ledger.open(path, head=head, rebuild=True) as ledger:
        assert (ledger.gone.sum(), ledger.verify()) == (1, 13)
        assert (ledger.spent()[0, 6] / 2**38) == 1.0, "a loss was stated: who is new may be old"


def test_every_schema_has_a_ledger_among_the_assets() -> None:
    found = {}
    for path in ASSETS.glob("ledger-schema*.sqlite"):
        connection = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)
        (found[path.name],) = connection.execute("PRAGMA user_version").fetchone()
        connection.close()
    assert {f"ledger-schema{number}.sqlite": number for number in range(1, SCHEMA + 1)} == {
        name: number for name, number in found.items() if "killed" not in name
    }
