"""Price the remaining budget: dual variables by entropic mirror descent (paper, eq. 8).

There is one resource per class of clients with equal budgets. The dual variables lie in the l1
ball of radius Z. With a slack coordinate they are Z times a point of the simplex, and mirror
descent with negative entropy is a multiplicative update, kept in logarithms:

    log p_j <- log p_j - step * Z * (allowance_j - cost_j),    slack: unchanged,    then normalise

The paper takes one such step per round, by what the round cost. :meth:`Constrainer.replay` takes
several steps, by what the present prices would have cost in the latest contexts; its prices
approach those of the linear programme over these contexts.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from bgtplanner.errors import ConfigError
from bgtplanner.planning.arguments import Floats, number

_MOST = 1e300  # bounds a step in logarithms, so that it stays finite
_LOG_LEAST = float(np.log(1e-9))  # smallest share of the radius, so that it can rise again


class Constrainer:
    """The price of budget, one per class of clients; their sum is at most the radius, Z.

    Example:
        >>> constrainer = Constrainer(resources=1, radius=2.0, step=0.5)
        >>> float(constrainer.prices()[0])
        1.0
        >>> constrainer.update(cost=[1.0], allowance=[0.2])  # overspent: it gets dearer
        >>> bool(constrainer.prices()[0] > 1.0)
        True
    """

    remembers = ("radius", "step", "_log")

    def __init__(self, *, resources: int, radius: float, step: float) -> None:
        self.radius, self.step = number("radius", radius, 0.0), number("step", step, 0.0)
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
        with np.errstate(over="ignore"):
            push = min(self.step * self.radius, _MOST) * gradient
        self._move(-np.clip(push, -_MOST, _MOST))

    def replay(
        self, rewards: Floats, costs: Floats, allowance: Floats, *, steps: int, rate: float
    ) -> None:
        """Run mirror descent on what the present prices would have cost in some contexts.

        The gradient is taken relative to the allowance and cut to [-1, 1], so that `rate`, the
        most that the logarithm of a price moves per step, has no unit. Rewards are predicted ones,
        ``[contexts, levels]``, and costs those of each level, ``[resources, levels]``.
        """
        # A resource that no one can pay from any more costs nothing, so its price falls.
        per_context = costs / (np.maximum(allowance, 1e-300)[:, None] * len(rewards))
        for _ in range(steps):
            chosen = (rewards - self.prices() @ costs).argmax(axis=1)
            spent = np.add.reduce(per_context.take(chosen, axis=1), axis=1)
            self._move(rate * np.minimum(spent - 1.0, 1.0))

    def _move(self, by: Floats) -> None:
        logs = self._log + np.append(by, 0.0)
        logs -= np.maximum.reduce(logs)  # first: huge logarithms would lose their digits
        self._log = np.maximum(logs - np.log(np.add.reduce(np.exp(logs))), _LOG_LEAST)
