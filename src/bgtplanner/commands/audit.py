"""The command that attacks our own claims: `audit`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from bgtplanner.commands.options import Json, answer, named_by_flags

EXIT_CODES = {"holds": 0, "refuted": 1, "inconclusive": 3}
"""Exit codes of `audit`; 2 is for what cannot be done, as everywhere."""


def audit(
    mechanism: Annotated[str, typer.Option(help="gaussian | laplace | privunit")] = "gaussian",
    trust: Annotated[str, typer.Option(help="local | secagg")] = "local",
    neighbours: Annotated[
        str, typer.Option(help="replace-special | replace-one; auto: by the trust.")
    ] = "auto",
    unit: Annotated[str, typer.Option(help="client | row (the paper's)")] = "client",
    path: Annotated[
        str, typer.Option(help="guard | client; auto: client for sums of Gaussian noise.")
    ] = "auto",
    epsilon: Annotated[float, typer.Option(help="The budget to audit.")] = 1.0,
    delta: Annotated[float, typer.Option(help="Its delta.")] = 1e-5,
    releases: Annotated[
        int | None, typer.Option(help="How many; default 200,000, of a client 300, of sums 80.")
    ] = None,
    confidence: Annotated[
        float, typer.Option(help="Probability that an honest client is not refuted.")
    ] = 0.99,
    seed: Annotated[
        int | None, typer.Option(help="Repeatable noise; default: secret noise.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Attack the real code, and show what the attack found and could have found.

    Exit codes: 0 if the claim holds, 1 if it is refuted, 3 if the audit is inconclusive: so few
    releases could not have refuted it.

    The path guard is a client's ledger, clip and noise, client a folder on a disk. With trust
    secagg, it is a group of such clients and a server, which make sums through masks, shares and
    drop-outs; the attacker sees the sums, and what colluding clients have sent.

    Example: `bgtplanner audit --mechanism gaussian --epsilon 1`

    Example: `bgtplanner audit --trust secagg`
    """
    asked: dict[str, Any] = {**locals()}
    del asked["as_json"]
    from bgtplanner.runs.audit import audit as attack

    with named_by_flags():
        found = attack(**asked)
    answer(as_json, found, *_view(found))
    raise typer.Exit(EXIT_CODES[found["verdict"]])


def _view(found: Mapping[str, Any]) -> list[str]:
    """Return what was attacked and claimed, what was and could have been seen, and the verdict."""
    claim, relation = found["claimed_epsilon"], found["neighbours"]
    against = "nothing" if relation == "replace-special" else "another's"
    sums = "{dropouts} of {members} clients drop out, {colluders} tell what was sent"
    rows = "by theory, epsilon {client_level_epsilon:.3f} for the whole client"
    lines = [
        ("attacked", "{mechanism}, trust {trust}, unit {unit}, path {path}"),
        ("", "{releases:,} releases of neighbouring inputs"),
        *([("", sums)] if found["members"] else []),
        ("claimed", "epsilon {claimed_epsilon:g} at delta {delta:g} ({accounting})"),
        ("", f"{relation}: one client's upload against {against}"),
        *([("", rows)] if found["unit"] == "row" else []),
        ("seen", "epsilon >= {epsilon_lower:.3f} with {confidence:.4g} confidence"),
        ("expected", "about {epsilon_expected:.3f}, if everything is as stated"),
        ("from guesses alone", "epsilon >= {epsilon_lower_any:.3f}, for any noise"),
        ("they could show", "epsilon {epsilon_largest:.2f}, if none had been wrong"),
    ]
    for check in found["checks"]:
        word = "REFUTED" if check["refuted"] else "as stated"
        lines.append((check["name"], f"{word} (p = {check['p_value']:.2g}), {check['part']}"))
    reasons = {
        "holds": [f"more than {claim:g} could have been shown, and was not; no proof"],
        "refuted": [check["fault"] for check in found["checks"] if check["refuted"]],
        "inconclusive": [f"so few cannot show {claim:g}: --releases {found['releases_needed']}"],
    }
    lines.append(("verdict", found["verdict"].upper()))
    lines += [("", reason) for reason in dict.fromkeys(reasons[found["verdict"]])]
    return [f"{name:<20}{text.format_map(found)}" for name, text in lines]
