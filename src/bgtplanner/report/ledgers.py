"""Budgets and ledgers on a terminal of 80 columns: lines and tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bgtplanner.privacy.accountants import both_readings, from_ticks
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.text import Table


def quotes_view(rounds: int, quotes: Mapping[str, Mapping[str, Any]]) -> list[str | Table]:
    """Return the noise of a round under every accountant, and what it amounts to."""
    keys = ("noise_multiplier", "charge", "capacity", "epsilon", "epsilon_other_reading")
    heads = ["accountant", "noise", "charge", "capacity", "epsilon", "other"]
    notes = [
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
        notes.append("rounds, epsilon: how many rounds the budget pays for with your noise,")
        notes.append(f"and what {rounds:,} of them amount to.")
    if any(not quote["sound"] for quote in quotes.values()):
        notes.append("(!) promises nothing: what the authors booked, for comparison only.")
    return [Table("", heads, rows), *notes]


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
        classes.append({
            "epsilon": budget.epsilon, "delta": budget.delta, "clients": len(members),
            "epsilon_other_reading": accountant.other_promise(budget, ledger.neighbours),
            "capacity": accountant.capacity(budget),
            "spent_most": float(from_ticks(spent[0, members].max())),
            "left_least": float(left[members].min()), "left_most": float(left[members].max()),
            "epsilon_spent_median": float(np.median(epsilon[members])),
            "epsilon_spent_most": float(epsilon[members].max()),
            "epsilon_spent_other_reading": None if unknown else float(other[members].max()),
            "exhausted": int((left[members] <= 0).sum()),
        })  # fmt: skip
    return {
        "rule": accountant.name, "neighbours": ledger.neighbours, "sound": accountant.sound,
        "clients": len(ledger), "head": str(ledger.head), "unsettled": ledger.unsettled,
        "classes": classes,
    }  # fmt: skip


def ledger_view(facts: Mapping[str, Any], history: list[dict[str, Any]]) -> list[str | Table]:
    """Return what a ledger promises and has spent, class by class, and its latest rounds."""
    promise = "promised" if facts["sound"] else "booked (no promise)"
    lines: list[str | Table] = [
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
    reserves = [entry for entry in history if entry["kind"] in ("reserve", "loss")]
    rows = []
    for entry in reserves[-10:]:
        name = entry["run"] if entry["kind"] == "reserve" else "(stated loss)"
        cells = [entry["number"], name, entry.get("round", ""), entry.get("clients", "all")]
        cells += [f"{entry['charge_most']:.4g}", "yes" if entry.get("settled") else "no"]
        rows.append(("", [str(cell) for cell in cells]))
    title = f"the last {len(rows)} of {len(reserves)} reservations:"
    columns = ["row", "run", "round", "clients", "charge", "settled"]
    return [*lines, Table(title, columns, rows)] if rows else lines
