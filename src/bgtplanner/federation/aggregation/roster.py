"""Who is enrolled: an ordered list of clients with their identity keys, which every client holds.

The server cannot invent a client or replace a key, since the digest of the roster goes into
everything that a client signs.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path

from bgtplanner.durable import replace_file
from bgtplanner.errors import ConfigError, StorageError
from bgtplanner.text import LONGEST_LABEL, is_sha256, read_bytes, visible

MOST_CLIENTS = 100_000
HEAD = "bgtplanner roster 1"
_MOST_BYTES = MOST_CLIENTS * (LONGEST_LABEL + 66) + 100


@dataclass(frozen=True)
class Roster:
    """Clients with their Ed25519 public keys; messages name a client by its place in the order.

    Every message of a round is bound to the digest.

    Example:
        >>> roster = Roster(("ann", "bob"), (bytes(32), b"1" * 32))
        >>> Roster.from_text(roster.to_text()) == roster
        True
    """

    names: tuple[str, ...]
    keys: tuple[bytes, ...]
    digest: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse names and keys that are not one of each per client, and hash the file form."""
        if not 1 <= len(self.names) == len(self.keys) <= MOST_CLIENTS:
            raise ConfigError(
                f"a roster has {len(self.names)} names and {len(self.keys)} keys; expected as "
                f"many of both, at least 1 and at most {MOST_CLIENTS:,}"
            )
        for name in self.names:
            fits = re.fullmatch(r"\S(.*\S)?", name) and visible(name) == name and "\t" not in name
            if not fits or len(name.encode()) > LONGEST_LABEL:
                raise ConfigError(
                    f"the name {visible(name)[:80]!r} in a roster; expected 1 to {LONGEST_LABEL} "
                    "bytes of visible text without a space at either end"
                )
        if len(set(self.names)) < len(self.names) or len(set(self.keys)) < len(self.keys):
            raise ConfigError("a name or a key is twice in the roster; every client has its own")
        if any(len(key) != 32 for key in self.keys):
            raise ConfigError("a key in the roster does not have 32 bytes")
        object.__setattr__(self, "digest", hashlib.sha256(self.to_text().encode()).digest())

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self.names)

    def place(self, key: bytes) -> int:
        """Return the place of the client with this public key."""
        if key not in self.keys:
            raise ConfigError("this identity key is not in the roster: enroll it, or read anew")
        return self.keys.index(key)

    def to_text(self) -> str:
        """Return the file form: a head, then key and name of one client per line."""
        lines = (f"{key.hex()} {name}" for name, key in zip(self.names, self.keys, strict=True))
        return "\n".join((HEAD, *lines)) + "\n"

    @classmethod
    def from_text(cls, text: str) -> Roster:
        """Return the roster of a text that is exactly what :meth:`to_text` writes."""
        head, *lines = text.split("\n")
        rows = [line.partition(" ") for line in lines[:-1]]
        if head != HEAD or lines[-1:] != [""] or not all(is_sha256(key) for key, _, _ in rows):
            raise ConfigError(
                f"this is no roster: expected the line {HEAD!r}, then one line per client with "
                "64 hexadecimal digits, a space and a name"
            )
        keys = tuple(bytes.fromhex(key) for key, _, _ in rows)
        return cls(tuple(name for _, _, name in rows), keys)

    @classmethod
    def read(cls, path: Path) -> Roster:
        """Return the roster in a file."""
        try:
            return cls.from_text(read_bytes(path, _MOST_BYTES).decode())
        except (OSError, ValueError, ConfigError) as error:
            raise ConfigError(f"{path}: {error}; ask the operator for the roster") from error

    def write(self, path: Path) -> None:
        """Write the roster to a file, as a whole or not at all."""
        try:
            replace_file(path, self.to_text().encode())
        except OSError as error:
            raise StorageError.of(path, error, "write the roster again") from error
