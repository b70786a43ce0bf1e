"""Runs, audits and reports under both neighbouring relations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bgtplanner import Budget, simulate
from bgtplanner.data.ratings import Ratings
from bgtplanner.data.synthetic import synthetic_ratings
from bgtplanner.privacy.accountants import accountant_named

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture(scope="module")
def few() -> Ratings:
    return synthetic_ratings(clients=40, items=20, ratings_per_client=10, seed=3)


def played(ratings: Ratings, **settings: Any) -> Any:
    chosen = {"planning.policy": "uniform", "federation.rounds": 3}
    chosen |= {key.replace("__", "."): value for key, value in settings.items()}
    return simulate(ratings, seed=0, settings=chosen)


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_a_run_has_half_the_noise_for_the_same_charges(few: Ratings, mechanism: str) -> None:
    same = {"privacy__mechanism": mechanism, "tastes__axes": 2}  # by default noise decides
    weak = played(few, **same)
    strong = played(few, **same, privacy__neighbours="replace-one")
    for one, other in zip(weak.rounds, strong.rounds, strict=True):
        assert one["charge"] == other["charge"]
        assert one["noise_multiplier"] == other["noise_multiplier"]
        assert 2 * one["noise_norm"] == pytest.approx(other["noise_norm"], rel=1e-6)
    for result, relation in ((weak, "replace-special"), (strong, "replace-one")):
        summary = result.summary
        accountant = accountant_named(summary["accounting"])
        assert summary["neighbours"] == relation
        other = accountant.other_promise(Budget(summary["epsilon"], summary["delta"]), relation)  # type: ignore[arg-type]
        assert summary["epsilon_other_reading"] == other
        assert summary["epsilon_spent_max"] == weak.summary["epsilon_spent_max"]
    assert weak.summary["epsilon_other_reading"] > 2 * weak.summary["epsilon"] * 0.99
    assert strong.summary["epsilon_other_reading"] < strong.summary["epsilon"]


def test_what_is_public_about_a_round_does_not_depend_on_what_a_client_rated(few: Ratings) -> None:
    """Nothing in a client's place must be a client like the others: invited, paying, counted."""
    mine = few.client == 0
    other = replace(few, value=np.where(mine, few.value.max() - few.value, few.value))
    seen = [
        [(r["clients"], r["paid"], r["late"], r["charge"], r["noise_norm"]) for r in run.rounds]
        for run in (
            played(ratings, federation__participation=0.5, federation__dropout=0.1)
            for ratings in (few, other)
        )
    ]
    assert seen[0] == seen[1]
