"""A client's place in secure aggregation: its identity, the roster, and where it keeps a round."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from bgtplanner.durable import replace_file
from bgtplanner.errors import ConfigError, MessageError
from bgtplanner.federation.aggregation import keys
from bgtplanner.federation.aggregation.roster import Roster
from bgtplanner.flower.messages import Hello, HelloRequest

__all__ = ["RoundStore", "check_proof", "identity_in", "new_identity", "proof_of"]

_ROUNDS_KEPT = 8  # entries of two files each; the ledger refuses rounds that are over


class RoundStore:
    """The rounds of a client in files: secret, and durable when `save` returns.

    Only the newest rounds are kept. A server that makes a client forget one gains nothing: keys
    and masks of a round that is begun again are fresh, and the ledger pays for a round once.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, key: str) -> bytes | None:
        """Return what was saved last under this key, if anything was."""
        try:
            return (self._folder / key).read_bytes()
        except FileNotFoundError:
            return None

    def save(self, key: str, content: bytes) -> None:
        """Replace what is under this key, as a whole or not at all."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        replace_file(self._folder / key, content)
        self._forget(key)

    def _forget(self, key: str) -> None:
        files = list(self._folder.iterdir())
        for left in [path for path in files if path.name.startswith(".")]:
            left.unlink()  # by a process that was killed; it holds secrets
            files.remove(left)
        names = {path.name.partition("-")[0] for path in files} - {key.partition("-")[0]}
        if len(names) < _ROUNDS_KEPT:
            return

        def age(name: str) -> int:
            return max(path.stat().st_mtime_ns for path in files if path.name.startswith(name))

        for name in sorted(names, key=age)[: len(names) - _ROUNDS_KEPT + 1]:
            for part in ("state", "begun"):  # one without the other is refused, too
                with contextlib.suppress(FileNotFoundError):
                    (self._folder / f"{name}-{part}").unlink()


def new_identity(file: Path) -> Ed25519PrivateKey:
    """Return a new identity key, after writing it to a file that only its owner can read."""
    key = Ed25519PrivateKey.generate()
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(key.private_bytes_raw().hex().encode() + b"\n")
        stream.flush()
        os.fsync(stream.fileno())
    return key


def identity_in(file: Path) -> Ed25519PrivateKey:
    """Return the identity key in a file.

    Raises:
        ConfigError: If there is none.
    """
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
    """Refuse a client that is not in the roster, has another one, or has not proved its name.

    Raises:
        MessageError: If so.
    """
    key = bytes.fromhex(hello.name)
    if key not in roster.keys:
        raise MessageError("a client that is not in the roster")
    try:
        keys.verify(key, hello.proof, roster.digest, "hello", asked.nonce + asked.run.encode())
    except MessageError as error:
        raise MessageError("no proof of its identity, or one for another roster") from error
