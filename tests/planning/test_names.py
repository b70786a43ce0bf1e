"""Policies by name."""

from __future__ import annotations

import pytest

from bgtplanner.errors import ConfigError
from bgtplanner.planning import adaptive, schedules
from bgtplanner.planning.bgt import BGTPlanner
from bgtplanner.planning.policy import Policy
from bgtplanner.planning.registry import CONSTANTS, CONTEXTS, POLICIES
from bgtplanner.privacy.budget import Budget

NAMES = {
    "bgt": BGTPlanner,
    "uniform": schedules.Uniform,
    "early": schedules.Early,
    "late": schedules.Late,
    "adpml": adaptive.Adpml,
    "adap": adaptive.Adap,
    "unlimited": schedules.Unlimited,
    "hong": schedules.Hong,
    "two-phase": schedules.TwoPhase,
    "random": schedules.Random,
    "hindsight": schedules.Hindsight,
    "fixed": schedules.Fixed,
}


class Mine(schedules.Uniform):
    """One of your own."""


class NotOne:
    """Asks, but does not listen."""

    def ask(self) -> None:
        return None


def test_the_names() -> None:
    assert {name: POLICIES[name] for name in POLICIES} == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_is_a_policy(name: str) -> None:
    kind = POLICIES[name]
    weights = {"weights": [1, 2, 3]} if name in ("hindsight", "fixed") else {}
    policy = kind(Budget(5.0, 1e-5), 3, rounds=3, **weights)  # type: ignore[call-arg]
    assert isinstance(policy, Policy)
    assert policy.ask([0.0]) is not None


def test_one_of_your_own_by_its_path() -> None:
    assert POLICIES["bgtplanner.planning.schedules:Hong"] is schedules.Hong
    assert POLICIES[f"{__name__}:Mine"].__name__ == "Mine"


def test_an_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(
        ConfigError, match=r"^policy = 'best': expected one of bgt, uniform, early"
    ) as e:
        POLICIES["best"]
    assert all(name in str(e.value) for name in NAMES)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ":",
        "bgtplanner.planning.schedules:",
        ":Hong",
        "no.such.module:Hong",
        "bgtplanner.planning.schedules:NoSuch",
        "bgtplanner.planning.schedules:np",
        "bgtplanner.planning.allocator:probabilities",
        f"{__name__}:NotOne",
    ],
)
def test_what_is_no_policy_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^policy = "):
        POLICIES[name]


def test_the_paper_adds_its_own() -> None:
    assert list(CONSTANTS) == ["own", "repaired", "paper", "authors"]
    assert list(CONTEXTS) == ["none", "released", "usage"]
    for registry in (CONSTANTS, CONTEXTS):
        assert all(isinstance(registry[name], type) for name in registry)
