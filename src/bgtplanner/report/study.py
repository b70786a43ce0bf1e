"""The facts of a study: which policy is best, by how much, and whether that could be chance."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from bgtplanner.report.facts import Facts, Section
from bgtplanner.runs.statistics import Comparison, summed_up, tables_of
from bgtplanner.runs.study import Study, finished_cells


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
    """Return which policies have lower errors than the baseline, and not by chance."""
    count, better = len(found.outcomes), dict[str, list[tuple[float, str]]]()
    if found.study.variations:
        keys = dict.fromkeys(key for grid in found.study.variations for key in grid)
        return f"Effect of {', '.join(keys)}: errors are in the tables, with their intervals."
    for row in found.differences:
        value = row.figures[found.error]
        if value is not None and row.policy != "unlimited":
            sure = value.half is not None and value.mean < -value.half
            better.setdefault(row.group, []).extend([(value.mean, row.policy)] if sure else [])
    if not better:
        return f"{count} {'cell is' if count == 1 else 'cells are'} finished."
    against, wins = found.study.against, Counter(min(of)[1] for of in better.values() if of)
    if not wins:
        return f"No policy has an error below that of {against} by more than could be chance."
    said = f"Lower errors than {against}'s, and not by chance"
    if len(better) == 1:
        return f"{said}, on {next(iter(better))}: {next(iter(wins))}."
    won = ", ".join(f"{name} in {number}" for name, number in wins.most_common())
    return f"{said}: {won} of {len(better)} settings."
