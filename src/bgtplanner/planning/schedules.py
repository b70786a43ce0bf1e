"""Policies that follow a formula: the usual baselines, and those of the paper.

All of them spend from the same ledger by the same rules, so that only the allocation differs. What
is known in advance is a :class:`Schedule`: weights, one per round, in whose proportions the budget
is divided. Each of them says in one function what its weights are.
"""
# ruff: noqa: ARG002, ARG003 - what is known in advance looks at nothing

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from bgtplanner.errors import ConfigError
from bgtplanner.planning.allocator import LevelPolicy
from bgtplanner.planning.arguments import Floats, floats, number, whole
from bgtplanner.planning.plan import Explanation, Mask, Plan
from bgtplanner.planning.policy import Choice, LedgerPolicy, Policy
from bgtplanner.planning.states import reading_state, recall, remembered, sealed
from bgtplanner.privacy.budget import Budgets
from bgtplanner.privacy.mechanisms import SENSITIVITY

_LEAST = 2.0**-43  # smallest charge of a round that is not skipped
_CLIPS = (1e-9, 1e9)  # bounds on a clip that follows a norm


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


class Schedule(LedgerPolicy):
    """A curve that is known in advance: the budget is divided in its proportions."""

    learns = False

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
        return Choice(self._charges[self.round], why=Explanation("by schedule"))


class Uniform(LedgerPolicy):
    """The same charge every round: DPSGD with the moments accountant (Abadi et al. 2016)."""

    learns = False

    def choose(self, context: Floats, left: Floats) -> Choice | None:
        """Charge an even share of the whole budget."""
        return Choice(self._even, why=Explanation("an even share"))


@dataclass(kw_only=True, eq=False, repr=False)
class Fixed(Schedule):
    """Any schedule that is known in advance.

    Args:
        weights: One per round; the budget is divided in these proportions. 0 skips the round.
        rounds: May be left out; otherwise it must be the number of weights.

    Example:
        >>> from bgtplanner import Budget
        >>> schedule = Fixed(Budget(1.0, 1e-5), 3, weights=[1, 3], mechanism="laplace")
        >>> [round(schedule.ask().charge, 3) for _ in range(2)]
        [0.25, 0.75]
    """

    weights: ArrayLike
    rounds: int = None  # type: ignore[assignment]  # as many as there are weights

    def __post_init__(self) -> None:
        shape = self.weights_of_rounds()
        fits = shape.ndim == 1 and bool(shape.any())
        ConfigError.unless(fits, "weights", "these", "numbers of 0 or more, not all 0")
        agree = self.rounds is None or self.rounds == len(shape)
        ConfigError.unless(agree, "rounds", self.rounds, f"{len(shape)}, the number of weights")
        self.rounds = len(shape)
        super().__post_init__()

    def weights_of_rounds(self) -> Floats:
        """Return the weights that were given."""
        return floats("weights", self.weights, low=0.0)


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
        first = number("first", self.first, 0.0, 1 - 1e-9)
        weights = np.zeros(self.rounds)
        weights[0] = first
        weights[-count:] = (1 - first) / count
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
class Adpml(Schedule):
    """A heuristic schedule with more noise early and less noise late (Pan and Feng 2023).

    The charge grows from `smallest` to `largest`. No source that we could read gives the formula.
    Two shapes fit its description; each of them is either literal (it ends when the ledger
    refuses) or normalised (the shape is kept and the budget lasts for all rounds).

    Args:
        smallest: Epsilon of the first round.
        largest: The most epsilon that a round may cost.
        rate: How fast the charge grows, between 0 and 1.
        shape: ``geometric``: smallest / rate^k; ``saturating``: the gap to `largest` shrinks by
            the factor `rate` per round.
        mode: ``literal`` or ``normalised``.
    """

    smallest: float = 1.0
    largest: float = 10.0
    rate: float = 0.9
    shape: Literal["geometric", "saturating"] = "geometric"
    mode: Literal["literal", "normalised"] = "literal"

    def weights_of_rounds(self) -> Floats:
        """Return each round's epsilon as a charge.

        That is epsilon itself where epsilons add up, and epsilon^2 where squares add up (halved
        under the source's zero-concentrated reading, as the paper's accountant does).
        """
        unless, least, most, rate = ConfigError.unless, self.smallest, self.largest, self.rate
        unless(bool(0 < least <= most < 1e6), "smallest", least, "0 to `largest`")
        unless(bool(0 < rate < 1), "rate", rate, "between 0 and 1")
        fits = self.shape in ("geometric", "saturating")
        unless(fits, "shape", self.shape, "geometric or saturating")
        fits = self.mode in ("literal", "normalised")
        unless(fits, "mode", self.mode, "literal or normalised")
        steps = np.arange(self.rounds, dtype=np.float64)
        if self.shape == "geometric":
            epsilon = np.minimum(most, least * rate ** -np.minimum(steps, 5000))
        else:
            epsilon = most - (most - least) * rate**steps
        if self.accountant.counts_epsilons:
            return epsilon
        return np.asarray(epsilon**2 / (2 if self.accountant.name == "gaussian/rdp" else 1))

    def charges_of_rounds(self) -> Floats:
        """Return the curve as it is, or scaled so that it just fits the budget."""
        if self.mode == "normalised":
            return super().charges_of_rounds()
        return np.tile(self.weights_of_rounds()[:, None], len(self.budgets.classes))


@dataclass(kw_only=True, eq=False, repr=False)
class Adap(LedgerPolicy):
    """An adaptive clip, and noise that falls while the loss falls (Fu, Chen and Han 2022).

    The source clips the gradient of each sample, adds noise to their sum and divides by their
    number; the norm of the result is the client's next clip. Where each tensor and item row is
    clipped on its own, they take the place of the samples.

    Args:
        noise_multiplier: Noise of the first round over the clip, as in the source (not over
            the sensitivity). The source's default is 6; the code published with the paper has 2.
        decay: Factor by which the noise changes after three improvements in a row.
        factor: The clip is this factor times the norm of the last noisy gradient; see
            :meth:`saw`.
    """

    follows_norms = True
    remembers = (*LedgerPolicy.remembers, "clip", "_sigma", "_gains", "_own")
    noise_multiplier: float = 6.0
    decay: float = 0.9999
    factor: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._sigma = number("noise_multiplier", self.noise_multiplier, 1e-9, 1e6)
        number("decay", self.decay, 1e-9, 1.0)
        number("factor", self.factor, 1e-9, 1e6)
        self._gains: list[float] = []
        self._own: Floats | None = None

    def saw(self, norm: float | Floats) -> None:
        """Set the next clip from the norm of the last noisy gradient, at no further charge.

        With one norm per client, as in the source, every client has a clip of its own. Where only
        the mean over the clients can be seen, all have the same.
        """
        # Each clip follows the noise of the last one: it must not grow without bound.
        clip = np.clip(self.factor * np.asarray(norm, np.float64), *_CLIPS)
        if np.ndim(norm) == 0:
            self.clip = float(clip) if np.isfinite(norm) and norm > 0 else self.clip
            return
        before = np.ones(len(self.budgets)) if self._own is None else self._own
        fits = np.isfinite(norm) & (np.asarray(norm) > 0)
        self._own = np.where(fits, clip / self.clip, before)

    def choose(self, context: Floats, left: Floats) -> Choice | None:
        """Charge what the present noise costs."""
        sensitivity = SENSITIVITY[self.ledger.neighbours]  # in units of the clip
        charge = float(self.accountant.charge(self._sigma / sensitivity))
        every = np.full(len(self.budgets.classes), charge)
        why = Explanation(f"noise {self._sigma:.4g} over the clip")
        return Choice(every, clip=self.clip, own_clip=self._own, why=why)

    def learn(self, plan: Plan, reward: float | None) -> None:
        """Lower the noise after three improvements in a row."""
        self._gains = [*self._gains[-2:], 0.0 if reward is None else reward]
        if len(self._gains) == 3 and min(self._gains) > 0:
            self._sigma *= self.decay


@dataclass(kw_only=True, eq=False, repr=False)
class Random(LevelPolicy):
    """A level drawn uniformly at random, which is what the paper's constants amount to.

    Args:
        levels: The number of levels, evenly spaced from an even share of `rounds` to an even share
            of `min_rounds`, by default 70 % of `rounds`.
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
        self,
        budget: Any = None,
        clients: int | None = None,
        *,
        rounds: int,
        clip: float = float("inf"),
        ledger: Any = None,
        **_: Any,
    ) -> None:
        ConfigError.unless(bool(clip > 0), "clip", clip, "a positive number")
        known = clients or len(ledger or (budget if isinstance(budget, Budgets) else [0]))
        self.clients = whole("clients", known, 1, 10**9)
        self.rounds, self.clip = whole("rounds", rounds, 1, 10**9), float(clip)
        self.round, self.pending = 0, {}

    def plan(self, context: Floats, clients: Mask | None = None) -> Plan | None:
        """Return the next round's plan, free of charge."""
        if self.round >= self.rounds:
            return None
        self.round += 1
        return Plan(
            round=self.round - 1,
            accountant=None,
            largest_clip=self.clip,
            charge_by_class=np.zeros(1),
            class_of_client=np.zeros(self.clients, dtype=np.int32),
            participants=np.ones(self.clients, dtype=bool) if clients is None else clients,
            why=Explanation("no privacy"),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state, as plain data that JSON can hold."""
        clip = None if np.isinf(self.clip) else self.clip
        own = {"clients": self.clients, "rounds": self.rounds, "clip": clip}
        return sealed(own | remembered(self))

    @classmethod
    def from_state(cls, state: Mapping[str, Any], *, ledger: Any = None) -> Self:
        """Restore the policy from its state."""
        with reading_state(state):
            clip = float("inf") if state["clip"] is None else float(state["clip"])
            policy = cls(None, state["clients"], rounds=state["rounds"], clip=clip)
            recall(policy, state)
        return policy
