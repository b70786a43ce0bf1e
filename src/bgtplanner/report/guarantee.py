"""What a run guarantees and what it does not, in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bgtplanner.privacy.accountants import ACCOUNTANTS

__all__ = ["guarantee", "is_sound", "not_covered"]

_NOT_ACCOUNTED = {
    "item-ids": "which items each client rated",
    "pseudo-rows": "rows for items a client pretends to have rated, whose size gives them away",
    "context": "the context the planner looks at, made of who rated which item",
    "reward": "the reward the planner learns from, computed on the ratings themselves",
    "user-gradients": "gradients of the users' own parameters",
    "expansion-matching": "who rated the same items as whom, shown to whoever matches users",
    "tuning": "settings that were chosen by looking at the test ratings",
    "scale": "the scale, which was read off the ratings (data.scale=LOW:HIGH gives it)",
    "catalogue": "which items occur in the ratings at all",
}

_TAKEN_AS_PUBLIC = frozenset({"scale", "catalogue"})
"""What often is public, but was read off the ratings here: the promise holds if it is."""


def is_sound(summary: Mapping[str, Any]) -> bool:
    """Whether the printed epsilon holds for whole clients and all that left them.

    The items and the scale of the ratings may have been taken as public.
    """
    if summary.get("mechanism", "none") == "none":
        return False
    paid = set(summary["not_accounted"]) <= _TAKEN_AS_PUBLIC
    return _adds_up(summary) and summary["unit"] == "client" and paid


def not_covered(summary: Mapping[str, Any]) -> list[str]:
    """A sentence on what left the clients without being paid for, if anything did."""
    if not summary["not_accounted"]:
        return []
    named = "; ".join(_NOT_ACCOUNTED.get(name, name) for name in summary["not_accounted"])
    if is_sound(summary):
        return [f"This takes as public what was read off the ratings: {named}."]
    return [f"Not covered, so that no finite epsilon holds: {named}."]


def _adds_up(summary: Mapping[str, Any]) -> bool:
    accountant = ACCOUNTANTS.get(summary["accounting"])
    return accountant is not None and accountant.sound


def guarantee(summary: Mapping[str, Any]) -> list[str]:
    """One sentence each: the promise, what was spent of it, what it does not cover."""
    if summary.get("mechanism", "none") == "none":
        return ["Guarantee: none. Uploads were neither clipped nor noised."]
    epsilon, delta = summary["epsilon"], summary["delta"]
    secret = (
        ", if the noise were secret; this run is simulated, and its noise comes from a seed"
        if summary.get("simulated_noise", True)
        else ""
    )
    seen = "only the sum of all uploads" if summary["trust"] == "secagg" else "every upload"
    lines = []
    if is_sound(summary):
        lines.append(
            f"Guarantee: ({epsilon:g}, {delta:g})-differential privacy for each whole client, "
            f"over the whole run, against a server that sees {seen} ({summary['accounting']})"
            f"{secret}."
        )
        lines += not_covered(summary)
        spent = summary.get("epsilon_spent_max")
        said = "an unknown part" if spent is None else f"{spent:.3g}"
        lines.append(f"Spent at most {said} of it, in {summary['rounds_paid']} rounds.")
        return [*lines, "Who takes part, and when, is not hidden."]
    if summary["unit"] == "row":
        pure = summary.get("epsilon_client_level_pure")
        without = "" if pure is None else f" ({pure:,.0f} as pure epsilon)"
        lines.append(
            f"Guarantee: epsilon {epsilon:g} is booked, but for each tensor and item row on its "
            f"own. For the whole client it is {summary['epsilon_client_level_median']:,.0f}"
            f"{without} at delta 1e-5 for the median client, "
            f"{summary['epsilon_client_level']:,.0f} for the most exposed one{secret}."
        )
    elif not _adds_up(summary):
        lines.append(
            f"Guarantee: epsilon {epsilon:g} is booked by {summary['accounting']}, which does not "
            f"add up to it. It amounts to {summary['epsilon_client_level']:.3g} at delta 1e-5 for "
            f"the uploads of the most exposed client{secret}."
        )
    else:
        lines.append(
            f"Guarantee: ({epsilon:g}, {delta:g})-differential privacy of the uploads alone"
            f"{secret}."
        )
    return lines + not_covered(summary)
