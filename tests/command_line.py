"""The command line as tests call it: in this process, with what it printed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Done(NamedTuple):
    """What a command left: its exit code, and all that it printed."""

    code: Any
    out: str
    err: str


Call = Callable[..., Done]
"""Takes the arguments of a command."""
