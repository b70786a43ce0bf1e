"""Contract tests for your own policies.

Subclass the contract in your own tests; pytest runs every check::

    from bgtplanner.testing import PolicyContract

    class TestMine(PolicyContract):
        policy = MyPolicy

Set `options` to pass further arguments, or override :meth:`PolicyContract.make`. A policy takes
``(budget, clients, *, rounds, mechanism, accounting, ledger, run, seed, ...)``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bgtplanner.errors import BGTPlannerError, ConfigError
from bgtplanner.planning.plan import Plan
from bgtplanner.planning.policy import Policy
from bgtplanner.privacy.accountants import ACCOUNTANTS
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Ledger
from bgtplanner.privacy.mechanisms import SENSITIVITY, mechanism_named


def _require(holds: object, message: str) -> None:
    if not holds:
        raise AssertionError(message)


def _refuses(call: Any, *arguments: Any, error: Any = ConfigError, **named: Any) -> None:
    try:
        call(*arguments, **named)
    except error:
        return
    raise AssertionError(f"{(*arguments, named)} was accepted")


def _through_json(policy: Policy) -> Any:
    return json.loads(json.dumps(policy.state_dict()))


class PolicyContract:
    """What every policy must do; subclass it and set `policy`.

    Attributes:
        policy: The class to test.
        options: Further arguments of the class.
        rounds: The number of rounds that the checks play.
        context: The length of the contexts.
    """

    policy: ClassVar[Any]
    options: ClassVar[Mapping[str, Any]] = {}
    rounds: ClassVar[int] = 12
    context: ClassVar[int] = 3

    def make(self, ledger: Ledger | None = None, **options: Any) -> Policy:
        """Return a new policy, by default for three clients with equal budgets."""
        options = {"rounds": self.rounds, **self.options, **options}
        budget = Budget(5.0, 1e-5) if ledger is None else None
        clients = {"clients": 3} if ledger is None else {"ledger": ledger}
        return self.policy(budget, **clients, **options)  # type: ignore[no-any-return]

    def play(self, policy: Policy, *, restore: bool = False) -> list[Plan]:
        """Play all rounds with made-up contexts and rewards, perhaps restored after each."""
        plans, draw = list[Plan](), np.random.default_rng(0)
        while (plan := policy.ask(draw.standard_normal(self.context))) is not None:
            policy.tell(plan, reward=float(draw.standard_normal() * 0.1))
            plans.append(plan)
            _require(plan.round < self.rounds, "there are more rounds than were asked for")
            policy = type(policy).from_state(_through_json(policy)) if restore else policy
        return plans

    def first(self, policy: Policy) -> Plan:
        """Return the next plan, which a fresh budget must pay for."""
        if (plan := policy.ask(np.zeros(self.context))) is None:
            raise AssertionError("a fresh budget does not pay for a single round")
        return plan

    def test_it_ends_and_numbers_its_rounds(self) -> None:
        """It is a policy, and its rounds are numbered from 0, and end for good."""
        policy = self.make()
        _require(isinstance(policy, Policy), "ask, tell, state_dict or from_state is missing")
        plans = self.play(policy)
        _require(len(plans) >= 1, "a fresh budget does not pay for a single round")
        _require([plan.round for plan in plans] == list(range(len(plans))), "rounds skip numbers")
        _require(policy.ask(np.zeros(self.context)) is None, "it continues after its end")

    def test_it_never_spends_more_than_there_is(self) -> None:
        """No client overspends, under any sound accountant, budgets and rewards."""
        for accountant in (name for name, of in ACCOUNTANTS.items() if of.sound):
            for epsilons in ([5.0] * 3, [0.1, 1.0, 30.0], [0.05, 0.05, 1e4]):
                ledger = Ledger.in_memory(Budgets.per_client(epsilons, 1e-5), accountant)
                self.play(self.make(ledger))
                within = ledger.epsilon_spent() <= np.array(epsilons) * (1 + 1e-9)
                _require(within.all(), f"{accountant}: overspent")

    def test_what_it_plans_is_what_it_pays(self) -> None:
        """Charge and noise of a plan fit each other and the ledger, for every single client.

        A client with a smaller budget than the others must get more noise than they do. Asking
        reserves the charge, and it stays reserved until the plan is told.
        """
        for accountant in ("gaussian/gdp", "laplace/either"):
            for epsilons in ([5.0] * 3, [1.0, 10.0, 10.0]):
                ledger = Ledger.in_memory(Budgets.per_client(epsilons, 1e-5), accountant)
                policy, spent = self.make(ledger), ledger.spent()
                for _ in range(self.rounds):
                    if (plan := policy.ask(np.zeros(self.context))) is None:
                        break
                    _require_fit(plan, ledger, ledger.spent() - spent)
                    spent = ledger.spent()
                    policy.tell(plan, reward=0.01)

    def test_the_same_seed_gives_the_same_plans(self) -> None:
        """Every random choice comes from the seed, also in a policy restored from JSON."""
        played = [self.play(self.make(seed=5), restore=again) for again in (False, False, True)]
        one, two, again = ([of.charge_by_class.tolist() for of in plans] for plans in played)
        _require(one == two, "plans differ for the same seed")
        _require(again == one, "it plays differently after it was restored")

    def test_it_spends_from_a_durable_ledger(self, tmp_path: Path) -> None:
        """Restored with the file of its ledger it continues; without the file it refuses."""
        path, budgets = tmp_path / "ledger.sqlite", Budgets.same(Budget(5.0, 1e-5), 3)
        with Ledger.create(path, budgets, "gaussian/gdp") as ledger:
            policy = self.make(ledger)
            policy.tell(self.first(policy), reward=0.1)
            state, before = _through_json(policy), ledger.spent()
        unusable: tuple[Any, ...] = (state, {}, None, "state")
        for bad in unusable:
            _refuses(type(policy).from_state, bad, error=BGTPlannerError)
        with Ledger.open(path) as ledger:
            type(policy).from_state(state, ledger=ledger).ask(np.zeros(self.context))
            _require((ledger.spent() >= before).all(), "spending was lost")

    def test_only_its_own_plans_can_be_told(self) -> None:
        """The plan of another policy is refused; one that was restored knows its own."""
        policy = self.make(seed=1)
        plan = self.first(policy)
        for bad in (self.first(self.make(seed=1)), None, plan.round):
            _refuses(policy.tell, bad, reward=0.0)
        type(policy).from_state(_through_json(policy)).tell(plan, reward=0.0)  # after a crash

    def test_nonsense_is_refused(self) -> None:
        """It accepts only finite numbers, and no plan twice; it can do without any of both."""
        policy, nan = self.make(), float("nan")
        for context in ([nan] * (self.context or 1), "text", ["1.0"], [[1.0], [2.0, 3.0]]):
            _refuses(policy.ask, context)
        plan = self.first(policy)
        for reward in (nan, float("inf"), "0.5", True, 1j, [0.1], 10**400):
            _refuses(policy.tell, plan, reward=reward)
        policy.tell(plan, reward=1e300)
        _refuses(policy.tell, plan, reward=0.0)
        policy = self.make()
        for _ in range(self.rounds):
            if (without := policy.ask()) is not None:
                policy.tell(without)


def _require_fit(plan: Plan, ledger: Ledger, paid: NDArray[np.int64]) -> None:
    """Require that a plan's numbers fit what each client has really paid."""
    accountant = ledger.accountant
    scale = SENSITIVITY[ledger.neighbours] * mechanism_named(accountant.mechanism).std_of_scale
    _require(not (plan.skip and paid.any()), "a skipped round was charged")
    _require(plan.skip or ledger.unsettled == 1, "it was settled before it was told")
    for client in range(len(ledger)):
        own = plan.of(client)
        if not own.takes_part:
            _require(not paid[:, client].any(), "a client that does not take part was charged")
            _require(own.noise_std == np.inf, "a client that does not take part has finite noise")
            continue
        cost = float(accountant.charge(own.noise_multiplier))
        booked = paid[:, client] == accountant.sum_ticks(own.charge)
        noise = own.noise_multiplier * own.clip * scale
        _require(cost <= own.charge * (1 + 1e-9), "the noise is too small for the charge")
        _require(booked.all(), "the plan's charge was not reserved")
        _require(abs(own.noise_std / noise - 1) < 1e-9, "noise_std does not fit the clip")
