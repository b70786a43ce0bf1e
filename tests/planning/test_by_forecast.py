"""The planner where the learner forecasts what charges bring: when it pays, and how much."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from forecasts import Made, left
from numpy.typing import NDArray

from bgtplanner.planning.bgt import BGTPlanner
from bgtplanner.planning.plan import Plan
from bgtplanner.planning.schedules import Uniform
from bgtplanner.privacy.budget import Budget, Budgets

Floats = NDArray[np.float64]
BUDGET = Budget(10.0, 1e-5)
CLASSES = Budgets.per_client([1.0, 1.0, 10.0, 100.0], 1e-5)
RULES = ["gaussian/gdp", "laplace/either"]
ROUNDS = 40


def planner(accounting: str = "gaussian/gdp", budgets: Any = BUDGET, **options: Any) -> BGTPlanner:
    clients = 3 if isinstance(budgets, Budget) else None
    given = {"rounds": ROUNDS, "accounting": accounting, **options}
    return BGTPlanner(budgets, clients, **given)


def made(policy: BGTPlanner, **options: Any) -> Made:
    """A forecast for which the whole budget, paid at once, is worth half of the most."""
    given = {"power": 1.0, "steps": 3, **options}
    return Made(unit=1 / float(np.mean(left(policy) ** given["power"])), **given)


def played(
    policy: BGTPlanner,
    forecast: Made,
    limit: int | None = None,
    *,
    restore: bool = False,
) -> list[Plan]:
    """Rounds as a coordinator plays them; the learner adds up the precision it was paid."""
    plans: list[Plan] = []
    while len(plans) != limit:
        policy.forecast = forecast
        plan = policy.ask()
        if plan is None:
            break
        if not plan.skip:
            forecast.learned += forecast.precision(plan.charge_by_class)
        policy.tell(plan)
        plans.append(plan)
        if restore:
            policy = type(policy).from_state(json.loads(json.dumps(policy.state_dict())))
    return plans


def paid_in(plans: list[Plan]) -> list[int]:
    return [plan.round for plan in plans if not plan.skip]


# ---- paying and waiting


def test_early_where_all_rounds_count_and_late_where_only_the_last_does() -> None:
    soon = {}
    for objective in ("served", "last"):
        policy = planner(objective=objective)
        plans = played(policy, made(policy))
        charges = np.array([plan.charge_by_class.max() for plan in plans])
        soon[objective] = charges[: ROUNDS // 4].sum() / charges.sum()
    assert soon["served"] > 0.4
    assert soon["last"] < 0.2


def test_what_is_good_for_ratings_must_not_be_bad_for_lists() -> None:
    """Ratings need much precision, and so early payments; for lists, only convergence counts."""
    policy, both = planner(), planner()
    alone = played(policy, made(policy, half=10.0))
    lists = played(both, made(both, half=10.0, lists=1e-5))
    assert len(paid_in(alone)) < 12
    assert len(paid_in(lists)) > 2 * len(paid_in(alone))
    assert "lists" in (both.note or "")
    assert "lists" not in (policy.note or "")


@pytest.mark.parametrize("accountant", RULES)
@pytest.mark.parametrize("objective", ["served", "last"])
@pytest.mark.parametrize("budgets", [BUDGET, CLASSES], ids=["one class", "three classes"])
def test_all_is_spent_in_the_end_and_never_more(
    accountant: str, objective: Any, budgets: Any
) -> None:
    policy = planner(accountant, budgets, objective=objective)
    assert len(played(policy, made(policy))) <= ROUNDS
    assert (policy.share_left() <= 0.05).all()
    most = [BUDGET.epsilon] * 3 if budgets is BUDGET else [1.0, 1.0, 10.0, 100.0]
    assert (policy.ledger.epsilon_spent() <= np.array(most) * (1 + 1e-9)).all()
    assert policy.note is not None
    assert policy.note.startswith("aimed at ")


# ---- is it worth it?


@pytest.mark.parametrize("most", [0.0, 0.0004])
@pytest.mark.parametrize("objective", ["served", "last"])
def test_it_abstains_says_so_and_keeps_the_budget(most: float, objective: Any) -> None:
    policy = planner(objective=objective)
    plans = played(policy, made(policy, most=most), restore=True)
    assert len(plans) == ROUNDS
    assert not paid_in(plans)
    assert plans[0].why.note.startswith("keeping what is left")


def test_it_reconsiders_where_more_clients_join() -> None:
    policy = planner()
    forecast = made(policy, most=0.0)
    assert not paid_in(played(policy, forecast, 3))
    assert (policy.note or "").startswith("abstained: ")
    forecast.most = 0.1
    assert paid_in(played(policy, forecast))
    assert (policy.note or "").startswith("aimed at ")


# ---- clients that join later, or are asked in turn


def test_clients_that_joined_late_pay_their_own_way() -> None:
    """Three are there from the start, five come in the middle; none overspends."""
    policy = BGTPlanner(Budgets.same(BUDGET, 8), rounds=ROUNDS)
    forecast = made(policy)
    present = np.arange(8) < 3
    for at in range(ROUNDS):
        if at == 10:
            present = np.ones(8, dtype=bool)
            forecast.learned = 0.0
        policy.forecast = forecast
        policy.present = None if present.all() else present
        plan = policy.ask(clients=present)
        if plan is None:
            break
        assert not plan.participants[~present].any()
        if at == 9:
            assert plan.why.note == "no one within reach has any budget left"
        policy.tell(plan)
    spent = policy.ledger.epsilon_spent()
    assert (spent <= BUDGET.epsilon * (1 + 1e-9)).all()
    assert spent == pytest.approx(BUDGET.epsilon, rel=1e-6)


def test_where_a_quarter_is_invited_a_payment_takes_four_rounds() -> None:
    policy = BGTPlanner(Budgets.same(BUDGET, 8), rounds=ROUNDS, participation=0.25)
    forecast = made(policy)
    plans = []
    for at in range(ROUNDS):
        policy.forecast = forecast
        plan = policy.ask(clients=np.arange(8) // 2 == at % 4)
        if plan is None:
            break
        policy.tell(plan)
        plans.append(plan)
    first = plans[0].charge_by_class.max()
    assert first > 0
    for plan in plans[1:4]:
        assert plan.why.note == "the same payment, by other clients"
        assert plan.charge_by_class.max() == pytest.approx(first)
    spent = policy.ledger.epsilon_spent()
    assert (spent <= BUDGET.epsilon * (1 + 1e-9)).all()
    assert (spent > 0).all()
    assert np.ptp(policy.ledger.spent(), axis=1).max() <= policy.ledger.spent().max() * 1e-9


# ---- without forecasts


def noise(charges: Floats, contraction: float, power: float) -> float:
    """The noise in the last model, if a step shrinks what earlier ones released."""
    total = 0.0
    for charge in charges:
        total = (1 - contraction) ** 2 * total + charge**-power
    return total


@pytest.mark.parametrize("participation", [1.0, 0.25])
def test_without_forecast_and_context_it_charges_what_uniform_does(participation: float) -> None:
    policy = planner("laplace/either", CLASSES, participation=participation)
    even = Uniform(
        CLASSES, rounds=ROUNDS, accounting="laplace/either", participation=participation
    )
    while (one := policy.ask()) is not None:
        two = even.ask()
        assert two is not None
        assert one.charge_by_class.tolist() == two.charge_by_class.tolist()
        policy.tell(one, 0.01)
        even.tell(two, 0.01)
    assert policy.ledger.spent().tolist() == even.ledger.spent().tolist()


@pytest.mark.parametrize(
    ("accountant", "power", "grows"), [("gaussian/gdp", 1, 4.0), ("laplace/basic", 2, 2.5)]
)
@pytest.mark.parametrize("rounds", [1, 40])
def test_or_what_leaves_less_noise_than_even_charges_if_the_last_round_counts(
    accountant: str, power: float, grows: float, rounds: int
) -> None:
    """However fast a loop contracts that adds up its rounds, from 1 on over all of them."""
    policy = planner(accountant, objective="last", rounds=rounds)
    charges = []
    while (plan := policy.ask()) is not None:
        charges.append(plan.charge)
        policy.tell(plan, 0.01)
        if len(charges) == rounds // 2:
            policy = BGTPlanner.from_state(json.loads(json.dumps(policy.state_dict())))
    assert len(charges) == rounds
    even = np.full(rounds, np.sum(charges) / rounds)
    for contraction in np.minimum(np.array([1.0, 1.4, 3.0, 10.0]) / rounds, 1.0):
        ours = noise(np.array(charges), contraction, power)
        assert ours <= noise(even, contraction, power) * (1 + 1e-6)
    assert (np.diff(charges) > 0).all()
    assert charges[-1] / charges[0] == pytest.approx(grows if rounds > 1 else 1.0, rel=0.02)
    assert policy.share_left() == pytest.approx(0.0, abs=1e-4)
    assert policy.ledger.epsilon_spent().max() <= BUDGET.epsilon * (1 + 1e-9)
