"""Predictors that share nothing: the reference rows beside every result.

A federated model that does not beat them has taught its clients nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgtplanner.data.ratings import Ratings
from bgtplanner.models.metrics import Metrics, metrics

__all__ = ["PRIOR_MEAN", "PRIOR_RATINGS", "REFERENCES", "References", "references"]

PRIOR_MEAN = 0.7
"""A client's prior mean of ratings: a public constant, not the mean of the data."""

PRIOR_RATINGS = 5.0
"""How many ratings that prior weighs as much as."""

REFERENCES = {
    "constant": "one constant for all",
    "user_mean": "each user's own mean",
    "client_alone": "each client alone",
}
"""Labels of the references in tables and figures."""

_SWEEPS = 10
_Float = NDArray[np.float64]


class References(NamedTuple):
    """Scores of the predictors that share nothing.

    Attributes:
        constant: One number for everyone, the mean of all training ratings. (It is a yardstick and
            not an option, because computing it would take sharing.)
        user_mean: Each user's own mean, shrunk towards 0.7 with the weight of 5 ratings.
        client_alone: The best that a client can do with its own ratings: user biases and, if it
            has several users, item biases among them.
    """

    constant: Metrics
    user_mean: Metrics
    client_alone: Metrics


def references(train: Ratings, test: Ratings) -> References:
    """Return the scores of the constant, the user mean and the client alone on test ratings."""
    value = train.value.astype(np.float64)
    mean = float(value.mean()) if len(value) else PRIOR_MEAN
    own = _user_offset(train, value - PRIOR_MEAN)
    alone = user_mean = PRIOR_MEAN + own[test.user]
    if train.n_clients < train.n_users:
        alone = _client_alone(train, test)
    return References(
        constant=metrics(np.full(len(test), mean), test.value),
        user_mean=metrics(np.clip(user_mean, 0, 1), test.value),
        client_alone=metrics(np.clip(alone, 0, 1), test.value),
    )


def _user_offset(train: Ratings, residual: _Float) -> _Float:
    sums = np.bincount(train.user, residual, train.n_users)
    return np.asarray(sums / (np.bincount(train.user, minlength=train.n_users) + PRIOR_RATINGS))


def _client_alone(train: Ratings, test: Ratings) -> _Float:
    """Predict from each client's user and item biases, by alternating ridge regression."""
    pairs, pair = np.unique(_pair_key(train), return_inverse=True)
    counts = np.bincount(pair, minlength=len(pairs)) + PRIOR_RATINGS
    residual = train.value.astype(np.float64) - PRIOR_MEAN
    item_bias = np.zeros(len(pairs))
    for _ in range(_SWEEPS):
        user_bias = _user_offset(train, residual - item_bias[pair])
        item_bias = np.bincount(pair, residual - user_bias[train.user], len(pairs)) / counts
    wanted = _pair_key(test)
    if not len(pairs):
        return np.full(len(wanted), PRIOR_MEAN)
    position = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
    known = pairs[position] == wanted
    return np.asarray(
        PRIOR_MEAN + user_bias[test.user] + np.where(known, item_bias[position], 0.0)
    )


def _pair_key(ratings: Ratings) -> NDArray[np.int64]:
    return ratings.client.astype(np.int64) * ratings.n_items + ratings.item
