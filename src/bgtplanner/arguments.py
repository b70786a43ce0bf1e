"""Arguments of calls in Python, checked where they come in: an error names the argument.

What a table or an array holds is never quoted, since it may be ratings.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bgtplanner.errors import ConfigError, quoted


def in_words(value: object) -> str:
    """Return a value as errors show it: a plain one as it is, of others what they are.

    Example:
        >>> in_words("demo"), in_words(None), in_words([3.5, 4.0])
        ("'demo'", 'None', 'a list')
    """
    if value is None or isinstance(value, str | bytes | int | float | complex | np.number | Path):
        return quoted(value.item() if isinstance(value, np.number) else value)
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def refuse_unless(fits: bool, name: str, value: object, expected: str) -> None:
    """Raise ConfigError unless an argument fits; its contents are not quoted."""
    if not fits:
        raise ConfigError(f"{name} = {in_words(value)}: expected {expected}")


def as_path(name: str, value: object) -> Path:
    """Return a path that was given as text or as a path; an error names the argument."""
    fits = isinstance(value, str | os.PathLike) and isinstance(os.fspath(value), str)
    refuse_unless(fits, name, value, "a path, as text or as a pathlib.Path")
    return Path(value)  # type: ignore[arg-type]


def as_whole(name: str, value: object, least: int) -> int:
    """Return a whole number of at least `least`; an error names the argument."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    number: Any = value
    refuse_unless(whole and number >= least, name, value, f"a whole number, at least {least}")
    return int(number)


def as_settings(value: object) -> dict[str, Any]:
    """Return config keys with their values; none if nothing was given."""
    if value is None:
        return {}
    expected = "a mapping of config keys, such as {'server.learning_rate': 0.02}"
    fits = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    refuse_unless(fits, "settings", value, expected)
    return dict(value)  # type: ignore[call-overload,no-any-return]
