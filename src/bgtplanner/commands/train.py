"""Commands that train a model: `run` starts a run, `resume` continues one."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bgtplanner.commands.options import (
    Json,
    Preset,
    Quiet,
    answer,
    need_path,
    need_simulator,
    print_json,
    say,
    settings_options,
)
from bgtplanner.errors import ConfigError, MissingExtraError
from bgtplanner.report.terminal import Screen
from bgtplanner.runs.settings import FLAGS

if TYPE_CHECKING:
    from bgtplanner.report.terminal import RunProgress
    from bgtplanner.runs.result import Result

Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", help="Print a line for every round, and all details at the end."
    ),
]


@settings_options(*FLAGS)
def run(
    settings: dict[str, Any],
    preset: Preset = None,
    config: Annotated[
        str | None, typer.Option(metavar="PATH", help="TOML file; flags override it.")
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Run folder.", show_default="runs/DATASET-TIME"),
    ] = None,
    overwrite: Annotated[bool, typer.Option(help="Replace the run in that folder.")] = False,
    show_config: Annotated[bool, typer.Option(help="Print the settings and exit.")] = False,
    as_json: Json = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Train a federated recommender; without arguments, on the embedded demo data.

    Example: `bgtplanner run --dataset ml-100k --rounds 100 --out runs/first`

    Ctrl-C stops it after the current round; `bgtplanner resume FOLDER` continues it.
    """
    need_simulator()
    from bgtplanner.runs.config import load_config, to_toml
    from bgtplanner.runs.run import execute

    need_path("--config", config)
    need_path("--out", out)
    chosen = load_config(preset=preset, file=config, settings=settings)
    if show_config:
        lines = to_toml(chosen).removesuffix("\n").split("\n")
        answer(as_json, chosen.model_dump(mode="json"), *lines)
        return
    view = _view(as_json, verbose, quiet)
    _need_device()
    folder = new_folder(chosen.data.dataset) if out is None else Path(out)
    with contextlib.closing(view):
        result = execute(chosen, out=folder, overwrite=overwrite, observer=view)
    _show_result(result, as_json, view)


def resume(
    folder: Annotated[str, typer.Argument(help="The folder of a run that was interrupted.")],
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Run the code that the folder names.")
    ] = False,
    as_json: Json = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Continue an interrupted run; it ends exactly as if it had not been interrupted.

    Example: `bgtplanner resume runs/first`
    """
    need_simulator()
    from bgtplanner.runs.run import resume as go_on

    need_path("FOLDER", folder, "a run folder")
    view = _view(as_json, verbose, quiet)
    _need_device()
    with contextlib.closing(view):
        result = go_on(folder, trust_code=trust_code, observer=view)
    _show_result(result, as_json, view)


def _need_device() -> None:
    """Start JAX here, where a failure can be reported in one line."""
    import jax

    try:
        jax.devices()
    except Exception as error:  # JAX raises assertion errors, too
        chosen = os.environ.get("JAX_PLATFORMS", "")
        raise ConfigError(
            f"JAX_PLATFORMS = {chosen!r}: JAX finds no such device; unset it, or install a JAX "
            "that supports it"
        ) from error


def new_folder(dataset: str) -> Path:
    """Return a folder that nothing else is in, named by the data and the time."""
    # The end of a path says most, and a file name may have at most 255 bytes.
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
        say(str(result.folder))
    elif result.folder is not None:
        from bgtplanner.report.page import write_report

        try:
            page = write_report(result.folder)
            say(f"Report: {page}")
        except MissingExtraError as error:
            say(f"Results: {result.folder}/summary.json ({error})")
        user, data = result.ratings.user_labels.min(), result.config.data.dataset
        words = (_called(), "recommend", str(result.folder), "--user", str(user))
        say(f"Next: {shlex.join(words)}")
        whole = (_called(), "train", "--ratings", data, "--out", "my.model")
        say(f"For a model of all ratings: {shlex.join(whole)}")


def _called() -> str:
    """What to type for this program: its path if the shell would not find it by its name."""
    script = Path(sys.argv[0])
    if script.name != "bgtplanner" or shutil.which("bgtplanner") or not script.exists():
        return "bgtplanner"
    return str(script)
