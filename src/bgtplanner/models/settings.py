"""Which values the settings of a learner or a server may have."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin, get_type_hints

from bgtplanner.errors import ConfigError


def check(settings: Any, /, **ranges: tuple[float, float]) -> None:
    """Refuse values that are no choice of a Literal, or not within their range.

    Where a field is whole, its value has to be; where it may be None, that is left open.
    """
    kinds = get_type_hints(type(settings))
    for name, kind in kinds.items():
        if get_origin(kind) is Literal:
            value, known = getattr(settings, name), get_args(kind)
            ConfigError.unless(value in known, name, value, " or ".join(known))
    for name, (low, high) in ranges.items():
        value, whole = getattr(settings, name), int in (kinds[name], *get_args(kinds[name]))
        if value is None and type(None) in get_args(kinds[name]):
            continue
        fits = low <= value <= high and (isinstance(value, int) or not whole)
        limits = f"from {low:g} to {high:g}".replace("e-0", "e-").replace("e+0", "e")
        ConfigError.unless(fits, name, value, f"a{' whole' if whole else ''} number {limits}")
