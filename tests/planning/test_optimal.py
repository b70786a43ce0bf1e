"""The best schedule for a fixed workload."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bgtplanner.errors import ConfigError
from bgtplanner.planning.schedules import Hong, Optimal, Uniform
from bgtplanner.privacy.budget import Budget

Floats = NDArray[np.float64]
BUDGET = Budget(10.0, 1e-5)


def charges_of(policy: Any) -> Floats:
    found = []
    while (plan := policy.ask()) is not None:
        policy.tell(plan)
        found.append(plan.charge)
    return np.array(found)


def prefix(rounds: int) -> Floats:
    return np.tril(np.ones((rounds, rounds)))


@pytest.mark.parametrize(
    ("workload", "norms"),
    [
        ("prefix", np.sqrt(np.arange(8, 0, -1))),
        ("last", np.ones(8)),
        ("sgd:0.1", 0.9 ** np.arange(7, -1, -1)),
        ("sgd:0", np.ones(8)),
        (np.diag(np.arange(8.0)).tolist(), np.arange(8.0)),
        (prefix(8), np.sqrt(np.arange(8, 0, -1))),
    ],
)
@pytest.mark.parametrize(
    ("accountant", "power"),
    [("gaussian/gdp", 1), ("gaussian/rdp", 1), ("laplace/basic", 2 / 3), ("laplace/filter", 1)],
)
def test_charges_follow_the_norms_of_the_columns(
    workload: Any, norms: Floats, accountant: str, power: float
) -> None:
    policy = Optimal(BUDGET, 3, rounds=8, workload=workload, accounting=accountant)
    again = Optimal.from_state(json.loads(json.dumps(policy.state_dict())))
    for each in (policy, again):
        charges = charges_of(each)
        np.testing.assert_allclose(charges / charges.max(), (norms / norms.max()) ** power, 1e-6)
        assert each.ledger.left().max() < 1e-4 * charges.max()


def test_prefix_sums_over_a_hundred_rounds() -> None:
    workload = prefix(100) / 10.0

    def variance(charges: Floats) -> float:
        return float(np.sum((workload**2).sum(axis=0) / charges) * charges.sum()) ** 0.5

    ours = charges_of(Optimal(BUDGET, 3, rounds=100))
    assert variance(ours) == pytest.approx(67.146, abs=0.001)
    assert variance(charges_of(Uniform(BUDGET, 3, rounds=100))) == pytest.approx(71.06, abs=0.01)


@pytest.mark.parametrize("accounting", ["gaussian/gdp", "laplace/basic"])
def test_hong_is_the_best_schedule_of_a_loop_that_contracts(accounting: str) -> None:
    given: dict[str, Any] = {"rounds": 30, "accounting": accounting}
    hong = charges_of(Hong(BUDGET, 3, decay=0.9**2, **given))
    np.testing.assert_allclose(hong, charges_of(Optimal(BUDGET, 3, workload="sgd:.1", **given)))


@pytest.mark.parametrize(
    "workload",
    ["", "prefixes", "sgd", "sgd:1", "sgd:x", "sgd:nan", [1.0] * 5, [[1.0]], np.zeros((2, 5))],
)
def test_workloads_that_are_refused(workload: Any) -> None:
    with pytest.raises(ConfigError, match=r"^workload"):
        Optimal(BUDGET, 3, rounds=5, workload=workload)
