"""What is installed here: the version, the commit it was built from, and which extras."""

from __future__ import annotations

import re
import subprocess
from importlib import metadata
from pathlib import Path

__all__ = ["NOTE", "about", "commit", "commit_of", "extras"]

NOTE = "commit.txt"
"""The file of the package in which a wheel has its commit; ``hatch_build.py`` writes it."""

_REQUIREMENT = re.compile(
    r"([\w.-]+)(?:\[([\w,.\s-]*)\])?[^;]*(?:;.*?extra\s*==\s*['\"]([\w-]+))?"
)
_SECONDS = 60  # for git, which answers at once unless something is wrong


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
                words, capture_output=True, text=True, check=True, timeout=_SECONDS
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
        needs = metadata.requires(name) or []
    except metadata.PackageNotFoundError:  # on a path, and not installed
        return {}
    found: dict[str, list[tuple[str, list[str]]]] = {}
    for need in needs:
        if (parts := _REQUIREMENT.match(need)) is not None and parts[3] is not None:
            inner = [one.strip() for one in (parts[2] or "").split(",") if one.strip()]
            found.setdefault(parts[3], []).append((parts[1], inner))

    def complete(extra: str) -> bool:
        return all(
            all(map(complete, inner)) if need == name else _is_installed(need)
            for need, inner in found.get(extra, ())
        )

    return {extra: complete(extra) for extra in found}


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
