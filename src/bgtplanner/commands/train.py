"""Commands that train: `train`; `run` and `resume`, which evaluate as well; `compare`, `sweep`."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bgtplanner.commands.options import Answer, command, need
from bgtplanner.errors import ConfigError, MissingExtraError
from bgtplanner.report.terminal import RunProgress, Screen, StudyProgress, TrainingProgress
from bgtplanner.runs.settings import FLAGS, TRAINING

if TYPE_CHECKING:
    from bgtplanner.published.model import Model
    from bgtplanner.runs.result import Result


@command(
    *("data.items", "data.scale", "model.name", "privacy.epsilon", "privacy.delta"),
    "federation.rounds",
    usual=TRAINING,
)
def train(
    *, settings: dict[str, Any], ratings: str, out: str, clicks: bool = False,
    assume_public: str | None = None, ledger: str = "auto", ledger_epsilon: float | None = None,
    continue_from: str | None = None, renamed: str | None = None, overwrite: bool = False,
    sign: str | None = None, seed: int | None = None, as_json: bool, quiet: bool = False,
) -> Answer:  # fmt: skip
    """Train on all ratings, nothing held out, and write a model that may be published.

    Whoever has the file and a history, anybody's, gets a list: `bgtplanner recommend`. Ctrl-C
    stops after the current round; the same command goes on from there.

    Example: `bgtplanner train --ratings ratings.csv --items items.csv --scale 1:5 --out my.model`

    Options:
        ratings (PATH): Table of all ratings, or the name of a data set.
        out (PATH): The model file to write.
        clicks: There are no ratings, only clicks.
        assume_public: What may be read off the ratings: catalogue, scale, or both.
        ledger (PATH): File that counts what is spent; auto: beside the ratings; or none.
        ledger_epsilon: Epsilon of a new ledger, for all trainings to come; by default --epsilon.
        continue_from (MODEL): Model to go on from; --epsilon counts it and this one together.
        renamed (PATH): Table of the model's items with other labels now: old,new.
        overwrite: Replace the model file; what was spent stays spent.
        sign (PATH): File with an Ed25519 private key: `openssl rand -hex 32` makes one.
        seed: Repeatable noise: the model is then not private.
    """
    need("sim")
    from bgtplanner.runs.train import train as trained
    from bgtplanner.signing import key_in, public_key

    key = None if sign is None else key_in(sign, "sign")
    signed = [] if key is None else [f"Signed; readers give: --verify {public_key(key)}"]

    assumed: Any = [of.strip() for of in (assume_public or "").split(",") if of.strip()]
    view = TrainingProgress(Screen(stderr=as_json), quiet or as_json)
    with contextlib.closing(view):
        made = trained(
            ratings, clicks=clicks, assume_public=assumed, out=out, overwrite=overwrite, seed=seed,
            ledger=None if ledger == "none" else ledger, settings=settings, progress=view, key=key,
            ledger_epsilon=ledger_epsilon, continue_from=continue_from, renamed=renamed,
        )  # fmt: skip
    lines = [] if quiet else worth(made)
    if lines and continue_from and "people" in made.training:
        said = "Joined since: {joined:,} people; left: {left:,}; came back: {returned:,}."
        lines.append(said.format(**made.training["people"]))
    return written(made, out, *signed, *lines)


def worth(model: Model) -> list[str]:
    """Return what lists of a model are worth and what it promises, in lines of a terminal."""
    said = [str(model.verdict()), *model.guarantee.get("sentences", [])]
    return [line for text in said for line in textwrap.wrap(text, 79)]


def written(model: Model, out: str, *lines: str) -> Answer:
    """Return what is said of a model that was written to a file."""
    content = {"verdict": model.verdict()._asdict(), "guarantee": model.guarantee}
    return Answer({"model": out} | content, [f"Model: {out}", *lines])


@command(*FLAGS)
def run(
    *, settings: dict[str, Any], preset: str | None = None, config: str | None = None,
    out: str | None = None, overwrite: bool = False, show_config: bool = False,
    as_json: bool, quiet: bool = False,
) -> Answer:  # fmt: skip
    """Train a federated recommender; without arguments, on the embedded demo data.

    Example: `bgtplanner run --dataset ml-100k --rounds 100 --out runs/first`

    Ctrl-C stops it after the current round; `bgtplanner resume FOLDER` continues it.

    Options:
        config (PATH): TOML file; flags override it.
        out (PATH): Run folder; by default runs/DATASET-TIME.
        overwrite: Replace the run in that folder.
        show_config: Print the settings and exit.
    """
    need("sim")
    from bgtplanner.runs.config import load_config, to_toml
    from bgtplanner.runs.run import execute

    chosen = load_config(preset=preset, file=config, settings=settings)
    if show_config:
        lines = to_toml(chosen).removesuffix("\n").split("\n")
        return Answer(chosen.model_dump(mode="json"), lines)
    folder = new_folder(chosen.data.dataset) if out is None else Path(out)
    with contextlib.closing(_view(as_json, quiet)) as view:
        result = execute(chosen, out=folder, overwrite=overwrite, observer=view)
    return _ended(result, quiet or as_json)


@command()
def resume(
    folder: str, *, trust_code: bool = False, as_json: bool, quiet: bool = False
) -> Answer:  # fmt: skip
    """Continue an interrupted run; it ends exactly as if it had not been interrupted.

    Example: `bgtplanner resume runs/first`

    Options:
        folder (FOLDER): The folder of a run that was interrupted.
        trust_code: Run the code that the folder names.
    """
    need("sim")
    from bgtplanner.runs.run import resume as go_on

    with contextlib.closing(_view(as_json, quiet)) as view:
        result = go_on(folder, trust_code=trust_code, observer=view)
    return _ended(result, quiet or as_json)


def _view(as_json: bool, quiet: bool) -> RunProgress:
    """Start JAX, where a failure can be reported in one line; return who shows the run."""
    import jax

    try:
        jax.devices()
    except Exception as error:  # JAX raises assertion errors, too
        chosen = os.environ.get("JAX_PLATFORMS", "")
        raise ConfigError(
            f"JAX_PLATFORMS = {chosen!r}: JAX finds no such device; unset it, or install a JAX "
            "that supports it"
        ) from error
    return RunProgress(Screen(stderr=as_json), quiet or as_json)


def new_folder(dataset: str) -> Path:
    """Return a folder that nothing else is in, named by the data and the time."""
    # The end of a path says most, and a file name may have at most 255 bytes.
    plain = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in dataset)
    name = f"{plain[-40:]}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    return Path("runs") / name.lstrip("-.")


def _ended(result: Result, quiet: bool) -> Answer:
    """Write the report of a finished run, and return where it is and what to type next."""
    from bgtplanner.report.page import write_report

    if quiet or result.folder is None:
        return Answer(dict(result.summary), [str(result.folder)])
    try:
        lines = [f"Report: {write_report(result.folder)}"]
    except MissingExtraError as error:
        lines = [f"Results: {result.folder}/summary.json ({error})"]
    user, data = min(result.ratings.user_labels), result.config.data
    words = ("bgtplanner", "recommend", str(result.folder), "--user", str(user))
    public = {"--items": data.items, "--scale": data.scale}
    given = (f"{flag}={of}" for flag, of in public.items() if of not in (None, "auto", "max"))
    whole = ("bgtplanner", "train", "--ratings", data.dataset, *given, "--out", "my.model")
    lines.append(f"Next: {shlex.join(words)}")
    lines.append(f"For a model of all ratings: {shlex.join(whole)}")
    return Answer(dict(result.summary), lines)


Several = list[str] | None


@command(
    *("privacy.epsilon", "privacy.trust", "privacy.neighbours", "federation.rounds"),
    *("planning.objective", "planning.traffic", "data.data_dir", "data.items"),
)
def compare(
    *, dataset: Several = None, mechanism: Several = None, policy: Several = None,
    seeds: str | None = None, vary: Several = None, baseline: str | None = None,
    preset: str | None = None, out: str | None = None, jobs: int = 1, settings: dict[str, Any],
    as_json: bool, quiet: bool = False,
) -> Answer:  # fmt: skip
    """Compare policies, and vary settings: every combination, with every seed, in one table.

    Example: `bgtplanner compare --policy bgt,uniform,unlimited --seeds 0-4 --out runs/first`

    Example: `bgtplanner sweep --vary privacy.epsilon=5,10,20 --policy bgt,uniform --out runs/eps`

    `--dataset`, `--mechanism`, `--policy` and `--vary` may be repeated; but for the last, they may
    be lists with commas. Ctrl-C stops after the current rounds; the command with `--out DIR` alone
    continues. Finished cells are never run again, so you can add to a folder later.

    Options:
        seeds: Seeds, such as 0-4 or 0,1,2.
        vary (SECTION.KEY=V1,V2,...): A config key and its values.
        baseline: Policy that the others are compared with.
        out (DIR): Folder; by default runs/compare-TIME, or runs/sweep-TIME.
        jobs: How many cells to run at a time.
    """
    need("sim")
    from bgtplanner.runs.statistics import summed_up, tables_of, write_tables
    from bgtplanner.runs.study import Study, parse_grid, run_study

    asked = {"baseline": baseline, "preset": preset, **_axes(dataset, mechanism, policy, seeds)}
    named = {name: value for name, value in asked.items() if value is not None}
    named |= {"variations": (parse_grid(vary),)} if vary else {}
    folder = new_folder("sweep" if vary else "compare") if out is None else Path(out)
    before = Study.read(folder) or (Study(policies=("bgt",)) if vary else Study())
    study = replace(before, **named, settings={**before.settings, **settings})
    view = StudyProgress(Screen(stderr=as_json), quiet or as_json)
    with contextlib.closing(view):
        found = summed_up(study, run_study(study, folder, jobs=jobs, progress=view))
    write_tables(found, folder)
    lines = [part for table in tables_of(found, planned=True) for part in (table, "")]
    lines += [f"failed: {of.cell.name}: {of.error or ''}" for of in found.failed]
    lines += [found.headline] * bool(found.headline)
    lines.append(f"Tables: {shlex.quote(str(folder))}/{study.kind}.json")
    return Answer(found.as_json(), lines, code=1 if found.failed else 0)


@functools.wraps(compare)
def sweep(**given: Any) -> None:
    """Run `compare` with something that is varied, or go on with a folder of such runs."""
    if not given["vary"] and not given["out"]:
        raise ConfigError("--vary: expected SECTION.KEY=V1,V2,...")
    compare(**given)


sweep.__name__ = "sweep"  # by which it is called


def _axes(datasets: Several, mechanisms: Several, policies: Several, seeds: str | None) -> Any:
    """Return what a study is a product of, as far as it was given; a path may contain commas."""
    from bgtplanner.runs.study import parse_seeds

    found: dict[str, Any] = {"seeds": None if seeds is None else parse_seeds(seeds)}
    for axis, flag, given in (
        ("datasets", "--dataset", datasets),
        ("mechanisms", "--mechanism", mechanisms),
        ("policies", "--policy", policies),
    ):
        names: list[str] = []
        for text in given or []:
            whole = text.startswith(("csv:", "parquet:"))
            names += [text] if whole else map(str.strip, text.split(","))
        ConfigError.unless(all(names), flag, ",".join(given or []), "names")
        found[axis] = tuple(dict.fromkeys(names)) or None
    return found
