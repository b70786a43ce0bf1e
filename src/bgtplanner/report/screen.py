"""A terminal on which text from outside can only be read: it sets no colour and erases no line."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from bgtplanner.text import visible

__all__ = ["Screen", "words"]


class Screen(Console):
    """A console that takes every string for text: no markup, no emoji codes, no control codes.

    What is to have a colour is given as :func:`words`.

    Args:
        stderr: Whether to write to standard error, where standard output is kept for data.
        **options: Whatever else a rich console takes.
    """

    def __init__(self, *, stderr: bool = False, **options: Any) -> None:
        plain = {"markup": False, "emoji": False, "highlight": False}
        super().__init__(stderr=stderr, **(plain | options))

    def render_str(self, text: str, **options: Any) -> Text:
        """Every string comes by here, those in the cells of tables, too."""
        return super().render_str(visible(text, keep="\n"), **options)


def words(*parts: str | tuple[str, str], keep: str = "") -> Text:
    r"""A line for any console: plain strings, and pairs of a string and its style.

    What `keep` names is not written out: ``\n`` where more than one line is meant.

    Example:
        >>> str(words(("[/]", "bold"), ": done"))
        '[/]: done'
    """
    shown = ((part, "") if isinstance(part, str) else part for part in parts)
    return Text.assemble(*((visible(text, keep=keep), style) for text, style in shown))
