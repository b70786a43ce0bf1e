"""Commands that use a trained model: `recommend`, `predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from bgtplanner.commands.options import Json, answer, local_client, need_simulator
from bgtplanner.errors import ConfigError, DataError

__all__ = ["predict", "recommend"]

Folder = Annotated[str, typer.Argument(help="The folder of a finished run.")]
Home = Annotated[
    str, typer.Argument(help="The folder of a finished run, or of a client on this machine.")
]
User = Annotated[str, typer.Option("--client", "--user", help="Label of a user in the data.")]


def recommend(
    folder: Home,
    user: User,
    top: Annotated[int, typer.Option(help="How many items to list.")] = 10,
    export: Annotated[
        str | None, typer.Option(metavar="PATH", help="Also write the shared parameters (.npz).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Recommend items: those that a user has not rated and is predicted to like best.

    This is computed where the user's ratings are: from the data of the simulation or, in a folder
    with a client.toml, on this machine, with the last model received. Nothing is sent.

    Example: `bgtplanner recommend runs/first --client 7 --top 10`
    """
    ConfigError.unless(top >= 1, "--top", top, "at least 1")
    if (Path(folder) / "client.toml").is_file():
        if export is not None:
            raise ConfigError(f"--export {export}: only for the folder of a run")
        best = local_client(Path(folder) / "client.toml").recommend(user, top)
        _show(user, best, None, as_json)
        return
    result = _load(folder)
    best = result.recommend(_label(user, result.ratings.user_labels, "--client"), top)
    written = None if export is None else str(result.export(Path(export)))
    _show(user, best, written, as_json)


def predict(
    folder: Folder,
    user: User,
    item: Annotated[str, typer.Option(help="Label of an item in the data.")],
    as_json: Json = False,
) -> None:
    """Predict the rating that a user would give an item, on the scale of the data.

    Example: `bgtplanner predict runs/first --client 7 --item 42`
    """
    result = _load(folder)
    who = _label(user, result.ratings.user_labels, "--client")
    what = _label(item, result.ratings.item_labels, "--item")
    value = float(result.predict(who, what)[0])
    answer(as_json, {"client": user, "item": item, "predicted": value}, f"{value:.3f}")


def _show(user: str, best: list[Any], written: str | None, as_json: bool) -> None:
    items = [{"item": item, "predicted": value} for item, value in best]
    lines = [f"{place:3d}  {of!s:<20} {value:.2f}" for place, (of, value) in enumerate(best, 1)]
    lines += [] if written is None else [f"Shared parameters: {written}"]
    answer(as_json, {"client": user, "items": items, "export": written}, *lines)


def _load(folder: str) -> Any:
    need_simulator()
    from bgtplanner.runs.run import load

    ConfigError.unless(folder != "", "FOLDER", folder, "a run folder")
    return load(folder)


def _label(text: str, labels: Any, flag: str) -> Any:
    """The label in the type of the data: a number if the labels are numbers."""
    try:
        label = labels.dtype.type(text)
    except (TypeError, ValueError) as error:
        raise DataError(f"{flag} {text}: expected a whole number, as in the data") from error
    if not (labels == label).any():
        raise DataError(f"{flag} {text}: not in the ratings of this run")
    return label
