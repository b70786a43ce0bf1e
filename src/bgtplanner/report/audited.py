"""An audit as it looks on a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

__all__ = ["audit_view"]

_COLUMN = 20


def audit_view(console: Console, found: Mapping[str, Any]) -> None:
    """What was attacked, what is claimed, what was seen and could have been, the verdict."""
    lines = [
        f"{found['mechanism']}, trust {found['trust']}, unit {found['unit']}, "
        f"path {found['path']}, {_number(found['rounds'], 'round')}",
        f"{found['releases']:,} releases of neighbouring inputs{_together(found)}",
        _line(
            "claimed",
            f"epsilon {found['claimed_epsilon']:g} at delta {found['delta']:g} "
            f"({found['accounting']}), replace-one",
        ),
    ]
    if found["beside"] is not None:
        lines.append(_line("", f"beside clients with epsilon {found['beside']:g}"))
    if found["unit"] == "row":
        level, blocks = found["client_level_epsilon"], _number(found["blocks"], "block")
        lines.append(
            _line("by theory", f"epsilon {level:.3f} for the whole client, with {blocks}")
        )
    gaussian = found["epsilon_lower_gaussian"]
    assuming = gaussian is not None and gaussian > found["epsilon_lower_any"]
    lines += [
        _line(
            "seen",
            f"epsilon >= {found['epsilon_lower']:.3f} with {100 * found['confidence']:g} % "
            f"confidence{', for Gaussian noise' if assuming else ''}",
        ),
        _line("expected", f"about {found['epsilon_expected']:.3f}, if all is as stated"),
        _line("from guesses alone", f"epsilon >= {found['epsilon_lower_any']:.3f}, for any noise"),
        _line("they could show", f"epsilon {found['epsilon_largest']:.2f}, had none been wrong"),
    ]
    for check in found["checks"]:
        word = "REFUTED" if check["refuted"] else "as stated"
        lines.append(_line(check["name"], f"{word}{_measured(check)}"))
    lines += _verdict(found)
    console.print("\n".join(lines), highlight=False, markup=False)


def _verdict(found: Mapping[str, Any]) -> list[str]:
    claim = found["claimed_epsilon"]
    if found["verdict"] == "holds":
        return [
            _line("verdict", f"HOLDS: more than {claim:g} could have been shown, and was not."),
            _line("", "That is consistent with the claim, and no proof of it."),
        ]
    if found["verdict"] == "refuted":
        lines = [_line("verdict", "REFUTED: THE CLAIM IS FALSE")]
        if found["epsilon_lower"] > claim:
            lines.append(_line("", f"at least {found['epsilon_lower']:.3f} is spent"))
        return lines + [_line("", check["fault"]) for check in found["checks"] if check["refuted"]]
    lines = [_line("verdict", f"INCONCLUSIVE: guesses on so few cannot show {claim:g}")]
    needed = found["releases_needed"]
    if needed is None:
        lines.append(_line("", "no number of releases is enough with canaries and this"))
        lines.append(_line("", "delta: try --canaries 1, or --delta 0 where noise is pure"))
    else:
        lines.append(_line("", f"at least {needed:,} are needed: --releases {needed}"))
    return lines


def _measured(check: Mapping[str, Any]) -> str:
    """The figures behind a check, where it is more than yes or no."""
    if check["name"] in ("paid for", "last bits"):
        return ""
    size = check["name"] == "size of the noise"
    ratio = f"{check['measured']:.3f} of it, " if size else ""
    return f" ({ratio}p = {check['p_value']:.2g})"


def _line(name: str, text: str) -> str:
    return f"{name:<{_COLUMN}}{text}"


def _number(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' if count != 1 else ''}"


def _together(found: Mapping[str, Any]) -> str:
    return f", {found['canaries']} canaries in each sum" if found["canaries"] > 1 else ""
