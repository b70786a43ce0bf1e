"""Replacing a file as a whole: a crash at any instant leaves the old one or the new one."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def replace_file(target: Path, content: bytes, *, private: bool = False) -> None:
    """Replace a file by one with this content, which if `private` only its owner can read."""
    with replacing(target, private=private) as file:
        file.write(content)


@contextlib.contextmanager
def replacing(target: Path, *, private: bool = False) -> Iterator[BinaryIO]:
    """Yield a file to write to; at the end it is flushed and renamed over the target.

    Without flushing the folder as well, a power cut could bring the old file back after this has
    returned. After an error, the target is as it was.
    """
    temporary = target.parent / f".tmp-{secrets.token_hex(8)}"
    try:
        mode = 0o600 if private else 0o666
        with open(temporary, "xb", opener=lambda path, how: os.open(path, how, mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def user_cache() -> Path:
    """The user's folder for what can be had again."""
    return with_home(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "bgtplanner"


def with_home(path: Path | str) -> Path:
    """The path with ``~`` expanded, if the system knows the home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)
