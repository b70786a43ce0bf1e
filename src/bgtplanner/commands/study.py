"""The commands that run a study: `compare`, and `sweep`, which also varies settings."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from bgtplanner.commands.options import (
    Json,
    Preset,
    Quiet,
    need_path,
    need_simulator,
    option,
    print_json,
    say,
    settings_options,
)
from bgtplanner.commands.train import new_folder
from bgtplanner.errors import ConfigError
from bgtplanner.report.terminal import Screen, print_table, words

_Datasets = Annotated[list[str] | None, option("data.dataset")]
_Mechanisms = Annotated[list[str] | None, option("privacy.mechanism")]
_Policies = Annotated[list[str] | None, option("planning.policy")]
_Seeds = Annotated[str | None, typer.Option(help="Seeds, such as 0-4 or 0,1,2.")]
_Baseline = Annotated[str | None, typer.Option(help="Policy that the others are compared with.")]
_Jobs = Annotated[int, typer.Option(help="How many cells to run at a time.")]


def _out(command: str) -> Any:
    return typer.Option(metavar="DIR", help="Folder.", show_default=f"runs/{command}-TIME")


@settings_options(
    *("privacy.epsilon", "privacy.trust", "privacy.neighbours", "federation.rounds"),
    *("planning.objective", "planning.traffic", "data.data_dir", "data.items"),
)
def compare(
    settings: dict[str, Any],
    dataset: _Datasets = None,
    mechanism: _Mechanisms = None,
    policy: _Policies = None,
    seeds: _Seeds = None,
    baseline: _Baseline = None,
    preset: Preset = None,
    out: Annotated[str | None, _out("compare")] = None,
    jobs: _Jobs = 1,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare policies: every data set x mechanism x policy x seed, in one table.

    Example: `bgtplanner compare --policy bgt,uniform,unlimited --seeds 0-4 --out runs/first`

    `--dataset`, `--mechanism` and `--policy` may be repeated, or be lists with commas. Ctrl-C
    stops after the current rounds; `bgtplanner compare --out DIR` continues. Finished cells are
    never run again, so you can add seeds, policies or data sets to a folder later.
    """
    need_simulator()
    axes = _axes(dataset, mechanism, policy, seeds)
    given = axes | {"preset": preset, "baseline": baseline, "variations": ()}
    _carry_out("compare", out, given, settings, jobs, as_json, quiet)


@settings_options("planning.objective", "planning.traffic", "data.data_dir", "data.items")
def sweep(
    settings: dict[str, Any],
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="SECTION.KEY=V1,V2,...", help="A config key and its values."),
    ] = None,
    dataset: _Datasets = None,
    mechanism: _Mechanisms = None,
    policy: _Policies = None,
    seeds: _Seeds = None,
    preset: Preset = None,
    out: Annotated[str | None, _out("sweep")] = None,
    jobs: _Jobs = 1,
    as_json: Json = False,
    quiet: Quiet = False,
    figure: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Vary settings: every combination of their values x data set x mechanism x policy x seed.

    Example: `bgtplanner sweep --vary privacy.epsilon=5,10,20 --policy bgt,uniform --out runs/eps`

    `--vary` may be repeated. Ctrl-C stops after the current rounds; `bgtplanner sweep --out DIR`
    continues. Finished cells are never run again, so you can add values later.
    """
    need_simulator()
    from bgtplanner.runs.study import parse_grid

    if figure is not None:
        raise ConfigError(
            "--figure: the paper's own sweeps are run by python -m benchmarks.paper --run, in a "
            "checkout; use --vary for others"
        )
    axes = _axes(dataset, mechanism, policy, seeds)
    given = axes | {"preset": preset, "variations": (parse_grid(vary),) if vary else None}
    _carry_out("sweep", out, given, settings, jobs, as_json, quiet)


def _axes(
    dataset: list[str] | None,
    mechanism: list[str] | None,
    policy: list[str] | None,
    seeds: str | None,
) -> dict[str, Any]:
    """What a study is a product of, as far as it was given on the command line."""
    from bgtplanner.runs.study import parse_seeds

    return {
        "datasets": _listed(dataset, "--dataset"),
        "mechanisms": _listed(mechanism, "--mechanism"),
        "policies": _listed(policy, "--policy"),
        "seeds": None if seeds is None else parse_seeds(seeds),
    }


def _listed(given: list[str] | None, flag: str) -> tuple[str, ...] | None:
    """Repeated flags and comma-separated lists in one tuple; a path may contain commas."""
    if given is None:
        return None
    found: list[str] = []
    for text in given:
        found += [text] if text.startswith(("csv:", "parquet:")) else text.split(",")
    names = [name.strip() for name in found]
    ConfigError.unless(all(names), flag, ",".join(given), "names")
    return tuple(dict.fromkeys(names)) or None


def _carry_out(
    command: str,
    out: str | None,
    given: dict[str, Any],
    settings: dict[str, Any],
    jobs: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run the cells that are not finished, write the tables, and show them."""
    from bgtplanner.report.terminal import StudyProgress
    from bgtplanner.runs.statistics import summed_up, tables_of, write_tables
    from bgtplanner.runs.study import Study, run_study

    need_path("--out", out)
    folder = new_folder(command) if out is None else Path(out)
    before = Study.read(folder) or (Study(policies=("bgt",)) if command == "sweep" else Study())
    named = {name: value for name, value in given.items() if value is not None}
    study = replace(before, **named, settings={**before.settings, **settings})
    if command != study.command:
        raise ConfigError("--vary: expected SECTION.KEY=V1,V2,...")
    view = StudyProgress(Screen(stderr=as_json), -1 if quiet or as_json else 0)
    try:
        outcomes = run_study(study, folder, jobs=jobs, progress=view)
    finally:
        view.close()
    found = summed_up(study, outcomes)
    write_tables(found, folder)
    if as_json:
        print_json(found.as_json())
    else:
        console, place = Screen(), shlex.quote(str(folder))
        for table in tables_of(found, planned=True):
            print_table(console, table)
            console.print()
        for of in found.failed:
            said = words(("failed", "red"), f": {of.cell.name}: {of.error or ''}")
            console.print(said, highlight=False)
        say(f"Tables: {place}/{study.kind}.csv, .json")
        say(f"To see it as a page: bgtplanner report {place} --open")
    if found.failed:
        raise typer.Exit(1)
