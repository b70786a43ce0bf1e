"""A run, a comparison or a sweep as one self-contained page that opens anywhere, online or not."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from bgtplanner.errors import RunFolderError
from bgtplanner.report.drawing import Picture, as_page, look_of, series_name
from bgtplanner.report.figures import run_pictures
from bgtplanner.report.guarantee import is_sound
from bgtplanner.report.headlines import headline, tiles
from bgtplanner.report.story import REFERENCES, Story, read_story
from bgtplanner.report.study import sheets
from bgtplanner.report.study_figures import study_pictures
from bgtplanner.runs.config import to_toml
from bgtplanner.runs.curves import mean_curves
from bgtplanner.runs.execute import read_study
from bgtplanner.runs.folder import write_whole
from bgtplanner.runs.reproduce import command_of, command_of_study
from bgtplanner.runs.statistics import Comparison, summed_up
from bgtplanner.runs.study import Study
from bgtplanner.text import visible

__all__ = ["pictures_of", "render", "write_report"]

_VIEWS = {"rmse": "RMSE", "f1": "F1"}
_PERHAPS = ("trust", "planner_note", "classes", "clients", "items", "users", "ratings")
_CHAPTERS = (
    ("How good it got", "", ("rmse", "f1")),
    (
        "How the budget went, and why",
        "The policy looks at what was released so far, decides what the round may cost, and every "
        "client's ledger has the last word.",
        ("budget", "epsilon", "choices", "rewards", "forecasts"),
    ),
    ("Through what noise, and with whom", "", ("noise", "clients")),
)


def write_report(path: Path | str) -> Path:
    """Write ``report.html`` into the folder of a run or a study and return where it is.

    Raises:
        RunFolderError: If the folder holds no finished run and no study.
        StorageError: If it cannot be written.
    """
    folder = Path(path)
    page = render(folder)
    write_whole(folder / "report.html", page)
    return folder / "report.html"


def pictures_of(path: Path | str) -> list[Picture]:
    """Every picture of the page, to be written as files."""
    folder = Path(path)
    study = Study.read(folder)
    if study is None:
        return list(run_pictures(read_story(folder)))
    _, pictures = _shown(folder, study)
    if not pictures:
        raise RunFolderError(
            f"{folder}: no cell is finished; go on with: bgtplanner {study.command} --out FOLDER"
        )
    return pictures


def render(folder: Path, *, live: str = "", version: str = "") -> str:
    """The page as text.

    Args:
        folder: Of a run, a comparison or a sweep.
        live: Where the page hears of changes; an unfinished run will do then.
        version: Of what is in the folder now, for the same purpose.
    """
    study = Study.read(folder)
    if study is None:
        story = read_story(folder, unfinished=bool(live))
        return _page("run.html.j2", live, version, **_run_content(story))
    found, pictures = _shown(folder, study)
    return _page("study.html.j2", live, version, **_study_content(found, pictures))


def _shown(folder: Path, study: Study) -> tuple[Comparison, list[Picture]]:
    outcomes = read_study(study, folder)
    found = summed_up(study, outcomes)
    curves = {} if study.variations else mean_curves(folder, outcomes)
    return found, list(study_pictures(found, curves)) if outcomes else []


def _run_content(story: Story) -> dict[str, Any]:
    drawn = {picture.name: picture for picture in run_pictures(story)}
    chapters = [
        (heading, words, [drawn[name] for name in names if name in drawn])
        for heading, words, names in _CHAPTERS
    ]
    classes = story.left().shape[1] if story.private and story.left().size else 0
    budgets = [f"budget ε {epsilon:g}" for epsilon in story.class_epsilons()]
    references = story.references if story.rounds else {}
    toggles = [(series_name(key), name) for key, name in references.items()]
    toggles += [(series_name(name), name) for name in budgets] if 1 < classes <= 5 else []
    return {
        "summary": dict.fromkeys(_PERHAPS) | dict(story.summary),
        "headline": story.headline(),
        "tiles": story.tiles(),
        "finished": story.finished,
        "total": story.total,
        "toggles": toggles,
        "views": (),
        "known_policies": (),
        "chapters": [chapter for chapter in chapters if chapter[2]],
        "rows": _rows(story) if story.finished and story.scored else [],
        "deployed": story.deployed,
        "answers": story.answers() if story.deployed else {},
        "promises": story.promises(),
        "sound": is_sound(story.summary) if story.rounds else True,
        "private": story.private,
        "again": "flwr run APP SUPERLINK" if story.deployed else command_of(story.config),
        "config": to_toml(story.config),
        "versions": story.versions,
        "files": "summary.json and rounds.jsonl beside this page have every figure.",
    }


def _rows(story: Story) -> list[tuple[str, float, float, bool]]:
    summary = story.summary
    rows = [
        (name, summary[f"rmse_{key}"], summary[f"f1_{key}"], False)
        for key, name in REFERENCES.items()
    ]
    ours = (f"{summary['model']}, last round", summary["rmse_final"], summary["f1_final"], True)
    rows.append(ours)
    if summary["preset"] == "paper":
        best = "best round on the test set, as the paper reports"
        rows.append((best, summary["rmse_best"], summary["f1_best"], False))
    return rows


def _study_content(found: Comparison, pictures: Sequence[Picture]) -> dict[str, Any]:
    study, done = found.study, len(found.outcomes)
    cells = len(study.cells())
    groups: dict[str, list[Picture]] = {}
    for picture in pictures:
        groups.setdefault(picture.group, []).append(picture)
    views = [
        (name, text) for name, text in _VIEWS.items() if any(p.view == name for p in pictures)
    ]
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
    """Whatever a template shows; what cannot be seen is written out, and then tags are escaped."""
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
    """The page's style or script, which need no escaping."""
    file = resources.files("bgtplanner.report") / "templates" / name
    return Markup(file.read_text(encoding="utf-8"))  # noqa: S704
