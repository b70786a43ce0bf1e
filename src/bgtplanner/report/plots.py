"""The four pictures: of a run three, of a comparison one. What they show is decided elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bgtplanner.models.metrics import METRICS
from bgtplanner.models.references import REFERENCES
from bgtplanner.report.style import ABOVE, BESIDE, GREEN, GREY, Picture, look_of, shades
from bgtplanner.runs.statistics import Row, metric_of
from bgtplanner.runs.tables import when
from bgtplanner.text import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_CLASSES = 5
_LEAST_GAIN = 0.05  # what an axis of gains covers at least
_LEAST_DIFFERENCE = 0.02  # what an axis of differences covers at least, in figures of the baseline
_LOWEST, _HIGHEST = 0.8, 1.1  # what an axis of errors covers at least, in errors of clients alone
_WITH_ZERO = f"The axis includes zero, a client alone, and at least {_LEAST_GAIN:.0%}."
_AROUND = (
    f"The axis does not start at zero. It always has room from {1 - _LOWEST:.0%} below a client "
    f"alone to {_HIGHEST - 1:.0%} above, so that a small change looks small."
)


def _around(values: Sequence[float], alone: float | None) -> tuple[float, float] | None:
    """Return the limits of an axis of errors; None if that of a client alone is not known."""
    if not alone:
        return None
    return 0.99 * min(*values, _LOWEST * alone), 1.01 * max(*values, _HIGHEST * alone)


def _by_round(axes: Axes, total: int, label: str) -> None:
    """Label axes over all planned rounds of a run."""
    axes.set(xlabel="round", ylabel=label, xlim=(0, total + 1))
    axes.locator_params(axis="x", integer=True, nbins=6)
    axes.grid(axis="y")


def quality(summary: Mapping[str, Any], name: str, values: Sequence[float], total: int) -> Picture:
    """Draw a metric by round, with the references and the mean that people were served."""
    metric, served = METRICS[name], summary.get(f"{name}_served")
    known = {key: summary.get(f"{name}_{key}") for key in REFERENCES}
    beside = {key: value for key, value in known.items() if value is not None}
    if known["user_mean"] == known["client_alone"]:
        beside.pop("user_mean", None)  # with one user per client the two are the same
    span = _around([*values, *beside.values()], known["client_alone"])
    colour = look_of(summary["policy"]).colour

    def draw(figure: Figure) -> None:
        axes, steps = figure.subplots(), range(1, len(values) + 1)
        axes.plot(steps, values, color=colour, lw=2.2, label=visible(summary["model"]))
        axes.plot(steps[-1:], values[-1:], "o", ms=4, color=colour)  # a single round shows, too
        if served is not None:
            axes.axhline(served, color=colour, ls=(0, (6, 2)), lw=1.3, label="mean, as served")
        for key, value in beside.items():
            shade, dashes = BESIDE[key]
            axes.axhline(value, color=shade, ls=dashes, lw=1.5, label=REFERENCES[key])
        _by_round(axes, total, metric.label)
        axes.set_ylim(span)
        figure.legend(**ABOVE)

    mean = [] if served is None else [f"mean over all rounds, as served, {served:.4f}"]
    said = [*mean, *(f"{REFERENCES[key]} {value:.4f}" for key, value in beside.items())]
    return Picture(
        name=name,
        title=f"{metric.label} on the held-out ratings ({metric.better} is better)",
        alt=f"{metric.label} by round: from {values[0]:.4f} to {values[-1]:.4f}; "
        f"{', '.join(said) or 'no references'}.",
        draw=draw,
        note=_AROUND if span is not None else "",
    )


def _intervals(axes: Axes, values: Mapping[str, tuple[float, float | None]]) -> None:
    """Draw a mean with half its interval for each policy, the first on top."""
    for place, (policy, (mean, half)) in enumerate(values.items()):
        look = look_of(policy)
        axes.errorbar(mean, -place, xerr=half or 0.0, color=look.colour, marker=look.mark,
                      ms=7, capsize=4, lw=2)  # fmt: skip
    names = [visible(name.rpartition(":")[2]) for name in values]  # of an address only the class
    axes.set_yticks([-place for place in range(len(names))], names)
    axes.set_ylim(0.6 - len(names), 0.6)
    axes.locator_params(axis="x", nbins=5)
    axes.grid(axis="x")


def spent(
    policy: str,
    total: int,
    shares: NDArray[np.float64],
    epsilon: NDArray[np.float64] | None,
    promised: Sequence[float],
) -> Picture:
    """Draw which share of the budget each round took, and the epsilon of each class so far.

    The latter is ``[rounds, classes]``, or None if it was not recorded.
    """
    steps, colour = range(1, len(shares) + 1), look_of(policy).colour

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1 if epsilon is None else 2, 1, squeeze=False)[:, 0]
        if epsilon is not None:
            columns = np.linspace(0, len(promised) - 1, min(len(promised), _MOST_CLASSES))
            picked = columns.round().astype(int)
            for column, tint in zip(picked, shades(colour, len(picked)), strict=True):
                name, so_far = f"budget ε {promised[column]:g}", [0.0, *epsilon[:, column]]
                panels[0].step([0, *steps], so_far, where="post", color=tint, label=name)
                panels[0].axhline(promised[column], color=tint, ls=":", lw=1.3)
            _by_round(panels[0], total, "ε spent")
            panels[0].set_ylim(0)
            figure.legend(**ABOVE)
        panels[-1].bar(steps, shares, color=colour, width=max(0.8, total / 160))
        _by_round(panels[-1], total, "share per round")
        panels[-1].yaxis.set_major_formatter("{x:.1%}" if shares.max() < 0.05 else "{x:.0%}")

    ends = [] if epsilon is None else zip(epsilon[-1], promised, strict=True)
    known = f"Epsilon spent: {', '.join(f'{of:.3g} of {most:g}' for of, most in ends)}. "
    return Picture(
        name="spent",
        title="What was spent, in total and in each round",
        alt=f"{'' if epsilon is None else known}{int((shares > 0).sum())} of {len(shares)} rounds "
        f"were paid for, the most expensive with {shares.max():.1%} of the budget.",
        draw=draw,
        size=(4.8, 2.4 if epsilon is None else 4.2),
        note="Dotted: what was promised. The ε is that of the client that has spent most.",
    )


def forecast(
    policy: str, total: int, planned: Mapping[int, float], came: Mapping[int, float], gain: bool
) -> Picture:
    """Draw what the planner expected of each payment, by round, and what came, if it is known.

    That is the `gain` of the error over a client alone, or a reward.
    """
    expected, actual = list(planned.values()), list(came.values())
    what, form = ("gain", ".1%") if gain else ("reward", ".3g")

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        # Dots, because a line would claim something about the rounds between payments.
        label = "forecast, if the plan is followed" if gain else "predicted"
        axes.plot(list(planned), expected, "o", ms=5, color=look_of(policy).colour, label=label)
        line = {"lw": 1.4, "color": GREEN} if gain else {"ls": "", "marker": ".", "color": GREY}
        axes.plot(list(came), actual, label="actual", zorder=1, **line)
        _by_round(axes, total, "error below a client alone" if gain else "reward")
        if gain:
            axes.plot([1, 1], [0, _LEAST_GAIN], alpha=0)
            axes.yaxis.set_major_formatter("{x:.0%}")
        figure.legend(**ABOVE)

    last = f"{actual[-1]:{form}} came at the end" if came else "what came is not known"
    return Picture(
        name="forecast",
        title=f"Why: the {what} that was expected of each payment, and the actual one",
        alt=f"Expected {what}: {expected[0]:{form}} at first, {expected[-1]:{form}} at the last "
        f"payment; {last}.",
        draw=draw,
        note=_WITH_ZERO if gain else "",
    )


def comparison(rows: Sequence[Row], key: str, against: str | None, name: str) -> Picture:
    """Draw the means of all policies with intervals, and their differences from a baseline.

    The rows are those of one data set and mechanism, which `name` names.
    """
    metric = METRICS[metric_of(key)]
    known = [(row, found) for row in rows if (found := row.figures[key]) is not None]
    beside = {row.policy: found.mean for row, found in known if row.reference}
    ours = [(row, found) for row, found in known if not row.reference]
    means = {row.policy: (of.mean, of.half) for row, of in ours if not row.baseline}
    apart = {row.policy: (of.mean, of.half) for row, of in ours if row.baseline}
    ends = [mean + side * (half or 0.0) for mean, half in means.values() for side in (-1, 1)]
    alone = beside.get("client_alone") if metric.sums else None
    span = _around([*ends, *beside.values()], alone)

    def draw(figure: Figure) -> None:
        heights = [len(means), len(apart)] if apart else [len(means)]
        panels = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
        for value, of in {value: of for of, value in beside.items()}.items():  # equal ones once
            shade, dashes = BESIDE[of]
            panels[0].axvline(value, color=shade, ls=dashes, lw=1.4, label=REFERENCES[of])
        _intervals(panels[0], means)
        panels[0].set(xlim=span, xlabel=f"{metric.label} ({metric.better} is better)")
        if apart:
            least = _LEAST_DIFFERENCE * abs(means.get(str(against), (0.0, None))[0])
            panels[1].axvline(0, color=look_of(str(against)).colour, lw=1.4)
            panels[1].plot([-least, least], [0, 0], alpha=0)
            _intervals(panels[1], apart)
            panels[1].set_xlabel(visible(f"{metric.label} minus that of {against}"))
        if beside:
            figure.legend(**ABOVE)

    def said(values: Mapping[str, tuple[float, float | None]], form: str) -> str:
        every = values.items()
        return "; ".join(f"{of} {mean:{form}} ± {half or 0:.4f}" for of, (mean, half) in every)

    title = f"{metric.label} of each policy ({when(key)})"
    minus = f" Minus that of {against}: {said(apart, '+.4f')}." if apart else ""
    return Picture(
        name=f"{key.replace('_', '-')}-{name}",
        title=title + (f", and its difference from {against}, paired by seed" if apart else ""),
        alt=f"{metric.label}, mean and 95 % interval over seeds: {said(means, '.4f')}.{minus}",
        draw=draw,
        size=(4.8, 1.9 + 0.3 * (len(means) + len(apart)) + 0.8 * bool(apart)),
        note="Bars are 95 % intervals over seeds. "
        + (_AROUND if span is not None else "The axis need not start at zero."),
    )
