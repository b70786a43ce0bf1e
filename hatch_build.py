"""Records in a wheel, and in a source distribution, which commit it was built from."""

from __future__ import annotations

import runpy
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


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


class CommitHook(BuildHookInterface):
    """Adds ``commit.txt`` to the package, for ``bgtplanner --version``."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the note, unless this is a checkout in use or a source that has it already."""
        root = Path(self.root)
        about = runpy.run_path(str(root / "src" / "bgtplanner" / "about.py"))
        commit = commit_of(root)
        if version == "editable" or commit is None:
            return
        note = Path(self.directory) / about["NOTE"]
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(f"{commit}\n", encoding="utf-8")
        package = "src/bgtplanner" if self.target_name == "sdist" else "bgtplanner"
        build_data["force_include"][str(note)] = f"{package}/{about['NOTE']}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the note from beside what was built."""
        del version, artifact_path
        for note in build_data["force_include"]:
            Path(note).unlink(missing_ok=True)
