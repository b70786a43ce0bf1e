"""A policy is a game of ask and tell: how much shall this round cost, and what did it bring?

Every policy plays the same game, in the simulator, on a real federation, in your own loop::

    while (plan := policy.ask(context)) is not None:
        reward = train_one_round(clip=plan.clip, noise_std=plan.noise_std)
        policy.tell(plan, reward=reward)

`ask` reserves the round's charge in a ledger; `tell` settles it. A plan that is never told counts
as spent. Whatever a policy wishes, it gets no more than the ledger grants.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgtplanner.errors import BudgetExceeded, ConfigError, LedgerError
from bgtplanner.privacy.accounting import TICK, Rule, default_rule, rule_named
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.journal import Head
from bgtplanner.privacy.ledger import Ledger, Reservation
from bgtplanner.privacy.mechanisms import mechanism_named

__all__ = ["Choice", "LedgerPolicy", "Plan", "Policy", "Why"]

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

_TOO_LITTLE = 1e-3  # of an even round's charge: with so much noise a round can only do harm


class Why(NamedTuple):
    """Why a plan is what it is, level by level.

    Attributes:
        note: In words.
        charges: Charge of each level, for the class that pays most.
        predicted: Predicted reward of each level.
        price: What the level's charge is worth elsewhere, in reward.
        score: What the levels were compared by.
        probability: With which each level was drawn.
    """

    note: str = ""
    charges: tuple[float, ...] = ()
    predicted: tuple[float, ...] = ()
    price: tuple[float, ...] = ()
    score: tuple[float, ...] = ()
    probability: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """What one round may cost, and the noise that makes it cost that.

    Where clients have different budgets, `charge`, `noise_multiplier`, `noise_std` and
    `noise_scale` are those of the class that pays most; `reservation.charge` is everybody's own.

    Attributes:
        round: Which round, from 0.
        charge: What the round costs a client, in all.
        clip: Bound on the norm of a client's whole upload.
        noise_multiplier: Noise scale over the sensitivity 2 * clip; infinite for a skipped round.
        noise_std: Standard deviation of the noise to add to an upload clipped at `clip`; infinite
            for a skipped round, so that nothing of it could be of use.
        noise_scale: The same as the mechanism's own scale (for Laplace b, not the deviation).
            With the mechanism ``privunit`` there is no noise to add: hand the clipped uploads,
            `clip` and `charge` to :func:`bgtplanner.privacy.privunit.randomise`.
        level: Which level was chosen, for policies that have levels.
        skip: Whether to sit this round out: nothing is released and nothing was charged.
        charge_by_class: What a client of each class of budgets pays.
        participants: Who paid, and so takes part.
        why: The numbers behind it.
        reservation: The ledger's leave; None if nothing was charged.
    """

    round: int
    charge: float
    clip: float
    noise_multiplier: float
    noise_std: float
    noise_scale: float
    level: int | None = None
    skip: bool = False
    charge_by_class: Floats = field(repr=False)
    participants: Mask = field(repr=False)
    why: Why = field(repr=False, default=Why())
    reservation: Reservation | None = field(repr=False, default=None)


class Choice(NamedTuple):
    """What a policy wishes for a round.

    Attributes:
        charges: Charge for each class of budgets; all zero: sit the round out.
        level: Which level that is, if there are levels.
        clip: Bound for the uploads, if the policy changes it.
        why: The numbers behind it.
    """

    charges: Floats
    level: int | None = None
    clip: float | None = None
    why: Why = Why()


@runtime_checkable
class Policy(Protocol):
    """Whoever decides what a round may cost."""

    def ask(
        self, context: ArrayLike | None = None, *, fingerprint: bytes | None = None
    ) -> Plan | None:
        """The plan for the next round, already reserved; None: there is no further round."""
        ...

    def tell(
        self, plan: Plan, reward: float | None = None, participants: ArrayLike | None = None
    ) -> None:
        """What the round brought; settles the plan."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything it is and has learned, as plain data that JSON can hold."""
        ...

    @classmethod
    def from_state(cls, state: Mapping[str, Any], *, ledger: Ledger | None = None) -> Self:
        """The same policy again, from what :meth:`state_dict` gave."""
        ...


class LedgerPolicy:
    """What all policies share: rounds, the ledger, and never more than fits.

    A policy says in :meth:`choose` what it would like, and in :meth:`learn` takes in what came.

    Args:
        budget: What every client may spend, or all clients' budgets; may be left out if `ledger`
            is given.
        clients: How many clients; may be left out if the budgets or the ledger say so.
        rounds: Most rounds there can be.
        mechanism: ``gaussian``, ``laplace`` or ``privunit``; by default the ledger's, else
            ``gaussian``.
        accounting: Rule by name; by default the ledger's, else the mechanism's own.
        clip: Bound on the norm of an upload.
        ledger: A durable ledger to spend from; by default one in memory.
        run: Name of this run in the ledger.
        seed: Of every random choice.
    """

    learns: ClassVar[bool] = True
    """Whether contexts and rewards make a difference to it: otherwise nobody is asked for them."""

    _options: dict[str, Any]

    def __new__(cls, *_: Any, **options: Any) -> Self:
        """Notes the options, so that a policy can be made again from its state alone."""
        policy = super().__new__(cls)
        policy._options = {
            name: plain_value(value)
            for name, value in options.items()
            if name not in ("budget", "clients", "ledger")
        }
        return policy

    def __init__(
        self,
        budget: Budget | Budgets | None = None,
        clients: int | None = None,
        *,
        rounds: int,
        mechanism: str | None = None,
        accounting: str | Rule | None = None,
        clip: float = 1.0,
        ledger: Ledger | None = None,
        run: str = "run",
        seed: int = 0,
    ) -> None:
        whole = isinstance(rounds, int | np.integer) and 1 <= rounds <= 10**9
        ConfigError.unless(bool(whole), "rounds", rounds, "a whole number of at least 1")
        ConfigError.unless(bool(0 < clip < np.inf), "clip", clip, "a positive number")
        seeded = isinstance(seed, int | np.integer) and seed >= 0
        ConfigError.unless(bool(seeded), "seed", seed, "a whole number from 0")
        if ledger is None:
            ledger = _ledger_of(budget, clients, mechanism, accounting)
        _check_ledger(ledger, budget, clients, mechanism, accounting)
        self.ledger = ledger
        self.rule = ledger.rule
        self.budgets = ledger.budgets
        self.rounds = int(rounds)
        self.clip = float(clip)
        self.run = run
        self.seed = int(seed)
        self.round = 0
        self._pending: set[int] = set()
        self._even = self.even_charges(self.rounds)
        limits = np.stack([self.rule.limit_ticks(b) for b in self.budgets.classes], axis=1)
        # A rule with two sums is bound by the one that lasts longer at an even pace.
        paces = limits[:, 0] / self.rule.sum_ticks(self._even[0])
        self._binding = int(paces.argmax())
        self._limits = limits
        self._spent = ledger.least_spent_by_class()

    @abstractmethod
    def choose(self, context: Floats, left: Floats) -> Choice | None:
        """What this round should cost; None to stop for good.

        Args:
            context: What may be looked at; empty if nothing was given.
            left: Largest charge that somebody of each class can still pay.
        """

    def learn(self, plan: Plan, reward: float | None) -> None:
        """Take in what a round brought. Policies that do not learn leave it out."""

    def even_charges(self, rounds: int) -> Floats:
        """Charge of one of `rounds` equal rounds, for each class of budgets."""
        return np.array([self.rule.even_charge(budget, rounds) for budget in self.budgets.classes])

    def left(self) -> Floats:
        """Largest charge that somebody of each class can still pay; 0 for a spent class."""
        return self.rule.largest_fitting(self._spent, self._limits)

    def share_of(self, charges: Floats) -> Floats:
        """Share of a class's whole budget that a charge takes, for each class; 0 takes none."""
        adds = self.rule.sum_ticks(np.maximum(charges, TICK))[self._binding]
        return np.where(charges > 0, adds / self._limits[self._binding], 0.0)

    def share_left(self) -> Floats:
        """Share of its budget that the thriftiest client of each class has left."""
        spent = self._spent[self._binding] / self._limits[self._binding]
        return np.asarray(np.maximum(1 - spent, 0.0))

    def ask(
        self, context: ArrayLike | None = None, *, fingerprint: bytes | None = None
    ) -> Plan | None:
        """The plan for the next round, already reserved; None: there is no further round.

        Args:
            context: What the policy may look at.
            fingerprint: Of all that the round's uploads will be computed from, where the same
                round may be played again after a crash (see :meth:`Ledger.reserve`): then it is
                not charged again.

        Raises:
            ConfigError: If the context is not finite.
        """
        seen = np.zeros(0) if context is None else np.asarray(context, np.float64).ravel()
        ConfigError.unless(bool(np.isfinite(seen).all()), "context", "NaN", "finite numbers")
        if self.round >= self.rounds:
            return None
        left = self.left()
        if not (left >= _TOO_LITTLE * self._even).any():
            return None
        choice = self.choose(seen, left)
        if choice is None:
            return None
        wished = np.asarray(choice.charges, dtype=np.float64)
        if not wished.any():
            plan: Plan | None = self._plan(choice, wished, None)
        else:
            plan = self._reserve(choice, wished, left, fingerprint)
        if plan is not None:
            self._pending.add(self.round)
            self.round += 1
        return plan

    def tell(
        self, plan: Plan, reward: float | None = None, participants: ArrayLike | None = None
    ) -> None:
        """What the round brought; settles the plan. Telling a plan twice is an error.

        Args:
            plan: From :meth:`ask`.
            reward: How much better the model got; None if nobody knows.
            participants: Who really took part; all who were planned, by default. They have paid
                either way.

        Raises:
            ConfigError: If the reward is not finite, or the plan was told before or is not ours.
        """
        del participants  # what was reserved is spent, whether an upload arrived or not
        known = plan.round in self._pending
        ConfigError.unless(known, "plan", plan.round, "one that was asked for and not told yet")
        finite = reward is None or bool(np.isfinite(reward))
        ConfigError.unless(finite, "reward", reward, "a finite number")
        if plan.reservation is not None:
            self.ledger.settle(plan.reservation)
        self._pending.discard(plan.round)
        self._spent = self.ledger.least_spent_by_class()
        self.learn(plan, None if reward is None else float(reward))

    def state_dict(self) -> dict[str, Any]:
        """Everything it is and has learned, as plain data that JSON can hold.

        A ledger in memory is part of it, of a durable one only the newest row: that one must be
        handed to :meth:`from_state`, and must not have forgotten anything.
        """
        return {
            "options": self._options,
            "round": self.round,
            "pending": sorted(self._pending),
            "spent": self._spent.tolist(),
            "ledger": self.ledger.state_dict(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], *, ledger: Ledger | None = None) -> Self:
        """The same policy again, from what :meth:`state_dict` gave.

        Args:
            state: From :meth:`state_dict`.
            ledger: The durable ledger that it spends from, if it had one.

        Raises:
            LedgerError: If the ledger is missing, or has lost what was written down then.
        """
        if ledger is None:
            ledger = Ledger.from_state(state["ledger"])
        elif "rows" in state["ledger"]:
            raise LedgerError("ledger: this policy had one in memory, which is in its state")
        else:
            ledger.check_head(Head.parse(state["ledger"]["head"]))
        policy = cls(ledger=ledger, **state["options"])
        policy._load(state)
        return policy

    def _load(self, state: Mapping[str, Any]) -> None:
        self.round, self._pending = int(state["round"]), set(state["pending"])
        self._spent = np.asarray(state["spent"], dtype=np.int64)

    def _reserve(
        self, choice: Choice, wished: Floats, left: Floats, fingerprint: bytes | None
    ) -> Plan | None:
        for _ in range(2):
            charges = np.minimum(wished, left)  # the last charge is capped to what is left
            if not charges.any():
                return None
            try:
                reservation = self.ledger.reserve(
                    charges, run=self.run, round=self.round, by_class=True, fingerprint=fingerprint
                )
            except BudgetExceeded:  # others have spent from this ledger meanwhile
                self._spent = self.ledger.least_spent_by_class()
                left = self.left()
                continue
            return self._plan(choice, charges, reservation)
        return None

    def _plan(self, choice: Choice, charges: Floats, reservation: Reservation | None) -> Plan:
        clip = self.clip if choice.clip is None else choice.clip
        charge = float(charges.max())
        multiplier = float("inf") if charge == 0 else float(self.rule.noise_multiplier(charge))
        scale = multiplier * 2 * clip  # infinite for a skipped round: nothing may be released
        nobody = np.zeros(len(self.budgets), dtype=bool)
        return Plan(
            round=self.round,
            charge=charge,
            clip=clip,
            noise_multiplier=multiplier,
            noise_std=scale * mechanism_named(self.rule.mechanism).std_of_scale,
            noise_scale=scale,
            level=choice.level,
            skip=charge == 0,
            charge_by_class=charges,
            participants=nobody if reservation is None else reservation.granted,
            why=choice.why,
            reservation=reservation,
        )


def plain_value(value: Any) -> Any:
    """An option as plain data."""
    if isinstance(value, Rule):
        return value.name
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return value


def _ledger_of(
    budget: Budget | Budgets | None,
    clients: int | None,
    mechanism: str | None,
    accounting: str | Rule | None,
) -> Ledger:
    given = isinstance(budget, Budget | Budgets)
    ConfigError.unless(given, "budget", budget, "a Budget, or Budgets")
    if isinstance(budget, Budget):
        ConfigError.unless(clients is not None, "clients", clients, "how many there are")
        budget = Budgets.same(budget, clients or 0)
    rule = accounting if accounting is not None else default_rule(mechanism or "gaussian").name
    if budget is None:  # pragma: no cover - refused above
        raise ConfigError("budget: missing")
    return Ledger.in_memory(budget, rule)


def _check_ledger(
    ledger: Ledger,
    budget: Budget | Budgets | None,
    clients: int | None,
    mechanism: str | None,
    accounting: str | Rule | None,
) -> None:
    """Refuse a ledger that is not for what was asked."""
    unless, rule = ConfigError.unless, ledger.rule
    same = clients is None or clients == len(ledger)
    unless(same, "clients", clients, f"{len(ledger)}, as the budgets have it")
    fits = mechanism is None or mechanism == rule.mechanism
    unless(fits, "mechanism", mechanism, f"{rule.mechanism}, which {rule.name} is for")
    name = accounting.name if isinstance(accounting, Rule) else accounting
    known = name is None or rule_named(name).name == rule.name
    unless(known, "accounting", name, f"{rule.name}, by which the ledger is kept")
    if isinstance(budget, Budget):
        budget = Budgets.same(budget, len(ledger))
    unless(budget is None or budget == ledger.budgets, "budget", budget, "the ledger's own")
