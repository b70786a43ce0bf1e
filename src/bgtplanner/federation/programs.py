"""Compiled programs: what is compiled for a run, and what a process and its user keep of it.

Compiling is most of what a short run waits for. So there are few programs; small data get them in
a form that is compiled sooner and runs longer; and they are kept in the user's cache folder.

A process keeps every program that it has compiled, too, and each of them holds memory maps: one to
a few hundred per run. Linux lets a process have 65,530 maps (``vm.max_map_count``). Beyond that,
the compiler dies of a segmentation fault: so would a process that compares hundreds of settings.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from bgtplanner.caches import machine, user_cache, with_home

__all__ = [
    "FEW_RATINGS",
    "KeptPrograms",
    "Program",
    "keep_programs",
    "let_programs_go",
    "map_limit",
    "memory_maps",
    "padding_of",
    "patiently",
]

FEW_RATINGS = 1 << 14
"""With so few, compiling a round takes longer than all the rounds of a run."""

MOST_BYTES = 512 * 2**20
"""Size of the folder of kept programs: a few hundred runs of different shapes."""

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
}

_UNKNOWN: set[str] = set()  # options that this version of the compiler does not have

_FEWEST = 64
_USUAL_LIMIT = 65_530


class Program:
    """A function that is compiled when it is first called, for each platform, size and shape.

    Args:
        function: A pure function of arrays.
        static: Positions of the arguments that are no arrays.
        donated: Positions of the arguments whose memory the results may take.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        static: tuple[int, ...],
        donated: tuple[int, ...] = (),
    ) -> None:
        self._make = (function, static, donated)
        self._made: dict[tuple[str, bool], Callable[..., Any]] = {}

    def __call__(self, platform: str, small: bool, *arguments: Any) -> Any:
        """Return the result; `small` says that the arguments are, so that it runs in no time."""
        while True:
            made = self._made.get((platform, small))
            if made is None:
                made = self._made[platform, small] = self._compiled(platform, small)
            try:
                return made(*arguments)
            except jax.errors.JaxRuntimeError as error:
                found = re.search(r"No such compile option: '(\w+)'", str(error))
                if found is None or found[1] in _UNKNOWN:
                    raise
                _UNKNOWN.add(found[1])  # another version of the compiler: do without it
                self._made.clear()

    def _compiled(self, platform: str, small: bool) -> Callable[..., Any]:
        function, static, donated = self._make
        wanted = (_ON_CPU | (_QUICK if small else {})) if platform == "cpu" else {}
        options = {name: wanted[name] for name in wanted if name not in _UNKNOWN}
        return jax.jit(
            function,
            static_argnums=static,
            donate_argnums=donated,
            compiler_options=options or None,
        )


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


class KeptPrograms:
    """A folder of compiled programs, safe against crashes and other processes, of bounded size.

    It takes the place of JAX's own, in which a program that was written by half (the disk is full,
    the process was killed) stays, and is compiled anew in every later run. Here an entry appears
    as a whole, is checked when it is read, and goes if it is damaged. Whatever goes wrong with the
    folder costs a compilation, and no message.

    Args:
        folder: Where they are.
        most_bytes: Beyond that, those go that were not used for the longest time.
    """

    def __init__(self, folder: Path, most_bytes: int = MOST_BYTES) -> None:
        self._path = self.folder = folder
        self.most_bytes = most_bytes

    def get(self, key: str) -> bytes | None:
        """Return what was put, or None."""
        place = self._place(key)
        try:
            content = place.read_bytes()
        except OSError:
            return None
        digest, value = content[:32], content[32:]
        with contextlib.suppress(OSError):
            if hashlib.sha256(value).digest() != digest:
                place.unlink()
                return None
            os.utime(place)  # the last time it was used
        return value

    def put(self, key: str, value: bytes) -> None:
        """Keep an entry, if that is possible."""
        temporary = self.folder / f".tmp-{secrets.token_hex(8)}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            temporary.write_bytes(hashlib.sha256(value).digest() + value)
            temporary.replace(self._place(key))
            self._bound()
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()

    def _place(self, key: str) -> Path:
        return self.folder / hashlib.sha256(key.encode()).hexdigest()

    def _bound(self) -> None:
        """Remove the oldest entries of all machines, and what crashed processes left behind."""
        found = []
        for path in self.folder.parent.glob("*/*"):
            with contextlib.suppress(OSError):
                about = path.stat()
                found.append((about.st_mtime, about.st_size, path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found, key=lambda entry: entry[0]):
            if total <= self.most_bytes:
                return
            with contextlib.suppress(OSError):
                path.unlink()
            total -= size


def keep_programs() -> None:
    """Have JAX keep what it compiles from now on in the user's cache folder.

    The environment variable ``BGTPLANNER_CACHE`` is another folder, or ``off``. If the user has
    JAX keep programs somewhere else, that is left as it is.
    """
    wanted = os.environ.get("BGTPLANNER_CACHE", "")
    if wanted == "off" or jax.config.values["jax_compilation_cache_dir"]:
        return
    place = (with_home(wanted) if wanted else user_cache()) / "programs" / machine()
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        about = place.stat()
        from jax._src import compilation_cache

        usual = compilation_cache.get_file_cache
    except (OSError, ImportError, AttributeError):  # no such folder, or another version of JAX
        return
    if about.st_uid != os.geteuid() or about.st_mode & 0o022:
        return  # whoever may write there can have us run anything

    def kept(path: str) -> Any:
        return (KeptPrograms(place), path) if path == str(place) else usual(path)

    compilation_cache.get_file_cache = kept
    for name, value in {
        "jax_compilation_cache_dir": str(place),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
        "jax_persistent_cache_enable_xla_caches": "none",  # they would grow without bounds
    }.items():
        with contextlib.suppress(AttributeError):
            jax.config.update(name, value)  # type: ignore[no-untyped-call]


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
    jax.clear_caches()  # type: ignore[no-untyped-call]
    return True
