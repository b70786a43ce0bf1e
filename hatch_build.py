"""What a build adds: the commit it is of, the pages of the documentation, and where links lead.

Package indexes show the README without the files beside it. So its links and pictures are made
absolute, to the repository that this checkout is a clone of; where it is none, links become text.
"""

from __future__ import annotations

import re
import runpy
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface


def git(checkout: Path, *words: str) -> str | None:
    """Return what git says about a checkout; None if this is the root of none."""
    if not (checkout / ".git").exists():  # it could be in somebody else's
        return None
    try:
        return subprocess.run(  # noqa: S603 - fixed words
            ("git", "-C", str(checkout), *words),  # noqa: S607
            capture_output=True, text=True, check=True, timeout=60,
        ).stdout.strip()  # fmt: skip
    except (OSError, subprocess.SubprocessError):  # no git, or not a repository that it reads
        return None


def commit_of(checkout: Path) -> str | None:
    """Return the commit of a git checkout, with a mark if files were changed since."""
    head, changed = (
        git(checkout, "rev-parse", "HEAD"),
        git(checkout, "status", "--porcelain", "-uno"),
    )
    if head is None or changed is None:
        return None
    return f"{head[:12]}, changed since" if changed else head[:12]


def address_of(checkout: Path) -> str | None:
    """Return where others find the repository, if it was cloned from somewhere public."""
    origin = git(checkout, "remote", "get-url", "origin") or ""
    found = re.fullmatch(
        r"(?:https://|(?:ssh://)?git@)([\w.-]+)[:/]([\w./~-]+?)(?:\.git)?/?", origin
    )
    return f"https://{found[1]}/{found[2]}" if found else None


def readme_for(text: str, address: str | None, version: str) -> str:
    """Return a README whose links and pictures lead somewhere from any other place."""

    def link(found: re.Match[str]) -> str:
        picture, words, target = found.groups()
        if re.match(r"https?://|#", target):
            return found[0]
        if address is None:
            return "" if picture else words
        return f"{picture}[{words}]({address}/{'raw' if picture else 'blob'}/v{version}/{target})"

    return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", link, text)


class AddressHook(MetadataHookInterface):
    """Fills in the README and the project's addresses."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Make links absolute, and name the repository, its documentation and its changes."""
        root = Path(self.root)
        source = (root / "src" / "bgtplanner" / "__init__.py").read_text(encoding="utf-8")
        version = re.findall(r'^__version__ = "(.+)"$', source, re.M)[0]
        address = address_of(root)
        text = readme_for((root / "README.md").read_text(encoding="utf-8"), address, version)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        pages = {"Documentation": "docs/start.md", "Changelog": "CHANGELOG.md"}
        urls = {name: f"{address}/blob/v{version}/{page}" for name, page in pages.items()}
        metadata["urls"] = {"Homepage": address, "Source": address, **urls} if address else {}


class ContentHook(BuildHookInterface):
    """Adds ``commit.txt`` to the package, for ``bgtplanner --version``, and a wheel's ``docs``."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the pages, and write the note unless a source has it already."""
        if version == "editable":
            return
        root = Path(self.root)
        added = build_data["force_include"]
        if self.target_name == "wheel":
            docs = root / "docs"
            added |= {
                str(page): f"bgtplanner/docs/{page.relative_to(docs)}"
                for page in docs.rglob("*.md")
            }
        commit = commit_of(root)
        if commit is None:
            return
        about = runpy.run_path(str(root / "src" / "bgtplanner" / "about.py"))
        note = Path(self.directory) / about["NOTE"]
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(f"{commit}\n", encoding="utf-8")
        package = "src/bgtplanner" if self.target_name == "sdist" else "bgtplanner"
        added[str(note)] = f"{package}/{about['NOTE']}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the note from beside what was built."""
        del version, build_data, artifact_path
        about = runpy.run_path(str(Path(self.root) / "src" / "bgtplanner" / "about.py"))
        (Path(self.directory) / about["NOTE"]).unlink(missing_ok=True)
