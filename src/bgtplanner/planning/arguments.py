"""Checks of what was given, by a caller or in a state: one per kind of number.

A refusal names the argument; it never shows the contents of an array, a context or a reward.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgtplanner.errors import ConfigError

Floats = NDArray[np.float64]


def floats(name: str, given: ArrayLike, low: float = -math.inf) -> Floats:
    """Return an array of finite numbers that are not below a bound."""
    try:
        array = np.array(given, dtype=np.float64)
    except (OverflowError, TypeError, ValueError):
        array = np.array(np.nan)
    fits = bool(np.isfinite(array).all())
    ConfigError.unless(fits, name, "not all finite numbers", "finite numbers")
    ConfigError.unless(bool((array >= low).all()), name, "too small", f"numbers from {low:g}")
    return array


def whole(name: str, value: Any, low: int, high: int | None = None) -> int:
    """Return a whole number within bounds."""
    fits = isinstance(value, int | np.integer) and not isinstance(value, bool)
    fits = fits and low <= value and (high is None or value <= high)
    expected = f"a whole number, {low} or more" if high is None else f"{low} to {high}, whole"
    ConfigError.unless(fits, name, value, expected)
    return int(value)


def number(name: str, value: Any, low: float = -math.inf, high: float = math.inf) -> float:
    """Return a finite number within bounds."""
    fits = isinstance(value, int | float | np.integer | np.floating)
    fits = fits and -math.inf < value < math.inf and low <= value <= high
    below = "" if low == -math.inf else f" from {low:g}"
    above = "" if high == math.inf else f" to {high:g}"
    ConfigError.unless(fits, name, value, f"a finite number{below}{above}")
    return float(value)


def context_of(context: ArrayLike | None) -> Floats:
    """Return a context as a row of finite numbers; an empty row for None."""
    if context is None:
        return np.zeros(0)
    try:
        array = np.asarray(context)
    except (RuntimeError, TypeError, ValueError):  # ragged, or refuses to be an array
        array = np.array(None)
    fits = array.dtype.kind in "biuf" and array.ndim <= 1
    row = array.astype(np.float64).ravel() if fits else np.array([math.nan])
    fits, kind = bool(np.isfinite(row).all()), type(context).__name__
    ConfigError.unless(fits, "context", kind, "finite numbers, in one row")
    return row


def reward_of(reward: Any) -> float | None:
    """Return a reward as a finite number; None stays None.

    Scalars of other libraries, such as JAX and torch, are arrays without an axis.
    """
    if reward is None:
        return None
    array = np.asarray(reward) if np.ndim(reward) == 0 else np.array(None)
    value = float(array) if array.dtype.kind in "iuf" else math.nan
    ConfigError.unless(math.isfinite(value), "reward", type(reward).__name__, "a finite number")
    return value
