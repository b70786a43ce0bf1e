"""The best schedule for a fixed workload, and why no correlated noise beats it."""

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


def gram(correlation: Floats, width: int, sweeps: int = 400) -> Floats:
    """The uploads of one client, of length 1, that the correlated noise hides worst."""
    squared, generator = correlation.T @ correlation, np.random.default_rng(0)
    best, worst = -np.inf, np.zeros((len(squared), width))
    for _ in range(6):
        uploads = generator.normal(size=(len(squared), width))
        uploads /= np.linalg.norm(uploads, axis=1, keepdims=True)
        for _ in range(sweeps):
            for row in range(len(uploads)):
                pull = squared[row] @ uploads - squared[row, row] * uploads[row]
                length = np.linalg.norm(pull)
                uploads[row] = pull / length if length > 1e-12 else uploads[row]
        if (value := float(np.sum(squared * (uploads @ uploads.T)))) > best:
            best, worst = value, uploads.copy()
    return worst


def loss(workload: Floats, correlation: Floats, width: int, sweeps: int = 400) -> float:
    """Summed variance of a workload at sensitivity 1, with noise inverse(correlation) z."""
    squared, uploads = correlation.T @ correlation, gram(correlation, width, sweeps)
    sensitivity = float(np.sum(squared * (uploads @ uploads.T)))
    noise = np.linalg.solve(squared, workload.T @ workload)
    return float(np.trace(noise)) * sensitivity


def closed(workload: Floats) -> float:
    return float(np.linalg.norm(workload, axis=0).sum() ** 2)


@pytest.mark.parametrize("seed", range(12))
def test_independent_noise_with_the_dual_schedule_is_as_private_and_never_noisier(
    seed: int,
) -> None:
    """The schedule d is a certificate: diag(d) >= M, and it costs exactly what M costs."""
    generator = np.random.default_rng(seed)
    rounds = int(generator.integers(2, 7))
    correlation = np.tril(generator.normal(size=(rounds, rounds))) + np.eye(rounds)
    squared = correlation.T @ correlation
    uploads = gram(correlation, width=rounds, sweeps=3000)
    schedule = ((squared @ uploads) * uploads).sum(axis=1)
    primal = float(np.sum(squared * (uploads @ uploads.T)))
    assert schedule.sum() == pytest.approx(primal, rel=1e-9)
    assert np.linalg.eigvalsh(np.diag(schedule) - squared).min() > -1e-5 * primal
    extra = np.linalg.inv(squared) - np.diag(1 / schedule)  # what simulates the correlated noise
    assert np.linalg.eigvalsh(extra).min() > -1e-5 * np.abs(extra).max()
    workload = generator.normal(size=(4, rounds))
    ours = float(np.sum(workload**2 / schedule) * schedule.sum())
    assert ours <= loss(workload, correlation, rounds) * (1 + 1e-6)
    assert closed(workload) <= ours * (1 + 1e-9)


# ---- the policy


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
    ("accountant", "power"), [("gaussian/gdp", 1), ("gaussian/rdp", 1), ("laplace/basic", 2 / 3)]
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


def test_hong_is_the_best_schedule_of_a_loop_that_contracts() -> None:
    hong = charges_of(Hong(BUDGET, 3, rounds=30, decay=0.9**2))
    np.testing.assert_allclose(hong, charges_of(Optimal(BUDGET, 3, rounds=30, workload="sgd:.1")))


@pytest.mark.parametrize(
    "workload",
    ["", "prefixes", "sgd", "sgd:1", "sgd:x", "sgd:nan", [1.0] * 5, [[1.0]], np.zeros((2, 5))],
)
def test_workloads_that_are_refused(workload: Any) -> None:
    with pytest.raises(ConfigError, match=r"^workload"):
        Optimal(BUDGET, 3, rounds=5, workload=workload)
