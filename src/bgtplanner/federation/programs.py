"""Compiled programs: what is compiled for a run, and what a process and its user keep of it.

Compiling is most of what a short run waits for. So there are few programs; small data get them in
a form that is compiled sooner and runs longer; and they are kept in the user's cache folder.

A process keeps every program that it has compiled, too, and each of them holds memory maps: one to
a few hundred per run. Linux lets a process have 65,530 maps (``vm.max_map_count``). Beyond that,
the compiler dies of a segmentation fault: so would a process that compares hundreds of settings.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from bgtplanner.federation import kept
from bgtplanner.models.interactions import COPIED

__all__ = [
    "FEW_RATINGS",
    "Program",
    "let_programs_go",
    "map_limit",
    "memory_maps",
    "padding_of",
    "patiently",
]

FEW_RATINGS = 1 << 14
"""With so few, compiling a round takes longer than all the rounds of a run."""

PATIENCE = 2.0
"""Seconds that a program may take to compile before anyone is told."""

# This XLA fusion makes a round of gathers and segment sums about a third slower on the CPU.
_ON_CPU: dict[str, Any] = {"xla_cpu_experimental_ynn_fusion_type": ""}

# Fewer optimizations, and XLA's former code generator: 0.6 of the time for compiling a round of
# the demo, which then takes 11 ms instead of 8. Without any optimization it would take 57 ms.
_QUICK: dict[str, Any] = {
    "xla_backend_optimization_level": 1,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 2,  # each piece more costs time of its own
    "xla_cpu_prefer_vector_width": 128,  # shorter code: a seventh less time, and no slower here
}

# No optimization at all: a fourth of that time again, for what computes little or is rarely run.
_LIGHT: dict[str, Any] = _QUICK | {"xla_backend_optimization_level": 0}

_PROGRAMS: set[Program] = set()
_UNKNOWN: set[str] = set()  # options that this version of the compiler does not have

_FEWEST = 64
_USUAL_LIMIT = 65_530


_BEHIND = ThreadPoolExecutor(1, thread_name_prefix="compiling")


class Program:
    """A function that is compiled when it is first called, for each device, size and shape.

    A program that was kept is not even traced again: see :mod:`bgtplanner.federation.kept`. On
    several devices nothing is kept, and each of them gets the whole result.

    Args:
        function: A pure function of arrays.
        static: Positions of the arguments that are no arrays.
        donated: Positions of the arguments whose memory the results may take.
        light: Whether it computes little beside a round, or runs a few times at most: for small
            data it is then not optimised at all.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        static: tuple[int, ...],
        donated: tuple[int, ...] = (),
        light: bool = False,
    ) -> None:
        self._function, self._static, self._donated = function, static, donated
        self._if_small = _LIGHT if light else _QUICK
        self._made: dict[tuple[Any, ...], list[jax.stages.Compiled]] = {}
        self._coming: dict[tuple[Any, ...], list[Future[jax.stages.Compiled]]] = {}
        self._compiling = threading.RLock()
        _PROGRAMS.add(self)

    def __call__(self, device: jax.Device | Mesh, small: bool, *arguments: Any) -> Any:
        """Return the result; `small` says that the arguments are, so that it runs in no time."""
        static, arrays = self._parted(arguments)
        key = (device, small, *static)
        made = self._made.setdefault(key, [])
        before = len(made)
        for compiled in made[:before]:
            with contextlib.suppress(TypeError):  # it is for other shapes
                return compiled(*arrays)
        with self._compiling:  # others who want the same wait for it
            for compiled in made[before:]:
                with contextlib.suppress(TypeError):
                    return compiled(*arrays)
            coming = self._coming.get(key, [])
            while coming:
                found = coming.pop(0)
                if found.exception() is None:  # else it is compiled here, and fails if it must
                    made.append(found.result())
                    with contextlib.suppress(TypeError):
                        return made[-1](*arrays)
            made.append(self._ready(device, small, arguments))
        return made[-1](*arrays)

    def prepare(self, device: jax.Device, small: bool, *arguments: Any) -> None:
        """Compile it in the background for arguments like these; a later call waits for it."""
        static, arrays = self._parted(arguments)
        shapes = iter(jax.tree.map(_shape_of, arrays))
        places = range(len(arguments))
        alike = [arguments[at] if at in self._static else next(shapes) for at in places]

        def compiled() -> jax.stages.Compiled:
            with jax.default_device(device):
                return self._ready(device, small, alike)

        self._coming.setdefault((device, small, *static), []).append(_BEHIND.submit(compiled))

    def forget(self) -> None:
        """Drop all that was compiled."""
        self._made.clear()
        self._coming.clear()

    def _parted(self, arguments: Sequence[Any]) -> tuple[tuple[Any, ...], list[Any]]:
        static = tuple(arguments[place] for place in self._static if place < len(arguments))
        return static, [each for at, each in enumerate(arguments) if at not in self._static]

    def _ready(
        self, where: jax.Device | Mesh, small: bool, arguments: Sequence[Any]
    ) -> jax.stages.Compiled:
        """Find it among those that were kept, or compile it and keep it."""
        static, arrays = self._parted(arguments)
        several: dict[str, Any] = {}
        device = where
        if isinstance(where, Mesh):
            several["out_shardings"] = NamedSharding(where, COPIED)
            device = where.devices.flat[0]
        while True:
            options = self._options(device, small)
            what = (self._function, self._static, self._donated, options, static)
            name = None if several else kept.name_of(device, what, arrays)
            found = kept.load(name, device, arrays)
            if found is not None:
                return found
            jitted = jax.jit(
                self._function,
                static_argnums=self._static,
                donate_argnums=self._donated,
                compiler_options=options or None,
                **several,
            )
            try:
                with kept.alone(name):
                    found = jitted.lower(*arguments).compile()
            except jax.errors.JaxRuntimeError as error:
                unknown = re.search(r"No such compile option: '(\w+)'", str(error))
                if unknown is None or unknown[1] in _UNKNOWN:
                    raise
                _UNKNOWN.add(unknown[1])  # another version of the compiler: do without it
                continue
            kept.keep(name, found)
            return found

    def _options(self, device: jax.Device, small: bool) -> dict[str, Any]:
        if device.platform != "cpu":
            return {}
        wanted = _ON_CPU | (self._if_small if small else {})
        return {name: wanted[name] for name in wanted if name not in _UNKNOWN}


def _shape_of(leaf: Any) -> Any:
    kind = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(kind.shape, kind.dtype, weak_type=kind.weak_type)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def patiently(tell: Callable[[], None] | None) -> Iterator[None]:
    """While a program may be compiled, call `tell` once if that takes more than two seconds."""
    if tell is None:
        yield
        return
    timer = threading.Timer(PATIENCE, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


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
        most: How many maps are allowed. By default a quarter of what the kernel allows: dozens
            of runs of different shapes, whose programs fit into one or two gigabytes.
    """
    if memory_maps() <= (map_limit() // 4 if most is None else most):
        return False
    for program in _PROGRAMS:
        program.forget()
    jax.clear_caches()  # type: ignore[no-untyped-call]
    return True
