"""What values mean: ratings on a scale, which becomes 0 to 1, or counts, which become weights."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bgtplanner.errors import ConfigError, DataError, quoted

Scale = Literal["max", "minmax"] | tuple[float, float]
"""How raw values become [0, 1]: ``max`` divides by the largest value, ``minmax`` maps the smallest
to 0 and the largest to 1, and explicit bounds ``(low, high)`` are mapped to 0 and 1."""

Feedback = Literal["auto", "ratings", "clicks"]
"""What values are: ratings, or counts of clicks, plays or hours, which are weights; ``auto``: what
the name of their column says."""

COUNT_CAP = 100.0
"""The count from which more of it says nothing more. It is a constant and never read off the data,
since every weight would then say something about the person with the most."""

_FEWEST_JUDGED = 20  # values, below which nothing is said about how they are distributed
_FAR = 10.0  # the largest of ratings is at most this, or this times their median


def as_scale(given: Any) -> Scale:
    """Return a scale that was given as a pair of bounds, or as text, such as ``1:5``."""
    if given in ("max", "minmax"):
        return "max" if given == "max" else "minmax"
    try:
        low, high = (float(of) for of in (given.split(":") if isinstance(given, str) else given))
    except (TypeError, ValueError, OverflowError):
        low = high = np.nan
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        expected = "'max', 'minmax' or two finite numbers LOW:HIGH, such as 1:5"
        raise ConfigError(f"scale={quoted(given)}: expected {expected}")
    return low, high


def scaled_values(
    raw: NDArray[np.float64] | None, length: int, scale: Any, usual: Scale, cap: float | None
) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """Return values on the scale of 0 to 1, and what is known about the scale.

    With a `cap` they are counts, which become weights. If there are no values, or all are the
    same and above 0, they are clicks. Without a `scale` it is as is `usual`.

    Raises:
        DataError: If a value is outside the scale, or the scale has to be asked for.
    """
    asked = None if scale is None else as_scale(scale)
    click = "each row counts as a click (implicit feedback), with the value 1."
    clicks = {"low": 0.0, "high": 1.0, "implicit": True, "public": frozenset({"scale"})}
    if raw is None:
        fits = not isinstance(asked, tuple) or asked == (0, 1)
        ConfigError.unless(fits, "scale", scale, "nothing, or 0 and 1, as there are no values")
        return np.ones(length), clicks | {"notes": (f"There is no rating column: {click}",)}
    if cap is not None:
        how = f"weighted by log(1 + count), up to a count of {cap:g}"
        return _weights(raw, cap), clicks | {"notes": (f"Each row counts as clicks: {how}.",)}
    if asked is None:
        _ask_for_a_scale(raw)
    alike = length > 1 and bool((raw == raw[0]).all())
    low, high = asked if isinstance(asked, tuple) else (0.0, 1.0)
    if not isinstance(asked, tuple) and length:
        if alike and raw[0] > 0:
            note = f"All ratings are the same: {click}"
            return np.ones(length), clicks | {"notes": (note,), "public": frozenset()}
        to_zero = (asked or usual) == "minmax"
        low, high = float(raw.min()) if to_zero else 0.0, float(raw.max())
        if high / 2 - low / 2 > 1e300 or (high <= 0 and not to_zero):
            problem = "the values cannot be divided by the largest or are too far apart"
            raise DataError(f"{problem}; are they ratings? Give bounds with scale=(low, high)")
    outside = np.flatnonzero(~((raw >= low) & (raw <= high)))
    if outside.size:
        raise DataError(
            f"{outside.size} of {length} values lie outside the scale [{low:g}, {high:g}], "
            f"the first in row {outside[0] + 1}"
        )
    note = "All ratings have the same value: there is nothing to learn from them."
    known = {"low": low, "high": high, "notes": (note,) if alike else ()}
    public = frozenset({"scale"} if isinstance(asked, tuple) else ())
    return (raw - low) / ((high - low) or 1.0), known | {"public": public}


def _weights(counts: NDArray[np.float64], cap: float) -> NDArray[np.float64]:
    """Return the weights of clicks by their counts, from 0 to 1."""
    ConfigError.unless(0 < cap < np.inf, "count_cap", cap, "a number above 0")
    if counts.min(initial=0.0) < 0:
        row = int((counts < 0).argmax()) + 1
        raise DataError(f"a count is below 0, first in row {row}; expected 0 or more")
    found: NDArray[np.float64] = np.log1p(np.minimum(counts, cap)) / np.log1p(cap)
    return found


def _ask_for_a_scale(raw: NDArray[np.float64]) -> None:
    """Refuse to guess the scale of values that look like counts, or have one far above."""
    if len(raw) >= _FEWEST_JUDGED and raw.max() > _FAR * max(1.0, float(np.median(raw))):
        raise DataError(
            f"the largest value is more than {_FAR:g} times as large as most: are these counts, "
            "such as plays or hours? Say data.feedback=clicks (feedback='clicks' in Python); or "
            "state the scale of ratings, such as data.scale=1:5, and mend what is outside"
        )
