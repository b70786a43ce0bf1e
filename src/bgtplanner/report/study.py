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
    how = (
        "Intervals are Student's t at 95 % over seeds. To see the page of a single run, give the "
        "folder of its cell to bgtplanner report."
    )
    asked = json.dumps(asdict(study), indent=2)
    code = f"mkdir NEW && cp study.json NEW && bgtplanner {study.command} --out NEW"
    sections.append(Section("How to reproduce it", [how], code=code, unfold=asked))
    names = [", ".join(study.datasets), ", ".join(dict.fromkeys(study.policies))]
    said = [f"{done} of {len(study.cells())} cells are finished."]
    said += ["One seed says nothing about chance."] * (len(set(study.seeds)) < 2)
    said += [f"{len(found.failed)} failed, for the reasons below."] * bool(found.failed)
    return Facts(
        kind=study.kind, state=state, headline=_headline(found), lead=said, sections=sections,
        about=" · ".join([*names, f"preset {study.preset}"]), progress=(done, len(study.cells())),
    )  # fmt: skip


def _headline(found: Comparison) -> str:
    """Return which policy is better than the baseline, if that is not chance, and where."""
    rows = [row for row in found.rows if not row.reference and row.mechanism != "none"]
    known = [(value.mean, row) for row in rows if (value := row.figures[found.error]) is not None]
    if found.study.variations:
        keys = ", ".join(dict.fromkeys(key for grid in found.study.variations for key in grid))
        if not known:
            return f"Effect of {keys}: no cell is finished yet."
        error, row = min(known, key=lambda entry: entry[0])
        at = ", ".join(f"{key} = {in_words(value)}" for key, value in row.varied.items())
        how = f"{_error(found, row, error)}, is that of {row.policy} at {at}"
        return f"Effect of {keys}: the lowest mean error, {how}; its interval is in the tables."
    groups: dict[str, list[tuple[float, Row]]] = {}
    for row in found.differences:
        value = row.figures[found.error]
        if value is not None and row.policy != "unlimited":
            better = value.half is not None and value.mean < -value.half
            name = row.group
            groups.setdefault(name, []).extend([(value.mean, row)] if better else [])
    if not groups:
        count = len(found.outcomes)
        return f"{count} {'cell is' if count == 1 else 'cells are'} finished."
    best = {name: min(of, key=lambda entry: entry[0])[1] for name, of in groups.items() if of}
    against, places = found.study.against, next(iter(groups), "")
    if not best:
        return f"No policy has an error below that of {against} by more than could be chance."
    if len(groups) > 1:
        wins = Counter(row.policy for row in best.values()).most_common()
        won = ", ".join(f"{name} in {number}" for name, number in wins)
        return (
            f"Lower errors than {against}'s, and not by chance: {won} of {len(groups)} settings."
        )
    policy = best[places].policy
    error, row = next(of for of in known if of[1].policy == policy)
    how = _error(found, row, error)
    return f"{policy} has a lower error than {against} on {places}, and not by chance: {how}."


def _error(found: Comparison, row: Row, error: float) -> str:
    """Return a mean error in words, on the scale of the data, too, if it is known."""
    runs = (of.summary for of in found.outcomes if of.cell.dataset == row.dataset and of.summary)
    summary = next(runs, {})
    said = f"RMSE {error:.4f}{' as served' * found.error.endswith('_served')}"
    return f"{said} ({error_in_words(summary, error)})" if unit_of(summary) else said
