"""Synthetic bandits with a knapsack and a context, whose optimum is known.

A round at charge c (in even shares: 1 is the budget over the rounds) brings

    worth * c^2 / (c^2 + need^2)

in expectation: nothing while noise drowns it, and no more than `worth` however much is paid, as a
noisy training round does. What a round is worth and what it needs depends on its context.

* ``stationary``: contexts are drawn anew each round, nothing else changes.
* ``drifting``: what a round is worth swings twice over the run, and the meaning of the context
  turns into its opposite.
* ``diminishing``: like a training curve, every gain takes its part of what is left to gain.

These, and the seeds and numbers of rounds, were fixed before the planner was tuned.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

KINDS = ("stationary", "drifting", "diminishing")
ROUNDS = (250, 500, 1000, 2000, 4000)
SEEDS = tuple(range(20))
DEAREST = 8.0  # even shares that a single round may cost at most
_GRID = np.linspace(0.0, DEAREST, 161)  # charges among which the optimum is sought


@dataclass
class Environment:
    """One run of one kind.

    Args:
        kind: One of `KINDS`.
        rounds: T.
        seed: Of contexts and noise.
    """

    kind: str
    rounds: int
    seed: int
    total: float = 0.0  # expected reward collected so far
    seen: float = 0.0  # observed reward collected so far
    drawn: Floats = field(init=False)

    def __post_init__(self) -> None:
        generator = np.random.default_rng([self.seed, KINDS.index(self.kind), self.rounds])
        self.drawn = generator.uniform(size=(self.rounds, 2))
        self._noise = generator.standard_normal(self.rounds)

    def context(self, index: int) -> Floats:
        """What may be looked at before a round."""
        if self.kind == "diminishing":
            return np.append(self.drawn[index], self.seen)
        return self.drawn[index]

    def play(self, index: int, charge: float) -> float:
        """The observed reward of a round at a charge in even shares; a skipped round brings 0."""
        if charge <= 0:
            return 0.0
        gain = float(self._share(np.array([index]), np.array([charge]))[0, 0])
        spread = 0.1
        if self.kind == "diminishing":
            spread = 0.3 * self._rate
            gain *= self._rate * (1 - self.total)
        self.total += gain
        observed = gain + spread * float(self._noise[index])
        self.seen += observed
        return observed

    def optimum(self) -> float:
        """Most that anybody can expect to collect who knows every round beforehand.

        The Lagrangian bound: least over prices of what the best charge of every round brings after
        its price, plus the worth of the budget. No schedule can have more.
        """
        value = self._share(np.arange(self.rounds), _GRID)
        if self.kind == "diminishing":  # logarithms of what is left to gain add up
            value = -np.log1p(-self._rate * value)

        def bound(price: float) -> float:
            return float((value - price * _GRID).max(axis=1).sum() + price * self.rounds)

        low, high = 0.0, float((value[:, 1:] / _GRID[1:]).max())
        for _ in range(60):  # convex in the price
            left, right = low + (high - low) / 3, high - (high - low) / 3
            low, high = (low, right) if bound(left) < bound(right) else (left, high)
        best = bound((low + high) / 2)
        return -float(np.expm1(-best)) if self.kind == "diminishing" else best

    @property
    def _rate(self) -> float:
        return 8.0 / self.rounds

    def _share(self, index: NDArray[np.int64], charges: Floats) -> Floats:
        """Expected reward ``[rounds, charges]``; on a training curve, of what is left to gain."""
        first, second = self.drawn[index, 0], self.drawn[index, 1]
        worth = 0.1 + 0.9 * first
        if self.kind == "drifting":
            past = index / self.rounds
            worth = worth * (0.6 + 0.4 * np.sin(4 * np.pi * past))
            second = (1 - past) * second + past * (1 - second)
        need = 0.5 + 2 * second
        squares = charges**2
        return np.asarray(worth[:, None] * squares / (squares + need[:, None] ** 2))
