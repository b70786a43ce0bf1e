"""Commands about what was trained: `recommend`, `predict`, `export`, `model`, `report`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from bgtplanner.commands.options import Answer, command, files_of_client, need, say, show
from bgtplanner.commands.train import worth, written
from bgtplanner.data.catalogue import Catalogue, read_items, ridge
from bgtplanner.data.files import is_number, open_table
from bgtplanner.data.tables import TableFormat, read_table
from bgtplanner.durable import replace_file, replacing
from bgtplanner.errors import (
    ConfigError,
    DataError,
    NothingLearnedError,
    RunFolderError,
    StorageError,
)
from bgtplanner.published.model import Model, Recommended, load_model
from bgtplanner.serving import MODEL, PAGE, facts_of
from bgtplanner.signing import key_in
from bgtplanner.text import csv_text

if TYPE_CHECKING:
    from bgtplanner.runs.result import Result

Lists = Iterator[tuple[Any, list[Recommended]]]
"""People with their lists."""

_SUFFIXES = (".json", ".jsonl", ".csv", ".parquet")
_WIDEST = 48  # characters of a title in a table


@command()
def recommend(
    source: str, *, user: list[str] | None = None, everybody: bool = False, top: int = 10,
    out: str | None = None, ratings: str | None = None, history: str | None = None,
    items: str | None = None, exclude: str | None = None, only: str | None = None,
    explain: bool = True, verify: str | None = None,
) -> Answer | None:  # fmt: skip
    """Recommend items: those that a user has not rated and is expected to like best.

    From a model file it takes anybody's ratings: one person's (`--history`), those in a table
    (`--ratings`), or JSON lines on standard input. From the folder of a run it takes the run's
    data; in a folder with a client.toml, those on this machine. Nothing is sent.

    Example: `bgtplanner recommend films.model --history mine.csv`

    Example: `bgtplanner recommend films.model --ratings ratings.csv --all --out lists.csv`

    Example: `bgtplanner recommend runs/first --all --out lists.csv`

    Options:
        source (MODEL): A model file, or the folder of a run or of a client here.
        user: Label of a user in the data. Repeatable.
        everybody: Recommend to every user.
        top: How many items to list.
        out (PATH): Write to a .json, .jsonl, .csv or .parquet.
        ratings (PATH): A table of ratings; for a run: where its ratings are now.
        history (PATH): One person's ratings: item, rating.
        items (PATH): A newer table, for items that the model does not know.
        exclude: Items not to list: with commas, or a file of them.
        only: Items or features to list alone, such as 'genre: War'.
        explain: Say why each item is on the list, which takes half of the time.
        verify (KEY): The publisher's public key; a file that this key has not signed is refused.
    """
    ConfigError.unless(top >= 1, "--top", top, "at least 1")
    known = out is None or Path(out).suffix in _SUFFIXES
    ConfigError.unless(known, "--out", out, f"a path that ends in {', '.join(_SUFFIXES)}")
    if (user and everybody) or (history and (ratings or user or everybody)):
        one = "history" if history else "user"
        raise ConfigError(f"--{one} and other options for whose lists exclude each other")
    model, frame = _opened(source, ratings, verify)
    model = model if items is None else with_items(model, read_items(items))
    how: dict[str, Any] = {"top": top, "explain": explain, "exclude": _named(exclude)}
    how["only"] = None if only is None else _named(only)
    if history is not None:
        rows = model.recommend(_history(Path(history)), **how)
        return _listed(model, iter([(None, rows)]), out, alone=True)
    if frame is not None:
        if not user and not everybody and len(np.unique(frame["user"])) != 1:
            raise ConfigError("whom to recommend to? Give '--user' LABEL, or --all")
        lists = model.recommend_many(_of_users(frame, user) if user else frame, **how)
        return _listed(model, lists, out, alone=len(set(user or [])) == 1)
    if user or everybody:
        raise ConfigError("a model file has no users: give their ratings, with --ratings PATH")
    if sys.stdin is None or sys.stdin.isatty():
        raise ConfigError(
            "whose list? Give --history PATH, or --ratings PATH with --all or --user LABEL, or "
            'JSON lines on standard input, such as {"history": {"42": 5}}'
        )
    for line in _asked(sys.stdin):
        rows = model.recommend(line.get("history") or {}, **how)
        say(json.dumps({"user": line.get("user"), "items": _items(rows)}, allow_nan=False))
    return None


def _opened(
    source: str, ratings: str | None, verify: str | None
) -> tuple[Model, dict[str, Any] | None]:
    """Return a model, and the ratings of people in it or in a table, if there are any."""
    if Path(source).is_file():
        model = load_model(source, signer=None if verify is None else key_in(verify, "verify"))
        path = (ratings or "").removeprefix("csv:").removeprefix("parquet:")
        return model, _table(model, path) if path else None
    ConfigError.unless(verify is None, "--verify", verify, "nothing: only model files are signed")
    home = Path(source) / "client.toml"
    if home.is_file():
        ConfigError.unless(
            ratings is None, "--ratings", ratings, "nothing: the client has its own"
        )
        client = files_of_client(home)
        model = client.last_model()
        return model, client.histories(model)
    result = _load(source, ratings)
    from bgtplanner.runs.result import histories_of

    return result.model, histories_of(result.ratings)


def with_items(model: Model, newer: Catalogue) -> Model:
    """Return a model with the new items of a newer catalogue at its end.

    A new item gets its place from its features, by ridge regression over the known items of what
    was released.
    """
    every, number = Catalogue.of(model).followed_by(newer), len(model.items)
    placed = ridge(model.features, model.released, every.features[number:])
    return replace(
        model,
        items=[*model.items, *every.labels[number:].tolist()],
        titles=None if every.titles is None else every.titles.tolist(),
        features=every.features,
        released=np.concatenate([model.released, placed]).astype(np.float32),
        sums=None if model.sums is None else np.pad(model.sums, ((0, len(placed)), (0, 0))),
    )


@command()
def predict(folder: str, *, user: str, item: str, ratings: str | None = None) -> Answer:
    """Predict the rating that a user would give an item, on the scale of the data.

    Example: `bgtplanner predict runs/first --client 7 --item 42`

    Options:
        folder (FOLDER): The folder of a finished run.
        user: Label of a user in the data.
        item: Label of an item in the data.
        ratings (PATH): Where the ratings of the run are now.
    """
    result = _load(folder, ratings)
    value, model = result.predict(user, item), result.model
    titles = dict(zip(map(str, model.items), model.titles or (), strict=False))
    title = titles.get(item)
    content = {"client": user, "item": item, "title": title, "predicted": value}
    return Answer(content, [f"{value:.3f}  {title or ''}".rstrip()])


@command()
def export(
    source: str, *, out: str | None = None, page: str | None = None, ratings: str | None = None,
) -> Answer:  # fmt: skip
    """Write the model of a finished run as a file, or a page that makes lists in the browser.

    The page (`--page`) is a folder of static files for any web server, with the model beside them:
    whoever opens it rates there, and nothing is sent. The model of a run protects nobody, since
    the noise of a run comes from a seed; `train` makes one that may be published.

    Example: `bgtplanner export runs/first --out first.model`

    Example: `bgtplanner export films.model --page site/`

    Options:
        source (MODEL): A model file, or the folder of a finished run; of 0.2, with its ratings.
        out (PATH): The model file to write.
        page (DIR): The folder to write the page to.
        ratings (PATH): Where the ratings of the run are now.
    """
    if (out is None) == (page is None):
        raise ConfigError("what to write? Give --out PATH for a model file, or --page DIR")
    if out is not None and Path(out).exists():
        raise RunFolderError(f"--out {out}: exists; name another file")
    alone = Path(source).is_file()
    made = load_model(source) if alone else _load(source, ratings).model
    sentences = made.guarantee.get("sentences", [])
    if page is None:
        made.save(str(out))
        return written(made, str(out), *sentences)
    write_page(Path(page), made, Path(source) if alone else None)
    said = [f"Page: {page}, to be put on any web server with https", *sentences]
    return Answer({"page": page, "guarantee": made.guarantee}, said)


def write_page(folder: Path, model: Model, file: Path | None = None) -> None:
    """Write the page with a model, as its file has it; somebody else's page is not replaced."""
    if (folder / "index.html").exists() and not (folder / MODEL).exists():
        raise RunFolderError(f"--page {folder}: has another index.html; name another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for of in PAGE.iterdir():
            replace_file(folder / of.name, of.read_bytes())
        if file is None:
            model.save(folder / MODEL)
        else:
            replace_file(folder / MODEL, file.read_bytes())
    except OSError as error:
        raise StorageError.of(f"--page {folder}", error, "choose another with --page") from error


def _load(folder: str, ratings: str | None) -> Result:
    """Return the result of a finished run."""
    need("sim")
    from bgtplanner.runs.run import load

    return load(folder, ratings=ratings)


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
    if path.suffix == ".json":
        try:
            found = json.loads(path.read_text(encoding="utf-8-sig"))
        except (OSError, ValueError, RecursionError) as error:
            raise DataError("cannot be read as JSON", path=path) from error
        if not isinstance(found, dict | list):
            raise DataError("expected ratings by item, or a list of items", path=path)
        return found
    table, history = open_table(path, columns=2), dict[str, float]()
    for line, (item, *rating) in table.rows():
        if rating and is_number(rating[0]):
            history[item] = float(rating[0])
        elif rating and line != table.line:  # there are names in the first one
            raise DataError("expected an item and a rating", path=path, line=line)
    return history or [cells[0] for _, cells in table.rows()]


def _table(model: Model, path: str) -> dict[str, Any]:
    """Return the columns of a table of ratings."""
    table = read_table(path, TableFormat(rating="none" if model.implicit else None))
    frame: dict[str, Any] = {"user": table.user.rows(), "item": table.item.rows()}
    if model.implicit:
        return frame
    if table.rating is None:
        raise DataError("has no ratings, which the model is about", path=path)
    return frame | {"rating": table.rating}


def _of_users(frame: dict[str, Any], users: list[str]) -> dict[str, Any]:
    """Return the rows of some users, who are named by their labels."""
    labels = frame["user"].astype(str)
    if missing := [name for name in users if not (labels == name).any()]:
        raise DataError(f"--user {missing[0]}: not in the ratings; their list is popularity's")
    wanted = np.isin(labels, users)
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


def _listed(model: Model, lists: Lists, out: str | None, *, alone: bool) -> Answer:
    """Return lists, or write them to a file, with what they rest on."""
    note = model.verdict().headline
    if out is not None:
        number = _written(Path(out), lists)
        said = f"Lists of {number:,} users: {out}"
        return Answer({"out": out, "users": number, "note": note}, [said, note])
    found, lines = [], list[str]()
    for user, rows in lists:
        found.append({"user": user, "items": _items(rows)})
        lines += [f"{user}:"] * (not alone) + _table_of(rows)
    content = found[0] if alone else {"users": found}
    return Answer(content | {"note": note}, [*lines, note])


def _written(path: Path, lists: Lists) -> int:
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
            for number, (user, lines) in enumerate(lists, start=1):
                text = json.dumps({"user": user, "items": _items(lines)}, allow_nan=False)
                if path.suffix == ".json":
                    text = ("[" if number == 1 else ",\n") + text
                elif path.suffix == ".jsonl":
                    text += "\n"
                else:
                    text = csv_text(Recommended._fields, [row._asdict() for row in lines])
                    text = text if number == 1 else text.partition("\n")[2]
                file.write(text.encode())
            file.write(b"]\n" if path.suffix == ".json" and number else b"")
    except OSError as error:
        raise StorageError.of(f"--out {path}", error, "choose another with --out") from error
    return number


def _table_of(rows: list[Recommended]) -> list[str]:
    """Return the lines of one list; columns that no row has are left out."""
    titled = any(row.title for row in rows)
    label = max([len(str(row.item)) for row in rows], default=0) if titled else 20
    wide = min(max([len(row.title or "") for row in rows], default=0), _WIDEST)
    lines = []
    for row in rows:
        title = row.title or ""
        title = title if len(title) <= _WIDEST else f"{title[: _WIDEST - 1]}…"
        title = f" {title:<{wide}}" if titled else ""
        predicted = "" if row.predicted is None else f" {row.predicted:.2f}"
        line = f"{row.place:3d}  {row.item!s:<{label}}{title}{predicted}  {row.reason or ''}"
        lines.append(line.rstrip())
    return lines


model_app = typer.Typer(
    no_args_is_help=True,
    help="Look at model files.\n\nExample: `bgtplanner model show films.model`",
)


@model_app.command("show")
@command()
def model_show(path: str) -> Answer:
    """Show what a model file holds, what it promises, and what its lists are worth.

    Example: `bgtplanner model show films.model`

    Options:
        path: A model file.
    """
    model = load_model(path)
    what = "clicks" if model.implicit else f"ratings from {model.low:g} to {model.high:g}"
    said = f"{path}: {model.ranker}, {len(model.items):,} items, {what}"
    return Answer(facts_of(model), [said, *worth(model)])


@model_app.command("diff")
@command()
def model_diff(old: str, new: str) -> Answer:
    """Say what changed from one model to another, in words and numbers.

    Example: `bgtplanner model diff spring.model summer.model`

    Options:
        old: A model file.
        new: Another one.
    """
    found = differences(load_model(old), load_model(new))
    return Answer(found, found["sentences"])


def differences(old: Model, new: Model) -> dict[str, Any]:
    """Return what changed: items, what is promised, and whose list without a history moved."""
    pair = (old, new)
    own, place = ({str(of): at for at, of in enumerate(each.items)} for each in pair)
    both = [of for of in own if of in place]
    found: dict[str, Any] = {
        "came": len(place) - len(both), "went": len(own) - len(both), "stayed": len(both),
        "ranker": [each.ranker for each in pair],
        "epsilon": [each.guarantee.get("epsilon") for each in pair],
        "people": [each.guarantee.get("people") for each in pair],
        "verdicts": [each.verdict().level for each in pair],
        "same_of_ten": None,
    }  # fmt: skip
    said = ["Items: {came:,} came, {went:,} went, {stayed:,} stayed.".format(**found)]
    for name in ("ranker", "epsilon", "people", "verdicts"):
        before, after = ("none" if of is None else of for of in found[name])
        if before != after:
            said.append(f"{name.capitalize()}: {before} became {after}.")
    try:
        tops = [{str(row.item) for row in each.recommend(explain=False)} for each in pair]
        found["same_of_ten"] = same = len(tops[0] & tops[1])
        said.append(f"Of the ten items for a newcomer, {same} are the same.")
    except NothingLearnedError:
        said.append("One of them makes no lists.")
    return found | {"sentences": said}


@command()
def report(folder: str, *, open_page: bool = False, live: bool = False, as_json: bool) -> None:
    """Write the report of a run: one page that also opens offline.

    Example: `bgtplanner report runs/first --open`

    With --live the page reloads itself until the run is finished, or you press Ctrl-C; a folder
    that is not there yet is waited for. Each figure is an image that a browser can save.

    Options:
        folder (FOLDER): Folder of a run.
        open_page: Open the page in a browser.
        live: Write the page again and again while a run goes on.
    """
    need("sim")
    from bgtplanner.report.page import follow, write_report

    def written(page: Path) -> None:
        show(Answer({"report": str(page)}, [f"Report: {page}"]), as_json=as_json)
        if open_page:
            typer.launch(str(page))

    if live and not Path(folder).exists():
        say(f"waiting for {folder}", err=True)
    if live:
        follow(Path(folder), written)
    else:
        written(write_report(Path(folder)))
