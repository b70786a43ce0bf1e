"""The command that attacks our own claims: `audit`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bgtplanner.commands.options import (
    Json,
    named_by_flags,
    need_flower,
    need_simulator,
    print_json,
)
from bgtplanner.errors import ConfigError
from bgtplanner.report.screen import Screen

EXIT_CODES = {"holds": 0, "refuted": 1, "inconclusive": 3}
"""Exit codes of `audit`; 2 is for what cannot be done, as everywhere."""


_KNOWN = {
    "mechanism": ("gaussian", "laplace", "privunit"),
    "trust": ("local", "secagg"),
    "neighbours": ("auto", "replace-special", "replace-one"),
    "unit": ("client", "row"),
    "path": ("auto", "guard", "simulation", "client"),
    "uploads": ("worst", "tastes"),
}


def audit(
    mechanism: Annotated[str, typer.Option(help="gaussian | laplace | privunit")] = "gaussian",
    trust: Annotated[str, typer.Option(help="local | secagg")] = "local",
    neighbours: Annotated[
        str, typer.Option(help="replace-special | replace-one; auto: by the trust.")
    ] = "auto",
    unit: Annotated[str, typer.Option(help="client | row")] = "client",
    path: Annotated[
        str,
        typer.Option(
            help="What to attack: guard | simulation | client (folders, and with trust secagg a "
            "server); auto: client with trust secagg if there is such a client, else guard."
        ),
    ] = "auto",
    epsilon: Annotated[float, typer.Option(help="The budget to audit.")] = 1.0,
    delta: Annotated[float, typer.Option(help="Its delta.")] = 1e-5,
    rounds: Annotated[int, typer.Option(help="Rounds that it is spread over.")] = 1,
    releases: Annotated[
        int | None,
        typer.Option(
            help="Number of releases; default 200,000, with path client 300, and under secagg "
            "20,000 sums without masks."
        ),
    ] = None,
    blocks: Annotated[int, typer.Option(help="With unit row: blocks per upload.")] = 32,
    canaries: Annotated[
        int, typer.Option(help="With trust secagg: clients per sum to guess about.")
    ] = 1,
    beside: Annotated[
        float | None, typer.Option(help="With path simulation: the other clients' epsilon.")
    ] = None,
    uploads: Annotated[
        str, typer.Option(help="What is told apart: worst (case) | tastes (of that model).")
    ] = "worst",
    dropouts: Annotated[
        int | None,
        typer.Option(help="With path client and trust secagg: clients that drop out; default 1."),
    ] = None,
    colluders: Annotated[
        int | None,
        typer.Option(help="Likewise: clients that tell what they have sent; default 1."),
    ] = None,
    opened: Annotated[
        int | None,
        typer.Option(help="Likewise: sums that are masked and opened; default 80."),
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
    from rich.progress import Progress

    for name, known in _KNOWN.items():
        ConfigError.unless(asked[name] in known, f"--{name}", asked[name], " or ".join(known))
    if path in ("client", "simulation"):
        (need_flower if path == "client" else need_simulator)()
    from bgtplanner.report.audited import audit_view
    from bgtplanner.runs.audits import audit as attack

    console = Screen(stderr=True)
    hidden = as_json or not console.is_terminal
    with named_by_flags(), Progress(console=console, transient=True, disable=hidden) as progress:
        task = progress.add_task("releasing", total=1.0)
        found = attack(
            **asked, on_progress=lambda share: progress.update(task, completed=share)
        ).to_json()
    if as_json:
        print_json(found)
    else:
        audit_view(Screen(), found)
    raise typer.Exit(EXIT_CODES[found["verdict"]])
