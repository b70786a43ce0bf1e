"""A sweep to look at: tables for terminals and for Markdown, and a picture for each data set."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from bgtplanner.errors import MissingExtraError
from bgtplanner.experiments.cells import folder_name
from bgtplanner.experiments.comparison import Estimate, Row
from bgtplanner.experiments.grid import write_whole
from bgtplanner.experiments.sweeps import Point, Sensitivity, Study, in_words
from bgtplanner.report.comparison import Sheet, sheet_lines, tables

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["markdown", "need_pictures", "picture", "sheets", "sweep_tables", "write_files"]

_NOTHING = "–"
_LONGEST = 12  # of a value in a table of 80 columns
# Okabe and Ito's colours, with marks and dashes for those who see none of them.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#808080")
_MARKS = ("o", "s", "^", "D", "v", "P", "X")
_DASHES = ("-", "--", "-.", ":")


def need_pictures() -> None:
    """Say which extra is missing, if it is, before hours are spent.

    Raises:
        MissingExtraError: If nothing can be drawn.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError("report", "The pictures of a sweep")


def write_files(found: Sensitivity, out: Path) -> list[str]:
    """Write ``sweep.json``, ``.csv``, ``.md`` and the pictures; return the names of these."""
    text = json.dumps(found.as_json(), indent=2, allow_nan=False) + "\n"
    write_whole(out / "sweep.json", text)
    write_whole(out / "sweep.csv", found.as_csv())
    base = found.sweep.base
    noisy = [name for name in dict.fromkeys(base.mechanisms) if name != "none"]
    limited = any(name != "unlimited" for name in base.policies)
    drawn = {}
    for dataset in dict.fromkeys(base.datasets):
        for mechanism in noisy if limited else ["none"]:
            name = f"{folder_name(dataset)}-{mechanism}.svg"
            write_whole(out / name, picture(found, dataset, mechanism))
            drawn[name] = f"{dataset}, {mechanism}"
    images = [f"![{title}]({name})\n" for name, title in drawn.items()]
    write_whole(out / "sweep.md", "\n".join([markdown(found), *images]))
    return list(drawn)


def sheets(found: Sensitivity) -> Iterator[Sheet]:
    """A table for each study."""
    rmse, f1 = found.reported
    best = rmse.endswith("best")
    when = "best round by the test set, as the paper reports" if best else "last round"
    for study in found.sweep.studies:
        keys = [axis.key for axis in study.axes]
        sheet = Sheet(
            title=f"{' x '.join(keys)} ({when})",
            columns=("policy", *map(_short, keys), "n", "RMSE", "sd", "F1", "sd"),
            note="n seeds done of those asked for; mean and standard deviation over them.",
        )
        for point, row in _rows_of(found, study):
            ours = row.figures[rmse]
            cells = [row.policy, *(_cut(in_words(point.values[key])) for key in keys)]
            cells.append(f"{0 if ours is None else ours.seeds}/{row.asked}")
            for metric in (rmse, f1):
                cells += _figures(row.figures[metric])
            mechanism = "no privacy" if row.mechanism == "none" else row.mechanism
            sheet.groups.setdefault(f"{row.dataset}, {mechanism}", []).append(cells)
        yield sheet


def sweep_tables(found: Sensitivity) -> Iterator[Table]:
    """The tables for a terminal; long heads are broken, so that 80 columns will do."""
    for sheet in sheets(found):
        heads = [head.replace("_", "_\n") for head in sheet.columns]
        yield from tables([replace(sheet, columns=heads)])


def markdown(found: Sensitivity) -> str:
    """The same tables as Markdown, with what was asked for and what failed."""
    base = found.sweep.base
    settings = "".join(f", `{key} = {in_words(of)}`" for key, of in base.settings.items())
    seeds = ", ".join(map(str, base.seeds))
    lines = ["# Sweep", "", f"Preset `{base.preset}`, seeds {seeds}{settings}.", ""]
    for sheet in sheets(found):
        lines += sheet_lines(sheet)
    for study in found.sweep.studies:
        for axis in study.axes:
            lines += [
                f"`{key}` is {share:g} of `{axis.key}`.\n"
                for key, share in axis.along.items()
                if key not in base.settings
            ]
    if found.failed:
        lines += ["## Failed", ""]
        lines += [f"- {outcome.cell.name}: {outcome.error}" for outcome in found.failed]
        lines.append("")
    return "\n".join(lines)


def picture(found: Sensitivity, dataset: str, mechanism: str) -> str:
    """RMSE and F1 over the first key of each study, as SVG; bars are one standard deviation.

    What needs no mechanism is drawn beside the others, whichever they have.
    """
    need_pictures()
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from bgtplanner.report.figures import STYLE, as_svg

    studies = found.sweep.studies
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 0.4 + 3.2 * len(studies)), layout="constrained")
        parts = figure.subfigures(len(studies), 1, squeeze=False)[:, 0]
        figure.suptitle(_plain(f"{dataset}, {mechanism}"))
        for study, part in zip(studies, parts, strict=True):
            pair = part.subplots(1, 2)
            rows = [
                (point, row)
                for point, row in _rows_of(found, study)
                if row.dataset == dataset and row.mechanism in (mechanism, "none")
            ]
            for axes, metric in zip(pair, found.reported, strict=True):
                _draw(axes, study, rows, metric)
                axes.set_ylabel("RMSE" if metric.startswith("rmse") else "F1")
            handles, labels = pair[0].get_legend_handles_labels()
            if handles:  # above both, for as many lines as there are
                part.legend(
                    handles,
                    labels,
                    frameon=False,
                    loc="outside upper left",
                    ncols=5 if max(map(len, labels)) <= 16 else 3,
                    fontsize=9,
                    columnspacing=1.2,
                )
        return as_svg(figure)


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
    axes.set_xticks(list(places.values()), [_plain(_cut(name)) for name in names])
    axes.minorticks_off()
    axes.set_xlabel(_plain(first.key))
    several = len({row.policy for _, row in rows}) > 1 or not others
    lines: dict[str, list[tuple[Any, Estimate]]] = {}
    for point, row in rows:
        label = [row.policy] if several else []
        label += [f"{_short(of.key)} {_cut(in_words(point.values[of.key]))}" for of in others]
        line = lines.setdefault(", ".join(label), [])
        if (value := row.figures[metric]) is not None:
            line.append((places[in_words(point.values[first.key])], value))
    # Bars side by side, where they would hide each other.
    apart = 0.0 if wide else 0.012 * (max(places.values()) - min(places.values()))
    for number, (name, line) in enumerate(lines.items()):
        aside = apart * (number - (len(lines) - 1) / 2)
        line.sort(key=lambda entry: entry[0])
        axes.errorbar(
            [place + aside for place, _ in line],
            [value.mean for _, value in line],
            yerr=[value.std or 0.0 for _, value in line],
            color=_COLOURS[number % len(_COLOURS)],
            marker=_MARKS[number % len(_MARKS)],
            ls=_DASHES[number % len(_DASHES)],
            lw=1.5,
            ms=5,
            capsize=3,
            label=_plain(name),
        )


def _rows_of(found: Sensitivity, study: Study) -> Iterator[tuple[Point, Row]]:
    return ((point, row) for point, row in found.rows() if point.study is study)


def _figures(value: Estimate | None) -> list[str]:
    if value is None:
        return ["failed", ""]
    return [f"{value.mean:.4f}", _NOTHING if value.std is None else f"{value.std:.4f}"]


def _short(key: str) -> str:
    return key.rpartition(".")[2]


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"…{text[1 - _LONGEST :]}"


def _plain(text: str) -> str:
    """Text that is not taken for a formula."""
    return text.replace("$", r"\$")
