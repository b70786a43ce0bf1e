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

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from bgtplanner.errors import (
    BGTPlannerError,
    BudgetExceeded,
    ConfigError,
    LedgerError,
    LedgerTamperedError,
)
from bgtplanner.planning.given import context_of, number, reward_of, whole
from bgtplanner.planning.plan import Floats, Mask, Plan, Trust, Untold, Why
from bgtplanner.privacy._book import Spending, Ticks
from bgtplanner.privacy._journal import Head
from bgtplanner.privacy.accountants import TICK, Accountant, accountant_named, default_accountant
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Ledger, Reservation
from bgtplanner.privacy.mechanisms import mechanism_named

__all__ = [
    "STATE_VERSION",
    "Choice",
    "Floats",
    "LedgerPolicy",
    "Plan",
    "Policy",
    "Why",
    "reading_state",
]

STATE_VERSION = 2
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
    """Whoever decides what a round may cost. Inherit from it to have the hooks' defaults.

    Attributes:
        learns: Whether contexts and rewards make a difference to it: otherwise nobody is asked
            for them.
        follows_norms: Whether it wants to know how long each client's release was, see `saw`.
        at_end: In how many rounds it might spend what is left: a forecast is made for that.
        abstained: Whether it has stopped because going on is not worth it: what was learned is
            then withdrawn.
        note: What it has decided, in a sentence, for the summary.
        ledger: What it spends from, if it spends.
        run: Set to the name of the run in the ledger.
        replays: Set by whoever gives fingerprints to `ask`: rounds may be played again after a
            crash, so that this run's later rounds, which the ledger knows already, do not count
            as spent yet.
        own_clips: Set to False where a clip of each client's own would be passed over.
        present: Who can be reached at all, if that is not everybody.
        rounds: Most rounds there can be.
        clip: Bound on the norm of an upload.
    """

    rounds: int
    clip: float
    learns: bool = True
    follows_norms: bool = False
    at_end: int = 1
    abstained: bool = False
    note: str | None = None
    ledger: Ledger | None = None
    run: str = "run"
    replays: bool = False
    own_clips: bool = True
    present: Mask | None = None

    @abstractmethod
    def ask(
        self,
        context: ArrayLike | None = None,
        *,
        clients: Mask | None = None,
        fingerprint: bytes | None = None,
    ) -> Plan | None:
        """The plan for the next round, already reserved; None: there is no further round."""

    @abstractmethod
    def tell(
        self, plan: Plan, reward: float | None = None, participants: ArrayLike | None = None
    ) -> None:
        """What the round brought; settles the plan."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything it is and has learned, as plain data that JSON can hold, with a version."""

    @classmethod
    @abstractmethod
    def from_state(cls, state: Mapping[str, Any], *, ledger: Ledger | None = None) -> Self:
        """The same policy again, from what :meth:`state_dict` gave; refuses anything else."""

    def left(self) -> Floats:
        """Largest charge that the mean client of each class can still pay; empty if unknown."""
        return np.zeros(0)

    def share_left(self) -> Floats:
        """Share of its budget that the mean client of each class has left; empty if unknown."""
        return np.zeros(0)

    def saw(self, norm: float | Floats) -> None:
        """The norm of the last noisy mean, or of each client's own release where those show."""
        del norm


@dataclass(eq=False, repr=False)
class LedgerPolicy(Policy):
    """What all policies share: rounds, the ledger, and never more than fits.

    A policy says in :meth:`choose` what it would like, and in :meth:`learn` takes in what came.
    Its options are the fields of a dataclass, so that it can be made again from its state; what
    follows from them is set up in ``__post_init__``.

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
        participation: Share of the clients that are asked in a round. A client's budget then
            lasts for its own share of the rounds only, and a charge may be larger by as much.
        ledger: The ledger to spend from; by default one in memory.
        run: Name of this run in the ledger.
        seed: Of every random choice.
    """

    budget: Budget | Budgets | None = None
    clients: int | None = None
    _: KW_ONLY
    rounds: int
    mechanism: str | None = None
    accounting: str | Accountant | None = None
    clip: float = 1.0
    trust: Trust = "local"
    participation: float = 1.0
    ledger: Ledger = None  # type: ignore[assignment]  # there is one from __post_init__ on
    run: str = "run"
    seed: int = 0

    _declares: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._declares = "__init__" not in vars(cls) and cls._declares

    def __post_init__(self) -> None:
        self._options = {
            field.name: _plain(getattr(self, field.name))
            for field in dataclasses.fields(self)
            if field.name not in ("budget", "clients", "ledger")
        }
        self.rounds = whole("rounds", self.rounds, 1, 10**9)
        self.seed = whole("seed", self.seed, 0)
        self.clip = number("clip", self.clip, 1e-80, 1e80)  # so that its noise is a number, too
        trust, share = self.trust, number("participation", self.participation, 5e-324, 1.0)
        ConfigError.unless(trust in ("local", "secagg"), "trust", trust, "local or secagg")
        if self.ledger is None:
            self.ledger = _ledger_of(self)
        self.budgets, self.accountant = self.ledger.budgets, self.ledger.accountant
        self.participation = share
        _check_ledger(self)
        fits = trust == "local" or trust in mechanism_named(self.accountant.mechanism).trusts
        expected = f"local, with mechanism {self.accountant.mechanism}"
        ConfigError.unless(fits, "trust", trust, expected)
        self.round = 0
        self._untold = Untold()
        self._even = self.even_charges(self.rounds)
        self._limits = np.stack(
            [self.accountant.limit_ticks(b) for b in self.budgets.classes], axis=1
        )
        # A rule with two sums is bound by the one that lasts longer at an even pace.
        paces = self._limits[:, 0] / self.accountant.sum_ticks(self._even[0])
        self._binding = int(paces.argmax())

    def spending_from(self, ledger: Ledger) -> Self:
        """The same policy before its first round, to spend from another ledger.

        Raises:
            ConfigError: If it has begun to play, or was made for other clients or by another rule.
        """
        fits = self.round == 0
        ConfigError.unless(fits, "policy", f"in round {self.round}", "one that has not begun")
        theirs, wanted = (
            f"{len(of)} clients by {of.accountant.name}" for of in (self.ledger, ledger)
        )
        ConfigError.unless(theirs == wanted, "policy", f"made for {theirs}", wanted)
        return dataclasses.replace(self, budget=None, clients=None, ledger=ledger)

    @abstractmethod
    def choose(self, context: Floats, left: Floats) -> Choice | None:
        """What this round should cost; None to stop for good.

        Args:
            context: What may be looked at; empty if nothing was given.
            left: Largest charge that somebody of each class, out of those asked, can still pay.
        """

    def learn(self, plan: Plan, reward: float | None) -> None:
        """Take in what a round brought. Policies that do not learn leave it out."""

    def expected(self, rounds: int) -> int:
        """In how many of some rounds a client takes part, rounded up; at least in one."""
        return max(1, math.ceil(self.participation * rounds - 1e-9))

    def even_charges(self, rounds: int) -> Floats:
        """Charge of one of `rounds` equal rounds, for each class of budgets."""
        lasts = self.expected(rounds)
        return np.array(
            [self.accountant.even_charge(budget, lasts) for budget in self.budgets.classes]
        )

    def left(self) -> Floats:
        """Largest charge that the mean client of each class can still pay; 0 if it is spent."""
        return self.accountant.largest_fitting(self._mean_spent(), self._limits)

    def share_of(self, charges: Floats) -> Floats:
        """Share of a class's whole budget that a charge takes, for each class; 0 takes none."""
        adds = self.accountant.sum_ticks(np.maximum(charges, TICK))[self._binding]
        return np.where(charges > 0, adds / self._limits[self._binding], 0.0)

    def share_left(self) -> Floats:
        """Share of its budget that the mean client of each class has left."""
        spent = self._mean_spent()[self._binding] / self._limits[self._binding]
        return np.asarray(np.maximum(1 - spent, 0.0))

    def ask(
        self,
        context: ArrayLike | None = None,
        *,
        clients: Mask | None = None,
        fingerprint: bytes | None = None,
    ) -> Plan | None:
        """The plan for the next round, already reserved; None: there is no further round.

        Args:
            context: What the policy may look at: numbers, in one row.
            clients: Who is asked in this round; by default everybody. Who cannot pay sits it out.
            fingerprint: Of all that the round's uploads will be computed from, where the same
                round may be played again after a crash (see :meth:`Ledger.reserve`): then it is
                not charged again.

        Raises:
            ConfigError: If the context is not a row of finite numbers.
        """
        seen = context_of(context)
        if self.round >= self.rounds:
            return None
        spending = self._spending()
        left = self._left_of(spending, self.present)
        if not (left >= _TOO_LITTLE * self._even).any():
            return None
        if clients is not None:
            left = self._left_of(spending, clients)
        choice = self.choose(seen, left)
        if choice is None:
            return None
        fits = choice.own_clip is None or self.own_clips
        ConfigError.unless(fits, "own_clip", "one a client", "none, but with privacy.unit = row")
        plan = self._reserve(choice, left, clients, fingerprint)
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
        self.learn(plan, brought)

    def state_dict(self) -> dict[str, Any]:
        """Everything it is and has learned, as plain data that JSON can hold.

        A ledger in memory is part of it, of a durable one only the newest row: that one must be
        handed to :meth:`from_state`, and must not have forgotten anything.

        Raises:
            ConfigError: If the policy's options are not the fields of a dataclass.
        """
        kind = type(self).__name__
        expected = "none: declare its options as fields of a dataclass, so that its state has them"
        ConfigError.unless(self._declares, f"{kind}.__init__", "one of its own", expected)
        return {
            "version": STATE_VERSION,
            "kind": kind,
            "options": self._options,
            "round": self.round,
            "pending": self._untold.state_dict(),
            "ledger": self.ledger.state_dict(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], *, ledger: Ledger | None = None) -> Self:
        """The same policy again, from what :meth:`state_dict` gave.

        Args:
            state: From :meth:`state_dict`.
            ledger: The ledger that it spends from; may be left out if that was one in memory.

        Raises:
            LedgerError: If the ledger is missing, or has lost what was written down then.
            ConfigError: If the state is of another version or policy, or is no state.
        """
        with reading_state(state):
            kind = state["kind"]
            ConfigError.unless(kind == cls.__name__, "state: kind", kind, cls.__name__)
            if ledger is None:
                ledger = Ledger.from_state(state["ledger"])
            else:
                try:
                    ledger.check_head(Head.parse(state["ledger"]["head"]))
                except LedgerTamperedError as error:
                    if "rows" not in state["ledger"]:
                        raise
                    raise LedgerError(
                        "ledger: this policy had one in memory, which is in its state"
                    ) from error
            policy = cls(ledger=ledger, **state["options"])
            policy._load(state)
        return policy

    def _load(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` has told beyond the options and the ledger."""
        self.round = whole("state: round", state["round"], 0, self.rounds)
        self._untold = Untold.from_state(state["pending"], self.round)

    def _spending(self) -> Spending:
        """What everybody has spent before this round."""
        return self.ledger.spending(*((self.run, self.round) if self.replays else ()))

    def _left_of(self, spending: Spending, clients: Mask | None) -> Floats:
        """Largest charge that somebody of each class can still pay, out of some clients."""
        if clients is None:
            return self.accountant.largest_fitting(spending.least_spent_by_class(), self._limits)
        most = np.zeros(len(self.budgets.classes))
        np.maximum.at(most, self.budgets.class_of_client[clients], spending.left()[clients])
        return most

    def _mean_spent(self) -> Ticks:
        """Mean sums of each class, in whole ticks, over those who can be reached."""
        spending = self._spending()
        if spending.alike:
            return spending.least_spent_by_class()
        there = slice(None) if self.present is None else self.present
        index, classes = self.budgets.class_of_client[there], len(self.budgets.classes)
        sizes = np.maximum(np.bincount(index, minlength=classes), 1)
        sums = [np.bincount(index, row, classes) for row in spending.spent()[:, there]]
        return np.asarray(np.ceil(np.stack(sums) / sizes).astype(np.int64))

    def _reserve(
        self, choice: Choice, left: Floats, clients: Mask | None, fingerprint: bytes | None
    ) -> Plan | None:
        wished = np.asarray(choice.charges, dtype=np.float64)
        for _ in range(2):
            charges = np.minimum(wished, left)  # the last charge is capped to what is left
            if not charges.any():  # nobody wants to pay, or nobody who was asked can
                over = clients is None and wished.any()
                return None if over else self._plan(choice, 0.0 * wished, None)
            try:
                reservation = self.ledger.reserve(
                    charges, run=self.run, round=self.round, clients=clients, by_class=True,
                    fingerprint=fingerprint,
                )  # fmt: skip
            except BudgetExceeded:  # others have spent from this ledger meanwhile
                left = self._left_of(self.ledger.spending(), clients)
                continue
            return self._plan(choice, charges, reservation)
        return None

    def _plan(self, choice: Choice, charges: Floats, reservation: Reservation | None) -> Plan:
        nobody = np.zeros(len(self.budgets), dtype=bool)
        return Plan(
            round=self.round,
            accountant=self.accountant.name,
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


def _plain(value: Any) -> Any:
    """An option as plain data."""
    if isinstance(value, Accountant):
        return value.name
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _ledger_of(policy: LedgerPolicy) -> Ledger:
    budget, clients = policy.budget, policy.clients
    if isinstance(budget, Budget):
        ConfigError.unless(clients is not None, "clients", clients, "how many there are")
        budget = Budgets.same(budget, clients or 0)
    if not isinstance(budget, Budgets):
        raise ConfigError(f"budget = {budget!r}: expected a Budget, or Budgets")
    named = policy.accounting is not None
    accountant = (
        policy.accounting if named else default_accountant(policy.mechanism or "gaussian").name
    )
    return Ledger.in_memory(budget, accountant)  # type: ignore[arg-type]


def _check_ledger(policy: LedgerPolicy) -> None:
    """Refuse a ledger that is not for what was asked."""
    unless, accountant, clients = ConfigError.unless, policy.accountant, policy.clients
    same = clients is None or clients == len(policy.budgets)
    unless(same, "clients", clients, f"{len(policy.budgets)}, as the budgets have it")
    fits = policy.mechanism in (None, accountant.mechanism)
    unless(
        fits,
        "mechanism",
        policy.mechanism,
        f"{accountant.mechanism}, which {accountant.name} is for",
    )
    name = (
        policy.accounting.name if isinstance(policy.accounting, Accountant) else policy.accounting
    )
    known = name is None or accountant_named(name).name == accountant.name
    unless(known, "accounting", name, f"{accountant.name}, by which the ledger is kept")
    budget = policy.budget
    if isinstance(budget, Budget):
        budget = Budgets.same(budget, len(policy.budgets))
    unless(budget is None or budget == policy.budgets, "budget", budget, "the ledger's own")
