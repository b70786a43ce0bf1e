"""Pages of the reference that are made from the code: every command, every setting.

They are written into the repository, so that they can be read there; a test compares them.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import click
import typer.main

from bgtplanner.cli import app
from bgtplanner.commands.options import meanings
from bgtplanner.runs.config import Config, load_config
from bgtplanner.runs.settings import FLAGS

__all__ = [
    "PAGES",
    "VARIANTS",
    "commands",
    "commands_page",
    "settings_page",
    "written",
]

VARIANTS = {
    "--trust local": {"privacy.trust": "local"},
    "--model factorization": {"model.name": "factorization"},
    "--model fedgnn": {"model.name": "fedgnn"},
    "--mechanism none": {"privacy.mechanism": "none"},
}
"""What the preset `recommended` adapts itself to."""

_NOTHING = " or nothing"
_NONE = "–"
_KEYS = {flag: key for key, flag in FLAGS.items()}
_CTX = click.Context(click.Command("bgtplanner"))
_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command of the command line, with its words, groups before what is in them."""

    def walk(path: tuple[str, ...], command: click.Command) -> Iterator[Any]:
        yield path, command
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk((*path, name), inner)

    yield from walk((), typer.main.get_command(app))


def commands_page() -> str:
    """Every command with its arguments and options, as Markdown."""
    parts: list[str] = []
    for path, command in commands():
        name = " ".join(("bgtplanner", *path))
        parts += [f"## {name}", _sentences(command.help or "")]
        if inner := getattr(command, "commands", {}):
            listed = ", ".join(f"[`{of}`](#{'-'.join((*name.split(), of))})" for of in inner)
            parts.append(f"Commands: {listed}.")
        for kind in ("argument", "option"):
            rows = [_parameter(one) for one in command.params if one.param_type_name == kind]
            last = 3 if any(row[2] != _NONE for row in rows) else 2  # no column without entries
            head = [kind, "meaning", "default"][:last]
            if rows:
                every = [head, ["---"] * last, *(row[:last] for row in rows)]
                parts.append("\n".join(map(_row, every)))
    return "\n\n".join(parts) + "\n"


def _sentences(text: str) -> str:
    """The help of a command: paragraphs in Markdown, in which a dollar begins no formula."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(_plain(" ".join(one.split())) for one in paragraphs)


def _plain(text: str) -> str:
    return re.sub(r"(?<!\\)\$", r"\\$", text).replace("*", r"\*")


def _parameter(given: click.Parameter) -> list[str]:
    """Name, meaning and default of an argument or option."""
    if given.param_type_name == "argument":
        names = [(given.metavar or given.name or "").upper()]
    else:
        names = [*given.opts, *given.secondary_opts]
    flag = getattr(given, "is_flag", False)
    value = "" if flag or given.param_type_name == "argument" else f" {given.make_metavar(_CTX)}"
    shown = ", ".join(f"`{name}{value if name == names[0] else ''}`" for name in names)
    default = None if flag or callable(given.default) else given.default
    key = _KEYS.get(given.opts[0]) if default is None else None
    told = f"[`{key}`](settings.md)" if key else _shown(default)
    return [shown, _plain(getattr(given, "help", None) or ""), told]


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _markdown(text: str) -> str:
    """Words of a docstring without the marks of reStructuredText."""
    words = re.sub(r":(?:class|mod|func|meth):`~?([^`]*)`", r"`\1`", " ".join(text.split()))
    return words.replace("``", "`")


def settings_page() -> str:
    """Every config key with its type, its value under both presets and its meaning."""
    ours, papers = load_config(), load_config(preset="paper")
    parts = []
    for name, entry in Config.model_fields.items():
        section = entry.annotation
        if not isinstance(section, type):  # the preset's own name
            continue
        about = meanings(section)
        summary = (inspect.getdoc(section) or "").split("\n\n")[0]
        rows = ["| key | type | recommended | paper | meaning |", "|---|---|---|---|---|"]
        for key, kind in _kinds(section):
            values = [_shown(getattr(getattr(of, name), key)) for of in (ours, papers)]
            flag = FLAGS.get(f"{name}.{key}")
            meaning = about[key] + (f" Flag: `{flag}`." if flag else "")
            cells = [f"`{key}`", kind, *values, meaning]
            rows.append(_row(cells))
        parts.append(f"## [{name}]\n\n{_markdown(summary)}\n\n" + "\n".join(rows) + "\n")
    return "\n".join([*parts, _variants()])


def _variants() -> str:
    """Where `recommended` differs from itself, for what it adapts itself to."""
    found = {flag: load_config(settings=given) for flag, given in VARIANTS.items()}
    usual = load_config()
    rows = [f"| key | usually | {' | '.join(f'`{flag}`' for flag in found)} |"]
    rows.append("|---" * (2 + len(found)) + "|")
    for name in Config.model_fields:
        if name == "preset":
            continue
        for key, _ in _kinds(type(getattr(usual, name))):
            values = [getattr(getattr(of, name), key) for of in (usual, *found.values())]
            if any(value != values[0] for value in values):
                rows.append(f"| `{name}.{key}` | {' | '.join(map(_shown, values))} |")
    return (
        "## What `recommended` adapts itself to\n\n"
        "Unless a key is set otherwise, these flags change others with them:\n\n"
        + "\n".join(rows)
        + "\n"
    )


def _kinds(section: type) -> Iterator[tuple[str, str]]:
    """Each key of a section with its type in words."""
    if is_dataclass(section):
        hints = get_type_hints(section)
        for entry in fields(section):
            yield entry.name, _kind(hints[entry.name])
        return
    for name, entry in section.model_fields.items():  # type: ignore[attr-defined]
        kind, bounds = _kind(entry.annotation), _bounds(entry.metadata)
        for choice in entry.metadata:
            kind = " or ".join(f"`{of}`" for of in getattr(choice, "names", ())) or kind
        yield name, kind.removesuffix(_NOTHING) + bounds + _NOTHING * kind.endswith(_NOTHING)


def _kind(hint: Any) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _kind(inner[0]) + _bounds(hint.__metadata__)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin in (Union, types.UnionType):
        kinds = [_kind(part) for part in inner if part is not type(None)]
        return " or ".join(kinds + ["nothing"] * (type(None) in inner))
    names = {int: "whole number", float: "number", str: "text", bool: "`true` or `false`"}
    return names.get(hint, "table" if origin is dict else str(hint))


def _bounds(metadata: Any) -> str:
    parts = [part for entry in metadata for part in getattr(entry, "metadata", [entry])]
    found = [
        f"{sign} {_number(getattr(part, name))}"
        for part in parts
        for name, sign in _SIGNS.items()
        if hasattr(part, name)
    ]
    return f" {', '.join(found)}" if found else ""


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _shown(value: Any) -> str:
    if value is None or value == {}:
        return _NONE
    text = str(value).lower() if isinstance(value, bool) else f"{value}"
    return f"`{text}`"


PAGES = {"reference/commands.md": commands_page, "reference/settings.md": settings_page}
"""The pages of which a part is made from the code, and what makes it."""

_MARK = "<!-- From here on, this page is made from the code: make docs-output. -->"


def written(page: str, text: str) -> str:
    """Return a page with the part that is made from the code as the code is now."""
    by_hand, mark, _ = text.partition(_MARK)
    if not mark:
        raise SystemExit(f"{page}: has no line {_MARK}")
    return f"{by_hand}{_MARK}\n\n{PAGES[page]().strip()}\n"
