"""Pictures of a comparison: how good each policy got, what sets them apart, how they got there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from bgtplanner.experiments.cells import folder_name
from bgtplanner.experiments.comparison import Comparison, Difference, Estimate, Row
from bgtplanner.experiments.curves import Curve
from bgtplanner.report.drawing import GREY, WIDE, Picture, label_ends, look_of, mark_series
from bgtplanner.report.story import REFERENCES
from bgtplanner.text import visible

__all__ = ["comparison_pictures", "group_name"]

Curves = Mapping[tuple[str, str, str], Curve]
_NAMES = {"rmse": "RMSE", "f1": "F1"}
_BETTER = {"rmse": "lower", "f1": "higher"}
_DASHES = {"constant": "--", "user_mean": ":", "client_alone": "-."}


def group_name(dataset: str, mechanism: str) -> str:
    """A data set with what protected the uploads, as headings have it."""
    return f"{dataset}, {'no privacy' if mechanism == 'none' else mechanism}"


def comparison_pictures(comparison: Comparison, curves: Curves) -> Iterator[Picture]:
    """All pictures of a grid, data set by data set and mechanism by mechanism."""
    request = comparison.request
    noisy = [name for name in dict.fromkeys(request.mechanisms) if name != "none"]
    if all(name == "unlimited" for name in request.policies):
        noisy = ["none"]
    for dataset in dict.fromkeys(request.datasets):
        for mechanism in noisy:
            yield from _group(comparison, curves, dataset, mechanism)


def _group(
    comparison: Comparison, curves: Curves, dataset: str, mechanism: str
) -> Iterator[Picture]:
    # What needs no mechanism is drawn beside the others, whichever they have.
    rows = [
        row
        for row in comparison.rows
        if row.dataset == dataset and (row.reference or row.mechanism in (mechanism, "none"))
    ]
    apart = [
        entry
        for entry in comparison.differences
        if entry.dataset == dataset and entry.mechanism == mechanism
    ]
    here = {
        policy: curve
        for (of, by, policy), curve in curves.items()
        if of == dataset and by in (mechanism, "none")
    }
    for metric in comparison.reported:
        kind = metric.partition("_")[0]
        if any(row.figures[metric] is not None for row in rows if not row.reference):
            yield _levels(rows, metric, kind, dataset, mechanism)
        if any(entry.figures[metric] is not None for entry in apart):
            yield _differences(apart, metric, kind, dataset, mechanism)
        if here:
            yield _curves(here, rows, kind, dataset, mechanism)
    if any(curve.left.size for curve in here.values()):
        yield _spending(here, dataset, mechanism)


def _name(what: str, dataset: str, mechanism: str) -> str:
    return f"{what}-{folder_name(dataset)}-{mechanism}"


def _levels(rows: Sequence[Row], metric: str, kind: str, dataset: str, mechanism: str) -> Picture:
    known = [(row, found) for row in rows if (found := row.figures[metric]) is not None]
    policies = {row.policy: found for row, found in known if not row.reference}
    # Clients of one user each have nothing better than its mean: then one line is enough.
    beside = {found.mean: row.policy for row, found in known if row.reference}

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        _draw_intervals(axes, policies)
        handles = []
        for value, name in beside.items():
            line = axes.axvline(value, color=GREY, ls=_DASHES[name], lw=1.4)
            mark_series(line, name)
            handles.append((line, REFERENCES[name]))
        axes.set_xlabel(f"{_NAMES[kind]} ({_BETTER[kind]} is better)")
        if handles:
            axes.legend(
                *zip(*handles, strict=True), loc="lower left", bbox_to_anchor=(-0.12, 1), ncols=3,
                fontsize=8, columnspacing=1.0, handlelength=1.6, borderaxespad=0.1,
            )  # fmt: skip

    return Picture(
        name=_name(kind, dataset, mechanism),
        title=f"{_NAMES[kind]}: mean and 95 % interval over seeds",
        alt=f"{_NAMES[kind]} of each policy: {_said(policies, '.4f')}.",
        draw=draw,
        size=(WIDE[0], 1.5 + 0.32 * max(3, len(policies))),
        group=group_name(dataset, mechanism),
        view=kind,
    )


def _differences(
    entries: Sequence[Difference], metric: str, kind: str, dataset: str, mechanism: str
) -> Picture:
    shown = {
        entry.policy: found for entry in entries if (found := entry.figures[metric]) is not None
    }
    baseline = entries[0].baseline

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.axvline(0, color=look_of(baseline).colour, lw=1.4)
        _draw_intervals(axes, shown)
        axes.set_xlabel(f"{_NAMES[kind]} less that of {_short(baseline)}")

    return Picture(
        name=_name(f"difference-{kind}", dataset, mechanism),
        title=f"{_NAMES[kind]} against {baseline}, seed by seed ({_BETTER[kind]} is better)",
        alt=f"Difference of {_NAMES[kind]} to {baseline}, with 95 % intervals: "
        f"{_said(shown, '+.4f')}.",
        draw=draw,
        size=(WIDE[0], 1.5 + 0.32 * max(3, len(shown))),
        group=group_name(dataset, mechanism),
        view=kind,
    )


def _draw_intervals(axes: Axes, values: Mapping[str, Estimate]) -> None:
    """A line for each policy, the first on top."""
    for place, (policy, found) in enumerate(reversed(list(values.items()))):
        look = look_of(policy)
        bars = axes.errorbar(
            found.mean, place, xerr=found.half or 0.0, color=look.colour, marker=look.mark,
            ms=7, capsize=4, lw=2,
        )  # fmt: skip
        mark_series([bars.lines[0], *bars.lines[1], *bars.lines[2]], policy)
    axes.set_yticks(range(len(values)), [_short(policy) for policy in reversed(list(values))])
    axes.set_ylim(-0.6, len(values) - 0.4)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.grid(axis="x", alpha=0.25, lw=0.7)


def _said(values: Mapping[str, Estimate], digits: str) -> str:
    return "; ".join(
        f"{policy} {found.mean:{digits}}" + ("" if found.half is None else f" ± {found.half:.4f}")
        for policy, found in values.items()
    )


def _curves(
    here: Mapping[str, Curve], rows: Sequence[Row], kind: str, dataset: str, mechanism: str
) -> Picture:
    beside = {
        row.policy: found.mean
        for row in rows
        if row.reference and (found := row.figures[f"{kind}_final"]) is not None
    }

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        ends = []
        for policy, curve in here.items():
            values, look = getattr(curve, kind), look_of(policy)
            line = axes.plot(
                np.arange(1, len(values) + 1), values, color=look.colour, ls=look.dashes
            )
            mark_series(line, policy)
            ends.append((float(values[-1]), _short(policy), look.colour, policy))
        if "client_alone" in beside:
            alone = beside["client_alone"]
            mark_series(axes.axhline(alone, color=GREY, ls="-.", lw=1.2), "client_alone")
            ends.append((alone, "client alone", GREY, "client_alone"))
        _of_rounds(figure, _NAMES[kind])
        label_ends(axes, ends)

    said = "; ".join(
        f"{policy} ends at {getattr(of, kind)[-1]:.4f}" for policy, of in here.items()
    )
    return Picture(
        name=_name(f"rounds-{kind}", dataset, mechanism),
        title=f"{_NAMES[kind]} by round, mean over seeds",
        alt=f"{_NAMES[kind]} by round: {said}.",
        draw=draw,
        group=group_name(dataset, mechanism),
        view=kind,
    )


def _spending(here: Mapping[str, Curve], dataset: str, mechanism: str) -> Picture:
    paid = {policy: curve.left for policy, curve in here.items() if curve.left.size}

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        ends = []
        for policy, left in paid.items():
            look = look_of(policy)
            line = axes.step(
                np.arange(len(left) + 1), [1.0, *left], where="post", color=look.colour,
                ls=look.dashes,
            )  # fmt: skip
            mark_series(line, policy)
            ends.append((float(left[-1]), _short(policy), look.colour, policy))
        axes.set_ylim(-0.02, 1.05)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        _of_rounds(figure, "budget left")
        label_ends(axes, ends)

    said = "; ".join(
        f"{policy} has {left[len(left) // 2]:.0%} half-way, {left[-1]:.0%} at the end"
        for policy, left in paid.items()
    )
    return Picture(
        name=_name("spending", dataset, mechanism),
        title="How each spends its budget",
        alt=f"Share of the budget left by round: {said}.",
        draw=draw,
        group=group_name(dataset, mechanism),
    )


def _of_rounds(figure: Figure, label: str) -> None:
    axes = figure.axes[0]
    axes.set_xlabel("round")
    axes.set_ylabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.grid(axis="y", alpha=0.25, lw=0.7)


def _short(policy: str) -> str:
    """The class of one's own policy says enough."""
    return visible(policy.rpartition(":")[2])
