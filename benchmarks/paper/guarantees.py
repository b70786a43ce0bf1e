"""Both sides of the theorem's condition, and what is promised to whole clients."""

from __future__ import annotations

import math

from benchmarks.paper.plan import COMPARED, DATASETS
from benchmarks.paper.results import Results
from benchmarks.paper.table import NOTHING, column, table
from bgtplanner import Budget
from bgtplanner.paper.planners import AsPrinted, Repaired
from bgtplanner.privacy.budget import Budgets
from bgtplanner.runs.config import load_config
from bgtplanner.runs.summary import CLIENT_LEVEL_DELTA

BGT = COMPARED["BGTplanner"]


def least_bias(rounds: int, clients: int, tries: int) -> float:
    """M(T0) = sqrt(A E(T0) + 4 log(T U) / T0), were the predictor's error E(T0) zero.

    Example:
        >>> round(100 * least_bias(100, 943, 5))
        303
    """
    return math.sqrt(4 * math.log(rounds * clients) / tries)


def theorem(results: Results) -> str | None:
    """Both sides of the condition of the regret bound, for every data set."""
    config = load_config(preset="paper")
    rounds, fewest = config.federation.rounds, AsPrinted.fewest_rounds(config.federation.rounds)
    budget = Budget(config.privacy.epsilon, config.privacy.delta)
    sizes = {
        name: number for name in results.datasets if (number := results.number(name, "clients"))
    }
    if not sizes:
        return None
    rows = [["", "clients U", "(A + 2) T0", "T M(T0), at least", "budget", "scaled", "holds"]]
    for name, clients in sizes.items():
        planner = Repaired(Budgets.same(budget, clients), rounds=rounds, min_rounds=fewest)
        actions, tries = planner.charges.shape[1], planner.initial_rounds
        first, second = (actions + 2) * tries, rounds * least_bias(rounds, clients, tries)
        holds = fewest > max(first, second)
        row = [DATASETS[name], f"{clients:,}", str(first), f"{second:.0f}", f"{budget.epsilon:g}"]
        rows.append([*row, str(fewest), "yes" if holds else "no"])
    return (
        f"With A = {actions} levels, T0 = {tries}, T = {rounds} rounds and a budget of "
        f"{budget.epsilon:g}. M(T0) = sqrt(A E(T0) + 4 log(T U) / T0) is taken with a predictor "
        "that makes no error, E(T0) = 0: as small as it can be. *Scaled* is the budget with costs "
        f"scaled to [0, 1]: the dearest level costs 1/{fewest} of it.\n\n{table(rows)}"
    )


def guarantee(results: Results) -> str | None:
    """What the booked epsilon is for whole clients."""
    names = {
        "epsilon_client_level_median": "median client",
        "epsilon_client_level": "most exposed client",
        "epsilon_client_level_pure": "median client, pure epsilon",
    }
    rows = [["BGTplanner", "booked for each row", *names.values()]]
    for place in results.columns:
        found = [results.figure(BGT, *place, name) for name in names]
        booked = results.figure(BGT, *place, "epsilon")
        if booked is not None and any(found):
            shown = [NOTHING if one is None else f"{one.mean:,.0f}" for one in found]
            rows.append([column(*place), f"{booked.mean:g}", *shown])
    if len(rows) == 1:
        return None
    delta = f"{CLIENT_LEVEL_DELTA:g}".replace("e-0", "e-")
    return f"Epsilon of a whole client at delta {delta}, mean over seeds:\n\n{table(rows)}"
