"""The six pictures: of a run four, of a study two. Nothing here decides what is true, or said."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bgtplanner.models.metrics import METRICS
from bgtplanner.models.references import REFERENCES
from bgtplanner.report.style import (
    ABOVE,
    BESIDE,
    GREEN,
    GREY,
    VERMILLION,
    Look,
    Picture,
    look_of,
    shades,
)
from bgtplanner.runs.statistics import Estimate, Row, metric_of
from bgtplanner.runs.study import Variation, in_words
from bgtplanner.runs.tables import when
from bgtplanner.text import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["comparison", "forecast", "gains", "quality", "spent", "sweep"]

_MOST_CLASSES = 5
_LEAST_GAIN = 0.05  # what an axis of gains covers at least
_LEAST_DIFFERENCE = 0.02  # what an axis of differences covers at least, in figures of the baseline
_LOWEST, _HIGHEST = 0.8, 1.1  # what an axis of errors covers at least, in errors of clients alone
_MARKS, _DASHES = ("o", "s", "^", "D", "v", "P", "X"), ("-", "--", "-.", ":")
_NOTE = (
    f"The axis does not start at zero. It always has room from {1 - _LOWEST:.0%} below a client "
    f"alone to {_HIGHEST - 1:.0%} above, so that a small change looks small."
)


def _span(values: Sequence[float], alone: float | None) -> tuple[float, float] | None:
    """Return the limits of an axis of errors, on which small changes look small.

    They are around the error of a client alone; None if that is not known.
    """
    if not alone:
        return None
    low, high = min(*values, _LOWEST * alone), max(*values, _HIGHEST * alone)
    return low - 0.04 * (high - low), high + 0.04 * (high - low)


def _by_round(axes: Axes, total: int, label: str) -> None:
    """Label axes over all planned rounds of a run."""
    axes.set(xlabel="round", ylabel=label, xlim=(0, total + 1))
    axes.locator_params(axis="x", integer=True, nbins=6)
    axes.grid(axis="y")


def _scaled(length: float) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Return how a second axis on the data's own scale follows from the first, and back."""
    return (lambda error: error * length), (lambda raw: raw / length)


def _short(policy: str) -> str:
    """Return the name of a policy; of ``package.module:Class`` only the class."""
    return visible(policy.rpartition(":")[2])


def quality(
    name: str,
    values: Sequence[float],
    beside: Mapping[str, float],
    served: float | None,
    run: tuple[str, str, int],
    stars: tuple[float, str] | None,
) -> Picture:
    """Draw a metric by round, with the references.

    Args:
        name: The name of the metric.
        values: One value per round.
        beside: The references that have a figure, by key.
        served: The mean over all rounds, if it is known.
        run: The names of model and policy, and how many rounds are planned.
        stars: The length of the data's own scale and its name, if it has another than 0 to 1.
    """
    metric, (model, policy, total) = METRICS[name], run
    span = _span([*values, *beside.values()], beside.get("client_alone"))

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        marker = "o" if len(values) == 1 else ""
        colour, steps = look_of(policy).colour, range(1, len(values) + 1)
        style: dict[str, Any] = {"lw": 2.2, "marker": marker, "color": colour}
        axes.plot(steps, values, label=visible(model), **style)
        if served is not None:
            axes.axhline(served, color=colour, ls=(0, (6, 2)), lw=1.3, label="mean, as served")
        for key, value in beside.items():
            shade, dashes = BESIDE[key]
            axes.axhline(value, color=shade, ls=dashes, lw=1.5, label=REFERENCES[key])
        _by_round(axes, total, metric.label)
        if span is not None:
            axes.set_ylim(*span)
        if stars is not None:
            length, unit = stars
            own = axes.secondary_yaxis("right", _scaled(length))
            own.set_ylabel(visible(unit))
        figure.legend(**ABOVE)

    mean = [] if served is None else [f"mean over all rounds, as served, {served:.4f}"]
    known = [*mean, *(f"{REFERENCES[key]} {value:.4f}" for key, value in beside.items())]
    return Picture(
        name=name,
        title=f"{metric.label} on the held-out ratings ({metric.better} is better)",
        alt=f"{metric.label} by round: from {values[0]:.4f} to {values[-1]:.4f}; "
        f"{', '.join(known) or 'no references'}.",
        draw=draw,
        size=(4.8, 3.6),
        note=_NOTE if span is not None else "",
    )


def gains(groups: Sequence[Mapping[str, Any]], by: str, policy: str) -> Picture:
    """Draw the gain of each group of clients over being alone, with its 95 % interval."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.axvline(0, color=GREY, lw=1.4, ls="-.")
        for place, group in enumerate(reversed(groups)):
            arms = [[group["gain"] - group["low"]], [group["high"] - group["gain"]]]
            shade = look_of(policy).colour if group["high"] >= 0 else VERMILLION
            axes.errorbar(
                group["gain"], place, xerr=arms, color=shade, marker="o", capsize=4, lw=2
            )
        low = min(-_LEAST_GAIN / 5, *(group["low"] for group in groups))
        high = max(_LEAST_GAIN, *(group["high"] for group in groups))
        names = [visible(group["name"]) for group in reversed(groups)]
        axes.set_yticks(range(len(groups)), names)
        axes.set(xlabel="error below a client alone", ylim=(-0.6, len(groups) - 0.4))
        axes.set_xlim(low - 0.05 * (high - low), high + 0.05 * (high - low))
        axes.xaxis.set_major_formatter("{x:.0%}")
        axes.grid(axis="x")

    said = "; ".join(
        f"{of['name']}: {of['gain']:.1%} ({of['low']:.1%} to {of['high']:.1%})" for of in groups
    )
    return Picture(
        name=f"gain-{by.replace(' ', '-')}",
        title=f"Gain over a client alone, by {by}",
        alt=f"How far the error is below that of a client alone, with 95 % intervals: {said}.",
        draw=draw,
        size=(4.8, 1.2 + 0.36 * max(3, len(groups))),
        note=f"The axis includes zero, and at least {_LEAST_GAIN:.0%}. The intervals are 95 %, "
        "over clients.",
    )


def spent(
    epsilon: NDArray[np.float64] | None,
    promised: Sequence[float],
    shares: NDArray[np.float64],
    run: tuple[str, int],
) -> Picture:
    """Draw the epsilon spent so far by class, and which share of the budget each round took.

    Args:
        epsilon: Spent after each round, ``[rounds, classes]``; None if it was not recorded.
        promised: The budget of each class.
        shares: The share that each round took, of the class that it took most of.
        run: The name of the policy, and how many rounds are planned.
    """
    policy, total = run
    steps = range(1, len(shares) + 1)
    colour = look_of(policy).colour

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1 if epsilon is None else 2, 1, squeeze=False, sharex=True)[:, 0]
        panels[-1].bar(steps, shares, color=colour, width=max(0.8, total / 160))
        if epsilon is not None:
            columns = epsilon.shape[1]
            picked = np.linspace(0, columns - 1, min(columns, _MOST_CLASSES)).round().astype(int)
            tints = shades(colour, len(picked)) if len(picked) > 1 else [colour]
            for column, tint in zip(picked, tints, strict=True):
                label = f"budget ε {promised[column]:g}"
                panels[0].step([0, *steps], [0, *epsilon[:, column]], where="post", color=tint,
                               label=label)  # fmt: skip
                panels[0].axhline(promised[column], color=tint, ls=":", lw=1.3)
            _by_round(panels[0], total, "ε spent")
            panels[0].set(ylim=(0, None), xlabel="")
            figure.legend(**ABOVE)
        _by_round(panels[-1], total, "share per round")
        panels[-1].yaxis.set_major_formatter("{x:.1%}" if shares.max() < 0.05 else "{x:.0%}")

    known = "" if epsilon is None else (
        f"Epsilon spent by round: {float(epsilon[-1].max()):.3g} at the end, of "
        f"{max(promised):g} promised. "
    )  # fmt: skip
    return Picture(
        name="spent",
        title="What was spent, in total and in each round",
        alt=f"{known}{int((shares > 0).sum())} of {len(shares)} rounds were paid for, the most "
        f"expensive with {shares.max():.1%} of the budget.",
        draw=draw,
        size=(4.8, 2.4 if epsilon is None else 4.2),
        note="" if epsilon is None else "Dotted: what was promised. It is the ε of the client "
        "that has spent most.",
    )  # fmt: skip


def forecast(
    planned: Mapping[int, float], came: Mapping[int, float], gain: bool, run: tuple[str, int]
) -> Picture:
    """Draw what the planner expected of each payment, and what came.

    Args:
        planned: What was expected, by number of the round.
        came: What came, by number of the round; empty if it is not known.
        gain: Whether it is the gain over a client alone, and not a reward.
        run: The name of the policy, and how many rounds are planned.
    """
    policy, total = run
    what, expected, actual = "gain" if gain else "reward", [*planned.values()], [*came.values()]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        # Dots, because a line would claim something about the rounds between payments.
        axes.plot(list(planned), expected, "o", ms=5, color=look_of(policy).colour,
                  label="forecast, if the plan is followed" if gain else "predicted")  # fmt: skip
        if came and gain:
            axes.plot(list(came), actual, "-", lw=1.4, color=GREEN, label="actual")
        elif came:
            axes.plot(list(came), actual, "o", ms=3, color=GREY, label="actual", zorder=1)
        _by_round(axes, total, "error below a client alone" if gain else "reward")
        if gain:
            low = min(0.0, *expected, float(np.percentile(actual or [0.0], 5)))
            high = max(_LEAST_GAIN, *expected, *actual)
            axes.set_ylim(low - 0.06 * (high - low), high + 0.06 * (high - low))
            axes.yaxis.set_major_formatter("{x:.0%}")
        figure.legend(**ABOVE)

    form = ".1%" if gain else ".3g"
    last = f"{actual[-1]:{form}} came at the end" if came else "what came is not known"
    return Picture(
        name="forecast",
        title=f"Why: the {what} that was expected of each payment, and the actual one",
        alt=f"Expected {what}: {expected[0]:{form}} at first, {expected[-1]:{form}} at the last "
        f"payment; {last}.",
        draw=draw,
        note=f"The axis includes zero, a client alone, and at least {_LEAST_GAIN:.0%}."
        if gain
        else "",
    )


def comparison(
    rows: Sequence[Row], key: str, against: str | None, name: str, stars: tuple[float, str] | None
) -> Picture:
    """Draw the means of all policies with intervals, and their differences from the baseline.

    Args:
        rows: The rows of one data set and mechanism: policies, references and differences.
        key: The figure that is compared.
        against: The baseline.
        name: The name of the data set and the mechanism in file names.
        stars: The length of the data's own scale and its name, if it has another than 0 to 1.
    """
    metric = METRICS[metric_of(key)]
    known = [(row, found) for row in rows if (found := row.figures[key]) is not None]
    beside = {row.policy: found.mean for row, found in known if row.reference}
    means = {row.policy: of for row, of in known if not (row.reference or row.baseline)}
    apart = {row.policy: of for row, of in known if row.baseline}
    ends = [of.mean + side * (of.half or 0.0) for of in means.values() for side in (-1, 1)]
    span = _span([*ends, *beside.values()], beside.get("client_alone")) if metric.sums else None
    base = means.get(str(against))
    least = 0.0 if base is None else _LEAST_DIFFERENCE * abs(base.mean)

    def draw(figure: Figure) -> None:
        heights = [len(means), len(apart)] if apart else [len(means)]
        panels = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
        for of, value in {value: of for of, value in beside.items()}.items():  # equal ones once
            shade, dashes = BESIDE[value]
            panels[0].axvline(of, color=shade, ls=dashes, lw=1.4, label=REFERENCES[value])
        _intervals(panels[0], means, f"{metric.label} ({metric.better} is better)")
        if span is not None:
            panels[0].set_xlim(*span)
        if stars is not None and metric.unit == "ratings":
            length, unit = stars
            own = panels[0].secondary_xaxis("top", _scaled(length))
            own.set_xlabel(visible(unit))
        if apart:
            panels[1].axvline(0, color=look_of(str(against)).colour, lw=1.4)
            panels[1].plot([-least, least], [0, 0], alpha=0)
            _intervals(panels[1], apart, f"{metric.label} minus that of {_short(str(against))}")
        if beside:
            figure.legend(**ABOVE)

    said = _said(means, ".4f")
    minus = f" Minus that of {against}: {_said(apart, '+.4f')}." if apart else ""
    note = _NOTE if span is not None else "The axis need not start at zero."
    return Picture(
        name=f"{key.replace('_', '-')}-{name}",
        title=f"{metric.label} of each policy ({when(key)})"
        + (f", and its difference from {against}, paired by seed" if apart else ""),
        alt=f"{metric.label}, mean and 95 % interval over seeds: {said}.{minus}",
        draw=draw,
        size=(4.8, 1.9 + 0.3 * (len(means) + len(apart)) + 0.8 * bool(apart)),
        note=f"Bars are 95 % intervals over seeds. {note}",
    )


def _intervals(axes: Axes, values: Mapping[str, Estimate], label: str) -> None:
    """Draw one interval per policy, the first on top."""
    for place, (policy, found) in enumerate(reversed(list(values.items()))):
        look = look_of(policy)
        axes.errorbar(found.mean, place, xerr=found.half or 0.0, color=look.colour,
                      marker=look.mark, ms=7, capsize=4, lw=2)  # fmt: skip
    axes.set_yticks(range(len(values)), [_short(policy) for policy in reversed(list(values))])
    axes.set(ylim=(-0.6, len(values) - 0.4), xlabel=label)
    axes.locator_params(axis="x", nbins=5)
    axes.grid(axis="x")


def _said(values: Mapping[str, Estimate], form: str) -> str:
    """Return the means with half their intervals, for screen readers."""
    return "; ".join(
        f"{policy} {found.mean:{form}}" + ("" if found.half is None else f" ± {found.half:.4f}")
        for policy, found in values.items()
    )


def sweep(
    shown: Sequence[tuple[Variation, Sequence[Row]]], keys: Sequence[str], name: str, title: str
) -> Picture:
    """Draw figures over the first key of each variation; bars are one standard deviation.

    Args:
        shown: The rows of one data set and mechanism, by what is varied.
        keys: The figures, side by side.
        name: The name of the data set and the mechanism in file names.
        title: What is shown, for headings.
    """

    def draw(figure: Figure) -> None:
        parts = figure.subfigures(len(shown), 1, squeeze=False)[:, 0]
        for (variation, rows), part in zip(shown, parts, strict=True):
            panels = part.subplots(1, len(keys), squeeze=False)[0]
            for axes, key in zip(panels, keys, strict=True):
                _over(axes, variation, rows, key)
                axes.set_ylabel(METRICS[metric_of(key)].label)
                axes.grid(axis="y")
            handles, labels = panels[0].get_legend_handles_labels()
            if handles:
                part.legend(handles, labels, **ABOVE)

    values: dict[str, list[str]] = {}
    for row in chain(*(rows for _, rows in shown)):
        if (found := row.figures[keys[0]]) is not None:
            where = ",".join(f"{key}={in_words(of)}" for key, of in row.varied.items())
            values.setdefault(row.policy, []).append(f"{where} {found.mean:.4f}")
    said = "; ".join(
        f"{policy}: {', '.join(of if len(of) <= 6 else [*of[:3], '...', of[-1]])}"
        for policy, of in values.items()
    )
    return Picture(
        name=name,
        title=title,
        alt=f"{METRICS[metric_of(keys[0])].label} by setting. {said}.",
        draw=draw,
        size=(4.8 * len(keys), 3.4 * len(shown)),
        note="Bars are one standard deviation over seeds.",
    )


def _over(axes: Axes, variation: Variation, rows: Sequence[Row], key: str) -> None:
    """Draw one figure over the first setting of a variation, one line per policy and setting."""
    first, *others = variation.axes
    numbers = all(isinstance(of, int | float) and not isinstance(of, bool) for of in first.values)
    places: dict[str, float] = {
        in_words(value): value if numbers else number for number, value in enumerate(first.values)
    }
    wide = numbers and min(first.values) > 0 and max(first.values) >= 50 * min(first.values)
    axes.set_xscale("log" if wide else "linear")
    axes.set_xticks(list(places.values()), [visible(name)[-12:] for name in places])
    axes.minorticks_off()
    axes.set_xlabel(visible(first.key))
    lines: dict[tuple[str, str], list[tuple[float, Estimate]]] = {}
    for row in rows:
        setting = ", ".join(
            f"{of.key.rpartition('.')[2]} {in_words(row.varied[of.key])[-12:]}" for of in others
        )
        line = lines.setdefault((row.policy, setting), [])
        if (value := row.figures[key]) is not None:
            line.append((places[in_words(row.varied[first.key])], value))
    several = len({policy for policy, _ in lines}) > 1 or not others
    for (policy, setting), look in _looks(list(lines)).items():
        line = sorted(lines[policy, setting], key=lambda entry: entry[0])
        label = ", ".join(part for part in (_short(policy) if several else "", setting) if part)
        axes.errorbar([at for at, _ in line], [of.mean for _, of in line],
                      yerr=[of.std or 0.0 for _, of in line], color=look.colour, marker=look.mark,
                      ls=look.dashes, lw=1.5, ms=5, capsize=3, label=visible(label))  # fmt: skip


def _looks(lines: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Look]:
    """Return the look of each line: that of its policy, or shades of it for several settings."""
    found = {}
    for policy in dict.fromkeys(policy for policy, _ in lines):
        own, look = [line for line in lines if line[0] == policy], look_of(policy)
        if len(own) == 1:
            found[own[0]] = look
            continue
        several = zip(own, shades(look.colour, len(own)), cycle(_MARKS), cycle(_DASHES))
        found |= {line: Look(*how) for line, *how in several}
    return found
