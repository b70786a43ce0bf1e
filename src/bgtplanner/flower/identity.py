"""A client's identity under secure aggregation, and how it proves it."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bgtplanner.errors import ConfigError, MessageError
from bgtplanner.federation.aggregation import keys
from bgtplanner.federation.aggregation.roster import Roster
from bgtplanner.flower.messages import Hello, HelloRequest


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
        return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(file.read_text("ascii").strip()))
    except (OSError, ValueError) as error:
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
