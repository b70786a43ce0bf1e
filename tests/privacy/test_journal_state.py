"""The state of a ledger in memory: every value is read strictly, or the state is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from bgtplanner.errors import LedgerTamperedError
from bgtplanner.privacy._journal import Journal
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Ledger


@pytest.fixture(scope="module")
def state() -> dict[str, Any]:
    ledger = Ledger.in_memory(Budgets.same(Budget(1.0), clients=2), "laplace/basic")
    ledger.settle(ledger.reserve(0.25, run="a", round=0))
    return ledger.state_dict()


def test_it_is_read_as_it_was_written(state: dict[str, Any]) -> None:
    assert Journal.from_state(state).state_dict()["rows"] == state["rows"]
    assert Ledger.from_state(state).left().tolist() == [0.75, 0.75]


@pytest.mark.parametrize("stray", ["!", "\n", " ", "-"])
def test_a_stray_sign_in_key_or_payload_is_refused(state: dict[str, Any], stray: str) -> None:
    changed = copy.deepcopy(state)
    changed["key"] = stray + changed["key"]
    with pytest.raises(LedgerTamperedError, match="the state cannot be read"):
        Journal.from_state(changed)
    changed = copy.deepcopy(state)
    changed["rows"][1][4] = stray + changed["rows"][1][4]
    with pytest.raises(LedgerTamperedError, match="the state cannot be read"):
        Journal.from_state(changed)


@pytest.mark.parametrize("missing", ["key", "rows"])
def test_a_state_without_one_of_its_parts_is_refused(state: dict[str, Any], missing: str) -> None:
    changed = {name: value for name, value in state.items() if name != missing}
    with pytest.raises(LedgerTamperedError, match="the state cannot be read"):
        Journal.from_state(changed)


@pytest.mark.parametrize("place", range(6))
def test_a_row_with_a_wrong_value_is_refused(state: dict[str, Any], place: int) -> None:
    changed = copy.deepcopy(state)
    del changed["rows"][1][place]
    with pytest.raises(LedgerTamperedError, match="the state cannot be read"):
        Journal.from_state(changed)
    changed = copy.deepcopy(state)
    changed["rows"][1][place] = "ä"
    with pytest.raises(LedgerTamperedError):
        Ledger.from_state(changed)
