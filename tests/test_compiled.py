"""Kept programs save time and cannot do harm."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import compiled
from processes import Processes

PROGRAM = "import jax, numpy; print(float(jax.jit(lambda x: (x * 2).sum())(numpy.arange(64.0))))"


@pytest.mark.parametrize("size", [0, 0.5, 1], ids=["empty", "cut", "flipped"])
def test_a_broken_entry_is_compiled_anew(
    processes: Processes, tmp_path: Path, size: float
) -> None:
    """As a process leaves it that is killed while it writes."""
    environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
    for _ in range(2):
        done = processes.run([sys.executable, "-c", PROGRAM], env=environment)
        assert (done.returncode, done.stdout, done.stderr) == (0, "4032.0\n", "")
        (entry,) = tmp_path.glob("jit__lambda*-cache")
        whole = bytearray(entry.read_bytes())
        if whole:
            whole[len(whole) // 2] ^= 1
        entry.write_bytes(whole[: int(size * len(whole))])


def test_here_it_is_no_error_either() -> None:
    import jax
    import numpy as np

    program = jax.jit(lambda value: value * 3 + 0.125)
    assert program(np.ones(3)).tolist() == [3.125] * 3
    entries = list(compiled.FOLDER.glob("*-cache"))
    assert entries, "nothing is kept: every test file compiles all it needs"
