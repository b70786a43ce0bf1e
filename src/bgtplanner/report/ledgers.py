"""Budgets and ledgers on a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from bgtplanner.privacy.accountants import from_ticks
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.report.blocks import bar
from bgtplanner.report.screen import words

__all__ = ["ledger_facts", "ledger_view", "quotes_view"]


def quotes_view(console: Console, rounds: int, quotes: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the noise of a round under every accountant, side by side."""
    columns = {
        "noise": "noise_multiplier",
        "charge": "charge",
        "capacity": "capacity",
        "1 round": "epsilon_of_one_round",
        f"{rounds:,}": "epsilon",
        f"{rounds + 1:,}": "epsilon_with_one_more_round",
    }
    given = any("at_noise_multiplier" in quote for quote in quotes.values())
    table = _table(["accountant", *columns, *["rounds", "epsilon"] * given], left="accountant")
    for name, quote in quotes.items():
        texts = [f"{quote[key]:.4g}" for key in columns.values()]
        if given:
            at = quote["at_noise_multiplier"]
            texts += [f"{at['rounds_affordable']:,}", f"{at['epsilon']:.4g}"]
        table.add_row(name + ("" if quote["sound"] else " (!)"), *texts)
    console.print(table)
    lines = [
        "noise: scale over sensitivity (2 x clip) of a round, if all are equal.",
        f"1 round, {rounds:,}, {rounds + 1:,}: epsilon after that many rounds with that noise.",
    ]
    if given:
        lines.append("rounds, epsilon: how many rounds the budget pays for with your noise,")
        lines.append(f"and what {rounds:,} of them amount to.")
    if any(not quote["sound"] for quote in quotes.values()):
        lines.append("(!) promises nothing: what the paper's authors booked, for comparison only.")
    console.print("\n".join(lines), highlight=False, markup=False)


def _table(headings: list[str], left: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == left else "right")
    return table


def ledger_facts(ledger: Ledger) -> dict[str, Any]:
    """Return what a ledger says, class by class, as plain values."""
    spent, left, epsilon = ledger.spent(), ledger.left(), ledger.epsilon_spent()
    classes = []
    for index, budget in enumerate(ledger.budgets.classes):
        members = np.flatnonzero(ledger.budgets.class_of_client == index)
        if not len(members):
            continue
        classes.append(
            {
                "epsilon": budget.epsilon,
                "delta": budget.delta,
                "clients": len(members),
                "capacity": ledger.accountant.capacity(budget),
                "spent_most": float(from_ticks(spent[0, members].max())),
                "left_least": float(left[members].min()),
                "left_most": float(left[members].max()),
                "epsilon_spent_median": float(np.median(epsilon[members])),
                "epsilon_spent_most": float(epsilon[members].max()),
                "exhausted": int((left[members] <= 0).sum()),
            }
        )
    return {
        "rule": ledger.accountant.name,
        "sound": ledger.accountant.sound,
        "clients": len(ledger),
        "head": str(ledger.head),
        "unsettled": ledger.unsettled,
        "classes": classes,
    }


def ledger_view(console: Console, facts: Mapping[str, Any], history: list[dict[str, Any]]) -> None:
    """Print a ledger's facts with one bar per class, and its latest rounds."""
    promise = "promised" if facts["sound"] else "booked (no promise)"
    lines = [
        f"{facts['clients']:,} clients, accountant {facts['rule']}, head {facts['head'][:20]}…"
    ]
    for entry in facts["classes"]:
        share = entry["epsilon_spent_most"] / entry["epsilon"]
        lines += [
            f"({entry['epsilon']:g}, {entry['delta']:g}) {promise} to {entry['clients']:,} "
            "clients",
            f"  spent {bar(share, 30)} epsilon {entry['epsilon_spent_most']:.4g} at most, "
            f"{entry['epsilon_spent_median']:.4g} median",
            f"  left  a charge of {entry['left_least']:.4g} at least; {entry['exhausted']:,} "
            "clients have no budget left",
        ]
    if facts["unsettled"]:
        lines.append(f"{facts['unsettled']} reservations were never settled; they count as spent")
    console.print("\n".join(lines), highlight=False, markup=False)
    reserves = [entry for entry in history if entry["kind"] in ("reserve", "loss")]
    if not reserves:
        return
    table = _table(["row", "run", "round", "clients", "charge", "settled"], left="run")
    for entry in reserves[-10:]:
        lost = entry["kind"] == "loss"
        table.add_row(
            str(entry["number"]),
            "(stated loss)" if lost else words(entry["run"]),
            "" if lost else str(entry["round"]),
            "all" if lost else f"{entry['clients']:,}",
            f"{entry['charge_most']:.4g}",
            "" if lost else "yes" if entry["settled"] else "no",
        )
    console.print(f"the last {min(10, len(reserves))} of {len(reserves)} reservations:")
    console.print(table)
