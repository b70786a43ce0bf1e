"""Synthetic bandits with a knapsack and a context, whose optimum is known.

A round at charge c (in even shares: 1 is the budget over the rounds) brings

    worth * c^2 / (c^2 + need^2)

in expectation: nothing while noise drowns it, and no more than `worth` however much is paid, as a
noisy training round does. What a round is worth and what it needs depends on its context.

* ``stationary``: contexts are drawn anew each round, nothing else changes.
* ``drifting``: what a round is worth swings twice over the run, and the meaning of the context
  turns into its opposite.
* ``diminishing``: like a training curve, every gain takes its part of what is left to gain.
* ``bursts``: a round is worth much in a burst and little outside. Bursts come and go by a Markov
  chain with two states; the context says with noise which of them it is.
* ``service``: like ``diminishing``, but what a round brings is served until the end, so its reward
  is its gain times the share of the rounds that are left. The total is the mean over the rounds of
  what has been gained by then.

These, and the seeds and numbers of rounds, were fixed before the planner was tuned; the last two
were added later, before it was tuned again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

KINDS = ("stationary", "drifting", "diminishing", "bursts", "service")  # seeds: only append
ROUNDS = (250, 500, 1000, 2000, 4000)
SEEDS = tuple(range(20))
DEAREST = 8.0  # even shares that a single round may cost at most
_GRID = np.linspace(0.0, DEAREST, 161)  # charges among which the optimum is sought
_BEGINS, _ENDS = 0.03, 0.1  # chances that a burst begins or ends from one round to the next
_BLUR = 0.35  # spread of what the context says of a burst, around 0 or 1
_CUTS = 40  # linear bounds of what is served, each around a better schedule than the last


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
        self._gained = 0.0  # on a training curve: the share of all that there is to gain
        self._shown = self.drawn
        if self.kind == "bursts":
            moves = generator.uniform(size=self.rounds)
            bursting = _chain(moves)
            blurred = bursting + _BLUR * generator.standard_normal(self.rounds)
            self._shown = np.stack([blurred, self.drawn[:, 1]], axis=1)
            self.drawn[:, 0] = bursting

    def context(self, index: int) -> Floats:
        """What may be looked at before a round."""
        if self.kind == "diminishing":
            return np.append(self.drawn[index], self.seen)
        if self.kind == "service":
            return np.append(self.drawn[index], [self.seen, self._left(index)])
        return np.asarray(self._shown[index])

    def play(self, index: int, charge: float) -> float:
        """The observed reward of a round at a charge in even shares; a skipped round brings 0."""
        if charge <= 0:
            return 0.0
        gain = float(self._share(np.array([index]), np.array([charge]))[0, 0])
        spread, counts = 0.1, 1.0
        if self._curved:
            spread = 0.3 * self._rate
            gain *= self._rate * (1 - self._gained)
            self._gained += gain
        if self.kind == "service":
            counts = self._left(index)
        self.total += counts * gain
        observed = gain + spread * float(self._noise[index])
        self.seen += observed
        return counts * observed

    def optimum(self) -> float:
        """Most that anybody can expect to collect who knows every round beforehand.

        The Lagrangian bound: least over prices of what the best charge of every round brings after
        its price, plus the worth of the budget. No schedule can have more. In ``bursts`` it also
        knows the state that the context only hints at.
        """
        value = self._share(np.arange(self.rounds), _GRID)
        if self._curved:  # logarithms of what is left to gain add up
            value = -np.log1p(-self._rate * value)
        if self.kind == "service":
            return _most_served(value)
        best = _priced(value).bound
        return -float(np.expm1(-best)) if self.kind == "diminishing" else best

    @property
    def _curved(self) -> bool:
        return self.kind in ("diminishing", "service")

    def _left(self, index: int) -> float:
        """The share of the rounds in which the gain of this one is served."""
        return 1 - index / self.rounds

    @property
    def _rate(self) -> float:
        return min(8.0 / self.rounds, 0.9)  # no round takes everything

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


class _Priced(NamedTuple):
    """The Lagrangian bound, and what its prices bring if they are mixed to spend the budget."""

    bound: float
    values: Floats


def _priced(value: Floats) -> _Priced:
    """Bound the sum of values ``[rounds, charges]`` that an even share for each round can buy."""
    rounds = len(value)

    def bound(price: float) -> float:
        return float((value - price * _GRID).max(axis=1).sum() + price * rounds)

    low, high = 0.0, float((value[:, 1:] / _GRID[1:]).max())
    for _ in range(60):  # convex in the price
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, right) if bound(left) < bound(right) else (left, high)
    best = (low + high) / 2
    slack = 1e-6 * best
    ends = [(value - price * _GRID).argmax(axis=1) for price in (best - slack, best + slack)]
    more, less = (float(_GRID[end].sum()) for end in ends)
    part = float(np.clip((rounds - less) / max(more - less, 1e-12), 0, 1))
    many, few = (np.take_along_axis(value, end[:, None], axis=1)[:, 0] for end in ends)
    return _Priced(bound(best), part * many + (1 - part) * few)


def _most_served(value: Floats) -> float:
    """Bound the mean over rounds of ``1 - exp(-sum of the values so far)``.

    What is left to gain, summed over rounds, is convex in the values: around any schedule it is at
    least linear, and a linear sum has a Lagrangian bound. The best of these bounds counts. Each is
    taken around a mixture of the schedules before (Frank and Wolfe), so they soon are tight.
    """
    rounds = len(value)
    around, least = value[:, np.searchsorted(_GRID, 1.0)], 0.0  # begins with even shares

    def left(values: Floats) -> Floats:
        return np.asarray(np.exp(-np.cumsum(values)))

    for cut in range(_CUTS):
        remains = left(around)
        counts = np.cumsum(remains[::-1])[::-1]  # what a little more in a round takes away in all
        found = _priced(counts[:, None] * value)
        least = max(least, float(remains.sum() + counts @ around) - found.bound)
        if remains.sum() - least < 1e-4 * rounds:
            break
        towards = found.values / counts - around
        steps = np.linspace(0, 1, 51) if cut else np.ones(1)
        sums = [float(left(around + step * towards).sum()) for step in steps]
        around = around + steps[int(np.argmin(sums))] * towards
    return 1 - least / rounds


def _chain(moves: Floats) -> Floats:
    """The states of the chain, 0 or 1, from uniform draws; it begins outside of a burst."""
    states, state = np.zeros(len(moves)), False
    for index, move in enumerate(moves):
        state = move >= _ENDS if state else move < _BEGINS
        states[index] = state
    return states
