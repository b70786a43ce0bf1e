"""Is this client ready to join? The checks run on its own machine, before it joins."""

from __future__ import annotations

import shutil
import stat
import sys
from importlib import metadata
from pathlib import Path

from flwr.supercore.constant import TASK_TYPE_TO_COMMAND

from bgtplanner.errors import ConfigError
from bgtplanner.federation.aggregation.keys import public_bytes
from bgtplanner.flower.client import Client
from bgtplanner.flower.identity import identity_in


def check_client(client: Client) -> dict[str, str]:
    """Return what was found of each part that a client needs; the first that fails is refused.

    No note names a rating or an item.
    """
    found = {"programs": _programs(), "file modes": _modes(client)}
    table = client.file.table()
    found["ratings"] = f"{len(table.user)} ratings by {len(table.user.names)} users"
    with client.open_ledger() as ledger:
        left, spent = float(ledger.left()[0]), float(ledger.epsilon_spent()[0])
    spent_of = f"epsilon {spent:.3g} of {client.policy.epsilon:g} spent"
    if left <= 0:
        raise ConfigError(spent_of)
    found["ledger"] = f"{spent_of}; a round may still cost {left:.4g}"
    return found if client.policy.secagg is None else found | {"roster": _roster(client)}


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
