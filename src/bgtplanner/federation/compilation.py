"""How the functions of a round are compiled, and where compiled programs are kept.

Compiling is most of what a short run waits for. JAX's persistent compilation cache keeps programs
in the user's cache folder, and small data get programs that are compiled sooner and run longer.
"""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Callable, Hashable
from functools import cache, partial
from typing import Any

import jax

from bgtplanner.durable import user_cache, with_home

FEW_RATINGS = 1 << 14
"""With at most so many ratings, compiling a round takes longer than all the rounds of a run."""

# This fusion makes a round of gathers and segment sums about a third slower on a CPU.
_ON_CPU: dict[str, Any] = {"xla_cpu_experimental_ynn_fusion_type": ""}

# Fewer optimisations, and XLA's former code generator: it compiles in less than half of the time.
_QUICK: dict[str, Any] = {
    "xla_backend_optimization_level": 1,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 2,
    "xla_cpu_prefer_vector_width": 128,
}

_RUNS_KEPT = 40
_runs = itertools.count(1)


def use_compilation_cache() -> None:
    """Have JAX keep what it compiles from now on in the user's cache folder.

    The environment variable ``BGTPLANNER_CACHE`` names another folder, or is ``off``. One that the
    user has chosen for JAX stays. One in which others may write is not used: whoever may write
    there could have us run anything.
    """
    wanted = os.environ.get("BGTPLANNER_CACHE", "")
    if wanted == "off" or jax.config.values["jax_compilation_cache_dir"]:
        return
    place = (with_home(wanted) if wanted else user_cache()) / "programs"
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        about = place.stat()
    except OSError:
        return
    if about.st_uid != os.geteuid() or about.st_mode & 0o022:
        return
    # An entry that was written by half, because the disk was full, is compiled anew.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache")
    for name, value in {
        "jax_compilation_cache_dir": str(place),
        "jax_persistent_cache_min_compile_time_secs": 0.1,
        "jax_persistent_cache_enable_xla_caches": "none",  # they would grow without bounds
    }.items():
        jax.config.update(name, value)  # type: ignore[no-untyped-call]


def begin_run() -> None:
    """Drop all compiled programs once in a while: call it at the beginning of each run.

    Each program holds memory maps, up to a few hundred per run, of which Linux lets a process have
    65,530 (``vm.max_map_count``). Beyond that, the compiler dies of a segmentation fault.
    """
    if next(_runs) % _RUNS_KEPT == 0:
        jax.clear_caches()  # type: ignore[no-untyped-call]


@cache
def compiled(
    function: Callable[..., Any], federation: Hashable, device: jax.Device, *, quickly: bool,
    **fixed: Hashable,
) -> Callable[..., Any]:  # fmt: skip
    """Return a pure function of a federation and arrays, compiled for a device.

    `fixed` are arguments that are no arrays. Runs of equal federations and shapes share it.
    """
    options = _options(device.platform, quickly)
    return jax.jit(partial(function, federation, **fixed), compiler_options=options)


@cache
def _options(platform: str, quickly: bool) -> dict[str, Any] | None:
    """Return the options for XLA on a device, or None where XLA does not know them."""
    if platform != "cpu":
        return None
    options = _ON_CPU | (_QUICK if quickly else {})
    try:
        jax.jit(lambda: 0, compiler_options=options)()
    except jax.errors.JaxRuntimeError:  # this version of XLA does not have one of them
        return None
    return options


def padding_of(number: int) -> int:
    """Return how many entries to add to make their number a power of two, and at least 64.

    A program is compiled for each number of entries. With padding there are few such numbers.
    """
    return max(64, 1 << max(number - 1, 0).bit_length()) - number
