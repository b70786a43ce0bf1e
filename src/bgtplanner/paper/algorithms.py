"""Algorithms 1 to 3 of the paper, as printed: plain functions, with the numbers of its equations.

Equations are numbered as LaTeX numbers them in the paper's source; "Alg. 1.20" is line 20 of
Algorithm 1. Names are those of the paper: A levels, T rounds, T0 rounds of each level in the
initial stage, s and alpha of the kernel, Lambda the radius.

What the text leaves open is read as follows. The linear programme is over one distribution of
levels per round, as in the definition of OPT; its constraint holds for every client. E(T0) and its
predictions come from the predictor after the whole initial stage, as in Alg. 1. The divergence is
that of the negative entropy: a step multiplies each multiplier by exp(-step * slope), and scales
all of them down where their sum exceeds Lambda. Sigma and the step are those of the authors' code.

Errors of the print are arguments, and not mended: `power` is 1, where the kernel's name has 2;
`sign` is -1, which rewards spending, where it has to be +1 (Han et al. 2023).

``python -m bgtplanner.paper.algorithms`` plays a small federation and prints its rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linprog
from scipy.spatial.distance import cdist

from bgtplanner.planning.allocator import probabilities
from bgtplanner.planning.arguments import Floats

Record = Sequence[Any]
"""A round that was played, of the history H: its number, its level, its context, its reward."""
See = Callable[[int], Floats]
Play = Callable[[int, int], float]
"""The context of a round, and its reward once it was played with a level."""

SIGMA = 0.1  # of the noise in a reward; the text has no value


class Given(NamedTuple):
    """What the algorithms are given; clients with equal budgets are one class.

    Attributes:
        totals: Total budget of each class, epsilon.
        each: The number of clients of each class.
        costs: What each level costs each class, ``[classes, A]``; see :func:`budget_levels`.
        gamma: How strongly the best level is preferred; see :func:`gamma`.
    """

    totals: Floats
    each: Floats
    costs: Floats
    T: int
    T0: int
    gamma: float
    s: float = 0.2
    alpha: float = 0.001


# ---- Predictor


def kernel(
    z: Floats, t: Floats, other: Floats, when: Floats, s: float, alpha: float, power: int = 1
) -> Floats:
    """Eq. 4: how similar some inputs are to others, each with its round; a row per input."""
    old = (1 - alpha) ** (np.abs(t[:, None] - when) / 2)
    return np.asarray(old * np.exp(-(cdist(z, other) ** power) / (2 * s**2)))


def posterior_mean(near: Floats, among: Floats, rewards: Floats) -> Floats:
    """Eq. 5: mu(z), by the kernel between z and the history, and among the history."""
    return np.asarray(near @ np.linalg.solve(among + SIGMA**2 * np.eye(len(rewards)), rewards))


def predicted(given: Given, history: Sequence[Record], context: Floats, t: float) -> Floats:
    """Alg. 1.20 and 3.6: the mean reward of every level in a context, with z = [a, x]."""
    levels = np.arange(float(given.costs.shape[1]))
    if not history:  # mu_0 is 0
        return np.zeros(len(levels))
    z = np.stack([np.append(float(level), x) for _, level, x, _ in history])
    when, rewards = (np.array([float(one[at]) for one in history]) for at in (0, 3))
    asked = np.column_stack([levels, np.tile(context, (len(levels), 1))])
    near = kernel(asked, np.full(len(levels), float(t)), z, when, given.s, given.alpha)
    return posterior_mean(near, kernel(z, when, z, when, given.s, given.alpha), rewards)


# ---- Constrainer


def margin(error: float, levels: int, rounds: int, tries: int, clients: float) -> float:
    """Eq. 9d: M(T0), from the squared error E(T0) of eq. 9e."""
    return float(np.sqrt(levels * error + 4 * np.log(rounds * clients) / tries))


def linear_programme(rewards: Floats, costs: Floats, limits: Floats) -> float:
    """Eqs. 9a and 9b: the best mean reward of a mixture of levels whose mean cost is allowed.

    There is a mixture for each context. Rewards are predicted ones, ``[contexts, levels]``; costs
    are of each level, ``[resources, levels]``.

    Example:
        >>> linear_programme(np.array([[0.0, 1.0]]), np.array([[0.0, 2.0]]), np.array([0.5]))
        0.25
    """
    contexts, levels = rewards.shape
    found = linprog(
        -rewards.ravel() / contexts,
        A_ub=np.tile(costs, contexts) / contexts, b_ub=limits,
        A_eq=np.kron(np.eye(contexts), np.ones(levels)), b_eq=np.ones(contexts), method="highs",
    )  # fmt: skip
    return float(-found.fun) if found.status == 0 else 0.0  # even the cheapest cost too much


def radius(given: Given, optimum: float, slack: float) -> float:
    """Eq. 10 and Alg. 1.23: Lambda; the smallest total budget is that of eq. 9f."""
    return float(given.T / given.totals.min() * (optimum + slack))


def first_multipliers(draw: np.random.Generator, radius: float, each: Floats) -> Floats:
    """Alg. 3.2: a uniform point of the ball (a flat Dirichlet), summed over each class."""
    return np.asarray(max(radius, 0.0) * draw.dirichlet(np.append(each, 1.0))[:-1])


def dual_step(multipliers: Floats, slope: Floats, step: float, radius: float) -> Floats:
    """Eq. 8: one step of mirror descent with negative entropy, back into the ball."""
    logs = np.log(np.maximum(multipliers, 1e-300)) - step * slope
    most = np.log(max(radius, 1e-300))
    return np.asarray(np.exp(logs - max(float(np.logaddexp.reduce(logs)) - most, 0.0)))


# ---- Allocator


def budget_levels(total: Floats, rounds: int, fewest: int, levels: int) -> Floats:
    """Return C_u(a): from epsilon / T up to epsilon / T_min, evenly, ``[clients, levels]``."""
    return np.linspace(total / rounds, total / fewest, levels, axis=1)


def scores(
    mean: Floats, allowance: Floats, costs: Floats, multipliers: Floats, sign: float = -1.0
) -> Floats:
    """Eq. 11: beta(a), the mean less the penalty (as printed: plus what is spent too much)."""
    return np.asarray(mean + sign * (multipliers @ (allowance[:, None] - costs)))


def gamma(levels: int, rounds: int, clients: int) -> float:
    """Return 2 sqrt(A T / ((U + 2) log T)): about 0.7, which is almost uniform."""
    return float(2 * np.sqrt(levels * rounds / ((clients + 2) * np.log(max(rounds, 2)))))


# ---- Algorithms


def look_back(given: Given, history: Sequence[Record]) -> tuple[float, float]:
    """Alg. 1.20 to 1.22: the estimated optimum, and M(T0), after the initial stage."""
    begins = given.costs.shape[1] * given.T0
    trials = [one for one in history if begins <= one[0] < begins + given.T0]  # eq. 9c
    spread = given.costs.shape[1], given.T, given.T0, float(given.each.sum())
    if not trials:
        return 0.0, margin(0.0, *spread)
    means = np.stack([predicted(given, history, x, t) for t, _, x, _ in trials])
    errors = [row[level] - r for row, (_, level, _, r) in zip(means, trials, strict=True)]
    slack = margin(float(np.mean(np.square(errors))), *spread)
    limits = np.full(len(given.totals), given.totals.min() / given.T + 2 * slack)
    return linear_programme(means, given.costs, limits), slack


def dpfr_round(
    draw: np.random.Generator, model: Floats, data: Floats, epsilon: Floats, clip: float
) -> Floats:
    """Alg. 2: return the model after a round that costs each client its epsilon, C_u(a).

    The learner here is the mean of the clients' data. Noise is Laplace's, so epsilons add up.
    """
    gradient = model - data  # line 1 of the clients
    size = np.abs(gradient).sum(axis=1, keepdims=True)
    gradient = gradient * np.minimum(1, clip / np.maximum(size, 1e-300))
    noise = draw.laplace(size=gradient.shape) * (2 * clip / epsilon)[:, None]  # line 2
    uploads = gradient + noise  # lines 3 and 4
    return np.asarray(model - uploads.mean(axis=0))  # lines 1 and 2 of the server


def initial_stage(
    given: Given, draw: np.random.Generator, see: See, play: Play
) -> tuple[float, list[Record]]:
    """Alg. 1: return Lambda and the history of the first (A + 1) T0 rounds."""
    levels, history = given.costs.shape[1], list[Record]()
    for t in range((levels + 1) * given.T0):
        # Lines 3 and 4: each level in turn; line 13: any level.
        level = t // given.T0 if t < levels * given.T0 else int(draw.integers(levels))
        history.append((t, level, see(t), play(t, level)))
    return radius(given, *look_back(given, history)), history


def bgtplanner(given: Given, draw: np.random.Generator, see: See, play: Play) -> list[Record]:
    """Alg. 3: return the history of all rounds; it ends with the budget of every client."""
    most, history = initial_stage(given, draw, see, play)  # line 1
    multipliers = first_multipliers(draw, most, given.each)  # line 2
    allowance, step = given.totals / given.T, 2 * np.log(given.each.sum()) / np.sqrt(given.T)
    left = given.totals - sum(given.costs[:, one[1]] for one in history)
    for t in range(len(history), given.T):  # line 3
        if (left < given.costs[:, 0]).all():  # line 4
            break
        x = see(t)
        beta = scores(predicted(given, history, x, t), allowance, given.costs, multipliers)
        chance = probabilities(beta, given.gamma)  # line 8, by eqs. 12 and 13
        level = int(draw.choice(len(chance), p=chance))  # line 9
        cost = given.costs[:, level]
        history.append((t, level, x, play(t, level)))
        left = left - cost  # line 11
        multipliers = dual_step(multipliers, -(allowance - cost), step, most)  # line 15
    return history


def main() -> None:
    """Play a small federation, and print its rounds."""
    draw, clients, totals = np.random.default_rng(0), 4000, np.array([50.0])
    data, models = draw.normal(0.5, 0.1, (clients, 4)), [np.zeros(4)]
    costs = budget_levels(totals, 100, 70, 5)
    given = Given(totals, np.array([float(clients)]), costs, 100, 3, gamma(5, 100, clients))

    def play(t: int, level: int) -> float:
        epsilon = np.full(clients, costs[0, level])
        models.append(dpfr_round(draw, models[-1], data, epsilon, clip=1.0))
        before, after = (float(np.sqrt(np.mean((of - data) ** 2))) for of in models[-2:])
        print(f"{t + 1:5}  {level + 1:5}  {costs[0, level]:7.4f}  {after:.4f}")  # noqa: T201
        return before - after

    print("round  level  epsilon   RMSE")  # noqa: T201
    bgtplanner(given, draw, lambda _: models[-1], play)


if __name__ == "__main__":
    main()
