"""The best schedule for what is left: what it pays, when, and what it says that it is worth."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from forecasts import Made
from numpy.typing import NDArray

from bgtplanner.planning.forecasting import Outlook
from bgtplanner.planning.objective import Objective

Floats = NDArray[np.float64]
SERVED, LAST = Objective("served"), Objective("last")


def outlook(made: Made, left: float = 1.0, **options: Any) -> Outlook:
    given = {"now": 0, "rounds": 100, "objective": SERVED, **options}
    return Outlook(made, np.array([left]), **given)


def best(found: Outlook) -> dict[int, float]:
    """The share that the best schedule pays in each round with a payment."""
    row = found.schedules[int(found.values.argmax())]
    return {int(found._moments[at]): float(row[at]) for at in np.flatnonzero(row)}


def worth(
    made: Made,
    shares: dict[int, float],
    *,
    left: float = 1.0,
    now: int = 0,
    rounds: int,
    objective: Objective = SERVED,
    paid: tuple[list[float], ...] = (),
    growth: float = 2.0,
) -> float:
    """What a schedule is worth, one round after the other: a slow reference."""

    def ratings(at: int) -> float:
        return 1 + (growth - 1) * at / max(rounds - 1, 1)

    weights = objective.weights(rounds)
    buys = [(payment[1], ratings(int(payment[0]))) for payment in paid]
    before, value = sum(precision for precision, _ in buys), 0.0
    for at in range(now, rounds):
        if shares.get(at - now, 0.0) >= 1e-5:
            charge = np.array([shares[at - now] * left])
            factor = float(made.pooled(np.array([float(at - now)]))[0])
            buys.append((made.precision(charge) * factor, ratings(at)))
        total = sum(precision for precision, _ in buys)
        if not total:
            continue
        payments = total**2 / sum(precision**2 for precision, _ in buys)
        known = sum(precision * seen for precision, seen in buys) / total / ratings(at)
        gain = float(made.gain(np.array([total - before]))[0])
        kept = (1 - 0.2 * made.steps / 3 / max(payments, 1)) * (1 - 0.5 * (1 - known) ** 2)
        value += float(weights[at]) * gain * kept
    return value


# ---- when it pays


@pytest.mark.parametrize("rounds", [2, 1000])
@pytest.mark.parametrize("half", [0.01, 100.0])
def test_at_once_where_nothing_speaks_against_it(rounds: int, half: float) -> None:
    """No ratings to come, additive precision, a concave gain, and one step is enough."""
    found = outlook(Made(half=half, steps=0), rounds=rounds, growth=1.0)
    assert best(found) == {0: 1.0}
    assert found.promised == pytest.approx(found.gain)


@pytest.mark.parametrize("steps", [0, 6])
@pytest.mark.parametrize("objective", [SERVED, LAST])
def test_one_payment_where_splitting_costs_precision(steps: int, objective: Objective) -> None:
    found = outlook(Made(power=2.0, steps=steps, half=3.0), objective=objective, rounds=50)
    ((at, share),) = best(found).items()
    assert share == 1.0
    assert objective is SERVED or at == 49


@pytest.mark.parametrize("steps", [0, 3, 6])
@pytest.mark.parametrize("rounds", [20, 1000])
def test_at_the_end_if_that_is_what_counts(rounds: int, steps: int) -> None:
    shares = best(outlook(Made(steps=steps), rounds=rounds, objective=LAST))
    assert min(shares) >= rounds - 8
    assert max(shares) == rounds - 1
    assert len(shares) == (1 if steps == 0 else 8)


@pytest.mark.parametrize("begins", [7, 42, 88])
def test_when_people_begin_to_be_served(begins: int) -> None:
    traffic = Objective(traffic=[0] * begins + [1] * (100 - begins))
    assert best(outlook(Made(), objective=traffic)) == {begins: 1.0}
    assert outlook(Made(), objective=traffic).plan(0.0) == [[begins, 1.0]]


def test_it_waits_for_many_who_will_join() -> None:
    assert best(outlook(Made(half=10.0), growth=1.0)) == {0: 1.0}
    shares = best(outlook(Made(half=10.0, joining=0.5), growth=1.0))
    assert sum(share for at, share in shares.items() if at >= 10) > 0.7


# ---- what it is worth


@pytest.mark.parametrize("objective", [SERVED, LAST, Objective(traffic=(1, 0, 3))])
@pytest.mark.parametrize("rounds", [1, 2, 7, 30])
@pytest.mark.parametrize(
    ("made", "more"),
    [
        (Made(), {}),
        (Made(steps=6, power=2.0, unit=50.0), {"growth": 5.0}),
        (Made(steps=3, joining=0.2), {"left": 4.0}),
    ],
)
def test_each_schedule_is_worth_what_it_is_worth_round_by_round(
    made: Made, more: dict[str, Any], rounds: int, objective: Objective
) -> None:
    """With few rounds each is a moment of its own; only the forecast is interpolated."""
    found = outlook(made, rounds=rounds, objective=objective, **more)
    assert found._moments.tolist() == list(range(rounds))
    expected = [
        worth(
            made,
            {int(at): float(row[at]) for at in np.flatnonzero(row)},
            rounds=rounds,
            objective=objective,
            **more,
        )
        for row in found.schedules
    ]
    np.testing.assert_allclose(found.values, expected, rtol=0.01, atol=1e-4 * max(expected))
    assert found.nothing == 0


@pytest.mark.parametrize("objective", [SERVED, LAST, Objective(traffic=(0, 0, 0, 1, 1, 1))])
@pytest.mark.parametrize(
    ("steps", "power", "growth"), [(0, 1.0, 2.0), (3, 2.0, 1.0), (3, 1.0, 2.0)]
)
def test_no_schedule_is_much_better(
    steps: int, power: float, growth: float, objective: Objective
) -> None:
    """All ways to spend quarters of the budget in six rounds, tried one after the other."""
    made = Made(steps=steps, power=power, half=0.3)
    most = 0.0
    for quarters in itertools.combinations_with_replacement(range(6), 4):
        shares = {at: quarters.count(at) / 4 for at in set(quarters)}
        most = max(most, worth(made, shares, rounds=6, objective=objective, growth=growth))
    found = outlook(made, rounds=6, objective=objective, growth=growth)
    assert found.values.max() >= 0.97 * most


# ---- what can be paid now


def test_a_plan_that_was_made_is_offered_as_one_more_schedule() -> None:
    made = Made(steps=3, half=0.3)
    first = outlook(made, rounds=20)
    level = best(first)[0]
    plan = first.plan(level)
    assert plan
    at, share = plan[0]
    made.learned = made.precision(np.array([level]))
    paid = ([0, made.learned],)
    later = outlook(made, 1 - level, now=at, rounds=20, paid=paid)
    before, offers = later.offers(), later.offers(plan)
    assert set(before.levels) <= set(offers.levels)
    assert share in offers.levels
    place = int(np.searchsorted(offers.levels, share))
    total = float(offers.now[place] + offers.later[place])
    shares, left = {}, 1.0
    for then, part in plan:
        shares[then - at] = left * part
        left *= 1 - part
    alone = worth(made, shares, left=1 - level, now=at, rounds=20, paid=paid)
    assert total + later.nothing == pytest.approx(alone, rel=0.01)
    assert total >= 0.99 * later.gain  # it was the best, and nothing else is known now


# ---- extremes


@pytest.mark.parametrize("rounds", [1, 2, 3, 10**6])
@pytest.mark.parametrize("objective", [SERVED, LAST])
def test_any_number_of_rounds(rounds: int, objective: Objective) -> None:
    found = outlook(Made(steps=3), rounds=rounds, objective=objective)
    assert np.isfinite(found.values).all()
    assert found.schedules.sum(axis=1) == pytest.approx(1.0)
    assert found._weights.sum() == pytest.approx(1.0)
    assert found.gain > 0
    for level in found.offers().levels:
        plan = found.plan(level)
        assert all(0 < at < rounds for at, _ in plan)
        assert bool(plan) == (level < 1)
        assert [share for _, share in plan[-1:]] == pytest.approx([1.0] * len(plan[-1:]))
    if rounds == 1:
        assert best(found) == {0: 1.0}
    if objective is LAST:
        assert max(best(found)) == rounds - 1


@pytest.mark.parametrize("unit", [1e-290, 1e160])
@pytest.mark.parametrize("paid", [False, True])
def test_precision_of_any_size_is_only_a_unit(unit: float, paid: bool) -> None:
    """Clips may be tiny or huge, and the precision is 1 over their square."""

    def values(unit: float) -> Floats:
        made = Made(steps=3, unit=unit, half=unit, learned=0.2 * unit * paid)
        before = ([0, 0.2 * unit],) if paid else ()
        return outlook(made, now=3, paid=before).values

    np.testing.assert_allclose(values(unit), values(1.0), rtol=1e-6)


@pytest.mark.parametrize("stride", [2, 3, 10, 99, 100])
@pytest.mark.parametrize("now", [0, 37, 98, 99])
def test_a_payment_takes_as_many_rounds_as_it_takes_to_ask_everybody(
    stride: int, now: int
) -> None:
    found = outlook(Made(steps=3), stride=stride, now=now)
    assert (found._moments % stride == 0).all()
    assert found._moments[-1] <= max(99 - now, 0)
    assert len(found._moments) == len(np.unique(found._moments))
    assert found._weights.sum() == pytest.approx((100 - now) / 100)
    for level in found.offers().levels:
        assert all((at - now) % stride == 0 and at < 100 for at, _ in found.plan(level))
    assert math.isfinite(found.gain)
