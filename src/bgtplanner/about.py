"""What is installed here: the commit that a wheel was built from."""

from __future__ import annotations

from pathlib import Path

NOTE = "commit.txt"
"""The file of the package in which a wheel has its commit; ``hatch_build.py`` writes it."""


def commit() -> str | None:
    """Return the commit that a wheel was built from; None in a checkout."""
    try:
        return (Path(__file__).parent / NOTE).read_text(encoding="utf-8").strip()[:40] or None
    except (OSError, ValueError):
        return None
