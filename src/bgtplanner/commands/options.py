"""What commands share: options that are made from settings and docstrings, and what is printed."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args

import typer

from bgtplanner.errors import ConfigError, MissingExtraError
from bgtplanner.report.terminal import Screen, print_table
from bgtplanner.runs.settings import FLAGS, SECTIONS, packaged, parse_assignment
from bgtplanner.text import Table, visible

if TYPE_CHECKING:
    from bgtplanner.flower.clientfile import ClientFile

_PATHS = ("PATH", "DIR", "FOLDER", "MODEL")  # must not be empty
_SHARED = {
    "ledger": "A ledger file, or the folder of a run or a client.",
    "as_json": "Print one JSON object and nothing else.",
    "assign": "Set any config key: SECTION.KEY=VALUE. Repeatable.",
    "preset": "One of: recommended, paper; by default recommended.",
    "quiet": "Print nothing but the result.",
}
_NAMES = {
    "as_json": ["--json"], "as_csv": ["--csv"], "assign": ["--set"], "everybody": ["--all"],
    "continue_from": ["--continue"], "whole": ["--for"],
    "live": ["--live"], "open_page": ["--open"], "quiet": ["--quiet", "-q"],
    "trust_code": ["--trust-code"], "user": ["--client", "--user"],
}  # fmt: skip
"""Options that are not called like their parameters, and flags that have no opposite."""


@functools.cache
def meanings(section: type) -> dict[str, str]:
    """Return what each key of a section is for, from docstrings, inherited ones first."""
    found: dict[str, str] = {}
    for kind in reversed(section.__mro__):
        if kind.__module__.startswith("bgtplanner."):
            text = inspect.cleandoc(vars(kind).get("__doc__") or "").partition("Attributes:\n")[2]
            found |= {name: meaning for name, (_, meaning) in _entries(text).items()}
    told = {name: of.description for name, of in getattr(section, "model_fields", {}).items()}
    return found | {name: _plain(of) for name, of in told.items() if of}


def _entries(text: str) -> dict[str, tuple[str, str]]:
    """Return a section of a docstring: what is in parentheses after each name, and its meaning."""
    found = {}
    entries = r"^    (\w+)(?: \((.*)\))?: (.*(?:\n {8,}.*)*)"
    for name, metavar, meaning in re.findall(entries, text, re.M):
        found[name] = metavar, _plain(meaning)
    return found


def _plain(meaning: str) -> str:
    """Return part of a docstring in one line, without its markup."""
    words = re.sub(r":(?:class|mod|func|meth):`~?([^`]*)`", r"`\1`", meaning)
    return " ".join(words.split()).replace("``", "`")


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


def _kind(key: str) -> Any:
    """Return the type that the command line reads; all else is checked with the config."""
    annotation = _field(key).annotation
    numbers = [of for of in (annotation, *get_args(annotation)) if of in (int, float)]
    return (numbers or [str])[0] | None


class Answer(NamedTuple):
    """What a command has found.

    Attributes:
        content: For machines: what ``--json`` prints.
        lines: For people; None if they get the same as machines.
        code: The exit code.
    """

    content: Any
    lines: Sequence[str | Table] | None = None
    code: int = 0


def command(
    *keys: str, usual: Mapping[str, Any] | None = None
) -> Callable[[Callable[..., Answer | None]], Callable[..., None]]:
    """Make a command of a function, which returns what it has found.

    Parameters become arguments or, if they can only be given by name, options. Their help is in
    the docstring, below ``Options:``, as ``name (METAVAR): help``; whatever is named like the flag
    of a setting and not explained there has the help of the setting. A command takes ``--json``;
    with some keys of settings, also their flags and ``--set`` for all, and gets what was given as
    one argument, `settings`: values by key. A flag wins over ``--set``. Help shows the preset's
    defaults, or what is `usual` for the command.
    """
    flags = {FLAGS[key].removeprefix("--").replace("-", "_"): key for key in keys}

    def decorate(function: Callable[..., Answer | None]) -> Callable[..., None]:
        text, _, below = inspect.cleandoc(function.__doc__ or "").partition("\n\nOptions:\n")
        own, told = inspect.signature(function, eval_str=True).parameters, _entries(below)
        new = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, annotation=bool)
        kinds = {name: _kind(key) for name, key in flags.items()}
        kinds |= {"assign": list[str] | None} if keys else {}
        added = [new.replace(name=name, default=None, annotation=of) for name, of in kinds.items()]
        added += [of for name, of in own.items() if name not in ("settings", "as_json")]
        parameters = []
        for of in [*added, new.replace(default=False)]:
            key = flags.get(of.name)
            hint = option(key, (usual or {}).get(key)) if key else _hint(of, told)
            kind: Any = Annotated[of.annotation, hint]
            parameters.append(of.replace(kind=new.kind, annotation=kind))

        @functools.wraps(function)
        def called(**given: Any) -> None:
            settings = dict(parse_assignment(text) for text in given.pop("assign", None) or [])
            named = {key: given.pop(name) for name, key in flags.items()}
            settings |= {key: value for key, value in named.items() if value is not None}
            every = {**given, "settings": settings}
            try:
                for name, (metavar, _) in told.items():  # it would mean the current folder
                    label = name if own[name].kind is new.kind else metavar
                    good = every[name] != "" or metavar not in _PATHS
                    ConfigError.unless(good, label, "", "a path")
                found = function(**{name: every[name] for name in own})
            except ConfigError as error:  # name the flag, not the argument
                name, equals, rest = str(error).partition(" = ")
                if not equals or name not in {*own, *flags}:
                    raise
                raise ConfigError(f"--{name.replace('_', '-')} = {rest}") from error
            if found is not None:
                show(found, as_json=given["as_json"])

        called.__doc__ = text
        vars(called)["__signature__"] = inspect.Signature(parameters)
        called.__annotations__ = {of.name: of.annotation for of in parameters}
        return called

    return decorate


def _hint(parameter: inspect.Parameter, told: Mapping[str, tuple[str, str]]) -> Any:
    """Return what the command line says of a parameter."""
    name, keys = parameter.name, {flag: key for key, flag in FLAGS.items()}
    if name not in told and (key := keys.get(f"--{name.replace('_', '-')}")):
        return option(key)
    metavar, words = told.get(name) or ("", _SHARED[name])
    shown: dict[str, Any] = {"help": words, "metavar": metavar or None}
    if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
        return typer.Argument(**shown)
    return typer.Option(*_NAMES.get(name, []), **shown)


def say(*lines: str, err: bool = False) -> None:
    """Print lines; control characters and line breaks inside them are written out."""
    typer.echo("\n".join(map(visible, lines)), err=err)


def show(found: Answer, *, as_json: bool) -> None:
    """Print what a command has found, and exit with its code. A NaN, which JSON lacks, raises."""
    if as_json or found.lines is None:
        say(*json.dumps(found.content, indent=2, allow_nan=False).split("\n"))
    for line in () if as_json else found.lines or ():
        print_table(Screen(), line) if isinstance(line, Table) else say(line)
    if found.code:
        raise typer.Exit(found.code)


def need(extra: str) -> None:
    """Say which extra is missing, if one is: `sim`, `serve`, or `flower` with all of `sim`."""
    # Without the log messages of XLA, which do not concern the user.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    needs = {
        "sim": ("Training in simulation", "jax", "optax"),
        "flower": ("A federation on real machines", "flwr"),
        "serve": ("Serving a model", "uvicorn", "starlette"),
    }
    for name in ["sim", extra] if extra == "flower" else [extra]:
        what, *modules = needs[name]
        if None in map(importlib.util.find_spec, modules):
            raise MissingExtraError(name, what)


def files_of_client(path: Path | str) -> ClientFile:
    """Return where a client's files are."""
    need("flower")
    from bgtplanner.flower.clientfile import load_client

    return load_client(path)
