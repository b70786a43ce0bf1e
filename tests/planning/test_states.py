"""A policy's state from elsewhere: read as it was written, or refused with a sentence."""

from __future__ import annotations

import copy
import functools
import json
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from benchmarks.paper.as_coded import AsCoded
from forecasts import Made
from hypothesis import given, settings
from hypothesis import strategies as st

from bgtplanner.errors import BGTPlannerError, ConfigError
from bgtplanner.paper.planners import AsPrinted, Repaired
from bgtplanner.planning.bgt import BGTPlanner
from bgtplanner.planning.schedules import (
    Adap,
    Adpml,
    Early,
    Fixed,
    Hong,
    Late,
    Random,
    Uniform,
    Unlimited,
)
from bgtplanner.privacy.budget import Budgets

BUDGETS = Budgets.per_client([1.0, 10.0, 10.0], 1e-5)
ROUNDS = 12


class ByForecast(BGTPlanner):
    """Always with the same forecast."""

    forecast = Made(half=0.01, steps=3)


POLICIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "bgt": (BGTPlanner, {}),
    "bgt by forecast": (ByForecast, {"gamma": 1.0}),
    "bgt asking some": (ByForecast, {"participation": 0.3, "objective": "last"}),
    "repaired": (Repaired, {"gamma": 0.7, "min_rounds": 10}),
    "paper": (AsPrinted, {"levels": 2, "initial_rounds": 1}),
    "authors": (AsCoded, {"levels": 2, "initial_rounds": 1}),
    "uniform": (Uniform, {"trust": "secagg"}),
    "random": (Random, {}),
    "adap": (Adap, {}),
    "adpml": (Adpml, {"mode": "normalised"}),
    "early": (Early, {"payments": 3}),
    "late": (Late, {"first": 0.2}),
    "fixed": (Fixed, {"weights": [1, 2, 3, 0] * 3}),
    "hong": (Hong, {}),
    "unlimited": (Unlimited, {}),
}

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([-1, 0, 1, 2, 1.5, 10**30, -(10**30), 1e308, -1e308, 1e-320]),
    st.sampled_from([float("nan"), float("inf"), -float("inf")]),
    st.text(max_size=3),
    st.sampled_from(["1:00", "0", "-1", "²", "\ud800"]),
    st.sampled_from([[], {}, [1], [[1]], [None], ["x"], {"a": 1}, {"0": "x"}, [[1, 2], [3]]]),
)


@functools.cache
def state_of(name: str) -> str:
    """The state in the middle of a run, with a plan that was not told yet."""
    kind, options = POLICIES[name]
    policy = kind(BUDGETS, rounds=ROUNDS, seed=1, **options)
    generator = np.random.default_rng(0)
    for _ in range(4):
        policy.tell(policy.ask(generator.standard_normal(3)), 0.1)
    assert policy.ask(generator.standard_normal(3)) is not None
    return json.dumps(policy.state_dict())


def places(tree: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from places(value, (*at, key))


def changed(tree: Any, at: tuple[Any, ...], junk: Any, *, remove: bool) -> Any:
    if not at:
        return junk
    tree = copy.deepcopy(tree)
    node = tree
    for key in at[:-1]:
        node = node[key]
    if remove:
        del node[at[-1]]
    else:
        node[at[-1]] = junk
    return tree


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@settings(max_examples=120, deadline=None, derandomize=True)
def test_an_edited_state_is_refused_or_harmless(name: str, data: st.DataObject) -> None:
    """Whatever stands anywhere in it: an error of this package, or a policy that plays on."""
    state = json.loads(state_of(name))
    every = list(places(state))
    shallow = [place for place in every if len(place) <= 2]
    at = data.draw(st.one_of(st.sampled_from(shallow), st.sampled_from(every)))
    edited = changed(state, at, data.draw(JUNK), remove=bool(at) and data.draw(st.booleans()))
    generator = np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            policy = POLICIES[name][0].from_state(edited)
            for _ in range(4):
                plan = policy.ask(generator.standard_normal(3))
                if plan is None:
                    break
                assert repr(plan)
                policy.tell(plan, 0.1)
            json.dumps(policy.state_dict())
        except BGTPlannerError:
            return
    if name != "unlimited":
        assert (policy.ledger.epsilon_spent() <= np.array([1.0, 10.0, 10.0]) * (1 + 1e-9)).all()


@pytest.mark.parametrize("name", POLICIES)
def test_what_was_not_edited_goes_on(name: str) -> None:
    state = json.loads(state_of(name))
    again = POLICIES[name][0].from_state(state)
    assert again.state_dict() == state
    assert again.round == 5


@pytest.mark.parametrize("name", ["bgt", "unlimited"])
@pytest.mark.parametrize("version", ["none", 3, "4", True, 4.0, None])
def test_other_versions_are_refused(name: str, version: Any) -> None:
    state = json.loads(state_of(name)) | {"version": version}
    if version == "none":  # as it was before there were versions
        del state["version"]
    with pytest.raises(ConfigError, match=r"^state: version = .*: expected 4, .* start again"):
        POLICIES[name][0].from_state(state)


def test_the_state_of_another_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^state: kind = 'Adap': expected Random"):
        Random.from_state(json.loads(state_of("adap")))
