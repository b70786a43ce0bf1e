"""The price of budget: the programme by brute force, mirror descent by a numerical solver."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import minimize

from bgtplanner.paper.algorithms import linear_programme
from bgtplanner.planning.constrainer import Constrainer

Floats = NDArray[np.float64]


# ---- mirror descent


def step_by_solver(before: Floats, gradient: Floats, step: float, radius: float) -> Floats:
    """argmin of <step * gradient, radius * p> + KL(p, before) over the simplex with slack."""
    slope = np.r_[step * radius * gradient, 0.0]

    def loss(logits: Floats) -> tuple[float, Floats]:
        logits = logits - logits.max()
        point = np.exp(logits) / np.exp(logits).sum()
        inner = slope + np.log(point / before)
        value = float(point @ inner)
        return value, point * (inner - value)

    found = minimize(loss, np.log(before), jac=True, method="BFGS", options={"gtol": 1e-10})
    point = np.exp(found.x - found.x.max())
    return np.asarray(radius * (point / point.sum())[:-1])


@pytest.mark.parametrize("seed", range(12))
def test_an_update_is_the_step_that_a_numerical_solver_finds(seed: int) -> None:
    generator = np.random.default_rng(seed)
    resources, radius = int(generator.integers(1, 5)), float(generator.uniform(0.5, 5))
    step = float(generator.uniform(0.05, 0.6))
    constrainer = Constrainer(resources=resources, radius=radius, step=step)
    for _ in range(4):
        prices = constrainer.prices()
        before = np.r_[prices, radius - prices.sum()] / radius
        cost, allowance = generator.uniform(0, 1, resources), generator.uniform(0, 1, resources)
        constrainer.update(cost, allowance)
        expected = step_by_solver(before, allowance - cost, step, radius)
        np.testing.assert_allclose(constrainer.prices(), expected, atol=1e-6)


@given(
    st.lists(
        st.tuples(st.floats(-1e300, 1e300), st.floats(-1e300, 1e300)), min_size=1, max_size=10
    ),
    st.floats(0, 1e300),
    st.floats(0, 1e300),
)
@settings(max_examples=100, deadline=None)
def test_prices_stay_in_the_ball_whatever_comes(
    costs: list[tuple[float, float]], radius: float, step: float
) -> None:
    constrainer = Constrainer(resources=2, radius=radius, step=step)
    for cost in costs:
        constrainer.update(cost=cost, allowance=[0.0, 1.0])
        prices = constrainer.prices()
        assert np.isfinite(prices).all()
        assert (prices >= 0).all()
        assert prices.sum() <= radius * (1 + 1e-8)


# ---- replay


def world(seed: int, resources: int, contexts: int = 64) -> tuple[Floats, Floats]:
    generator = np.random.default_rng([seed, 2])
    costs = generator.uniform(0.1, 1.0, (resources, 5))
    costs[:, 0] = 0.0
    rewards = generator.uniform(0, 1, (contexts, 1)) * np.sqrt(costs.mean(axis=0))
    return rewards + 0.5 * generator.uniform(0, 1, (contexts, 5)), costs


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("allowance", [0.1, 0.25, 0.4])
def test_replay_finds_the_price_of_the_programme(seed: int, allowance: float) -> None:
    rewards, costs = world(seed, 1)
    constrainer = Constrainer(resources=1, radius=10.0, step=0.1)
    limit = np.array([allowance])
    for steps, rate in ((1000, 0.05), (1000, 0.005)):
        constrainer.replay(rewards, costs, limit, steps=steps, rate=rate)
    more, less = (linear_programme(rewards, costs, limit + by) for by in (1e-7, -1e-7))
    wanted = (more - less) / 2e-7  # the slope of the optimum
    np.testing.assert_allclose(constrainer.prices(), wanted, rtol=0.02, atol=2e-3)
