"""Axes that go from round to round."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bgtplanner.report.story import Story

__all__ = ["by_round", "single"]


def by_round(figure: Figure, story: Story | None = None, label: str = "") -> Axes:
    """Axes over all rounds that there are to be in a run, or over those that are drawn."""
    axes = figure.subplots()
    axes.set_xlabel("round")
    axes.set_ylabel(label)
    if story is not None:
        axes.set_xlim(0, story.total + 1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.grid(axis="y", alpha=0.25, lw=0.7)
    axes.set_axisbelow(True)
    return axes


def single(values: Any) -> dict[str, Any]:
    """A single point is seen only with a mark."""
    return {"marker": "o", "ms": 4} if len(values) == 1 else {}
