"""A console that is safe for text from outside: such text cannot set colours or erase lines."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from bgtplanner.text import Table, visible

_WIDEST = 27  # room for a name in 80 columns


class Screen(Console):
    """A console that prints every string literally: no markup, no emoji, no control codes.

    Use :func:`words` for styled text.

    Args:
        stderr: Whether to write to standard error, so that standard output is kept for data.
        **options: Further options of a rich console.
    """

    def __init__(self, *, stderr: bool = False, **options: Any) -> None:
        plain = {"markup": False, "emoji": False, "highlight": False}
        super().__init__(stderr=stderr, **(plain | options))

    def render_str(self, text: str, **options: Any) -> Text:
        """Make a string safe; every string passes through here, also those in table cells."""
        return super().render_str(visible(text, keep="\n"), **options)


def words(*parts: str | tuple[str, str], keep: str = "") -> Text:
    r"""Return a line of text from plain strings and from pairs of a string and its style.

    Characters in `keep` are not escaped: pass ``\n`` for several lines.

    Example:
        >>> str(words(("[/]", "bold"), ": done"))
        '[/]: done'
    """
    shown = ((part, "") if isinstance(part, str) else part for part in parts)
    return Text.assemble(*((visible(text, keep=keep), style) for text, style in shown))


def print_table(console: Console, table: Table, gap: int = 2) -> None:
    """Print a table in at most 80 columns: long headings are broken, long names cut.

    Args:
        console: Where to write.
        table: The table.
        gap: How far its columns are apart.
    """
    grid = Grid(box=None, pad_edge=False, header_style="bold", padding=(0, gap, 0, 0))
    for number, head in enumerate(table.columns):
        justify: Any = "right" if number else "left"
        heading = words(head.replace("_", "_\n"), keep="\n")
        grid.add_column(heading, justify=justify, no_wrap=True, overflow="ellipsis")
    for group, rows in groupby(table.rows, key=lambda row: row[0]):
        if group:
            grid.add_row(words((cut(group, _WIDEST), "bold")))
        for _, (name, *cells) in rows:
            first = f"  {cut(name, _WIDEST - 2)}" if group else name
            style = "bold" if name == table.bold else ""
            grid.add_row(words(first), *map(words, cells), style=style)
    if table.title:
        console.print(words((table.title, "italic")))
    console.print(grid)
    if table.note:
        console.print(words((table.note, "dim italic")))


def cut(name: str, most: int) -> str:
    """Shorten a long name to its end, which says most: a file in a path, a class in a module."""
    name = visible(name)
    return name if len(name) <= most else f"…{name[1 - most :]}"


def duration(seconds: float) -> str:
    """Return a duration in words.

    Example:
        >>> duration(42), duration(400), duration(9000)
        ('42 s', '7 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
