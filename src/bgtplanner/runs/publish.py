"""What a model file promises to the people it was learned from, in numbers and in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import ndtr

from bgtplanner.privacy.accountants import Accountant, rounded_up
from bgtplanner.privacy.budget import Budget
from bgtplanner.privacy.conversions import gdp_capacity
from bgtplanner.privacy.mechanisms import Neighbours

_ABOUT = {
    "replace-special": "what one person sends is exchanged for nothing",
    "replace-one": "one person's ratings are exchanged for any others",
}


def guarantee_of(
    budget: Budget,
    accountant: Accountant,
    neighbours: Neighbours,
    *,
    people: int,
    assumed: Sequence[str],
    counted: bool,
) -> dict[str, Any]:
    """Return what the file of a training promises, in numbers and in sentences.

    `assumed` was read off the ratings and taken to be public. Other trainings on them are
    `counted` if there is a ledger.
    """
    other, epsilon, delta = (
        accountant.other_promise(budget, neighbours),
        budget.epsilon,
        budget.delta,
    )
    sentences = [
        f"({epsilon:g}, {delta:g})-differential privacy for each of {people:,} people, against "
        f"whoever has this file: epsilon bounds what can be told if {_ABOUT[neighbours]} "
        f"({neighbours}).",
        f"Whoever knows everything else and guesses whether that is so is right at most "
        f"{100 * guessed_right(epsilon, delta):.0f} times in 100; a coin is right 50 times.",
    ]
    if (other := accountant.other_promise(budget, neighbours)) is not None:
        opposite = next(name for name in _ABOUT if name != neighbours)
        sentences.append(f"If {_ABOUT[opposite]} ({opposite}), epsilon is {rounded_up(other)}.")
    sentences.append("Whoever ran the training held the ratings, and was trusted with them.")
    sentences.append("Who takes part is not hidden, nor is how many people do.")
    not_accounted = [f"{name} of the ratings" for name in assumed]
    if assumed:
        sentences.append(f"This holds only if these were public: {' and '.join(assumed)}.")
    if not counted:
        not_accounted.append("other trainings on the same ratings")
        sentences.append(
            "No ledger was kept: other trainings on the same ratings are not counted."
        )
    if delta * people > 1:
        sentences.append("Delta is above 1 in the number of people: this is no strong promise.")
    return {
        "private": True, "epsilon": epsilon, "delta": delta, "neighbours": neighbours,
        "epsilon_other_reading": other, "trust": "central", "unit": "client",
        "mechanism": accountant.mechanism, "accounting": accountant.name, "people": people,
        "not_accounted": not_accounted, "sentences": sentences,
    }  # fmt: skip


def not_private(
    people: int, why: str = "the noise comes from a seed, so that whoever has it can remove it"
) -> dict[str, Any]:
    """Return what the file says of a model that promises nothing to anybody."""
    return {"private": False, "sentences": [f"Not private: {why}."], "people": people}


def guessed_right(epsilon: float, delta: float) -> float:
    """Return how often the best guess at one person's presence can be right, from 0.5 to 1.

    All Gaussian releases that a budget pays for are together as one, of two normal distributions
    that are mu apart: a guess is right with probability Phi(mu / 2).
    """
    return float(ndtr(0.5 * np.sqrt(gdp_capacity(epsilon, delta))))
