"""Commands about data sets: `data list`, `data info`, `data fetch`."""

from __future__ import annotations

from typing import Annotated

import typer

from bgtplanner.commands.options import DataDir, Items, Json, answer, need_simulator, print_json
from bgtplanner.report.screen import Screen

__all__ = ["data_app"]

data_app = typer.Typer(
    help="List, describe and fetch data sets.\n\nExample: `bgtplanner data list`",
    no_args_is_help=True,
)


@data_app.command("list")
def data_list(data_dir: DataDir = None, as_json: Json = False) -> None:
    """List the data sets and show which ones are on this machine.

    Example: `bgtplanner data list`
    """
    from rich.table import Table

    from bgtplanner.data.datasets import DATASETS, find_files
    from bgtplanner.errors import DataError

    rows = []
    for info in (DATASETS[name] for name in DATASETS):
        try:
            files = [str(path) for path in find_files(info.name, data_dir)]
            here = "built in" if info.folder is None else "here"
        except DataError:
            files, here = [], "not here"
        rows.append(
            {"name": info.name, "description": info.description, "status": here, "files": files}
        )
    if as_json:
        print_json({"datasets": rows})
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("name", "status", "what"):
        table.add_column(heading)
    for row in rows:
        table.add_row(str(row["name"]), str(row["status"]), str(row["description"]))
    table.add_row("csv:PATH", "", "a table of your own, CSV or TSV, plain or gzipped")
    table.add_row("parquet:PATH", "", "the same as Parquet")
    console = Screen()
    console.print(table)
    console.print("Fetch one with: bgtplanner data fetch NAME", highlight=False)


@data_app.command("info")
def data_info(
    dataset: Annotated[
        str, typer.Argument(help="A name from 'data list', csv:PATH or parquet:PATH.")
    ],
    data_dir: DataDir = None,
    items: Items = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the split and of dealing users.")] = 0,
    assign: Annotated[
        list[str] | None,
        typer.Option("--set", help="Config keys of [data], such as data.scale=1:5."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Describe a data set: counts, ratings by value, catalogue, baselines that share nothing.

    Example: `bgtplanner data info ml-100k`
    """
    need_simulator()
    from bgtplanner.report.terminal import description_view
    from bgtplanner.runs.config import load_config, parse_assignment
    from bgtplanner.runs.description import describe

    settings = dict(parse_assignment(text) for text in assign or [])
    settings |= {"data.dataset": dataset, "run.seed": seed}
    given = {"data.data_dir": data_dir, "data.items": items}
    settings |= {key: value for key, value in given.items() if value is not None}
    facts = describe(load_config(settings=settings))
    if as_json:
        print_json(facts)
        return
    description_view(Screen(), facts)


@data_app.command("fetch")
def data_fetch(
    dataset: Annotated[str, typer.Argument(help="A name from 'data list'.")],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Download a data set from its official site, verify it and unpack it.

    Example: `bgtplanner data fetch ml-100k`
    """
    from bgtplanner.data.datasets import dataset_info
    from bgtplanner.data.download import fetch_dataset

    info = dataset_info(dataset)
    folder = fetch_dataset(dataset, data_dir)
    terms = [f"Terms: {info.terms}", f"Cite: {info.citation}"] if info.terms else []
    content = {"dataset": dataset, "folder": str(folder)}
    answer(as_json, content, f"{dataset} is in {folder}", *terms)
