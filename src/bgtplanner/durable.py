"""Replacing a file as a whole: a crash at any instant leaves the old one or the new one."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

__all__ = ["replace_file"]


def replace_file(target: Path, content: bytes) -> None:
    """Write a temporary file, flush it, rename it over the target, and flush the folder.

    Without the last step, a power cut could bring the old file back after this has returned.
    """
    temporary = target.parent / f".tmp-{secrets.token_hex(8)}"
    try:
        with temporary.open("xb") as file:
            file.write(content)
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
