"""The code blocks of a page: what they are, and what the page says about running them.

A block may have a comment right before it:

    <!-- not run: REASON -->     its commands are checked, but not carried out
    <!-- output -->              it shows what the last command before it prints
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

__all__ = ["CODE", "DOCS", "REPOSITORY", "Block", "Command", "blocks_of", "commands_of", "pages"]

DOCS = Path(__file__).resolve().parents[1]
REPOSITORY = DOCS.parent
CODE = ("python", "console", "bash", "{code-cell} ipython3", "")
"""Languages whose blocks are to be run. A console has commands line by line, bash is a script; a
block that names no language might be anything, so it counts as a console."""

_FENCE = re.compile(
    r"^(?:<!--[ ](?P<mark>[^\n]*?)[ ]-->\n\n?)?"
    r"^(?P<fence>`{3,})(?P<language>[^\n`]*)\n(?P<text>.*?)^(?P=fence)[ ]*$",
    re.M | re.S,
)


class Block(NamedTuple):
    """A fenced block.

    Attributes:
        language: As the fence has it.
        text: What is inside.
        mark: The comment right before it, or nothing.
        line: Where it begins on the page, from 1.
        span: Where its text is, in characters.
    """

    language: str
    text: str
    mark: str
    line: int
    span: tuple[int, int]

    @property
    def reason(self) -> str | None:
        """Why it is not run, if it says so."""
        found = re.fullmatch(r"not run: (\S.*)", self.mark)
        return found[1] if found else None


class Command(NamedTuple):
    """A command line.

    Attributes:
        words: As a shell would split it.
        exit_code: What it should end with: 0, unless a comment says ``exit code N``.
    """

    words: list[str]
    exit_code: int


def pages() -> list[Path]:
    """README and all pages of the documentation."""
    return [REPOSITORY / "README.md", *sorted(DOCS.rglob("*.md"))]


def blocks_of(text: str) -> list[Block]:
    r"""All fenced blocks of a page, in order.

    Example:
        >>> [block] = blocks_of("<!-- not run: network -->\n```console\nmake run\n```\n")
        >>> block.language, block.text, block.reason
        ('console', 'make run\n', 'network')
    """
    return [
        Block(
            language=found["language"].strip(),
            text=found["text"],
            mark=found["mark"] or "",
            line=text.count("\n", 0, found.start("fence")) + 1,
            span=found.span("text"),
        )
        for found in _FENCE.finditer(text)
    ]


def commands_of(text: str) -> list[Command]:
    r"""The command lines of a console block; comments are not part of them.

    Example:
        >>> commands_of("bgtplanner run \\\n  --rounds 3   # exit code 1: no\n")
        [Command(words=['bgtplanner', 'run', '--rounds', '3'], exit_code=1)]
    """
    found = []
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        words = shlex.split(line, comments=True)
        code = re.search(r"#.*exit code (\d)", line)
        if words:
            found.append(Command(words, int(code[1]) if code else 0))
    return found


def write_tables(folder: Path) -> None:
    """Write the tables that a reader of the pages has: ratings, clicks, items, and one's own."""
    pairs = [(user, item) for user in range(9) for item in range(8)]
    tables = {
        "ratings": ["user,item,rating,time"]
        + [f"{user},{item},{1 + (user * item) % 5},{user + 9 * item}" for user, item in pairs],
        "mine": ["item,rating", "3,5", "4,1"],
        "clicks": ["user,item", *(f"{user},{item}" for user, item in pairs if (user + item) % 3)],
        "items": ["item,title,genre", *(f"{item},Film {item},War|Drama" for item in range(5))]
        + [f"{item},Film {item},War" for item in range(5, 8)],
    }
    for name, lines in tables.items():
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
