"""Probe, then abstain or save for the end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest

from bgtplanner.errors import ConfigError
from bgtplanner.planning.patient import Patient
from bgtplanner.planning.policy import Plan
from bgtplanner.planning.schedules import Uniform
from bgtplanner.privacy.accountants import ACCOUNTANTS
from bgtplanner.privacy.budget import Budget, Budgets
from bgtplanner.testing import PolicyContract

BUDGET = Budget(10.0, 1e-5)
CLASSES = Budgets.per_client([1.0, 1.0, 10.0, 100.0], 1e-5)
ROUNDS = 10
SOUND = [name for name, accountant in ACCOUNTANTS.items() if accountant.sound]
GOOD, FALLS_WHEN_SPLIT, BAD = [0.01, 0.08, 0.08], [0.01, 0.08, 0.03], [0.0, 0.003, 0.002]


class TestContract(PolicyContract):
    policy = Patient


class TestContractWithoutAbstaining(PolicyContract):
    policy = Patient
    options: ClassVar[Mapping[str, Any]] = {"probe": 0.3, "at_end": 5, "worthwhile": 0.0}


class TestContractInFewRounds(PolicyContract):
    policy = Patient
    options: ClassVar[Mapping[str, Any]] = {"at_end": 12}


def patient(accounting: str = "gaussian/gdp", **options: Any) -> Patient:
    return Patient(BUDGET, 3, **{"rounds": ROUNDS, "accounting": accounting, **options})


def played(policy: Patient, context: Any, limit: int | None = None) -> list[Plan]:
    plans: list[Plan] = []
    while len(plans) != limit and (plan := policy.ask(context)) is not None:
        policy.tell(plan)
        plans.append(plan)
    return plans


def charges_of(policy: Patient, context: Any) -> list[float]:
    return [plan.charge for plan in played(policy, context)]


@pytest.mark.parametrize("accountant", SOUND)
@pytest.mark.parametrize("probe", [0.06, 0.5])
def test_the_probe_takes_its_share(accountant: str, probe: float) -> None:
    policy = patient(accountant, probe=probe)
    whole = policy.left()
    (plan,) = played(policy, GOOD, limit=1)
    assert plan.charge_by_class == pytest.approx(probe * whole)
    assert policy.left() == pytest.approx((1 - probe) * whole)
    assert plan.why.note == "a probe"


@pytest.mark.parametrize("accountant", SOUND)
def test_it_stops_where_too_little_is_promised(accountant: str) -> None:
    policy = patient(accountant)
    assert len(played(policy, BAD)) == 1
    assert policy.left()[0] > 0.9 * policy.accountant.capacity(BUDGET)
    assert policy.note is not None
    assert policy.note.startswith("abstained: ")
    assert "by 0.3%" in policy.note
    assert "0.4%" in policy.note
    assert policy.ask(BAD) is None


@pytest.mark.parametrize("promised", [[0.0, 0.02, 0.0], [0.0, 0.0, 0.02], [0.0, 0.03, 0.0]])
def test_the_better_promise_counts(promised: list[float]) -> None:
    """As things are is no promise, and just enough is enough."""
    assert len(played(patient(worthwhile=0.02), promised)) == ROUNDS
    assert len(played(patient(worthwhile=0.031), promised)) == 1
    assert len(played(patient(worthwhile=0.02), [0.5, 0.01, 0.01])) == 1


@pytest.mark.parametrize("accountant", SOUND)
@pytest.mark.parametrize(
    ("context", "last"), [(GOOD, 3), (FALLS_WHEN_SPLIT, 1), ([0.0, 0.1, 0.0971], 3)]
)
def test_it_saves_for_the_end(accountant: str, context: list[float], last: int) -> None:
    """In one round what falls when it is split, else evenly in three."""
    policy = patient(accountant)
    plans = played(policy, context)
    charges = [plan.charge for plan in plans]
    rest = 0.94 * policy.accountant.capacity(BUDGET) / last
    expected = [0.06 * policy.accountant.capacity(BUDGET), *[0.0] * (9 - last), *[rest] * last]
    assert charges == pytest.approx(expected, rel=1e-6)
    assert [plan.skip for plan in plans] == [charge == 0 for charge in charges]
    assert policy.left() == pytest.approx(0, abs=1e-9)
    assert policy.ledger.epsilon_spent().max() <= BUDGET.epsilon
    assert policy.note is not None
    assert policy.note.startswith("saved for the last rounds: ")
    assert [plan.why.note for plan in plans[1:]] == ["saving"] * (9 - last) + [
        "what was saved"
    ] * last


def test_nothing_is_left() -> None:
    for accountant in ("gaussian/gdp", "gaussian/rdp", "laplace/basic", "laplace/filter"):
        policy = patient(accountant)
        played(policy, GOOD)
        assert policy.share_left() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
@pytest.mark.parametrize("context", [None, [], [0.0, 0.0]])
def test_without_forecasts_it_is_an_even_schedule(mechanism: str, context: Any) -> None:
    """It waited in 96 of 100 rounds of a loop that knows nothing of forecasts."""
    policy = Patient(BUDGET, 3, rounds=100, mechanism=mechanism)
    plans = played(policy, context)
    even = Uniform(BUDGET, 3, rounds=100, mechanism=mechanism)
    assert [plan.charge for plan in plans] == [even._even[0]] * 100
    assert policy.share_left() == pytest.approx(0, abs=1e-6)
    assert policy.note is None
    assert plans[0].why.note == "an even share: there is no forecast"


def test_where_some_are_asked_the_last_rounds_reach_everybody() -> None:
    """Each client is seen three times at the end, and pays its share each time."""
    policy = patient(rounds=100, participation=0.1)
    charges = charges_of(policy, GOOD)
    assert [charge > 0 for charge in charges[:71]] == [True] + [False] * 69 + [True]
    third = 0.94 * policy.accountant.capacity(BUDGET) / 3
    assert charges[70:73] == pytest.approx([third] * 3, rel=1e-6)
    alone = patient(rounds=100, participation=0.1)
    charges = charges_of(alone, FALLS_WHEN_SPLIT)
    assert np.flatnonzero(charges).tolist() == [0, 90]  # everybody was asked here
    assert charges[90] == pytest.approx(3 * third, rel=1e-6)


@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.parametrize("context", [GOOD, FALLS_WHEN_SPLIT, None])
def test_few_rounds_leave_no_time_for_a_probe(rounds: int, context: Any) -> None:
    policy = patient(rounds=rounds)
    whole = policy.left()[0]
    expected = [whole / rounds] * rounds
    if context is FALLS_WHEN_SPLIT:
        expected = [0.0] * (rounds - 1) + [whole]
    assert charges_of(policy, context) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("at_end", [1, 2, 9])
def test_spends_in_as_many_rounds_as_it_is_told(at_end: int) -> None:
    charges = charges_of(patient(at_end=at_end), GOOD)
    spends = [charge > 0 for charge in charges]
    assert spends == [True] + [False] * (9 - at_end) + [True] * at_end
    assert charges[-at_end:] == pytest.approx([charges[-1]] * at_end, rel=1e-9)


@pytest.mark.parametrize("accountant", SOUND)
@pytest.mark.parametrize("context", [GOOD, FALLS_WHEN_SPLIT])
def test_every_class_divides_its_own_budget(accountant: str, context: list[float]) -> None:
    policy = Patient(CLASSES, rounds=ROUNDS, accounting=accountant)
    whole = policy.left()
    plans = played(policy, context)
    assert len(plans) == ROUNDS
    assert all(plan.participants.all() for plan in plans if not plan.skip)
    np.testing.assert_allclose(plans[0].charge_by_class, 0.06 * whole, rtol=1e-9)
    last = 1 if context is FALLS_WHEN_SPLIT else 3
    for plan in plans[-last:]:
        np.testing.assert_allclose(plan.charge_by_class, 0.94 * whole / last, rtol=1e-6)
    np.testing.assert_allclose(policy.left(), 0, atol=1e-9)
    epsilons = np.array([1.0, 1.0, 10.0, 100.0])
    assert (policy.ledger.epsilon_spent() <= epsilons * (1 + 1e-9)).all()


@pytest.mark.parametrize("context", [GOOD, FALLS_WHEN_SPLIT, BAD, None])
@pytest.mark.parametrize("after", range(ROUNDS))
def test_it_goes_on_from_its_state(after: int, context: Any) -> None:
    straight, stopped = patient(), patient()
    played(straight, context, limit=after)
    played(stopped, context, limit=after)
    again = Patient.from_state(json.loads(json.dumps(stopped.state_dict())))
    assert again.note == straight.note
    assert (again.probe, again.at_end, again.worthwhile) == (0.06, 3, 0.004)
    assert charges_of(again, context) == charges_of(straight, context)
    assert again.note == straight.note


@pytest.mark.parametrize(
    ("first", "then", "last"), [(GOOD, FALLS_WHEN_SPLIT, 3), (FALLS_WHEN_SPLIT, GOOD, 1)]
)
def test_how_it_splits_is_decided_once(first: Any, then: Any, last: int) -> None:
    policy = patient()
    begun = played(policy, first, limit=8)
    rest = charges_of(Patient.from_state(policy.state_dict()), then)
    assert sum(plan.charge > 0 for plan in begun) + sum(charge > 0 for charge in rest) == 1 + last


def test_it_stops_too_if_the_probe_is_all_that_comes_before_the_last_rounds() -> None:
    assert len(played(patient(rounds=4), BAD)) == 1


def test_it_stops_for_good() -> None:
    policy = patient()
    assert len(played(policy, BAD)) == 1
    assert policy.ask(GOOD) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("probe", value) for value in (0, 1, -0.1, float("nan"), float("inf"))],
        *[("at_end", value) for value in (0, -1, 1001, 1.5, float("nan"))],
        *[("worthwhile", value) for value in (1, -0.1, float("nan"), float("inf"))],
    ],
)
def test_names_what_is_wrong(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name} = "):
        patient(**{name: value})


def test_a_forecast_is_a_number() -> None:
    with pytest.raises(ConfigError, match=r"^context = "):
        patient().ask([0.0, float("nan"), 0.0])
