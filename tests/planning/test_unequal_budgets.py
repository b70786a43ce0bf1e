"""A loop of one's own, with clients whose budgets differ: nobody spends more than its own.

Every loop here is written as somebody would who has read that uploads are clipped to `plan.clip`
and get noise of `plan.noise_std`, and knows nothing else. What each client has really spent is
then recomputed from what was really added to its upload, by dp-accounting.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dp_accounting import gaussian_mechanism
from numpy.typing import NDArray

from bgtplanner.paper.baselines import Adap
from bgtplanner.paper.planners import AsPrinted
from bgtplanner.planning.bgt import BGTPlanner
from bgtplanner.planning.schedules import Fixed, Uniform
from bgtplanner.privacy.budget import Budgets

Floats = NDArray[np.float64]

DELTA = 1e-5
EPSILONS = [1.0, 10.0, 10.0, 3.0, 1.0, 10.0]
CLIENTS = len(EPSILONS)
ROUNDS = 12


POLICIES: list[tuple[Any, dict[str, Any]]] = [
    (BGTPlanner, {}),
    (AsPrinted, {"initial_rounds": 1}),
    (Uniform, {}),
    (Adap, {"noise_multiplier": 9.0}),  # one charge for all, until the poorest can pay no more
    (Fixed, {"weights": [1, 0, 2, 1, 1, 3, 1, 1, 0, 1, 1, 1]}),
]


def clipped_to(plan: Any, uploads: Floats) -> Floats:
    norms = np.linalg.norm(uploads, axis=1, keepdims=True)
    clipped: Floats = uploads * np.minimum(1.0, plan.clip / norms)
    return clipped


def play(planner: Any, *, size: int) -> list[list[float]]:
    """The noise multipliers of all that each client has really sent, round by round."""
    found: list[list[float]] = [[] for _ in range(CLIENTS)]
    generator = np.random.default_rng(5)
    while (plan := planner.ask()) is not None:
        uploads = 1e3 * generator.standard_normal((CLIENTS, size))  # all of them are clipped
        clipped = clipped_to(plan, uploads)
        draw, again = (np.random.default_rng(plan.round) for _ in range(2))
        sent = clipped + draw.normal(0.0, plan.noise_std, uploads.shape)
        noise = again.standard_normal(sent.shape)
        for client in range(CLIENTS):
            if not plan.participants[client]:
                assert not np.isfinite(sent[client]).any()  # should it send all the same
                continue
            scales = (sent[client] - clipped[client]) / noise[client]
            np.testing.assert_allclose(scales, scales[0], rtol=1e-6)  # on every coordinate
            sensitivity = 2 * np.linalg.norm(clipped[client])
            found[client].append(float(np.median(scales) / sensitivity))
        planner.tell(plan, reward=0.01)
    return found


def gaussian_epsilon(multipliers: list[float]) -> float:
    """Of Gaussian releases together, exactly: their inverse variances add up."""
    sigma = float(np.sum(np.square(multipliers) ** -1.0) ** -0.5)
    return float(gaussian_mechanism.get_epsilon_gaussian(sigma, DELTA))


@pytest.mark.parametrize(("kind", "options"), POLICIES)
def test_nobody_spends_more_than_its_own_budget(kind: Any, options: dict[str, Any]) -> None:
    planner = kind(Budgets.per_client(EPSILONS, DELTA), rounds=ROUNDS, clip=0.5, seed=3, **options)
    # As many coordinates as clients: noise along the wrong axis would not raise any error.
    found = play(planner, size=CLIENTS)
    spent = [gaussian_epsilon(multipliers) for multipliers in found]
    booked = planner.ledger.epsilon_spent()
    for epsilon, really, said in zip(EPSILONS, spent, booked, strict=True):
        assert really <= epsilon * (1 + 1e-6)
        assert really == pytest.approx(said, rel=1e-6)  # as the ledger says
    assert min(np.array(spent) / EPSILONS) > 0.3  # and not by spending nothing


@pytest.mark.parametrize(("neighbours", "apart"), [(None, 1.0), ("replace-one", 2.0)])
@pytest.mark.parametrize(("kind", "options"), POLICIES[:3])
def test_one_noise_in_a_sum_is_enough_for_everybody(
    kind: Any, options: dict[str, Any], neighbours: Any, apart: float
) -> None:
    """With secure aggregation the server sees a sum, and the sum has one noise.

    A client's upload and nothing in its place are one length apart, two uploads two.
    """
    budgets = Budgets.per_client(EPSILONS, DELTA)
    planner = kind(
        budgets, rounds=ROUNDS, clip=0.5, seed=3, trust="secagg", neighbours=neighbours, **options
    )
    found: list[list[float]] = [[] for _ in range(CLIENTS)]
    generator = np.random.default_rng(5)
    while (plan := planner.ask()) is not None:
        if plan.skip:
            assert np.isinf(plan.noise_std)
            planner.tell(plan)
            continue
        clipped = clipped_to(plan, 1e3 * generator.standard_normal((CLIENTS, CLIENTS)))
        noise = np.random.default_rng(plan.round).normal(0.0, plan.noise_std, CLIENTS)
        total = clipped.sum(axis=0) + noise
        drawn = np.random.default_rng(plan.round).standard_normal(CLIENTS)
        std = float(np.median((total - clipped.sum(axis=0)) / drawn))
        lengths = np.linalg.norm(clipped, axis=1)
        for client in range(CLIENTS):
            # Also who was left in the sum by mistake: there is nothing of it in there.
            assert (lengths[client] > 0) == plan.participants[client]
            if lengths[client]:
                found[client].append(std / (apart * float(lengths[client])))
        planner.tell(plan, reward=0.01)
    spent = [gaussian_epsilon(multipliers) for multipliers in found]
    for epsilon, really, said in zip(EPSILONS, spent, planner.ledger.epsilon_spent(), strict=True):
        assert really <= epsilon * (1 + 1e-6)
        assert really == pytest.approx(said, rel=1e-6)


def test_a_mean_by_weight_has_the_least_noise() -> None:
    """Without the weights, those who pay little would drown the others."""
    budgets = Budgets.per_client([1.0, 10.0, 10.0, 3.0], DELTA)
    plan = BGTPlanner(budgets, rounds=5).ask(clients=np.array([True, True, False, True]))
    assert plan is not None
    assert plan.weights[2] == 0
    assert plan.weights.max() == 1
    here = plan.participants
    std, weights = np.asarray(plan.noise_std)[here, 0], plan.weights[here]

    def noise(weights: Floats) -> float:
        return float(np.sqrt((weights**2 * std**2).sum()) / weights.sum())

    others = np.random.default_rng(0).uniform(0, 1, (200, 3))
    assert noise(weights) <= min(map(noise, others))
    assert noise(weights) < std.min() < noise(np.ones(3))


def test_under_secure_aggregation_the_sum_over_the_weights_is_the_mean() -> None:
    budgets = Budgets.per_client([1.0, 10.0, 10.0, 3.0], DELTA)
    plan = BGTPlanner(budgets, rounds=5, trust="secagg", clip=0.5).ask()
    assert plan is not None
    upload = np.array([3.0, 4.0])
    clipped = np.tile(upload, (4, 1)) * np.minimum(1.0, plan.clip / 5.0)
    np.testing.assert_allclose(clipped.sum(axis=0) / plan.weights.sum(), upload / 10)
