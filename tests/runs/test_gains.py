"""Who gains and who loses: groups against a recomputation by hand, and nothing of a person."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bgtplanner.data.ratings import Ratings
from bgtplanner.data.split import Split, split_ratings
from bgtplanner.models.references import predicted_alone
from bgtplanner.privacy.budget import Budgets
from bgtplanner.runs.summary import FEWEST, gains_of

CLIENTS = 60
ROUNDS = 5


def data(clients: int = CLIENTS) -> Split:
    """Clients with 5 ratings, and with one more each."""
    rng = np.random.default_rng(0)
    counts = np.arange(5, 5 + clients)
    user = np.repeat(np.arange(clients), counts)
    item = np.concatenate([rng.permutation(400)[:count] for count in counts])
    ratings = Ratings.from_arrays(user, item, rng.integers(1, 6, len(user)), name="made")
    return split_ratings(ratings, seed=0, rounds=ROUNDS)


def perfect_for(split: Split, clients: NDArray[Any]) -> NDArray[np.float64]:
    """Half the error of being alone for some clients, one and a half for the others."""
    alone, test = predicted_alone(split.train, split.test), split.test
    share = np.where(np.isin(test.client, clients), 0.5, 1.5)
    return np.asarray(test.value + share * (alone - test.value))


def test_groups_by_number_of_ratings() -> None:
    split = data()
    found = gains_of(split, perfect_for(split, np.arange(30, CLIENTS)), ROUNDS - 1, None)
    assert found["better"] == pytest.approx(0.5)
    assert "budget" not in found
    groups = found["ratings"]
    assert 2 <= len(groups) <= 4
    assert sum(group["clients"] for group in groups) == CLIENTS
    assert groups[0]["name"].startswith("up to ")
    assert groups[-1]["name"].startswith("more than ")
    assert groups[0]["gain"] == pytest.approx(-0.5, abs=1e-6), "everybody in it loses alike"
    assert groups[0]["high"] - groups[0]["low"] < 1e-6, "so that there is no doubt"
    assert groups[-1]["gain"] == pytest.approx(0.5, abs=1e-6)
    assert (groups[0]["better"], groups[-1]["better"]) == (0.0, 1.0)


def test_the_interval_is_that_of_the_jackknife() -> None:
    """Leave one client out at a time: the spread of the gains is that of the gain."""
    split, rng = data(200), np.random.default_rng(1)
    alone, test = predicted_alone(split.train, split.test), split.test
    share = np.where(rng.random(200) < 0.5, 0.8, 1.0)[test.client]
    predicted = test.value + share * (alone - test.value)
    group = gains_of(split, predicted, ROUNDS - 1, None)["ratings"][-1]
    bound = float(group["name"].split()[2])  # "more than 160 ratings"
    who = np.bincount(split.train.client) > bound
    ours, theirs = (
        np.bincount(test.client, (of - test.value) ** 2)[who] for of in (predicted, alone)
    )
    assert group["clients"] == len(ours)
    assert group["gain"] == pytest.approx(1 - np.sqrt(ours.sum() / theirs.sum()))
    left_out = 1 - np.sqrt((ours.sum() - ours) / (theirs.sum() - theirs))
    spread = np.sqrt((len(ours) - 1) * left_out.var())
    half = (group["high"] - group["low"]) / 2
    assert half == pytest.approx(1.96 * spread, rel=0.1)
    assert (group["high"] + group["low"]) / 2 == pytest.approx(group["gain"])


def test_no_bound_is_anybodys_number() -> None:
    """Neither the fewest nor the most ratings are in any name, and bounds are round."""
    split = data(200)
    names = [of["name"] for of in gains_of(split, split.test.value, ROUNDS - 1, None)["ratings"]]
    counts = np.bincount(split.train.client)
    for number in (counts.min(), counts.max()):
        assert all(str(number) not in name.split() for name in names)
    bounds = [int(name.split()[-2]) for name in names]  # "17 to 28 ratings"
    assert len(bounds) == 4
    assert all(float(f"{bound:.2g}") == bound for bound in bounds)


def test_too_few_clients_are_not_shown() -> None:
    split = data(FEWEST - 1)
    found = gains_of(split, split.test.value, ROUNDS - 1, None)
    assert found == {"better": None, "ratings": []}


def test_by_budget() -> None:
    split = data()
    budgets = Budgets.shares("1:0.5,10:0.45,20:0.05", clients=CLIENTS, delta=1e-5, seed=0)
    small = np.flatnonzero(budgets.class_of_client == 0)
    found = gains_of(split, perfect_for(split, small), ROUNDS - 1, budgets)["budget"]
    assert [group["name"] for group in found] == ["ε 1", "ε 10"], "three clients are too few"
    assert [round(group["gain"], 6) for group in found] == [0.5, -0.5]
