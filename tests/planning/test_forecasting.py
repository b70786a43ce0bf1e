"""Schedules for what is left: what each is worth, and which are admissible."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from forecasts import Made
from numpy.typing import NDArray

from bgtplanner.planning.forecasting import UNNOTICED, Agenda, Hypothesis, Outlook, schedules
from bgtplanner.planning.objective import Objective

Floats = NDArray[np.float64]
WORTH = {"ratings": 1.0, "lists": 1 / 8}
SERVED, LAST = Objective("served"), Objective("last")


def outlook(made: Made, left: float = 1.0, **options: Any) -> Outlook:
    given = {"agenda": Agenda(), "now": 0, "rounds": 100, "objective": SERVED, **options}
    return Outlook(made, np.array([left]), **given)


def each_round(found: Outlook, row: int, rounds: int, now: int = 0) -> Floats:
    """The shares of what is left that a schedule pays, round by round."""
    shares = np.zeros(rounds)
    for first, last, weight in found.plan(row):
        at = np.arange(first, last + 1) - now
        shares[at] += weight / len(at)
    return shares


def worth(
    made: Made,
    shares: Floats,
    hypothesis: Hypothesis,
    *,
    objective: Objective,
    left: float = 1.0,
    now: int = 0,
    paid: tuple[list[float], ...] = (),
) -> float:
    """What a schedule is worth, one round after the other: a slow reference."""
    rounds = now + len(shares)

    def ratings(at: float) -> float:
        return 1 + (hypothesis.growth - 1) * at / max(rounds - 1, 1)

    buys = [(precision, ratings(at)) for at, precision, _ in paid]
    weights, before, value = objective.weights(rounds), sum(buy for buy, _ in buys), 0.0
    for at in range(now, rounds):
        if shares[at - now] > 0:
            factor = 1 + hypothesis.joins * (float(made.pooled(np.array([at - now]))[0]) - 1)
            bought = made.precision(np.array([shares[at - now] * left])) * factor
            buys.append((bought, ratings(at)))
        total = sum(precision for precision, _ in buys)
        if not total:
            continue
        number = total**2 / sum(precision**2 for precision, _ in buys)
        known = sum(precision * seen for precision, seen in buys) / total / ratings(at)
        lost, power = hypothesis.convergence
        added = np.array([0.0, (total - before) / hypothesis.needs])
        now_known, more = made.gain(added)[hypothesis.measure] * WORTH[hypothesis.measure]
        kept = (1 - lost * max(number, 1) ** -power) * (1 - 0.5 * (1 - known) ** 2)
        value += float(weights[at]) * max(now_known, more) * kept
    return value


MADE = [
    (Made(), {}),
    (Made(steps=6, power=2.0, unit=50.0), {}),
    (Made(steps=3, joining=0.2), {"left": 4.0}),
    (Made(steps=3, half=0.1, lists=3.0), {}),
    (Made(steps=3, learned=0.5), {"now": 3, "paid": ([0, 0.3, 0.3], [2, 0.2, 0.2])}),
]


@pytest.mark.parametrize("objective", [SERVED, LAST, Objective(traffic=(1, 0, 3))])
@pytest.mark.parametrize("rounds", [1, 7, 30])
@pytest.mark.parametrize(("made", "more"), MADE)
def test_each_schedule_is_worth_what_it_is_worth_round_by_round(
    made: Made, more: dict[str, Any], rounds: int, objective: Objective
) -> None:
    """With few rounds each is a moment of its own; only the forecast is interpolated."""
    more = dict(more)
    paid, now = more.pop("paid", ()), more.pop("now", 0)
    agenda = Agenda(paid=list(paid))
    found = outlook(made, agenda=agenda, now=now, rounds=now + rounds, objective=objective, **more)
    rows = range(0, len(found.regret), 7)
    expected = [
        [
            worth(
                made, each_round(found, row, rounds, now), of, objective=objective, now=now,
                paid=paid, **more,
            )
            for row in rows
        ]
        for of in found.hypotheses
    ]  # fmt: skip
    values = found.values[:, list(rows)]
    np.testing.assert_allclose(values, expected, rtol=0.02, atol=1e-3 * np.max(expected))


@pytest.mark.parametrize("objective", [SERVED, LAST, Objective(traffic=[0] * 30 + [1] * 70)])
@pytest.mark.parametrize("half", [0.01, 0.3, 10.0])
@pytest.mark.parametrize(
    "more",
    [{}, {"power": 2.0}, {"steps": 3}, {"steps": 3, "joining": 0.1}, {"steps": 3, "lists": 0.1}],
)
def test_what_is_played_is_nowhere_worse_than_even_charges(
    objective: Objective, half: float, more: dict[str, Any]
) -> None:
    made = Made(half=half, **more)
    found = outlook(made, objective=objective)
    shares, even = each_round(found, found.safest(), 100), np.full(100, 0.01)
    assert shares.sum() == pytest.approx(1.0)
    for hypothesis in found.hypotheses:
        ours, theirs = (worth(made, of, hypothesis, objective=objective) for of in (shares, even))
        assert ours >= theirs - UNNOTICED - 0.01 * theirs  # the forecast is interpolated
    assert found.regret[found.safest()] <= found.regret[0]
    assert {of.joins for of in found.hypotheses} == ({0.0, 1.0} if "joining" in more else {1.0})


def test_least_regret_alone_is_not_enough() -> None:
    """The schedule with the least regret of all may be worse than even under some hypothesis."""
    found = outlook(Made(steps=3, half=0.1))
    assert found.regret.min() < found.regret[found.safest()]
    assert not found.admissible[found.regret.argmin()]


def test_early_payments_where_they_cannot_do_harm_and_none_where_noise_does_not_matter() -> None:
    scarce, plenty = outlook(Made(half=10.0, steps=3)), outlook(Made(half=1e-6, steps=3))
    assert each_round(scarce, scarce.safest(), 100)[:25].sum() > 0.9
    assert each_round(plenty, plenty.safest(), 100)[:25].sum() < 0.5


@pytest.mark.parametrize("steps", [0, 6])
def test_one_payment_where_splitting_costs_precision(steps: int) -> None:
    found = outlook(Made(power=2.0, steps=steps, half=3.0), rounds=50)
    assert (each_round(found, found.safest(), 50) > 0).sum() == 1


def test_a_plan_is_left_only_for_one_that_is_nowhere_worse() -> None:
    """From then on it is the first schedule, and it is worth what it was."""
    made = Made(steps=3, half=0.3)
    first = outlook(made, rounds=40)
    agenda = Agenda(plan=first.plan(first.safest()))
    planned = each_round(first, first.safest(), 40)
    assert agenda.due(0) == pytest.approx(planned[0])
    share = planned[0]
    made.learned = made.precision(np.array([share]))
    agenda.pay(0, made.learned, share)
    later = outlook(made, 1 - share, agenda=agenda, now=1, rounds=40)
    rest = planned[1:] / planned[1:].sum()
    np.testing.assert_allclose(each_round(later, 0, 39, 1), rest, atol=1e-12)
    assert later.admissible[0]
    worst = (later.values[:, later.safest()] - later.values[:, 0]).min()
    assert worst >= -UNNOTICED


def test_what_is_due_is_a_share_of_what_is_left() -> None:
    agenda, left, paid = Agenda(plan=[[0, 3, 0.5], [2, 2, 0.2], [8, 8, 0.3]]), 1.0, []
    for now in range(10):
        share = agenda.due(now)
        paid.append(share * left)
        left -= paid[-1]
    weights = [0.125, 0.125, 0.125, 0.125, 0, 0, 0, 0, 0.3, 0]
    assert paid[:2] == pytest.approx(weights[:2])
    assert left == pytest.approx(0.0)
    assert [agenda.next(now) for now in (0, 3, 8)] == [1, 8, None]


def test_worthless_is_what_brings_nothing_whatever_is_true() -> None:
    assert outlook(Made(most=0.0)).worthless
    assert outlook(Made(half=1e6)).worthless
    assert not outlook(Made(most=0.002)).worthless
    assert not outlook(Made(most=0.0, lists=1.0)).worthless
    wrong = Made(most=0.1, half=400.0)  # .02 % by forecast; sixteen times too pessimistic
    assert not outlook(wrong).worthless
    assert not outlook(Made(most=0.1, half=0.01, learned=100.0)).worthless, "it is known already"


# ---- extremes


@pytest.mark.parametrize("rounds", [1, 2, 3, 49, 10**6])
@pytest.mark.parametrize("objective", [SERVED, LAST])
def test_any_number_of_rounds(rounds: int, objective: Objective) -> None:
    found = outlook(Made(steps=3), rounds=rounds, objective=objective)
    assert np.isfinite(found.values).all()
    assert found.schedules.shares.sum(axis=1) == pytest.approx(1.0)
    assert found.admissible[0]
    for row in range(0, len(found.regret), 11):
        plan = found.plan(row)
        assert all(0 <= first <= last < rounds for first, last, _ in plan)
        assert sum(weight for *_, weight in plan) == pytest.approx(1.0)
    even = [(last - first + 1) / weight for first, last, weight in found.plan(0)]
    assert even == pytest.approx([rounds] * len(even))


@pytest.mark.parametrize("unit", [1e-290, 1e160])
@pytest.mark.parametrize("paid", [False, True])
def test_precision_of_any_size_is_only_a_unit(unit: float, paid: bool) -> None:
    """Clips may be tiny or huge, and the precision is 1 over their square."""

    def values(unit: float) -> Floats:
        made = Made(steps=3, unit=unit, half=unit, learned=0.2 * unit * paid)
        agenda = Agenda(paid=[[0, 0.2 * unit, 0.2]] if paid else [])
        return outlook(made, now=3, agenda=agenda).values

    np.testing.assert_allclose(values(unit), values(1.0), rtol=1e-6)


@pytest.mark.parametrize("stride", [2, 10, 99, 100])
@pytest.mark.parametrize("now", [0, 37, 99])
def test_a_payment_takes_as_many_rounds_as_it_takes_to_ask_everybody(
    stride: int, now: int
) -> None:
    found = outlook(Made(steps=3), agenda=Agenda(stride=stride), now=now)
    assert found.values.shape[1] == len(schedules(max(1, -(-(100 - now) // stride)), 0).shares)
    for row in range(0, len(found.regret), 5):
        for first, last, _ in found.plan(row):
            assert (first - now) % stride == (last - first) % stride == 0
            assert last < 100
    assert math.isfinite(found.regret.max())
