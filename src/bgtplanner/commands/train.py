"""Commands that train and go on with training: `run`, `resume`."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bgtplanner.commands.options import (
    DataDir,
    Json,
    Quiet,
    answer,
    need_simulator,
    print_json,
    say,
)
from bgtplanner.commands.report import report_writer
from bgtplanner.errors import ConfigError, MissingExtraError
from bgtplanner.report.screen import Screen, words

if TYPE_CHECKING:
    from bgtplanner.report.terminal import RunProgress
    from bgtplanner.runs.observers import Observer
    from bgtplanner.runs.summary import Result

__all__ = ["resume", "run"]

Track = Annotated[
    list[str] | None, typer.Option(help="Also tell: tensorboard | mlflow. Repeatable.")
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="A line for every round.")]


def run(
    dataset: Annotated[
        str | None, typer.Option(help="From 'bgtplanner data list', csv:PATH or parquet:PATH.")
    ] = None,
    data_dir: DataDir = None,
    preset: Annotated[str | None, typer.Option(help="recommended | paper")] = None,
    model: Annotated[
        str | None, typer.Option(help="biases | factorization | fedgnn | package.module:Class")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            help="patient | bgt | uniform | adpml | adap | unlimited | hong | two-phase | "
            "random | hindsight, or package.module:Class"
        ),
    ] = None,
    mechanism: Annotated[
        str | None, typer.Option(help="gaussian | laplace | privunit | none")
    ] = None,
    trust: Annotated[str | None, typer.Option(help="secagg | local")] = None,
    epsilon: Annotated[float | None, typer.Option(help="What a client may spend in all.")] = None,
    delta: Annotated[float | None, typer.Option(help="Of the whole run.")] = None,
    budgets: Annotated[
        str | None, typer.Option(help="EPSILON:SHARE,... or a file with an epsilon a client.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of training, at most.")] = None,
    min_rounds: Annotated[
        int | None, typer.Option(help="Fewest rounds the budget may be spent in.")
    ] = None,
    levels: Annotated[int | None, typer.Option(help="Levels that bgt chooses from.")] = None,
    target: Annotated[
        float | None, typer.Option(help="RMSE (0 to 1) at which the run ends, if it gets there.")
    ] = None,
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
    track: Track = None,
    as_json: Json = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Train a federated recommender; without arguments, on the embedded demo data.

    Example: `bgtplanner run --dataset ml-100k --rounds 100 --out runs/first`

    Ctrl-C ends it after the present round; `bgtplanner resume FOLDER` goes on.
    """
    given = locals()
    need_simulator()
    from bgtplanner.runs.config import FLAGS, load_config, parse_assignment, to_toml
    from bgtplanner.runs.run import execute

    flags = {key: given[flag[2:].replace("-", "_")] for key, flag in FLAGS.items()}
    settings = dict(parse_assignment(text) for text in assign or [])
    settings |= {key: value for key, value in flags.items() if value is not None}
    for flag, path in (("--config", config), ("--out", out)):  # '' would be the present folder
        ConfigError.unless(path != "", flag, path, "a path")
    chosen = load_config(preset=preset, file=config, settings=settings)
    if show_config:
        lines = to_toml(chosen).removesuffix("\n").split("\n")
        answer(as_json, chosen.model_dump(mode="json"), *lines)
        return
    view = _view(as_json, verbose, quiet)
    _need_device()
    folder = new_folder(chosen.data.dataset) if out is None else Path(out)
    with _watching(view, track, folder) as observer:
        result = execute(chosen, out=folder, overwrite=overwrite, observer=observer)
    _show_result(result, as_json, view)


def resume(
    folder: Annotated[str, typer.Argument(help="The folder of a run that was interrupted.")],
    track: Track = None,
    as_json: Json = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Go on with an interrupted run; it ends exactly as if it had not been interrupted.

    Example: `bgtplanner resume runs/first`
    """
    need_simulator()
    from bgtplanner.runs.run import resume as go_on

    ConfigError.unless(folder != "", "FOLDER", folder, "a run folder")
    view = _view(as_json, verbose, quiet)
    _need_device()
    with _watching(view, track, Path(folder)) as observer:
        result = go_on(folder, observer=observer)
    _show_result(result, as_json, view)


@contextlib.contextmanager
def _watching(view: RunProgress, track: list[str] | None, folder: Path) -> Iterator[Observer]:
    """The terminal and whoever else is to be told, until it is over."""
    from bgtplanner.integrations.trackers import tracker_named
    from bgtplanner.runs.observers import Several

    trackers = [tracker_named(name, folder) for name in dict.fromkeys(track or [])]
    try:
        yield Several(view, *trackers)
    finally:
        view.close()
        for tracker in trackers:
            tracker.close()
    for tracker in trackers:
        if tracker.trouble is not None:
            say(f"warning: not tracked to the end: {tracker.trouble}", err=True)
        elif view.verbosity >= 0:
            view.console.print(words(f"Tracked: {tracker.where}"), highlight=False)


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


def new_folder(dataset: str) -> Path:
    # The end of a path says most, and a name has at most 255 bytes.
    plain = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in dataset)
    name = f"{plain[-40:]}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    return Path("runs") / name.lstrip("-.")


def _view(as_json: bool, verbose: bool, quiet: bool) -> RunProgress:
    from bgtplanner.report.terminal import RunProgress

    if verbose and quiet:
        raise ConfigError("--verbose and --quiet exclude each other; give one of them")
    level = -1 if quiet or (as_json and not verbose) else 1 if verbose else 0
    return RunProgress(Screen(stderr=as_json), level)


def _show_result(result: Result, as_json: bool, view: RunProgress) -> None:
    if as_json:
        print_json(dict(result.summary))
    elif view.verbosity < 0:
        say(f"RMSE {result.summary['rmse_final']:.4f}  {result.folder}")
    elif result.folder is not None:
        try:
            say(f"Report: {report_writer()(result.folder)}")
        except MissingExtraError as error:
            say(f"Results: {result.folder}/summary.json ({error})")
