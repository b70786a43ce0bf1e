"""The report of a run, a comparison or a sweep: one self-contained page that opens offline."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from bgtplanner.errors import RunFolderError
from bgtplanner.models.metrics import METRICS, shown
from bgtplanner.report.drawing import Picture, as_page, look_of, series_name
from bgtplanner.report.guarantee import is_sound
from bgtplanner.report.run_plots import run_pictures
from bgtplanner.report.study import headline, sheets, tiles
from bgtplanner.report.study_plots import study_pictures
from bgtplanner.report.terminal import about_scores, score_rows, target_in_words
from bgtplanner.report.view import RunView, read_run
from bgtplanner.runs.config import departures, to_toml
from bgtplanner.runs.execute import read_study
from bgtplanner.runs.folder import write_whole
from bgtplanner.runs.reproduce import command_of, command_of_study
from bgtplanner.runs.statistics import Comparison, mean_curves, summed_up
from bgtplanner.runs.study import Study
from bgtplanner.text import visible

__all__ = ["pictures_of", "render", "write_report"]

_PERHAPS = ("trust", "planner_note", "classes", "clients", "items", "users", "ratings")
_CHAPTERS = {
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
        content = _run_content(read_run(folder, unfinished=bool(live)))
        return _page("run.html.j2", live, version, **content)
    found, pictures = _shown(folder, study)
    return _page("study.html.j2", live, version, **_study_content(found, pictures))


def _shown(folder: Path, study: Study) -> tuple[Comparison, list[Picture]]:
    outcomes = read_study(study, folder)
    found = summed_up(study, outcomes)
    curves = {} if study.variations else mean_curves(folder, outcomes)
    return found, list(study_pictures(found, curves)) if outcomes else []


def _run_content(view: RunView) -> dict[str, Any]:
    headings = {name: heading for heading, names in _CHAPTERS.items() for name in names}
    chapters: dict[str, list[Picture]] = {}
    for picture in run_pictures(view):
        chapters.setdefault(headings.get(picture.name, _HOW_GOOD), []).append(picture)
    classes = view.left().shape[1] if view.private and view.left().size else 0
    references = view.references if view.rounds else {}
    toggles = [(series_name(key), name) for key, name in references.items()]
    if view.rounds and view.summary.get("rmse_served") is not None:
        toggles.insert(0, ("served", "mean, as served"))
    if 1 < classes <= 5:
        budgets = [f"budget ε {epsilon:g}" for epsilon in view.class_epsilons()]
        toggles += [(series_name(name), name) for name in budgets]
    return {
        "view": view,
        "summary": dict.fromkeys(_PERHAPS) | dict(view.summary),
        "headline": view.headline(),
        "tiles": view.tiles(),
        "toggles": toggles,
        "views": (),
        "known_policies": (),
        "chapters": [(name, _WORDS.get(name, ""), shown) for name, shown in chapters.items()],
        "departures": departures(view.config),
        "about_scores": _about(view.summary) if view.rounds else [],
        "labels": [metric.label for metric in shown(view.config.preset).values()],
        "rows": score_rows(view.summary) if view.finished and view.scored else [],
        "answers": view.answers() if view.deployed else {},
        "promises": view.promises(),
        "sound": is_sound(view.summary) if view.rounds else True,
        "again": "flwr run APP SUPERLINK" if view.deployed else command_of(view.config),
        "config": to_toml(view.config),
        "files": "All figures are in summary.json and rounds.jsonl, next to this page.",
    }


def _about(summary: Mapping[str, Any]) -> list[str]:
    target = target_in_words(summary)
    return [*about_scores(summary), *([] if target is None else [target])]


def _study_content(found: Comparison, pictures: Sequence[Picture]) -> dict[str, Any]:
    study, done = found.study, len(found.outcomes)
    cells = len(study.cells())
    groups: dict[str, list[Picture]] = {}
    for picture in pictures:
        groups.setdefault(picture.group, []).append(picture)
    views = [(of, METRICS[of].label) for of in dict.fromkeys(p.view for p in pictures if p.view)]
    policies = list(dict.fromkeys(study.policies))
    toggles: list[tuple[str, str, str]] = [
        (series_name(name), name, look_of(name).colour) for name in policies if len(policies) > 1
    ]
    return {
        "kind": study.kind,
        "names": f"{', '.join(study.datasets)} · {', '.join(policies)} · preset {study.preset}",
        "headline": headline(found),
        "tiles": tiles(found, cells),
        "cells": cells,
        "done": done,
        "running": done < cells,
        "toggles": toggles,
        "views": views,
        "known_policies": policies,
        "chapters": list(groups.items()),
        "sheets": list(sheets(found)) if done else [],
        "failed": found.failed,
        "again": command_of_study(study),
        "asked": json.dumps(asdict(study), indent=2),
    }


def _shown_text(value: Any) -> Any:
    """Write out invisible characters in a value; the template then escapes tags."""
    plain = isinstance(value, str) and not isinstance(value, Markup)
    return visible(value, keep="\n") if plain else value


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("bgtplanner.report"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown_text,
    )
    environment.globals["colour_of"] = lambda policy: look_of(policy).colour
    return environment


def _page(template: str, live: str, version: str, **content: Any) -> str:
    style, script = _own_file("style.css"), _own_file("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        _environment()
        .get_template(template)
        .render(
            **content,
            live=live,
            version=version,
            style=style,
            script=script,
            script_hash=f"sha256-{digest}",
            svg_of=lambda picture: Markup(as_page(picture)),  # noqa: S704 - drawn here, escaped there
        )
    )


@functools.cache
def _own_file(name: str) -> Markup:
    """The page's style or script, which needs no escaping."""
    file = resources.files("bgtplanner.report") / "templates" / name
    return Markup(file.read_text(encoding="utf-8"))  # noqa: S704
