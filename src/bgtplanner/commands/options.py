"""What several commands have in common."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

import typer

from bgtplanner.errors import ConfigError, MissingExtraError

__all__ = ["DataDir", "Json", "listed", "need_simulator", "print_json"]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
DataDir = Annotated[
    str | None, typer.Option(help="Folder with real data sets; then $BGTPLANNER_DATA, the cache.")
]


def print_json(content: Any) -> None:
    """One JSON object on standard output; numbers that JSON does not have are an error."""
    typer.echo(json.dumps(content, indent=2, allow_nan=False))


def need_simulator() -> None:
    """Say which extra is missing, if one is."""
    # Quieter and quicker: only what was asked for on the command line concerns the user.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        import jax  # noqa: F401
        import optax  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtraError("sim", "Training in simulation") from error


def listed(given: list[str] | None, flag: str) -> tuple[str, ...]:
    """Repeated flags and lists with commas as one; a path may have commas of its own."""
    found: list[Any] = []
    for text in given or []:
        found += [text] if text.startswith("csv:") else text.split(",")
    names = [name.strip() for name in found]
    ConfigError.unless(all(names), flag, ",".join(given or []), "names")
    return tuple(dict.fromkeys(names))
