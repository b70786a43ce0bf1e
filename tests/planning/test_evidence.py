"""What payments brought: which hypotheses it rules out, and how far a forecast is corrected."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from forecasts import Made

from bgtplanner.planning.evidence import ERROR, Evidence
from bgtplanner.planning.forecasting import Agenda, Outlook
from bgtplanner.planning.objective import Objective
from bgtplanner.planning.states import recall, remembered

FORESEEN = {"ratings 1": 0.05, "ratings 3": 0.02, "lists 1": 0.6}


def after(came: dict[str, tuple[float, float]], payments: int = 1) -> Evidence:
    evidence = Evidence()
    evidence.foreseen = FORESEEN
    for _ in range(payments):
        evidence.test(came)
    return evidence


def test_what_noise_and_the_allowance_do_not_explain_is_ruled_out() -> None:
    assert after({"ratings": (0.05, 0.02)}).ruled_out == []
    assert after({"ratings": (0.05, 0.02)}, 80).ruled_out == ["ratings 3"]
    assert after({"ratings": (0.05, 0.001)}).ruled_out == ["ratings 3"]
    assert after({"ratings": (0.024, 0.0001)}).ruled_out == ["ratings 1"]
    assert after({"ratings": (0.05, math.inf), "lists": (0.6, 0.0)}, 9).ruled_out == []
    # If nothing fits, it is the forecast that is wrong.
    assert after({"ratings": (0.5, 0.001), "lists": (0.1, 0.001)}, 9).ruled_out == []


def test_a_true_hypothesis_is_ruled_out_once_in_a_hundred_runs_at_most() -> None:
    generator, wrong, runs = np.random.default_rng(0), 0, 500
    for _ in range(runs):
        evidence = Evidence()
        evidence.foreseen = {"ratings 1": 0.01, "ratings 2": 0.011, "ratings 3": 0.5}
        for error in generator.uniform(0.02, 0.2, 60):
            evidence.test({"ratings": (generator.normal(0.01, error), error)})
        wrong += "ratings 1" in evidence.ruled_out
    assert wrong <= ERROR * runs


def test_a_forecast_is_corrected_by_what_came_and_its_band_narrows() -> None:
    assert Evidence().ratios("ratings").tolist() == [1.0, 0.0, 2.0]
    widths = []
    for payments in (1, 10, 1000):
        mean, low, high = after({"ratings": (0.1, 0.05)}, payments).ratios("ratings")
        assert 1.0 < mean < 2.0
        widths.append(high - low)
    assert mean == pytest.approx(2.0, abs=0.05)
    assert sorted(widths, reverse=True) == widths
    assert after({"ratings": (0.1, 0.05)}).ratios("lists").tolist() == [1.0, 0.0, 2.0]


def agenda_of(brings: dict[str, tuple[float, float]]) -> tuple[Agenda, Made]:
    """Ten payments whose forecast has needs of 1; the state goes through JSON on the way."""
    made, agenda = Made(steps=3, half=3.0, unit=1.0, brings=brings), Agenda()
    for now in range(10):
        agenda.pay(now, 0.1, 0.1)
        agenda.learn(made, now)
        made.learned += 0.1
        made.brings = {name: (float(made.gain(np.zeros(1))[name][0]), 1e-4) for name in brings}
        restored = Agenda()
        recall(restored, json.loads(json.dumps(remembered(agenda))))
        agenda = restored
    return agenda, made


def test_what_is_ruled_out_is_not_planned_with_and_even_charges_stay_admissible() -> None:
    agenda, made = agenda_of({"ratings": (0.0, math.inf)})
    assert agenda.evidence.ruled_out
    assert not any(name.startswith("ratings 1 ") for name in agenda.evidence.ruled_out)
    goal = Objective("served")
    outlook = Outlook(made, np.ones(1), agenda, now=10, rounds=40, objective=goal)
    assert not {of.tested for of in outlook.hypotheses} & set(agenda.evidence.ruled_out)
    assert outlook.admissible[0]
    note = agenda.in_words(10, 40, goal)
    assert note.startswith("abstained") or "came where" in note
