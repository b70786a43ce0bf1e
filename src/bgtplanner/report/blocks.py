"""Curves and bars made of text characters."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["bar", "sparkline"]

_BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Iterable[float], width: int = 40) -> str:
    """A curve in one line of text, in which the largest value is the tallest block.

    Example:
        >>> sparkline([3, 2, 1])
        '█▄▁'
    """
    points = list(values)
    if len(points) > width:
        last, steps = len(points) - 1, max(width - 1, 1)
        points = [points[round(i * last / steps)] for i in range(width)]
    low, high = min(points, default=0.0), max(points, default=0.0)
    span = (high - low) or 1.0
    return "".join(_BLOCKS[int((point - low) / span * (len(_BLOCKS) - 1))] for point in points)


def bar(share: float, width: int = 20) -> str:
    """A horizontal bar for a share from 0 to 1."""
    full = round(max(0.0, min(1.0, share)) * width)
    return "█" * full + "·" * (width - full)
