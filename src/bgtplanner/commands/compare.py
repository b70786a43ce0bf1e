"""The command that runs a grid of policies, data sets, mechanisms and seeds: `compare`."""

from __future__ import annotations

import shlex
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
    from bgtplanner.experiments.comparison import Comparison

__all__ = ["compare"]


def compare(
    dataset: Datasets = None,
    mechanism: Mechanisms = None,
    policy: Policies = None,
    seeds: Seeds = None,
    baseline: Annotated[
        str | None, typer.Option(help="Policy that the others are compared with.")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="recommended | paper")] = None,
    epsilon: Annotated[float | None, typer.Option(help="What a client may spend in all.")] = None,
    trust: Annotated[str | None, typer.Option(help="secagg | local")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of training, at most.")] = None,
    data_dir: DataDir = None,
    assign: AssignAll = None,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder; default runs/compare-TIME.")
    ] = None,
    jobs: Jobs = 1,
    backend: Backend = "loky",
    as_json: Json = False,
    quiet: Quiet = False,
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
    view = GridView(Screen(stderr=as_json), quiet or as_json)
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

    print_tables(comparison_tables(comparison), comparison.failed)
    place = shlex.quote(str(folder))
    say(f"Tables: {place}/comparison.md, .csv, .json")
    say(f"To look at it: bgtplanner report {place} --open")
