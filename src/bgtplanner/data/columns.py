"""Which column of a table is what: as it was given, by its usual name, or by its place."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bgtplanner.arguments import in_words
from bgtplanner.errors import ConfigError, DataError

Column = str | int | None
"""A column by its name in the header, by its position from 0, or not given."""

ROLES = ("user", "item", "rating", "time", "client", "test")
"""What the columns of a table of ratings are for, in the usual order."""

ITEM_NAMES = (
    *("item", "i", "movie", "product", "asin", "book", "film", "track", "song", "artist", "album"),
    *("game", "app", "business", "article", "recipe", "anime", "video", "news"),
)
"""What columns of items are usually called, as :func:`usual_place` compares them."""

COUNT_NAMES = (
    *("weight", "count", "counts", "plays", "playcount", "nplays", "listens", "hours"),
    *("hoursplayed", "playtime", "minutes", "clicks", "views", "visits", "purchases", "quantity"),
)
"""What columns are called that say how often or how long a user had to do with an item."""

_NEEDED = ("user", "item", "rating")
_USUAL_NAMES = {
    "user": ("user", "u", "reviewer", "customer", "person", "username", "member", "visitor",
             "account"),
    "item": ITEM_NAMES,
    "rating": ("rating", "ratings", "value", "score", "stars", "overall", "userrating",
               *COUNT_NAMES),
    "time": ("timestamp", "time", "date", "datetime", "unixreviewtime", "ratedat", "createdat",
             "unixtime", "reviewtime", "reviewdate"),
    "client": ("client",),
    "test": (),  # ratings are held out only if someone says so
}  # fmt: skip


def usual_place(names: Sequence[str], usual: Sequence[str]) -> int | None:
    """Return the position of the column that is called by the first of these usual names.

    Case, blanks, signs, a type behind a colon, and "id" at the end do not count.

    Example:
        >>> usual_place(["User ID", "artist_id:token"], ITEM_NAMES)
        1
    """
    plain = [re.sub(r"[\W_]", "", name.partition(":")[0]).lower() for name in names]
    plain = [name.removesuffix("id") or name for name in plain]
    return next((plain.index(name) for name in usual if name in plain), None)


def find_columns(
    first: Sequence[str], given: Mapping[str, Column], header: bool | None, *, where: object
) -> tuple[dict[str, int], bool]:
    """Return the position of every column in use, by role, and whether there is a header.

    Args:
        first: The names of the columns, or a first row of cells if there is no `header`.
        given: What was said about each role; None means: detect it.
        header: Whether the first row holds names; None means: detect it.
        where: What errors call the table.

    Raises:
        ConfigError: If columns are not there, or have to be named; names all of them at once.
    """
    by_name = any(isinstance(of, str) and of != "none" for of in given.values())
    if header is None:
        header = by_name or _has_header(first, given, where)
    elif by_name and not header:
        raise ConfigError("columns are given by name, but data.header says there is no header")
    names = "no names" if any(map(is_number, first)) else ", ".join(map(repr, first[:20]))
    usual = {role: usual_place(first, _USUAL_NAMES[role]) if header else None for role in ROLES}
    known = any(usual[role] is not None for role in _NEEDED)
    spare = len(first) - sum(at is not None for at in usual.values())  # columns of no known use
    optional = len(first) == 2 or (known and spare <= 0)  # nothing is left for the rating
    place, missing, absent = dict[str, int](), list[str](), list[str]()
    for position, role in enumerate(ROLES):
        wanted, at = given[role], usual[role]
        if wanted == "none":
            continue
        if isinstance(wanted, str):
            at = first.index(wanted) if wanted in first else None
            absent += [f"{role}={wanted!r}"] * (at is None)
        elif wanted is not None:
            ConfigError.unless(wanted >= 0, role, wanted, "a position of 0 or more")
            at = wanted
        elif at is None and role in _NEEDED and not (role == "rating" and optional):
            missing += [role] * known
            at = position
        if at is not None:
            place[role] = at
    if absent:
        problem = f"no such column; the header has {names}: choose one of these"
        raise ConfigError(f"{where}: {', '.join(absent)}: {problem}")
    if missing:
        asked = " ".join(f"which column is the {role}?" for role in missing)
        python = ", ".join(f"{role}=..." for role in missing)
        flags = " ".join(f"--set data.{role}_column=..." for role in missing)
        none = "; for clicks without ratings: none" * ("rating" in missing)
        raise ConfigError(
            f"{where}: {asked} The header has {names}; name them with {python}, or {flags} on "
            f"the command line{none}"
        )
    for role, at in place.items():
        if at >= len(first):
            problem = f"has {len(first)} columns; the {role} was expected in column {at + 1}"
            raise DataError(f"{where}: {problem}")
    if len(set(place.values())) < len(place):
        raise ConfigError(f"{where}: the same column is used twice: {place}")
    return place, header


def _has_header(first: Sequence[str], given: Mapping[str, Column], where: object) -> bool:
    """Return whether the first row of a text table holds names, as far as nobody has said."""
    if any(usual_place(first, _USUAL_NAMES[role]) is not None for role in _NEEDED):
        return True
    if len(first) > 2 and given["rating"] != "none":
        at = given["rating"]
        cell = first[at if isinstance(at, int) and 0 <= at < len(first) else 2]
        return not is_number(cell.replace(",", "."))
    if not all(map(is_number, first)):  # ids alone: text or numbers
        raise ConfigError(
            f"{where}: are there names in the first row? Say so with header=True or "
            "header=False, or --set data.header=true on the command line"
        )
    return False


def is_number(cell: str) -> bool:
    """Return whether a cell is a number, and so no name of a column."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def columns_of_frame(frame: Any) -> dict[str, Any]:
    """Return the columns, by name, of a frame of pandas, Polars or Arrow, or of a mapping.

    Raises:
        DataError: If it has no columns with names, or they differ in length.
    """
    if hasattr(frame, "collect"):  # lazy ones of Polars, those of Spark
        raise DataError(f"frame = {in_words(frame)}: has no columns yet; collect it first")
    names = getattr(getattr(frame, "dtype", None), "names", None)  # a structured array of NumPy
    for attribute in ("columns", "column_names"):  # Arrow's columns are not their names
        names = getattr(frame, attribute, names)
    if names is None and isinstance(frame, Mapping):
        names = list(frame)
    if names is None:
        expected = "a table with named columns, such as a DataFrame or a dict of lists"
        raise DataError(f"frame = {in_words(frame)}: expected {expected}")
    columns = {str(name): frame[name] for name in names}
    for name, column in columns.items():
        if isinstance(column, str | bytes | Mapping | set) or not hasattr(column, "__len__"):
            raise DataError(f"{name} = {in_words(column)}: expected a list or array")
    if len({len(column) for column in columns.values()}) > 1:
        sizes = ", ".join(f"{name} has {len(column)}" for name, column in columns.items())
        raise DataError(f"the columns are not of the same length: {sizes}")
    return columns


def is_missing(cell: Any) -> bool:
    """Return whether a cell is None, a NaN, or the missing value of a library of frames."""
    missing = cell is None or type(cell).__name__ in ("NAType", "NaTType")
    return missing or (isinstance(cell, float | np.floating) and bool(np.isnan(cell)))
