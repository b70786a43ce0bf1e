"""The command that shows the results of a run or a study: `report`."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from bgtplanner.commands.options import Json, answer, need_simulator
from bgtplanner.errors import ConfigError, MissingExtraError

__all__ = ["report", "report_writer"]


def report(
    folder: Annotated[str, typer.Argument(help="Folder of a run, a comparison or a sweep.")],
    figures: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Write only the figures, there, as SVG and PNG."),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Serve the page while a run goes on, until Ctrl-C.")
    ] = False,
    port: Annotated[int, typer.Option(help="For --live; 0 for any free port.")] = 0,
    as_json: Json = False,
) -> None:
    """Write the report of a run or a study: one page that also opens offline.

    Example: `bgtplanner report runs/first --open`

    With --live the page is served to this machine only (127.0.0.1) and follows the run; nothing
    is written. With --figures only the figures are written, ready for a paper.
    """
    need_simulator()
    write = report_writer()
    ConfigError.unless(folder != "", "FOLDER", folder, "a run folder")
    ConfigError.unless(figures != "", "--figures", figures, "a folder to write pictures into")
    if figures is not None and (live or open_page):
        raise ConfigError("--figures writes no page; leave out --live and --open")
    if live:
        _serve(Path(folder), port, open_page, as_json)
        return
    if figures is not None:
        from bgtplanner.report.drawing import write_pictures
        from bgtplanner.report.page import pictures_of

        written = write_pictures(pictures_of(folder), Path(figures))
        said = f"Pictures: {len(written) // 2} in {figures}, each as .svg and .png"
        answer(as_json, {"figures": [str(path) for path in written]}, said)
        return
    page = write(Path(folder))
    answer(as_json, {"report": str(page)}, f"Report: {page}")
    if open_page:
        typer.launch(str(page))


def report_writer() -> Callable[[Path], Path]:
    """Return the function that writes a page.

    Raises:
        MissingExtraError: If what it needs is not installed.
    """

    def write(folder: Path) -> Path:
        try:
            return write_report(folder)
        except ModuleNotFoundError as error:  # what is installed lacks something itself
            raise MissingExtraError("report", "A report") from error

    try:
        from bgtplanner.report.page import write_report

        for name in ("jinja2", "matplotlib"):  # imported when they are needed
            if importlib.util.find_spec(name) is None:
                raise ModuleNotFoundError(name)
    except ModuleNotFoundError as error:
        raise MissingExtraError("report", "A report") from error
    return write


def _serve(folder: Path, port: int, open_page: bool, as_json: bool) -> None:
    from bgtplanner.report.live import LivePage, LiveServer

    page = LivePage(folder)
    page.page()  # report a bad folder now, not in the browser
    server = LiveServer(page, port)
    answer(as_json, {"address": server.address}, f"Live: {server.address}  (Ctrl-C ends it)")
    if open_page:
        typer.launch(server.address)
    server.serve()
