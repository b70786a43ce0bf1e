"""Policies: ask what the next round may cost, then tell what it brought.

Every policy is used in the same way, in the simulator, on a real federation and in your own loop::

    while (plan := policy.ask(context)) is not None:
        reward = train_one_round(clip=plan.clip, noise_std=plan.noise_std)
        policy.tell(plan, reward=reward)

A policy says how much (:meth:`Policy.plan`). `ask` also reserves the charge in a ledger, `tell`
settles it, and a plan that is never told counts as spent.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike

from bgtplanner.errors import ConfigError
from bgtplanner.planning.arguments import Floats, context_of, number, reward_of, whole
from bgtplanner.planning.forecasting import Forecast
from bgtplanner.planning.plan import Explanation, Mask, Plan, Trust, in_groups, reserved
from bgtplanner.planning.states import recall, remembered, sealed, unsealed
from bgtplanner.privacy.accountants import TICK, Accountant, accountant_named, default_accountant
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.compatibility import neighbours_of
from bgtplanner.privacy.ledger import Head, Ledger, Spending
from bgtplanner.privacy.mechanisms import Neighbours, mechanism_named

_TOO_LITTLE = 1e-3  # share of an even charge: with the noise of less a round can only do harm


class Choice(NamedTuple):
    """What a policy would like for a round.

    Attributes:
        charges: Charge per class of budgets; all zero: skip the round.
        clip: Bound on the norm of an upload, if the policy changes it.
        own_clip: Each client's own bound over `clip`, if they differ (trust ``local`` only).
        proportional: Whether the charges are those of the invited clients with most left in their
            class, and all others pay the same share of what they have left. Otherwise all of a
            class pay the same, and a client that has less left does not take part.
    """

    charges: Floats
    level: int | None = None
    clip: float | None = None
    own_clip: Floats | None = None
    why: Explanation = Explanation()
    proportional: bool = False


class Policy(ABC):
    """What decides how much a round may cost. Inherit from it to get the defaults of the hooks.

    Attributes:
        pending: The tokens of the plans that were not told yet, by their rounds.
        learns: Whether it uses contexts and rewards; if not, none are computed for it.
        follows_norms: Whether it is to be given the norms of what was released; see `saw`.
        forecasts: Whether it is to be given a `forecast` before each round.
        note: What it has decided, in a sentence, for the summary.
        run: Set by the caller: the name of the run in the ledger.
        replays: Set by callers that reserve with fingerprints: after a crash, rounds are played
            again, so later rounds of this run that the ledger already has do not count as spent.
        present: Set by the caller: the clients that can be reached; None for all of them.
    """

    rounds: int
    clip: float
    pending: dict[int, str]
    learns: bool = True
    follows_norms: bool = False
    forecasts: ClassVar[bool] = False
    forecast: Forecast | None = None
    note: str | None = None
    ledger: Ledger | None = None
    run: str = "run"
    replays: bool = False
    present: Mask | None = None

    @abstractmethod
    def plan(self, context: Floats, clients: Mask | None = None) -> Plan | None:
        """Return what the next round shall cost, not reserved yet; None: there is none.

        The context is empty if there is nothing to look at; all clients are invited by default.
        """

    def learn(self, plan: Plan, reward: float | None) -> None:  # noqa: B027 - a hook
        """Learn from what a round brought; the reward is None if that is not known."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return its whole state, as plain data that JSON can hold, with a version."""

    @classmethod
    @abstractmethod
    def from_state(cls, state: Mapping[str, Any], *, ledger: Ledger | None = None) -> Self:
        """Restore a policy from what :meth:`state_dict` returned; refuse anything else."""

    def ask(self, context: ArrayLike | None = None, *, clients: Mask | None = None) -> Plan | None:
        """Return the plan for the next round, already reserved; None: there is no further round.

        Args:
            context: What the policy may look at, as a row of finite numbers.
            clients: The clients that are invited; those that cannot pay do not take part.
        """
        plan = self.plan(context_of(context), clients)
        if plan is not None:
            plan = reserved(plan, self.ledger, self.run)
            self.pending[plan.round] = plan.token
        return plan

    def tell(self, plan: Plan, reward: float | None = None) -> None:
        """Settle a plan of :meth:`ask`, once, and learn what its round brought.

        The reward is by how much the model improved; None if that is not known.
        """
        if not isinstance(plan, Plan):
            raise ConfigError(f"plan = {type(plan).__name__}: expected a Plan returned by ask")
        own = self.pending.get(plan.round) == plan.token
        expected = "one that this policy was asked for and not told yet"
        ConfigError.unless(own, "plan", plan.round, expected)
        brought = reward_of(reward)
        if self.ledger is not None and plan.reservation is not None:
            self.ledger.settle(plan.reservation)
        del self.pending[plan.round]
        self.learn(plan, brought)

    def share_left(self) -> Floats:
        """Return the share of its budget that the mean client per class has left, if known."""
        return np.zeros(0)

    def saw(self, norm: float | Floats) -> None:  # noqa: B027 - a hook
        """Take in the norm of the last noisy mean, or of each client's release if visible."""


@dataclass(eq=False, repr=False)
class LedgerPolicy(Policy):
    """The common part of all policies that spend from a ledger.

    A policy says in :meth:`choose` what it would like. Its options are the fields of a dataclass;
    what it remembers beyond them are the attributes that it names in `remembers`.

    Args:
        budget: What every client may spend, or the budgets of all clients; may be left out, as
            `clients`, if `ledger` is given.
        mechanism: By default the ledger's, otherwise ``gaussian``.
        accounting: By default the ledger's accountant, otherwise the mechanism's own.
        trust: ``local``: every client adds noise to its own upload. ``secagg``: the server sees
            only a sum, which carries the noise once.
        neighbours: The neighbouring relation that the budget is a promise about; by default the
            ledger's, or the one that goes with the trust: ``replace-one`` (sensitivity 2 * clip),
            and with ``secagg`` ``replace-special`` (sensitivity clip).
        participation: Share of the clients that are invited to a round. A client's budget then
            has to last for this share of the rounds only, so that its charges may be larger.
        ledger: By default a new one in memory.
    """

    budget: Budget | Budgets | None = None
    clients: int | None = None
    _: KW_ONLY
    rounds: int
    mechanism: str | None = None
    accounting: str | Accountant | None = None
    clip: float = 1.0
    trust: Trust = "local"
    neighbours: Neighbours | None = None
    participation: float = 1.0
    ledger: Ledger = None  # type: ignore[assignment]  # there is one from __post_init__ on
    run: str = "run"
    seed: int = 0

    remembers: ClassVar[tuple[str, ...]] = ("round", "pending")
    _declares: ClassVar[bool] = True  # its options as fields

    def __init_subclass__(cls) -> None:
        cls._declares = "__init__" not in vars(cls) and cls._declares

    def __post_init__(self) -> None:
        names = sorted(field.name for field in dataclasses.fields(self))
        own = [name for name in names if name not in ("budget", "clients", "ledger")]
        self._options = {name: _plain(getattr(self, name)) for name in own}
        self.rounds = whole("rounds", self.rounds, 1, 10**9)
        self.seed = whole("seed", self.seed, 0)
        self.clip = number("clip", self.clip, 1e-80, 1e80)  # so that its noise is finite, too
        self.participation = number("participation", self.participation, 5e-324, 1.0)
        fits = self.trust in ("local", "secagg")
        ConfigError.unless(fits, "trust", self.trust, "local or secagg")
        if self.ledger is None:
            self.ledger = _ledger_of(self)
        self.budgets, self.accountant = self.ledger.budgets, self.ledger.accountant
        _check_ledger(self)
        self.neighbours = neighbours_of(self.trust, self.ledger.neighbours)
        self.round, self.pending = 0, {}
        self._even = self.even_charges(self.rounds)
        classes, self._class_of = self.budgets.classes, self.budgets.class_of_client
        self._limits = np.stack([self.accountant.limit_ticks(one) for one in classes], axis=1)
        # Of an accountant with two sums, the one that lasts longer at an even pace is the limit.
        paces = self._limits[:, 0] / self.accountant.sum_ticks(self._even[0])
        self._binding = int(paces.argmax())

    @abstractmethod
    def choose(self, context: Floats, left: Floats) -> Choice | None:
        """Return what this round should cost; None to stop for good.

        `left` is the largest charge that any invited client of each class can still pay.
        """

    def plan(self, context: Floats, clients: Mask | None = None) -> Plan | None:
        """Return what the policy chooses, as far as the invited clients can pay it."""
        own = self._spending().left()
        left = self._most(own, self.present)
        if self.round >= self.rounds or not self._enough(self._most(own, None)):
            return None
        if self._enough(left):
            left = left if clients is None else self._most(own, clients)
            choice = self.choose(context, left)
        else:  # others may join, or come back
            choice = Choice(0.0 * left, why=Explanation("no one within reach has any budget left"))
        if choice is None:
            return None
        ConfigError.unless(isinstance(choice, Choice), "choose", choice, "a Choice, or None")
        wished = np.asarray(choice.charges, dtype=np.float64)
        charges, classes = np.minimum(wished, left), self._class_of  # the last one is capped
        if clients is None and wished.any() and not charges.any():
            return None
        if choice.proportional and (own < self._most(own, None)[classes]).any():
            shares = charges / np.maximum(left, TICK)
            charges, classes = in_groups(shares[classes] * own, clients)
        pays = (charges > 0)[classes]
        self.round += 1
        return Plan(
            round=self.round - 1, accountant=self.accountant.name, trust=self.trust,
            largest_clip=self.clip if choice.clip is None else choice.clip,
            charge_by_class=charges, class_of_client=classes,
            participants=pays if clients is None else clients & pays,
            neighbours=self.ledger.neighbours, own_clip=choice.own_clip, level=choice.level,
            why=choice.why,
        )  # fmt: skip

    def expected(self, rounds: int) -> int:
        """Return in how many of `rounds` rounds a client takes part, rounded up; at least 1."""
        return max(1, math.ceil(self.participation * rounds - 1e-9))

    def even_charges(self, rounds: int) -> Floats:
        """Return the charge of one of `rounds` equal rounds, per class of budgets."""
        lasts = self.expected(rounds)
        return np.array([self.accountant.even_charge(one, lasts) for one in self.budgets.classes])

    def share_of(self, charges: Floats) -> Floats:
        """Return the share of its whole budget that a charge costs each class."""
        adds = self.accountant.sum_ticks(np.maximum(charges, TICK))[self._binding]
        return np.where(charges > 0, adds / self._limits[self._binding], 0.0)

    def share_left(self) -> Floats:
        """Return the share of its budget that the mean client within reach has left, per class."""
        spending = self._spending()
        # Of two sums, one may be used up: what the other has left can still be paid.
        used = (spending.sums / spending.limits).min(axis=0)
        there = slice(None) if self.present is None else self.present
        index, classes = self._class_of[there], len(self._even)
        members = np.maximum(np.bincount(index, minlength=classes), 1)
        return np.maximum(1.0 - np.bincount(index, used[there], classes) / members, 0.0)

    def _spending(self) -> Spending:
        """Return what every client spent before this round."""
        if self.replays:
            return self.ledger.spending(self.run, self.round)
        return self.ledger.spending()

    def _enough(self, left: Floats) -> bool:
        """Return whether a round can be paid for that does more than harm."""
        return bool((left >= _TOO_LITTLE * self._even).any())

    def _most(self, left: Floats, clients: Mask | None) -> Floats:
        """Return the largest charge that any of these clients can still pay, per class."""
        there = slice(None) if clients is None else clients
        most = np.zeros(len(self._even))
        np.maximum.at(most, self._class_of[there], left[there])
        return most

    def state_dict(self) -> dict[str, Any]:
        """Return everything it is and has learned; a ledger in memory is part of it."""
        kind = type(self).__name__
        expected = "none: declare its options as fields of a dataclass; its state then holds them"
        ConfigError.unless(self._declares, f"{kind}.__init__", "one of its own", expected)
        own = {"kind": kind, "options": self._options, **remembered(self)}
        return sealed(own | {"ledger": self.ledger.state_dict()})

    @classmethod
    def from_state(cls, state: Mapping[str, Any], *, ledger: Ledger | None = None) -> Self:
        """Restore a policy; a durable ledger has to be given, with no entry lost since."""
        kind = unsealed(state).get("kind")
        ConfigError.unless(kind == cls.__name__, "state: kind", kind, cls.__name__)
        if ledger is None:
            ledger = Ledger.from_state(state["ledger"])
        else:
            ledger.check_head(Head.parse(state["ledger"]["head"]))
        policy = cls(ledger=ledger, **state["options"])
        recall(policy, state)
        return policy


def _plain(value: Any) -> Any:
    if isinstance(value, Accountant):
        return value.name
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _ledger_of(policy: LedgerPolicy) -> Ledger:
    """Return a new ledger in memory for a policy's budgets."""
    budget = policy.budget
    if isinstance(budget, Budget):
        budget = Budgets.same(budget, whole("clients", policy.clients, 1))
    if not isinstance(budget, Budgets):
        raise ConfigError(f"budget = {budget!r}: expected a Budget, or Budgets")
    accountant = policy.accounting or default_accountant(policy.mechanism or "gaussian")
    relation = neighbours_of(policy.trust, policy.neighbours)
    return Ledger.in_memory(budget, accountant, neighbours=relation)


def _check_ledger(policy: LedgerPolicy) -> None:
    """Refuse a ledger that does not fit the arguments."""
    ledger, rule, budget = policy.ledger, policy.accountant, policy.budget
    if isinstance(budget, Budget):
        budget = Budgets.same(budget, len(ledger))
    named = None if policy.accounting is None else accountant_named(_plain(policy.accounting)).name
    for name, given, only in (
        ("neighbours", policy.neighbours, ledger.neighbours),
        ("clients", policy.clients, len(ledger)),
        ("mechanism", policy.mechanism, rule.mechanism),
        ("accounting", named, rule.name),
        ("budget", budget, policy.budgets),
    ):
        fits, shown = given is None or given == only, "another" if name == "budget" else given
        expected = "the ledger's own" if name == "budget" else f"{only}, which the ledger is for"
        ConfigError.unless(fits, name, shown, expected)
    trusts = ("local", *mechanism_named(rule.mechanism).trusts)
    expected = f"local, with mechanism {rule.mechanism}"
    ConfigError.unless(policy.trust in trusts, "trust", policy.trust, expected)
