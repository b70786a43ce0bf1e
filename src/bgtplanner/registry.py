"""Objects by name: those of the package, those that plugins add, and ``package.module:Name``.

A plugin is an installed package with an entry point in the group ``bgtplanner``. The function that
it names is called once, before the first lookup, and adds to the registries. That is how
:mod:`bgtplanner.paper` is added, and how any other package can be. An entry may be the address of
an object, so that adding it imports nothing.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import metadata
from typing import Any, TypeVar, cast

from bgtplanner.errors import ConfigError, quoted

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """Objects of one kind by name, in the order in which they were added.

    Args:
        kind: What they are called in errors: ``policy``, ``model``.
        entries: The package's own objects, or their addresses, ``package.module:Name``.
        expected: What an object of this kind is, in words.
        fits: Whether an object is of this kind; by default every object is.
        gone: Names that are not part of the package any more, and what errors say about each.

    Example:
        >>> registry = Registry("shape", {"square": "fractions:Fraction"}, expected="a class")
        >>> registry["square"].__name__, list(registry)
        ('Fraction', ['square'])
    """

    def __init__(
        self, kind: str, entries: Mapping[str, T | str], *, expected: str,
        fits: Callable[[Any], bool] = lambda _: True, gone: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._kind, self._entries, self.gone = kind, dict[str, Any](entries), dict(gone or {})
        self._expected, self._fits = expected, fits

    def add(self, name: str, thing: T | str) -> None:
        """Add an object, or its address, under a name that is not taken."""
        free = self._entries.get(name, thing) == thing and ":" not in name
        ConfigError.unless(free, self._kind, name, "a name that is not taken, without a colon")
        self._entries[name] = thing

    def __getitem__(self, name: str) -> T:
        """Return the object of this name, or at this address.

        Raises:
            ConfigError: If there is none; lists the names.
        """
        load_plugins()
        address = self._entries.get(name, name)
        if not isinstance(address, str):
            return cast(T, address)
        if name in self.gone:
            raise ConfigError(f"{self._kind} = {name!r}: {self.gone[name]}")
        module, _, attribute = address.partition(":")
        if not (module and attribute):
            near = difflib.get_close_matches(name, list(self), n=1, cutoff=0.5)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            every = f"one of {', '.join(self)}, or package.module:Name for your own{hint}"
            raise ConfigError(f"{self._kind} = {quoted(name)}: expected {every}")
        try:
            found = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            problem = f"cannot be imported ({error}); is it installed, or on PYTHONPATH?"
            raise ConfigError(f"{self._kind} = {name!r}: {problem}") from error
        ConfigError.unless(self._fits(found), self._kind, name, self._expected)
        return cast(T, found)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the object of this name, or the default; addresses are not looked up."""
        return self[name] if name in self else default  # noqa: SIM401 - it is this

    def named(self, thing: T) -> str:
        """Return the name or address of a given object, which is then found in this process."""
        ConfigError.unless(self._fits(thing), self._kind, thing, self._expected)
        load_plugins()
        address = f"{getattr(thing, '__module__', '')}:{getattr(thing, '__qualname__', '')}"
        for name, entry in self._entries.items():
            if entry is thing or entry == address:
                return name
        with contextlib.suppress(ConfigError):
            if self[address] is thing:  # it can be imported
                return address
        self._entries[address] = thing
        return address

    def __contains__(self, name: object) -> bool:
        load_plugins()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        load_plugins()
        return iter([name for name in self._entries if ":" not in name])

    def __len__(self) -> int:
        return len(list(iter(self)))


@cache
def load_plugins() -> None:
    """Let every installed plugin add its objects; one that fails is named in a warning."""
    for plugin in metadata.entry_points(group="bgtplanner"):
        try:
            plugin.load()()
        except Exception as error:  # whatever fails, everything else still works
            warnings.warn(
                f"the plugin {plugin.name} ({plugin.value}) was left out: {error!r}",
                RuntimeWarning,
                stacklevel=2,
            )
