"""Commands about data sets: `data list`, `data info`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from bgtplanner.commands.options import Answer, command, need
from bgtplanner.data.datasets import DATASETS, by_hand, data_folders, find_files
from bgtplanner.errors import DataError

if TYPE_CHECKING:
    from bgtplanner.runs.config import Config

data_app = typer.Typer(
    help="List and describe data sets.\n\nExample: `bgtplanner data list`",
    no_args_is_help=True,
)


@data_app.command("list")
@command()
def data_list(*, data_dir: str | None = None) -> Answer:
    """List the data sets, which ones are here, and where to get the others and put them.

    Example: `bgtplanner data list`
    """
    rows, lines = list[dict[str, Any]](), list[str]()
    for name, info in DATASETS.items():
        files, unpack_to = list[str](), None
        try:
            files = [str(path) for path in find_files(name, data_dir)]
        except DataError:
            unpack_to = str(data_folders(data_dir)[0] / str(info.folder))
        here = "not here" if unpack_to else "here" if files else "built in"
        rows += [{"name": name, "description": info.description, "status": here, "files": files,
                  "url": info.url, "unpack_to": unpack_to, "terms": info.terms,
                  "citation": info.citation}]  # fmt: skip
        lines += [f"{name:<15} {here:<9} {info.description}"]
        lines += [f"{'':<25} {by_hand(info, unpack_to)}"] if unpack_to else []
    lines += [f"{'PATH':<25} a table of your own: CSV, TSV or Parquet, plain or gzipped"]
    return Answer({"datasets": rows}, lines)


@data_app.command("info")
@command("data.data_dir", "data.items", "run.seed")
def data_info(dataset: str, *, settings: dict[str, Any]) -> Answer:
    """Say what is read of a data set: counts, the scale, notes, and features of the catalogue.

    Example: `bgtplanner data info ml-100k`

    Options:
        dataset: A name from 'data list', or the path of a table.
    """
    need("sim")
    from bgtplanner.runs.config import load_config

    facts = describe(load_config(settings=settings | {"data.dataset": dataset}))
    told = {name: fact if isinstance(fact, list) else [fact] for name, fact in facts.items()}
    return Answer(facts, [f"{name:<9} {', '.join(map(str, of))}" for name, of in told.items()])


def describe(config: Config) -> dict[str, Any]:
    """Return what was read of a data set: counts, the scale, and what the catalogue holds."""
    from bgtplanner.runs.assembly import ratings_of

    ratings = ratings_of(config)
    facts = {
        "dataset": ratings.name, "ratings": len(ratings), "users": ratings.n_users,
        "items": ratings.n_items, "implicit": ratings.implicit,
        "scale": [ratings.low, ratings.high], "times": ratings.time is not None,
        "notes": list(ratings.notes),
    }  # fmt: skip
    if (catalogue := ratings.catalogue) is not None:
        facts |= {"features": len(catalogue.names), "left_out": list(catalogue.left_out)}
    return facts
