"""Who gains from learning together and who loses: groups of clients, each against itself alone.

A mean over everybody can hide that those with few ratings, or with a small budget, are served
worse than they would be alone. Figures are of groups, never of a person: a group has at least
:data:`FEWEST` clients, its bounds are rounded, and the first and the last group are open, so that
no bound is the number of ratings of the most active client.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bgtplanner.data.split import Split
from bgtplanner.models.references import predicted_alone
from bgtplanner.privacy.budget import Budgets

FEWEST = 10
"""Of fewer clients than this, nothing is said."""

_MOST_GROUPS = 4
_Z95 = 1.96


def gains_of(
    split: Split, predicted: NDArray[Any], last: int, budgets: Budgets | None
) -> dict[str, Any]:
    """The error of groups of clients in the last round, beside what they would reach alone.

    ``better`` is the share of the clients whose error is lower than alone; ``ratings`` and, if
    budgets differ, ``budget`` are the groups, each with its name, its number of clients, both
    errors, and the gain, a share of the error alone, with the bounds of its 95 % interval.
    `predicted` is for the test ratings, after the round `last`, from 0.
    """
    test, train = split.test, split.train.take(split.present(last))
    ours, theirs = (
        np.bincount(
            test.client, (of.astype(np.float64) - test.value) ** 2, minlength=train.n_clients
        )
        for of in (predicted, predicted_alone(train, test))
    )
    tested = np.bincount(test.client, minlength=train.n_clients)
    known = tested > 0
    rated = np.bincount(train.client, minlength=train.n_clients)
    named = {"ratings": _grouped(rated, known)}
    if budgets is not None:
        epsilon = np.array([of.epsilon for of in budgets.classes])[budgets.class_of_client]
        named["budget"] = ((f"ε {of:g}", known & (epsilon == of)) for of in np.unique(epsilon))
    found: dict[str, Any] = {
        by: [
            {"name": name, **_gain(ours[who], theirs[who], tested[who])}
            for name, who in groups
            if who.sum() >= FEWEST
        ]
        for by, groups in named.items()
    }
    better = float((ours < theirs)[known].mean()) if known.sum() >= FEWEST else None
    return {"better": better} | found


def _grouped(
    rated: NDArray[Any], known: NDArray[np.bool_]
) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Groups of about equal size by ratings, with rounded bounds; the outer ones are open."""
    some = rated[known]
    number = min(_MOST_GROUPS, len(some) // FEWEST)
    shares = np.arange(1, number) / max(number, 1)
    wanted = {float(f"{of:.2g}") for of in np.quantile(some, shares)} if number > 1 else set()
    edges = [-math.inf]
    for edge in sorted(wanted):  # a bound that leaves too few on either side is left out
        if ((some > edges[-1]) & (some <= edge)).sum() >= FEWEST <= (some > edge).sum():
            edges.append(edge)
    for low, high in pairwise([*edges, math.inf]):
        name = f"{low + 1:g} to {high:g} ratings"
        if math.isinf(low):
            name = "all clients" if math.isinf(high) else f"up to {high:g} ratings"
        elif math.isinf(high):
            name = f"more than {low:g} ratings"
        yield name, known & (rated > low) & (rated <= high)


def _gain(ours: NDArray[Any], theirs: NDArray[Any], tested: NDArray[Any]) -> dict[str, Any]:
    """The errors of a group, and the gain with its interval: clients are the draws."""
    total, alone, together = float(tested.sum()), float(theirs.sum()), float(ours.sum())
    found: dict[str, Any] = {
        "clients": len(ours),
        "rmse": math.sqrt(together / total),
        "rmse_alone": math.sqrt(alone / total),
        "better": float((ours < theirs).mean()),
        **dict.fromkeys(("gain", "low", "high")),
    }
    if alone > 0 and together > 0:
        ratio = together / alone
        # The ratio of two sums over clients, linearised; its root is the ratio of the errors.
        spread = math.sqrt(len(ours)) * float(np.std(ours - ratio * theirs, ddof=1))
        gain, half = 1 - math.sqrt(ratio), _Z95 * spread / alone / (2 * math.sqrt(ratio))
        found |= {"gain": gain, "low": gain - half, "high": gain + half}
    return found
