"""A policy is a game of ask and tell: how much shall this round cost, and what did it bring?

Every policy plays the same game, in the simulator, on a real federation, in your own loop::

    while (plan := policy.ask(context)) is not None:
        reward = train_one_round(clip=plan.clip, noise_std=plan.noise_std)
        policy.tell(plan, reward=reward)

`ask` reserves the round's charge in a ledger; `tell` settles it. A plan that is never told counts
as spent. Whatever a policy wishes, it gets no more than the ledger grants. Where clients have
different budgets, clip and noise are each client's own (:mod:`bgtplanner.planning.plan`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgtplanner.errors import BGTPlannerError, BudgetExceeded, ConfigError, LedgerError
from bgtplanner.planning.given import context_of, number, reward_of, whole
from bgtplanner.planning.plan import Plan, Trust, Untold, Why
from bgtplanner.privacy._journal import Head
from bgtplanner.privacy.accountants import CEILING, TICK, Rule, default_rule, rule_named
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Ledger, Reservation
from bgtplanner.privacy.mechanisms import mechanism_named

__all__ = [
    "STATE_VERSION",
    "Choice",
    "LedgerPolicy",
    "Plan",
    "Policy",
    "Why",
    "reading_state",
]

Floats = NDArray[np.float64]

STATE_VERSION = 1
"""Of what :meth:`LedgerPolicy.state_dict` gives; a state of any other version is refused."""

_TOO_LITTLE = 1e-3  # of an even round's charge: with so much noise a round can only do harm


class Choice(NamedTuple):
    """What a policy wishes for a round.

    Attributes:
        charges: Charge for each class of budgets; all zero: sit the round out.
        level: Which level that is, if there are levels.
        clip: Bound for the uploads, if the policy changes it.
        own_clip: Each client's own bound over that one, if they differ (trust ``local`` only).
        why: The numbers behind it.
    """

    charges: Floats
    level: int | None = None
    clip: float | None = None
    own_clip: Floats | None = None
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
        """Everything it is and has learned, as plain data that JSON can hold, with a version."""
        ...

    @classmethod
    def from_state(cls, state: Mapping[str, Any], *, ledger: Ledger | None = None) -> Self:
        """The same policy again, from what :meth:`state_dict` gave; refuses anything else."""
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
        trust: ``local``: every client adds noise to its own upload. ``secagg``: a secure
            aggregation shows the server nothing but a sum, which carries the noise once; where
            budgets differ, who pays less then clips harder instead of adding more noise.
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
        trust: Trust = "local",
        ledger: Ledger | None = None,
        run: str = "run",
        seed: int = 0,
    ) -> None:
        rounds, seed = whole("rounds", rounds, 1, 10**9), whole("seed", seed, 0)
        clip = number("clip", clip, 1e-80, 1e80)  # so that its noise is a number, too
        ConfigError.unless(trust in ("local", "secagg"), "trust", trust, "local or secagg")
        if ledger is None:
            ledger = _ledger_of(budget, clients, mechanism, accounting)
        _check_ledger(ledger, budget, clients, mechanism, accounting)
        self.ledger = ledger
        self.rule = ledger.rule
        self.budgets = ledger.budgets
        self.rounds, self.clip = rounds, clip
        fits = trust == "local" or trust in mechanism_named(ledger.rule.mechanism).trusts
        expected = f"local, with mechanism {ledger.rule.mechanism}"
        ConfigError.unless(fits, "trust", trust, expected)
        self.trust: Trust = trust
        self.run = run
        self.seed = seed
        self.round = 0
        self._untold = Untold()
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
            context: What the policy may look at: numbers, in one row.
            fingerprint: Of all that the round's uploads will be computed from, where the same
                round may be played again after a crash (see :meth:`Ledger.reserve`): then it is
                not charged again.

        Raises:
            ConfigError: If the context is not a row of finite numbers.
        """
        seen = context_of(context)
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
            self._untold.add(plan)
            self.round += 1
        return plan

    def tell(
        self, plan: Plan, reward: float | None = None, participants: ArrayLike | None = None
    ) -> None:
        """What the round brought; settles the plan. Telling a plan twice is an error.

        Args:
            plan: From :meth:`ask` of this planner, or of the one that it was restored from.
            reward: How much better the model got; None if nobody knows.
            participants: Who really took part; all who were planned, by default. They have paid
                either way.

        Raises:
            ConfigError: If the reward is not a finite number, or the plan was told before, is
                another planner's, or a copy whose numbers were changed.
        """
        del participants  # what was reserved is spent, whether an upload arrived or not
        plan, brought = self._untold.check(plan), reward_of(reward)
        if plan.reservation is not None:
            self.ledger.settle(plan.reservation)
        self._untold.remove(plan)
        self._spent = self.ledger.least_spent_by_class()
        self.learn(plan, brought)

    def state_dict(self) -> dict[str, Any]:
        """Everything it is and has learned, as plain data that JSON can hold.

        A ledger in memory is part of it, of a durable one only the newest row: that one must be
        handed to :meth:`from_state`, and must not have forgotten anything.
        """
        return {
            "version": STATE_VERSION,
            "options": self._options,
            "round": self.round,
            "pending": self._untold.state_dict(),
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
            ConfigError: If the state is of another version (those from before there were versions
                included: what they say of plans not told yet cannot be checked), or is no state.
        """
        with reading_state(state):
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
        self.round = whole("state: round", state["round"], 0, self.rounds)
        self._untold = Untold.from_state(state["pending"], self.round)
        spent, expected = np.asarray(state["spent"]), "ticks, from 0"  # too many digits for floats
        fits = spent.dtype.kind == "i" and spent.shape == self._spent.shape
        fits = fits and bool((spent >= 0).all() and (spent <= CEILING).all())
        ConfigError.unless(fits, "state: spent", state["spent"], expected)
        self._spent = spent.astype(np.int64)

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
        nobody = np.zeros(len(self.budgets), dtype=bool)
        return Plan(
            round=self.round,
            rule=self.rule.name,
            largest_clip=self.clip if choice.clip is None else choice.clip,
            charge_by_class=charges,
            participants=nobody if reservation is None else reservation.granted,
            class_of_client=self.budgets.class_of_client,
            trust=self.trust,
            own_clip=choice.own_clip,
            level=choice.level,
            why=choice.why,
            reservation=reservation,
        )


@contextmanager
def reading_state(state: object) -> Iterator[None]:
    """Refuse a state of another version before it is read, and whatever cannot be read of it.

    Raises:
        ConfigError: If it is not what this version's ``state_dict`` gave.
    """
    mapping = isinstance(state, Mapping)
    kind = type(state).__name__
    ConfigError.unless(mapping, "state", kind, "what state_dict gave, a mapping")
    version = state.get("version") if isinstance(state, Mapping) else None
    fits = type(version) is int and version == STATE_VERSION
    expected = (
        f"{STATE_VERSION}, the only one that this release of bgtplanner can read; go on with the "
        "release that wrote it, or begin anew with the same ledger"
    )
    ConfigError.unless(fits, "state: version", version, expected)
    try:
        yield
    except BGTPlannerError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ConfigError(
            f"state: edited, damaged, or of another policy ({type(error).__name__})"
        ) from error


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
