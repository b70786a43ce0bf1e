"""Where things are kept that can be made again: downloads and compiled programs."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import sys
from functools import cache
from pathlib import Path

__all__ = ["machine", "user_cache", "with_home"]


def user_cache() -> Path:
    """The user's folder for what can be downloaded or made again."""
    return with_home(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "bgtplanner"


def with_home(path: Path | str) -> Path:
    """The path with ``~`` expanded, if the system knows the home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


@cache
def machine() -> str:
    """What programs are compiled for: no other processor or version is to run them."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            lines = [line for line in file if line.startswith(("model name", "flags", "Features"))]
        processor = sorted(set(lines))
    except OSError:
        processor = [platform.processor()]
    try:
        versions = [importlib.metadata.version(name) for name in ("jax", "jaxlib")]
    except importlib.metadata.PackageNotFoundError:
        versions = []
    parts = (*processor, *versions, sys.version, platform.machine())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
