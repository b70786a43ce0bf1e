"""The compiled programs of a process that makes one run after the other.

JAX keeps every program that it has compiled, and each of them holds memory maps: about a thousand
per run. Linux lets a process have 65,530 maps (``vm.max_map_count``). Beyond that the compiler
dies of a segmentation fault, and so does a process that compares a hundred settings.
"""

from __future__ import annotations

from pathlib import Path

import jax

__all__ = ["let_programs_go", "map_limit", "memory_maps", "padding_of"]

_FEWEST = 64
_USUAL_LIMIT = 65_530


def padding_of(number: int) -> int:
    """Return how many entries to add to make their number a power of two, and at least 64.

    A program is compiled for each number of entries. With padding there are few such numbers.

    Example:
        >>> [number + padding_of(number) for number in (0, 64, 65, 1000)]
        [64, 64, 128, 1024]
    """
    return max(_FEWEST, 1 << max(number - 1, 0).bit_length()) - number


def memory_maps() -> int:
    """Return how many memory maps this process has; 0 where the system does not count them."""
    try:
        with Path("/proc/self/maps").open("rb") as maps:
            return sum(1 for _ in maps)
    except OSError:  # not Linux, and no such limit
        return 0


def map_limit() -> int:
    """Return how many maps the kernel allows a process."""
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return _USUAL_LIMIT


def let_programs_go(most: int | None = None) -> bool:
    """Drop all compiled programs if they hold too many maps, and return whether they did.

    Call it between two runs, when hardly any program is needed again. Those that are needed are
    compiled again, and compute the same bits.

    Args:
        most: How many maps are allowed. By default a quarter of what the kernel allows: a dozen
            runs of different shapes, whose programs fit into one or two gigabytes.
    """
    if memory_maps() <= (map_limit() // 4 if most is None else most):
        return False
    jax.clear_caches()  # type: ignore[no-untyped-call]
    return True
