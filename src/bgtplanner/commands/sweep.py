"""The command that shows what settings do: `sweep`."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from bgtplanner.commands.options import DataDir, Json, listed, need_simulator, print_json
from bgtplanner.commands.train import new_folder
from bgtplanner.errors import ConfigError

if TYPE_CHECKING:
    from bgtplanner.experiments.sweeps import Sensitivity, Sweep

__all__ = ["sweep"]


def sweep(
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="SECTION.KEY=V1,V2,...", help="A config key and its values."),
    ] = None,
    figure: Annotated[
        str | None, typer.Option(help="Ready-made: budget | min-rounds | rounds | small")
    ] = None,
    dataset: Annotated[
        list[str] | None, typer.Option(help="Names from 'bgtplanner data list', or csv:PATH.")
    ] = None,
    mechanism: Annotated[list[str] | None, typer.Option(help="gaussian | laplace | none")] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="bgt | uniform | adpml | adap | unlimited | hong | two-phase | random"),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Such as 0-4 or 0,1,2.")] = None,
    preset: Annotated[
        str | None, typer.Option(help="recommended | paper (the default with --figure)")
    ] = None,
    data_dir: DataDir = None,
    assign: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any config key for all cells, as SECTION.KEY=VALUE."),
    ] = None,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder; default runs/sweep-TIME.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="How many cells at a time.")] = 1,
    backend: Annotated[
        str, typer.Option(help="loky (processes here) | ray | dask (a cluster that shares DIR)")
    ] = "loky",
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Nothing but the result.")] = False,
) -> None:
    """Vary settings: every combination of their values x data set x mechanism x policy x seed.

    Example: `bgtplanner sweep --vary privacy.epsilon=5,10,20 --policy bgt,uniform --out runs/eps`

    `--vary` may be repeated. `--figure` names one of the paper's sensitivity studies, with both
    mechanisms unless told otherwise. Ctrl-C ends it after the present rounds; `bgtplanner sweep
    --out DIR` goes on. Finished cells are never run again, so values can be added later.
    """
    need_simulator()
    from bgtplanner.experiments.config import parse_assignment
    from bgtplanner.experiments.grid import parse_seeds, run_grid
    from bgtplanner.experiments.sweeps import evaluate
    from bgtplanner.report.comparison import GridView
    from bgtplanner.report.sensitivity import need_pictures, write_files

    ConfigError.unless(out != "", "--out", out, "a path")
    folder = new_folder("sweep") if out is None else Path(out)
    start = _start(folder, vary, figure, preset)
    base = start.base
    settings = dict(base.settings) | dict(parse_assignment(text) for text in assign or [])
    if data_dir is not None:
        settings["data.data_dir"] = data_dir
    wanted = replace(
        start,
        base=replace(
            base,
            datasets=listed(dataset, "--dataset") or base.datasets,
            mechanisms=listed(mechanism, "--mechanism") or base.mechanisms,
            policies=listed(policy, "--policy") or base.policies,
            seeds=base.seeds if seeds is None else parse_seeds(seeds),
            settings=settings,
        ),
    )
    need_pictures()
    view = GridView(Console(stderr=as_json), quiet or as_json)
    try:
        outcomes = run_grid(wanted, folder, jobs=jobs, backend=backend, observer=view)
    finally:
        view.close()
    found = evaluate(wanted, outcomes)
    pictures = write_files(found, folder)
    if as_json:
        print_json(found.as_json())
    else:
        _show(found, folder, pictures)
    if found.failed:
        raise typer.Exit(1)


def _start(folder: Path, vary: list[str] | None, figure: str | None, preset: str | None) -> Sweep:
    """What is varied: as told now, else as the folder has it from before."""
    from bgtplanner.experiments.grid import Request
    from bgtplanner.experiments.sweeps import Study, Sweep, figure_named, parse_axis

    if vary and figure is not None:
        raise ConfigError("--vary and --figure exclude each other; give one of them")
    before = Sweep.read(folder)
    if vary:
        base = Request(policies=("bgt",)) if before is None else before.base
        base = base if preset is None else replace(base, preset=preset)
        return Sweep(base=base, studies=(Study(axes=tuple(map(parse_axis, vary))),))
    if before is not None and figure in (None, before.figure):
        if preset is None or preset == before.base.preset:
            return before
        figure = before.figure  # its studies depend on the preset
        if figure is None:
            return replace(before, base=replace(before.base, preset=preset))
    if figure is None:
        raise ConfigError("--vary: expected SECTION.KEY=V1,V2,..., or a name with --figure")
    preset = "paper" if preset is None else preset
    policies, studies = figure_named(figure, preset)
    base = Request(policies=policies, mechanisms=("gaussian", "laplace"), preset=preset)
    return Sweep(base=base, studies=studies, figure=figure)


def _show(found: Sensitivity, folder: Path, pictures: list[str]) -> None:
    from bgtplanner.report.sensitivity import sweep_tables

    console = Console()
    for table in sweep_tables(found):
        console.print(table)
        console.print()
    for outcome in found.failed:
        console.print(
            f"[red]failed[/red]: {escape(outcome.cell.name)}: {escape(outcome.error or '')}",
            highlight=False,
        )
    typer.echo(f"Tables: {shlex.quote(str(folder))}/sweep.md, .csv, .json")
    typer.echo(f"Pictures: {', '.join(pictures)}")
