"""Settings in which policies decide, and what they decided.

A change that is only meant to be faster must not decide anything else. ``python -m
planning.decisions``, run in ``tests``, writes what the present code decides into
``assets/decisions.json``; only a change that is meant to decide otherwise may do that.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.paper.as_coded import AsCoded

from bgtplanner.paper.baselines import Adap, Adpml
from bgtplanner.paper.planners import AsPrinted, Repaired
from bgtplanner.planning.bgt import BGTPlanner
from bgtplanner.planning.policy import LedgerPolicy
from bgtplanner.planning.schedules import Late, Random, Uniform
from bgtplanner.privacy.budget import Budget, Budgets
from planning.forecasts import Made

FILE = Path(__file__).parent.parent / "assets" / "decisions.json"
ROUNDS = 70
_ONE = Budget(10.0, 1e-5)
_THREE = Budgets.per_client([5.0, 10.0, 20.0] * 4, delta=1e-5)


def _planner(budget: Budget | Budgets = _ONE, **options: Any) -> Callable[[], LedgerPolicy]:
    clients = 12 if isinstance(budget, Budget) else None
    return lambda: BGTPlanner(budget, clients, rounds=ROUNDS, **options)


def _forecasting(made: Made, **options: Any) -> Callable[[], LedgerPolicy]:
    def make() -> LedgerPolicy:
        policy = _planner(**options)()
        policy.forecast = made
        return policy

    return make


def _other(kind: Callable[..., LedgerPolicy], **options: Any) -> Callable[[], LedgerPolicy]:
    return lambda: kind(_ONE, 12, rounds=ROUNDS, **options)


SETTINGS: dict[str, Callable[[], LedgerPolicy]] = {
    "own": _planner(),
    "own, another seed": _planner(seed=7),
    "own, secagg": _planner(trust="secagg"),
    "own, laplace": _planner(mechanism="laplace", seed=1),
    "own, privunit": _planner(mechanism="privunit", seed=2),
    "own, three budgets": _planner(_THREE, seed=3),
    "own, three budgets, secagg": _planner(_THREE, trust="secagg", seed=4),
    "own, no skipping": _planner(skip=False, levels=7, seed=5),
    "own, raw rewards": _planner(predictor={"standardize": False}, seed=8),
    "own, a short memory": _planner(predictor={"fit": True, "window": 16}, seed=9),
    "own, a share invited": _planner(participation=0.5, seed=10),
    "by forecast": _forecasting(Made(steps=8, joining=0.05), objective="served"),
    "by forecast, for the last round": _forecasting(Made(power=2.0), objective="last", seed=1),
    "repaired": _other(Repaired),
    "as printed": _other(AsPrinted),
    "as coded": _other(AsCoded),
    "uniform": _other(Uniform),
    "adpml": _other(Adpml),
    "adap": _other(Adap),
    "late": _other(Late),
    "random": _other(Random),
}


def decided(make: Callable[[], LedgerPolicy]) -> list[list[float | None]]:
    """Level, charge of the first class, and scores, round by round."""
    policy, draw = make(), random.Random(19)  # its own: NumPy may change its streams
    told: list[list[float | None]] = []
    while True:
        context = [draw.gauss(0.0, 1.0) for _ in range(5)]
        invited = None
        if policy.participation < 1:
            number, share = len(policy.budgets), policy.participation
            invited = np.array([draw.random() < share for _ in range(number)])
        plan = policy.ask(context, clients=invited)
        if plan is None:
            return told
        if policy.follows_norms:
            policy.saw(1.0 + draw.random())
        policy.tell(plan, reward=0.5 + 0.1 * draw.gauss(0.0, 1.0) + 0.1 * context[0])
        behind = (plan.why.predicted, plan.why.score, plan.why.probability)
        numbers = [number for row in behind for number in row]
        told.append([plan.level, *plan.charge_by_class.tolist(), *numbers])


def in_short(told: list[list[float | None]]) -> str:
    """The levels, and the first charges to seven digits: other machines round otherwise."""
    return " ".join(f"{'-' if row[0] is None else row[0]}:{row[1]:.7g}" for row in told)


if __name__ == "__main__":
    found = {name: in_short(decided(make)) for name, make in SETTINGS.items()}
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
