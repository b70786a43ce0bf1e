"""What is installed here: the version, the commit it was built from, and which extras."""

from __future__ import annotations

import importlib.util
from pathlib import Path

NOTE = "commit.txt"
"""The file of the package in which a wheel has its commit; ``hatch_build.py`` writes it."""

EXTRAS = {
    "sim": ("jax", "optax", "joblib"),
    "report": ("matplotlib", "jinja2"),
    "flower": ("flwr",),
}
"""What can be installed with the package, and a few modules that come with it."""


def commit() -> str | None:
    """Return the commit that a wheel was built from; None in a checkout."""
    try:
        return (Path(__file__).parent / NOTE).read_text(encoding="utf-8").strip()[:40] or None
    except (OSError, ValueError):
        return None


def about(version: str) -> list[str]:
    """Return the lines that ``bgtplanner --version`` prints."""
    there = {name: all(map(importlib.util.find_spec, of)) for name, of in EXTRAS.items()}
    has = ", ".join(name for name in there if there[name]) or "none"
    lacks = ", ".join(name for name in there if not there[name])
    extras = f"extras: {has}" + (f" (not installed: {lacks})" if lacks else "")
    return [f"bgtplanner {version}", f"commit: {commit() or 'not recorded: a checkout'}", extras]
