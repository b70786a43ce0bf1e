"""What can be predicted while nothing is shared: the rows every result is printed beside.

A federated model that does not beat these has taught its clients nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bgtplanner.data.ratings import Ratings
from bgtplanner.models.metrics import Metrics, metrics

__all__ = ["PRIOR_MEAN", "PRIOR_RATINGS", "REFERENCES", "References", "references"]

PRIOR_MEAN = 0.7
"""What a client assumes before it has seen a rating: a public constant, not the data's mean."""

PRIOR_RATINGS = 5.0
"""How many ratings that assumption is worth."""

REFERENCES = {
    "constant": "one constant for all",
    "user_mean": "each user's own mean",
    "client_alone": "each client alone",
}
"""What shares nothing, as tables and pictures name it."""

_SWEEPS = 10
_Float = NDArray[np.float64]


class References(NamedTuple):
    """Scores of the predictors that share nothing.

    Attributes:
        constant: One number for everybody, the mean of all training ratings. (To know it, somebody
            must share something: it is the bar, not an option.)
        user_mean: Each user's own mean, shrunk to 0.7 with the weight of 5 ratings.
        client_alone: The best a client can do from its own ratings: user biases and, where it has
            several users, item biases among them.
    """

    constant: Metrics
    user_mean: Metrics
    client_alone: Metrics


def references(train: Ratings, test: Ratings) -> References:
    """Scores of the constant, the user mean and the client on its own, on the test ratings."""
    value = train.value.astype(np.float64)
    mean = float(value.mean()) if len(value) else PRIOR_MEAN
    own = _user_offset(train, value - PRIOR_MEAN)
    user_mean = PRIOR_MEAN + own[test.user]
    alone = user_mean
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
    """User biases and item biases of each client by alternating ridge, clients all at once."""
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
