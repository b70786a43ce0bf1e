"""Options and output that several commands share; flags are made from the settings."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from bgtplanner.errors import ConfigError, MissingExtraError
from bgtplanner.runs.settings import FLAGS, SECTIONS, packaged, parse_assignment
from bgtplanner.text import visible

if TYPE_CHECKING:
    from bgtplanner.flower.client import Client


@functools.cache
def meanings(section: type) -> dict[str, str]:
    """Return what each key of a section is for, from docstrings, inherited ones first."""
    found: dict[str, str] = {}
    for kind in reversed(section.__mro__):
        if kind.__module__.startswith("bgtplanner."):
            text = inspect.cleandoc(vars(kind).get("__doc__") or "").partition("Attributes:\n")[2]
            for name, meaning in re.findall(r"^    (\w+): (.*(?:\n {8,}.*)*)", text, re.M):
                words = re.sub(r":(?:class|mod|func|meth):`~?([^`]*)`", r"`\1`", meaning)
                found[name] = " ".join(words.split()).replace("``", "`")
    return found


def _field(key: str) -> Any:
    """Return what is known of a setting: its type, what it may be, and its default."""
    section, _, name = key.partition(".")
    return SECTIONS[section].model_fields[name]


def choices(key: str) -> list[str]:
    """Return the names that a setting can have; none if it is not one of several names."""
    field = _field(key)
    registered = [of for entry in field.metadata for of in getattr(entry, "names", ())]
    return registered or [of for of in get_args(field.annotation) if isinstance(of, str)]


def default(key: str) -> Any:
    """Return the value of a setting under the preset recommended."""
    section, _, name = key.partition(".")
    usual = _field(key).get_default(call_default_factory=True)
    return packaged("recommended")["usual"].get(section, {}).get(name, usual)


def option(key: str, usual: Any = None) -> Any:
    """Return the option of a setting, with its meaning, the names it can have, and its default."""
    section, _, name = key.partition(".")
    meaning = re.split(r"(?<=\.) ", meanings(SECTIONS[section])[name])[0]
    names, usual = choices(key), default(key) if usual is None else usual
    help_text = f"{meaning} One of: {', '.join(names)}." if names else meaning
    return typer.Option(FLAGS[key], help=help_text, show_default=usual is not None and str(usual))


def settings_options(
    *keys: str, usual: Mapping[str, Any] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the flags of some settings, and ``--set`` for all.

    The command gets what was given as one argument, `settings`: values by key. A flag wins over
    ``--set``. Help shows the preset's defaults, or what is `usual` for the command.
    """
    flags = {FLAGS[key].removeprefix("--").replace("-", "_"): key for key in keys}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        kinds: dict[str, Any] = {
            name: Annotated[_kind(key), option(key, (usual or {}).get(key))]
            for name, key in flags.items()
        }
        kinds["assign"] = _Assign
        own = inspect.signature(command, eval_str=True).parameters
        new = inspect.Parameter("settings", inspect.Parameter.KEYWORD_ONLY, default=None)
        added = [new.replace(name=name, annotation=kind) for name, kind in kinds.items()]
        rest = [of.replace(kind=new.kind) for name, of in own.items() if name != "settings"]

        @functools.wraps(command)
        def called(**given: Any) -> None:
            settings = dict(parse_assignment(text) for text in given.pop("assign") or [])
            named = {key: given.pop(name) for name, key in flags.items()}
            settings |= {key: value for key, value in named.items() if value is not None}
            command(**given, settings=settings)

        vars(called)["__signature__"] = inspect.Signature([*added, *rest])
        called.__annotations__ = {of.name: of.annotation for of in (*added, *rest)}
        return called

    return decorate


def _kind(key: str) -> Any:
    """Return the type that the command line reads; all else is checked with the config."""
    annotation = _field(key).annotation
    numbers = [of for of in (annotation, *get_args(annotation)) if of in (int, float)]
    return (numbers or [str])[0] | None


_Assign = Annotated[
    list[str] | None,
    typer.Option("--set", help="Set any config key: SECTION.KEY=VALUE. Repeatable."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
DataDir = Annotated[str | None, option("data.data_dir")]
Preset = Annotated[
    str | None, typer.Option(help="recommended | paper", show_default="recommended")
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
        name, equals, rest = str(error).partition(" = ")
        if not equals or not re.fullmatch("[a-z][a-z_]*", name):
            raise
        raise ConfigError(f"--{name.replace('_', '-')} = {rest}") from error


def need_path(name: str, path: str | None, expected: str = "a path") -> None:
    """Refuse an empty path, which would mean the current folder."""
    ConfigError.unless(path != "", name, path, expected)


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
    """Return the client that this file configures."""
    need_flower()
    from bgtplanner.flower.client import Client
    from bgtplanner.flower.clientfile import load_client

    return Client(load_client(path))
