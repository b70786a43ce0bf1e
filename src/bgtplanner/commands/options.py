"""Options and output that several commands share."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bgtplanner.errors import ConfigError, MissingExtraError
from bgtplanner.text import visible

if TYPE_CHECKING:
    from bgtplanner.flower.client import Client

__all__ = [
    "DataDir",
    "Items",
    "Json",
    "Neighbours",
    "Objective",
    "Quiet",
    "Traffic",
    "answer",
    "local_client",
    "named_by_flags",
    "need_flower",
    "need_simulator",
    "print_json",
    "say",
]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
DataDir = Annotated[
    str | None,
    typer.Option(help="Folder of data sets, before $BGTPLANNER_DATA and the cache."),
]
Neighbours = Annotated[
    str | None,
    typer.Option(help="What epsilon is about: replace-special (secagg only) | replace-one"),
]

Items = Annotated[
    str | None,
    typer.Option(
        metavar="PATH",
        help="Table of all items, CSV or Parquet: labels, titles, features. auto: the set's own; "
        "none: those that were rated.",
    ),
]

Objective = Annotated[
    str | None,
    typer.Option(
        help="What is planned for and compared by: served (mean error over rounds) | last"
    ),
]
Traffic = Annotated[
    str | None,
    typer.Option(
        help="People served per round, such as 5,5,5,5,8,10,9, repeated; or a file, one per line."
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but the result.")]


def say(*lines: str, err: bool = False) -> None:
    """Print lines; control characters and line breaks inside them are written out."""
    typer.echo("\n".join(map(visible, lines)), err=err)


def print_json(content: Any) -> None:
    """Print one JSON object; a number that JSON cannot express is an error."""
    say(*json.dumps(content, indent=2, allow_nan=False).split("\n"))


def answer(as_json: bool, content: Any, *lines: str) -> None:
    """Print the result of a command: as JSON for machines, or as lines for people."""
    if as_json:
        print_json(content)
    elif lines:
        say(*lines)


@contextlib.contextmanager
def named_by_flags() -> Iterator[None]:
    """Let errors about arguments name the command-line flags instead."""
    try:
        yield
    except ConfigError as error:
        named = re.sub(r"^([a-z][a-z_]*) = ", lambda found: f"{_flag(found[1])} = ", str(error))
        raise ConfigError(named) from error


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def need_simulator() -> None:
    """Say which extra is missing, if one is."""
    # Without the log messages of XLA, which do not concern the user.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        import jax  # noqa: F401

        if importlib.util.find_spec("optax") is None:  # imported when it is needed
            raise ModuleNotFoundError("optax")
    except ModuleNotFoundError as error:
        raise MissingExtraError("sim", "Training in simulation") from error


def need_flower() -> None:
    """Say which extra is missing, if one is."""
    need_simulator()
    try:
        import flwr  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtraError("flower", "A federation on real machines") from error


def local_client(path: Path | str) -> Client:
    """The client that this file configures."""
    need_flower()
    from bgtplanner.flower.client import Client
    from bgtplanner.flower.clientfile import load_client

    return Client(load_client(path))
