"""The command that shows the results of a run or a study: `report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bgtplanner.commands.options import Json, answer, need_simulator, say
from bgtplanner.errors import ConfigError


def report(
    folder: Annotated[str, typer.Argument(help="Folder of a run, a comparison or a sweep.")],
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Write the page again and again while a run goes on.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write the report of a run or a study: one page that also opens offline.

    Example: `bgtplanner report runs/first --open`

    With --live the page reloads itself until the run is finished, or you press Ctrl-C; a folder
    that is not there yet is waited for. Each figure is an image that a browser can save.
    """
    need_simulator()
    from bgtplanner.report.page import follow, write_report

    ConfigError.unless(folder != "", "FOLDER", folder, "a run folder")

    def show(page: Path) -> None:
        answer(as_json, {"report": str(page)}, f"Report: {page}")
        if open_page:
            typer.launch(str(page))

    if not live:
        show(write_report(Path(folder)))
        return
    if not Path(folder).exists():
        say(f"waiting for {folder}", err=True)
    follow(Path(folder), show)
