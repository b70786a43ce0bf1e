"""Clients' identities under secure aggregation: who has one, proves it, and is in the roster."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bgtplanner.errors import ConfigError, MessageError
from bgtplanner.federation.aggregation import keys
from bgtplanner.federation.aggregation.roster import HEAD, Roster
from bgtplanner.flower.messages import Hello, HelloRequest
from bgtplanner.signing import key_in


def write_identity(file: Path) -> None:
    """Write a new identity key to a file that only its owner can read."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(Ed25519PrivateKey.generate().private_bytes_raw().hex().encode() + b"\n")
        stream.flush()
        os.fsync(stream.fileno())


def identity_in(file: Path) -> Ed25519PrivateKey:
    """Return the identity key in a file."""
    try:
        return Ed25519PrivateKey.from_private_bytes(key_in(str(file)))
    except ConfigError as error:
        raise ConfigError(
            f"{file}: expected an identity key; 'bgtplanner deploy enroll' makes one"
        ) from error


def proof_of(identity: Ed25519PrivateKey, roster: Roster, asked: HelloRequest) -> bytes:
    """Return the proof that a client has the key of its name, in answer to one question.

    Everybody with a roster knows the public keys of all clients. Without a proof, any machine that
    is let in could take another client's place, which would then be missing from the sums.
    """
    return keys.sign(identity, roster.digest, "hello", asked.nonce + asked.run.encode())


def check_proof(hello: Hello, roster: Roster, asked: HelloRequest) -> None:
    """Refuse a client that is not in the roster, has another one, or has not proved its name."""
    key = bytes.fromhex(hello.name)
    if key not in roster.keys:
        raise MessageError("a client that is not in the roster")
    try:
        keys.verify(key, hello.proof, roster.digest, "hello", asked.nonce + asked.run.encode())
    except MessageError as error:
        raise MessageError("no proof of its identity, or one for another roster") from error


def collect_roster(path: Path, lines: Iterable[tuple[str, str]]) -> tuple[Roster, int]:
    """Add clients to a roster file; return the roster, and how many are new in it.

    Each line, a key, a space and a name, comes with where it stands, for errors. Clients that are
    in the roster already stay where they are, so that the same lines may come again.
    """
    before = Roster.read(path) if path.exists() else None
    rows = [] if before is None else before.to_text().splitlines()[1:]
    known = {part: row for row in rows for part in row.split(" ", 1)}
    for where, line in lines:
        row = line.strip()
        try:
            Roster.from_text(f"{HEAD}\n{row}\n")
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
        for part in row.split(" ", 1):
            if known.setdefault(part, row) != row:
                raise ConfigError(
                    f"{where}: {part!r} is in the roster already, with another key or name. A "
                    "client is enrolled once: give this one another --name or, if it has a new "
                    "identity, delete its old line first"
                )
        rows.append(row)
    if not rows:
        raise ConfigError(f"{path}: there is no roster, and no line to begin it with")
    roster = Roster.from_text("\n".join((HEAD, *dict.fromkeys(rows))) + "\n")
    if roster != before:
        roster.write(path)
    return roster, len(roster) - (0 if before is None else len(before))
