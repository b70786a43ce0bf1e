"""Commands about models that can be published: `train`, and lists from a model file."""

from __future__ import annotations

import csv
import json
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bgtplanner.commands.options import (
    Json,
    Quiet,
    answer,
    need_path,
    need_simulator,
    say,
    settings_options,
)
from bgtplanner.data.columns import is_number
from bgtplanner.data.tables import TableFormat, read_table
from bgtplanner.durable import replacing
from bgtplanner.errors import ConfigError, DataError, StorageError
from bgtplanner.published.difference import differences
from bgtplanner.published.model import Model, Recommended, load_model
from bgtplanner.runs.settings import TRAINING
from bgtplanner.text import csv_text

if TYPE_CHECKING:
    from bgtplanner.report.terminal import Screen

model_app = typer.Typer(
    no_args_is_help=True,
    help="Look at model files.\n\nExample: `bgtplanner model show films.model`",
)

_SUFFIXES = (".json", ".jsonl", ".csv", ".parquet")


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


def recommend_from(
    path: str,
    *,
    users: list[str],
    everybody: bool,
    top: int,
    out: str | None,
    ratings: str | None,
    history: str | None,
    items: str | None,
    exclude: str | None,
    only: str | None,
    as_json: bool,
) -> None:
    """Make lists from a model file, for people in a table, for one history, or for a pipe."""
    model = load_model(path)
    if items is not None:
        model = model.with_items(items)
    how: dict[str, Any] = {"top": top, "exclude": _named(exclude)}
    how["only"] = None if only is None else _named(only)
    if history is not None and ratings is not None:
        raise ConfigError("--history and --ratings exclude each other; give one of them")
    if history is not None:
        rows = model.recommend(_history(Path(history)), **how)
        _shown(model, iter([(None, rows)]), out, as_json, alone=True)
    elif ratings is not None:
        if not users and not everybody:
            raise ConfigError("whom to recommend to? Give '--user' LABEL, or --all")
        frame = _table(model, ratings.removeprefix("csv:").removeprefix("parquet:"), users)
        _shown(model, model.recommend_many(frame, **how), out, as_json, alone=len(users) == 1)
    elif users or everybody:
        raise ConfigError("a model file has no users: give their ratings, with --ratings PATH")
    elif sys.stdin is None or sys.stdin.isatty():
        raise ConfigError(
            "whose list? Give --history PATH, or --ratings PATH with --all or --user LABEL, or "
            'JSON lines on standard input, such as {"history": {"42": 5}}'
        )
    else:
        for line in _asked(sys.stdin):
            rows = model.recommend(line.get("history") or {}, **how)
            say(json.dumps({"user": line.get("user"), "items": _items(rows)}, allow_nan=False))


def _named(text: str | None) -> list[str]:
    """Return the items of a file with one per line, or those named with commas."""
    if text is None:
        return []
    path = Path(text)
    if path.suffix in (".txt", ".csv") or "/" in text:
        try:
            return [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
        except (OSError, ValueError) as error:
            raise DataError("cannot be read; one item per line", path=path) from error
    return [part.strip() for part in text.split(",") if part.strip()]


def _history(path: Path) -> Any:
    """Return one person's ratings by item: a JSON object, or a table with item and rating."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        if path.suffix == ".json":
            found = json.loads(text)
            if not isinstance(found, dict | list):
                raise TypeError
            return found
        rows = [row for row in csv.reader(text.splitlines()) if row]
    except (OSError, ValueError, TypeError, RecursionError, csv.Error) as error:
        problem = "cannot be read; expected JSON, or a table with the columns item and rating"
        raise DataError(problem, path=path) from error
    if rows and len(rows[0]) > 1 and not is_number(rows[0][1]):
        rows = rows[1:]  # names
    if all(len(row) == 1 for row in rows):
        return [row[0].strip() for row in rows]
    for number, row in enumerate(rows):
        if len(row) < 2 or not is_number(row[1].strip()):
            raise DataError("expected an item and a rating", path=path, line=number + 1)
    return {row[0].strip(): float(row[1]) for row in rows}


def _table(model: Model, path: str, users: list[str]) -> dict[str, Any]:
    """Return the columns of a table of ratings, of all users or of some."""
    rating = "none" if model.implicit else None
    table = read_table(path, TableFormat(rating=rating))
    user = table.user.rows()
    frame: dict[str, Any] = {"user": user, "item": table.item.rows()}
    if table.rating is None and not model.implicit:
        raise DataError("has no ratings, which the model is about", path=path)
    if not model.implicit:
        frame["rating"] = table.rating
    if not users:
        return frame
    labels = user.astype(str)
    if missing := [name for name in users if not (labels == name).any()]:
        raise DataError(f"--user {missing[0]}: not in {path}; their list would be popularity's")
    wanted = labels == users[0]
    for name in users[1:]:
        wanted |= labels == name
    return {name: column[wanted] for name, column in frame.items()}


def _asked(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield what each line of a stream asks."""
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
            if not isinstance(found, dict) or not isinstance(found.get("history"), dict | list):
                raise TypeError
        except (ValueError, TypeError, RecursionError) as error:
            problem = f'line {number + 1}: expected JSON such as {{"user": 7, "history": {{}}}}'
            raise DataError(f"standard input, {problem}") from error
        yield found


def _items(rows: list[Recommended]) -> list[dict[str, Any]]:
    return [{name: of for name, of in row._asdict().items() if name != "user"} for row in rows]


def _shown(
    model: Model,
    lists: Iterator[tuple[Any, list[Recommended]]],
    out: str | None,
    as_json: bool,
    *,
    alone: bool,
) -> None:
    """Print lists, or write them to a file, and say what they rest on."""
    from bgtplanner.commands.recommend import table_of

    note = model.verdict().headline
    if out is not None:
        number = _written(Path(out), lists)
        content = {"out": out, "users": number, "note": note}
        answer(as_json, content, f"Lists of {number:,} users: {out}", note)
        return
    found = [{"user": user, "items": _items(rows)} for user, rows in lists] if as_json else None
    if found is not None:
        answer(True, found[0] | {"note": note} if alone else {"users": found, "note": note})
        return
    for user, rows in lists:
        say(*([] if alone else [f"{user}:"]), *table_of(rows))
    say(note)


def _written(path: Path, lists: Iterator[tuple[Any, list[Recommended]]]) -> int:
    """Write lists to a file, whole or not at all; return of how many people they are."""
    number = 0
    try:
        with replacing(path) as file:
            if path.suffix == ".parquet":
                import pyarrow as pa
                from pyarrow import parquet

                rows = [row._asdict() for _, lines in lists for row in lines]
                parquet.write_table(pa.Table.from_pylist(rows), file)
                return len({row["user"] for row in rows})
            for user, lines in lists:
                number += 1
                if path.suffix == ".csv":
                    file.write(_csv_lines(lines, header=number == 1))
                else:
                    text = json.dumps({"user": user, "items": _items(lines)}, allow_nan=False)
                    start = "" if path.suffix == ".jsonl" else "[" if number == 1 else ",\n"
                    file.write(f"{start}{text}{chr(10) * (path.suffix == '.jsonl')}".encode())
            file.write(b"]\n" if path.suffix == ".json" and number else b"")
    except OSError as error:
        raise StorageError.of(f"--out {path}", error, "choose another with --out") from error
    return number


def _csv_lines(lines: list[Recommended], *, header: bool) -> bytes:
    text = csv_text(Recommended._fields, [row._asdict() for row in lines])
    return (text if header else text.partition("\n")[2]).encode()


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
