"""An audit on a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

__all__ = ["audit_view"]


def audit_view(console: Console, found: Mapping[str, Any]) -> None:
    """Print what was attacked and claimed, what was and could have been seen, and the verdict."""
    canaries, gaussian = found["canaries"], found["epsilon_lower_gaussian"]
    together = f", {canaries} canaries in each sum" if canaries > 1 else ""
    if found["uploads"] == "tastes":
        together += ", which differ in tastes alone"
    assuming = gaussian is not None and gaussian > found["epsilon_lower_any"]
    claimed = f"epsilon {found['claimed_epsilon']:g} at delta {found['delta']:g}"
    seen = f"epsilon >= {found['epsilon_lower']:.3f} with {100 * found['confidence']:g} %"
    lines = [("claimed", f"{claimed} ({found['accounting']})")]
    against = "nothing" if found["neighbours"] == "replace-special" else "another's"
    lines.append(("", f"{found['neighbours']}: one client's upload against {against}"))
    if found["beside"] is not None:
        lines.append(("", f"beside clients with epsilon {found['beside']:g}"))
    if found["unit"] == "row":
        level = f"epsilon {found['client_level_epsilon']:.3f} for the whole client"
        lines.append(("by theory", f"{level}, with {_number(found['blocks'], 'block')}"))
    verdict, *reasons = _verdict(found)
    lines += [
        ("seen", f"{seen} confidence{', for Gaussian noise' if assuming else ''}"),
        ("expected", f"about {found['epsilon_expected']:.3f}, if everything is as stated"),
        ("from guesses alone", f"epsilon >= {found['epsilon_lower_any']:.3f}, for any noise"),
        ("they could show", f"epsilon {found['epsilon_largest']:.2f}, if none had been wrong"),
        *_checks(found),
        ("verdict", verdict),
        *(("", reason) for reason in reasons),
    ]
    head = [
        f"{found['mechanism']}, trust {found['trust']}, unit {found['unit']}, "
        f"path {found['path']}, {_number(found['rounds'], 'round')}",
        f"{found['releases']:,} releases of neighbouring inputs{together}",
        *_group(found),
    ]
    text = "\n".join([*head, *(f"{name:<20}{said}" for name, said in lines)])
    console.print(text, highlight=False, markup=False)


def _group(found: Mapping[str, Any]) -> list[str]:
    """Return who made the sums, and how often each part was run, if there was a group."""
    if found["members"] is None:
        return []
    gone, tell = (found[name] or "none" for name in ("dropouts", "colluders"))
    sent = "it had" if tell == 1 else "they had"
    who = f"of {found['members']} clients, {gone} dropped out"
    attacked = f"{who}; {tell} told the attacker what {sent} sent"
    parts = [f"  {part['releases']:>9,} {part['what']}" for part in found["parts"]]
    return [attacked, *parts]


def _checks(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the lines of the checks, under the part that they are about if there are several."""
    lines, several = list[tuple[str, str]](), len(found["parts"]) > 1
    for part in found["parts"]:
        lines += [("checked", part["what"])] * several
        own = (check for check in found["checks"] if check["part"] == part["what"])
        lines += [(check["name"], _checked(check)) for check in own]
    return lines


def _verdict(found: Mapping[str, Any]) -> list[str]:
    claim, needed = found["claimed_epsilon"], found["releases_needed"]
    if found["verdict"] == "holds":
        return [
            f"HOLDS: more than {claim:g} could have been shown, and was not.",
            "That is consistent with the claim, but does not prove it.",
        ]
    if found["verdict"] == "refuted":
        spent = [f"at least {found['epsilon_lower']:.3f} is spent"]
        return [
            "REFUTED: THE CLAIM IS FALSE",
            *(spent if found["epsilon_lower"] > claim else []),
            *(check["fault"] for check in found["checks"] if check["refuted"]),
        ]
    then = [
        "no number of releases is enough with canaries and this",
        "delta: try --canaries 1, or --delta 0 if the noise is pure",
    ]
    if needed is not None:
        then = [f"at least {needed:,} are needed: --releases {needed}"]
    return [f"INCONCLUSIVE: so few releases cannot show {claim:g}", *then]


def _checked(check: Mapping[str, Any]) -> str:
    """Return the result of a check, with its figures if it is more than yes or no."""
    word = "REFUTED" if check["refuted"] else "as stated"
    if check["name"] in ("paid for", "last bits", "less noise"):
        return word
    size = check["name"] == "size of the noise"
    ratio = f"{check['measured']:.3f} of it, " if size else ""
    return f"{word} ({ratio}p = {check['p_value']:.2g})"


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' if count != 1 else ''}"
