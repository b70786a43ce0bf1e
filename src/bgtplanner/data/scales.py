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
_FAR = 2.0  # as many times the width of the scale of all others is far outside it
_TAIL = 10.0  # counts: their largest value is above this, and this times their median


def as_scale(given: Any) -> Scale:
    """Return a scale that was given as a pair of bounds, or as text.

    Example:
        >>> as_scale("1:5"), as_scale((0.5, 4)), as_scale("max")
        ((1.0, 5.0), (0.5, 4.0), 'max')
    """
    if isinstance(given, str) and given in ("max", "minmax"):
        return "max" if given == "max" else "minmax"
    try:
        low, high = (float(of) for of in (given.split(":") if isinstance(given, str) else given))
    except (TypeError, ValueError, OverflowError):
        low = high = np.nan
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        expected = "'max', 'minmax' or two finite numbers LOW:HIGH, such as 1:5"
        raise ConfigError(f"scale={quoted(given)}: expected {expected}")
    return low, high


def ask_for_a_scale(raw: NDArray[np.float64]) -> None:
    """Refuse to guess the scale of values that look like counts, or have one far outside.

    Raises:
        DataError: If they do; says what to state.
    """
    if len(raw) < _FEWEST_JUDGED:
        return
    levels = np.unique(raw)
    if _has_a_tail(raw) and _has_a_tail(raw[raw < levels[-1]]):
        raise DataError(
            "the values look like counts, such as plays or hours; say data.feedback=clicks "
            "(feedback='clicks' in Python), or state their scale if they are ratings, such as "
            "data.scale=0:100"
        )
    for far, others in ((levels[-1], levels[:-1]), (levels[0], levels[1:])):
        low, high = (others[0], others[-1]) if len(others) > 2 else (-np.inf, np.inf)
        if max(far - high, low - far) > _FAR * (high - low):
            raise DataError(
                f"{int((raw == far).sum()):,} of {len(raw):,} values are far outside the scale of "
                f"all others; state the scale, such as data.scale={low:g}:{high:g}, and leave out "
                "or mend what is outside, or say data.feedback=clicks if these are counts"
            )


def _has_a_tail(values: NDArray[np.float64]) -> bool:
    """Return whether values are distributed as counts are: most are small, and a few are large."""
    return bool(values.min() >= 0 and values.max() > max(_TAIL, _TAIL * float(np.median(values))))


def weights(counts: NDArray[np.float64], cap: float) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """Return the weights of clicks by their counts, and what is known about them."""
    ConfigError.unless(0 < cap < np.inf, "count_cap", cap, "a number above 0")
    if counts.min(initial=0.0) < 0:
        row = int((counts < 0).argmax()) + 1
        raise DataError(f"a count is below 0, first in row {row}; expected 0 or more")
    note = f"Each row counts as clicks: weighted by log(1 + count), up to a count of {cap:g}."
    known = {"low": 0.0, "high": 1.0, "implicit": True, "notes": (note,)}
    weights = np.log1p(np.minimum(counts, cap)) / np.log1p(cap)
    return weights, known | {"public": frozenset({"scale"})}


def scaled_values(
    raw: NDArray[np.float64] | None, length: int, scale: Any
) -> tuple[NDArray[np.float64], dict[str, Any]]:
    """Return values on the scale of 0 to 1, and what is known about the scale.

    If there are no values, or all are the same and above 0, they are clicks.
    """
    scale = as_scale(scale)
    given = raw is None or not isinstance(scale, str)
    if raw is None and not isinstance(scale, str) and scale != (0, 1):
        expected = "nothing, or 0 and 1, as there are no values"
        raise ConfigError(f"scale = {quoted(scale)}: expected {expected}")
    public = frozenset({"scale"} if given else ())
    alike = raw is not None and length > 1 and bool((raw == raw[0]).all())
    if raw is None or (alike and not given and raw[0] > 0):
        why = "There is no rating column" if raw is None else "All ratings are the same"
        note = f"{why}: each row counts as a click (implicit feedback), with the value 1."
        known = {"low": 0.0, "high": 1.0, "implicit": True, "notes": (note,)}
        return np.ones(length), known | {"public": public}
    if alike and not given:
        raise DataError(
            f"all {length:,} values are the same and not above 0, so that there is "
            "nothing to learn; give values that differ, or bounds with scale=(low, high)"
        )
    low, high = (0.0, 1.0) if isinstance(scale, str) else scale
    if isinstance(scale, str) and length:
        low, high = 0.0 if scale == "max" else float(raw.min()), float(raw.max())
        if high / 2 - low / 2 > 1e300 or (scale == "max" and high <= 0):
            problem = "the values cannot be divided by the largest or are too far apart"
            raise DataError(f"{problem}; are they ratings? Give bounds with scale=(low, high)")
    outside = np.flatnonzero(~((raw >= low) & (raw <= high)))
    if outside.size:
        raise DataError(
            f"{outside.size} of {length} values lie outside the scale [{low:g}, {high:g}], "
            f"the first in row {outside[0] + 1}"
        )
    note = "All ratings have the same value: there is nothing to learn from them."
    known = {"low": low, "high": high, "notes": (note,) if alike else (), "public": public}
    return (raw - low) / ((high - low) or 1.0), known
