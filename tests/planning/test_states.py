"""A policy's state from elsewhere: read as it was written, or refused with a sentence."""

from __future__ import annotations

import functools
import json
from typing import Any

import numpy as np
import pytest
from forecasts import ByForecast

from bgtplanner.errors import BGTPlannerError
from bgtplanner.paper.baselines import Adap
from bgtplanner.paper.planners import AsPrinted, Repaired
from bgtplanner.planning.bgt import BGTPlanner
from bgtplanner.planning.schedules import Fixed, Optimal, Random, Unlimited
from bgtplanner.privacy.budget import Budgets

BUDGETS = Budgets.per_client([1.0, 10.0, 10.0], 1e-5)


POLICIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "bgt": (BGTPlanner, {}),
    "bgt by forecast": (ByForecast, {"gamma": 1.0}),
    "bgt asking some": (ByForecast, {"participation": 0.3, "objective": "last"}),
    "repaired": (Repaired, {"gamma": 0.7, "min_rounds": 10}),
    "paper": (AsPrinted, {"levels": 2, "initial_rounds": 1}),
    "random": (Random, {}),
    "adap": (Adap, {}),
    "fixed": (Fixed, {"weights": [1, 2, 3, 0] * 3}),
    "optimal": (Optimal, {"workload": "sgd:0.1"}),
    "unlimited": (Unlimited, {}),
}


@functools.cache
def state_of(name: str) -> str:
    """The state in the middle of a run, with a plan that was not told yet."""
    kind, options = POLICIES[name]
    policy = kind(BUDGETS, rounds=12, seed=1, **options)
    generator = np.random.default_rng(0)
    for _ in range(4):
        policy.tell(policy.ask(generator.standard_normal(3)), 0.1)
    assert policy.ask(generator.standard_normal(3)) is not None
    return json.dumps(policy.state_dict())


@pytest.mark.parametrize("name", POLICIES)
def test_what_was_not_edited_goes_on_and_anything_else_is_refused(name: str) -> None:
    kind, state = POLICIES[name][0], json.loads(state_of(name))
    again = kind.from_state(state)
    assert again.state_dict() == state
    assert again.round == 5
    for key in state:
        without = {other: value for other, value in state.items() if other != key}
        for edited in (without, state | {key: "x"}, state | {key: [1]}, {**state, "more": 1}):
            with pytest.raises(BGTPlannerError):
                kind.from_state(edited)
