"""State what a run guarantees and what it does not, in plain sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bgtplanner.privacy.accountants import ACCOUNTANTS, rounded_up
from bgtplanner.privacy.mechanisms import MECHANISMS

_NOT_ACCOUNTED = {
    "item-ids": "which items each client rated",
    "pseudo-rows": "rows of the pseudo items that a client adds, whose size gives them away",
    "context": "the planner's context, which is computed from who rated which item",
    "reward": "the planner's reward, which is computed from the ratings themselves",
    "user-gradients": "gradients of the users' own parameters",
    "expansion-matching": "which users rated the same items, shown to whoever matches users",
    "tuning": "settings that were chosen on the test ratings",
    "scale": "the scale, which was read off the ratings (give it as data.scale=LOW:HIGH)",
    "catalogue": "which items occur in the ratings at all",
    "arrival": "when each client joined, which is when its first rating came",
}
_TAKEN_AS_PUBLIC = frozenset({"scale", "catalogue", "arrival"})
"""What is often public, but was read off the ratings here: the guarantee holds if it is."""

_ABOUT = {
    "replace-special": "what a client sends is exchanged for nothing",
    "replace-one": "a client's data are exchanged for any other's",
}
"""What the two neighbouring relations let an adversary compare."""


def is_sound(summary: Mapping[str, Any]) -> bool:
    """Return whether the printed epsilon holds for whole clients and all that left them.

    The scale, the list of items and when clients joined may have been assumed to be public.
    """
    if summary.get("mechanism", "none") == "none" or not _adds_up(summary):
        return False
    return summary["unit"] == "client" and set(summary["not_accounted"]) <= _TAKEN_AS_PUBLIC


def _adds_up(summary: Mapping[str, Any]) -> bool:
    accountant = ACCOUNTANTS.get(summary["accounting"])
    return accountant is not None and accountant.sound


def not_covered(summary: Mapping[str, Any]) -> list[str]:
    """Return a sentence on what left the clients without being paid for, if anything did."""
    if not summary["not_accounted"]:
        return []
    named = "; ".join(_NOT_ACCOUNTED.get(name, name) for name in summary["not_accounted"])
    if is_sound(summary):
        return [f"This assumes that what was read off the ratings is public: {named}."]
    return [f"Not covered, so that no finite epsilon holds: {named}."]


def _relation(summary: Mapping[str, Any]) -> list[str]:
    """Return what epsilon means, and how large it is about the other relation, if known."""
    neighbours, other = summary.get("neighbours"), summary.get("epsilon_other_reading")
    if not neighbours or not _adds_up(summary) or summary["unit"] != "client":
        return []
    said = (
        f"Epsilon {summary['epsilon']:g} limits what can be told: if {_ABOUT[neighbours]} "
        f"({neighbours}), whatever is seen becomes at most e^{summary['epsilon']:g} times as "
        "likely, plus delta"
    )
    if other is None:
        return [f"{said}."]
    (name,) = _ABOUT.keys() - {neighbours}
    return [f"{said}; if {_ABOUT[name]} ({name}), epsilon is {rounded_up(other)}."]


def shared_noise(summary: Mapping[str, Any]) -> list[str]:
    """Return who may drop out or collude where clients share the noise in a sum."""
    if summary.get("trust") != "secagg":
        return []
    mechanism = MECHANISMS.get(summary["mechanism"])
    if mechanism is None or not mechanism.has_shares:
        return [
            "No real federation can add this noise under secure aggregation, since someone would "
            "have to be trusted with all of it: use mechanism gaussian, or trust local."
        ]
    tolerated = summary.get("most_dropouts"), summary.get("most_colluders")
    if None in tolerated:  # an older run
        return []
    dropouts, colluders = map(_of_clients, tolerated)
    said = (
        f"Each client adds a share of the noise. The promise holds with at most {dropouts} "
        f"dropping out of a round and at most {colluders} colluding with the server; if more drop "
        "out, the sum is not opened."
    )
    if surplus := summary.get("noise_surplus"):
        said += f" The noise was {100 * surplus:.2g} % above what that takes."
    if aborted := summary.get("rounds_aborted"):
        said += f" Rounds that were paid for and not opened: {aborted}."
    return [said]


def _of_clients(number: Any) -> str:
    """Return a share of the clients, or a number of them, in words."""
    if 0 < number < 1:
        return f"{100 * number:g} % of the clients"
    return "1 client" if number == 1 else f"{number:g} clients"


def guarantee(summary: Mapping[str, Any], *, short: bool = False) -> list[str]:
    """Return sentences on the guarantee, on what was spent, and on what is not covered.

    If it is to be `short`, how a guarantee that holds is to be read is left out.
    """
    if summary.get("mechanism", "none") == "none":
        return ["Guarantee: none. Uploads were neither clipped nor noised."]
    epsilon, delta, rule = summary["epsilon"], summary["delta"], summary["accounting"]
    drawn = ", if the noise were secret; this run is simulated, and its noise comes from a seed"
    drawn *= bool(summary.get("simulated_noise", True))
    rest = _relation(summary) + shared_noise(summary) + not_covered(summary)
    if is_sound(summary):
        seen = "only the sum of all uploads" if summary["trust"] == "secagg" else "every upload"
        known = summary.get("epsilon_spent_max")
        most = "an unknown part" if known is None else f"{known:.3g}"
        spent = f"Spent at most {most} of this epsilon, in {summary['rounds_paid']} rounds."
        promise = f"Guarantee: ({epsilon:g}, {delta:g})-differential privacy for each whole client"
        seen = f"against a server that sees {seen}"
        if short:
            return [f"{promise}, {seen}{drawn}. {spent}", *not_covered(summary)]
        seen += " (secure aggregation, secagg)" * (summary["trust"] == "secagg")
        promise = f"{promise}, over the whole run, {seen} ({rule}){drawn}."
        return [promise, *rest, spent, "Who takes part, and when, is not hidden."]
    if summary["unit"] == "row":
        pure = summary.get("epsilon_client_level_pure")
        without = "" if pure is None else f" ({pure:,.0f} as pure epsilon)"
        said = (
            f"epsilon {epsilon:g} is booked, but for each tensor and item row on its own. For the "
            f"whole client it is {summary['epsilon_client_level_median']:,.0f}{without} at delta "
            f"1e-5 for the median client, {summary['epsilon_client_level']:,.0f} for the most "
            "exposed one"
        )
    elif not _adds_up(summary):
        said = (
            f"epsilon {epsilon:g} is booked by {rule}, which does not bound it. It amounts to "
            f"{summary['epsilon_client_level']:.3g} at delta 1e-5 for the uploads of the most "
            "exposed client"
        )
    else:
        said = f"({epsilon:g}, {delta:g})-differential privacy of the uploads alone"
    return [f"Guarantee: {said}{drawn}.", *rest]
