"""A ledger and quotes on a terminal of 80 columns."""

from __future__ import annotations

from typing import Any

import pytest

from bgtplanner import Budget, Budgets, Ledger
from bgtplanner.commands.ledger import ledger_facts, ledger_view
from bgtplanner.report.terminal import as_text
from bgtplanner.text import Table


def printed(view: Any, *arguments: Any) -> str:
    parts = [as_text([of]) if isinstance(of, Table) else of for of in view(*arguments)]
    assert max(map(len, "\n".join(parts).splitlines())) <= 80
    return "\n".join(parts)


def test_a_client_with_nothing_left_is_exhausted() -> None:
    """Nothing left is not less than nothing."""
    budgets = Budgets.same(Budget(5, 1e-5), clients=3)
    ledger = Ledger.in_memory(budgets, "gaussian/gdp")
    whole = ledger_facts(ledger)["classes"][0]["capacity"]
    assert ledger_facts(ledger)["classes"][0]["exhausted"] == 0
    for charge in (whole, whole / 4):
        which = [charge == whole, charge != whole, False]
        ledger.settle(ledger.reserve(charge, run="x", round=0 if which[0] else 1, clients=which))
    facts = ledger_facts(ledger)
    (entry,) = facts["classes"]
    assert entry["left_least"] == 0
    assert (entry["exhausted"], entry["clients"]) == (1, 3)
    assert entry["left_most"] == pytest.approx(whole)
    assert entry["spent_most"] == pytest.approx(whole)
    assert entry["epsilon_spent_most"] == pytest.approx(5, abs=1e-3)
    assert 0 < entry["epsilon_spent_median"] < entry["epsilon_spent_most"]
    text = printed(ledger_view, facts)
    assert "a charge of 0 at least; 1 clients have no budget left" in text
