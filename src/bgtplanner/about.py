"""What is installed here: the version, the commit it was built from, and which extras."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

NOTE = "commit.txt"
"""The file of the package in which a wheel has its commit; ``hatch_build.py`` writes it."""

EXTRAS = {
    "sim": ("jax", "optax", "joblib"),
    "report": ("matplotlib", "jinja2"),
    "flower": ("flwr",),
}
"""What can be installed with the package, and a few modules that come with it."""


def commit_of(checkout: Path) -> str | None:
    """Return the commit of a git checkout, with a mark if files were changed since.

    None is returned if the folder is not the root of one, but in somebody else's checkout.
    """
    if not (checkout / ".git").exists():
        return None
    git = ("git", "-C", str(checkout))
    asked = ((*git, "rev-parse", "HEAD"), (*git, "status", "--porcelain", "-uno"))
    try:
        head, changed = (
            subprocess.run(  # noqa: S603 - fixed words
                words, capture_output=True, text=True, check=True, timeout=60
            ).stdout.strip()
            for words in asked
        )
    except (OSError, subprocess.SubprocessError):  # no git, or not a repository that it reads
        return None
    return f"{head[:12]}, changed since" if changed else head[:12]


def commit() -> str | None:
    """Return the commit that this package is of: of its checkout, or as its wheel has it."""
    package = Path(__file__).parent
    if package.parent.name == "src" and (found := commit_of(package.parents[1])) is not None:
        return found
    try:
        return (package / NOTE).read_text(encoding="utf-8").strip()[:40] or None
    except (OSError, ValueError):
        return None


def about(version: str) -> list[str]:
    """Return the lines that ``bgtplanner --version`` prints."""
    there = {name: all(map(importlib.util.find_spec, of)) for name, of in EXTRAS.items()}
    has = ", ".join(name for name in there if there[name]) or "none"
    lacks = ", ".join(name for name in there if not there[name])
    extras = f"extras: {has}" + (f" (not installed: {lacks})" if lacks else "")
    return [f"bgtplanner {version}", f"commit: {commit() or 'not recorded'}", extras]
