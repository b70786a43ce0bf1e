"""Who joins a ledger, who leaves, and who comes back: nobody gets a fresh budget."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from bgtplanner import Budget, Budgets, Ledger
from bgtplanner.errors import BudgetExceeded, LedgerError, LedgerTamperedError
from bgtplanner.privacy._rows import Joining, pack, places_left

RULE = "laplace/basic"


def nobody(*epsilons: float) -> Budgets:
    classes = tuple(Budget(epsilon, 1e-5) for epsilon in epsilons or (1.0,))
    return Budgets(classes, np.zeros(0, dtype=np.int32))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "people.sqlite"


def schema_of(path: Path) -> int:
    connection = sqlite3.connect(path)
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    connection.close()
    return int(found)


def pay(ledger: Ledger, charge: float, round_: int, **how: object) -> list[float]:
    ledger.settle(ledger.reserve(charge, run="a", round=round_, **how))  # type: ignore[arg-type]
    return ledger.left().tolist()


def test_a_label_has_its_place_in_whatever_order_people_come(path: Path) -> None:
    with Ledger.create(path, nobody(), RULE) as ledger:
        assert (schema_of(path), len(ledger), ledger.named) == (2, 0, True)
        assert ledger.join(["ann", "bob", 7]).tolist() == [0, 1, 2]
        assert schema_of(path) == 3
        head = ledger.head
        assert ledger.join(["7", "ann", "bob"]).tolist() == [2, 0, 1]
        assert ledger.head == head, "nobody is new: nothing is written"
        assert pay(ledger, 0.25, 0, clients=[0, 2]) == [0.75, 1.0, 0.75]
        assert ledger.join(["zoe", "bob"]).tolist() == [3, 1]
        assert ledger.left().tolist() == [0.75, 1.0, 0.75, 1.0]
        assert pay(ledger, 0.25, 1) == [0.5, 0.75, 0.5, 0.75]
    for rebuild in (False, True):
        with Ledger.open(path, rebuild=rebuild) as ledger:
            assert ledger.left().tolist() == [0.5, 0.75, 0.5, 0.75]
            assert [ledger.place(one) for one in ("zoe", "ann", "eve")] == [3, 0, None]
            assert ledger.spending("a", 1).left().tolist() == [0.75, 1.0, 0.75, 1.0]
            assert ledger.verify() == 7
        assert schema_of(path) == 3
    assert b"ann" not in path.read_bytes()


def test_who_leaves_and_comes_back_has_no_fresh_budget(path: Path) -> None:
    with Ledger.create(path, nobody(), RULE) as ledger:
        ledger.join(["ann", "bob"])
        pay(ledger, 0.75, 0)
        ledger.leave("ann")
        head = ledger.head
        ledger.leave("ann", 0)
        assert ledger.head == head
        assert (ledger.gone.tolist(), ledger.left().tolist()) == ([True, False], [0.0, 0.25])
        with pytest.raises(BudgetExceeded):
            ledger.reserve(0.125, run="a", round=1, clients=[0])
        assert pay(ledger, 0.125, 1) == [0.0, 0.125]
        with pytest.raises(LedgerError, match="nobody"):
            ledger.leave("eve")
    with Ledger.open(path) as ledger:
        assert ledger.gone.tolist() == [True, False]
        assert ledger.join(["bob", "eve", "ann"]).tolist() == [1, 2, 0]
        assert ledger.left().tolist() == [0.25, 0.125, 1.0]
        rows = [{**row} for row in ledger.history() if row["kind"] in ("join", "leave")]
        told = [(row.get("joined"), row.get("returned"), row.get("left")) for row in rows]
        assert told == [(2, 0, None), (None, None, 1), (1, 1, None)]


def test_users_of_one_client_share_its_place(path: Path) -> None:
    with Ledger.create(path, nobody(), RULE) as ledger:
        assert ledger.join(["ann", "bob", "eve"], [0, 0, 1]).tolist() == [0, 1]
        assert ledger.join(["eve", "kid", "bob"], [0, 1, 1]).tolist() == [1, 0]
        assert ledger.place("kid") == ledger.place("ann") == 0
        for labels, clients in ((["ann", "eve"], [0, 0]), (["ann", "bob"], [0, 1])):
            with pytest.raises(LedgerError, match="moved"):
                ledger.join(labels, clients)


def test_a_newcomer_after_a_loss_may_be_one_of_those_who_were_lost(path: Path) -> None:
    backup = path.with_name("backup.sqlite")
    with Ledger.create(path, nobody(), RULE) as ledger:
        ledger.join(["ann"])
        shutil.copy(path, backup)
        ledger.join(["bob"])
        pay(ledger, 0.5, 0)
        head = ledger.head
    with Ledger.open(backup, rebuild=True) as ledger:
        ledger.state_loss(head, 0.5)
        assert ledger.join(["bob"]).tolist() == [1]
        assert ledger.left().tolist() == ledger.spending("b").left().tolist() == [0.5, 0.5]
        pay(ledger, 0.125, 3)
        assert ledger.spending("a", 2).left().tolist() == [0.5, 0.5]


def test_nobody_joins_while_arrays_of_the_size_before_are_in_use(path: Path) -> None:
    Ledger.create(path, nobody(), RULE).join(["ann"])
    with Ledger.open(path) as first, Ledger.open(path) as second:
        second.join(["bob"])
        with pytest.raises(LedgerError, match="open it again"):
            first.reserve(0.125, run="a", round=0)
    lower = Budgets.same(Budget(0.5, 1e-5), clients=2)
    with Ledger.open(path, budgets=lower) as ledger:
        with pytest.raises(LedgerError, match="open it again"):
            ledger.join(["eve"])
        assert ledger.join(["bob"]).tolist() == [1]
        assert ledger.verify() == 3


def test_a_ledger_in_memory_remembers_who_joined() -> None:
    ledger = Ledger.in_memory(nobody(), RULE)
    ledger.join(["ann", "bob"])
    ledger.leave("bob")
    again = Ledger.from_state(ledger.state_dict())
    assert (again.join(["bob", "ann"]).tolist(), again.gone.any()) == ([1, 0], False)
    assert Ledger.in_memory(Budgets.same(Budget(1.0, 1e-5), clients=2), RULE).named is False


MARKS = [bytes(16)]


@pytest.mark.parametrize(
    "payload",
    [
        pack({"class": 1, "new": 1, "back": 0, "labels": 1}, bytes(16) + b"\2\0\0\0"),
        pack({"class": 0, "new": -1, "back": 0, "labels": 1}, bytes(16) + bytes(4)),
        pack({"class": 0, "new": 0, "back": 0, "labels": 1}, bytes(16) + b"\2\0\0\0"),
        pack({"class": 0, "new": 1, "back": 0, "labels": 1}, bytes(16) + b"\1\0\0\0"),
        pack({"class": 0, "new": 1, "back": 0, "labels": 1}, bytes(19)),
        pack({"class": 0, "new": 1, "labels": 1}, bytes(16) + b"\2\0\0\0"),
    ],
)
def test_who_joins_as_nobody_can_is_refused(payload: bytes) -> None:
    with pytest.raises(LedgerTamperedError):
        Joining.unpacked(payload, size=2, classes=1)
    with pytest.raises(LedgerTamperedError):
        places_left(pack({"places": 1}, b"\2\0\0\0"), size=2)


def test_what_was_written_is_read_again() -> None:
    row = Joining(0, 1, 0, MARKS, np.array([2], dtype=np.int32))
    again = Joining.unpacked(row.packed(), size=2, classes=1)
    assert again[:4] == row[:4]
    assert again.places.tolist() == [2]
