"""Commands that use a trained model: `recommend`, `predict`."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from bgtplanner.commands.model import recommend_from
from bgtplanner.commands.options import (
    DataDir,
    Json,
    answer,
    local_client,
    need_path,
    need_simulator,
)
from bgtplanner.errors import ConfigError, DataError

if TYPE_CHECKING:
    from bgtplanner.models.ranking import Block, Recommender
    from bgtplanner.published.model import Recommended
    from bgtplanner.runs.result import Result

MovedRatings = Annotated[
    str | None,
    typer.Option("--ratings", help="A table of ratings; for a run: where its ratings are now."),
]

_WIDEST = 48  # characters of a title in a table


def recommend(
    folder: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A model file, or the folder of a run or of a client here."
        ),
    ],
    user: Annotated[
        list[str] | None,
        typer.Option("--client", "--user", help="Label of a user in the data. Repeatable."),
    ] = None,
    everybody: Annotated[bool, typer.Option("--all", help="Recommend to every user.")] = False,
    top: Annotated[int, typer.Option(help="How many items to list.")] = 10,
    out: Annotated[
        str | None, typer.Option(metavar="PATH", help="Write to a .json, .csv or .parquet file.")
    ] = None,
    ratings: MovedRatings = None,
    history: Annotated[
        str | None, typer.Option(metavar="PATH", help="One person's ratings: item, rating.")
    ] = None,
    items: Annotated[
        str | None, typer.Option(metavar="PATH", help="A newer table of items, for new ones.")
    ] = None,
    exclude: Annotated[
        str | None, typer.Option(help="Items not to list: with commas, or a file of them.")
    ] = None,
    only: Annotated[
        str | None, typer.Option(help="Items or features to list alone, such as 'genre: War'.")
    ] = None,
    data_dir: DataDir = None,
    export: Annotated[
        str | None, typer.Option(metavar="PATH", help="Also write the shared parameters (.npz).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Recommend items: those that a user has not rated and is expected to like best.

    From a model file it takes anybody's ratings: one person's (`--history`), those in a table
    (`--ratings`), or JSON lines on standard input. From the folder of a run it takes the run's
    data; in a folder with a client.toml, those on this machine. Nothing is sent.

    Example: `bgtplanner recommend films.model --history mine.csv`

    Example: `bgtplanner recommend films.model --ratings ratings.csv --all --out lists.csv`

    Example: `bgtplanner recommend runs/first --all --out lists.csv`
    """
    ConfigError.unless(top >= 1, "--top", top, "at least 1")
    known = out is None or Path(out).suffix in (".json", ".csv", ".parquet")
    ConfigError.unless(known, "--out", out, "a path that ends in .json, .csv or .parquet")
    if user and everybody:
        raise ConfigError("--user and --all exclude each other; give one of them")
    if Path(folder).is_file():
        recommend_from(
            folder, users=list(dict.fromkeys(user or [])), everybody=everybody, top=top, out=out,
            ratings=ratings, history=history, items=items, exclude=exclude, only=only,
            as_json=as_json,
        )  # fmt: skip
        return
    of_model = {"--history": history, "--items": items, "--exclude": exclude, "--only": only}
    for flag, value in of_model.items():
        ConfigError.unless(value is None, flag, value, "nothing: it is for model files")
    home, result = Path(folder) / "client.toml", None
    if home.is_file():
        own = (("--export", export), ("--ratings", ratings), ("--data-dir", data_dir))
        for flag, value in own:
            if value is not None:
                raise ConfigError(f"{flag} {value}: only for the folder of a run; leave it out")
        source = local_client(home).recommender()
        everybody |= not user and len(source.ratings.user_labels) == 1
    if not user and not everybody:
        raise ConfigError("whom to recommend to? Give '--client' LABEL, or --all")
    if not home.is_file():
        result = _load(folder, ratings, data_dir)
        source = result.recommender()
    labels = source.ratings.user_labels
    places = [_place(labels, "--client", text) for text in dict.fromkeys(user or [])]
    places = list(range(len(labels))) if everybody else places
    about: dict[str, Any] = {"export": None, "unfinished": None}
    if result is not None and export is not None:
        about["export"] = str(result.export(Path(export)))
    blocks, note = _lists(source, places, top, out)
    said = [] if note is None else [note]
    if out is None:
        lists = [pair for block in blocks for pair in zip(block.users, block.lists, strict=True)]
        for name, rows in lists:
            said += ([] if len(user or []) == 1 else [f"{name}:"]) + table_of(rows)
        content = _as_json(blocks, single=len(user or []) == 1) | {"note": note} | about
    else:
        said.append(f"Lists of {len(places):,} users: {out}")
        content = {"out": out, "users": len(places)} | about
    said += [] if about["export"] is None else [f"Shared parameters: {about['export']}"]
    answer(as_json, content, *said)


def predict(
    folder: Annotated[str, typer.Argument(help="The folder of a run.")],
    user: Annotated[str, typer.Option("--client", "--user", help="Label of a user in the data.")],
    item: Annotated[str, typer.Option(help="Label of an item in the data.")],
    ratings: MovedRatings = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Predict the rating that a user would give an item, on the scale of the data.

    Example: `bgtplanner predict runs/first --client 7 --item 42`
    """
    result = _load(folder, ratings, data_dir)
    of = result.ratings
    who, what = _place(of.user_labels, "--client", user), _place(of.item_labels, "--item", item)
    value = float(of.to_raw(result.simulation.predict([who], [what]))[0])
    titles = None if of.catalogue is None else of.catalogue.titles
    title = None if titles is None else str(titles[what])
    content = {"client": user, "item": item, "title": title, "predicted": value}
    answer(as_json, content, f"{value:.3f}" + (f"  {title}" if title else ""))


def _load(folder: str, ratings: str | None, data_dir: str | None) -> Result:
    need_simulator()
    from bgtplanner.runs.run import load

    need_path("FOLDER", folder, "a run folder")
    return load(folder, ratings=ratings, data_dir=data_dir)


def _place(labels: Any, flag: str, text: str) -> int:
    """Return the place of a label, in the type of the data: a number if the labels are numbers."""
    try:
        found = np.flatnonzero(labels == labels.dtype.type(text))
    except (OverflowError, TypeError, ValueError) as error:
        raise DataError(f"{flag} {text}: expected a whole number, as in the data") from error
    if not len(found):
        raise DataError(f"{flag} {text}: not in the ratings; give a label that is")
    return int(found[0])


def _lists(
    source: Recommender, places: Sequence[int], top: int, out: str | None
) -> tuple[list[Block], str | None]:
    """Return the lists of some users, or write them, and return what has to be said about them."""
    from bgtplanner.models.ranking import note_of
    from bgtplanner.runs.recommending import writing

    blocks: list[Block] = []
    kept = contextlib.nullcontext(blocks.append)
    bases = Counter[Any]()
    with kept if out is None else writing(Path(out), source.ratings) as keep:
        for block in source.blocks(places, top):
            keep(block)
            bases.update(block.bases)
        return blocks, note_of(bases, source.learned)  # if there is no list, there is no file


def _as_json(blocks: Sequence[Block], *, single: bool) -> dict[str, Any]:
    from bgtplanner.runs.recommending import users_as_json

    found = [user for block in blocks for user in users_as_json(block)]
    return found[0] if single else {"users": found}


def table_of(rows: Sequence[Recommended]) -> list[str]:
    """Return the lines of one list; columns that no row has are left out."""
    titled = any(row.title for row in rows)
    label = max([len(str(row.item)) for row in rows], default=0) if titled else 20
    wide = min(max([len(row.title or "") for row in rows], default=0), _WIDEST)
    lines = []
    for row in rows:
        title = row.title or ""
        title = title if len(title) <= _WIDEST else f"{title[: _WIDEST - 1]}…"
        predicted = "" if row.predicted is None else f" {row.predicted:.2f}"
        line = f"{row.place:3d}  {row.item!s:<{label}}" + (f" {title:<{wide}}" if titled else "")
        lines.append(f"{line}{predicted}  {row.reason or ''}".rstrip())
    return lines
