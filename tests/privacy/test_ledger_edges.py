"""Edges of the ledger: single ticks, single classes, repeated inputs, and writers in between."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgtplanner.errors import LedgerError, LedgerTamperedError
from bgtplanner.privacy._book import Book, first_row
from bgtplanner.privacy._rows import Head, Row, pack
from bgtplanner.privacy.accountants import accountant_named
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Ledger

BUDGETS = Budgets((Budget(1.0), Budget(2.0)), np.array([0, 0, 1]))
BASIC = accountant_named("laplace/basic")
KEY = bytes(32)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger.in_memory(BUDGETS, "laplace/basic")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.sqlite"
    Ledger.create(path, BUDGETS, "laplace/basic").close()
    return path


# ---- charges


def test_the_first_row_is_no_reservation_that_could_be_settled(ledger: Ledger) -> None:
    reservation = ledger.reserve(0.25, run="a", round=0)
    with pytest.raises(LedgerError, match="this ledger has no reservation 0"):
        ledger.settle(dataclasses.replace(reservation, number=0))
    assert ledger.unsettled == 1
    ledger.settle(dataclasses.replace(reservation, number=-1))  # nobody was asked
    assert ledger.unsettled == 1


# ---- the same inputs again


def test_an_attempt_at_the_same_charge_is_found_behind_one_at_another(ledger: Ledger) -> None:
    mark = ledger.fingerprint(b"inputs")
    ledger.reserve(0.5, run="a", round=0, fingerprint=mark)
    second = ledger.reserve(0.25, run="a", round=0, fingerprint=mark)
    again = ledger.reserve(0.25, run="a", round=0, fingerprint=mark)
    assert again.replayed.all()
    assert (again.attempt, again.number) == (1, second.number)
    assert ledger.left().tolist() == [0.25, 0.25, 1.25]


# ---- others who write meanwhile


def test_a_row_written_while_all_are_verified_is_no_damage(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger.open(path) as first, Ledger.open(path) as second:
        first.reserve(0.25, run="a", round=0)
        real = first._journal.rows

        def rows(*start: int) -> Any:
            if not start:  # all of them, after the newest were read
                second.reserve(0.25, run="a", round=1)
            return real(*start)

        with monkeypatch.context() as patch:
            patch.setattr(first._journal, "rows", rows)
            patch.setattr(first._journal, "check", lambda: None)
            assert first.verify() == 2
        assert first.verify() == 3


def test_a_row_written_after_the_newest_was_looked_up_is_no_damage(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger.open(path) as first, Ledger.open(path) as second:
        real = first._journal.newest

        def newest() -> Head | None:
            found = real()
            second.reserve(0.25, run="a", round=0)
            return found

        with monkeypatch.context() as patch:
            patch.setattr(first._journal, "newest", newest)
            first.state_dict()
        assert first.head == second.head


# ---- losses


def test_a_loss_of_unknown_size_is_at_least_one() -> None:
    ledger = Ledger.in_memory(Budgets.same(Budget(0.5), clients=2), "laplace/basic")
    ledger.state_loss(Head(7, bytes(32)))
    assert [entry.get("charge_most") for entry in ledger.history()] == [None, 1.0]
    assert ledger.left().tolist() == [0.0, 0.0]


def book_and_loss(**about: Any) -> tuple[Book, Row]:
    book = Book(first_row(BUDGETS, BASIC, KEY), KEY)
    return book, Row.after(book.head, "loss", "", 0, pack(about))


@pytest.mark.parametrize("about", [{"ticks": 5}, {"head": str(Head(7, bytes(32)))}])
def test_a_loss_that_lacks_a_part_is_refused(about: dict[str, Any]) -> None:
    book, row = book_and_loss(**about)
    with pytest.raises(LedgerTamperedError, match="row 1 cannot be read"):
        book.read(row)


# ---- snapshots under other classes
