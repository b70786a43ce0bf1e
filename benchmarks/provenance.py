"""Which code, libraries and machine a stored run is of; results of other code are not mixed."""

from __future__ import annotations

import ast
import hashlib
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import bgtplanner

_FOLDERS = ("privacy", "planning", "data", "published", "models", "federation", "paper", "runs")


@cache
def fingerprint() -> str:
    """Of all code that decides what comes out of a run; comments and docstrings do not count."""
    digest = hashlib.sha256()
    package = Path(bgtplanner.__file__).parent
    for file in sorted(path for name in _FOLDERS for path in (package / name).rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                node.value.value = ""  # a docstring, or nothing
        digest.update(ast.dump(tree).encode())
    return digest.hexdigest()[:16]


@cache
def _commit() -> str:
    """The commit of the checkout, with a plus if files were changed since."""
    git = ("git", "-C", str(Path(bgtplanner.__file__).parent))
    asked = (("rev-parse", "--short", "HEAD"), ("status", "--porcelain", "-uno", "."))
    head, changed = (
        subprocess.run((*git, *words), capture_output=True, text=True, check=False).stdout.strip()
        for words in asked
    )
    return (head or "not known") + "+" * bool(changed)


def here() -> dict[str, Any]:
    """What is stored with every run."""
    libraries = {name: metadata.version(name) for name in ("jax", "numpy", "scipy")}
    return {
        "code": fingerprint(),
        "commit": _commit(),
        "versions": {"python": platform.python_version(), **libraries},
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }


def of_one_code(runs: Iterable[Mapping[str, Any]]) -> str:
    """In words, which commits and machines the runs of a page are of.

    Raises:
        SystemExit: If they are of code that decides differently, or that was not recorded.
    """
    found = [(run.get("code"), run.get("commit"), run.get("machine")) for run in runs]
    commits = sorted({str(commit) for _, commit, _ in found})
    if len({code for code, _, _ in found}) > 1 or (found and found[0][0] is None):
        raise SystemExit(
            f"the runs are of several versions of the code, or of one that was not recorded "
            f"(commits {', '.join(commits)}): run again what is stale before writing the page"
        )
    return f"commit {', '.join(commits)}, {', '.join(sorted({str(of) for *_, of in found}))}"
