"""The command `docs`: the pages of the documentation, which come with the package."""

from __future__ import annotations

from pathlib import Path

from bgtplanner.commands.options import Answer, command
from bgtplanner.errors import ConfigError

_PACKAGE = Path(__file__).parents[1]


@command()
def docs(topic: str | None = None) -> Answer:
    """Print a page of the documentation, or list all pages.

    Example: `bgtplanner docs start`

    Options:
        topic (TOPIC): A page that the list has, such as start or howto/serve; serve will do, too.
    """
    homes = _PACKAGE / "docs", _PACKAGE.parents[1] / "docs"  # in a wheel, in a checkout
    texts = {page.relative_to(home).with_suffix("").as_posix(): page.read_text(encoding="utf-8")
             for home in homes for page in sorted(home.rglob("*.md"))}  # fmt: skip
    texts.pop("index", None)  # what it includes is not there
    if topic is None:
        return Answer([*texts], [*texts, "Read one with: bgtplanner docs TOPIC"])
    named = sorted((name for name in texts if f"/{name}".endswith(f"/{topic}")), key=len)
    ConfigError.unless(bool(named), "TOPIC", topic, "a page that `bgtplanner docs` lists")
    return Answer({"page": named[0], "text": texts[named[0]]}, texts[named[0]].splitlines())
