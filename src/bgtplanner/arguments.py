"""Arguments of calls in Python, checked where they come in: an error names the argument.

What a table or an array holds is never quoted, since it may be ratings.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bgtplanner.errors import ConfigError, quoted
from bgtplanner.text import MOST_BYTES_OF_SETTINGS, read_bytes


def in_words(value: object) -> str:
    """Return a value as errors show it: a plain one as it is, of others what they are.

    Example:
        >>> in_words("demo"), in_words(None), in_words([3.5, 4.0])
        ("'demo'", 'None', 'a list')
    """
    if value is None or isinstance(value, str | bytes | int | float | complex | np.number | Path):
        return quoted(value.item() if isinstance(value, np.number) else value)
    name = f"class {value.__name__}" if isinstance(value, type) else type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def refuse_unless(fits: bool, name: str, value: object, expected: str) -> None:
    """Raise ConfigError unless an argument fits; its contents are not quoted."""
    if not fits:
        raise ConfigError(f"{name} = {in_words(value)}: expected {expected}")


def as_path(name: str, value: object) -> Path:
    """Return a path that was given as text or as a path."""
    fits = isinstance(value, str | os.PathLike) and isinstance(os.fspath(value), str)
    refuse_unless(fits, name, value, "a path, as text or as a pathlib.Path")
    return Path(value)  # type: ignore[arg-type]


def as_whole(name: str, value: Any, least: int) -> int:
    """Return a whole number of at least `least`."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    refuse_unless(whole and value >= least, name, value, f"a whole number, at least {least}")
    return int(value)


def expected(problem: Any) -> str:
    """Return what was expected, from one of pydantic's errors.

    Example:
        >>> expected({"msg": "Input should be greater than 0"})
        'expected greater than 0'
    """
    message = str(problem["msg"]).removeprefix("Value error, ")
    message = message.replace("Input should be", "expected", 1)
    return message if message.startswith("expected") else f"expected: {message}"


def read_toml(path: Path, advice: str) -> dict[str, Any]:
    """Return what a TOML file holds; if it cannot be read, the error ends with an advice."""
    try:
        content = read_bytes(path, MOST_BYTES_OF_SETTINGS, plain=False)
        return tomllib.loads(content.decode("utf-8-sig"))  # some editors write a byte order mark
    except FileNotFoundError:
        problem = "no such file"
    except (OSError, ValueError, RecursionError) as error:
        problem = f"cannot be read as TOML: {error}"
    raise ConfigError(f"{path}: {problem}; {advice}")


def as_settings(value: Any) -> dict[str, Any]:
    """Return config keys with their values; none if nothing was given."""
    given = {} if value is None else value
    fits = isinstance(given, Mapping) and all(isinstance(key, str) for key in given)
    expected = "a mapping of config keys, such as {'server.learning_rate': 0.02}"
    refuse_unless(fits, "settings", value, expected)
    return dict(given)
