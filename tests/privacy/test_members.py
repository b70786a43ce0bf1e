"""Who joins a ledger, who leaves, and who comes back: nobody gets a fresh budget."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from bgtplanner import Budget, Budgets, Ledger
from bgtplanner.errors import BudgetExceeded, LedgerError, LedgerTamperedError
from bgtplanner.privacy._journal import Journal
from bgtplanner.privacy._rows import Row, members_of, pack, pack_members

RULE = "laplace/basic"


def nobody() -> Budgets:
    return Budgets((Budget(1.0, 1e-5),), np.zeros(0, dtype=np.int32))


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
        assert (schema_of(path), len(ledger)) == (2, 0)
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
        ledger.leave("ann", 0)
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
        assert ledger.join([("ann", "bob"), "eve"]).tolist() == [0, 1]
        assert ledger.join(["eve", ("kid", "bob")]).tolist() == [1, 0]
        assert ledger.place("kid") == ledger.place("ann") == 0
        for clients in ([("ann", "eve")], ["ann", "bob"], ["new", ("x", "new")]):
            with pytest.raises(LedgerError, match="moved"):
                ledger.join(clients)


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


def test_nobody_joins_while_other_budgets_are_in_force(path: Path) -> None:
    Ledger.create(path, nobody(), RULE).join(["ann"])
    lower = [Budgets.same(Budget(0.5, 1e-5), clients=number) for number in (1, 2)]
    with Ledger.open(path, budgets=lower[0]) as first, Ledger.open(path) as second:
        second.join(["bob"])
        with pytest.raises(LedgerError, match="open it again"):
            first.reserve(0.125, run="a", round=0)
    with Ledger.open(path, budgets=lower[1]) as ledger:
        with pytest.raises(LedgerError, match="open it again"):
            ledger.join(["eve"])
        assert ledger.join(["bob"]).tolist() == [1]
        assert ledger.verify() == 3


@pytest.mark.parametrize(
    "payload",
    [
        pack_members({}, [-1], [bytes(16)]),
        pack_members({}, [2, 4], [bytes(16), bytes(16)]),
        pack_members({}, [1, 1], [bytes(16)]),
        pack_members({}, [1], [bytes(15)]),
        pack_members({}, [], []),
        pack({"places": 2}, bytes(4)),
    ],
)
def test_who_joins_as_nobody_can_is_refused(payload: bytes) -> None:
    with pytest.raises(LedgerTamperedError):
        members_of(payload, size=2)


def test_a_ledger_in_memory_remembers_who_joined_and_refuses_who_did_not() -> None:
    made = Ledger.in_memory(nobody(), RULE)
    made.join(["ann"])
    assert Ledger.from_state(made.state_dict()).place("ann") == 0
    rows = list(made._journal.rows())
    mark = made._mark_of("ann")
    for kind, payload in (
        ("join", pack_members({}, [1], [mark])),
        ("join", pack_members({}, [0], [])),
        ("leave", pack_members({}, [1], [])),
    ):
        forged = Row.after(made.head, kind, "", 0, payload)
        with pytest.raises(LedgerTamperedError):
            Ledger(Journal.in_memory([*rows, forged], made._journal.key))
