"""Pictures of a study: the results of each policy, its curves, and the effect of settings."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bgtplanner.models.metrics import METRICS
from bgtplanner.models.references import REFERENCES
from bgtplanner.report.drawing import WIDE, Line, Picture, around_alone, lines, mark_series, shades
from bgtplanner.report.looks import ABOVE, BESIDE, GREY, Look, look_of
from bgtplanner.report.outcome import on_the_scale, unit_of
from bgtplanner.report.study import cut, scale_of, short_key
from bgtplanner.runs.statistics import Comparison, Curve, Estimate, Row, metric_of
from bgtplanner.runs.study import Variation, folder_name, in_words
from bgtplanner.runs.tables import group_name
from bgtplanner.text import visible

__all__ = ["study_pictures", "sweep_picture"]

Curves = Mapping[tuple[str, str, str], Curve]
_MARKS = ("o", "s", "^", "D", "v", "P", "X")
_LEAST_DIFFERENCE = 0.02  # what an axis of differences covers at least, in figures of the baseline
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
    # What needs no mechanism is drawn with every mechanism.
    rows = [
        row
        for row in (*found.rows, *found.differences)
        if row.dataset == dataset and (row.reference or row.mechanism in (mechanism, "none"))
    ]
    here = {
        policy: curve
        for (of, by, policy), curve in curves.items()
        if of == dataset and by in (mechanism, "none")
    }
    drawn: list[Picture] = []
    for key in found.reported:
        name = metric_of(key)
        beside = _known((row for row in rows if row.reference), key)
        levels = _known((row for row in rows if not (row.reference or row.baseline)), key)
        apart = _known((row for row in rows if row.baseline), key)
        scale = scale_of(found, dataset)
        some = [_levels(levels, beside, key, scale)] if levels else []
        base = levels.get(str(found.study.against))
        some += [_differences(apart, str(found.study.against), key, base)] if apart else []
        by_round = {of: values for of, curve in here.items() if (values := curve.scores.get(name))}
        if by_round and not any(picture.view == name for picture in drawn):
            some += [_curves(by_round, beside.get("client_alone"), name)]
        drawn += [replace(picture, view=name) for picture in some]
    if any(curve.left for curve in here.values()):
        drawn.append(_spending({of: curve.left for of, curve in here.items() if curve.left}))
    for picture in drawn:
        yield replace(picture, name=f"{picture.name}-{folder_name(dataset)}-{mechanism}")


def _known(rows: Iterable[Row], key: str) -> dict[str, Estimate]:
    """The figures that are known, by policy."""
    return {of.policy: found for of in rows if (found := of.figures[key]) is not None}


def _named(key: str) -> tuple[str, str]:
    """The name of a picture of a figure, and what the figure is in its title."""
    name = metric_of(key)
    label = METRICS[name].label
    if key in METRICS or key.endswith("_final"):
        return name, f"{label}, last round"
    return (f"{name}-served", f"{label}, as served") if key.endswith("_served") else (name, label)


def _levels(
    values: Mapping[str, Estimate],
    beside: Mapping[str, Estimate],
    key: str,
    scale: Mapping[str, Any],
) -> Picture:
    metric, (name, label) = METRICS[metric_of(key)], _named(key)
    # With one user per client two references are the same: then one line is enough.
    lines = {found.mean: of for of, found in beside.items()}

    unit = unit_of(scale) if metric.unit == "ratings" else ""
    alone = beside.get("client_alone")
    span, note = None, "The axis covers the references and need not start at zero."
    if alone is not None and metric.sums:
        ends = [of.mean + side * (of.half or 0.0) for of in values.values() for side in (-1, 1)]
        span, note = around_alone([*ends, *lines], alone.mean)

    def draw(axes: Axes) -> None:
        handles = []
        if span is not None:
            axes.set_xlim(*span)
        if unit:
            axes.xaxis.set_major_formatter(
                lambda at, _: f"{at:.3g}\n{on_the_scale(scale, at, unit=False)}"
            )
        for value, of in lines.items():
            handles.append(axes.axvline(value, color=GREY, ls=BESIDE[of][1], lw=1.4))
            mark_series(handles[-1], of)
        if handles:
            own = {"bbox_to_anchor": (-0.12, 1), "fontsize": 8, "columnspacing": 1.0}
            axes.legend(handles, [REFERENCES[of] for of in lines.values()], **{**ABOVE, **own})

    return Picture(
        name=name,
        title=f"{label}: mean and 95 % interval over seeds",
        alt=f"{label}, of each policy: {_said(values, '.4f')}.",
        draw=_intervals(
            values, f"{metric.label}{' and ' * bool(unit)}{unit} ({metric.better} is better)", draw
        ),
        size=_tall(values),
        note=note,
    )


def _differences(
    values: Mapping[str, Estimate], baseline: str, key: str, base: Estimate | None
) -> Picture:
    metric, (name, title) = METRICS[metric_of(key)], _named(key)
    label, better = metric.label, metric.better

    least = 0.0 if base is None else _LEAST_DIFFERENCE * abs(base.mean)

    def draw(axes: Axes) -> None:
        axes.axvline(0, color=look_of(baseline).colour, lw=1.4)
        axes.plot([-least, least], [0, 0], alpha=0)

    return Picture(
        name=f"difference-{name}",
        title=f"{title}, minus that of {baseline}, paired by seed ({better} is better)",
        alt=f"{title}, minus that of {baseline}, with 95 % intervals: {_said(values, '+.4f')}.",
        draw=_intervals(values, f"{label} minus that of {_short(baseline)}", draw),
        size=_tall(values),
        note=f"The axis reaches at least {_LEAST_DIFFERENCE:.0%} of {baseline}'s to both sides.",
    )


def _tall(values: Mapping[str, Estimate]) -> tuple[float, float]:
    return WIDE[0], 1.5 + 0.32 * max(3, len(values))


def _intervals(
    values: Mapping[str, Estimate], label: str, also: Callable[[Axes], None]
) -> Callable[[Figure], None]:
    """Draw one interval per policy, the first on top, and whatever `also` draws."""

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


def _curves(values: Mapping[str, Sequence[float]], alone: Estimate | None, name: str) -> Picture:
    label, drawn = METRICS[name].label, _lines(values)
    if alone is not None:
        drawn.append(Line("client alone", alone.mean, GREY, "client_alone", ls="-.", lw=1.2))
    said = "; ".join(f"{policy} ends at {of[-1]:.4f}" for policy, of in values.items())
    every = [value for of in values.values() for value in of]
    span, note = around_alone(every, None if alone is None else alone.mean)
    return Picture(
        name=f"rounds-{name}",
        title=f"{label} by round, mean over seeds",
        alt=f"{label} by round: {said}.",
        draw=lines(drawn, label, limits=span),
        note=note,
    )


def _spending(left: Mapping[str, Sequence[float]]) -> Picture:
    said = "; ".join(
        f"{policy} has {of[len(of) // 2]:.0%} halfway and {of[-1]:.0%} at the end"
        for policy, of in left.items()
    )
    return Picture(
        name="spending",
        title="Budget left, by policy",
        alt=f"Share of the budget left by round: {said}.",
        draw=lines(_lines(left, 1.0), "budget left", limits=(-0.02, 1.05), percent=True),
    )


def _lines(values: Mapping[str, Sequence[float]], start: float | None = None) -> list[Line]:
    """One line per policy, in its own look."""
    looks = {policy: look_of(policy) for policy in values}
    return [
        Line(_short(policy), of, looks[policy].colour, policy, (), start, ls=looks[policy].dashes)
        for policy, of in values.items()
    ]


def _short(policy: str) -> str:
    """The name of a policy; of ``package.module:Class`` only the class."""
    return visible(policy.rpartition(":")[2])


def sweep_picture(
    found: Comparison, dataset: str, mechanism: str, metrics: Sequence[str] | None = None
) -> Picture:
    """Metrics over the first key of each variation, side by side; bars are one standard deviation.

    What needs no mechanism is drawn with every mechanism.
    """
    chosen = list(found.reported if metrics is None else metrics)
    variations = found.study.variations
    keys = [" x ".join(variation.keys) for variation in variations]
    kinds = [metric_of(key) for key in chosen]
    what = " and ".join(_named(key)[1] for key in chosen)
    wide = min(len(chosen), 3)
    deep = -(-len(chosen) // wide)
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
            panels = part.subplots(deep, wide, squeeze=False).ravel()
            for axes in panels[len(chosen) :]:
                axes.set_axis_off()
            for axes, metric in zip(panels, chosen, strict=False):
                _draw(axes, variation, rows, metric)
                axes.set_ylabel(_named(metric)[1])
                axes.grid(axis="y", alpha=0.25, lw=0.7)
            handles, labels = panels[0].get_legend_handles_labels()
            if handles:  # above all panels
                part.legend(
                    handles,
                    labels,
                    loc="outside upper left",
                    ncols=(5 if wide > 1 else 3)
                    if max(map(len, labels)) <= 16
                    else 1 + min(wide, 2),
                    fontsize=9,
                    columnspacing=1.2,
                )

    name = f"{folder_name(dataset)}-{mechanism}"
    return Picture(
        name=name if len(chosen) > 1 else f"{_named(chosen[0])[0]}-{name}",
        title=f"{what} over {', '.join(keys)}",
        alt=_in_words(shown, chosen[0], what),
        draw=draw,
        size=(4.5 * wide if wide > 1 else WIDE[0], 0.4 + 3.0 * deep * len(variations)),
        view=kinds[0] if len(chosen) == 1 else "",
    )


def _in_words(shown: Sequence[Sequence[Row]], metric: str, what: str) -> str:
    """The values of every line, for screen readers."""
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
    # Error bars are moved apart, so that they do not hide each other.
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
    """The look of each line: that of its policy, or shades of it under several settings."""
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
