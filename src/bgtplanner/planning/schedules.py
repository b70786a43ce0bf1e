"""Policies that follow a formula: the usual baselines, and some further ones.

All of them spend from the same ledger by the same rules, so that only the allocation differs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from bgtplanner.errors import ConfigError
from bgtplanner.planning.allocator import LevelPolicy
from bgtplanner.planning.arguments import Floats, whole
from bgtplanner.planning.plan import Explanation, Mask, Plan
from bgtplanner.planning.policy import Choice, LedgerPolicy, Policy
from bgtplanner.planning.states import STATE_VERSION, reading_state, sealed
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Ledger

_LEAST = 2.0**-43  # smallest charge of a round that is not skipped


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


class Unlimited(Policy):
    """No privacy at all (FedSGD): no clip, no noise and no ledger.

    Args:
        budget: Ignored, as are all options but `clients`, `rounds` and `clip`.
        clients: The number of clients.
        rounds: The number of rounds.
        clip: Bound on the norm of an upload; by default there is none.
    """

    learns = False

    def __init__(
        self,
        budget: Budget | Budgets | None = None,
        clients: int | None = None,
        *,
        rounds: int,
        clip: float = float("inf"),
        ledger: Ledger | None = None,
        **_: Any,
    ) -> None:
        ConfigError.unless(bool(clip > 0), "clip", clip, "a positive number")
        known = len(budget) if isinstance(budget, Budgets) else len(ledger) if ledger else 1
        self.clients = whole("clients", clients or known, 1, 10**9)
        self.rounds, self.clip = whole("rounds", rounds, 1, 10**9), float(clip)
        self.round, self.pending = 0, {}

    def plan(self, context: Floats, clients: Mask | None = None) -> Plan | None:
        """Return the next round's plan, free of charge."""
        del context
        if self.round >= self.rounds:
            return None
        everybody = np.ones(self.clients, dtype=bool)
        self.round += 1
        return Plan(
            round=self.round - 1,
            accountant=None,
            largest_clip=self.clip,
            charge_by_class=np.zeros(1),
            class_of_client=np.zeros(self.clients, dtype=np.int32),
            participants=everybody if clients is None else clients,
            why=Explanation("no privacy"),
        )

    def learn(self, plan: Plan, reward: float | None) -> None:
        """Do nothing: there is nothing to learn."""

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state, as plain data that JSON can hold."""
        clip = None if np.isinf(self.clip) else self.clip
        own = {"clients": self.clients, "rounds": self.rounds, "clip": clip}
        pending = {str(at): token for at, token in self.pending.items()}
        played = {"round": self.round, "pending": pending}
        return sealed({"version": STATE_VERSION} | own | played)

    @classmethod
    def from_state(cls, state: Mapping[str, Any], *, ledger: Ledger | None = None) -> Self:
        """Restore the policy from its state."""
        del ledger
        with reading_state(state):
            clip = float("inf") if state["clip"] is None else float(state["clip"])
            policy = cls(None, state["clients"], rounds=state["rounds"], clip=clip)
            policy.round = state["round"]
            policy.pending = {int(at): token for at, token in state["pending"].items()}
        return policy


class Uniform(LedgerPolicy):
    """The same charge every round: DPSGD with the moments accountant (Abadi et al. 2016)."""

    learns = False

    def choose(self, context: Floats, left: Floats) -> Choice | None:
        """Charge an even share of the whole budget."""
        del context, left
        return Choice(self._even, why=Explanation("an even share"))


class Schedule(LedgerPolicy):
    """A curve that is known in advance: the budget is divided in its proportions."""

    learns = False
    _why = Explanation("by schedule")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._charges = self.charges_of_rounds()

    @abstractmethod
    def weights_of_rounds(self) -> Floats:
        """Return the relative cost of each round, in any unit; 0 skips the round."""

    def charges_of_rounds(self) -> Floats:
        """Return charges ``[rounds, classes]`` by the weights."""
        return fitted(self, self.weights_of_rounds())

    def choose(self, context: Floats, left: Floats) -> Choice | None:
        """Charge the next entry of the schedule."""
        del context, left
        return Choice(self._charges[self.round], why=self._why)


@dataclass(kw_only=True, eq=False, repr=False)
class Fixed(Schedule):
    """Any schedule that is known in advance.

    Args:
        weights: One per round; the budget is divided in these proportions. 0 skips the round.
        rounds: May be left out; otherwise it must be the number of weights.

    Example:
        >>> schedule = Fixed(Budget(1.0, 1e-5), 3, weights=[1, 3], mechanism="laplace")
        >>> [round(schedule.ask().charge, 3) for _ in range(2)]
        [0.25, 0.75]
    """

    weights: ArrayLike
    rounds: int = None  # type: ignore[assignment]  # as many as there are weights

    def __post_init__(self) -> None:
        shape = self.weights_of_rounds()
        fits = shape.ndim == 1 and len(shape) >= 1 and bool(np.isfinite(shape).all())
        fits = fits and bool((shape >= 0).all() and shape.sum() > 0)
        ConfigError.unless(fits, "weights", "these", "numbers of 0 or more, not all 0")
        agree = self.rounds is None or self.rounds == len(shape)
        ConfigError.unless(agree, "rounds", self.rounds, f"{len(shape)}, the number of weights")
        self.rounds = len(shape)
        super().__post_init__()

    def weights_of_rounds(self) -> Floats:
        """Return the weights that were given."""
        return np.asarray(self.weights, dtype=np.float64)


@dataclass(kw_only=True, eq=False, repr=False)
class Early(Schedule):
    """Equal payments at rounds that grow by a constant factor: most of the budget is spent soon.

    Args:
        payments: The number of payments.
    """

    payments: int = 5

    def weights_of_rounds(self) -> Floats:
        """Return 1 for each round with a payment."""
        count = min(whole("payments", self.payments, 1, 10**6), self.rounds)
        at = (np.geomspace(1, self.rounds, count + 1)[:-1] - 1).astype(np.int64)
        weights = np.zeros(self.rounds)
        weights[np.maximum(at, np.arange(count))] = 1.0  # the first ones may be neighbours
        return weights


@dataclass(kw_only=True, eq=False, repr=False)
class Late(Schedule):
    """A small payment in the first round, then nothing until the last rounds.

    Args:
        payments: The number of payments in the end.
        first: Share of the budget that the first round costs.
    """

    payments: int = 3
    first: float = 0.06

    def weights_of_rounds(self) -> Floats:
        """Return the share of each round."""
        count = min(whole("payments", self.payments, 1, 10**6), self.rounds)
        ConfigError.unless(bool(0 <= self.first < 1), "first", self.first, "from 0 to below 1")
        weights = np.zeros(self.rounds)
        weights[0] = self.first
        weights[-count:] = (1 - self.first) / count
        return weights


@dataclass(kw_only=True, eq=False, repr=False)
class Hong(Schedule):
    """Noise that falls as training converges (Hong, Wang and Zhou 2022).

    If the error shrinks by the factor ``decay`` per round, the noise of round t counts with
    q_t = decay^(T - t) in the end. The best charges grow like the square root of q_t for Gaussian
    noise, and like its cube root for Laplace noise whose charges are epsilons.

    Args:
        decay: 1 - 1/condition number, below 1; 0.95 suits a condition number of 20.
    """

    decay: float = 0.95

    def weights_of_rounds(self) -> Floats:
        """Return weights that grow by a constant factor."""
        ConfigError.unless(bool(0 < self.decay < 1), "decay", self.decay, "between 0 and 1")
        power = 1 / 3 if self.accountant.sound and self.accountant.counts_epsilons else 1 / 2
        ages = np.arange(self.rounds - 1, -1, -1, dtype=np.float64)
        return np.asarray(np.maximum(self.decay ** (power * ages), 1e-6))


@dataclass(kw_only=True, eq=False, repr=False)
class TwoPhase(Schedule):
    """Save early and spend late, with one step in between (as Kiani et al. 2025).

    Args:
        switch: Share of the rounds that belong to the first phase.
        ratio: Charge of a late round over that of an early round.
    """

    switch: float = 0.5
    ratio: float = 4.0

    def weights_of_rounds(self) -> Floats:
        """Return 1 for each early round and `ratio` for each late one."""
        ConfigError.unless(bool(0 < self.switch < 1), "switch", self.switch, "between 0 and 1")
        ConfigError.unless(bool(0 < self.ratio < 1e6), "ratio", self.ratio, "a positive number")
        late = np.arange(self.rounds) >= round(self.switch * self.rounds)
        return np.where(late, self.ratio, 1.0)


@dataclass(kw_only=True, eq=False, repr=False)
class Random(LevelPolicy):
    """A level drawn uniformly at random, which is what the paper's constants amount to.

    Args:
        levels: The number of levels, evenly spaced from an even share of `rounds` to an even share
            of `min_rounds`.
        min_rounds: The fewest rounds that the budget may be spent in; by default 70 % of
            `rounds`.
    """

    learns = False
    levels: int = 5
    min_rounds: int | None = None
    _salt: ClassVar[int] = 0x4A2D
    _fewest: ClassVar[float] = 0.7

    def __post_init__(self) -> None:
        super().__post_init__()
        ConfigError.unless(1 <= self.levels <= 1000, "levels", self.levels, "1 to 1000")
        dearest = self.dearest(self.min_rounds)
        self.charges = np.linspace(self._even, dearest, self.levels, axis=1)

    def choose(self, context: Floats, left: Floats) -> Choice | None:
        """Draw any level."""
        del context, left
        level = int(self._generator.integers(self.levels))
        return self.choice(level, "any level", probability=np.full(self.levels, 1 / self.levels))
