"""Every policy that comes with the package keeps the contract that is shipped with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from benchmarks.paper.as_coded import AsCoded

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
    TwoPhase,
    Uniform,
)
from bgtplanner.testing import PolicyContract


class TestBGTPlanner(PolicyContract):
    policy = BGTPlanner


class TestBGTPlannerWithoutSkipping(PolicyContract):
    policy = BGTPlanner
    options: ClassVar[Mapping[str, Any]] = {
        "skip": False,
        "levels": 3,
        "cheapest": 1.0,
        "gamma": 2.0,
    }


class TestRepaired(PolicyContract):
    policy = Repaired
    options: ClassVar[Mapping[str, Any]] = {"initial_rounds": 1, "min_rounds": 8}


class TestAsPrinted(PolicyContract):
    policy = AsPrinted
    options: ClassVar[Mapping[str, Any]] = {"initial_rounds": 1, "min_rounds": 8}


class TestAsCoded(TestAsPrinted):
    policy = AsCoded


class TestUniform(PolicyContract):
    policy = Uniform


class TestFixed(PolicyContract):
    policy = Fixed
    options: ClassVar[Mapping[str, Any]] = {
        "weights": np.array([1, 0, 2, 3, 1e-12, 1, 1, 1, 1, 1, 1, 5])
    }


class TestEarly(PolicyContract):
    policy = Early


class TestLate(PolicyContract):
    policy = Late


class TestHong(PolicyContract):
    policy = Hong


class TestTwoPhase(PolicyContract):
    policy = TwoPhase


class TestRandom(PolicyContract):
    policy = Random


class TestAdpml(PolicyContract):
    policy = Adpml


class TestAdpmlNormalised(PolicyContract):
    policy = Adpml
    options: ClassVar[Mapping[str, Any]] = {"mode": "normalised", "shape": "saturating"}


class TestAdap(PolicyContract):
    policy = Adap
