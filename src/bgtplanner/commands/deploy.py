"""Commands for a federation on real machines: `deploy init|enroll|check|sbom`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from bgtplanner.commands.options import Json, answer, local_client, need_flower, print_json
from bgtplanner.errors import ConfigError, StorageError

__all__ = ["deploy_app"]

deploy_app = typer.Typer(
    help="Set up a federation on real machines, over Flower.\n\n"
    "Example: `bgtplanner deploy init deployment --clients 3`",
    no_args_is_help=True,
)

ClientPath = Annotated[str, typer.Argument(metavar="CLIENT_FILE", help="Its client.toml.")]
AnyPath = Annotated[
    str,
    typer.Argument(metavar="FILE", help="A client.toml, or the server's config.toml."),
]


@deploy_app.command("init")
def init(
    folder: Annotated[str, typer.Argument(help="Folder to create.")],
    clients: Annotated[int, typer.Option(help="Number of clients.")] = 3,
    address: Annotated[
        str, typer.Option(help="HOST:PORT at which clients will reach the server.")
    ] = "127.0.0.1:8443",
    as_json: Json = False,
) -> None:
    """Write an app folder, a server, clients with made-up ratings, certificates and services.

    Example: `bgtplanner deploy init deployment --clients 3`
    """
    need_flower()
    from bgtplanner.flower.example import write_example

    ConfigError.unless(folder != "", "FOLDER", folder, "a path")
    write_example(Path(folder), clients=clients, address=address)
    answer(
        as_json,
        {"folder": str(Path(folder).absolute()), "clients": clients},
        f"Written: {folder}. docs/deployment.md has the next steps; the first is",
        f"  cd {folder} && ./certificates.sh localhost 127.0.0.1 {clients}",
    )


@deploy_app.command("enroll")
def enroll(client_file: ClientPath, as_json: Json = False) -> None:
    """Create a new client's ledger, once. A client that was moved keeps its old ledger.

    Example: `bgtplanner deploy enroll clients/1/client.toml`
    """
    client = local_client(client_file)
    made = client.enroll()
    path = str(client.file.ledger)
    said = f"{'Created' if made else 'Exists already, left as it is'}: {path}"
    answer(as_json, {"ledger": path, "made": made}, said)


@deploy_app.command("check")
def check(
    file: AnyPath,
    superlink: Annotated[
        str | None, typer.Option(help="HOST:PORT of the server, to try the connection.")
    ] = None,
    root_certificates: Annotated[
        Path | None, typer.Option(help="Certificate of the authority, as for flower-supernode.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Check that a client is ready to join: ratings, ledger, file modes, versions, connection.

    Or check that a server's settings can run on real machines. The exit code is 1 if a check
    fails, and 2 if a setting cannot be used.

    Example: `bgtplanner deploy check clients/1/client.toml --superlink 127.0.0.1:8443`
    """
    need_flower()
    from bgtplanner.flower.check import check_client
    from bgtplanner.runs.deployable import check_server

    if Path(file).name == "config.toml":
        found = check_server(Path(file))
    else:
        found = check_client(
            local_client(file), superlink=superlink, root_certificates=root_certificates
        )
    lines = [f"{'ok     ' if well else 'FAILED '}{what:<12} {note}" for what, well, note in found]
    answer(as_json, {"checks": [finding._asdict() for finding in found]}, *lines)
    if not all(finding.well for finding in found):
        raise typer.Exit(1)


@deploy_app.command("sbom")
def sbom(
    to: Annotated[Path | None, typer.Option(help="File to write; default: print.")] = None,
    as_json: Json = False,
) -> None:
    """List all that is installed for a client: a software bill of materials (CycloneDX, JSON).

    Example: `bgtplanner deploy sbom --to client.cdx.json`
    """
    need_flower()
    from bgtplanner.flower.installed import bill_of_materials

    content = bill_of_materials("bgtplanner", frozenset({"flower"}))
    if to is None:
        print_json(content)
        return
    try:
        to.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise StorageError.of(f"--to {to}", error, "choose another file") from error
    number = 1 + len(content["components"])
    answer(as_json, {"packages": number, "file": str(to)}, f"{number} packages in {to}")
