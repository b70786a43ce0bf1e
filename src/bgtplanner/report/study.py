"""The facts of a study: which policy is best, by how much, and whether that could be chance."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from bgtplanner.report.facts import Facts, Section
from bgtplanner.report.verdict import in_words as error_in_words
from bgtplanner.report.verdict import unit_of
from bgtplanner.runs.statistics import Comparison, Row, summed_up, tables_of
from bgtplanner.runs.study import Study, finished_cells, in_words


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
    study, done, sections = found.study, len(found.outcomes), []
    if done:
        sections.append(Section("The figures", tables=[*tables_of(found)]))
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
        headline=_headline(found),
        lead=_lead(found),
        sections=sections,
        state=state,
        progress=(done, len(study.cells())),
    )


def _headline(found: Comparison) -> str:
    """Return which policy has the lowest error, and where, or at which values of settings."""
    groups: dict[str, list[tuple[float, Row]]] = {}
    for row in found.rows:
        value = row.figures[found.error]
        if not row.reference and row.mechanism != "none" and value is not None:
            groups.setdefault(row.group, []).append((value.mean, row))
    best = {name: min(rows, key=lambda entry: entry[0]) for name, rows in groups.items()}
    if found.study.variations:
        keys = ", ".join(dict.fromkeys(key for grid in found.study.variations for key in grid))
        if not best:
            return f"Effect of {keys}: no cell is finished yet."
        error, row = min(best.values(), key=lambda entry: entry[0])
        at = ", ".join(f"{key} = {in_words(value)}" for key, value in row.varied.items())
        how = _error(found, row, error)
        return f"Effect of {keys}: the lowest error, {how}, is that of {row.policy} at {at}."
    contested = [name for name, rows in groups.items() if len(rows) > 1]
    if not contested:
        count = len(found.outcomes)
        return f"{count} {'cell is' if count == 1 else 'cells are'} finished."
    if len(contested) == 1:
        error, row = best[contested[0]]
        return (
            f"{row.policy} has the lowest mean error of {len(groups[contested[0]])} policies on "
            f"{contested[0]}: {_error(found, row, error)}."
        )
    wins = Counter(best[name][1].policy for name in contested).most_common()
    others = ", ".join(f"{name} in {won}" for name, won in wins[1:])
    (policy, times), rest = wins[0], f" ({others})" if others else ""
    return f"{policy} has the lowest mean error in {times} of {len(contested)} settings{rest}."


def _error(found: Comparison, row: Row, error: float) -> str:
    """Return a mean error in words, on the scale of the data, too, if it is known."""
    runs = (of.summary for of in found.outcomes if of.cell.dataset == row.dataset and of.summary)
    summary = next(runs, {})
    said = f"RMSE {error:.4f}{' as served' * found.error.endswith('_served')}"
    return f"{said} ({error_in_words(summary, error)})" if unit_of(summary) else said


def _lead(found: Comparison) -> list[str]:
    """Return how many cells are finished, which differences are certain, and what failed."""
    said = [f"{len(found.outcomes)} of {len(found.study.cells())} cells are finished."]
    if len(set(found.study.seeds)) < 2:
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
    return said + ([f"{len(found.failed)} failed, for the reasons below."] if found.failed else [])
