"""A console that is safe for text from outside: such text cannot set colours or erase lines."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from bgtplanner.text import visible

__all__ = ["Screen", "words"]


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
    r"""A line of text from plain strings and from pairs of a string and its style.

    Characters in `keep` are not escaped: pass ``\n`` for several lines.

    Example:
        >>> str(words(("[/]", "bold"), ": done"))
        '[/]: done'
    """
    shown = ((part, "") if isinstance(part, str) else part for part in parts)
    return Text.assemble(*((visible(text, keep=keep), style) for text, style in shown))
