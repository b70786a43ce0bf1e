"""Budgets and ledgers on a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Console

from bgtplanner.privacy.accountants import both_readings, from_ticks
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.report.terminal import print_table
from bgtplanner.text import Table


def quotes_view(console: Console, rounds: int, quotes: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the noise of a round under every accountant, and what it amounts to."""
    keys = ("noise_multiplier", "charge", "capacity", "epsilon", "epsilon_other_reading")
    heads = ["accountant", "noise", "charge", "capacity", "epsilon", "other"]
    note = [
        "noise: its scale over the sensitivity of a round, which is the clip",
        "  (replace-special: against nothing) or twice it (replace-one: another's data).",
        f"epsilon: of {rounds:,} rounds; other: under the other relation, at most.",
    ]
    rows = []
    for name, quote in quotes.items():
        texts = ["–" if quote[key] is None else f"{quote[key]:.4g}" for key in keys]
        if (at := quote.get("at_noise_multiplier")) is not None:
            texts += [f"{at['rounds_affordable']:,}", f"{at['epsilon']:.4g}"]
        rows.append(("", [name + ("" if quote["sound"] else " (!)"), *texts]))
    if rows and len(rows[0][1]) > len(heads):
        heads += ["rounds", "epsilon"]
        note.append("rounds, epsilon: how many rounds the budget pays for with your noise,")
        note.append(f"and what {rounds:,} of them amount to.")
    if any(not quote["sound"] for quote in quotes.values()):
        note.append("(!) promises nothing: what the authors booked, for comparison only.")
    print_table(console, Table("", heads, rows))
    console.print("\n".join(note), highlight=False, markup=False)


def ledger_facts(ledger: Ledger) -> dict[str, Any]:
    """Return what a ledger says, class by class, as plain values."""
    spent, left, epsilon = ledger.spent(), ledger.left(), ledger.epsilon_spent()
    accountant, other = ledger.accountant, ledger.epsilon_other_reading()
    classes = []
    for index, budget in enumerate(ledger.budgets.classes):
        members = np.flatnonzero(ledger.budgets.class_of_client == index)
        if not len(members):
            continue
        unknown = np.isnan(other[members]).any()
        classes.append(
            {
                "epsilon": budget.epsilon,
                "delta": budget.delta,
                "clients": len(members),
                "epsilon_other_reading": accountant.other_promise(budget, ledger.neighbours),
                "capacity": accountant.capacity(budget),
                "spent_most": float(from_ticks(spent[0, members].max())),
                "left_least": float(left[members].min()),
                "left_most": float(left[members].max()),
                "epsilon_spent_median": float(np.median(epsilon[members])),
                "epsilon_spent_most": float(epsilon[members].max()),
                "epsilon_spent_other_reading": None if unknown else float(other[members].max()),
                "exhausted": int((left[members] <= 0).sum()),
            }
        )
    return {
        "rule": accountant.name,
        "neighbours": ledger.neighbours,
        "sound": accountant.sound,
        "clients": len(ledger),
        "head": str(ledger.head),
        "unsettled": ledger.unsettled,
        "classes": classes,
    }


def ledger_view(console: Console, facts: Mapping[str, Any], history: list[dict[str, Any]]) -> None:
    """Print what a ledger promises and has spent, class by class, and its latest rounds."""
    promise = "promised" if facts["sound"] else "booked (no promise)"
    lines = [
        f"{facts['clients']:,} clients, accountant {facts['rule']}, head {facts['head'][:20]}…"
    ]
    for of in facts["classes"]:
        means = both_readings(of["epsilon"], facts["neighbours"], of["epsilon_other_reading"])
        most, median = of["epsilon_spent_most"], of["epsilon_spent_median"]
        lines += [
            f"({of['epsilon']:g}, {of['delta']:g}) {promise} to {of['clients']:,} clients",
            *(f"  {line}" for line in means.replace("; ", ";\n").split("\n")),
            f"  spent: epsilon {most:.4g} at most, {median:.4g} median",
            f"  left: a charge of {of['left_least']:.4g} at least; {of['exhausted']:,} clients "
            "have no budget left",
        ]
    if facts["unsettled"]:
        lines.append(f"{facts['unsettled']} reservations were never settled; they count as spent")
    console.print("\n".join(lines), highlight=False, markup=False)
    reserves = [entry for entry in history if entry["kind"] in ("reserve", "loss")]
    rows = []
    for entry in reserves[-10:]:
        name = entry["run"] if entry["kind"] == "reserve" else "(stated loss)"
        cells = [entry["number"], name, entry.get("round", ""), entry.get("clients", "all")]
        cells += [f"{entry['charge_most']:.4g}", "yes" if entry.get("settled") else "no"]
        rows.append(("", [str(cell) for cell in cells]))
    if rows:
        title = f"the last {len(rows)} of {len(reserves)} reservations:"
        columns = ["row", "run", "round", "clients", "charge", "settled"]
        print_table(console, Table(title, columns, rows))
