"""Policies by name."""

from __future__ import annotations

import pytest

from bgtplanner.errors import ConfigError
from bgtplanner.planning import baselines
from bgtplanner.planning.bgt import BGTPlanner
from bgtplanner.planning.catalog import POLICIES, policy_named
from bgtplanner.planning.patient import Patient
from bgtplanner.planning.policy import Policy
from bgtplanner.privacy.budget import Budget

NAMES = {
    "patient": Patient,
    "bgt": BGTPlanner,
    "uniform": baselines.Uniform,
    "adpml": baselines.Adpml,
    "adap": baselines.Adap,
    "unlimited": baselines.Unlimited,
    "hong": baselines.Hong,
    "two-phase": baselines.TwoPhase,
    "random": baselines.Random,
    "hindsight": baselines.Hindsight,
    "fixed": baselines.Fixed,
}


class Mine(baselines.Uniform):
    """One of your own."""


class NotOne:
    """Asks, but does not listen."""

    def ask(self) -> None:
        return None


def test_the_names() -> None:
    assert POLICIES == NAMES
    assert {name: policy_named(name) for name in NAMES} == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_each_is_a_policy(name: str) -> None:
    kind = policy_named(name)
    weights = {"weights": [1, 2, 3]} if name in ("hindsight", "fixed") else {}
    policy = kind(Budget(5.0, 1e-5), 3, rounds=3, **weights)  # type: ignore[call-arg]
    assert isinstance(policy, Policy)
    assert policy.ask([0.0]) is not None


def test_one_of_your_own_by_its_path() -> None:
    assert policy_named("bgtplanner.planning.baselines:Hong") is baselines.Hong
    assert policy_named(f"{__name__}:Mine").__name__ == "Mine"


def test_an_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(
        ConfigError, match=r"^policy = 'best': expected one of patient, bgt, uniform"
    ) as e:
        policy_named("best")
    assert all(name in str(e.value) for name in NAMES)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ":",
        "bgtplanner.planning.baselines:",
        ":Hong",
        "no.such.module:Hong",
        "bgtplanner.planning.baselines:NoSuch",
        "bgtplanner.planning.baselines:np",
        "bgtplanner.planning.allocator:probabilities",
        f"{__name__}:NotOne",
    ],
)
def test_what_is_no_policy_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^policy = "):
        policy_named(name)
