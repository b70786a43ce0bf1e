"""Commands about models that can be published: `train`, `model show` and `model diff`."""

from __future__ import annotations

import textwrap
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bgtplanner.commands.options import (
    Json,
    Quiet,
    answer,
    need_path,
    need_simulator,
    settings_options,
)
from bgtplanner.published.difference import differences
from bgtplanner.published.model import load_model
from bgtplanner.runs.settings import TRAINING

if TYPE_CHECKING:
    from bgtplanner.report.terminal import Screen

model_app = typer.Typer(
    no_args_is_help=True,
    help="Look at model files.\n\nExample: `bgtplanner model show films.model`",
)


@settings_options(
    *("data.items", "data.scale", "model.name", "privacy.epsilon", "privacy.delta"),
    "federation.rounds",
    usual=TRAINING,
)
def train(
    settings: dict[str, Any],
    ratings: Annotated[
        str, typer.Option(metavar="PATH", help="Table of all ratings, or the name of a data set.")
    ],
    out: Annotated[str, typer.Option(metavar="PATH", help="The model file to write.")],
    clicks: Annotated[bool, typer.Option(help="There are no ratings, only clicks.")] = False,
    assume_public: Annotated[
        str | None,
        typer.Option(help="What may be read off the ratings: catalogue, scale, or both."),
    ] = None,
    ledger: Annotated[
        str, typer.Option(help="File that counts what is spent; auto: by the ratings; or none.")
    ] = "auto",
    overwrite: Annotated[
        bool, typer.Option(help="Replace the model file; what was spent stays spent.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Repeatable noise: the model is then not private.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train on all ratings, nothing held out, and write a model that may be published.

    Whoever has the file and a history, anybody's, gets a list: `bgtplanner recommend`. Ctrl-C
    stops after the current round; the same command goes on from there.

    Example: `bgtplanner train --ratings ratings.csv --items items.csv --scale 1:5 --out my.model`
    """
    need_simulator()
    from bgtplanner.report.terminal import Screen
    from bgtplanner.runs.train import train as trained

    for flag, path in (("--ratings", ratings), ("--out", out), ("--ledger", ledger)):
        need_path(flag, path)
    assumed: Any = [of.strip() for of in (assume_public or "").split(",") if of.strip()]
    show = _Shown(Screen(stderr=as_json), quiet or as_json)
    try:
        made = trained(
            ratings, clicks=clicks, assume_public=assumed, out=out, overwrite=overwrite, seed=seed,
            ledger=None if ledger == "none" else ledger, settings=settings, progress=show,
        )  # fmt: skip
    finally:
        show.close()
    said = [] if quiet else _wrapped(str(made.verdict()), *made.guarantee["sentences"])
    content = {"model": out, "verdict": made.verdict()._asdict(), "guarantee": made.guarantee}
    answer(as_json, content, f"Model: {out}", *said)


class _Shown:
    """Shows how a training is going: a line that is replaced, or one now and then."""

    def __init__(self, screen: Screen, silent: bool) -> None:
        self._screen, self._silent = screen, silent
        self._begun, self._last = time.monotonic(), -2.0

    def __call__(self, done: int, total: int, spent: float) -> None:
        """Say how far it is, at most every two seconds."""
        now = time.monotonic() - self._begun
        if self._silent or now < self._last + 2:
            return
        self._last = now
        left = now / done * (total - done)
        text = f"round {done} of {total}, {100 * spent:.0f} % spent, about {left:.0f} s left"
        self._screen.print(text, end="\r" if self._screen.is_terminal else "\n")

    def close(self) -> None:
        """End the line."""
        if self._screen.is_terminal and not self._silent and self._last >= 0:
            self._screen.print(" " * 78, end="\r")


def _wrapped(*texts: str) -> list[str]:
    """Return texts in lines of at most 79 characters."""
    return [line for text in texts for line in textwrap.wrap(text, 79)]


@model_app.command()
def show(
    path: Annotated[str, typer.Argument(help="A model file.")], as_json: Json = False
) -> None:
    """Show what a model file holds, what it promises, and what its lists are worth.

    Example: `bgtplanner model show films.model`
    """
    model = load_model(path)
    verdict, promise = model.verdict(), model.guarantee.get("sentences", [])
    content = {
        "model": model.ranker, "items": len(model.items), "features": len(model.names),
        "scale": None if model.implicit else [model.low, model.high],
        "verdict": verdict._asdict(), "guarantee": model.guarantee, "training": model.training,
    }  # fmt: skip
    what = "clicks" if model.implicit else f"ratings from {model.low:g} to {model.high:g}"
    said = f"{path}: {model.ranker}, {len(model.items):,} items, {what}"
    answer(as_json, content, said, *_wrapped(str(verdict), *promise))


@model_app.command()
def diff(
    old: Annotated[str, typer.Argument(help="A model file.")],
    new: Annotated[str, typer.Argument(help="Another one.")],
    as_json: Json = False,
) -> None:
    """Say what changed from one model to another, in words and numbers.

    Example: `bgtplanner model diff spring.model summer.model`
    """
    found = differences(load_model(old), load_model(new))
    answer(as_json, found, *found["sentences"])
