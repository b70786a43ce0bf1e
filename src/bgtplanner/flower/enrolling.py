"""Collecting the clients' lines in a roster."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bgtplanner.errors import ConfigError
from bgtplanner.federation.aggregation.roster import Roster
from bgtplanner.text import MOST_BYTES_OF_SETTINGS, is_sha256, read_bytes

__all__ = ["collect", "lines_in"]


def lines_in(file: Path) -> list[tuple[str, str]]:
    """Return where each line of a file stands, and the line; blank ones are left out.

    Raises:
        ConfigError: If the file cannot be read as text.
    """
    try:
        text = read_bytes(file, MOST_BYTES_OF_SETTINGS).decode()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: cannot be read as lines of a roster: {error}") from error
    lines = enumerate(text.splitlines(), start=1)
    return [(f"{file}, line {number}", line) for number, line in lines if line.strip()]


def collect(file: Path, lines: Iterable[tuple[str, str]]) -> tuple[Roster, int]:
    """Add clients to a roster file, and return the roster and how many are new in it.

    Clients that are in it already stay where they are, so that the same lines may come again.

    Args:
        file: The roster; created if it is not there.
        lines: Where a line stands, for errors, and the line: a key, a space and a name.

    Raises:
        ConfigError: If a line is no client's, or contradicts another one.
        StorageError: If the roster cannot be written.
    """
    before = Roster.read(file) if file.exists() else None
    keys = {} if before is None else dict(zip(before.names, before.keys, strict=True))
    names = {key: name for name, key in keys.items()}
    for where, line in lines:
        text, _, name = line.strip().partition(" ")
        if not is_sha256(text):
            raise ConfigError(
                f"{where}: expected a line that 'bgtplanner deploy enroll' has printed: 64 "
                "hexadecimal digits, a space and a name"
            )
        key = bytes.fromhex(text)
        if keys.get(name, key) != key:
            raise ConfigError(
                f"{where}: {name!r} is in the roster already, with another key. Enroll this one "
                "with another --name; if it is the same client with a new identity, delete its "
                "old line first"
            )
        if names.get(key, name) != name:
            raise ConfigError(
                f"{where}: this key is in the roster already, as {names[key]!r}; a client is "
                "enrolled once, under one name"
            )
        keys[name], names[key] = key, name
    if not keys:
        raise ConfigError(f"{file}: there is no roster, and no line to begin it with")
    made = Roster(tuple(keys), tuple(keys.values()))
    if made != before:
        made.write(file)
    return made, len(made) - (0 if before is None else len(before))
