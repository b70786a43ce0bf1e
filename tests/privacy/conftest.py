"""Ledgers to test with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bgtplanner.privacy.budget import Budgets
from bgtplanner.privacy.ledger import Ledger


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite"


@pytest.fixture(params=["memory", "file"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Ledger]]:
    """Makes ledgers of either kind and closes them."""
    made: list[Ledger] = []

    def ledger(budgets: Budgets, accountant: str = "laplace/basic") -> Ledger:
        if request.param == "memory":
            made.append(Ledger.in_memory(budgets, accountant))
        else:
            made.append(Ledger.create(tmp_path / f"{len(made)}.sqlite", budgets, accountant))
        return made[-1]

    yield ledger
    for one in made:
        one.close()
