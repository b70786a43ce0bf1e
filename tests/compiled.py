"""Compiled programs are kept from test to test, from process to process and from day to day.

Compiling is most of what the tests cost. JAX keeps programs in a folder and finds them by their
contents. It does not write them all at once, so that one process may see half of what another is
writing. It notices (a checksum), says so and compiles: nobody needs to hear of it.
"""

from __future__ import annotations

import shutil
from collections.abc import MutableMapping
from pathlib import Path

_LARGEST = 500 * 2**20
_HARMLESS = (
    "ignore:Error reading persistent compilation cache entry",
    "ignore:Error writing persistent compilation cache entry",
)

FOLDER = Path(__file__).resolve().parents[1] / "build" / "compiled"


def keep(environment: MutableMapping[str, str]) -> None:
    """Have JAX keep what it compiles, in every process with this environment."""
    if "PYTEST_XDIST_WORKER" not in environment:
        size = sum(path.stat().st_size for path in FOLDER.glob("*") if path.is_file())
        if size > _LARGEST:
            shutil.rmtree(FOLDER, ignore_errors=True)
    environment["JAX_COMPILATION_CACHE_DIR"] = str(FOLDER)
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    environment["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"
    said = environment.get("PYTHONWARNINGS")
    if _HARMLESS[0] not in (said or ""):
        environment["PYTHONWARNINGS"] = ",".join([*([said] if said else []), *_HARMLESS])
