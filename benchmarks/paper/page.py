"""A page with parts that are written by a program, between comments that say so."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from bgtplanner.runs.folder import write_whole

NOT_RUN = "Not run yet;"


def marks(name: str) -> tuple[str, str]:
    """The comments around a part."""
    return f"<!-- begin: {name} -->", f"<!-- end: {name} -->"


def blank(title: str, titles: Mapping[str, str]) -> str:
    """A page with nothing but titles and empty parts."""
    lines = [f"# {title}", ""]
    for name, title in titles.items():
        lines += [f"## {title}", "", "\n\n".join(marks(name)), ""]
    return "\n".join(lines)


def body_of(text: str, name: str) -> str:
    """What a part has now.

    Raises:
        SystemExit: If the page has no place for it, or more than one.
    """
    return _find(text, name)[1].strip()


def put(text: str, name: str, body: str) -> str:
    """The page with another text in a part.

    Raises:
        SystemExit: If the page has no place for it, or more than one.
    """
    before, _, after = _find(text, name)
    return f"{before}\n\n{body.strip()}\n\n{after}"


def write_parts(
    docs: Path,
    empty: str,
    parts: Mapping[str, Callable[[], str | None]],
    how_to_run: Callable[[str], str],
) -> list[str]:
    """Write all parts that have results into a page; returns their names.

    Args:
        docs: The page.
        empty: What it has, if it is not there.
        parts: By name, what makes a part; it returns None if there are no results.
        how_to_run: What stands in a part that never had any.

    Raises:
        SystemExit: If the page has no place for one of them.
    """
    text = docs.read_text(encoding="utf-8") if docs.exists() else empty
    written = []
    bodies = {name: body_of(text, name) for name in parts}  # first see that all are there
    for name, old in bodies.items():
        new = parts[name]()
        if new is not None:
            written.append(name)
        elif old and not old.startswith(NOT_RUN):
            continue
        text = put(text, name, new or how_to_run(name))
    docs.parent.mkdir(parents=True, exist_ok=True)
    write_whole(docs, text)
    return written


def _find(text: str, name: str) -> tuple[str, str, str]:
    begin, end = marks(name)
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise SystemExit(f"the page needs one place for '{name}': {begin} ... {end}")
    split = re.split(f"(?<={re.escape(begin)})(.*?)(?={re.escape(end)})", text, flags=re.S)
    before, body, after = split
    if "<!-- begin:" in body:
        raise SystemExit(f"another part begins within '{name}', before {end}")
    return before, body, after
