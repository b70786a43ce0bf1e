"""Commands that use a trained model: `recommend`, `predict`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bgtplanner.commands.options import (
    DataDir,
    Json,
    Quiet,
    answer,
    local_client,
    need_simulator,
    print_json,
    say,
)
from bgtplanner.errors import ConfigError, DataError
from bgtplanner.report.screen import Screen
from bgtplanner.text import MOST_BYTES_OF_A_CATALOGUE, read_bytes

if TYPE_CHECKING:
    from bgtplanner.models.ranking import Block, Recommended, Recommender
    from bgtplanner.runs.result import Result

Folder = Annotated[str, typer.Argument(help="The folder of a run.")]
Home = Annotated[str, typer.Argument(help="The folder of a run, or of a client on this machine.")]
MovedRatings = Annotated[
    str | None,
    typer.Option("--ratings", help="Where the run's ratings are now, such as csv:PATH."),
]

_SUFFIXES = {".json": "json", ".csv": "csv", ".parquet": "parquet", ".pq": "parquet"}
_WIDEST = 48  # characters of a title in a table


def recommend(
    folder: Home,
    user: Annotated[
        list[str] | None,
        typer.Option("--client", "--user", help="Label of a user in the data. Repeatable."),
    ] = None,
    users: Annotated[
        str | None, typer.Option(metavar="PATH", help="File with one label of a user per line.")
    ] = None,
    everybody: Annotated[bool, typer.Option("--all", help="Recommend to every user.")] = False,
    top: Annotated[int, typer.Option(help="How many items to list.")] = 10,
    form: Annotated[
        str | None,
        typer.Option("--format", help="table | json | csv | parquet; by default as --out ends."),
    ] = None,
    out: Annotated[
        str | None, typer.Option(metavar="PATH", help="File to write the lists to.")
    ] = None,
    ratings: MovedRatings = None,
    data_dir: DataDir = None,
    export: Annotated[
        str | None, typer.Option(metavar="PATH", help="Also write the shared parameters (.npz).")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Recommend items: those that a user has not rated and is expected to like best.

    This is computed where the user's ratings are: from the data of the simulation or, in a folder
    with a client.toml, on this machine, with the last model received. Nothing is sent.

    Example: `bgtplanner recommend runs/first --user 7 --top 10`

    Example: `bgtplanner recommend runs/first --all --out lists.csv`
    """
    ConfigError.unless(top >= 1, "--top", top, "at least 1")
    form = _format(form, out, as_json)
    given = [
        flag for flag, on in (("--user", user), ("--users", users), ("--all", everybody)) if on
    ]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} exclude each other; give one of them")
    at_home = (Path(folder) / "client.toml").is_file()
    if not given and not at_home:
        raise ConfigError("whom to recommend to? Give '--client' LABEL, --users PATH or --all")
    result = None
    if at_home:
        only = (("--export", export), ("--ratings", ratings), ("--data-dir", data_dir))
        for flag, value in only:
            if value is not None:
                raise ConfigError(f"{flag} {value}: only for the folder of a run; leave it out")
        client = local_client(Path(folder) / "client.toml")
        source, where = client.recommender(), f"the users of {client.file.ratings.name}"
    else:
        result = _load(folder, ratings, data_dir)
        source, where = result.recommender(), "the ratings of this run"
    labels = source.ratings.user_labels
    if everybody or (not given and len(labels) == 1):  # a client with one user
        places = list(range(len(labels)))
    else:
        named = [(f"--client {label}", label) for label in user or []]
        named = named if users is None else _lines(users)
        if not named:
            who = f"'--client' LABEL, one of {where}, or --all"
            raise ConfigError(f"whom to recommend to? Give {who}")
        known = {label: place for place, label in enumerate(labels.tolist())}
        places = list(dict.fromkeys(_place(labels, known, *one, where) for one in named))
    about: dict[str, Any] = {"export": None, "unfinished": None}
    if result is not None:
        about["export"] = None if export is None else str(result.export(Path(export)))
    if out is not None:
        _write(source, places, top, form, Path(out), quiet or as_json)
        content = {"out": out, "users": len(places)} | about
        answer(as_json, content, f"Lists of {len(places):,} users: {out}")
        return
    blocks, note = _lists(source, places, top)
    _print(blocks, note, form, about, single=len(user or []) == 1)


def predict(
    folder: Folder,
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
    of, where = result.ratings, "the ratings of this run"
    who, what = (
        _place(
            labels, {label: place for place, label in enumerate(labels.tolist())}, *named, where
        )
        for labels, named in (
            (of.user_labels, (f"--client {user}", user)),
            (of.item_labels, (f"--item {item}", item)),
        )
    )
    value = float(of.to_raw(result.simulation.predict([who], [what]))[0])
    titles = None if of.catalogue is None else of.catalogue.titles
    title = None if titles is None else str(titles[what])
    content = {"client": user, "item": item, "title": title, "predicted": value}
    answer(as_json, content, f"{value:.3f}" + (f"  {title}" if title else ""))


def _format(form: str | None, out: str | None, as_json: bool) -> str:
    """The format of the lists: as asked for, or as the file is called."""
    known = ("table", "json", "csv", "parquet")
    ConfigError.unless(
        form is None or form in known, "--format", form, f"one of {', '.join(known)}"
    )
    if out is None:
        ConfigError.unless(form != "parquet", "--format", form, "--out PATH, which it needs")
        if as_json and form not in (None, "json"):
            raise ConfigError(f"--format {form}: with --json, choose a file for it with --out")
        return "json" if as_json else form or "table"
    ConfigError.unless(out != "", "--out", out, "a path")
    found = form or _SUFFIXES.get(Path(out).suffix.lower(), "table")
    if found == "table":
        raise ConfigError(f"--out {out}: in which format? Give --format json, csv or parquet")
    return found


def _load(folder: str, ratings: str | None, data_dir: str | None) -> Result:
    need_simulator()
    from bgtplanner.runs.run import load

    ConfigError.unless(folder != "", "FOLDER", folder, "a run folder")
    return load(folder, ratings=ratings, data_dir=data_dir)


def _place(labels: Any, known: dict[Any, int], what: str, text: str, where: str) -> int:
    """Return the place of a label, in the type of the data: a number if the labels are numbers."""
    try:
        label = labels.dtype.type(text).item()
    except (OverflowError, TypeError, ValueError) as error:
        raise DataError(f"{what}: expected a whole number, as in the data") from error
    if label not in known:
        raise DataError(f"{what}: not in {where}; give a label that is")
    return known[label]


def _lines(path: str) -> list[tuple[str, str]]:
    try:
        text = read_bytes(Path(path), MOST_BYTES_OF_A_CATALOGUE, plain=False).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise ConfigError(f"--users {path}: cannot be read: {error}; give a text file") from error
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    found = [(f"--users {path}, line {at}", line) for at, line in enumerate(lines, 1) if line]
    ConfigError.unless(bool(found), "--users", path, "a file with one label per line")
    return found


def _lists(source: Recommender, places: list[int], top: int) -> tuple[list[Block], str | None]:
    """Return the lists of some users, and what has to be said about them."""
    from bgtplanner.models.ranking import note_of

    blocks = list(source.blocks(places, top))
    bases = Counter(basis for block in blocks for basis in block.bases)
    return blocks, note_of(bases, source.learned)


def _print(
    blocks: list[Block],
    note: str | None,
    form: str,
    about: dict[str, Any],
    *,
    single: bool,
) -> None:
    """Print the lists; `single` if one user was asked for by name."""
    from bgtplanner.runs.recommending import rows_as_csv, users_as_json

    if form == "json":
        found = [user for block in blocks for user in users_as_json(block)]
        print_json((found[0] if single else {"users": found}) | {"note": note} | about)
        return
    said = [] if note is None else [note]
    if form == "csv":
        if said:
            say(*said, err=True)
        for at, block in enumerate(blocks):
            text = rows_as_csv(block, header=at == 0).removesuffix("\n")
            say(*text.split("\n"))
        return
    lines = list(said)
    for block in blocks:
        for user, rows in zip(block.users, block.lists, strict=True):
            lines += ([] if single else [f"{user}:"]) + _table(rows)
    lines += [] if about["export"] is None else [f"Shared parameters: {about['export']}"]
    if lines:
        say(*lines)


def _table(rows: Sequence[Recommended]) -> list[str]:
    """The lines of one list; columns that no row has are left out."""
    titled = any(row.title for row in rows)
    label = max([len(str(row.item)) for row in rows], default=0) if titled else 20
    wide = min(max([len(row.title or "") for row in rows], default=0), _WIDEST)
    lines = []
    for row in rows:
        title = f" {_shortened(row.title or ''):<{wide}}" if titled else ""
        predicted = "" if row.predicted is None else f" {row.predicted:.2f}"
        reason = "" if row.reason is None else f"  {row.reason}"
        lines.append(f"{row.place:3d}  {row.item!s:<{label}}{title}{predicted}{reason}".rstrip())
    return lines


def _shortened(title: str) -> str:
    return title if len(title) <= _WIDEST else f"{title[: _WIDEST - 1]}…"


def _write(
    source: Recommender, places: list[int], top: int, form: Any, path: Path, quiet: bool
) -> None:
    """Write the lists block by block, and say how far it is and how long it will take."""
    from rich.progress import Progress

    from bgtplanner.models.ranking import note_of
    from bgtplanner.runs.recommending import writing

    screen, bases = Screen(stderr=True, quiet=quiet), Counter[Any]()
    hidden = quiet or not screen.is_terminal
    with (
        writing(path, form, source.ratings) as write,
        Progress(console=screen, transient=True, disable=hidden) as bar,
    ):
        task = bar.add_task("users", total=len(places))
        for block in source.blocks(places, top):
            write(block)
            bases.update(block.bases)
            bar.advance(task, len(block.users))
        note = note_of(bases, source.learned)  # if there is no list at all, there is no file
    if note is not None:
        say(note, err=True)
