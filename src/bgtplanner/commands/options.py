"""What several commands have in common."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

__all__ = ["DataDir", "Json", "print_json"]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
DataDir = Annotated[
    str | None, typer.Option(help="Folder with real data sets; then $BGTPLANNER_DATA, the cache.")
]


def print_json(content: Any) -> None:
    """One JSON object on standard output; numbers that JSON does not have are an error."""
    typer.echo(json.dumps(content, indent=2, allow_nan=False))
