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
        former: Names of earlier releases, and what they are called now. They are found, so that
            stored runs can be read, but not listed.
        gone: Names that are not part of the package any more, and what errors say about each.

    Example:
        >>> registry = Registry("shape", {"square": "fractions:Fraction"}, expected="a class")
        >>> registry["square"].__name__, list(registry)
        ('Fraction', ['square'])
    """

    def __init__(
        self,
        kind: str,
        entries: Mapping[str, T | str] | None = None,
        *,
        expected: str,
        fits: Callable[[Any], bool] = lambda _: True,
        former: Mapping[str, str] | None = None,
        gone: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = kind
        self._entries: dict[str, Any] = dict(entries or {})
        self._expected, self._fits = expected, fits
        self.former = dict(former or {})
        self.gone = dict(gone or {})

    def add(self, name: str, thing: T | str) -> None:
        """Add an object, or its address, under a name that is not taken.

        Raises:
            ConfigError: If the name is taken by another object, or contains a colon.
        """
        free = self._entries.get(name, thing) == thing and ":" not in name
        ConfigError.unless(free, self.kind, name, "a name that is not taken, without a colon")
        self._entries[name] = thing

    def __getitem__(self, name: str) -> T:
        """Return the object of this name, or at this address.

        Raises:
            ConfigError: If there is none; lists the names.
        """
        load_plugins()
        address = self._entries.get(self.former.get(name, name), name)
        if not isinstance(address, str):
            return cast(T, address)
        if name in self.gone:
            raise ConfigError(f"{self.kind} = {name!r}: {self.gone[name]}")
        module, _, attribute = address.partition(":")
        if not (module and attribute):
            near = difflib.get_close_matches(name, list(self), n=1, cutoff=0.5)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            every = f"one of {', '.join(self)}, or package.module:Name for your own{hint}"
            raise ConfigError(f"{self.kind} = {quoted(name)}: expected {every}")
        try:
            found = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"{self.kind} = {name!r}: cannot be imported ({error}); is it installed, or on "
                "PYTHONPATH?"
            ) from error
        ConfigError.unless(self._fits(found), self.kind, name, self._expected)
        return cast(T, found)

    def get(self, name: str, default: Any = None) -> Any:
        """Return the object of this name, or the default; addresses are not looked up."""
        return self[name] if name in self else default  # noqa: SIM401 - it is this

    def named(self, thing: T) -> str:
        """Return the name or address under which a given object can be looked up.

        One that cannot be imported, such as a class in a function, is registered in this process.

        Raises:
            ConfigError: If it is not an object of this kind.
        """
        load_plugins()
        ConfigError.unless(self._fits(thing), self.kind, thing, self._expected)
        address = f"{getattr(thing, '__module__', '')}:{getattr(thing, '__qualname__', '')}"
        for name, entry in self._entries.items():
            if entry is thing or entry == address:
                return name
        with contextlib.suppress(ConfigError):
            if self[address] is thing:
                return address
        self._entries[address] = thing
        return address

    def __contains__(self, name: object) -> bool:
        load_plugins()
        return name in self._entries or name in self.former

    def __iter__(self) -> Iterator[str]:
        load_plugins()
        return iter([name for name in self._entries if ":" not in name])

    def __len__(self) -> int:
        return sum(1 for _ in self)


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
