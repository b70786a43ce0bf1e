"""Pictures of a study: how good each policy got, how it got there, and what settings do to it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from bgtplanner.report.drawing import (
    GREY,
    WIDE,
    Look,
    Picture,
    label_ends,
    look_of,
    mark_series,
    shades,
)
from bgtplanner.report.rounds import by_round
from bgtplanner.report.story import REFERENCES
from bgtplanner.report.study import cut, group_name, short_key
from bgtplanner.runs.cells import folder_name
from bgtplanner.runs.curves import Curve
from bgtplanner.runs.statistics import Comparison, Difference, Estimate, Row
from bgtplanner.runs.study import Variation, in_words
from bgtplanner.text import visible

__all__ = ["study_pictures", "sweep_picture"]

Curves = Mapping[tuple[str, str, str], Curve]
_NAMES = {"rmse": "RMSE", "f1": "F1"}
_BETTER = {"rmse": "lower", "f1": "higher"}
_BESIDE = {"constant": "--", "user_mean": ":", "client_alone": "-."}
_MARKS = ("o", "s", "^", "D", "v", "P", "X")
_DASHES = ("-", "--", "-.", ":")


def study_pictures(found: Comparison, curves: Curves) -> Iterator[Picture]:
    """All pictures of a study, data set by data set and mechanism by mechanism."""
    for dataset, mechanism in found.study.places():
        if found.study.variations:
            drawn = [sweep_picture(found, dataset, mechanism, [of]) for of in found.reported]
        else:
            drawn = list(_comparison_pictures(found, curves, dataset, mechanism))
        for picture in drawn:
            yield replace(picture, group=group_name(dataset, mechanism))


def _comparison_pictures(
    found: Comparison, curves: Curves, dataset: str, mechanism: str
) -> Iterator[Picture]:
    # What needs no mechanism is drawn beside the others, whichever they have.
    rows = [
        row
        for row in found.rows
        if row.dataset == dataset and (row.reference or row.mechanism in (mechanism, "none"))
    ]
    differences = [
        entry
        for entry in found.differences
        if entry.dataset == dataset and entry.mechanism == mechanism
    ]
    here = {
        policy: curve
        for (of, by, policy), curve in curves.items()
        if of == dataset and by in (mechanism, "none")
    }
    drawn = []
    for metric in found.reported:
        kind = metric.partition("_")[0]
        levels = _known((row for row in rows if not row.reference), metric)
        beside = _known((row for row in rows if row.reference), metric)
        apart = _known(differences, metric)
        some = [_levels(levels, beside, kind)] if levels else []
        some += [_differences(apart, differences[0].baseline, kind)] if apart else []
        some += [_curves(here, beside.get("client_alone"), kind)] if here else []
        drawn += [replace(picture, view=kind) for picture in some]
    if any(curve.left.size for curve in here.values()):
        drawn.append(_spending(here))
    for picture in drawn:
        yield replace(picture, name=f"{picture.name}-{folder_name(dataset)}-{mechanism}")


def _known(entries: Iterable[Row | Difference], metric: str) -> dict[str, Estimate]:
    """The figures that there are, by policy."""
    return {of.policy: found for of in entries if (found := of.figures[metric]) is not None}


def _levels(values: Mapping[str, Estimate], beside: Mapping[str, Estimate], kind: str) -> Picture:
    # Clients of one user each have nothing better than its mean: then one line is enough.
    lines = {found.mean: name for name, found in beside.items()}

    def draw(axes: Axes) -> None:
        handles = []
        for value, name in lines.items():
            handles.append(axes.axvline(value, color=GREY, ls=_BESIDE[name], lw=1.4))
            mark_series(handles[-1], name)
        if handles:
            axes.legend(
                handles, [REFERENCES[name] for name in lines.values()], loc="lower left",
                bbox_to_anchor=(-0.12, 1), ncols=3, fontsize=8, columnspacing=1.0,
                handlelength=1.6, borderaxespad=0.1,
            )  # fmt: skip

    return Picture(
        name=kind,
        title=f"{_NAMES[kind]}: mean and 95 % interval over seeds",
        alt=f"{_NAMES[kind]} of each policy: {_said(values, '.4f')}.",
        draw=_intervals(values, f"{_NAMES[kind]} ({_BETTER[kind]} is better)", draw),
        size=_tall(values),
    )


def _differences(values: Mapping[str, Estimate], baseline: str, kind: str) -> Picture:
    def draw(axes: Axes) -> None:
        axes.axvline(0, color=look_of(baseline).colour, lw=1.4)

    return Picture(
        name=f"difference-{kind}",
        title=f"{_NAMES[kind]} against {baseline}, seed by seed ({_BETTER[kind]} is better)",
        alt=f"Difference of {_NAMES[kind]} to {baseline}, with 95 % intervals: "
        f"{_said(values, '+.4f')}.",
        draw=_intervals(values, f"{_NAMES[kind]} less that of {_short(baseline)}", draw),
        size=_tall(values),
    )


def _tall(values: Mapping[str, Estimate]) -> tuple[float, float]:
    return WIDE[0], 1.5 + 0.32 * max(3, len(values))


def _intervals(
    values: Mapping[str, Estimate], label: str, also: Callable[[Axes], None]
) -> Callable[[Figure], None]:
    """A line for each policy, the first on top, and what is drawn beside them."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        also(axes)
        for place, (policy, found) in enumerate(reversed(list(values.items()))):
            look = look_of(policy)
            bars = axes.errorbar(
                found.mean, place, xerr=found.half or 0.0, color=look.colour, marker=look.mark,
                ms=7, capsize=4, lw=2,
            )  # fmt: skip
            mark_series([bars.lines[0], *bars.lines[1], *bars.lines[2]], policy)
        axes.set_yticks(range(len(values)), [_short(policy) for policy in reversed(list(values))])
        axes.set_ylim(-0.6, len(values) - 0.4)
        axes.set_xlabel(label)
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5))
        axes.grid(axis="x", alpha=0.25, lw=0.7)

    return draw


def _said(values: Mapping[str, Estimate], digits: str) -> str:
    return "; ".join(
        f"{policy} {found.mean:{digits}}" + ("" if found.half is None else f" ± {found.half:.4f}")
        for policy, found in values.items()
    )


def _curves(here: Mapping[str, Curve], alone: Estimate | None, kind: str) -> Picture:
    lines = {policy: getattr(curve, kind) for policy, curve in here.items()}

    def draw(figure: Figure) -> None:
        axes, ends = by_round(figure, label=_NAMES[kind]), []
        for policy, values in lines.items():
            look = look_of(policy)
            places = np.arange(1, len(values) + 1)
            mark_series(axes.plot(places, values, color=look.colour, ls=look.dashes), policy)
            ends.append((float(values[-1]), _short(policy), look.colour, policy))
        if alone is not None:
            mark_series(axes.axhline(alone.mean, color=GREY, ls="-.", lw=1.2), "client_alone")
            ends.append((alone.mean, "client alone", GREY, "client_alone"))
        label_ends(axes, ends)

    said = "; ".join(f"{policy} ends at {values[-1]:.4f}" for policy, values in lines.items())
    return Picture(
        name=f"rounds-{kind}",
        title=f"{_NAMES[kind]} by round, mean over seeds",
        alt=f"{_NAMES[kind]} by round: {said}.",
        draw=draw,
    )


def _spending(here: Mapping[str, Curve]) -> Picture:
    paid = {policy: curve.left for policy, curve in here.items() if curve.left.size}

    def draw(figure: Figure) -> None:
        axes, ends = by_round(figure, label="budget left"), []
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
        label_ends(axes, ends)

    said = "; ".join(
        f"{policy} has {left[len(left) // 2]:.0%} half-way, {left[-1]:.0%} at the end"
        for policy, left in paid.items()
    )
    return Picture(
        name="spending",
        title="How each spends its budget",
        alt=f"Share of the budget left by round: {said}.",
        draw=draw,
    )


def _short(policy: str) -> str:
    """The class of one's own policy says enough."""
    return visible(policy.rpartition(":")[2])


def sweep_picture(
    found: Comparison, dataset: str, mechanism: str, metrics: Sequence[str] | None = None
) -> Picture:
    """Metrics over the first key of each variation, side by side; bars are one standard deviation.

    What needs no mechanism is drawn beside the others, whichever they have.
    """
    chosen = list(found.reported if metrics is None else metrics)
    variations = found.study.variations
    keys = [" x ".join(variation.keys) for variation in variations]
    kinds = [metric.partition("_")[0] for metric in chosen]
    what = " and ".join(_NAMES[kind] for kind in kinds)
    shown = [
        [
            row
            for row in found.rows_of(variation)
            if row.dataset == dataset and row.mechanism in (mechanism, "none")
        ]
        for variation in variations
    ]

    def draw(figure: Figure) -> None:
        parts = figure.subfigures(len(variations), 1, squeeze=False)[:, 0]
        if len(chosen) > 1:
            figure.suptitle(visible(f"{dataset}, {mechanism}"))
        for variation, rows, part in zip(variations, shown, parts, strict=True):
            panels = part.subplots(1, len(chosen), squeeze=False)[0]
            for axes, metric, kind in zip(panels, chosen, kinds, strict=True):
                _draw(axes, variation, rows, metric)
                axes.set_ylabel(_NAMES[kind])
                axes.grid(axis="y", alpha=0.25, lw=0.7)
            handles, labels = panels[0].get_legend_handles_labels()
            if handles:  # above all panels, for as many lines as there are
                wide = len(chosen) > 1
                part.legend(
                    handles,
                    labels,
                    loc="outside upper left",
                    ncols=(5 if wide else 3) if max(map(len, labels)) <= 16 else 3 if wide else 2,
                    fontsize=9,
                    columnspacing=1.2,
                )

    name = f"{folder_name(dataset)}-{mechanism}"
    return Picture(
        name=name if len(chosen) > 1 else f"{kinds[0]}-{name}",
        title=f"{what} over {', '.join(keys)}",
        alt=_in_words(shown, chosen[0], what),
        draw=draw,
        size=(9.0 if len(chosen) > 1 else WIDE[0], 0.4 + 3.0 * len(variations)),
        view=kinds[0] if len(chosen) == 1 else "",
    )


def _in_words(shown: Sequence[Sequence[Row]], metric: str, what: str) -> str:
    """The ends of every line, for those who do not see them."""
    values: dict[str, list[str]] = {}
    for row in (row for rows in shown for row in rows):
        if (value := row.figures[metric]) is not None:
            where = ",".join(f"{key}={in_words(of)}" for key, of in row.varied.items())
            values.setdefault(row.policy, []).append(f"{where} {value.mean:.4f}")
    said = "; ".join(
        f"{policy}: {', '.join(of if len(of) <= 6 else [*of[:3], '...', of[-1]])}"
        for policy, of in values.items()
    )
    return f"{what} by setting. {said}."


def _draw(axes: Axes, variation: Variation, rows: Sequence[Row], metric: str) -> None:
    first, *others = variation.axes
    numbers = all(isinstance(of, int | float) and not isinstance(of, bool) for of in first.values)
    names = [in_words(value) for value in first.values]
    places: dict[str, Any] = {
        name: value if numbers else number
        for number, (name, value) in enumerate(zip(names, first.values, strict=True))
    }
    wide = numbers and min(first.values) > 0 and max(first.values) >= 50 * min(first.values)
    if wide:
        axes.set_xscale("log")
    axes.set_xticks(list(places.values()), [cut(name) for name in names])
    axes.minorticks_off()
    axes.set_xlabel(visible(first.key))
    several = len({row.policy for row in rows}) > 1 or not others
    lines: dict[tuple[str, str], list[tuple[Any, Estimate]]] = {}
    for row in rows:
        setting = ", ".join(
            f"{short_key(of.key)} {cut(in_words(row.varied[of.key]))}" for of in others
        )
        line = lines.setdefault((row.policy, setting), [])
        if (value := row.figures[metric]) is not None:
            line.append((places[in_words(row.varied[first.key])], value))
    # Bars side by side, where they would hide each other.
    apart = 0.0 if wide else 0.012 * (max(places.values()) - min(places.values()))
    looks = _looks(list(lines))
    for number, ((policy, setting), line) in enumerate(lines.items()):
        aside = apart * (number - (len(lines) - 1) / 2)
        line.sort(key=lambda entry: entry[0])
        look = looks[policy, setting]
        label = ", ".join(part for part in (policy if several else "", setting) if part)
        bars = axes.errorbar(
            [place + aside for place, _ in line],
            [value.mean for _, value in line],
            yerr=[value.std or 0.0 for _, value in line],
            color=look.colour,
            marker=look.mark,
            ls=look.dashes,
            lw=1.5,
            ms=5,
            capsize=3,
            label=visible(label),
        )
        mark_series([bars.lines[0], *bars.lines[1], *bars.lines[2]], policy)


def _looks(lines: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Look]:
    """A policy's own look; under several settings, shades of its colour, each with its mark."""
    found = {}
    for policy in dict.fromkeys(policy for policy, _ in lines):
        look = look_of(policy)
        own = [line for line in lines if line[0] == policy]
        if len(own) == 1:
            found[own[0]] = look
            continue
        for line, tint, mark, dashes in zip(
            own, shades(look.colour, len(own)), itertools.cycle(_MARKS), itertools.cycle(_DASHES)
        ):
            found[line] = Look(tint, mark, dashes)
    return found
