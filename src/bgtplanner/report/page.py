"""The page of a run, one self-contained file that opens offline.

While a run goes on, :func:`follow` writes the page again and again, and the page reloads itself.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.util
import time
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bgtplanner.errors import MissingExtraError
from bgtplanner.report.facts import Facts, read_facts
from bgtplanner.report.pictures import INK, Picture, as_file
from bgtplanner.runs.folder import RunFolder, write_whole
from bgtplanner.text import visible

if TYPE_CHECKING:  # a notebook does without
    from jinja2 import Template

_POLL = 1.0  # seconds between looks at the folder
_BREATHE = 4.0  # pause after a drawing, as a multiple of its time: training needs the processor


def write_report(path: Path | str) -> Path:
    """Write ``report.html`` into the folder of a run, and return its path.

    Raises:
        RunFolderError: If the folder holds no finished run.
        StorageError: If it cannot be written.
        MissingExtraError: If what it needs is not installed.
    """
    page = Path(path) / "report.html"
    write_whole(page, render(Path(path)))
    return page


def render(folder: Path, *, state: str = "finished") -> str:
    """Return the page of a run as text; that of an unfinished one reloads itself."""
    return _page(read_facts(folder, state=state))


def _page(facts: Facts) -> str:
    if None in map(importlib.util.find_spec, ("jinja2", "matplotlib")):
        raise MissingExtraError("report", "A report")
    script = _own_file("reload.js") if facts.state != "finished" else ""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _template().render(
        facts=facts, image=functools.partial(image, ink=INK), style=_own_file("style.css"),
        script=script, allowed=f"'sha256-{digest}'" if script else "'none'",
    )  # fmt: skip


def image(picture: Picture, **how: Any) -> str:
    """Return the address of an image that holds the picture itself."""
    content = base64.b64encode(as_file(picture, **how).encode()).decode()
    return f"data:image/svg+xml;base64,{content}"


def _state(folder: Path) -> str:
    """Return whether a run is going on, was stopped, or is finished."""
    if (folder / "summary.json").exists():
        return "finished"
    return "running" if RunFolder(folder).in_use() else "stopped"


def follow(folder: Path, written: Callable[[Path], None]) -> None:
    """Write the page while a run goes on, until it is finished.

    A folder that is not there yet is waited for. Whoever interrupts it leaves a page that does
    not reload itself any more. `written` is told the path of the page when it is there.
    """
    page, seen = folder / "report.html", None
    while not (folder / "config.toml").exists():
        time.sleep(_POLL)
    try:
        while True:
            began, facts = time.monotonic(), read_facts(folder, state=_state(folder))
            if (facts.state, facts.progress) != seen:
                write_whole(page, _page(facts))
                if seen is None:
                    written(page)
                seen = facts.state, facts.progress
            if facts.state == "finished":
                return
            time.sleep(max(_POLL, _BREATHE * (time.monotonic() - began)))
    except KeyboardInterrupt:
        if seen is not None:
            write_whole(page, page.read_text(encoding="utf-8").replace(" checked>", ">"))


@functools.cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def shown(value: Any) -> Any:
        """Write out invisible characters in a value; the template then escapes tags."""
        plain = isinstance(value, str) and not isinstance(value, Markup)
        return visible(value, keep="\n") if plain else value

    environment = Environment(
        loader=PackageLoader("bgtplanner.report"), undefined=StrictUndefined, finalize=shown,
        autoescape=True, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("page.html.j2")


def _own_file(name: str) -> str:
    """Return the page's style or script, which needs no escaping."""
    file = resources.files("bgtplanner.report") / "templates" / name
    return file.read_text(encoding="utf-8")
