"""Opening costs the same after sixty thousand requests as after sixty, and is checked as well."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgtplanner.errors import LedgerTamperedError, StaleRoundError
from bgtplanner.privacy import ledger as module
from bgtplanner.privacy._journal import Journal
from bgtplanner.privacy._rows import Head
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import SNAPSHOT_EVERY, Ledger
from privacy.ledgers import edited

BUDGETS = Budgets((Budget(9.0), Budget(5.0), Budget(7.0)), np.array([0, 2, 2, 0]))  # 1: nobody
RULE = "laplace/either"
MARK = b"m" * 32


def fill(ledger: Ledger, rounds: range, run: str = "run") -> None:
    """Rounds of every kind; some are never settled."""
    for number in rounds:
        options: dict[str, Any] = [
            {"charge": 0.001},
            {"charge": np.array([0.001, 0.0, 0.002])[ledger.budgets.class_of_client]},
            {"charge": 0.001, "clients": [number % 4]},
            {"charge": [0.001, 0.002, 0.003, 0.004], "fingerprint": MARK},
        ][number % 4]
        reservation = ledger.reserve(**options, run=run, round=number, rising=True)
        if number % 3:
            ledger.settle(reservation)


def facts(ledger: Ledger) -> dict[str, Any]:
    return {
        "spent": ledger.spent().tolist(),
        "left": ledger.left().tolist(),
        "epsilon": ledger.epsilon_spent().tolist(),
        "unsettled": ledger.unsettled,
        "head": ledger.head,
    }


def steps(path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many steps SQLite takes to open a ledger, reserve, settle and look up a round."""
    count = 0

    def counted() -> int:
        nonlocal count
        count += 1
        return 0

    real = sqlite3.connect

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = real(*arguments, **options)
        connection.set_progress_handler(counted, 1)
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", connect)
        with Ledger.open(path) as ledger:
            newest = ledger.newest_round("run")
            assert newest is not None
            reservation = ledger.reserve(
                0.001, run="run", round=newest + 1, rising=True, fingerprint=MARK
            )
            ledger.settle(reservation)
            ledger.reserve(0.001, run="run", round=newest + 1, fingerprint=MARK)
    return count


def test_an_answer_costs_no_more_after_many_requests(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = {}
    for rounds in (2 * SNAPSHOT_EVERY, 40 * SNAPSHOT_EVERY):
        file = path.with_name(f"{rounds}.sqlite")
        with Ledger.create(file, Budgets.same(Budget(1e5), 1), RULE) as ledger:
            ledger._journal._connection.execute(  # type: ignore[attr-defined]
                "PRAGMA synchronous = OFF"
            )
            for number in range(rounds):
                ledger.reserve(1e-6, run="run", round=number)
        taken[rounds] = max(steps(file, monkeypatch) for _ in range(SNAPSHOT_EVERY // 2 + 2))
    few, many = taken.values()
    assert 0 < few < 10_000
    assert many <= few + 100  # a b-tree is a little higher


def test_few_rows_are_read_and_all_is_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SNAPSHOT_EVERY", 10)
    made = Ledger.create(path, BUDGETS, RULE)
    fill(made, range(60))
    made.state_loss(Head(99, bytes(32)), 0.01)
    fill(made, range(60, 75))
    read: list[int] = []
    real = Journal.rows

    def rows(self: Journal, start: int = 0) -> Any:
        for row in real(self, start):
            read.append(row.number)
            yield row

    monkeypatch.setattr(Journal, "rows", rows)
    with Ledger.open(path) as again:
        assert len(read) <= 11
        assert facts(again) == facts(made)
        assert again.check_head(Head(99, bytes(32))) is None  # forgiven before the snapshot
        assert again.newest_round("run") == 74
        reservation = again.reserve(
            [0.001, 0.002, 0.003, 0.004], run="run", round=3, fingerprint=MARK
        )
        assert reservation.replayed.all()
        with pytest.raises(StaleRoundError):
            again.reserve(0.001, run="run", round=74, rising=True)
        assert len(read) <= 11
        assert again.verify() == again.head.number + 1
    assert facts(made)["unsettled"] == 25
    made.close()


def test_a_lowered_budget_goes_with_any_snapshot(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SNAPSHOT_EVERY", 6)
    Ledger.create(path, BUDGETS, RULE).close()
    lowered = Budgets((Budget(3.0), Budget(4.0)), np.array([1, 0, 1, 0]))  # other classes, too
    first = Ledger.open(path)
    for start in range(0, 40, 4):
        with Ledger.open(path, budgets=lowered) as ledger:
            fill(ledger, range(start, start + 2))
        fill(first, range(start + 2, start + 4))
    with Ledger.open(path) as again, Ledger.open(path, budgets=lowered) as less:
        assert facts(again) == facts(first)
        assert (less.spent() == first.spent()).all()
        assert less.verify() == again.verify()
    first.close()


@pytest.fixture
def long(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A closed ledger with a snapshot in the middle."""
    monkeypatch.setattr(module, "SNAPSHOT_EVERY", 12)
    with Ledger.create(path, BUDGETS, RULE) as ledger:
        fill(ledger, range(20))
        at = ledger._journal.snapshot()
        assert at is not None
        assert 12 <= at.number < ledger.head.number
    return path


EDITS = [
    "UPDATE snapshot SET number = number - 1",
    "UPDATE snapshot SET hash = x'00'",
    "UPDATE snapshot SET hash = (SELECT hash FROM rows WHERE number = 3)",
    "UPDATE snapshot SET number = 3, hash = (SELECT hash FROM rows WHERE number = 3)",
    "UPDATE snapshot SET state = x'00'",
    "UPDATE snapshot SET state = CAST(replace(CAST(state AS TEXT), 'by', 'By') AS BLOB)",
    "UPDATE snapshot SET state = substr(state, 1, length(state) - 1)",
    "UPDATE snapshot SET mark = x''",
    "UPDATE snapshot SET mark = zeroblob(32)",
]


@pytest.mark.parametrize("statement", EDITS)
def test_an_edited_snapshot_is_noticed(long: Path, statement: str) -> None:
    opened = Ledger.open(long)
    edited(long, statement)
    message = "the snapshot is not the one that was written: it was edited"
    for read_only in (True, False):
        with pytest.raises(LedgerTamperedError, match=f"^{re.escape(message)}$"):
            Ledger.open(long, read_only=read_only)
    with pytest.raises(LedgerTamperedError, match="edited"):
        opened.verify()
    opened.close()


def test_a_snapshot_of_other_rows_is_noticed_even_with_the_key(long: Path) -> None:
    """Whoever has the key can make a snapshot, and verify compares it with the rows."""
    with Ledger.open(long) as ledger:
        expected = facts(ledger)
        book, journal = ledger._book, ledger._journal
        book.unsettled += 1
        forged = book.snapshot()
        with journal.writing():
            journal.keep_snapshot(forged)
    with Ledger.open(long) as fooled:
        assert fooled.unsettled == expected["unsettled"] + 1
        with pytest.raises(LedgerTamperedError, match="the stored sums do not match the rows"):
            fooled.verify()
    with Ledger.open(long, rebuild=True) as rebuilt:  # the rows are the truth
        assert facts(rebuilt) == expected
        assert rebuilt.verify() == rebuilt.head.number + 1
    with Ledger.open(long) as again:
        assert facts(again) == expected


def test_a_lost_snapshot_costs_time_and_nothing_else(long: Path) -> None:
    with Ledger.open(long) as ledger:
        expected = facts(ledger)
    edited(long, "DELETE FROM snapshot")
    with Ledger.open(long) as ledger:
        assert facts(ledger) == expected
        fill(ledger, range(20, 22))
        kept = ledger._journal.snapshot()
        assert kept is not None
        assert kept.number > 12


def test_a_first_row_with_larger_budgets_is_noticed_though_rows_after_it_are_not_read(
    long: Path,
) -> None:
    """Its hash is right; that the next row does not follow it, nobody looks at when opening."""
    connection = sqlite3.connect(long)
    (key,) = connection.execute("SELECT key FROM secret").fetchone()
    connection.close()
    from bgtplanner.privacy._book import first_row
    from bgtplanner.privacy.accountants import accountant_named

    richer = Budgets(tuple(Budget(99.0) for _ in range(3)), BUDGETS.class_of_client)
    row = first_row(richer, accountant_named(RULE), key)
    edited(long, "UPDATE rows SET payload = ?, hash = ? WHERE number = 0", row.payload, row.hash)
    with pytest.raises(LedgerTamperedError, match="the snapshot is not the one"):
        Ledger.open(long)


def test_rows_up_to_the_snapshot_are_missed_at_once(long: Path) -> None:
    with Ledger.open(long) as ledger:
        at = ledger._journal.snapshot()
    assert at is not None
    edited(long, "DELETE FROM rows WHERE number = ?", at.number)
    message = f"row {at.number}, where the last snapshot was taken, is not in this ledger"
    with pytest.raises(LedgerTamperedError, match=f"^{message}"):
        Ledger.open(long)


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM reservations WHERE number = 1",
        "UPDATE reservations SET round = 99 WHERE number = 1",
        "UPDATE reservations SET fingerprint = x'01' WHERE number = 1",
        "INSERT INTO reservations VALUES ('run', 5, 3, 2, x'')",
        "INSERT INTO unsettled VALUES (2)",
        "DELETE FROM unsettled WHERE number = (SELECT max(number) FROM unsettled)",
    ],
)
def test_an_index_that_is_not_what_the_rows_say_is_found_by_verify(
    long: Path, statement: str
) -> None:
    edited(long, statement)
    with (
        Ledger.open(long, read_only=True) as ledger,
        pytest.raises(LedgerTamperedError, match="the index of reservations does not match"),
    ):
        ledger.verify()
    with Ledger.open(long, rebuild=True) as ledger:
        ledger.verify()


def test_an_index_that_points_elsewhere_repeats_nothing(long: Path) -> None:
    """What the index names is looked up in the chain: a wrong one costs a charge at most."""
    with Ledger.open(long) as ledger:
        own = [0.001, 0.002, 0.003, 0.004]
        number = ledger.reserve(own, run="run", round=3, fingerprint=MARK).number
    edited(long, "UPDATE reservations SET round = 77 WHERE number = ?", number)
    with Ledger.open(long) as ledger:
        for asked in (77, 3):
            reservation = ledger.reserve(own, run="run", round=asked, fingerprint=MARK)
            assert not reservation.replayed.any()
    settle = "(SELECT min(number) FROM rows WHERE kind = 'settle')"
    edited(long, f"UPDATE reservations SET number = {settle} WHERE number = ?", reservation.number)
    with (
        Ledger.open(long) as ledger,
        pytest.raises(LedgerTamperedError, match="which the index lists, is not a reservation"),
    ):
        ledger.reserve(own, run="run", round=3, fingerprint=MARK)
