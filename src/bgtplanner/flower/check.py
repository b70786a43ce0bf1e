"""Is this client ready to join? The checks run on its own machine, before it joins."""

from __future__ import annotations

import shutil
import socket
import sqlite3
import ssl
import stat
import sys
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from flwr.supercore.constant import TASK_TYPE_TO_COMMAND

from bgtplanner.errors import BGTPlannerError, ConfigError
from bgtplanner.federation.aggregation.keys import public_bytes
from bgtplanner.flower.client import Client
from bgtplanner.flower.installed import changed_files, installed_with
from bgtplanner.flower.sums import identity_in
from bgtplanner.models.learner import MODELS
from bgtplanner.privacy.ledger import in_write_ahead_mode, sqlite_warning

__all__ = ["Finding", "check_client"]

_FLOWER = ((1, 41), (1, 43))  # from this minor on, below that one
_CONNECT_SECONDS = 10.0


class Finding(NamedTuple):
    """The result of one check.

    Attributes:
        what: What was checked.
        well: Whether all is well.
        note: The result in words; never names a rating or an item.
    """

    what: str
    well: bool
    note: str


def check_client(
    client: Client, *, superlink: str | None = None, root_certificates: Path | None = None
) -> list[Finding]:
    """Check everything that a client needs.

    Args:
        client: The client to check.
        superlink: HOST:PORT of the server, to try the connection.
        root_certificates: Certificate of the authority that signed the server's.
    """
    found = [_versions(), _installed(), _programs(), _code(), _modes(client)]
    found += [_models(client), _ratings(client), _ledger(client)]
    if client.policy.secagg is not None:
        found += [_identity(client), _roster(client)]
    if superlink is not None:
        found.append(_connection(superlink, root_certificates))
    return found


def _versions() -> Finding:
    installed = metadata.version("flwr")
    minor = tuple(int(part) for part in installed.split(".")[:2])
    names = ", ".join(f"{name} {metadata.version(name)}" for name in ("bgtplanner", "flwr", "jax"))
    low, below = (".".join(map(str, version)) for version in _FLOWER)
    well = _FLOWER[0] <= minor < _FLOWER[1]
    return Finding("versions", well, names if well else f"{names}; flwr from {low} to < {below}")


def _installed() -> Finding:
    """Check that the files of this environment are those that were installed."""
    parts = installed_with("bgtplanner", frozenset({"flower"}))
    changed = {name: changed_files(name) for name in parts}
    bad = [f"{name}: {files[0]}" for name, files in changed.items() if files]
    if bad:
        note = f"{len(bad)} packages have files that were changed afterwards; first {bad[0]}"
        return Finding("installed", False, note)
    unknown = [name for name, files in changed.items() if files is None]
    sourced = f"; no hashes are recorded for {', '.join(unknown)}" if unknown else ""
    return Finding("installed", True, f"{len(parts)} packages, as they were installed{sourced}")


def _modes(client: Client) -> Finding:
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
            try:
                mode = path.stat().st_mode
            except OSError:  # missing: other checks say so
                continue
            private = path.parent == file.state  # the folder around it keeps others out
            if mode & forbidden and not private:
                return Finding("file modes", False, f"{path}: {fault}")
    return Finding("file modes", True, "ratings and state are private, the policy is protected")


def _programs() -> Finding:
    """Check that the programs a SuperNode starts by name are those of this environment."""
    home = Path(sys.executable).parent
    for name in ("flower-supernode", "flower-superexec"):
        path = shutil.which(name)
        if path is None or Path(path).parent.resolve() != home.resolve():
            return Finding("programs", False, f"{name}: put {home} first on PATH")
    return Finding("programs", True, f"Flower's, in {home}")


def _code() -> Finding:
    """Check that the installed client would run here, and not code that a run brings along."""
    for name in sorted(set(TASK_TYPE_TO_COMMAND.values())):
        path = shutil.which(name)
        try:
            script = "" if path is None else Path(path).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            return Finding("code", False, f"{path}: {error}")
        if path is not None and "bgtplanner.flower.pinned" not in script:
            note = f"{name} would run code that a run brings along; put the folder 'pinned' "
            return Finding("code", False, f"{note}(from deploy init) first on the PATH")
    return Finding("code", True, "only the installed client runs, whatever a run brings along")


def _models(client: Client) -> Finding:
    """Check that the models of the policy are installed here, with the settings that it names."""
    policy = client.policy
    for name in policy.models:
        try:
            MODELS[name](**policy.settings.get(name, {}))
        except (BGTPlannerError, TypeError) as error:
            return Finding("models", False, f"{name}: {error}")
    return Finding("models", True, ", ".join(policy.models))


def _ratings(client: Client) -> Finding:
    try:
        table = client.file.table()
    except BGTPlannerError as error:
        return Finding("ratings", False, str(error))
    users = len(set(table.user.tolist()))
    return Finding("ratings", True, f"{len(table.user)} ratings by {users} users")


def _ledger(client: Client) -> Finding:
    path = client.file.ledger
    try:
        warning = sqlite_warning(write_ahead=path.exists() and in_write_ahead_mode(path))
        with client.open_ledger() as ledger:
            left, spent = float(ledger.left()[0]), float(ledger.epsilon_spent()[0])
        database = sqlite3.connect(path, timeout=1.0, isolation_level=None)
        try:
            database.execute("BEGIN IMMEDIATE")
            database.execute("ROLLBACK")
        finally:
            database.close()
    except BGTPlannerError as error:
        return Finding("ledger", False, str(error))
    except sqlite3.Error as error:
        return Finding("ledger", False, f"{path}: cannot be written: {error}")
    epsilon = client.policy.epsilon
    note = f"epsilon {spent:.3g} of {epsilon:g} spent; a round may still cost {left:.4g}"
    if warning is not None:
        return Finding("ledger", False, f"{warning}; {note}")
    return Finding("ledger", left > 0, note)


def _identity(client: Client) -> Finding:
    """Check that the client has a key of its own that no one else on this machine can read."""
    path = client.file.identity
    try:
        key = public_bytes(identity_in(path)).hex()
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            return Finding("identity", False, f"{path}: others may read it: chmod 600")
    except (BGTPlannerError, OSError) as error:
        return Finding("identity", False, str(error))
    return Finding("identity", True, f"public key {key}")


def _roster(client: Client) -> Finding:
    """Check with whom this client would add up; the digest is to be compared with the others'."""
    group = client.policy.secagg
    try:
        roster = client.file.roster(client.policy)
        own = roster.names[roster.place(public_bytes(identity_in(client.file.identity)))]
    except BGTPlannerError as error:
        return Finding("roster", False, str(error))
    note = f"{len(roster)} clients, this one as {own!r}; digest {roster.digest.hex()}"
    if group is not None and len(roster) < group.smallest_group:
        note = f"{note}; fewer than smallest_group = {group.smallest_group}, so no sum is joined"
        return Finding("roster", False, note)
    return Finding("roster", True, note)


def _connection(superlink: str, root_certificates: Path | None) -> Finding:
    host, _, port = superlink.rpartition(":")
    fits = bool(host) and port.isdigit()
    ConfigError.unless(fits, "--superlink", superlink, "HOST:PORT")
    try:
        trusted = ssl.create_default_context(cafile=root_certificates)
        with (
            socket.create_connection((host, int(port)), _CONNECT_SECONDS) as plain,
            trusted.wrap_socket(plain, server_hostname=host) as secure,
        ):
            return Finding("connection", True, f"{superlink}, {secure.version()}")
    except (OSError, OverflowError) as error:
        return Finding("connection", False, f"{superlink}: {error}")
