"""The pictures of a run, as SVG. What they show is decided elsewhere."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bgtplanner.models.metrics import METRICS
from bgtplanner.models.references import REFERENCES
from bgtplanner.text import visible

if TYPE_CHECKING:  # facts can be computed where Matplotlib is not installed
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The colours of Okabe and Ito, then of Tol: colour-blind readers can tell them apart.
BLUE, VERMILLION, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#808080"
YELLOW, INK = "#E69F00", "#1A1C20"

ABOVE: Mapping[str, Any] = {"loc": "outside upper left", "ncols": 2, "fontsize": 9}
"""Legends stand above the axes, where they hide nothing."""

_BESIDE: Mapping[str, Mapping[str, Any]] = {  # colour and dashes of the references
    "constant": {"color": YELLOW, "ls": "--"},
    "user_mean": {"color": GREEN, "ls": ":"},
    "client_alone": {"color": GREY, "ls": "-."},
    "features_alone": {"color": VERMILLION, "ls": (0, (5, 1, 1, 1, 1, 1))},
}
_CLASSES = (BLUE, VERMILLION, GREEN, YELLOW, GREY)
_LOWEST, _HIGHEST = 0.8, 1.1  # what an axis of errors covers at least, in errors of clients alone
_AROUND = (
    f"The axis does not start at zero. It always has room from {1 - _LOWEST:.0%} below a client "
    f"alone to {_HIGHEST - 1:.0%} above, so that a small change looks small."
)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure with its title and its description.

    Attributes:
        name: Name of its file, without a suffix.
        title: What it shows, in a few words.
        alt: The same in words and figures, for screen readers.
        draw: Fills a figure; Matplotlib lays it out.
        note: What to know about its axes.
    """

    name: str
    title: str
    alt: str
    draw: Callable[[Figure], None]
    size: tuple[float, float] = (4.8, 3.0)
    note: str = ""


def as_file(picture: Picture, ink: str = GREY) -> str:
    """Return the picture as SVG, laid out by Matplotlib, with text and axes of the colour `ink`.

    By default it is legible on a light and on a dark background.
    """
    import matplotlib as mpl

    inked = ("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "text.color")
    style: dict[Any, Any] = dict.fromkeys(inked, ink) | {
        "svg.fonttype": "none", "svg.hashsalt": "bgtplanner",  # the same run gives the same file
        "text.parse_math": False,  # a name between two dollar signs is not a formula
        "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
        "grid.alpha": 0.4, "legend.frameon": False,
    }  # fmt: skip
    buffer, metadata = io.StringIO(), dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with mpl.rc_context(style):
        as_figure(picture).savefig(buffer, format="svg", transparent=True, metadata=metadata)
    text = visible(buffer.getvalue(), keep="\n")
    return text[text.index("<svg") :]


def as_figure(picture: Picture) -> Figure:
    """Return the picture as a figure, which notebooks show, and which can be saved."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=picture.size, layout="constrained")
    picture.draw(figure)
    return figure


def _by_round(axes: Axes, total: int, label: str) -> None:
    """Label axes over all planned rounds of a run."""
    axes.set(xlabel="round", ylabel=label, xlim=(0, total + 1))
    axes.locator_params(axis="x", integer=True, nbins=6)
    axes.grid(axis="y")


def quality(summary: Mapping[str, Any], name: str, values: Sequence[float], total: int) -> Picture:
    """Draw a metric by round, with the references and the mean that people were served."""
    metric, served = METRICS[name], summary.get(f"{name}_served")
    known = {key: summary.get(f"{name}_{key}") for key in _BESIDE}
    beside = {key: value for key, value in known.items() if value is not None}
    if known["user_mean"] == known["client_alone"]:
        beside.pop("user_mean", None)  # with one user per client the two are the same
    span, every, alone = None, [*values, *beside.values()], known["client_alone"]
    if alone:
        span = 0.99 * min(*every, _LOWEST * alone), 1.01 * max(*every, _HIGHEST * alone)

    def draw(figure: Figure) -> None:
        axes, steps = figure.subplots(), range(1, len(values) + 1)
        axes.plot(steps, values, color=BLUE, lw=2.2, label=visible(summary["model"]))
        axes.plot(steps[-1:], values[-1:], "o", ms=4, color=BLUE)  # a single round shows, too
        if served is not None:
            axes.axhline(served, color=BLUE, ls=(0, (6, 2)), lw=1.3, label="mean, as served")
        for key, value in beside.items():
            axes.axhline(value, lw=1.5, label=REFERENCES[key], **_BESIDE[key])
        _by_round(axes, total, metric.label)
        axes.set_ylim(span)
        figure.legend(**ABOVE)

    said = [] if served is None else [f"mean over all rounds, as served, {served:.4f}"]
    said += [f"{REFERENCES[key]} {value:.4f}" for key, value in beside.items()]
    return Picture(
        name=name, draw=draw, note=_AROUND if span is not None else "",
        title=f"{metric.label} on the held-out ratings ({metric.better} is better)",
        alt=f"{metric.label} by round: from {values[0]:.4f} to {values[-1]:.4f}; "
        f"{', '.join(said) or 'no references'}.",
    )  # fmt: skip


def spent(total: int, taken: NDArray[np.float64], promised: Sequence[float]) -> Picture:
    """Draw which share of its budget each class of clients has spent, ``[rounds, classes]``."""
    columns = np.linspace(0, len(promised) - 1, min(len(promised), len(_CLASSES))).round()

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for column, tint in zip(columns.astype(int), _CLASSES, strict=False):
            share, name = [0.0, *taken[:, column]], f"budget ε {promised[column]:g}"
            axes.step(range(len(share)), share, where="post", color=tint, lw=2, label=name)
        _by_round(axes, total, "share spent so far")
        axes.set_ylim(0, 1.03)
        axes.yaxis.set_major_formatter("{x:.0%}")
        figure.legend(**ABOVE)

    each = np.diff(taken, axis=0, prepend=0.0).max(axis=1)
    ends = ", ".join(
        f"{of:.1%} of ε {most:g}" for of, most in zip(taken[-1], promised, strict=True)
    )
    return Picture(
        name="spent", draw=draw, title="How much of the budget was spent, by round",
        alt=f"Spent in the end: {ends}. {int((each > 0).sum())} of {len(each)} rounds were paid "
        f"for, the most expensive with {each.max():.1%} of the budget.",
        note="Shares of what a client may be charged; ε, which limits what can be told about a "
        "client, grows faster at first.",
    )  # fmt: skip
