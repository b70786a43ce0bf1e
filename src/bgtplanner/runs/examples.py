"""A few lists for the report of a simulated run: what people would be shown.

A list says something about the person that it is for, even though it has only items that the
person has not rated. So lists are shown by these rules.

* Only a simulation has them: whoever simulates holds all ratings anyway. A server on real machines
  holds none, and its folder never has lists.
* By default, only lists of data sets that everybody can get or make (:data:`DATASETS`) are shown.
  Those of your own data are shown only if you ask for them with ``run.examples``.
* The users are the first, the middle and the last one in the order of their labels, and so on:
  they are chosen without looking at a rating.
* A line has a title, a predicted rating and a reason. It has no rating and no figure that was
  computed from the ratings of the person, and no label of an item unless there are no titles.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bgtplanner.data.datasets import DATASETS
from bgtplanner.data.ratings import Ratings
from bgtplanner.errors import NothingLearnedError
from bgtplanner.federation.simulation import Simulation
from bgtplanner.models.metrics import ranked_at_once
from bgtplanner.runs.config import Config
from bgtplanner.runs.recommending import recommendations_of, recommender_of

__all__ = ["TOP", "example_users", "examples_of", "number_of_examples", "without_figures"]

TOP = 5
"""How many items each list has."""

_DEFAULT = 3
_HIGHER = re.compile(r"[\d.e+-]+ (?:stars|points) above your mean")
_OFTEN = re.compile(r"(?:more than )?[\d.e+-]+ times as often as ")


def without_figures(reason: str) -> str:
    """A reason without how much and how often: that is a statistic of the person.

    Example:
        >>> without_figures("you rate Drama 0.2 stars above your mean")
        'you rate Drama above your mean'
        >>> without_figures("popular; you pick Action 1.6 times as often as others")
        'popular; you pick Action more often than others'
    """
    return _OFTEN.sub("more often than ", _HIGHER.sub("above your mean", reason))


def number_of_examples(config: Config) -> int:
    """How many lists a report of this run shows."""
    if config.run.examples is not None:
        return config.run.examples
    return _DEFAULT if config.data.dataset in DATASETS else 0


def example_users(ratings: Ratings, number: int) -> list[Any]:
    """Labels of users, evenly spread over all labels in their order.

    Example:
        >>> from bgtplanner.data.ratings import Ratings
        >>> example_users(Ratings.from_arrays([7, 1, 4, 9], [0, 0, 0, 0], [1, 2, 3, 4]), 3)
        [1, 4, 9]
    """
    labels = np.sort(ratings.user_labels)
    number = min(number, len(labels))
    places = np.linspace(0, len(labels) - 1, max(number, 1)).astype(int)[:number]
    return list(labels[places].tolist())


def examples_of(
    ratings: Ratings, simulation: Simulation, users: Sequence[Any], tested: int
) -> dict[str, Any] | None:
    """The lists of some users, with a note if they do not come from the model; None if none.

    Args:
        ratings: All ratings.
        simulation: The trained federation.
        users: Labels of the users.
        tested: The number of test ratings. As many are predicted at a time, and as many users are
            ranked, as when lists and errors were scored: those programs are compiled already.
    """
    if not users:
        return None
    recommender = recommender_of(ratings, simulation)
    at_once = ranked_at_once(ratings)
    wide = replace(
        recommender,
        rank=lambda some: simulation.rank(np.resize(some, max(at_once, len(some))))[: len(some)],
        predict=lambda *of: simulation.predict(
            *(np.resize(part, max(tested, len(part))) for part in of)
        )[: len(of[0])],
    )
    places = np.flatnonzero(np.isin(ratings.user_labels, users))
    try:
        found = recommendations_of(wide, places, TOP)
    except NothingLearnedError:
        return None
    lists: dict[Any, list[dict[str, Any]]] = {user: [] for user in users}
    for row in found.rows:
        title = str(row.item) if row.title is None else row.title
        reason = None if row.reason is None else without_figures(row.reason)
        line = {"title": title, "predicted": row.predicted, "reason": reason}
        lists[row.user].append(line)
    return {
        "note": found.note,
        "lists": [{"user": str(user), "items": lines} for user, lines in lists.items() if lines],
    }
