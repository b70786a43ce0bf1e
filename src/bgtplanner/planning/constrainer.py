"""Price the remaining budget: dual variables by entropic mirror descent (paper, eq. 10).

One resource for each class of clients with equal budgets, not for each client: a thousand equal
clients who pay the same are one resource. Costs are in any unit, as long as it is the same for a
resource's cost and its allowance.

The dual variables lie in the l1 ball of radius Z. With a slack coordinate they are Z times a point
of the simplex, and mirror descent with negative entropy is a multiplicative update, kept in
logarithms:

    log p_j <- log p_j - step * Z * (allowance_j - cost_j),    slack: unchanged,    then normalise

The paper takes one such step a round, by what the round cost. :meth:`Constrainer.replay` takes
several, by what the present prices would have cost in the latest contexts; its prices are those of
the linear programme over them (:func:`solve_programme`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linprog

from bgtplanner.errors import ConfigError
from bgtplanner.planning.given import floats, number

__all__ = ["Constrainer", "Programme", "solve_programme"]

Floats = NDArray[np.float64]

_MOST = 1e300  # of a step in logarithms: more would not be a number
_LOG_LEAST = float(np.log(1e-9))  # of the radius: less counts as 0, but must be able to rise again


class Constrainer:
    """The price of budget, one for each class of clients.

    Args:
        resources: Number of classes.
        radius: Z, the largest sum of prices; with 0 the budget is free.
        step: Step size of mirror descent.

    Example:
        >>> constrainer = Constrainer(resources=1, radius=2.0, step=0.5)
        >>> float(constrainer.prices()[0])
        1.0
        >>> constrainer.update(cost=[1.0], allowance=[0.2])  # overspent: it gets dearer
        >>> bool(constrainer.prices()[0] > 1.0)
        True
    """

    def __init__(self, *, resources: int, radius: float, step: float) -> None:
        ConfigError.unless(resources >= 1, "resources", resources, "at least 1")
        ConfigError.unless(bool(0 <= radius < np.inf), "radius", radius, "0 or a positive number")
        ConfigError.unless(bool(0 <= step < np.inf), "step", step, "0 or a positive number")
        self.radius = float(radius)
        self.step = float(step)
        self._log = np.full(resources + 1, -np.log(resources + 1))

    def prices(self) -> Floats:
        """The dual variables: reward that a unit of each resource is worth."""
        return np.asarray(self.radius * np.exp(self._log[:-1]))

    def update(self, cost: ArrayLike, allowance: ArrayLike) -> None:
        """Raise the prices of what was overspent in a round, lower the others.

        Args:
            cost: What the round took of each resource.
            allowance: What it might have taken: remaining budget over remaining rounds.
        """
        gradient = np.asarray(allowance, np.float64) - np.asarray(cost, np.float64)
        ConfigError.unless(bool(np.isfinite(gradient).all()), "cost", cost, "finite numbers")
        moved = self._log.copy()
        with np.errstate(over="ignore"):
            push = min(self.step * self.radius, _MOST) * gradient
        moved[:-1] -= np.clip(push, -_MOST, _MOST)
        self._set(moved)

    def replay(
        self, rewards: Floats, costs: Floats, allowance: Floats, *, steps: int, rate: float
    ) -> None:
        """Mirror descent on what the present prices would have cost in some contexts.

        The mean over many contexts says more than the one round that happened. The gradient is
        taken relative to the allowance and cut to [-1, 1], so that `rate` has no unit.

        Args:
            rewards: Predicted reward, ``[contexts, levels]``.
            costs: Of each level, ``[resources, levels]``.
            allowance: Mean cost allowed for each resource.
            steps: How many.
            rate: By which factor (its logarithm) prices move in a step, at most.
        """
        # A resource that nobody can pay from any more has no price: it costs nothing, so it falls.
        per_context = costs / (np.maximum(allowance, 1e-300)[:, None] * len(rewards))
        for _ in range(steps):
            chosen = (rewards - self.prices() @ costs).argmax(axis=1)
            over = np.minimum(per_context.take(chosen, axis=1).sum(axis=1) - 1.0, 1.0)
            moved = self._log.copy()
            moved[:-1] += rate * over
            self._set(moved)

    def _set(self, logs: Floats) -> None:
        logs = logs - logs.max()  # first, or huge ones lose their digits
        self._log = np.maximum(logs - np.log(np.exp(logs).sum()), _LOG_LEAST)

    def state_dict(self) -> dict[str, Any]:
        """Everything, as plain data."""
        return {"radius": self.radius, "step": self.step, "log": self._log.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave."""
        radius, step = (number(name, state[name], 0.0) for name in ("radius", "step"))
        self._log = floats("log", state["log"], self._log.shape, -1e6, 1.0)
        self.radius, self.step = radius, step


class Programme(NamedTuple):
    """Solution of the linear programme.

    Attributes:
        optimum: Best mean reward; 0 if not even the cheapest levels fit.
        prices: What one more unit of each resource a round would bring; 0 where it does not fit.
        fits: Whether there is a solution.
    """

    optimum: float
    prices: Floats
    fits: bool


def solve_programme(rewards: ArrayLike, costs: ArrayLike, allowance: ArrayLike) -> Programme:
    """Best mixture of levels, for each of some contexts, whose mean cost is allowed (eq. 11).

    Args:
        rewards: Predicted reward, ``[contexts, levels]``.
        costs: Of each level, ``[resources, levels]``.
        allowance: Mean cost allowed for each resource.

    Example:
        >>> solve_programme([[0.0, 1.0]], costs=[[0.0, 2.0]], allowance=[0.5]).optimum
        0.25
    """
    predicted = np.atleast_2d(np.asarray(rewards, dtype=np.float64))
    cost = np.atleast_2d(np.asarray(costs, dtype=np.float64))
    limit = np.atleast_1d(np.asarray(allowance, dtype=np.float64))
    contexts, levels = predicted.shape
    fits = contexts > 0 and cost.shape[1] == levels and cost.shape[0] == len(limit)
    ConfigError.unless(fits, "costs", cost.shape, f"({len(limit)}, {levels})")
    finite = all(bool(np.isfinite(values).all()) for values in (predicted, cost, limit))
    ConfigError.unless(finite, "rewards", "NaN", "finite numbers")
    found = linprog(
        -predicted.ravel() / contexts,
        A_ub=np.tile(cost, contexts) / contexts,
        b_ub=limit,
        A_eq=np.kron(np.eye(contexts), np.ones(levels)),
        b_eq=np.ones(contexts),
        method="highs",
    )
    if found.status != 0:
        return Programme(0.0, np.zeros(len(limit)), False)
    return Programme(float(-found.fun), np.maximum(-found.ineqlin.marginals, 0.0), True)
