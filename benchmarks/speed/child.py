"""Processes of their own: each measurement starts from a clean one, on a stated number of CPUs.

The process that starts the others must itself stay small (no JAX, no torch): on Linux the peak
memory of a process counts from what its parent held when it was started.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import quantiles
from typing import Any


def measure(module: str, *arguments: object) -> dict[str, Any]:
    """What ``python -m module arguments`` printed: one JSON object on its last line."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[1:])} failed:\n{done.stdout}{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def available_cpus() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def stay_on(cpus: int) -> None:
    """Let this process use that many CPUs. Call it before JAX or torch is imported."""
    os.environ["OMP_NUM_THREADS"] = str(cpus)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cpus])
    elif cpus < available_cpus():
        raise SystemExit("this system cannot keep a process on some of its CPUs; try Linux")


def peak_bytes() -> int:
    """Largest resident size of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


@contextmanager
def stopwatch() -> Iterator[list[float]]:
    """A list to which the seconds spent inside are appended at the end."""
    seconds: list[float] = []
    begun = time.perf_counter()
    yield seconds
    seconds.append(time.perf_counter() - begun)


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile."""
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return low, middle, high
