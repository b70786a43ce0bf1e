"""The command that shows the results of a run or a study: `report`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from bgtplanner.commands.options import Json, answer, need_simulator, say
from bgtplanner.errors import ConfigError, MissingExtraError


def report(
    folder: Annotated[str, typer.Argument(help="Folder of a run, a comparison or a sweep.")],
    figures: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Write only the figures, there, as SVG and PNG."),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Write the page again and again while a run goes on.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write the report of a run or a study: one page that also opens offline.

    Example: `bgtplanner report runs/first --open`

    With --live the page reloads itself until the run is finished, or you press Ctrl-C; a folder
    that is not there yet is waited for. With --figures only the figures are written, for a paper.
    """
    need_simulator()
    write = report_writer()
    ConfigError.unless(folder != "", "FOLDER", folder, "a run folder")
    ConfigError.unless(figures != "", "--figures", figures, "a folder to write pictures into")
    if figures is not None:
        if live or open_page:
            raise ConfigError("--figures writes no page; leave out --live and --open")
        from bgtplanner.report.page import pictures_of
        from bgtplanner.report.style import write_pictures

        written = write_pictures(pictures_of(folder), Path(figures))
        said = f"Pictures: {len(written) // 2} in {figures}, each as .svg and .png"
        answer(as_json, {"figures": [str(path) for path in written]}, said)
        return

    def show(page: Path) -> None:
        answer(as_json, {"report": str(page)}, f"Report: {page}")
        if open_page:
            typer.launch(str(page))

    if not live:
        show(write(Path(folder)))
        return
    from bgtplanner.report.page import follow

    if not Path(folder).exists():
        say(f"waiting for {folder}", err=True)
    follow(Path(folder), show)


def report_writer() -> Callable[[Path], Path]:
    """Return the function that writes a page.

    Raises:
        MissingExtraError: If what it needs is not installed.
    """
    try:
        from bgtplanner.report.page import write_report

        if importlib.util.find_spec("matplotlib") is None:  # imported when it is needed
            raise ModuleNotFoundError("matplotlib")
    except ModuleNotFoundError as error:
        raise MissingExtraError("report", "A report") from error
    return write_report
