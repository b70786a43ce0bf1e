"""Predictors and rankings that share nothing, and popularity: the reference rows beside a result.

A federated model that does not beat those that share nothing has taught its clients nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgtplanner.data.ratings import Ratings
from bgtplanner.models.metrics import Metrics, drawn_users, metrics

PRIOR_MEAN = 0.7  # a client's prior of ratings: a public constant, not the mean of the data
PRIOR_RATINGS = 5.0  # how many ratings that prior weighs as much as

REFERENCES = {
    "constant": "one constant for all",
    "user_mean": "each user's own mean",
    "client_alone": "each client alone",
    "features_alone": "alone, with features",
    "popularity": "popularity, not private",
    "popularity_released": "popularity as released",
    "random": "random lists",
}
"""Labels of the references in tables and figures. Some only predict, some only rank."""

_RIDGE = 15.0  # of a leaning towards a feature; chosen on training ratings of ML-100K
_SWEEPS = 10
_Float = NDArray[np.float64]


class References(NamedTuple):
    """Scores of the predictors that share nothing."""

    constant: Metrics  # the mean of all training ratings, a yardstick: it takes sharing
    user_mean: Metrics  # each user's own mean, shrunk towards 0.7 with the weight of 5 ratings
    client_alone: Metrics  # user biases and, of clients with several users, item biases
    features_alone: Metrics | None = None  # each user's ridge regression on features


def references(train: Ratings, test: Ratings) -> References:
    """Return the scores of the constant, the user mean and whoever is alone on test ratings."""
    mean = float(train.value.mean(dtype=np.float64)) if len(train) else PRIOR_MEAN
    return References(
        constant=metrics(np.full(len(test), mean), test.value),
        user_mean=metrics(_by_biases(train, test, items=False), test.value),
        client_alone=metrics(predicted_alone(train, test), test.value),
        features_alone=_features_alone(train, test) if train.features.shape[1] else None,
    )


def predicted_alone(train: Ratings, test: Ratings) -> _Float:
    """Return what each client predicts for test ratings from its own training ratings alone."""
    return _by_biases(train, test, items=train.n_clients < train.n_users)


def _by_biases(train: Ratings, test: Ratings, *, items: bool) -> _Float:
    """Predict from biases of users and of the items of each client, by ridge regression."""
    residual = train.value.astype(np.float64) - PRIOR_MEAN
    both = [part.client.astype(np.int64) * part.n_items + part.item for part in (train, test)]
    _, pair = np.unique(np.concatenate(both), return_inverse=True)
    pairs, of_items = len(pair), np.zeros(len(pair))

    def shrunk(values: _Float, group: NDArray[Any], groups: int) -> _Float:
        counts = np.bincount(group, minlength=groups) + PRIOR_RATINGS
        return np.asarray(np.bincount(group, values, groups) / counts)

    for _ in range(_SWEEPS if items else 1):
        of_users = shrunk(residual - of_items[pair[: len(train)]], train.user, train.n_users)
        if items:
            of_items = shrunk(residual - of_users[train.user], pair[: len(train)], pairs)
    return np.clip(PRIOR_MEAN + of_users[test.user] + of_items[pair[len(train) :]], 0, 1)


def _features_alone(train: Ratings, test: Ratings) -> Metrics:
    """Score each user's ridge regression of its own ratings on the features of their items."""
    # Against their mean in the catalogue, which is public, an item without a feature says
    # something, too.
    features = np.column_stack([np.ones(train.n_items), _centred(train)])
    penalty = np.diag([PRIOR_RATINGS, *np.full(features.shape[1] - 1, _RIDGE)])
    predicted, some = np.full(len(test), np.nan), drawn_users(train.n_users)
    known, asked = (
        np.split(
            np.argsort(part.user, kind="stable"),
            np.cumsum(np.bincount(part.user, minlength=train.n_users))[:-1],
        )
        for part in (train, test)
    )
    for user in some:
        x, value = features[train.item[known[user]]], train.value[known[user]]
        weights = np.linalg.solve(x.T @ x + penalty, x.T @ (value - PRIOR_MEAN))
        predicted[asked[user]] = PRIOR_MEAN + features[test.item[asked[user]]] @ weights
    drawn = np.isin(test.user, some)
    return metrics(np.clip(predicted[drawn], 0, 1), test.value[drawn])


def _centred(ratings: Ratings) -> _Float:
    features = ratings.features.astype(np.float64)
    return np.asarray(features - features.mean(axis=0))


def rankings(train: Ratings) -> dict[str, Callable[[Any], Any]]:
    """Return the rankings that need no model, each of which scores all items for some users.

    - ``popularity``: how many training ratings an item has. Counting them is not private.
    - ``random``: another order for each user, always the same.
    - ``features_alone``: by how much the features of an item are those of the items that the user
      has rated, rather than those of the whole catalogue.
    """

    def random(users: NDArray[np.int64]) -> _Float:
        return np.stack([np.random.default_rng(user).random(train.n_items) for user in users])

    counts = np.bincount(train.item, minlength=train.n_items)
    found = {"popularity": the_same_for_all(counts), "random": random}
    if train.features.shape[1]:
        from scipy.sparse import csr_matrix

        # A linear discriminant with the variances of the catalogue; few ratings say little.
        features, shape = _centred(train), (train.n_users, train.n_items)
        rated = csr_matrix((np.ones(len(train)), (train.user, train.item)), shape=shape)
        number = np.bincount(train.user, minlength=train.n_users)[:, None] + PRIOR_RATINGS
        weights = (rated @ features) / number / (features.var(axis=0) + 0.01)
        found["features_alone"] = lambda users: weights[users] @ features.T
    return found


def the_same_for_all(scores: ArrayLike) -> Callable[[Any], Any]:
    """Return a ranking that is the same for all users."""
    return lambda users: np.tile(np.asarray(scores), (len(users), 1))
