"""What a budget buys, and what it means: noise under every accountant, both readings of epsilon.

A promise is about one of two neighbouring relations, and reads differently under the other one.
Whoever prints an epsilon prints both readings.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bgtplanner.errors import ConfigError
from bgtplanner.privacy.accountants import ACCOUNTANTS, Accountant
from bgtplanner.privacy.allowed import neighbours_of
from bgtplanner.privacy.budget import Budget
from bgtplanner.privacy.mechanisms import SENSITIVITY, mechanism_named

__all__ = ["both_readings", "quotes", "rounded_up"]

_WORDS = {
    "replace-special": "with nothing in a client's place",
    "replace-one": "if one client's data are replaced by another's",
}


def rounded_up(epsilon: float) -> str:
    """Return an epsilon in three digits, rounded up: no reading is printed as less than it is.

    Example:
        >>> rounded_up(24.3811), rounded_up(4.0)
        ('24.4', '4')
    """
    if not math.isfinite(epsilon) or epsilon <= 0:
        return f"{epsilon:g}"
    step = 10.0 ** (math.floor(math.log10(epsilon)) - 2)
    return f"{math.ceil(epsilon / step * (1 - 1e-12)) * step:.3g}"


def both_readings(epsilon: float, neighbours: str, other: float | None) -> str:
    """Return an epsilon with its relation, and how it reads under the other one, if known.

    Example:
        >>> both_readings(10, "replace-special", 24.3811)
        "epsilon 10 (replace-special); 24.4 if one client's data are replaced by another's"
    """
    reading = f"epsilon {epsilon:g} ({neighbours})"
    if other is None:
        return reading
    against = next(words for name, words in _WORDS.items() if name != neighbours)
    return f"{reading}; {rounded_up(other)} {against}"


def quotes(
    budget: Budget,
    rounds: int,
    *,
    mechanism: str | None = None,
    noise_multiplier: float | None = None,
    neighbours: str = "auto",
) -> dict[str, dict[str, Any]]:
    """Return what `rounds` equal rounds cost under every accountant of a mechanism, or of all.

    With delta = 0, only the accountants that need no delta are quoted. The budget is a promise
    about the relation `neighbours`; ``auto``: ``replace-special`` where noise can be added to a
    sum, and ``replace-one`` for PrivUnit, which is for that alone and is left out otherwise.

    Returns:
        For each accountant: the relation, the capacity, the charge and noise multiplier of a
        round, its noise scale over the clip, the epsilon of the rounds, also under the other
        relation, and of one more with the same noise; and for the given noise the charge of a
        round, how many rounds the budget pays for, and both epsilons of `rounds` of them.

    Example:
        >>> round(quotes(Budget(10, 1e-5), 100)["gaussian/gdp"]["noise_multiplier"], 5)
        4.99889
    """
    known = sorted({accountant.mechanism for accountant in ACCOUNTANTS.values()})
    fits = mechanism is None or mechanism in known
    ConfigError.unless(fits, "--mechanism", mechanism, f"one of {', '.join(known)}")
    names = ("auto", *SENSITIVITY)
    expected = f"one of {', '.join(names)}"
    ConfigError.unless(neighbours in names, "--neighbours", neighbours, expected)
    return {
        name: _quote(accountant, budget, rounds, noise_multiplier, neighbours)
        for name, accountant in ACCOUNTANTS.items()
        if mechanism in (None, accountant.mechanism)
        and (budget.delta > 0 or accountant.counts_epsilons)
        and (
            mechanism is not None
            or neighbours != "replace-special"
            or "secagg" in mechanism_named(accountant.mechanism).trusts
        )
    }


def _quote(
    accountant: Accountant, budget: Budget, rounds: int, noise: float | None, wanted: str
) -> dict[str, Any]:
    mechanism = mechanism_named(accountant.mechanism)
    relation = neighbours_of(mechanism.trusts[-1], wanted, "--neighbours")

    def readings(charge: float) -> dict[str, float | None]:
        """Return both epsilons of the rounds at this charge."""
        spent = (charge, rounds, budget.delta)
        return {
            "epsilon": accountant.epsilon_of_rounds(*spent),
            "epsilon_other_reading": accountant.other_reading_of_rounds(*spent, relation),
        }

    charge = accountant.even_charge(budget, rounds)
    multiplier = accountant.noise_multiplier(charge)
    more = accountant.epsilon_of_rounds(charge, rounds + 1, budget.delta)
    quote: dict[str, Any] = {
        "sound": accountant.sound,
        "neighbours": relation,
        "capacity": accountant.capacity(budget),
        "charge": charge,
        "noise_multiplier": float(multiplier),
        "noise_over_clip": float(mechanism.scale(multiplier, 1.0, relation)),
        "epsilon_of_one_round": accountant.epsilon_of_rounds(charge, 1, budget.delta),
        **readings(charge),
        "epsilon_with_one_more_round": more,
    }
    if noise is not None:
        cost = float(accountant.charge(noise))
        affordable = int(np.max(accountant.limit_ticks(budget) // accountant.sum_ticks(cost)))
        quote["at_noise_multiplier"] = {
            "charge": cost,
            "rounds_affordable": affordable,
            **readings(cost),
        }
    return quote
