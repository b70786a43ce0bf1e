"""A sweep to look at: tables for terminals and for Markdown, and a picture for each data set."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rich.table import Table

from bgtplanner.errors import MissingExtraError
from bgtplanner.experiments.cells import folder_name
from bgtplanner.experiments.comparison import Estimate, Row
from bgtplanner.experiments.grid import write_whole
from bgtplanner.experiments.sweeps import Point, Sensitivity, Study, Sweep, in_words
from bgtplanner.report.comparison import (
    Sheet,
    as_code,
    asked_line,
    failed_lines,
    in_markdown,
    sheet_lines,
    tables,
)
from bgtplanner.text import visible

__all__ = [
    "cut",
    "drawn_places",
    "markdown",
    "need_pictures",
    "picture",
    "rows_of",
    "sheets",
    "short_key",
    "sweep_tables",
    "write_files",
]

_NOTHING = "–"
_LONGEST = 12  # of a value in a table of 80 columns


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
    drawn = {}
    for dataset, mechanism in drawn_places(found.sweep):
        name = f"{folder_name(dataset)}-{mechanism}.svg"
        write_whole(out / name, picture(found, dataset, mechanism))
        drawn[name] = f"{dataset}, {mechanism}"
    images = [f"![{in_markdown(title)}]({name})\n" for name, title in drawn.items()]
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
            columns=("policy", *map(short_key, keys), "n", "RMSE", "sd", "F1", "sd"),
            note="n seeds done of those asked for; mean and standard deviation over them.",
        )
        for point, row in rows_of(found, study):
            ours = row.figures[rmse]
            cells = [row.policy, *(cut(in_words(point.values[key])) for key in keys)]
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
    lines = ["# Sweep", "", asked_line(base), ""]
    for sheet in sheets(found):
        lines += sheet_lines(sheet)
    for study in found.sweep.studies:
        for axis in study.axes:
            lines += [
                f"{as_code(key)} is {share:g} of {as_code(axis.key)}.\n"
                for key, share in axis.along.items()
                if key not in base.settings
            ]
    if found.failed:
        lines += failed_lines(found.failed)
    return "\n".join(lines)


def picture(found: Sensitivity, dataset: str, mechanism: str) -> str:
    """RMSE and F1 over the first key of each study, as SVG for light or dark paper."""
    need_pictures()
    from bgtplanner.report.drawing import as_file
    from bgtplanner.report.sweep_figures import sweep_picture

    return as_file(sweep_picture(found, dataset, mechanism))


def drawn_places(sweep: Sweep) -> Iterator[tuple[str, str]]:
    """Data set and mechanism of every picture there is."""
    base = sweep.base
    noisy = [name for name in dict.fromkeys(base.mechanisms) if name != "none"]
    limited = any(name != "unlimited" for name in base.policies)
    for dataset in dict.fromkeys(base.datasets):
        for mechanism in noisy if limited else ["none"]:
            yield dataset, mechanism


def rows_of(found: Sensitivity, study: Study) -> Iterator[tuple[Point, Row]]:
    """Means over seeds of every policy, in every combination of one study."""
    return ((point, row) for point, row in found.rows() if point.study is study)


def _figures(value: Estimate | None) -> list[str]:
    if value is None:
        return ["failed", ""]
    return [f"{value.mean:.4f}", _NOTHING if value.std is None else f"{value.std:.4f}"]


def short_key(key: str) -> str:
    """A config key without its section."""
    return key.rpartition(".")[2]


def cut(text: str) -> str:
    """The end of a long value, which says most."""
    text = visible(text)
    return text if len(text) <= _LONGEST else f"…{text[1 - _LONGEST :]}"
