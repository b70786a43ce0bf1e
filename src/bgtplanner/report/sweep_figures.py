"""Pictures of a sweep: what RMSE and F1 do as a setting goes from left to right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bgtplanner.experiments.cells import folder_name
from bgtplanner.experiments.comparison import Estimate, Row
from bgtplanner.experiments.sweeps import Point, Sensitivity, Study, in_words
from bgtplanner.report.drawing import WIDE, Look, Picture, look_of, mark_series, shades
from bgtplanner.report.grid_figures import group_name
from bgtplanner.report.sensitivity import cut, drawn_places, rows_of, short_key
from bgtplanner.text import visible

__all__ = ["sweep_picture", "sweep_pictures"]

_MARKS = ("o", "s", "^", "D", "v", "P", "X")
_DASHES = ("-", "--", "-.", ":")
_NAMES = {"rmse": "RMSE", "f1": "F1"}


def sweep_pictures(found: Sensitivity) -> Iterator[Picture]:
    """Each metric on its own, for every data set and mechanism."""
    for dataset, mechanism in drawn_places(found.sweep):
        for metric in found.reported:
            yield sweep_picture(found, dataset, mechanism, [metric])


def sweep_picture(
    found: Sensitivity, dataset: str, mechanism: str, metrics: Sequence[str] | None = None
) -> Picture:
    """Metrics over the first key of each study, side by side; bars are one standard deviation.

    What needs no mechanism is drawn beside the others, whichever they have.
    """
    chosen = list(found.reported if metrics is None else metrics)
    studies = found.sweep.studies
    keys = [" x ".join(axis.key for axis in study.axes) for study in studies]
    kinds = [metric.partition("_")[0] for metric in chosen]
    what = " and ".join(_NAMES[kind] for kind in kinds)
    by_study = [
        [
            (point, row)
            for point, row in rows_of(found, study)
            if row.dataset == dataset and row.mechanism in (mechanism, "none")
        ]
        for study in studies
    ]

    def draw(figure: Figure) -> None:
        parts = figure.subfigures(len(studies), 1, squeeze=False)[:, 0]
        if len(chosen) > 1:
            figure.suptitle(visible(f"{dataset}, {mechanism}"))
        for study, rows, part in zip(studies, by_study, parts, strict=True):
            panels = part.subplots(1, len(chosen), squeeze=False)[0]
            for axes, metric, kind in zip(panels, chosen, kinds, strict=True):
                _draw(axes, study, rows, metric)
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
        alt=_in_words(by_study, chosen[0], what),
        draw=draw,
        size=(9.0 if len(chosen) > 1 else WIDE[0], 0.4 + 3.0 * len(studies)),
        group=group_name(dataset, mechanism),
        view=kinds[0] if len(chosen) == 1 else "",
    )


def _in_words(by_study: Sequence[Sequence[tuple[Point, Row]]], metric: str, what: str) -> str:
    """The ends of every line, for those who do not see them."""
    values: dict[str, list[str]] = {}
    for rows in by_study:
        for point, row in rows:
            if (value := row.figures[metric]) is not None:
                values.setdefault(row.policy, []).append(f"{point.name} {value.mean:.4f}")
    said = "; ".join(
        f"{policy}: {', '.join(of if len(of) <= 6 else [*of[:3], '...', of[-1]])}"
        for policy, of in values.items()
    )
    return f"{what} by setting. {said}."


def _draw(axes: Axes, study: Study, rows: Sequence[tuple[Point, Row]], metric: str) -> None:
    first, *others = study.axes
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
    several = len({row.policy for _, row in rows}) > 1 or not others
    lines: dict[tuple[str, str], list[tuple[Any, Estimate]]] = {}
    for point, row in rows:
        setting = ", ".join(
            f"{short_key(of.key)} {cut(in_words(point.values[of.key]))}" for of in others
        )
        line = lines.setdefault((row.policy, setting), [])
        if (value := row.figures[metric]) is not None:
            line.append((places[in_words(point.values[first.key])], value))
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
        tints = shades(look.colour, len(own)) if len(own) > 1 else [look.colour]
        for number, (line, tint) in enumerate(zip(own, tints, strict=True)):
            same = len(own) == 1
            found[line] = Look(
                tint,
                look.mark if same else _MARKS[number % len(_MARKS)],
                look.dashes if same else _DASHES[number % len(_DASHES)],
            )
    return found
