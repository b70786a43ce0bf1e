"""What a notebook shows of a run or a study: a sentence, a table and a picture, as HTML."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterable, Sequence
from html import escape

from bgtplanner.errors import BGTPlannerError
from bgtplanner.report.outcome import scores_of
from bgtplanner.report.study import headline
from bgtplanner.report.view import RunView, read_run, run_as_ended
from bgtplanner.runs.result import Result
from bgtplanner.runs.statistics import Comparison, mean_curves
from bgtplanner.runs.tables import tables_of
from bgtplanner.text import visible

__all__ = ["run_as_html", "study_as_html"]


def run_as_html(result: Result) -> str:
    """The headline of a run, its scores beside the references, and its error by round."""
    view = _view_of(result)
    table = ""
    if view.finished and view.scored:
        scores = scores_of(view.summary)
        rows = [[name, *figures] for name, figures, _ in scores.rows]
        table = _table(["", *scores.labels], rows)
    with contextlib.suppress(ModuleNotFoundError):  # without the extra `report`: no picture
        from bgtplanner.report.run_plots import run_pictures

        return _shown(view.headline(), table, next(iter(run_pictures(view)), None))
    return _shown(view.headline(), table)


def _view_of(result: Result) -> RunView:
    if result.unfinished is not None and result.folder is not None:
        with contextlib.suppress(BGTPlannerError):  # it may have been moved or deleted since
            return read_run(result.folder, unfinished=True)
    return run_as_ended(result)


def study_as_html(found: Comparison) -> str:
    """The headline of a study, its first table, and its first picture."""
    sheet = next(iter(tables_of(found)), None)
    table = ""
    if sheet is not None and found.outcomes:
        rows = [[group, *row] for group, cells in sheet.groups.items() for row in cells]
        table = _table(["", *sheet.columns], rows, sheet.title)
    with contextlib.suppress(ModuleNotFoundError):
        from bgtplanner.report.study_plots import study_pictures

        curves = {} if found.folder is None else mean_curves(found.folder, found.outcomes)
        drawn = study_pictures(found, curves) if found.outcomes else iter(())
        return _shown(headline(found), table, next(drawn, None))
    return _shown(headline(found), table)


def _shown(said: str, table: str, picture: object = None) -> str:
    parts = [f"<p>{_text(said)}</p>", table]
    if picture is not None:
        from bgtplanner.report.drawing import Picture, as_file

        if isinstance(picture, Picture):  # as an image, so that no two outputs share ids
            image = base64.b64encode(as_file(picture).encode()).decode()
            parts.append(
                f'<img alt="{_text(picture.alt)}" src="data:image/svg+xml;base64,{image}">'
            )
    return f"<div>{''.join(parts)}</div>"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> str:
    lines = ["".join(f"<td>{_text(cell)}</td>" for cell in row) for row in rows]
    if not lines:
        return ""
    caption = f"<caption>{_text(title)}</caption>" if title else ""
    head = "".join(f"<th>{_text(name)}</th>" for name in columns)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _text(text: str) -> str:
    return escape(visible(text))
