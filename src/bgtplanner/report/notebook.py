"""What a notebook shows of a run or a study: a sentence, a table and a picture, as HTML."""

from __future__ import annotations

import base64
import contextlib
from html import escape

from bgtplanner.report.facts import Facts
from bgtplanner.report.run import facts_of_result
from bgtplanner.report.study import facts_of_comparison
from bgtplanner.report.style import as_file
from bgtplanner.runs.result import Result
from bgtplanner.runs.statistics import Comparison
from bgtplanner.text import Table, visible


def run_as_html(result: Result) -> str:
    """Return the headline of a run, its scores beside the references, and its error by round."""
    return _shown(facts_of_result(result))


def study_as_html(found: Comparison) -> str:
    """Return the headline of a study, its first table, and its first picture."""
    return _shown(facts_of_comparison(found))


def _shown(facts: Facts) -> str:
    parts = [f"<p>{_text(facts.headline)}</p>", *map(_table, facts.tables[:1])]
    with contextlib.suppress(ModuleNotFoundError):  # without the extra `report`: no picture
        for picture in facts.pictures[:1]:  # as an image, so that no two outputs share ids
            image = base64.b64encode(as_file(picture).encode()).decode()
            alt = _text(picture.alt)
            parts.append(f'<img alt="{alt}" src="data:image/svg+xml;base64,{image}">')
    return f"<div>{''.join(parts)}</div>"


def _table(table: Table) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in ("", *table.columns))
    lines = (
        "".join(f"<td>{_text(cell)}</td>" for cell in (group, *cells))
        for group, cells in table.rows
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f"<table><caption>{_text(table.title)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
    )


def _text(text: str) -> str:
    return escape(visible(text))
