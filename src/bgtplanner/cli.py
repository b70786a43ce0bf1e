"""The command line. Every command says what it does with an example, and takes ``--json``.

Exit codes: 0 done, 1 something went wrong on the way, 2 what was asked for cannot be done.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import click
import typer
from rich.console import Console

import bgtplanner
from bgtplanner.commands import privacy
from bgtplanner.errors import BGTPlannerError, ConfigError, InterruptedRunError, MissingExtraError

if TYPE_CHECKING:
    from bgtplanner.experiments.results import Result
    from bgtplanner.report.terminal import RunView

app = typer.Typer(
    name="bgtplanner",
    help="Plan the privacy budget of federated recommenders, round by round.\n\n"
    "Example: `bgtplanner run` trains on the embedded demo data.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(
    help="List, describe and fetch data sets.\n\nExample: `bgtplanner data list`",
    no_args_is_help=True,
)
app.add_typer(data_app, name="data")
app.command()(privacy.budget)
app.command()(privacy.audit)
app.add_typer(privacy.ledger_app, name="ledger")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="A line for every round.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Nothing but the result.")]
DataDir = Annotated[
    str | None, typer.Option(help="Folder with real data sets; then $BGTPLANNER_DATA, the cache.")
]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(bgtplanner.__version__)
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    del version


@app.command()
def run(
    dataset: Annotated[
        str | None, typer.Option(help="A name from 'bgtplanner data list', or csv:PATH.")
    ] = None,
    data_dir: DataDir = None,
    preset: Annotated[str | None, typer.Option(help="recommended | paper")] = None,
    model: Annotated[str | None, typer.Option(help="factorization | fedgnn")] = None,
    policy: Annotated[str | None, typer.Option(help="unlimited (FedSGD)")] = None,
    mechanism: Annotated[str | None, typer.Option(help="none: uploads are not protected.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of training.")] = None,
    participation: Annotated[
        float | None, typer.Option(help="Share of the clients in a round.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the split and all random draws.")] = None,
    device: Annotated[str | None, typer.Option(help="auto | cpu | gpu")] = None,
    config: Annotated[
        str | None, typer.Option(metavar="PATH", help="TOML file; flags win over it.")
    ] = None,
    assign: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any config key, as SECTION.KEY=VALUE. Repeatable."),
    ] = None,
    out: Annotated[
        str | None, typer.Option(metavar="PATH", help="Run folder; default runs/DATASET-TIME.")
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace the run in that folder.")] = False,
    show_config: Annotated[bool, typer.Option(help="Print the settings and stop.")] = False,
    as_json: Json = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Train a federated recommender; without arguments, on the embedded demo data.

    Example: `bgtplanner run --dataset ml-100k --rounds 100 --out runs/first`

    Ctrl-C ends it after the present round; `bgtplanner resume FOLDER` goes on.
    """
    _need_simulator()
    from bgtplanner.experiments.config import load_config, parse_assignment, to_toml
    from bgtplanner.experiments.runner import execute

    flags = {
        "data.dataset": dataset,
        "data.data_dir": data_dir,
        "model.name": model,
        "planning.policy": policy,
        "privacy.mechanism": mechanism,
        "federation.rounds": rounds,
        "federation.participation": participation,
        "run.seed": seed,
        "run.device": device,
    }
    settings = dict(parse_assignment(text) for text in assign or [])
    settings |= {key: value for key, value in flags.items() if value is not None}
    for flag, path in (("--config", config), ("--out", out)):  # '' would be the present folder
        ConfigError.unless(path != "", flag, path, "a path")
    chosen = load_config(preset=preset, file=config, settings=settings)
    if show_config:
        if as_json:
            _print_json(chosen.model_dump(mode="json"))
        else:
            typer.echo(to_toml(chosen), nl=False)
        return
    view = _view(as_json, verbose, quiet)
    _need_device()
    folder = _new_folder(chosen.data.dataset) if out is None else Path(out)
    try:
        result = execute(chosen, out=folder, overwrite=overwrite, observer=view)
    finally:
        view.close()
    _show_result(result, as_json, view)


@app.command()
def resume(
    folder: Annotated[str, typer.Argument(help="The folder of a run that was interrupted.")],
    as_json: Json = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Go on with an interrupted run; it ends exactly as if it had not been interrupted.

    Example: `bgtplanner resume runs/first`
    """
    _need_simulator()
    from bgtplanner.experiments.runner import resume as go_on

    ConfigError.unless(folder != "", "FOLDER", folder, "a run folder")
    view = _view(as_json, verbose, quiet)
    _need_device()
    try:
        result = go_on(folder, observer=view)
    finally:
        view.close()
    _show_result(result, as_json, view)


@app.command()
def report(
    folder: Annotated[str, typer.Argument(help="The folder of a finished run.")],
    open_page: Annotated[bool, typer.Option("--open", help="Show it in the browser.")] = False,
    as_json: Json = False,
) -> None:
    """Write a page about a run that opens anywhere, online or not.

    Example: `bgtplanner report runs/first --open`
    """
    _need_simulator()
    ConfigError.unless(folder != "", "FOLDER", folder, "a run folder")
    page = _write_report(Path(folder))
    if as_json:
        _print_json({"report": str(page)})
    else:
        typer.echo(f"Report: {page}")
    if open_page:
        typer.launch(str(page))


@data_app.command("list")
def data_list(data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the data sets and say which are here.

    Example: `bgtplanner data list`
    """
    from rich.table import Table

    from bgtplanner.errors import DataError
    from bgtplanner.recsys.datasets import DATASETS, find_files

    rows = []
    for info in DATASETS.values():
        try:
            files = [str(path) for path in find_files(info.name, data_dir)]
            here = "built in" if info.folder is None else "here"
        except DataError:
            files, here = [], "not here"
        rows.append(
            {"name": info.name, "description": info.description, "status": here, "files": files}
        )
    if as_json:
        _print_json({"datasets": rows})
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("name", "status", "what"):
        table.add_column(heading)
    for row in rows:
        table.add_row(str(row["name"]), str(row["status"]), str(row["description"]))
    table.add_row("csv:PATH", "", "a table of your own, CSV or TSV, plain or gzipped")
    console = Console()
    console.print(table)
    console.print("Fetch one with: bgtplanner data fetch NAME", highlight=False)


@data_app.command("info")
def data_info(
    dataset: Annotated[str, typer.Argument(help="A name from 'data list', or csv:PATH.")],
    data_dir: DataDir = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the split and the dealing.")] = 0,
    assign: Annotated[
        list[str] | None,
        typer.Option("--set", help="Config keys of [data], such as data.scale=1:5."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Describe a data set: counts, density, ratings by value, what can be had without sharing.

    Example: `bgtplanner data info ml-100k`
    """
    _need_simulator()
    from bgtplanner.experiments.config import load_config, parse_assignment
    from bgtplanner.experiments.description import describe
    from bgtplanner.report.terminal import description_view

    settings = dict(parse_assignment(text) for text in assign or [])
    settings |= {"data.dataset": dataset, "run.seed": seed}
    if data_dir is not None:
        settings["data.data_dir"] = data_dir
    facts = describe(load_config(settings=settings))
    if as_json:
        _print_json(facts)
        return
    description_view(Console(), facts)


@data_app.command("fetch")
def data_fetch(
    dataset: Annotated[str, typer.Argument(help="A name from 'data list'.")],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Download a data set from its official home, check it, unpack it.

    Example: `bgtplanner data fetch ml-100k`
    """
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    from bgtplanner.recsys.datasets import dataset_info
    from bgtplanner.recsys.download import fetch_dataset

    info = dataset_info(dataset)
    console = Console(stderr=True)
    with Progress(
        "{task.description}",
        BarColumn(bar_width=24),
        DownloadColumn(),
        TimeRemainingColumn(compact=True),
        console=console,
        transient=True,
        disable=as_json or not console.is_terminal,
    ) as progress:
        task = progress.add_task(dataset, total=None)

        def advance(done: int, total: int | None) -> None:
            progress.update(task, completed=done, total=total)

        folder = fetch_dataset(dataset, data_dir, on_progress=advance)
    if as_json:
        _print_json({"dataset": dataset, "folder": str(folder)})
        return
    typer.echo(f"{dataset} is in {folder}")
    if info.terms:
        typer.echo(f"Terms: {info.terms}\nCite: {info.citation}")


def _need_simulator() -> None:
    # Quieter and quicker: only what was asked for on the command line concerns the user.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        import jax  # noqa: F401
        import optax  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtraError("sim", "Training in simulation") from error


def _write_report(folder: Path) -> Path:
    try:
        from bgtplanner.report.page import write_report
    except ModuleNotFoundError as error:
        raise MissingExtraError("report", "A report") from error
    return write_report(folder)


def _need_device() -> None:
    """Let JAX start here, where what it says can be put in one line."""
    import jax

    try:
        jax.devices()
    except Exception as error:  # an assertion of its own, too
        chosen = os.environ.get("JAX_PLATFORMS", "")
        raise ConfigError(
            f"JAX_PLATFORMS = {chosen!r}: JAX finds no such device; unset it, or install the JAX "
            "that has it"
        ) from error


def _new_folder(dataset: str) -> Path:
    # The end of a path says most, and a name has at most 255 bytes.
    plain = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in dataset)
    name = f"{plain[-40:]}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    return Path("runs") / name.lstrip("-.")


def _view(as_json: bool, verbose: bool, quiet: bool) -> RunView:
    from bgtplanner.report.terminal import RunView

    if verbose and quiet:
        raise ConfigError("--verbose and --quiet exclude each other; give one of them")
    level = -1 if quiet or (as_json and not verbose) else 1 if verbose else 0
    return RunView(Console(stderr=as_json), level)


def _show_result(result: Result, as_json: bool, view: RunView) -> None:
    if as_json:
        _print_json(dict(result.summary))
    elif view.verbosity < 0:
        typer.echo(f"RMSE {result.summary['rmse_final']:.4f}  {result.folder}")
    elif result.folder is not None:
        try:
            typer.echo(f"Report: {_write_report(result.folder)}")
        except MissingExtraError as error:
            typer.echo(f"Results: {result.folder}/summary.json ({error})")


def _print_json(content: Any) -> None:
    typer.echo(json.dumps(content, indent=2, allow_nan=False))


def main() -> NoReturn:
    """Entry point: errors of ours become one line and an exit code, never a traceback."""
    for stream in (sys.stdout, sys.stderr):  # a "?" where the terminal has no such letter
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")
    try:
        code = app(standalone_mode=False)
        if code == 130:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except InterruptedRunError as error:
        typer.echo(str(error), err=True)
        code = error.exit_code
    except BGTPlannerError as error:
        typer.echo(f"error: {error}", err=True)
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        typer.echo("interrupted", err=True)
        code = 1
    except BrokenPipeError:  # the reader went away, as `| head` does
        _drop_output()
        code = 1
    except OSError as error:  # files have errors of their own: mostly this was the output
        _drop_output()
        typer.echo(f"error: {error}", err=True)
        code = 1
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        typer.echo("error: out of memory; try fewer clients, items or dimensions", err=True)
        code = 1
    sys.exit(code if isinstance(code, int) else 0)


def _drop_output() -> None:
    """Nothing more to standard output: Python would try again, and complain, when it exits."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
