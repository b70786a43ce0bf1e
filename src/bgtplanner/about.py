"""What is installed here: the version, the commit it was built from, and which extras."""

from __future__ import annotations

import re
import subprocess
from importlib import metadata
from pathlib import Path

NOTE = "commit.txt"
"""The file of the package in which a wheel has its commit; ``hatch_build.py`` writes it."""

_NEED = re.compile(r"([\w.-]+)(?:\[([\w,.\s-]*)\])?[^;]*;.*?extra\s*==\s*['\"]([\w-]+)")


def commit_of(checkout: Path) -> str | None:
    """Return the commit of a git checkout, with a mark if files were changed since.

    Args:
        checkout: The root of the checkout; None is returned if it is not the root of one.
    """
    if not (checkout / ".git").exists():  # a folder that belongs to somebody else's checkout
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


def extras(name: str = "bgtplanner") -> dict[str, bool]:
    """Return whether all that an extra needs is installed, by the name of the extra."""
    try:
        needs = [found for need in metadata.requires(name) or [] if (found := _NEED.match(need))]
    except metadata.PackageNotFoundError:  # on a path, and not installed
        return {}

    def is_complete(extra: str) -> bool:
        own = [need for need in needs if need[3] == extra]
        inner = [of.strip() for need in own if need[1] == name for of in need[2].split(",")]
        others = [need[1] for need in own if need[1] != name]
        return all(map(_is_installed, others)) and all(map(is_complete, inner))

    return {extra: is_complete(extra) for extra in dict.fromkeys(need[3] for need in needs)}


def _is_installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def about(version: str) -> list[str]:
    """Return the lines that ``bgtplanner --version`` prints."""
    known = {name: there for name, there in extras().items() if name != "all"}
    there = ", ".join(name for name, is_there in known.items() if is_there) or "none"
    absent = ", ".join(name for name, is_there in known.items() if not is_there)
    return [
        f"bgtplanner {version}",
        f"commit: {commit() or 'not recorded'}",
        f"extras: {there}" + (f" (not installed: {absent})" if absent else ""),
    ]
