"""Describe a data set before anything is trained on it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from bgtplanner.data.catalogue import Catalogue
from bgtplanner.data.ratings import Ratings
from bgtplanner.models.references import references
from bgtplanner.runs.config import Config
from bgtplanner.runs.run import ratings_of, split_of

__all__ = ["describe"]

_MOST_VALUES = 20


def describe(config: Config) -> dict[str, Any]:
    """Counts, ratings by value, the catalogue, and the errors of predictors that share nothing."""
    ratings = ratings_of(config)
    split = split_of(config, ratings)
    beside = references(split.train, split.test)
    per_user = np.bincount(ratings.user, minlength=ratings.n_users)
    per_item = np.bincount(ratings.item, minlength=ratings.n_items)
    return {
        "dataset": ratings.name,
        "ratings": len(ratings),
        "users": ratings.n_users,
        "users_without_ratings": int((per_user == 0).sum()),
        "clients": ratings.n_clients,
        "items": ratings.n_items,
        "density": ratings.density,
        "ratings_per_user": _spread(per_user),
        "ratings_per_item": _spread(per_item),
        "items_without_ratings": int((per_item == 0).sum()),
        "implicit": ratings.implicit,
        "times": ratings.time is not None,
        "public": sorted(ratings.public),
        "catalogue": _catalogue(ratings.catalogue),
        "notes": list(ratings.notes),
        "scale": [ratings.low, ratings.high],
        "histogram": _histogram(ratings),
        "train": len(split.train),
        "test": len(split.test),
        "rmse_constant": beside.constant.rmse,
        "rmse_user_mean": beside.user_mean.rmse,
        "rmse_client_alone": beside.client_alone.rmse,
        "f1_constant": beside.constant.f1,
        "f1_user_mean": beside.user_mean.f1,
    }


def _catalogue(catalogue: Catalogue | None) -> dict[str, Any] | None:
    """How many items, titles and features of each kind there are, and what was left out."""
    if catalogue is None:
        return None
    titles = catalogue.titles
    return {
        "items": len(catalogue),
        "titles": 0 if titles is None else int((titles != "").sum()),
        "features": len(catalogue.names),
        "kinds": dict(Counter(name.partition(": ")[0] for name in catalogue.names)),
        "left_out": list(catalogue.left_out),
    }


def _histogram(ratings: Ratings) -> dict[str, int]:
    """How many ratings have each value of the source's scale, or fall into each tenth of it."""
    scaled = np.round(ratings.value.astype(np.float64), 6)  # in [0, 1], so nothing can overflow
    values, counts = np.unique(scaled, return_counts=True)
    if len(values) > _MOST_VALUES:  # not a scale of stars: ten equal bins
        counts, edges = np.histogram(scaled, bins=10)
        values = edges[:-1]
    histogram: dict[str, int] = {}
    for value, count in zip(ratings.to_raw(values), counts, strict=True):
        name = f"{value:g}"  # to six digits, so two values may have the same name
        histogram[name] = histogram.get(name, 0) + int(count)
    return histogram


def _spread(counts: Any) -> dict[str, float]:
    return {
        "min": int(counts.min()) if len(counts) else 0,
        "median": float(np.median(counts)) if len(counts) else 0.0,
        "max": int(counts.max(initial=0)),
    }
