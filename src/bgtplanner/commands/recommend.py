"""Commands that use a trained model: `recommend`, `predict`."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

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
    from bgtplanner.models.recommending import Basis, Block, Recommended, Recommender
    from bgtplanner.runs.summary import Result

__all__ = ["predict", "recommend"]

Folder = Annotated[str, typer.Argument(help="The folder of a run.")]
Home = Annotated[str, typer.Argument(help="The folder of a run, or of a client on this machine.")]
MovedRatings = Annotated[
    str | None,
    typer.Option("--ratings", help="Where the run's ratings are now, such as csv:PATH."),
]

_SUFFIXES = {".json": "json", ".csv": "csv", ".parquet": "parquet", ".pq": "parquet"}
_WIDEST = 48  # characters of a title in a table


class _Source(NamedTuple):
    """What recommends: a run, or a client on this machine.

    Attributes:
        recommender: All that lists are made of.
        result: The run, if it is one.
        where: What errors call it.
    """

    recommender: Recommender
    result: Result | None
    where: str


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
    with a client.toml, on this machine, with the last model received. Nothing is sent. A run that
    is not finished is read as of its last checkpoint, and goes on undisturbed.

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
    source = _source_of(folder, ratings, data_dir, export, at_home)
    places = _wanted(source, user or [], users, everybody)
    written = None
    if export is not None and source.result is not None:
        written = str(source.result.export(Path(export)))
    if out is None:
        _print(source, places, top, form, single=len(user or []) == 1, written=written)
        return
    _write(source, places, top, form, Path(out), quiet or as_json)
    content = {"out": out, "users": len(places), "export": written} | _state(source)
    answer(as_json, content, *_first_lines(source), f"Lists of {len(places):,} users: {out}")


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
    of = result.ratings
    who = _Labels(of.user_labels).place(user, f"--client {user}")
    what = _Labels(of.item_labels).place(item, f"--item {item}")
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


def _source_of(
    folder: str, ratings: str | None, data_dir: str | None, export: str | None, at_home: bool
) -> _Source:
    if not at_home:
        result = _load(folder, ratings, data_dir)
        return _Source(result.recommender(), result, "the ratings of this run")
    for flag, given in (("--export", export), ("--ratings", ratings), ("--data-dir", data_dir)):
        if given is not None:
            raise ConfigError(f"{flag} {given}: only for the folder of a run; leave it out")
    client = local_client(Path(folder) / "client.toml")
    return _Source(client.recommender(), None, f"the users of {client.file.ratings.name}")


def _load(folder: str, ratings: str | None, data_dir: str | None) -> Result:
    need_simulator()
    from bgtplanner.runs.run import load

    ConfigError.unless(folder != "", "FOLDER", folder, "a run folder")
    return load(folder, ratings=ratings, data_dir=data_dir, unfinished=True)


class _Labels:
    """Finds labels in the type of the data: a number if the labels are numbers."""

    def __init__(self, labels: Any, where: str = "the ratings of this run") -> None:
        self._type, self._where = labels.dtype.type, where
        self._places = {label: place for place, label in enumerate(labels.tolist())}

    def place(self, text: str, what: str) -> int:
        try:
            label = self._type(text).item()
        except (OverflowError, TypeError, ValueError) as error:
            raise DataError(f"{what}: expected a whole number, as in the data") from error
        if label not in self._places:
            raise DataError(f"{what}: not in {self._where}; give a label that is")
        return self._places[label]


def _wanted(source: _Source, user: Sequence[str], users: str | None, everybody: bool) -> list[int]:
    """The places of the users that are asked for, each once."""
    labels = source.recommender.ratings.user_labels
    if everybody:
        return list(range(len(labels)))
    find = _Labels(labels, source.where)
    if users is not None:
        named = _lines(users)
    elif user:
        named = [(f"--client {label}", label) for label in user]
    elif len(labels) == 1:  # a client with one user
        return [0]
    else:
        raise ConfigError(
            f"whom to recommend to? Give '--client' LABEL, one of {source.where}, or --all"
        )
    return list(dict.fromkeys(find.place(label, what) for what, label in named))


def _lines(path: str) -> list[tuple[str, str]]:
    try:
        text = read_bytes(Path(path), MOST_BYTES_OF_A_CATALOGUE, plain=False).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise ConfigError(f"--users {path}: cannot be read: {error}; give a text file") from error
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    found = [(f"--users {path}, line {at}", line) for at, line in enumerate(lines, 1) if line]
    ConfigError.unless(bool(found), "--users", path, "a file with one label per line")
    return found


def _lists(source: _Source, places: list[int], top: int, bases: Counter[Basis]) -> Iterator[Block]:
    """The lists block by block, counting what they rest on."""
    for block in source.recommender.blocks(places, top):
        bases.update(block.bases)
        yield block


def _note(source: _Source, bases: Counter[Basis]) -> str | None:
    from bgtplanner.models.recommending import note_of

    return note_of(bases, source.recommender.learned)


def _state(source: _Source) -> dict[str, Any]:
    """Of a run that is not finished: which round the lists are of."""
    going = None if source.result is None else source.result.unfinished
    return {"unfinished": None if going is None else {"round": going[0], "rounds": going[1]}}


def _first_lines(source: _Source) -> list[str]:
    going = _state(source)["unfinished"]
    if going is None:
        return []
    return [f"After round {going['round']} of {going['rounds']}; the run is not finished."]


def _print(
    source: _Source,
    places: list[int],
    top: int,
    form: str,
    *,
    single: bool,
    written: str | None,
) -> None:
    """Print the lists; `single` if one user was asked for by name."""
    from bgtplanner.runs.recommending import rows_as_csv, users_as_json

    bases: Counter[Basis] = Counter()
    blocks = list(_lists(source, places, top, bases))
    note = _note(source, bases)
    if form == "json":
        found = [user for block in blocks for user in users_as_json(block)]
        about = {"note": note, "export": written} | _state(source)
        print_json((found[0] if single else {"users": found}) | about)
        return
    said = _first_lines(source) + ([] if note is None else [note])
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
    lines += [] if written is None else [f"Shared parameters: {written}"]
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
    source: _Source, places: list[int], top: int, form: Any, path: Path, quiet: bool
) -> None:
    """Write the lists block by block, and say how far it is and how long it will take."""
    from bgtplanner.runs.recommending import writing

    bases: Counter[Basis] = Counter()
    with (
        writing(path, form, source.recommender.ratings) as write,
        _progress(len(places), quiet) as advance,
    ):
        for block in _lists(source, places, top, bases):
            write(block)
            advance(len(block.users))
        note = _note(source, bases)  # if there is no list at all, there is no file either
    if note is not None:
        say(note, err=True)


@contextlib.contextmanager
def _progress(total: int, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Yield a function that is told how many more users are done."""
    from rich.progress import Progress

    screen = Screen(stderr=True, quiet=quiet)
    if screen.is_terminal:
        with Progress(console=screen, transient=True) as bar:
            task = bar.add_task("users", total=total)
            yield lambda more: bar.advance(task, more)
        return
    first, done, begun = 0, 0, 0.0

    def advance(more: int) -> None:
        nonlocal first, done, begun
        before, done = done, done + more
        if not before:  # compilation is over: from here on the pace is steady
            first, begun = done, time.perf_counter()
        elif 10 * before // total < 10 * done // total < 10:
            pace = (time.perf_counter() - begun) / (done - first)
            screen.print(f"{done:,} of {total:,} users, about {pace * (total - done):.0f} s left")

    yield advance
