"""Is this client ready to join? The checks run on its own machine, before it joins."""

from __future__ import annotations

import shutil
import socket
import sqlite3
import ssl
import stat
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from flwr.supercore.constant import TASK_TYPE_TO_COMMAND

from bgtplanner.errors import BGTPlannerError, ConfigError
from bgtplanner.federation.aggregation.keys import public_bytes
from bgtplanner.flower.client import Client
from bgtplanner.flower.identity import identity_in

_CONNECT_SECONDS = 10.0


class Finding(NamedTuple):
    """What was checked, whether all is well, and a note that never names a rating or an item."""

    what: str
    well: bool
    note: str


def finding(what: str, check: Callable[[], str]) -> Finding:
    """Return the result of a check: what it says, or the error that it raises."""
    try:
        return Finding(what, True, check())
    except (BGTPlannerError, OSError, sqlite3.Error) as error:
        return Finding(what, False, str(error))


def host_and_port(name: str, address: str) -> tuple[str, int]:
    """Return the parts of HOST:PORT, or refuse an address of another form."""
    host, _, port = address.rpartition(":")
    fits = bool(host) and port.isdigit() and 0 < int(port) < 2**16
    ConfigError.unless(fits, name, address, "HOST:PORT, such as 127.0.0.1:8443")
    return host, int(port)


def check_client(
    client: Client, *, superlink: str | None = None, root_certificates: Path | None = None
) -> list[Finding]:
    """Check everything that a client needs; with the server's HOST:PORT, the connection, too."""
    checks: dict[str, Callable[[], str]] = {
        "programs": _programs, "file modes": partial(_modes, client),
        "ratings": partial(_ratings, client), "ledger": partial(_ledger, client),
    }  # fmt: skip
    if client.policy.secagg is not None:
        checks["roster"] = partial(_roster, client)
    if superlink is not None:
        address = host_and_port("--superlink", superlink)
        checks["connection"] = partial(_connected, *address, root_certificates)
    return [finding(what, check) for what, check in checks.items()]


def _programs() -> str:
    """Check that a SuperNode would start the installed client, and no code that a run brings."""
    home = Path(sys.executable).parent
    for name in ("flower-supernode", "flower-superexec"):
        path = shutil.which(name)
        if path is None or Path(path).parent.resolve() != home.resolve():
            raise ConfigError(f"{name}: put {home} first on PATH")
    for name in sorted(set(TASK_TYPE_TO_COMMAND.values())):
        path = shutil.which(name)
        if path is not None and b"bgtplanner.flower.pinned" not in Path(path).read_bytes():
            raise ConfigError(
                f"{name} would run code that a run brings along; put the folder 'pinned' (from "
                "deploy init) first on the PATH"
            )
    return f"flwr {metadata.version('flwr')} in {home}; only the installed client runs"


def _modes(client: Client) -> str:
    """Check that other users of this machine cannot read the ratings or change the policy."""
    file = client.file
    secret = [file.ratings, file.state]
    fixed = [file.policy, file.policy.parent, file.ratings.parent]
    if client.policy.secagg is not None:  # whoever changes the roster can invent clients
        fixed.append(file.policy.parent / client.policy.secagg.roster)
    for paths, forbidden, fault in (
        (secret, stat.S_IRWXO, "others may read or change it: chmod o-rwx"),
        (fixed, stat.S_IWGRP | stat.S_IWOTH, "others may change it: chmod go-w"),
    ):
        for path in paths:
            private = path.parent == file.state  # the folder around it keeps others out
            if path.exists() and path.stat().st_mode & forbidden and not private:
                raise ConfigError(f"{path}: {fault}")
    return "ratings and state are private, the policy is protected"


def _ratings(client: Client) -> str:
    """Check that the ratings can be read; the note counts them and names none."""
    table = client.file.table()
    return f"{len(table.user)} ratings by {len(table.user.names)} users"


def _ledger(client: Client) -> str:
    """Check that the ledger can be opened and written, and still has a budget."""
    with client.open_ledger() as ledger:
        left, spent = float(ledger.left()[0]), float(ledger.epsilon_spent()[0])
    with closing(sqlite3.connect(client.file.ledger, timeout=1.0, isolation_level=None)) as file:
        file.execute("BEGIN IMMEDIATE")  # others may be writing: nobody can if the file is fixed
        file.execute("ROLLBACK")
    spent_of = f"epsilon {spent:.3g} of {client.policy.epsilon:g} spent"
    if left <= 0:
        raise ConfigError(spent_of)
    return f"{spent_of}; a round may still cost {left:.4g}"


def _roster(client: Client) -> str:
    """Check with whom this client would add up; the digest is to be compared with the others'."""
    group, path = client.policy.secagg, client.file.identity
    key, roster = public_bytes(identity_in(path)), client.file.roster(client.policy)
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"{path}: others may read it: chmod 600")
    own = roster.names[roster.place(key)]
    note = f"{len(roster)} clients, this one as {own!r}; digest {roster.digest.hex()}"
    if group is not None and len(roster) < group.smallest_group:
        few = f"fewer than smallest_group = {group.smallest_group}, so no sum is joined"
        raise ConfigError(f"{note}; {few}")
    return note


def _connected(host: str, port: int, root_certificates: Path | None) -> str:
    """Check that the server answers over TLS, with a certificate that this client trusts."""
    trusted = ssl.create_default_context(cafile=root_certificates)
    with (
        socket.create_connection((host, port), _CONNECT_SECONDS) as plain,
        trusted.wrap_socket(plain, server_hostname=host) as secure,
    ):
        return f"{host}:{port}, {secure.version()}"
