"""Commands for a federation on real machines: `deploy init|enroll|roster|check`."""

from __future__ import annotations

from pathlib import Path

import typer

from bgtplanner.commands.options import Answer, command, files_of_client, need, say
from bgtplanner.errors import ConfigError
from bgtplanner.text import MOST_BYTES_OF_SETTINGS, read_bytes

deploy_app = typer.Typer(
    help="Set up a federation on real machines, over Flower.\n\n"
    "Example: `bgtplanner deploy init deployment --clients 6`",
    no_args_is_help=True,
)


@deploy_app.command()
@command()
def init(
    folder: str, *, clients: int = 6, trust: str = "secagg", address: str = "127.0.0.1:8443"
) -> Answer:
    """Write an app folder, a server, clients with made-up ratings, and a script for certificates.

    Example: `bgtplanner deploy init deployment --clients 6`

    Options:
        folder (FOLDER): Folder to create.
        clients: Number of clients.
        trust: secagg: the server sees sums only | local: no one is trusted
        address: HOST:PORT at which clients will reach the server.
    """
    need("flower")
    from bgtplanner.runs.example import write_example

    write_example(Path(folder), clients=clients, address=address, trust=trust)
    content = {"folder": str(Path(folder).absolute()), "clients": clients, "trust": trust}
    first = f"  cd {folder} && ./certificates.sh localhost 127.0.0.1 {clients}"
    said = f"Written: {folder}. `bgtplanner docs deployment` has the next steps; the first is"
    return Answer(content, [said, first])


@deploy_app.command()
@command()
def enroll(client_file: str, *, name: str | None = None, as_json: bool) -> Answer:
    """Create a new client's ledger and identity, once, and print its line for the roster.

    What exists is left as it is, and the line is printed again. A client that was moved keeps its
    old ledger. The line is public; it must come to whoever keeps the roster unchanged.

    Example: `bgtplanner deploy enroll clients/1/client.toml >> enrolled.txt`

    Options:
        client_file: Its client.toml.
        name: The client's name in the roster; default: its folder's.
    """
    file = files_of_client(client_file)
    from bgtplanner.federation.aggregation.keys import public_bytes
    from bgtplanner.federation.aggregation.roster import Roster
    from bgtplanner.flower.client import Client
    from bgtplanner.flower.identity import identity_in

    ledger, identity = file.ledger, file.identity
    new = {identity: not identity.exists(), ledger: Client(file).enroll()}
    key = public_bytes(identity_in(identity))
    name = Path(client_file).absolute().parent.name if name is None else name
    line = Roster((name,), (key,)).to_text().splitlines()[1]
    found = {
        "ledger": str(ledger), "made": new[ledger], "identity": str(identity),
        "made_identity": new[identity], "key": key.hex(), "name": name,
    }  # fmt: skip
    for path in () if as_json else (ledger, identity):
        say(f"{'Created' if new[path] else 'Exists, left as it is'}: {path}", err=True)
    return Answer(found, [line])


@deploy_app.command()
@command()
def roster(
    roster_file: Path, files: list[Path] | None = None, *, add: list[str] | None = None
) -> Answer:
    """Collect the clients' lines in a roster, and print its digest.

    Clients that are in it already stay where they are. Copy the file to the server and to every
    client, by a way that the server does not control, and compare the digest with each of them,
    by telephone for example: whoever can change rosters can invent clients.

    Example: `bgtplanner deploy roster server/roster.txt enrolled.txt`

    Options:
        roster_file: The roster; created if it is not there.
        files ([LINES_FILE]...): Files of lines from deploy enroll.
        add ('KEY NAME'): One such line; may be given several times.
    """
    need("flower")
    from bgtplanner.flower.identity import collect_roster

    lines = []
    for file in files or ():
        try:
            text = read_bytes(file, MOST_BYTES_OF_SETTINGS).decode()
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file}: cannot be read as lines of a roster: {error}") from error
        numbered = enumerate(text.splitlines(), start=1)
        lines += [(f"{file}, line {number}", line) for number, line in numbered if line.strip()]
    lines += [(f"--add {line!r}", line) for line in add or ()]
    found, added = collect_roster(roster_file, lines)
    content = {"clients": len(found), "added": added, "digest": found.digest.hex()}
    said = f"{roster_file}: {len(found)} clients, {added} of them new"
    return Answer({"roster": str(roster_file)} | content, [said, f"digest {content['digest']}"])


@deploy_app.command()
@command()
def check(file: str) -> Answer:
    """Check that a client is ready to join: programs, file modes, ratings, ledger, roster.

    The first thing that is wrong is said. The server checks its own settings when it starts,
    before it asks any client.

    Example: `bgtplanner deploy check clients/1/client.toml`

    Options:
        file: A client.toml.
    """
    need("flower")
    from bgtplanner.flower.check import check_client
    from bgtplanner.flower.client import Client

    expected = "a client.toml; a server checks its own settings when it starts"
    ConfigError.unless(Path(file).name != "config.toml", "FILE", file, expected)
    found = check_client(Client(files_of_client(file)))
    return Answer({"checks": found}, [f"{what:<12} {note}" for what, note in found.items()])
