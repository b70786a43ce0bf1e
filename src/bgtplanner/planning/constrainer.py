"""Price the remaining budget: dual variables by entropic mirror descent (paper, eq. 10).

There is one resource per class of clients with equal budgets, not one per client: a thousand
clients who all pay the same are one resource. Costs may be in any unit, as long as a resource's
cost and allowance share it.

The dual variables lie in the l1 ball of radius Z. With a slack coordinate they are Z times a point
of the simplex, and mirror descent with negative entropy is a multiplicative update, kept in
logarithms:

    log p_j <- log p_j - step * Z * (allowance_j - cost_j),    slack: unchanged,    then normalise

The paper takes one such step per round, by what the round cost. :meth:`Constrainer.replay` takes
several steps, by what the present prices would have cost in the latest contexts; its prices
approach those of the linear programme over these contexts (:func:`solve_programme`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import linprog

from bgtplanner.errors import ConfigError
from bgtplanner.planning.arguments import Floats

_MOST = 1e300  # bounds a step in logarithms, so that it stays finite
_LOG_LEAST = float(np.log(1e-9))  # smallest share of the radius, so that it can rise again


class Constrainer:
    """The price of budget, one per class of clients.

    Args:
        resources: The number of classes.
        radius: The largest sum of prices, Z; with 0 the budget is free.
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
        """Return the dual variables: how much reward a unit of each resource is worth."""
        prices: Floats = self.radius * np.exp(self._log[:-1])
        return prices

    def update(self, cost: ArrayLike, allowance: ArrayLike) -> None:
        """Raise the price of each resource of which a round cost more than its allowance.

        The allowance is the remaining budget over the remaining rounds; other prices fall.
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
        """Run mirror descent on what the present prices would have cost in some contexts.

        The mean over many contexts says more than the one round that happened. The gradient is
        taken relative to the allowance and cut to [-1, 1], so that `rate`, the most that the
        logarithm of a price moves per step, has no unit.

        Rewards are predicted ones, ``[contexts, levels]``, and costs those of each level,
        ``[resources, levels]``.
        """
        # A resource that no one can pay from any more costs nothing, so its price falls.
        per_context = costs / (np.maximum(allowance, 1e-300)[:, None] * len(rewards))
        for _ in range(steps):
            chosen = (rewards - self.prices() @ costs).argmax(axis=1)
            spent = np.add.reduce(per_context.take(chosen, axis=1), axis=1)
            moved = self._log.copy()
            moved[:-1] += rate * np.minimum(spent - 1.0, 1.0)
            self._set(moved)

    def _set(self, logs: Floats) -> None:
        logs = logs - np.maximum.reduce(logs)  # first: huge logarithms would lose their digits
        self._log = np.maximum(logs - np.log(np.add.reduce(np.exp(logs))), _LOG_LEAST)

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state, as plain data."""
        return {"radius": self.radius, "step": self.step, "log": self._log.tolist()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned."""
        self.radius, self.step = state["radius"], state["step"]
        self._log = np.array(state["log"], dtype=np.float64)


class Programme(NamedTuple):
    """The solution of the linear programme; there is none if the cheapest levels cost too much.

    Attributes:
        optimum: The best mean reward; 0 if there is no solution.
        prices: What one more unit of each resource per round would bring; 0 without a solution.
    """

    optimum: float
    prices: Floats


def solve_programme(rewards: ArrayLike, costs: ArrayLike, allowance: ArrayLike) -> Programme:
    """Find the best mixture of levels per context whose mean cost is allowed (eq. 11).

    Args:
        rewards: Predicted rewards, ``[contexts, levels]``.
        costs: Cost of each level, ``[resources, levels]``.
        allowance: Mean cost allowed per resource.

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
        return Programme(0.0, np.zeros(len(limit)))
    return Programme(float(-found.fun), np.maximum(-found.ineqlin.marginals, 0.0))
