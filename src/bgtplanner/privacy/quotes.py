"""What a budget buys: the noise of a round under every accountant, side by side."""

from __future__ import annotations

from typing import Any

import numpy as np

from bgtplanner.errors import ConfigError
from bgtplanner.privacy.accountants import ACCOUNTANTS, Accountant
from bgtplanner.privacy.budget import Budget

__all__ = ["quotes"]


def quotes(
    budget: Budget,
    rounds: int,
    *,
    mechanism: str | None = None,
    noise_multiplier: float | None = None,
) -> dict[str, dict[str, Any]]:
    """Return what `rounds` equal rounds cost under every accountant of a mechanism, or of all.

    With delta = 0, only the accountants that need no delta are quoted.

    Returns:
        For each accountant: the capacity, the charge and noise multiplier of a round, the epsilon
        of the rounds and of one more with the same noise; and for the given noise the charge of a
        round, how many rounds the budget pays for, and the epsilon of `rounds` of them.

    Example:
        >>> round(quotes(Budget(10, 1e-5), 100)["gaussian/gdp"]["noise_multiplier"], 5)
        4.99889
    """
    known = sorted({accountant.mechanism for accountant in ACCOUNTANTS.values()})
    fits = mechanism is None or mechanism in known
    ConfigError.unless(fits, "--mechanism", mechanism, f"one of {', '.join(known)}")
    return {
        name: _quote(accountant, budget, rounds, noise_multiplier)
        for name, accountant in ACCOUNTANTS.items()
        if mechanism in (None, accountant.mechanism)
        and (budget.delta > 0 or accountant.counts_epsilons)
    }


def _quote(
    accountant: Accountant, budget: Budget, rounds: int, noise: float | None
) -> dict[str, Any]:
    charge = accountant.even_charge(budget, rounds)
    quote: dict[str, Any] = {
        "sound": accountant.sound,
        "capacity": accountant.capacity(budget),
        "charge": charge,
        "noise_multiplier": float(accountant.noise_multiplier(charge)),
        "epsilon_of_one_round": accountant.epsilon_of_rounds(charge, 1, budget.delta),
        "epsilon": accountant.epsilon_of_rounds(charge, rounds, budget.delta),
        "epsilon_with_one_more_round": accountant.epsilon_of_rounds(
            charge, rounds + 1, budget.delta
        ),
    }
    if noise is not None:
        cost = float(accountant.charge(noise))
        affordable = int(np.max(accountant.limit_ticks(budget) // accountant.sum_ticks(cost)))
        quote["at_noise_multiplier"] = {
            "charge": cost,
            "rounds_affordable": affordable,
            "epsilon": accountant.epsilon_of_rounds(cost, rounds, budget.delta),
        }
    return quote
