"""What compiled programs cost a process that plays one run after the other.

JAX keeps every program that it has compiled, and each of them keeps pieces of memory mapped: about
a thousand for one run. Linux lets a process have 65,530 maps (``vm.max_map_count``); the compiler
dies of a segmentation fault when it is refused one more, and with it whoever compares a hundred
settings in one process.
"""

from __future__ import annotations

from pathlib import Path

import jax

__all__ = ["let_programs_go", "map_limit", "memory_maps", "padding_of"]

_FEWEST = 64
_USUAL_LIMIT = 65_530


def padding_of(number: int) -> int:
    """How many entries to add to these, so that there are a power of two, and at least 64.

    A program is compiled for a number of entries: like this there are few of them, however many
    numbers of entries come.

    Example:
        >>> [number + padding_of(number) for number in (0, 64, 65, 1000)]
        [64, 64, 128, 1024]
    """
    return max(_FEWEST, 1 << max(number - 1, 0).bit_length()) - number


def memory_maps() -> int:
    """Return how many pieces of memory this process has mapped; 0 where nobody counts them."""
    try:
        with Path("/proc/self/maps").open("rb") as maps:
            return sum(1 for _ in maps)
    except OSError:  # not Linux, and no such limit
        return 0


def map_limit() -> int:
    """Return how many maps the kernel lets a process have."""
    try:
        return int(Path("/proc/sys/vm/max_map_count").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return _USUAL_LIMIT


def let_programs_go(most: int | None = None) -> bool:
    """Drop all compiled programs if they have come to hold too many maps; return whether they had.

    To be called between two runs, where next to nothing of it is needed again. Whatever is, is
    compiled anew, and computes the same bits.

    Args:
        most: How many maps are not yet too many. By default a quarter of what the kernel allows:
            a dozen runs of different shapes, and the programs fit into one or two gigabytes.
    """
    if memory_maps() <= (map_limit() // 4 if most is None else most):
        return False
    jax.clear_caches()  # type: ignore[no-untyped-call]
    return True
