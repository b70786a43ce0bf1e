"""The facts of a study: which policy is best, by how much, and whether that could be chance."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bgtplanner.errors import MissingExtraError
from bgtplanner.models.metrics import METRICS
from bgtplanner.report import plots
from bgtplanner.report.facts import Facts, Section, Table, Tile
from bgtplanner.report.style import Picture, as_file
from bgtplanner.report.verdict import on_the_scale
from bgtplanner.runs import tables
from bgtplanner.runs.folder import write_whole
from bgtplanner.runs.reproduce import command_of_study
from bgtplanner.runs.statistics import Comparison, Row, metric_of, read_study, summed_up
from bgtplanner.runs.study import Study, folder_name, in_words
from bgtplanner.runs.tables import group_name, tables_of, write_tables

__all__ = [
    "facts_of_comparison",
    "headline",
    "need_pictures",
    "picture",
    "study_facts",
    "write_files",
]

_MOST = 2  # figures that are drawn: the two that count most


def study_facts(folder: Path, study: Study, state: str = "finished") -> Facts:
    """Return the facts of the study in a folder; `state` is that of one that is not finished."""
    cells = study.cells()
    asked, written = folder / "study.json", folder / f"{study.kind}.json"
    ended = all((folder / cell.place / "summary.json").exists() for cell in cells)
    if not ended and written.exists():  # tables are written even if a cell has failed
        ended = written.stat().st_mtime_ns >= asked.stat().st_mtime_ns
    found = summed_up(study, read_study(study, folder))
    return facts_of_comparison(found, "finished" if ended else state)


def facts_of_comparison(found: Comparison, state: str = "finished") -> Facts:
    """Return the facts of a comparison or a sweep."""
    study, done = found.study, len(found.outcomes)
    places = study.places() if done else []
    sections = [
        Section(group_name(*place), pictures=list(_pictures(found, *place))) for place in places
    ]
    sheets = [as_rows(table) for table in tables_of(found)] if done else []
    sections += [Section("The figures", tables=sheets)] if done else []
    if found.failed:
        failed = [f"{of.cell.name}: {of.error}" for of in found.failed]
        sections.append(Section("What failed", failed))
    said = (
        "Intervals are Student's t at 95 % over seeds. To see the page of a single run, give the "
        "folder of its cell to bgtplanner report."
    )
    asked = json.dumps(asdict(study), indent=2)
    code = command_of_study(study)
    sections.append(Section("How to reproduce it", [said], code=code, unfold=asked))
    names = [", ".join(study.datasets), ", ".join(dict.fromkeys(study.policies))]
    return Facts(
        kind=study.kind,
        about=" · ".join([*names, f"preset {study.preset}"]),
        headline=headline(found),
        tiles=list(_tiles(found)),
        sections=sections,
        state=state,
        progress=(done, len(study.cells())),
    )


def as_rows(table: tables.Table) -> Table:
    """Return a table of a study as one of the facts."""
    rows = [(group, cells) for group, several in table.groups.items() for cells in several]
    return Table(table.title, table.columns, rows, table.note)


def _pictures(found: Comparison, dataset: str, mechanism: str) -> Iterator[Picture]:
    """Draw the figures that count most; what needs no mechanism is drawn with every one."""
    name, study = f"{folder_name(dataset)}-{mechanism}", found.study
    if study.variations:
        for key in found.reported[:_MOST]:
            yield _sweep(found, dataset, mechanism, (key,))
        return
    rows = [
        row
        for row in (*found.rows, *found.differences)
        if row.dataset == dataset and (row.reference or row.mechanism in (mechanism, "none"))
    ]
    for key in found.reported[:_MOST]:
        if any(row.figures[key] for row in rows if not (row.reference or row.baseline)):
            yield plots.comparison(rows, key, study.against, name)


def _sweep(found: Comparison, dataset: str, mechanism: str, keys: tuple[str, ...]) -> Picture:
    shown = []
    for variation in found.study.variations:
        rows = (row for row in found.rows_of(variation) if row.dataset == dataset)
        shown.append((variation, [row for row in rows if row.mechanism in (mechanism, "none")]))
    name = f"{folder_name(dataset)}-{mechanism}"
    varied = ", ".join(" x ".join(variation.keys) for variation, _ in shown)
    what = " and ".join(METRICS[metric_of(key)].label for key in keys)
    own = name if len(keys) > 1 else f"{keys[0].replace('_', '-')}-{name}"
    return plots.sweep(shown, keys, own, f"{what} over {varied}")


def picture(found: Comparison, dataset: str, mechanism: str) -> str:
    """Return the figures of a sweep that count most as SVG, for any background."""
    return as_file(_sweep(found, dataset, mechanism, tuple(found.reported[:_MOST])))


def write_files(found: Comparison, out: Path) -> list[str]:
    """Write the tables to a folder, for a sweep with pictures, and return the pictures' names."""
    drawn = {}
    for dataset, mechanism in found.study.places() if found.study.variations else ():
        name = f"{folder_name(dataset)}-{mechanism}.svg"
        write_whole(out / name, picture(found, dataset, mechanism))
        drawn[name] = f"{dataset}, {mechanism}"
    write_tables(found, out, [(title, name) for name, title in drawn.items()])
    return list(drawn)


def need_pictures(study: Study) -> None:
    """Check, before hours are spent, that the pictures of a sweep can be drawn.

    Raises:
        MissingExtraError: If matplotlib is not installed.
    """
    if study.variations and importlib.util.find_spec("matplotlib") is None:
        raise MissingExtraError("report", "The pictures of a sweep")


def headline(found: Comparison) -> str:
    """Return which policy has the lowest error, and where, or at which values of settings."""
    groups: dict[str, list[tuple[float, Row]]] = {}
    for row in found.rows:
        value = row.figures[found.error]
        if not row.reference and row.mechanism != "none" and value is not None:
            groups.setdefault(group_name(row.dataset, row.mechanism), []).append((value.mean, row))
    best = {name: min(rows, key=lambda entry: entry[0]) for name, rows in groups.items()}
    if found.study.variations:
        keys = ", ".join(dict.fromkeys(key for of in found.study.variations for key in of.keys))
        if not best:
            return f"Effect of {keys}: no cell is finished yet."
        error, row = min(best.values(), key=lambda entry: entry[0])
        at = ", ".join(f"{key} = {in_words(value)}" for key, value in row.varied.items())
        how = _in_words(found, row, error)
        return f"Effect of {keys}: the lowest error, {how}, is that of {row.policy} at {at}."
    contested = [name for name, rows in groups.items() if len(rows) > 1]
    if not contested:
        count = len(found.outcomes)
        return f"{count} {'cell is' if count == 1 else 'cells are'} finished."
    if len(contested) == 1:
        error, row = best[contested[0]]
        return (
            f"{row.policy} has the lowest mean error of {len(groups[contested[0]])} policies on "
            f"{contested[0]}: {_in_words(found, row, error)}{_below_alone(found, row, error)}."
        )
    wins = Counter(best[name][1].policy for name in contested).most_common()
    others = ", ".join(f"{name} in {won}" for name, won in wins[1:])
    (policy, times), rest = wins[0], f" ({others})" if others else ""
    return f"{policy} has the lowest mean error in {times} of {len(contested)} settings{rest}."


def _scale(found: Comparison, dataset: str) -> Mapping[str, Any]:
    """Return the scale of a data set's ratings, under ``scale``, as a summary has it."""
    every = (of.summary for of in found.outcomes if of.cell.dataset == dataset and of.summary)
    return next(({"scale": summary.get("scale")} for summary in every), {})


def _in_words(found: Comparison, row: Row, error: float) -> str:
    raw = on_the_scale(_scale(found, row.dataset), error)
    served = " as served" * found.error.endswith("_served")
    said = f"{METRICS[metric_of(found.error)].label} {error:.4f}{served}"
    return said if raw is None else f"{said} ({raw})"


def _below_alone(found: Comparison, best: Row, error: float) -> str:
    for row in found.rows:
        alone = row.figures[found.error]
        if row.policy == "client_alone" and row.dataset == best.dataset and alone is not None:
            share = error / alone.mean - 1 if alone.mean else 0.0
            side = "below" if share <= 0 else "above"
            return f", {100 * abs(share):.1f} % {side} a client alone"
    return ""


def _tiles(found: Comparison) -> Iterator[Tile]:
    """Return how many cells are finished, how many seeds there are, and what failed."""
    study, cells, done = found.study, len(found.study.cells()), len(found.outcomes)
    yield Tile("Cells finished", f"{done} of {cells}", "one run each", done < cells)
    seeds = len(set(study.seeds))
    said = "intervals are over these" if seeds > 1 else "one says nothing about chance"
    yield Tile("Seeds", str(seeds), said, seeds < 2)
    values = [of.figures[found.error] for of in found.differences if of.policy != "unlimited"]
    apart = [(of.mean, of.half) for of in values if of is not None and of.half is not None]
    if study.variations:
        yield Tile("Combinations", str(len(list(study.points()))), "of the settings varied")
    elif apart:
        worse = sum(mean > half for mean, half in apart)
        better = sum(mean < -half for mean, half in apart)
        rest = f"of {len(apart)} differences, at 95 %; the rest could be chance"
        yield Tile(f"Against {study.against}", f"{better} better, {worse} worse", rest)
    if found.failed:
        yield Tile("Failed", str(len(found.failed)), "the reasons are below", warn=True)
