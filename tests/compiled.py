"""Compiled programs are kept from test to test, from process to process and from day to day.

Compiling is most of what the tests cost, and most programs are compiled more than once. JAX keeps
them in a folder and finds them by their contents. It does not write them all at once, so that one
process may see half of what another is writing, or was writing when it was killed. It notices (a
checksum), says so and compiles: nobody needs to hear of it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

_LARGEST = 500 * 2**20
_HARMLESS = (
    "ignore:Error reading persistent compilation cache entry",
    "ignore:Error writing persistent compilation cache entry",
)


FOLDER = Path(__file__).resolve().parents[1] / "build" / "compiled"


def keep(environment: MutableMapping[str, str]) -> None:
    """Have JAX keep what it compiles, in every process with this environment."""
    if "PYTEST_XDIST_WORKER" not in environment and _size(FOLDER) > _LARGEST:
        shutil.rmtree(FOLDER, ignore_errors=True)
    environment["JAX_COMPILATION_CACHE_DIR"] = str(FOLDER)
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    environment["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"
    said = environment.get("PYTHONWARNINGS")
    if _HARMLESS[0] not in (said or ""):
        environment["PYTHONWARNINGS"] = ",".join([*([said] if said else []), *_HARMLESS])


_QUICK = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}
"""XLA's former code generator, which takes half as long for a program that runs a few times."""


@cache
def _quick_options() -> dict[str, Any]:
    """None where this version of XLA does not know them."""
    import jax

    try:
        jax.jit(lambda: 0, compiler_options=_QUICK)()
    except jax.errors.JaxRuntimeError:
        return {}
    return _QUICK


@contextmanager
def quickly() -> Iterator[None]:
    """Programs are compiled in less time, and take longer."""
    import jax
    from jax._src import compiler

    options, original = _quick_options(), compiler.get_compile_options

    def quick(*positional: Any, **named: Any) -> Any:
        named["env_options_overrides"] = options | (named.get("env_options_overrides") or {})
        return original(*positional, **named)

    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    compiler.get_compile_options = quick
    try:
        yield
    finally:
        compiler.get_compile_options = original
        jax.config.update("jax_disable_most_optimizations", before)


def quick_environment() -> dict[str, str]:
    """The same for a process that a test starts."""
    flags = [f"--{name}={str(value).lower()}" for name, value in _quick_options().items()]
    given = os.environ.get("XLA_FLAGS", "").split()
    return {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "XLA_FLAGS": " ".join([*given, *flags])}


def _size(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(place) / name).stat().st_size
            except FileNotFoundError:  # another session has just dropped it
                continue
    return total
