"""Budgets and ledgers on a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Console

from bgtplanner.privacy.accountants import from_ticks
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.privacy.quotes import both_readings
from bgtplanner.report.facts import Table
from bgtplanner.report.screen import bar, print_table

__all__ = ["ledger_facts", "ledger_view", "quotes_view"]

_SENSITIVITY = {
    "replace-special": "clip for replace-special (against nothing)",
    "replace-one": "2 x clip for replace-one (against another's data)",
}


def quotes_view(console: Console, rounds: int, quotes: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the noise of a round under every accountant, side by side."""
    columns = {
        "noise": "noise_multiplier",
        "charge": "charge",
        "capacity": "capacity",
        "1 round": "epsilon_of_one_round",
        f"{rounds:,}": "epsilon",
        "other": "epsilon_other_reading",
        f"{rounds + 1:,}": "epsilon_with_one_more_round",
    }
    given = any("at_noise_multiplier" in quote for quote in quotes.values())
    if given:  # eighty columns hold no more
        del columns[f"{rounds + 1:,}"]
    rows = []
    for name, quote in quotes.items():
        texts = ["–" if quote[key] is None else f"{quote[key]:.4g}" for key in columns.values()]
        if given:
            at = quote["at_noise_multiplier"]
            texts += [f"{at['rounds_affordable']:,}", f"{at['epsilon']:.4g}"]
        rows.append(("", [name + ("" if quote["sound"] else " (!)"), *texts]))
    heads = ["accountant", *columns, *["rounds", "epsilon"] * given]
    print_table(console, Table("", heads, rows))
    lines = ["noise: scale over sensitivity of a round, if all are equal. The sensitivity is"]
    for relation in sorted({quote["neighbours"] for quote in quotes.values()}, reverse=True):
        names = (name for name, quote in quotes.items() if quote["neighbours"] == relation)
        mechanisms = dict.fromkeys(name.split("/")[0] for name in names)
        lines.append(f"  {_SENSITIVITY[relation]}: {', '.join(mechanisms)}.")
    after = ", ".join(name for name in columns if name[0].isdigit())
    lines += [
        f"{after}: epsilon after that many rounds with that noise.",
        f"other: epsilon of {rounds:,} rounds under the other relation, at most.",
    ]
    if given:
        lines.append("rounds, epsilon: how many rounds the budget pays for with your noise,")
        lines.append(f"and what {rounds:,} of them amount to.")
    if any(not quote["sound"] for quote in quotes.values()):
        lines.append("(!) promises nothing: what the paper's authors booked, for comparison only.")
    console.print("\n".join(lines), highlight=False, markup=False)


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
    """Print a ledger's facts with one bar per class, and its latest rounds."""
    promise = "promised" if facts["sound"] else "booked (no promise)"
    head = f"{facts['clients']:,} clients, accountant {facts['rule']}, head {facts['head'][:20]}…"
    lines = [head]
    for entry in facts["classes"]:
        other = entry["epsilon_other_reading"]
        means = both_readings(entry["epsilon"], facts["neighbours"], other)
        lines += [
            f"({entry['epsilon']:g}, {entry['delta']:g}) {promise} to {entry['clients']:,} "
            "clients",
            *(f"  {line}" for line in means.replace("; ", ";\n").split("\n")),
            f"  spent {bar(entry['epsilon_spent_most'] / entry['epsilon'], 30)} epsilon "
            f"{entry['epsilon_spent_most']:.4g} at most, "
            f"{entry['epsilon_spent_median']:.4g} median",
            f"  left  a charge of {entry['left_least']:.4g} at least; {entry['exhausted']:,} "
            "clients have no budget left",
        ]
    if facts["unsettled"]:
        lines.append(f"{facts['unsettled']} reservations were never settled; they count as spent")
    console.print("\n".join(lines), highlight=False, markup=False)
    reserves = [entry for entry in history if entry["kind"] in ("reserve", "loss")]
    rows = []
    for entry in reserves[-10:]:
        charge, number = f"{entry['charge_most']:.4g}", str(entry["number"])
        if entry["kind"] == "loss":
            rows.append(("", ["(stated loss)", number, "", "all", charge, ""]))
            continue
        where = [entry["run"], number, str(entry["round"]), f"{entry['clients']:,}"]
        rows.append(("", [*where, charge, "yes" if entry["settled"] else "no"]))
    if rows:
        title = f"the last {len(rows)} of {len(reserves)} reservations:"
        columns = ["run", "row", "round", "clients", "charge", "settled"]
        print_table(console, Table(title, columns, rows))
