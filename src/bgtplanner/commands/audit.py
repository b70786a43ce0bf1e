"""The command that attacks our own claims: `audit`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from bgtplanner.commands.options import Json, named_by_flags, need_flower, print_json
from bgtplanner.errors import ConfigError

EXIT_CODES = {"holds": 0, "refuted": 1, "inconclusive": 3}
"""Exit codes of `audit`; 2 is for what cannot be done, as everywhere."""

_KNOWN = {
    "mechanism": ("gaussian", "laplace", "privunit"),
    "trust": ("local", "secagg"),
    "neighbours": ("auto", "replace-special", "replace-one"),
    "unit": ("client", "row"),
    "path": ("auto", "guard", "client"),
}


def audit(
    mechanism: Annotated[str, typer.Option(help="gaussian | laplace | privunit")] = "gaussian",
    trust: Annotated[str, typer.Option(help="local | secagg")] = "local",
    neighbours: Annotated[
        str, typer.Option(help="replace-special | replace-one; auto: by the trust.")
    ] = "auto",
    unit: Annotated[str, typer.Option(help="client | row (the paper's)")] = "client",
    path: Annotated[
        str,
        typer.Option(
            help="What to attack: guard | client (folders, and with trust secagg a server); "
            "auto: client with trust secagg if there is such a client, else guard."
        ),
    ] = "auto",
    epsilon: Annotated[float, typer.Option(help="The budget to audit.")] = 1.0,
    delta: Annotated[float, typer.Option(help="Its delta.")] = 1e-5,
    releases: Annotated[
        int | None,
        typer.Option(
            help="Number of releases; default 200,000, with path client 300, of sums 80."
        ),
    ] = None,
    dropouts: Annotated[
        int | None,
        typer.Option(help="With path client and trust secagg: clients that drop out; default 1."),
    ] = None,
    colluders: Annotated[
        int | None,
        typer.Option(help="Likewise: clients that tell what they have sent; default 1."),
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

    With trust secagg and Gaussian noise, a group of clients and a server make sums through masks,
    shares and drop-outs. The attacker sees the sums, and what colluding clients have sent.

    Example: `bgtplanner audit --mechanism gaussian --epsilon 1`

    Example: `bgtplanner audit --trust secagg --dropouts 1 --colluders 1`
    """
    asked: dict[str, Any] = {**locals()}
    del asked["as_json"]
    from rich.console import Console
    from rich.progress import Progress

    for name, known in _KNOWN.items():
        ConfigError.unless(asked[name] in known, f"--{name}", asked[name], " or ".join(known))
    if path == "client":
        need_flower()
    from bgtplanner.runs.audit import audit as attack

    console = Console(stderr=True)
    hidden = as_json or not console.is_terminal
    with named_by_flags(), Progress(console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task("releasing", total=1.0)
        found = attack(
            **asked, on_progress=lambda share: progress.update(task, completed=share)
        ).to_json()
    if as_json:
        print_json(found)
    else:
        Console().print("\n".join(_view(found)), highlight=False, markup=False)
    raise typer.Exit(EXIT_CODES[found["verdict"]])


def _view(found: Mapping[str, Any]) -> list[str]:
    """Return what was attacked and claimed, what was and could have been seen, and the verdict."""
    gaussian = found["epsilon_lower_gaussian"]
    assuming = gaussian is not None and gaussian > found["epsilon_lower_any"]
    against = "nothing" if found["neighbours"] == "replace-special" else "another's"
    level = found["client_level_epsilon"]
    lines = [
        ("claimed", f"epsilon {found['claimed_epsilon']:g} at delta {found['delta']:g} "
                    f"({found['accounting']})"),
        ("", f"{found['neighbours']}: one client's upload against {against}"),
        *([("by theory", f"epsilon {level:.3f} for the whole client")] * (found["unit"] == "row")),
        ("seen", f"epsilon >= {found['epsilon_lower']:.3f} with {100 * found['confidence']:g} % "
                 f"confidence{', for Gaussian noise' if assuming else ''}"),
        ("expected", f"about {found['epsilon_expected']:.3f}, if everything is as stated"),
        ("from guesses alone", f"epsilon >= {found['epsilon_lower_any']:.3f}, for any noise"),
        ("they could show", f"epsilon {found['epsilon_largest']:.2f}, if none had been wrong"),
    ]  # fmt: skip
    for part in found["parts"]:
        lines += [("checked", part["what"])] * (len(found["parts"]) > 1)
        own = (check for check in found["checks"] if check["part"] == part["what"])
        lines += [(check["name"], _checked(check)) for check in own]
    verdict, *reasons = _verdict(found)
    lines += [("verdict", verdict), *(("", reason) for reason in reasons)]
    head = [
        f"{found['mechanism']}, trust {found['trust']}, unit {found['unit']}, "
        f"path {found['path']}",
        f"{found['releases']:,} releases of neighbouring inputs",
    ]
    if found["members"] is not None:
        gone, tell = (found[name] or "none" for name in ("dropouts", "colluders"))
        who = f"of {found['members']} clients, {gone} dropped out"
        head.append(f"{who}; {tell} told the attacker what was sent")
    return [*head, *(f"{name:<20}{said}" for name, said in lines)]


def _checked(check: Mapping[str, Any]) -> str:
    """Return the result of a check, with its figures if it is more than yes or no."""
    word = "REFUTED" if check["refuted"] else "as stated"
    if check["name"] in ("paid for", "last bits"):
        return word
    size = check["name"] == "size of the noise"
    ratio = f"{check['measured']:.3f} of it, " if size else ""
    return f"{word} ({ratio}p = {check['p_value']:.2g})"


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
    return [
        f"INCONCLUSIVE: so few releases cannot show {claim:g}",
        f"at least {needed:,} are needed: --releases {needed}",
    ]
