"""Policies that follow a formula: the usual baselines.

They spend from the same ledger by the same rules. What is known in advance is a :class:`Schedule`,
which says in one function in which proportions the budget is divided between the rounds.
"""
# ruff: noqa: ARG002, ARG003 - what is known in advance looks at nothing

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.signal import lfilter

from bgtplanner.errors import ConfigError
from bgtplanner.planning.allocator import LevelPolicy
from bgtplanner.planning.arguments import Floats, floats, number, whole
from bgtplanner.planning.plan import Explanation, Mask, Plan
from bgtplanner.planning.policy import Choice, LedgerPolicy, Policy
from bgtplanner.planning.states import recall, remembered, sealed, unsealed
from bgtplanner.privacy.budget import Budgets

_LEAST = 2.0**-43  # smallest charge of a round that is not skipped
_WORKLOAD = re.compile(r"prefix|last|sgd:(0|0?\.\d+)")


def fitted(policy: LedgerPolicy, weights: Floats) -> Floats:
    """Return charges ``[rounds, classes]`` in these proportions, scaled to just fit the budget."""
    weights = weights / weights.max()
    used = weights[weights > 1e-9]
    rows = []
    for budget in policy.budgets.classes:
        limits = policy.accountant.limit_ticks(budget)
        low, high = 0.0, policy.accountant.capacity(budget)
        for _ in range(60):  # the largest factor with which the whole schedule fits
            middle = (low + high) / 2
            ticks = policy.accountant.sum_ticks(np.maximum(middle * used, _LEAST)).sum(axis=1)
            fits = (policy.participation * ticks <= limits).any()
            low, high = (middle, high) if fits else (low, middle)
        rows.append(np.where(weights > 1e-9, np.maximum(low * weights, _LEAST), 0.0))
    return np.stack(rows, axis=1)


def noise_counts(weights: Floats, rate: float) -> Floats:
    """Return the square with which the noise of each round counts, if models add up releases.

    The model after a round counts by its weight, and a step shrinks what was there by the rate.
    """
    return np.asarray(lfilter([1.0], [1.0, -((1.0 - rate) ** 2)], weights[::-1])[::-1])


def least_noise(policy: LedgerPolicy, squares: Floats) -> Floats:
    """Return the weights of the schedule with the least noise, if rounds count by these squares.

    The variance of noise falls with its charge, or with the square of a charge in epsilon.
    """
    counts = policy.accountant.sound and policy.accountant.counts_epsilons
    return np.asarray(squares ** (1 / 3 if counts else 1 / 2))


class Schedule(LedgerPolicy):
    """A curve that is known in advance: weights, one per round, in any unit; 0 skips a round."""

    learns = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._charges = fitted(self, self._weights())

    @abstractmethod
    def _weights(self) -> Floats: ...

    def choose(self, context: Floats, left: Floats) -> Choice | None:
        """Charge the next entry of the schedule."""
        return Choice(self._charges[self.round], why=Explanation("by schedule"))


class Uniform(LedgerPolicy):
    """The same charge every round: DPSGD with the moments accountant (Abadi et al. 2016)."""

    learns = False

    def choose(self, context: Floats, left: Floats) -> Choice | None:
        """Charge an even share of the whole budget."""
        return Choice(self._even, why=Explanation("an even share"))


@dataclass(kw_only=True, eq=False, repr=False)
class Fixed(Schedule):
    """Any schedule that is known in advance: its weights, one per round.

    Example:
        >>> from bgtplanner import Budget
        >>> schedule = Fixed(Budget(1.0, 1e-5), 3, weights=[1, 3], mechanism="laplace")
        >>> [round(schedule.ask().charge, 3) for _ in range(2)]
        [0.25, 0.75]
    """

    weights: ArrayLike
    rounds: int = None  # type: ignore[assignment]  # as many as there are weights

    def __post_init__(self) -> None:
        shape = self._weights()
        fits = shape.ndim == 1 and bool(shape.any())
        ConfigError.unless(fits, "weights", "these", "numbers of 0 or more, not all 0")
        agree = self.rounds is None or self.rounds == len(shape)
        ConfigError.unless(agree, "rounds", self.rounds, f"{len(shape)}, the number of weights")
        self.rounds = len(shape)
        super().__post_init__()

    def _weights(self) -> Floats:
        return floats("weights", self.weights, low=0.0)


@dataclass(kw_only=True, eq=False, repr=False)
class Early(Schedule):
    """Equal payments at rounds that grow by a constant factor: most is spent soon."""

    payments: int = 5

    def _weights(self) -> Floats:
        count = min(whole("payments", self.payments, 1, 10**6), self.rounds)
        at = (np.geomspace(1, self.rounds, count + 1)[:-1] - 1).astype(np.int64)
        weights = np.zeros(self.rounds)
        weights[np.maximum(at, np.arange(count))] = 1.0  # the first ones may be neighbours
        return weights


@dataclass(kw_only=True, eq=False, repr=False)
class Late(Schedule):
    """A small payment in the first round, a share `first`, then nothing until the last rounds."""

    payments: int = 3
    first: float = 0.06

    def _weights(self) -> Floats:
        count = min(whole("payments", self.payments, 1, 10**6), self.rounds)
        first = number("first", self.first, 0.0, 1 - 1e-9)
        weights = np.zeros(self.rounds)
        weights[0] = first
        weights[-count:] = (1 - first) / count
        return weights


@dataclass(kw_only=True, eq=False, repr=False)
class Hong(Schedule):
    """Noise that falls as training converges (Hong, Wang and Zhou 2022).

    If the error shrinks by the factor `decay` per round (1 - 1/condition number), the noise of
    round t counts with q_t = decay^(T - t) in the end.
    """

    decay: float = 0.95

    def _weights(self) -> Floats:
        ages = np.arange(self.rounds - 1, -1, -1, dtype=np.float64)
        decay = number("decay", self.decay, 1e-9, 1 - 1e-9)
        return np.maximum(least_noise(self, decay**ages), 1e-6)


@dataclass(kw_only=True, eq=False, repr=False)
class Optimal(Schedule):
    """The best schedule for releases that are used linearly, in a way that is known in advance.

    A workload is a matrix with a column per round; with Gaussian noise, charges are in proportion
    to the norms of the columns. If everybody may take part in every round, no noise correlated
    over the rounds does better (docs/proofs/schedules.md). It suits learners that add up what
    rounds release, such as SGD, and not those that weigh rounds by their precision.

    Args:
        workload: ``prefix``: all sums of the first rounds, such as the model after every step of
            SGD. ``last``: the sum of all rounds. ``sgd:RATE``: the last model where each step
            shrinks what was there by the share RATE. Or a matrix.

    Example:
        >>> from bgtplanner import Budget
        >>> policy = Optimal(Budget(1.0, 1e-5), 3, rounds=2, workload=[[1, 0], [0, 2]])
        >>> charges = [policy.ask().charge for _ in range(2)]
        >>> round(charges[1] / charges[0], 6)
        2.0
    """

    workload: str | ArrayLike = "prefix"

    def _weights(self) -> Floats:
        weights = np.ones(self.rounds)
        if isinstance(self.workload, str):
            known = _WORKLOAD.fullmatch(self.workload)
            if known is None:
                expected = "prefix, last, sgd:RATE with a rate from 0 to below 1, or a matrix"
                raise ConfigError(f"workload = {self.workload!r}: expected {expected}")
            weights[:-1] = self.workload == "prefix"
            return least_noise(self, noise_counts(weights, float(known[1] or 0.0)))
        matrix = floats("workload", self.workload)
        fits = matrix.ndim == 2 and matrix.shape[1] == self.rounds and bool(matrix.any())
        expected = f"a matrix with {self.rounds} columns, not all 0"
        ConfigError.unless(fits, "workload", "this", expected)
        return least_noise(self, np.square(matrix / np.abs(matrix).max()).sum(axis=0))


@dataclass(kw_only=True, eq=False, repr=False)
class TwoPhase(Schedule):
    """Save early and spend late, with one step in between (as Kiani et al. 2025).

    After the share `switch` of the rounds, a round costs `ratio` times as much.
    """

    switch: float = 0.5
    ratio: float = 4.0

    def _weights(self) -> Floats:
        switch = number("switch", self.switch, 1e-9, 1 - 1e-9)
        late = np.arange(self.rounds) >= round(switch * self.rounds)
        return np.where(late, number("ratio", self.ratio, 1e-9, 1e6), 1.0)


@dataclass(kw_only=True, eq=False, repr=False)
class Random(LevelPolicy):
    """A level drawn uniformly at random, which is what the paper's constants amount to.

    Levels lie evenly from an even share of `rounds` to one of `min_rounds`, by default 70 %.
    """

    learns = False
    levels: int = 5
    _salt: ClassVar[int] = 0x4A2D
    _fewest: ClassVar[float] = 0.7

    def __post_init__(self) -> None:
        super().__post_init__()
        number = whole("levels", self.levels, 1, 1000)
        self.charges = np.linspace(self._even, self._dearest, number, axis=1)

    def choose(self, context: Floats, left: Floats) -> Choice | None:
        """Draw any level."""
        level = int(self._generator.integers(self.levels))
        return self.choice(level, "any level", probability=np.full(self.levels, 1 / self.levels))


class Unlimited(Policy):
    """No privacy at all (FedSGD): no noise and no ledger, and no clip unless one is given.

    All other options that policies have are ignored, so that it can stand in their place.
    """

    learns = False
    remembers = ("round", "pending")

    def __init__(
        self, budget: Any = None, clients: int | None = None, *, rounds: int,
        clip: float | None = None, ledger: Any = None, **_: Any,
    ) -> None:  # fmt: skip
        ConfigError.unless(clip is None or clip > 0, "clip", clip, "a positive number")
        known = clients or len(ledger or (budget if isinstance(budget, Budgets) else [0]))
        self.clients = whole("clients", known, 1, 10**9)
        self.rounds = whole("rounds", rounds, 1, 10**9)
        self.clip = np.inf if clip is None else float(clip)
        self.round, self.pending = 0, {}

    def plan(self, context: Floats, clients: Mask | None = None) -> Plan | None:
        """Return the next round's plan, free of charge."""
        if self.round >= self.rounds:
            return None
        self.round += 1
        everyone = np.ones(self.clients, dtype=bool) if clients is None else clients
        return Plan(
            round=self.round - 1, accountant=None, largest_clip=self.clip, participants=everyone,
            charge_by_class=np.zeros(1), class_of_client=np.zeros(self.clients, dtype=np.int32),
            why=Explanation("no privacy"),
        )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state, as plain data that JSON can hold."""
        clip = None if np.isinf(self.clip) else self.clip
        own = {"clients": self.clients, "rounds": self.rounds, "clip": clip}
        return sealed(own | remembered(self))

    @classmethod
    def from_state(cls, state: Mapping[str, Any], *, ledger: Any = None) -> Self:
        """Restore the policy from its state."""
        clip = unsealed(state)["clip"]
        policy = cls(None, state["clients"], rounds=state["rounds"], clip=clip)
        recall(policy, state)
        return policy
