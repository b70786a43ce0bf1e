"""The facts of a study: which policy is best, by how much, and whether that could be chance."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bgtplanner.models.metrics import METRICS
from bgtplanner.report import plots
from bgtplanner.report.facts import Facts, Section
from bgtplanner.report.style import Picture
from bgtplanner.report.verdict import on_the_scale
from bgtplanner.runs import tables
from bgtplanner.runs.statistics import Comparison, Row, finished_cells, metric_of, summed_up
from bgtplanner.runs.study import Study, folder_name, in_words

_MOST = 2  # figures that are drawn: the two that count most


def study_facts(folder: Path, study: Study, state: str = "finished") -> Facts:
    """Return the facts of the study in a folder; `state` is that of one that is not finished."""
    asked, written = folder / "study.json", folder / f"{study.kind}.json"
    ended = all((folder / cell.place / "summary.json").exists() for cell in study.cells())
    if not ended and written.exists():  # tables are written even if a cell has failed
        ended = written.stat().st_mtime_ns >= asked.stat().st_mtime_ns
    found = summed_up(study, finished_cells(study.cells(), folder))
    return facts_of_comparison(found, "finished" if ended else state)


def facts_of_comparison(found: Comparison, state: str = "finished") -> Facts:
    """Return the facts of a comparison or a sweep."""
    study, done = found.study, len(found.outcomes)
    sections = []
    if done and not study.variations:
        kinds = (
            study.noisy if any(mechanism != "none" for mechanism, _ in study.pairs()) else ["none"]
        )
        places = itertools.product(dict.fromkeys(study.datasets), kinds)
        sections += [_place(found, *place) for place in places]
    if done:
        sections.append(Section("The figures", tables=[*tables.tables_of(found)]))
    if found.failed:
        failed = [f"{of.cell.name}: {of.error}" for of in found.failed]
        sections.append(Section("What failed", failed))
    said = (
        "Intervals are Student's t at 95 % over seeds. To see the page of a single run, give the "
        "folder of its cell to bgtplanner report."
    )
    asked = json.dumps(asdict(study), indent=2)
    code = f"mkdir NEW && cp study.json NEW && bgtplanner {study.command} --out NEW"
    sections.append(Section("How to reproduce it", [said], code=code, unfold=asked))
    names = [", ".join(study.datasets), ", ".join(dict.fromkeys(study.policies))]
    return Facts(
        kind=study.kind,
        about=" · ".join([*names, f"preset {study.preset}"]),
        headline=headline(found),
        lead=_lead(found),
        sections=sections,
        state=state,
        progress=(done, len(study.cells())),
    )


def _place(found: Comparison, dataset: str, mechanism: str) -> Section:
    """Draw the figures that count most; what needs no mechanism is drawn with every one."""
    rows = [
        row
        for row in (*found.rows, *found.differences)
        if row.dataset == dataset and (row.reference or row.mechanism in (mechanism, "none"))
    ]
    name = f"{folder_name(dataset)}-{mechanism}"
    pictures: list[Picture] = [
        plots.comparison(rows, key, found.study.against, name)
        for key in found.reported[:_MOST]
        if any(row.figures[key] for row in rows if not (row.reference or row.baseline))
    ]
    return Section(tables.group_name(dataset, mechanism), pictures=pictures)


def headline(found: Comparison) -> str:
    """Return which policy has the lowest error, and where, or at which values of settings."""
    groups: dict[str, list[tuple[float, Row]]] = {}
    for row in found.rows:
        value = row.figures[found.error]
        if not row.reference and row.mechanism != "none" and value is not None:
            name = tables.group_name(row.dataset, row.mechanism)
            groups.setdefault(name, []).append((value.mean, row))
    best = {name: min(rows, key=lambda entry: entry[0]) for name, rows in groups.items()}
    if found.study.variations:
        keys = ", ".join(dict.fromkeys(key for grid in found.study.variations for key in grid))
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
            f"{contested[0]}: {_in_words(found, row, error)}."
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


def _lead(found: Comparison) -> list[str]:
    """Return how many cells are finished, which differences are certain, and what failed."""
    cells, seeds = len(found.study.cells()), len(set(found.study.seeds))
    said = [f"{len(found.outcomes)} of {cells} cells are finished."]
    if seeds < 2:
        said.append("One seed says nothing about chance.")
    values = [of.figures[found.error] for of in found.differences if of.policy != "unlimited"]
    apart = [(of.mean, of.half) for of in values if of is not None and of.half is not None]
    if apart and not found.study.variations:
        better = sum(mean < -half for mean, half in apart)
        worse = sum(mean > half for mean, half in apart)
        said.append(
            f"Of {len(apart)} differences from {found.study.against}, {better} are better and "
            f"{worse} worse at 95 %; the rest could be chance."
        )
    if found.failed:
        said.append(f"{len(found.failed)} failed, for the reasons below.")
    return said
