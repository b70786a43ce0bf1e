"""Commands about what may be spent and what was: `budget`, `ledger`."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from bgtplanner.commands.options import Json, named_by_flags, print_json
from bgtplanner.errors import ConfigError, LedgerError, StorageError
from bgtplanner.privacy.budget import Budget
from bgtplanner.privacy.journal import Head
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.privacy.quotes import quotes

ledger_app = typer.Typer(
    help="Look at a ledger, check it, take it elsewhere.\n\nExample: `bgtplanner ledger show RUN`",
    no_args_is_help=True,
)

LedgerFile = Annotated[Path, typer.Argument(help="A ledger file, or a run folder that has one.")]
HeadOption = Annotated[
    str | None, typer.Option("--head", help="NUMBER:HASH of a row that must be in it.")
]


def budget(
    epsilon: Annotated[float, typer.Option(help="What a client may spend in all.")] = 10.0,
    delta: Annotated[float, typer.Option(help="Probability of losing more.")] = 1e-5,
    rounds: Annotated[int, typer.Option(help="Equal rounds to spend it in.")] = 100,
    mechanism: Annotated[str | None, typer.Option(help="gaussian | laplace | privunit")] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Also say what this much noise costs.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what a privacy budget buys: the noise of a round under every rule.

    Example: `bgtplanner budget --epsilon 10 --delta 1e-5 --rounds 100`
    """
    from bgtplanner.report.money import quotes_view

    with named_by_flags():
        table = quotes(
            Budget(epsilon, delta), rounds, mechanism=mechanism, noise_multiplier=noise_multiplier
        )
    if as_json:
        asked: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "rounds": rounds}
        print_json({**asked, "noise_multiplier": noise_multiplier, "rules": table})
        return
    console = Console()
    console.print(
        f"(epsilon {epsilon:g}, delta {delta:g}) per client, replace-one, {rounds:,} equal rounds",
        highlight=False,
    )
    quotes_view(console, rounds, table)


@ledger_app.command("show")
def show(
    ledger: LedgerFile,
    client: Annotated[int | None, typer.Option(help="Only this client, by its index.")] = None,
    as_json: Json = False,
) -> None:
    """Say what was spent and what is left, per class of clients or for one of them.

    Example: `bgtplanner ledger show runs/first/ledger.sqlite`
    """
    from bgtplanner.report.money import ledger_facts, ledger_view

    with _opened(ledger, read_only=True) as opened:
        if client is not None:
            inside = 0 <= client < len(opened)
            ConfigError.unless(inside, "--client", client, f"an index from 0 to {len(opened) - 1}")
            balance = _balances(opened)[client]
            if as_json:
                print_json(balance)
            else:
                typer.echo("\n".join(f"{name:<14} {value}" for name, value in balance.items()))
            return
        facts, history = ledger_facts(opened), list(opened.history())
    if as_json:
        print_json(facts)
    else:
        ledger_view(Console(), facts, history)


@ledger_app.command("verify")
def verify(ledger: LedgerFile, head: HeadOption = None, as_json: Json = False) -> None:
    """Check that no row was edited, removed or reordered; with --head, that none was cut off.

    Without a head that was kept elsewhere, missing newest rows cannot be noticed.

    Example: `bgtplanner ledger verify runs/first/ledger.sqlite --head 12:9f…`
    """
    with _opened(ledger, read_only=True) as opened:
        rows = opened.verify(None if head is None else Head.parse(head))
        newest = str(opened.head)
    if as_json:
        print_json({"rows": rows, "head": newest, "head_checked": head is not None})
        return
    typer.echo(f"{rows} rows, each as it was written. Head: {newest}")
    if head is None:
        typer.echo("Whether newer rows were cut off only a head kept elsewhere can tell: --head.")


@ledger_app.command("export")
def export(
    ledger: LedgerFile,
    to: Annotated[
        Path | None, typer.Option(help="File to write, .csv or .json; default: print JSON.")
    ] = None,
    clients: Annotated[bool, typer.Option(help="One line a client instead of a row.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace the file.")] = False,
    as_json: Json = False,
) -> None:
    """Write the rows (or the clients' balances) as CSV or JSON.

    Example: `bgtplanner ledger export runs/first/ledger.sqlite --to spent.csv`
    """
    with _opened(ledger, read_only=True) as opened:
        rows = _balances(opened) if clients else list(opened.history())
    if to is not None and to.suffix == ".csv":
        buffer = io.StringIO()
        names = list(dict.fromkeys(name for row in rows for name in row))
        writer = csv.DictWriter(buffer, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        text = buffer.getvalue()
    else:
        text = json.dumps(rows, indent=2) + "\n"
    if to is None:
        typer.echo(text, nl=False)
        return
    ConfigError.unless(to.suffix in (".csv", ".json"), "--to", str(to), "a .csv or .json file")
    if to.exists() and not overwrite:
        raise ConfigError(f"--to {to}: exists already; give --overwrite to replace it")
    try:
        to.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError.of(f"--to {to}", error, "choose another file") from error
    if as_json:
        print_json({"lines": len(rows), "file": str(to)})
    else:
        typer.echo(f"{len(rows)} lines in {to}")


@ledger_app.command("restore")
def restore(
    ledger: LedgerFile,
    head: Annotated[str, typer.Option(help="NUMBER:HASH of the newest row anybody remembers.")],
    lost: Annotated[
        str, typer.Option(help="Most that a client spent since the backup: a charge, or 'all'.")
    ],
    as_json: Json = False,
) -> None:
    """Go on with a restored backup, after stating what it has forgotten.

    Every client is charged what you state, so state at least the truth; 'all' spends what is left.

    Example: `bgtplanner ledger restore ledger.sqlite --head 12:9f… --lost all`
    """
    remembered = Head.parse(head)
    try:
        charge = None if lost == "all" else float(lost)
    except ValueError as error:
        raise ConfigError(f"--lost {lost}: expected a charge or 'all'") from error
    with _opened(ledger) as opened:
        opened.state_loss(remembered, charge)
        newest, left = str(opened.head), float(opened.left().max())
    if as_json:
        print_json({"head": newest, "left_most": left})
    else:
        typer.echo(f"Stated. At most a charge of {left:.4g} is left to anybody. Head: {newest}")


def _opened(path: Path, *, read_only: bool = False) -> Ledger:
    """The ledger in a file or a run folder.

    Raises:
        LedgerError: If there is none, saying what to give or to do instead.
    """
    file = path / "ledger.sqlite" if path.is_dir() else path
    try:
        return Ledger.open(file, read_only=read_only)
    except LedgerError as error:
        then = (
            "bring back a copy, then 'bgtplanner ledger restore'"
            if file.is_file()
            else "give a ledger, or the folder of a run that has a budget"
        )
        raise LedgerError(f"{error}; {then}") from error


def _balances(ledger: Ledger) -> list[dict[str, Any]]:
    """What each client may spend, has spent and has left."""
    budgets = [ledger.budgets.classes[index] for index in ledger.budgets.class_of_client]
    return [
        {
            "client": client,
            "epsilon": budget.epsilon,
            "delta": budget.delta,
            "epsilon_spent": spent,
            "left": left,
        }
        for client, (budget, spent, left) in enumerate(
            zip(budgets, ledger.epsilon_spent().tolist(), ledger.left().tolist(), strict=True)
        )
    ]
