"""The command that runs a grid of policies, data sets, mechanisms and seeds: `compare`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from bgtplanner.commands.options import DataDir, Json, listed, need_simulator, print_json
from bgtplanner.commands.train import new_folder
from bgtplanner.errors import ConfigError

if TYPE_CHECKING:
    from bgtplanner.experiments.comparison import Comparison

__all__ = ["compare"]


def compare(
    dataset: Annotated[
        list[str] | None, typer.Option(help="Names from 'bgtplanner data list', or csv:PATH.")
    ] = None,
    mechanism: Annotated[list[str] | None, typer.Option(help="gaussian | laplace | none")] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="bgt | uniform | adpml | adap | unlimited | hong | two-phase | random"),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Such as 0-4 or 0,1,2.")] = None,
    baseline: Annotated[
        str | None, typer.Option(help="Policy that the others are compared with.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="recommended | paper")] = None,
    epsilon: Annotated[float | None, typer.Option(help="What a client may spend in all.")] = None,
    trust: Annotated[str | None, typer.Option(help="secagg | local")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of training, at most.")] = None,
    data_dir: DataDir = None,
    assign: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any config key for all cells, as SECTION.KEY=VALUE."),
    ] = None,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder; default runs/compare-TIME.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="How many cells at a time.")] = 1,
    backend: Annotated[
        str, typer.Option(help="loky (processes here) | ray | dask (a cluster that shares DIR)")
    ] = "loky",
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Nothing but the result.")] = False,
) -> None:
    """Compare policies: every data set x mechanism x policy x seed, in one table.

    Example: `bgtplanner compare --policy bgt,uniform,unlimited --seeds 0-4 --out runs/first`

    `--dataset`, `--mechanism` and `--policy` may be repeated or be lists with commas. Ctrl-C ends
    it after the present rounds; `bgtplanner compare --out DIR` goes on. Finished cells are never
    run again, so seeds, policies or data sets can be added to a folder later.
    """
    need_simulator()
    from bgtplanner.experiments.comparison import summed_up
    from bgtplanner.experiments.config import parse_assignment
    from bgtplanner.experiments.grid import Request, parse_seeds, run_grid
    from bgtplanner.report.comparison import GridView, write_files

    ConfigError.unless(out != "", "--out", out, "a path")
    folder = new_folder("compare") if out is None else Path(out)
    before = Request.read(folder) or Request()
    settings = dict(before.settings) | dict(parse_assignment(text) for text in assign or [])
    flags = {
        "privacy.epsilon": epsilon,
        "privacy.trust": trust,
        "federation.rounds": rounds,
        "data.data_dir": data_dir,
    }
    settings |= {key: value for key, value in flags.items() if value is not None}
    request = Request(
        datasets=listed(dataset, "--dataset") or before.datasets,
        mechanisms=listed(mechanism, "--mechanism") or before.mechanisms,
        policies=listed(policy, "--policy") or before.policies,
        seeds=before.seeds if seeds is None else parse_seeds(seeds),
        preset=before.preset if preset is None else preset,
        settings=settings,
        baseline=before.baseline if baseline is None else baseline,
    )
    view = GridView(Console(stderr=as_json), quiet or as_json)
    try:
        found = run_grid(request, folder, jobs=jobs, backend=backend, observer=view)
    finally:
        view.close()
    comparison = summed_up(request, found)
    write_files(comparison, folder)
    if as_json:
        print_json(comparison.as_json())
    else:
        _show(comparison, folder)
    if comparison.failed:
        raise typer.Exit(1)


def _show(comparison: Comparison, folder: Path) -> None:
    from bgtplanner.report.comparison import comparison_tables

    console = Console()
    for table in comparison_tables(comparison):
        console.print(table)
        console.print()
    for outcome in comparison.failed:
        console.print(
            f"[red]failed[/red]: {escape(outcome.cell.name)}: {escape(outcome.error or '')}",
            highlight=False,
        )
    typer.echo(f"Tables: {shlex.quote(str(folder))}/comparison.md, .csv, .json")
