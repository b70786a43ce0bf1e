"""A page with parts that are written by a program, between comments that say so."""

from __future__ import annotations

import re
from collections.abc import Mapping

NOT_RUN = "Not run yet;"


def marks(name: str) -> tuple[str, str]:
    """The comments around a part."""
    return f"<!-- begin: {name} -->", f"<!-- end: {name} -->"


def blank(titles: Mapping[str, str]) -> str:
    """A page with nothing but titles and empty parts."""
    lines = ["# The paper's tables and figures, as far as they were run", ""]
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


def _find(text: str, name: str) -> tuple[str, str, str]:
    begin, end = marks(name)
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise SystemExit(f"the page needs one place for '{name}': {begin} ... {end}")
    split = re.split(f"(?<={re.escape(begin)})(.*?)(?={re.escape(end)})", text, flags=re.S)
    before, body, after = split
    if "<!-- begin:" in body:
        raise SystemExit(f"another part begins within '{name}', before {end}")
    return before, body, after
