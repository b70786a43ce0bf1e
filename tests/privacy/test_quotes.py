"""What a budget buys under every rule, side by side."""

from __future__ import annotations

import numpy as np
import pytest

from bgtplanner.privacy.accountants import ACCOUNTANTS, accountant_named, quotes
from bgtplanner.privacy.budget import Budget

BUDGET = Budget(10.0, 1e-5)
KEYS = ["sound", "neighbours", "capacity", "charge", "noise_multiplier", "noise_over_clip",
        "epsilon_of_one_round", "epsilon", "epsilon_other_reading",
        "epsilon_with_one_more_round"]  # fmt: skip
READINGS = {"epsilon_of_one_round": 1, "epsilon": 100, "epsilon_with_one_more_round": 101}
OTHER = "epsilon_other_reading"


@pytest.mark.parametrize("neighbours", ["auto", "replace-one"])
def test_every_rule_is_quoted(neighbours: str) -> None:
    found = quotes(BUDGET, 100, neighbours=neighbours)
    assert list(found) == list(ACCOUNTANTS)
    for name, quote in found.items():
        accountant = accountant_named(name)
        assert list(quote) == KEYS
        assert quote["charge"] == accountant.even_charge(BUDGET, 100)
        special = neighbours == "auto" and accountant.mechanism != "privunit"
        relation = "replace-special" if special else "replace-one"
        assert quote["neighbours"] == relation
        assert quote["noise_over_clip"] == quote["noise_multiplier"] * (1 if special else 2)
        adds = accountant.sum_ticks(quote["charge"])
        for key, rounds in READINGS.items():
            expected = float(accountant.epsilon(adds * rounds, 1e-5))
            assert quote[key] == pytest.approx(expected, rel=1e-12)
        other = accountant.epsilon(adds * 100, 1e-5, other_than=relation)
        assert np.isnan(other) == (not accountant.sound)
        assert quote[OTHER] == (pytest.approx(float(other)) if accountant.sound else None)


def test_what_a_given_noise_costs() -> None:
    found = quotes(BUDGET, 50, noise_multiplier=5.0)
    expected = {
        "gaussian/gdp": (0.04, 100),
        "gaussian/rdp": (0.02, 89),
        "laplace/basic": (0.2, 50),
        "laplace/filter": (0.04, 77),
        "laplace/either": (0.2, 77),
        "laplace/zcdp": (0.2, 89),
        "gaussian/authors": (0.04, 250),
    }
    for name, (charge, rounds) in expected.items():
        quote = found[name]["at_noise_multiplier"]
        assert list(quote) == ["charge", "rounds_affordable", "epsilon", OTHER]
        assert quote["charge"] == pytest.approx(charge, rel=1e-9)
        # Rounded up to ticks: of a budget that divides evenly, the last round may not fit.
        evenly = name in ("laplace/basic", "gaussian/authors")
        assert quote["rounds_affordable"] == rounds - evenly
        accountant = accountant_named(name)
        reading = float(accountant.epsilon(accountant.sum_ticks(quote["charge"]) * 50, 1e-5))
        assert quote["epsilon"] == pytest.approx(reading, rel=1e-12)
        other = accountant.epsilon_of_rounds(charge, 50, 1e-5, other_than="replace-special")
        assert quote[OTHER] == (pytest.approx(float(other)) if accountant.sound else None)
