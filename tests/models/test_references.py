"""What is predicted while nothing is shared, against closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from bgtplanner.data.ratings import Ratings
from bgtplanner.data.split import deal_users, split_ratings
from bgtplanner.data.synthetic import synthetic_ratings
from bgtplanner.models.metrics import metrics
from bgtplanner.models.references import PRIOR_MEAN, PRIOR_RATINGS, references


def own_predictor(train: Ratings, test: Ratings) -> NDArray[np.float64]:
    """Each client's user and item biases by one penalised least-squares problem, via LAPACK."""
    predicted = np.full(len(test), PRIOR_MEAN)
    for client in range(train.n_clients):
        rows = np.flatnonzero(train.client == client)
        users = np.flatnonzero(train.client_of_user == client)
        items = np.unique(train.item[rows])
        design = np.zeros((len(rows), len(users) + len(items)))
        design[np.arange(len(rows)), np.searchsorted(users, train.user[rows])] = 1
        design[np.arange(len(rows)), len(users) + np.searchsorted(items, train.item[rows])] = 1
        size = design.shape[1]
        system = np.vstack([design, np.sqrt(PRIOR_RATINGS) * np.eye(size)])
        right = np.concatenate([train.value[rows] - PRIOR_MEAN, np.zeros(size)])
        biases = np.linalg.lstsq(system, right)[0]
        for k in np.flatnonzero(test.client == client):
            predicted[k] += biases[np.searchsorted(users, test.user[k])]
            place = np.flatnonzero(items == test.item[k])
            if place.size:
                predicted[k] += biases[len(users) + place[0]]
    return np.clip(predicted, 0, 1)


class TestClientAlone:
    @pytest.mark.parametrize("clients", [1, 3, 10])
    def test_is_the_ridge_solution_of_each_client(self, clients: int) -> None:
        ratings = synthetic_ratings(clients=30, items=25, ratings_per_client=15, seed=4)
        split = split_ratings(deal_users(ratings, clients, seed=4), seed=4, rounds=1)
        got = references(split.train, split.test)
        exact = metrics(own_predictor(split.train, split.test), split.test.value)
        assert got.client_alone.rmse == pytest.approx(exact.rmse, abs=1e-4)
        assert got.client_alone.mae == pytest.approx(exact.mae, abs=1e-4)
        assert got.client_alone.rmse != got.user_mean.rmse


class TestEdgeCases:
    @pytest.mark.parametrize("clients", [None, 2])
    def test_nothing_to_train_on(self, clients: int | None) -> None:
        ratings = Ratings.from_arrays([0, 1], [0, 1], [1.0, 0.5], scale=(0, 1))
        if clients is not None:
            ratings = deal_users(ratings, clients, seed=0)
        nothing = ratings.take(np.zeros(2, bool))
        expected = metrics([0.7, 0.7], [1.0, 0.5])
        for scores in references(nothing, ratings)[:3]:
            assert scores == pytest.approx(expected, abs=1e-6)
