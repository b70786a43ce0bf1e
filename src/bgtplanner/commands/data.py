"""Commands about data sets: `data list`, `data info`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from bgtplanner.commands.options import Answer, command, need
from bgtplanner.data.datasets import DATASETS, by_hand, data_folders, find_files
from bgtplanner.errors import DataError

if TYPE_CHECKING:
    from bgtplanner.data.ratings import Ratings
    from bgtplanner.runs.config import Config

_MOST_VALUES = 20  # of a scale of stars; other scales are shown in tenths

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
    """Describe a data set: counts, ratings by value, catalogue, and baselines that share nothing.

    Example: `bgtplanner data info ml-100k`

    Options:
        dataset: A name from 'data list', or the path of a table.
    """
    need("sim")
    from bgtplanner.runs.config import load_config

    facts = describe(load_config(settings=settings | {"data.dataset": dataset}))
    return Answer(facts, [f"{name:<22} {_in_words(fact)}" for name, fact in facts.items()])


def describe(config: Config) -> dict[str, Any]:
    """Return counts, ratings by value, the catalogue, and errors of what shares nothing."""
    from bgtplanner.models.references import references
    from bgtplanner.runs.assembly import ratings_of, split_of

    ratings = ratings_of(config)
    split = split_of(config, ratings)
    scores = references(split.train, split.test)
    per = {"user": np.bincount(ratings.user, minlength=ratings.n_users),
           "item": np.bincount(ratings.item, minlength=ratings.n_items)}  # fmt: skip
    facts = {
        "dataset": ratings.name, "ratings": len(ratings), "users": ratings.n_users,
        "clients": ratings.n_clients, "items": ratings.n_items, "density": ratings.density,
        "implicit": ratings.implicit, "times": ratings.time is not None,
        "public": sorted(ratings.public), "notes": list(ratings.notes),
        "scale": [ratings.low, ratings.high], "histogram": _histogram(ratings),
        "train": len(split.train), "test": len(split.test), "catalogue": None,
        "rmse_constant": scores.constant.rmse, "rmse_user_mean": scores.user_mean.rmse,
        "rmse_client_alone": scores.client_alone.rmse, "f1_constant": scores.constant.f1,
        "f1_user_mean": scores.user_mean.f1,
    }  # fmt: skip
    for who, counts in per.items():
        low, median, high = np.quantile(counts, [0, 0.5, 1]).tolist()
        facts[f"{who}s_without_ratings"] = int((counts == 0).sum())
        facts[f"ratings_per_{who}"] = {"min": low, "median": median, "max": high}
    if (catalogue := ratings.catalogue) is not None:
        titles = 0 if catalogue.titles is None else int((catalogue.titles != "").sum())
        kinds = Counter(name.partition(": ")[0] for name in catalogue.names)
        facts["catalogue"] = {
            "items": len(catalogue), "titles": titles, "features": len(catalogue.names),
            "kinds": dict(kinds), "left_out": list(catalogue.left_out),
        }  # fmt: skip
    return facts


def _in_words(fact: Any) -> str:
    """Return a fact about a data set in a line."""
    if isinstance(fact, dict):
        fact = [f"{name}: {_in_words(of)}" for name, of in fact.items()]
    if isinstance(fact, list):
        return ", ".join(map(_in_words, fact))
    return f"{fact:.4g}" if isinstance(fact, float) else str(fact)


def _histogram(ratings: Ratings) -> dict[str, int]:
    """Return how many ratings have each value of the source's scale, or are in a tenth of it."""
    scaled = np.round(ratings.value.astype(np.float64), 6)  # in [0, 1], so nothing can overflow
    values, counts = np.unique(scaled, return_counts=True)
    if len(values) > _MOST_VALUES:
        counts, values = np.histogram(scaled, bins=10)
    histogram: Counter[str] = Counter()
    for value, count in zip(ratings.to_raw(values), counts.tolist(), strict=False):
        histogram[f"{value:g}"] += count  # to six digits, so two may have the same name
    return dict(histogram)
