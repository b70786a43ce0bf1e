"""Compiled programs that are kept in the user's cache folder, from one process to the next.

JAX keeps programs, too, and finds them by their code: for that a function has to be traced, which
takes seconds. Programs of the package's own functions are also kept by what that code is made of.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import re
import secrets
import threading
from collections.abc import Iterator, Mapping
from functools import cache, cached_property, partial
from pathlib import Path
from types import FunctionType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import serialize_executable

from bgtplanner.caches import machine, user_cache, with_home

__all__ = ["KeptPrograms", "alone", "described", "keep", "keep_programs", "load", "name_of"]

MOST_BYTES = 512 * 2**20
"""Size of the folder of kept programs: a few hundred runs of different shapes."""

_HARMLESS = (
    "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes", "jax_persistent_cache_enable_xla_caches",
)  # fmt: skip
"""Settings of JAX on which no program depends."""

_CALLS = re.compile("lapack_.*|TopK")
"""Functions that a kept program may call: XLA's own, and those that are made ready for it."""


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


class KeptForJax(KeptPrograms):
    """The folder as JAX sees it: without the programs that are kept by their names."""

    def get(self, key: str) -> bytes | None:
        """Return what was put, or None."""
        return None if getattr(_THREAD, "alone", False) else super().get(key)

    def put(self, key: str, value: bytes) -> None:
        """Keep an entry, if that is possible."""
        if not getattr(_THREAD, "alone", False):
            super().put(key, value)


_THREAD = threading.local()


@contextlib.contextmanager
def alone(name: str | None) -> Iterator[None]:
    """What is compiled here will be kept by this name, if it has one, and not by JAX as well.

    Nor is it found by JAX: on CPUs, a program that was loaded cannot be written down once more.
    """
    _THREAD.alone = name is not None
    try:
        yield
    finally:
        _THREAD.alone = False


_KEPT: KeptPrograms | None = None  # where programs are kept, if they are


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
        return (KeptForJax(place), path) if path == str(place) else usual(path)

    global _KEPT
    _KEPT = KeptPrograms(place)
    compilation_cache.get_file_cache = kept
    for name, value in {
        "jax_compilation_cache_dir": str(place),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
        "jax_persistent_cache_enable_xla_caches": "none",  # they would grow without bounds
    }.items():
        with contextlib.suppress(AttributeError):
            jax.config.update(name, value)  # type: ignore[no-untyped-call]


# ---- programs that are not even traced a second time


def name_of(device: jax.Device, what: Any, arrays: Any) -> str | None:
    """Everything that a compiled program depends on, as far as this package can tell; or None.

    JAX finds a kept program by its code, for which the function has to be traced, and that alone
    takes seconds. Here it is found by what the code is made of: our own source, the arguments that
    are no arrays, sizes and types of those that are, and all settings.
    """
    if _KEPT is None or device.platform != "cpu" or not (source := _own_source()):
        return None
    if (about := described(what)) is None:
        return None
    leaves, structure = jax.tree.flatten(arrays)
    types = []
    for leaf in leaves:
        kind = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)
        types.append((kind.shape, str(kind.dtype), kind.weak_type))
    values = jax.config.values
    settings = sorted((name, values[name]) for name in values if name not in _HARMLESS)
    where = (device.id, device.platform, device.device_kind, len(jax.devices(device.platform)))
    flags = [os.environ.get(name) for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")]
    name = repr((source, where, flags, settings, about, types, str(structure)))
    return None if " at 0x" in name else name  # an address is another one next time


def described(value: Any) -> str | None:
    """Text that is the same for equal values, and for no others; None if that cannot be told.

    Classes and functions of this package are described by their names, since their source is in
    the name of the program; those of others are not.
    """
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, partial):
        return described(("partial", value.func, value.args, tuple(value.keywords.items())))
    kind = value if isinstance(value, type | FunctionType) else type(value)
    if isinstance(value, Mapping):
        value = tuple(value.items())
    elif _is_own(kind) and kind is not value and not isinstance(value, tuple):
        state = getattr(value, "__dict__", None)
        if state is None:
            return None
        made = (name for name in state if isinstance(getattr(kind, name, None), cached_property))
        drop = set(made)
        value = tuple((name, state[name]) for name in state if name not in drop)
    if isinstance(value, tuple | list):
        parts = [described(each) for each in value]
        if None in parts or not (kind in (tuple, list, dict) or _is_own(kind)):
            return None
        return f"{kind.__module__}.{kind.__qualname__}({', '.join(map(str, parts))})"
    if not _is_own(kind) or getattr(kind, "__closure__", None):
        return None
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_own(kind: type | FunctionType) -> bool:
    """Whether the source of a class or function is that of this package."""
    return kind.__module__.split(".")[0] == __name__.split(".")[0]


@cache
def _own_source() -> str | None:
    """A digest of this package's source; None if it is not there to be read."""
    found = hashlib.sha256()
    folder = Path(__file__).resolve().parents[1]
    paths = sorted(folder.rglob("*.py"))
    if Path(__file__).resolve() not in paths:
        return None
    for path in paths:
        found.update(f"{path.relative_to(folder)}\n".encode())
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def keep(name: str | None, compiled: jax.stages.Compiled) -> None:
    """Keep a program, if this version of JAX can write it down.

    A program may call functions of libraries, which JAX makes ready when it traces the program.
    Called without that, they end the process.
    """
    if name is None or _KEPT is None:
        return
    try:
        calls = set(re.findall(r'custom_call_target="([^"]+)"', compiled.as_text() or ""))
        if any(_CALLS.fullmatch(target) is None for target in calls):
            return
        program, _, out = serialize_executable.serialize(compiled)
        # A structure cannot be pickled, but what has it can.
        results = jax.tree.unflatten(out, range(out.num_leaves))
        content = pickle.dumps((program, results))
    except Exception:  # whatever another version of JAX says: it is not kept
        return
    _KEPT.put(name, content)


@cache
def _make_calls_ready() -> None:
    """LAPACK's functions, by tracing one that needs them."""
    jax.jit(jnp.linalg.cholesky).lower(np.zeros((1, 1), np.float32))


def load(name: str | None, device: jax.Device, arrays: Any) -> jax.stages.Compiled | None:
    """Return a program that was kept, or None."""
    content = None if name is None or _KEPT is None else _KEPT.get(name)
    if content is None:
        return None
    try:
        _make_calls_ready()
        program, results = pickle.loads(content)  # noqa: S301 - the folder is the user's own
        structure, out = jax.tree.structure((tuple(arrays), {})), jax.tree.structure(results)
        loaded: jax.stages.Compiled = serialize_executable.deserialize_and_load(
            program, structure, out, backend=device.client, execution_devices=[device]
        )
    except Exception:  # whatever is wrong with it: it is compiled
        return None
    return loaded
