"""The people of a run as histories, and the few lists that its report shows.

A list says something about a person. So a report shows only lists of a simulation, those of your
own data only if ``run.examples`` asks for them, of users chosen by the order of their labels, and
without a rating, an item of the person or a figure that was computed from the person's ratings.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgtplanner.data.datasets import DATASETS
from bgtplanner.data.ratings import Ratings
from bgtplanner.errors import NothingLearnedError
from bgtplanner.published.model import Model
from bgtplanner.runs.config import Config

TOP = 5  # items in each list of a report
_EXAMPLES = 3
_HIGHER = re.compile(r"[\d.e+-]+ (?:stars|points) above your mean")
_OFTEN = re.compile(r"[\d.e+-]+ times as often as ")


def histories_of(ratings: Ratings, users: ArrayLike | None = None) -> dict[str, NDArray[Any]]:
    """Return all ratings of some users, given by their indices, as a frame for a model's lists.

    The test set is among them: nobody is recommended what they have rated.
    """
    if users is not None:
        ratings = ratings.take(np.flatnonzero(np.isin(ratings.user, users)))
    frame = {"user": ratings.user_labels[ratings.user], "item": ratings.item_labels[ratings.item]}
    return frame if ratings.implicit else frame | {"rating": ratings.to_raw(ratings.value)}


def without_figures(reason: str) -> str:
    """Return a reason without how much and how often: that is a statistic of the person."""
    return _OFTEN.sub("more often than ", _HIGHER.sub("above your mean", reason))


def number_of_examples(config: Config) -> int:
    """Return how many lists a report of this run shows."""
    public = config.data.dataset in DATASETS
    return config.run.examples if config.run.examples is not None else _EXAMPLES * public


def example_users(ratings: Ratings, number: int) -> NDArray[np.int64]:
    """Return the indices of users, evenly spread over all labels in their order."""
    places = np.linspace(0, ratings.n_users - 1, min(number, ratings.n_users)).astype(int)
    return np.asarray(np.argsort(ratings.user_labels)[places])


def examples_of(model: Model, ratings: Ratings, number: int) -> dict[str, Any] | None:
    """Return the lists of some users, without figures about them; None if there are none."""
    frame = histories_of(ratings, example_users(ratings, number))
    # Without titles, no reason names an item that the person has rated.
    lists = replace(model, titles=None).recommend_many(frame, top=TOP)
    titles = dict(zip(model.items, model.titles or map(str, model.items), strict=True))
    try:
        found = [
            {"user": str(user), "items": [
                {"title": titles[row.item], "predicted": row.predicted,
                 "reason": None if row.reason is None else without_figures(row.reason)}
                for row in rows
            ]}
            for user, rows in lists
        ]  # fmt: skip
    except NothingLearnedError:
        return None
    return {"note": model.verdict().headline, "lists": found} if found else None
