"""The planner in a training loop that already exists: three lines, NumPy only.

    python examples/numpy_loop.py

Two thousand people fit a logistic regression together. Each of them clips the gradient and adds
Gaussian noise before sending it; no one is trusted. The lines of the planner are marked with
`# <-`. The reward is measured on public data, so it costs no privacy. In a problem as even as this
one the planner ends about where an even schedule does; it departs from it on evidence only. The
same lines work for people with different budgets: `plan.noise_std` then has one number per person.
"""

# ruff: noqa: T201

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bgtplanner import BGTPlanner, Budget, Budgets
from bgtplanner.planning.policy import LedgerPolicy
from bgtplanner.planning.schedules import Uniform

Floats = NDArray[np.float64]

CLIENTS, POINTS, FEATURES, ROUNDS = 2000, 20, 10, 60
LEARNING_RATE = 0.5
BUDGET = Budget(epsilon=10.0, delta=1e-5)


def make_data(people: int, seed: int, truth: Floats) -> tuple[Floats, Floats]:
    """Features ``[people, points, features]`` and labels of 0 and 1."""
    generator = np.random.default_rng(seed)
    features = generator.standard_normal((people, POINTS, FEATURES))
    chance = 1 / (1 + np.exp(-features @ truth))
    return features, (generator.random(chance.shape) < chance).astype(np.float64)


def loss(weights: Floats, features: Floats, labels: Floats) -> float:
    """Mean negative log likelihood."""
    logits = features @ weights
    return float(np.mean(np.logaddexp(0.0, logits) - labels * logits))


def gradients(weights: Floats, features: Floats, labels: Floats) -> Floats:
    """One gradient per person, ``[people, features]``."""
    errors = 1 / (1 + np.exp(-features @ weights)) - labels
    return np.asarray(np.einsum("pnf,pn->pf", features, errors) / POINTS)


def train(planner: LedgerPolicy, *, show: bool) -> float:
    """Train until the budget is spent, and return the loss on public data."""
    truth = np.random.default_rng(7).standard_normal(FEATURES)
    features, labels = make_data(CLIENTS, 1, truth)
    public = make_data(100, 2, truth)
    generator = np.random.default_rng(3)  # on a real client: the operating system's
    weights = np.zeros(FEATURES)
    before = loss(weights, *public)
    while (plan := planner.ask()) is not None:  # <- reserves; None: the budget is spent
        if plan.skip:  # <- this round is worth less than its price: no one sends anything
            planner.tell(plan)
            continue
        uploads = gradients(weights, features, labels)
        norms = np.linalg.norm(uploads, axis=1, keepdims=True)
        uploads *= np.minimum(1.0, plan.clip / np.maximum(norms, 1e-12))
        uploads += generator.normal(0.0, plan.noise_std, uploads.shape)
        weights -= LEARNING_RATE * uploads[plan.participants].mean(axis=0)
        after = loss(weights, *public)
        planner.tell(plan, reward=before - after)  # <- settles, and learns
        before = after
        if show and plan.round % 6 == 0:
            print(
                f"{plan.round:5d}  {plan.charge:7.3f}  {plan.noise_std:9.2f}"
                f"  {planner.ledger.epsilon_spent()[0]:13.2f}  {after:6.4f}"
            )
    return before


def main() -> None:
    """Print some rounds of the planner's run, and where an even schedule ends."""
    print("round   charge  noise_std  epsilon_spent    loss")
    planned = train(BGTPlanner(BUDGET, CLIENTS, rounds=ROUNDS, clip=0.5, seed=0), show=True)
    even = train(Uniform(BUDGET, CLIENTS, rounds=ROUNDS, clip=0.5), show=False)
    budgets = Budgets.shares("3:0.5,10:0.5", CLIENTS, delta=1e-5, seed=0)
    planner = BGTPlanner(budgets, rounds=ROUNDS, clip=0.5, seed=0)
    mixed = train(planner, show=False)
    spent = planner.ledger.epsilon_spent()
    low, high = (spent[budgets.class_of_client == number].max() for number in (0, 1))
    print(f"half of them at epsilon 3: loss {mixed:.4f}, epsilon spent {low:.2f} and {high:.2f}")
    print(f"loss on public data: {planned:.4f} planned, {even:.4f} with an even schedule")


if __name__ == "__main__":
    main()
