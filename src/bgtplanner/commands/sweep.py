"""The command that shows what settings do: `sweep`."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bgtplanner.commands.options import (
    AssignAll,
    Backend,
    DataDir,
    Datasets,
    Jobs,
    Json,
    Mechanisms,
    Policies,
    Quiet,
    Seeds,
    listed,
    need_simulator,
    print_json,
    print_tables,
    say,
)
from bgtplanner.commands.train import new_folder
from bgtplanner.errors import ConfigError
from bgtplanner.report.screen import Screen

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
    dataset: Datasets = None,
    mechanism: Mechanisms = None,
    policy: Policies = None,
    seeds: Seeds = None,
    preset: Annotated[
        str | None, typer.Option(help="recommended | paper (the default with --figure)")
    ] = None,
    data_dir: DataDir = None,
    assign: AssignAll = None,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder; default runs/sweep-TIME.")
    ] = None,
    jobs: Jobs = 1,
    backend: Backend = "loky",
    as_json: Json = False,
    quiet: Quiet = False,
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
    view = GridView(Screen(stderr=as_json), quiet or as_json)
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

    print_tables(sweep_tables(found), found.failed)
    place = shlex.quote(str(folder))
    say(f"Tables: {place}/sweep.md, .csv, .json")
    say(f"Pictures: {', '.join(pictures)}")
    say(f"To look at it: bgtplanner report {place} --open")
