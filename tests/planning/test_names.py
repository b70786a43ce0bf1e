"""Policies by name."""

from __future__ import annotations

import pytest

from bgtplanner.errors import ConfigError
from bgtplanner.planning import schedules
from bgtplanner.planning.policy import Policy
from bgtplanner.planning.registry import CONSTANTS, CONTEXTS, POLICIES
from bgtplanner.privacy.budget import Budget


class Mine(schedules.Uniform):
    """One of your own."""


@pytest.mark.parametrize("name", POLICIES)
def test_each_is_a_policy(name: str) -> None:
    kind = POLICIES[name]
    weights = {"weights": [1, 2, 3]} if name == "fixed" else {}
    policy = kind(Budget(5.0, 1e-5), 3, rounds=3, **weights)  # type: ignore[call-arg]
    assert isinstance(policy, Policy)
    assert policy.ask([0.0]) is not None


def test_one_of_your_own_by_its_path() -> None:
    assert POLICIES["bgtplanner.planning.schedules:Hong"] is schedules.Hong
    assert POLICIES[f"{__name__}:Mine"].__name__ == "Mine"


def test_the_paper_adds_its_own() -> None:
    assert list(CONSTANTS) == ["own", "repaired", "paper"]
    with pytest.raises(ConfigError, match="as_coded:AsCoded"):
        CONSTANTS["authors"]
    assert list(CONTEXTS) == ["none", "released", "usage"]
    for registry in (CONSTANTS, CONTEXTS):
        assert all(isinstance(registry[name], type) for name in registry)
