"""The data of a run: its ratings, and how they are split."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

import numpy as np

from bgtplanner.data.catalogue import ItemsFormat
from bgtplanner.data.datasets import dataset_info, load_ratings
from bgtplanner.data.ratings import Ratings
from bgtplanner.data.split import Split, deal_users, split_ratings
from bgtplanner.errors import ConfigError, DataError
from bgtplanner.runs.config import Config


class Prepared:
    """Ratings, by default those that the config names, how they are split, and their mark."""

    def __init__(self, config: Config, ratings: Ratings | None = None, key: str = "") -> None:
        self.ratings = ratings_of(config) if ratings is None else ratings
        self.split = split_of(config, self.ratings)
        self.mark = fingerprint_of(self.split, key)


def ratings_of(config: Config) -> Ratings:
    """Load the ratings that a config names, with their catalogue."""
    data, seed = config.data, config.run.seed
    words = tuple(name.strip() for name in (data.items_words or "").split(",") if name.strip())
    columns = ItemsFormat(item=data.items_column, words=words)
    how: dict[str, Any] = {"items_format": None if columns == ItemsFormat() else columns}
    how["decimal_comma"] = data.decimal_comma or None
    same = "data_dir duplicates delimiter header scale feedback count_cap items unknown_items"
    how |= {name: getattr(data, name) for name in same.split()}
    for name in ("user", "item", "rating", "weight", "time", "client"):
        how[name] = getattr(data, f"{name}_column")
    if data.dataset == "synthetic":
        how["shape"] = config.synthetic.model_dump()
    ratings = load_ratings(data.dataset, seed=seed, **how)
    return ratings if data.clients is None else deal_users(ratings, data.clients, seed=seed)


def ratings_from(frame: Any, settings: Mapping[str, Any]) -> Ratings:
    """Return the ratings in a frame, whose columns and values are what the settings say.

    What they do not say is detected, as in a file.
    """
    columns = {f"data.{role}_column": role for role in ("user", "item", "time", "client")}
    columns |= {"data.rating_column": "value", "data.weight_column": "value"}
    columns |= {
        f"data.{key}": key
        for key in ("scale", "feedback", "count_cap", "duplicates", "decimal_comma")
    }
    given = {name: settings[key] for key, name in columns.items() if key in settings}
    if "data.weight_column" in settings:
        given["feedback"] = "clicks"
    if given.get("value") == "none":
        given["value"] = None
    return Ratings.from_frame(frame, **given)


def split_of(config: Config, ratings: Ratings) -> Split:
    """Split the ratings as the config says.

    Raises:
        DataError: If there are too few ratings for a training set and a test set, or no times.
    """
    data, within = config.data, config.data.split
    if within == "auto":
        within = "user"
        with contextlib.suppress(ConfigError):  # ratings given in Python may have any name
            within = dataset_info(data.dataset).split_within
    split = split_ratings(
        ratings,
        seed=config.run.seed,
        rounds=config.federation.rounds,
        train_share=data.train_share,
        within=within,
        leave_last=data.leave_last,
        initial_share=data.initial_share,
        arrival=data.arrival,
    )
    if not len(split.test) or not len(split.train):
        raise DataError(
            f"{ratings.name}: too few ratings to hold out a test set "
            f"({len(split.train)} for training, {len(split.test)} for the test); give more, or "
            "another data.train_share"
        )
    return split


def fingerprint_of(split: Split, key: str = "") -> str:
    """Return a hash of all that a run is trained and tested on: ratings, and features of items.

    Whoever has no `key` cannot tell from it whether a guess at the ratings is right.
    """
    digest = hmac.new(key.encode(), digestmod=hashlib.sha256) if key else hashlib.sha256()
    for part in (split.train, split.test):
        for array in (part.user, part.item, part.value, part.client_of_user):
            digest.update(np.ascontiguousarray(array).tobytes())
    digest.update(split.arrival.tobytes())
    if (catalogue := split.train.catalogue) is not None:
        digest.update("\0".join((*catalogue.labels, *catalogue.names)).encode())
        digest.update(np.ascontiguousarray(catalogue.features).tobytes())
    return digest.hexdigest()


def people_of(ratings: Ratings) -> str:
    """Return a hash of who has which place in the ledger; ratings play no part in it."""
    labels = "\0".join(map(str, ratings.user_labels.tolist()))
    return hashlib.sha256(labels.encode() + ratings.client_of_user.tobytes()).hexdigest()
