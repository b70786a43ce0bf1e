"""Where things are kept that can be had again: public data sets and compiled programs."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    """The user's folder for what can be had again."""
    return with_home(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "bgtplanner"


def with_home(path: Path | str) -> Path:
    """The path with ``~`` expanded, if the system knows the home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)
