"""Policies by a formula: what others do, and what nobody compares with.

All of them play the same game on the same ledger, so that a comparison is one of allocation alone.
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
from bgtplanner.planning.given import reward_of, whole
from bgtplanner.planning.plan import Floats, Mask, Plan, Untold, Why
from bgtplanner.planning.policy import (
    STATE_VERSION,
    Choice,
    LedgerPolicy,
    Policy,
    reading_state,
)
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Ledger

__all__ = [
    "Fixed",
    "Hindsight",
    "Hong",
    "Random",
    "Schedule",
    "TwoPhase",
    "Uniform",
    "Unlimited",
]

_LEAST = 2.0**-43  # of a charge that is no skip


class Unlimited(Policy):
    """No privacy at all: FedSGD. No clip, no noise, no ledger.

    Args:
        budget: Ignored, as are all options but `rounds` and `clients`.
        clients: How many clients.
        rounds: How many rounds.
        clip: Bound on the norm of an upload; by default none.
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
        self.round = 0
        self._untold = Untold()

    def ask(
        self,
        context: ArrayLike | None = None,
        *,
        clients: Mask | None = None,
        fingerprint: bytes | None = None,
    ) -> Plan | None:
        """The next round, free of charge."""
        del context, fingerprint
        if self.round >= self.rounds:
            return None
        plan = Plan(
            round=self.round,
            accountant=None,
            largest_clip=self.clip,
            charge_by_class=np.zeros(1),
            participants=np.ones(self.clients, dtype=bool) if clients is None else clients,
            why=Why("no privacy"),
        )
        self._untold.add(plan)
        self.round += 1
        return plan

    def tell(
        self, plan: Plan, reward: float | None = None, participants: ArrayLike | None = None
    ) -> None:
        """Nothing to learn and nothing to settle."""
        del participants
        plan, _ = self._untold.check(plan), reward_of(reward)
        self._untold.remove(plan)

    def state_dict(self) -> dict[str, Any]:
        """Everything, as plain data that JSON can hold."""
        clip = None if np.isinf(self.clip) else self.clip
        own = {"clients": self.clients, "rounds": self.rounds, "clip": clip}
        played = {"round": self.round, "pending": self._untold.state_dict()}
        return {"version": STATE_VERSION} | own | played

    @classmethod
    def from_state(cls, state: Mapping[str, Any], *, ledger: Ledger | None = None) -> Self:
        """The same policy again."""
        del ledger
        with reading_state(state):
            clip = float("inf") if state["clip"] is None else float(state["clip"])
            policy = cls(None, state["clients"], rounds=state["rounds"], clip=clip)
            policy.round = whole("state: round", state["round"], 0, policy.rounds)
            policy._untold = Untold.from_state(state["pending"], policy.round)
        return policy


class Uniform(LedgerPolicy):
    """The same charge every round: DPSGD with the moments accountant (Abadi et al. 2016)."""

    learns = False

    def choose(self, context: Floats, left: Floats) -> Choice | None:
        """An even share of the whole budget."""
        del context, left
        return Choice(self._even, why=Why("an even share"))


class Schedule(LedgerPolicy):
    """A curve that is known beforehand: the budget is divided in its proportions."""

    learns = False
    _why = Why("by schedule")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._charges = self.charges()

    @abstractmethod
    def weights_of_rounds(self) -> Floats:
        """What each round is to cost, in any unit; 0 skips it."""

    def charges(self) -> Floats:
        """Charges ``[rounds, classes]`` in proportion to the weights that just fit the budget."""
        weights = self.weights_of_rounds()
        weights = weights / weights.max()
        used = weights[weights > 1e-9]
        rows = []
        for budget in self.budgets.classes:
            limits = self.accountant.limit_ticks(budget)
            low, high = 0.0, self.accountant.capacity(budget)
            for _ in range(60):  # the largest factor with which the whole schedule fits
                middle = (low + high) / 2
                ticks = self.accountant.sum_ticks(np.maximum(middle * used, _LEAST)).sum(axis=1)
                fits = (self.participation * ticks <= limits).any()
                low, high = (middle, high) if fits else (low, middle)
            rows.append(np.where(weights > 1e-9, np.maximum(low * weights, _LEAST), 0.0))
        return np.stack(rows, axis=1)

    def choose(self, context: Floats, left: Floats) -> Choice | None:
        """The next entry of the schedule; the last one is what is left."""
        del context, left
        return Choice(self._charges[self.round], why=self._why)


@dataclass(kw_only=True, eq=False, repr=False)
class Fixed(Schedule):
    """Any schedule that is known beforehand.

    Args:
        weights: One a round; the budget is divided in these proportions. 0 skips the round.
        rounds: The number of weights, if it is given at all.

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
        """Those that were given."""
        return np.asarray(self.weights, dtype=np.float64)


@dataclass(kw_only=True, eq=False, repr=False)
class Hong(Schedule):
    """Noise that falls as training converges (Hong, Wang and Zhou 2022).

    For a loss whose error shrinks by a factor ``decay`` a round, noise of round t is worth
    q_t = decay^(T - t). The best charges grow like the root of q_t for Gaussian noise, and like
    its cube root for Laplace noise whose charges are epsilons.

    Args:
        decay: 1 - 1/condition number, below 1; 0.95 suits a condition number of 20.
    """

    decay: float = 0.95

    def weights_of_rounds(self) -> Floats:
        """Growing by a constant factor."""
        ConfigError.unless(bool(0 < self.decay < 1), "decay", self.decay, "between 0 and 1")
        power = 1 / 3 if self.accountant.sound and self.accountant.counts_epsilons else 1 / 2
        ages = np.arange(self.rounds - 1, -1, -1, dtype=np.float64)
        return np.asarray(np.maximum(self.decay ** (power * ages), 1e-6))


@dataclass(kw_only=True, eq=False, repr=False)
class TwoPhase(Schedule):
    """Save early, spend late (as Kiani et al. 2025): a step after part of the rounds.

    Args:
        switch: Share of the rounds in the first phase.
        ratio: Charge of a late round over that of an early one.
    """

    switch: float = 0.5
    ratio: float = 4.0

    def weights_of_rounds(self) -> Floats:
        """One, then `ratio`."""
        ConfigError.unless(bool(0 < self.switch < 1), "switch", self.switch, "between 0 and 1")
        ConfigError.unless(bool(0 < self.ratio < 1e6), "ratio", self.ratio, "a positive number")
        late = np.arange(self.rounds) >= round(self.switch * self.rounds)
        return np.where(late, self.ratio, 1.0)


class Hindsight(Fixed):
    """The best fixed schedule, found by trying them all: to measure regret by, not to use.

    It needs the whole run once for each candidate, so it spends the budget many times over.
    """

    COUNTS = (1, 2, 3, 5, 10, 20, 30, 50, 100)

    @classmethod
    def candidates(cls, rounds: int) -> dict[str, Floats]:
        """Schedules by name: in so many of the rounds, evenly spread, flat or growing."""
        found = {}
        for count in sorted({min(count, rounds) for count in cls.COUNTS}):
            # The last of each stretch: what has arrived by then is used.
            at = np.ceil(np.arange(1, count + 1) * rounds / count).astype(int) - 1
            shapes = {"flat": np.ones(count), "growing": np.geomspace(0.1, 1.0, count)}
            for shape, charges in shapes.items():
                if count > 1 or shape == "flat":
                    found[f"{count} {shape}"] = weights = np.zeros(rounds)
                    weights[at] = charges
        return found


@dataclass(kw_only=True, eq=False, repr=False)
class Random(LevelPolicy):
    """A level drawn uniformly at random: what the paper's constants amount to.

    Args:
        levels: How many levels, evenly spaced from an even share of `rounds` to one of
            `min_rounds`.
        min_rounds: Fewest rounds; by default 70 % of `rounds`.
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
        """Any level."""
        del context, left
        level = int(self._generator.integers(self.levels))
        return self.choice(level, "any level", probability=np.full(self.levels, 1 / self.levels))
