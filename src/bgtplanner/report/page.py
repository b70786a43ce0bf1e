"""The report of a run, a comparison or a sweep: one self-contained page that opens offline."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bgtplanner.errors import RunFolderError
from bgtplanner.models.metrics import METRICS
from bgtplanner.report.guarantee import is_sound
from bgtplanner.report.looks import Drawn, look_of, series_name
from bgtplanner.report.outcome import (
    Scores,
    about_scores,
    error_in_words,
    nothing_learned,
    scores_of,
    target_in_words,
    unit_of,
)
from bgtplanner.report.study import headline, tiles
from bgtplanner.report.view import RunView, read_run
from bgtplanner.runs.config import departures, to_toml
from bgtplanner.runs.folder import write_whole
from bgtplanner.runs.gains import FEWEST
from bgtplanner.runs.recommending import number_of_examples
from bgtplanner.runs.reproduce import command_of, command_of_study
from bgtplanner.runs.statistics import (
    Comparison,
    mean_curves,
    metric_of,
    read_study,
    summed_up,
)
from bgtplanner.runs.study import Study
from bgtplanner.runs.tables import Table, tables_of

if TYPE_CHECKING:
    from bgtplanner.report.drawing import Picture

__all__ = ["pictures_of", "render", "study_ended", "write_report"]

_PERHAPS = ("trust", "planner_note", "classes", "clients", "items", "users", "ratings")
_WHO = "Who gains and who loses"
_CHAPTERS = {
    _WHO: ("gain-ratings", "gain-budget"),
    "How the budget was spent, and why": ("budget", "epsilon", "choices", "rewards", "forecasts"),
    "Noise and participation": ("noise", "clients"),
}
_HOW_GOOD = "How good the model got"
_WORDS = {
    "How the budget was spent, and why": "The policy looks at what was released so far and "
    "decides what the round may cost; the ledger refuses whatever does not fit.",
}


def write_report(path: Path | str) -> Path:
    """Write ``report.html`` into the folder of a run or a study, and return its path.

    Args:
        path: The folder.

    Raises:
        RunFolderError: If the folder holds no finished run and no study.
        StorageError: If it cannot be written.
    """
    folder = Path(path)
    page = render(folder)
    write_whole(folder / "report.html", page)
    return folder / "report.html"


def pictures_of(path: Path | str) -> list[Picture]:
    """Every picture of the page, for writing to files."""
    folder = Path(path)
    study = Study.read(folder)
    if study is None:
        from bgtplanner.report.run_plots import run_pictures

        return list(run_pictures(read_run(folder)))
    _, pictures = _shown(folder, study)
    if not pictures:
        raise RunFolderError(
            f"{folder}: no cell is finished; continue with: bgtplanner {study.command} "
            f"--out {shlex.quote(str(folder))}"
        )
    return pictures


def render(folder: Path, *, live: str = "", version: str = "") -> str:
    """The page as text.

    Args:
        folder: Folder of a run, a comparison or a sweep.
        live: Address at which the page hears of changes; the run may then be unfinished.
        version: Version of the folder's contents, for the same purpose.
    """
    study = Study.read(folder)
    if study is None:
        from bgtplanner.report.template import fill_in, template_of

        view = read_run(folder, unfinished=bool(live))
        template, content = template_of("run.html.j2"), _run_content(view)
        chapters = _chapters(_drawn_here(view))
        return fill_in(template, **content, chapters=chapters, live=live, version=version)
    from bgtplanner.report.drawing import for_page
    from bgtplanner.report.template import fill_in, template_of

    found, pictures = _shown(folder, study)
    drawn, ended = [for_page(picture) for picture in pictures], study_ended(folder, study)
    content = _study_content(found, drawn, ended)
    return fill_in(template_of("study.html.j2"), **content, live=live, version=version)


def _drawn_here(view: RunView) -> list[Drawn]:
    from bgtplanner.report.drawing import for_page
    from bgtplanner.report.run_plots import run_pictures

    return [for_page(picture) for picture in run_pictures(view)]


def _chapters(drawn: Sequence[Drawn]) -> list[tuple[str, str, list[Drawn]]]:
    """The pictures of a run under their headings, with a few words on each."""
    headings = {name: heading for heading, names in _CHAPTERS.items() for name in names}
    chapters: dict[str, list[Drawn]] = {}
    for picture in drawn:
        chapters.setdefault(headings.get(picture.name, _HOW_GOOD), []).append(picture)
    return [(name, _WORDS.get(name, ""), shown) for name, shown in chapters.items()]


def study_ended(folder: Path, study: Study) -> bool:
    """Whether nothing more is to come: all cells are finished, or the tables of all are written.

    They are written even if a cell has failed, and are older than the request if it was extended.
    """
    if all((folder / cell.place / "summary.json").exists() for cell in study.cells()):
        return True
    asked, written = folder / "study.json", folder / f"{study.kind}.json"
    try:
        return written.stat().st_mtime_ns >= asked.stat().st_mtime_ns
    except OSError:
        return False


def _shown(folder: Path, study: Study) -> tuple[Comparison, list[Picture]]:
    from bgtplanner.report.study_plots import study_pictures

    outcomes = read_study(study, folder)
    found = summed_up(study, outcomes)
    curves = {} if study.variations else mean_curves(folder, outcomes)
    return found, list(study_pictures(found, curves)) if outcomes else []


def _run_content(view: RunView) -> dict[str, Any]:
    classes = view.left().shape[1] if view.private and view.left().size else 0
    references = view.references if view.rounds else {}
    toggles = [(series_name(key), name) for key, name in references.items()]
    if view.rounds and view.summary.get("rmse_served") is not None:
        toggles.insert(0, ("served", "mean, as served"))
    if 1 < classes <= 5:
        budgets = [f"budget ε {epsilon:g}" for epsilon in view.class_epsilons()]
        toggles += [(series_name(name), name) for name in budgets]
    scores = scores_of(view.summary) if view.finished and view.scored else Scores([], [])
    return {
        "view": view,
        "lead": view.lead(),
        "who": _who(view),
        "who_heading": _WHO,
        "unit": unit_of(view.summary),
        "examples": _examples(view),
        "summary": dict.fromkeys(_PERHAPS) | dict(view.summary),
        "headline": view.headline(),
        "tiles": view.tiles(),
        "toggles": toggles,
        "views": (),
        "known_policies": (),
        "departures": departures(view.config),
        "about_scores": _about(view.summary) if view.rounds else [],
        "labels": scores.labels,
        "rows": scores.rows,
        "answers": view.answers() if view.deployed else {},
        "promises": view.promises(),
        "sound": is_sound(view.summary) if view.rounds else True,
        "again": "flwr run APP SUPERLINK" if view.deployed else command_of(view.config),
        "config": to_toml(view.config),
        "files": "All figures are in summary.json and rounds.jsonl, next to this page.",
    }


def _who(view: RunView) -> Table | None:
    """The table of who gains and who loses; None if it is not known."""
    groups = {
        name: rows
        for by, name in (("ratings", "by number of ratings"), ("budget", "by budget"))
        if (rows := [_gain_row(view, group) for group in view.gains(by)])
    }
    if not groups or not view.finished:
        return None
    unit = unit_of(view.summary) or "RMSE"
    every = [group for by in ("ratings", "budget") for group in view.gains(by)]
    lose = [of["name"] for of in every if of["high"] is not None and of["high"] < 0]
    unsure = [of["name"] for of in every if of["low"] is not None and of["low"] <= 0 <= of["high"]]
    said = f"These groups lose: {', '.join(lose)}. " if lose else "No group clearly loses. "
    if unsure:
        said += f"Whether these gain cannot be told: {', '.join(unsure)}. "
    if nothing_learned(view.summary):
        said += "Nothing came from others: whatever is gained is each client's own doing. "
    return Table(
        title=f"Error in the last round, {unit}, together and alone",
        columns=("clients with", "clients", "together", "alone", "gain", "95 %", "better off"),
        note=f"{said}The gain is how far the error is below that of the same clients alone, the "
        "interval is over clients, and better off is the share of them with a lower error than "
        f"alone. Groups of fewer than {FEWEST} clients are left out, and bounds are rounded.",
        groups=groups,
    )


def _gain_row(view: RunView, group: Mapping[str, Any]) -> list[str]:
    figures = [error_in_words(view.summary, group[key]) for key in ("rmse", "rmse_alone")]
    unit = unit_of(view.summary)
    plain = [figure.removesuffix(f" {unit}").removeprefix("RMSE ") for figure in figures]
    gain, between = "–", "–"
    if group["gain"] is not None:
        gain, between = f"{group['gain']:+.1%}", f"{group['low']:+.1%} to {group['high']:+.1%}"
    return [
        group["name"],
        f"{group['clients']:,}",
        *plain,
        gain,
        between,
        f"{group['better']:.0%}",
    ]


def _examples(view: RunView) -> dict[str, Any] | None:
    """Lists of a few users, and why they are shown or not; None if nothing has to be said."""
    if view.deployed or not view.finished or not view.scored:
        return None
    if view.examples is not None and view.examples["lists"]:
        own = view.config.run.examples is not None
        because = "run.examples asks for them" if own else "everybody can get these data"
        said = any(item["reason"] for of in view.examples["lists"] for item in of["items"])
        return dict(view.examples) | {"because": because, "reasons": said}
    if number_of_examples(view.config) == 0:
        return {"lists": []}
    return None


def _about(summary: Mapping[str, Any]) -> list[str]:
    target = target_in_words(summary)
    return [*about_scores(summary), *([] if target is None else [target])]


def _study_content(found: Comparison, pictures: Sequence[Drawn], ended: bool) -> dict[str, Any]:
    study, done = found.study, len(found.outcomes)
    cells = len(study.cells())
    groups: dict[str, list[Drawn]] = {}
    for picture in pictures:
        groups.setdefault(picture.group, []).append(picture)
    kinds = dict.fromkeys(p.view for p in pictures if p.view)
    first = metric_of(found.error)  # by which policies are compared
    views = [(of, METRICS[of].label) for of in sorted(kinds, key=lambda of: of != first)]
    policies = list(dict.fromkeys(study.policies))
    toggles: list[tuple[str, str, str]] = [
        (series_name(name), name, look_of(name).colour) for name in policies if len(policies) > 1
    ]
    return {
        "kind": study.kind,
        "names": f"{', '.join(study.datasets)} · {', '.join(policies)} · preset {study.preset}",
        "headline": headline(found),
        "lead": [],
        "tiles": tiles(found, cells),
        "cells": cells,
        "done": done,
        "running": done < cells and not ended,
        "ended": ended,
        "toggles": toggles,
        "views": views,
        "known_policies": policies,
        "chapters": list(groups.items()),
        "sheets": list(tables_of(found)) if done else [],
        "failed": found.failed,
        "again": command_of_study(study),
        "asked": json.dumps(asdict(study), indent=2),
    }
