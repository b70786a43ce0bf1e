"""What all policies share: rounds, the ledger, and never more than fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bgtplanner.errors import BGTPlannerError, ConfigError
from bgtplanner.paper.planners import Repaired
from bgtplanner.planning.bgt import BGTPlanner
from bgtplanner.planning.plan import Plan
from bgtplanner.planning.policy import Choice, LedgerPolicy, Policy
from bgtplanner.planning.schedules import Uniform
from bgtplanner.privacy.accountants import ACCOUNTANTS
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.privacy.ledger import Ledger

Floats = NDArray[np.float64]
SOUND = [name for name, accountant in ACCOUNTANTS.items() if accountant.sound]


@dataclass(kw_only=True)
class Greedy(LedgerPolicy):
    """Wishes for the same charge from every class, however much that is."""

    wish: Any = 1.0

    def choose(self, context: Floats, left: Floats) -> Choice | None:
        return Choice(np.full(len(self.budgets.classes), float(self.wish)))


# ---- properties

budgets_of = st.lists(st.floats(0.1, 50.0), min_size=1, max_size=3).map(
    lambda epsilons: Budgets.per_client([*epsilons, *epsilons[:1]], 1e-5)
)
rewards_of = st.one_of(
    st.none(),
    st.floats(-1.0, 1.0),
    st.sampled_from([0.0, 1e300, -1e300, 1.7e308, -1.7e308, 1e-300, -0.01, 0.01]),
)
contexts_of = st.sampled_from(["none", "normal", "huge", "constant"])
planners = st.fixed_dictionaries(
    {
        "levels": st.integers(1, 6),
        "skip": st.booleans(),
        "cheapest": st.floats(0.05, 1.0),
        "gamma": st.sampled_from([None, 0.0, 0.7, 1e6]),
        "initial_rounds": st.integers(1, 2),
    }
).flatmap(lambda options: st.sampled_from([(BGTPlanner, options), (Repaired, options)]))


def played(
    policy: Policy, rewards: list[float | None], contexts: str = "none", limit: int = 200
) -> list[Plan]:
    generator = np.random.default_rng(0)
    plans: list[Plan] = []
    while len(plans) <= limit:
        context: Any = {
            "none": None,
            "normal": generator.standard_normal(2),
            "huge": generator.choice([-1e308, 0.0, 1e308], 2),
            "constant": np.ones(2),
        }[contexts]
        plan = policy.ask(context)
        if plan is None:
            return plans
        policy.tell(plan, rewards[len(plans) % len(rewards)])
        plans.append(plan)
    raise AssertionError("it does not end")


def within(ledger: Ledger) -> bool:
    """Whether nobody spent more than it may: in whole ticks, so without any tolerance."""
    limits = np.stack(
        [ledger.accountant.limit_ticks(each) for each in ledger.budgets.classes], axis=1
    )
    return bool((ledger.spent() <= limits[:, ledger.budgets.class_of_client]).any(axis=0).all())


@given(
    budgets=budgets_of,
    accountant=st.sampled_from(SOUND),
    planner=planners,
    rounds=st.integers(1, 25),
    rewards=st.lists(rewards_of, min_size=1, max_size=6),
    contexts=contexts_of,
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_nothing_is_ever_overspent_and_all_comes_to_an_end(
    budgets: Budgets,
    accountant: str,
    planner: tuple[type[LedgerPolicy], dict[str, Any]],
    rounds: int,
    rewards: list[float | None],
    contexts: str,
    seed: int,
) -> None:
    kind, options = planner
    ledger = Ledger.in_memory(budgets, accountant)
    policy = kind(ledger=ledger, rounds=rounds, seed=seed, **options)
    for plan in played(policy, rewards, contexts):
        assert plan.skip == (np.asarray(plan.charge) == 0).all()
        assert np.max(plan.charge) == plan.charge_by_class.max()
        assert plan.participants.any() != plan.skip
    assert within(ledger)
    epsilons = np.array([budget.epsilon for budget in budgets.classes])
    assert (ledger.epsilon_spent() <= epsilons[budgets.class_of_client] * (1 + 1e-9)).all()
    assert policy.round <= rounds
    assert policy.ask() is None or policy.round < rounds


# ---- examples


def test_the_poorest_drop_out_and_the_others_go_on() -> None:
    budgets = Budgets.per_client([1.0, 1.0, 2.0, 4.0], 1e-5)
    policy = Greedy(budgets, rounds=9, wish=0.8, accounting="laplace/basic")
    plans = played(policy, [0.0])
    assert [plan.participants.sum() for plan in plans] == [4, 4, 2, 1, 1]
    np.testing.assert_allclose(plans[1].charge_by_class, [0.2, 0.8, 0.8])
    np.testing.assert_allclose(plans[2].charge_by_class, [0.0, 0.4, 0.8])
    assert policy.ledger.left().tolist() == [0.0] * 4


class Half(LedgerPolicy):
    """Half of what each has left, by shares."""

    def choose(self, context: Floats, left: Floats) -> Choice | None:
        return Choice(0.5 * left, proportional=True)


def test_in_proportion_each_pays_a_share_of_what_it_has_left() -> None:
    ledger = Ledger.in_memory(Budgets.per_client([1.0, 1.0, 1.0, 4.0], 1e-5), "laplace/basic")
    ledger.reserve([0.5, 0.25, 0.0, 0.0], run="other", round=0, clients=[0, 1])
    plan = Half(ledger=ledger, rounds=9).ask()
    assert plan is not None
    assert np.ravel(plan.charge) == pytest.approx([0.25, 0.375, 0.5, 2.0])


def test_a_number_is_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Half, "choose", lambda *_: 0.5)
    with pytest.raises(ConfigError, match=r"choose = 0\.5: expected a Choice"):
        Half(Budgets.same(Budget(1.0, 1e-5), 2), rounds=2).ask()


def test_of_two_sums_the_one_that_lasts_says_what_is_left() -> None:
    policy = Uniform(Budget(1.0, 1e-5), 2, rounds=100, accounting="laplace/either")
    for index in range(99):
        assert policy.share_left() == pytest.approx([1 - index / 100], abs=1e-6)
        policy.tell(policy.ask())


def test_options_that_are_not_declared_are_refused_before_they_are_lost() -> None:
    class Own(Uniform):
        def __init__(self, *who: Any, greed: float = 2.0, **options: Any) -> None:
            super().__init__(*who, **options)
            self.greed = greed

    policy = Own(Budget(5.0, 1e-5), 3, rounds=3, greed=3.0)
    assert len(played(policy, [0.0])) == 3  # in a loop it is fine
    with pytest.raises(ConfigError, match=r"^Own.__init__ = .*: declare its options as fields"):
        policy.state_dict()


# ---- state


def test_a_state_is_refused_with_the_wrong_ledger(tmp_path: Any) -> None:
    budgets = Budgets.same(Budget(5.0, 1e-5), 3)
    policy = Uniform(budgets, rounds=5)
    with pytest.raises(BGTPlannerError):
        Uniform.from_state(policy.state_dict(), ledger=Ledger.in_memory(budgets, "gaussian/gdp"))
    with Ledger.create(tmp_path / "one.sqlite", budgets, "gaussian/gdp") as ledger:
        durable = Uniform(ledger=ledger, rounds=5)
        played(durable, [0.0])
        state = durable.state_dict()
    with (
        Ledger.create(tmp_path / "two.sqlite", budgets, "gaussian/gdp") as other,
        pytest.raises(BGTPlannerError),
    ):
        Uniform.from_state(state, ledger=other)


# ---- refusals


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("rounds", {"rounds": 10**10}),
        ("rounds", {"rounds": "ten"}),
        ("clip", {"clip": 0.0}),
        ("clip", {"clip": float("nan")}),
        ("seed", {"seed": 1.5}),
        ("budget", {"budget": 5.0}),
        ("clients", {"clients": None}),
        ("clients", {"clients": 0}),
        ("mechanism", {"mechanism": "uniform"}),
        ("accounting", {"accounting": "gaussian/none"}),
        ("mechanism", {"mechanism": "laplace", "accounting": "gaussian/gdp"}),
    ],
)
def test_bad_options_are_named(name: str, options: dict[str, Any]) -> None:
    good = {"budget": Budget(5.0, 1e-5), "clients": 3, "rounds": 5}
    with pytest.raises(ConfigError, match=f"^{name} = "):
        Uniform(**(good | options))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("clients", {"clients": 4}),
        ("accounting", {"accounting": "gaussian/rdp"}),
        ("budget", {"budget": Budget(6.0, 1e-5)}),
        ("budget", {"budget": Budgets.same(Budget(5.0, 1e-5), 2)}),
    ],
)
def test_a_ledger_for_something_else_is_refused(name: str, options: dict[str, Any]) -> None:
    ledger = Ledger.in_memory(Budgets.same(Budget(5.0, 1e-5), 3), "gaussian/gdp")
    with pytest.raises(ConfigError, match=f"^{name} = "):
        Uniform(ledger=ledger, rounds=5, **options)
