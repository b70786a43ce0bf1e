"""How a file is replaced as a whole: a crash at any instant leaves the old one or the new one."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path

__all__ = ["replace_file"]


def replace_file(target: Path, content: bytes) -> None:
    """Write beside the target, flush to the disk, then rename over it."""
    temporary = target.parent / f".tmp-{secrets.token_hex(8)}"
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
