"""Policies and contexts by name: those of the package, and those that you or a plugin add."""

from __future__ import annotations

from collections.abc import Callable

from bgtplanner.planning.allocator import LevelPolicy
from bgtplanner.planning.context import Context
from bgtplanner.planning.policy import Policy
from bgtplanner.registry import Registry


def _inherits(kind: type) -> Callable[[object], bool]:
    return lambda thing: isinstance(thing, type) and issubclass(thing, kind)


POLICIES: Registry[type[Policy]] = Registry(
    "policy",
    {
        "bgt": "bgtplanner.planning.bgt:BGTPlanner",
        "uniform": "bgtplanner.planning.schedules:Uniform",
        "early": "bgtplanner.planning.schedules:Early",
        "late": "bgtplanner.planning.schedules:Late",
        "unlimited": "bgtplanner.planning.schedules:Unlimited",
        "optimal": "bgtplanner.planning.schedules:Optimal",
        "hong": "bgtplanner.planning.schedules:Hong",
        "two-phase": "bgtplanner.planning.schedules:TwoPhase",
        "random": "bgtplanner.planning.schedules:Random",
        "fixed": "bgtplanner.planning.schedules:Fixed",
    },
    expected="a class that inherits from bgtplanner.Policy",
    fits=_inherits(Policy),
    gone={
        "patient": "no longer exists; use bgt with --objective last, or the schedule late",
        "hindsight": "no longer exists; give the schedule fixed, with planning.options.charges",
    },
)
"""The policies, which decide what a round may cost."""

CONSTANTS: Registry[type[LevelPolicy]] = Registry(
    "constants",
    {"own": "bgtplanner.planning.bgt:BGTPlanner"},
    expected="a planner that inherits from LevelPolicy",
    fits=_inherits(LevelPolicy),
    gone={
        "authors": "is not part of the package any more: from a checkout, take the policy "
        "benchmarks.paper.as_coded:AsCoded"
    },
)
"""The planners that the policy ``bgt`` stands for, by ``planning.constants``."""

CONTEXTS: Registry[type[Context]] = Registry(
    "context",
    {
        "none": "bgtplanner.planning.context:Context",
        "released": "bgtplanner.planning.context:ReleasedContext",
    },
    gone={"forecast": "no longer exists; use released"},
    expected="a class that inherits from bgtplanner.planning.context:Context",
    fits=_inherits(Context),
)
"""The contexts, which policies may look at before a round."""
