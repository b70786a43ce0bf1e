"""Fill in the templates of pages, each with everything that it needs: it opens offline."""

from __future__ import annotations

import base64
import functools
import hashlib
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template, select_autoescape
from markupsafe import Markup

from bgtplanner.report.looks import look_of
from bgtplanner.text import visible

__all__ = ["fill_in", "template_of"]


def template_of(name: str) -> Template:
    """The template with this name; it is compiled when it is first asked for."""
    return _environment().get_template(name)


def fill_in(template: Template, **content: Any) -> str:
    """The page as text."""
    style, script = _own_file("style.css"), _own_file("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return template.render(
        **content,
        style=style,
        script=script,
        script_hash=f"sha256-{digest}",
        svg_of=lambda drawn: Markup(drawn.svg),  # noqa: S704 - drawn by us, escaped there
    )


def _shown_text(value: Any) -> Any:
    """Write out invisible characters in a value; the template then escapes tags."""
    plain = isinstance(value, str) and not isinstance(value, Markup)
    return visible(value, keep="\n") if plain else value


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("bgtplanner.report"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown_text,
    )
    environment.globals["colour_of"] = lambda policy: look_of(policy).colour
    return environment


@functools.cache
def _own_file(name: str) -> Markup:
    """The page's style or script, which needs no escaping."""
    file = resources.files("bgtplanner.report") / "templates" / name
    return Markup(file.read_text(encoding="utf-8"))  # noqa: S704
