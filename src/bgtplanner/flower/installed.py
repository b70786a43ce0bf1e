"""What is installed here, and whether its files are still those that were installed.

Wheels list their files with hashes, and so does the environment that they were installed into.
That detects a file that was damaged or edited afterwards. It does not tell who made the wheel: for
that, install from an index that you trust, with hashes (`pip install --require-hashes`).
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

__all__ = ["bill_of_materials", "changed_files", "installed_with"]


def installed_with(name: str, extras: frozenset[str] = frozenset()) -> dict[str, str]:
    """Return the installed versions of a distribution and all its dependencies, by name."""
    found: dict[str, str] = {}
    queue = [(name, extras)]
    while queue:
        current, wanted = queue.pop()
        try:
            distribution = metadata.distribution(current)
        except metadata.PackageNotFoundError:
            continue  # an extra that is not installed
        known = _plain(current)
        if known in found and not wanted:
            continue
        found[known] = distribution.version
        queue += [need for need in _needs(distribution, wanted) if _plain(need[0]) not in found]
    return dict(sorted(found.items()))


def changed_files(name: str) -> list[str] | None:
    """Return the files of a distribution that are missing or have changed since installation.

    None if no hashes are recorded, as for a package that runs from its source folder.
    """
    files = metadata.distribution(name).files or []
    recorded = [file for file in files if file.hash is not None and file.suffix != ".pyc"]
    if not any(file.suffix == ".py" for file in recorded):
        return None
    changed = []
    for file in recorded:
        try:
            content = Path(file.locate()).read_bytes()
        except OSError:
            changed.append(str(file))
            continue
        said = file.hash
        if said is not None and said.mode in hashlib.algorithms_guaranteed:
            digest = base64.urlsafe_b64encode(hashlib.new(said.mode, content).digest())
            if digest.decode().rstrip("=") != said.value:
                changed.append(str(file))
    return changed


def bill_of_materials(name: str, extras: frozenset[str] = frozenset()) -> dict[str, Any]:
    """Return all that is installed for a distribution as a CycloneDX 1.5 document."""
    components = [
        _component(part, version) for part, version in installed_with(name, extras).items()
    ]
    (main,) = [part for part in components if part["name"] == _plain(name)]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": main},
        "components": [part for part in components if part is not main],
    }


def _component(name: str, version: str) -> dict[str, Any]:
    about = metadata.distribution(name)
    component: dict[str, Any] = {
        "type": "library",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
    }
    if "License-Expression" in about.metadata:
        component["licenses"] = [{"expression": about.metadata["License-Expression"]}]
    record = about.read_text("RECORD")
    if record:  # it has the hashes of all files, so its hash covers them all
        digest = hashlib.sha256(record.encode()).hexdigest()
        component["properties"] = [{"name": "bgtplanner:record-sha256", "value": digest}]
    return component


def _needs(
    distribution: metadata.Distribution, extras: frozenset[str]
) -> Iterator[tuple[str, frozenset[str]]]:
    for text in distribution.requires or []:
        try:
            need = Requirement(text)
        except InvalidRequirement:  # a mistake in that package: nothing here depends on it
            continue
        marker = need.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in {"", *extras}):
            yield need.name, frozenset(need.extras)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
