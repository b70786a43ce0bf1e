"""Policies by name: those that come with the package, and what you add."""

from __future__ import annotations

import importlib

from bgtplanner.errors import ConfigError
from bgtplanner.planning.baselines import (
    Adap,
    Adpml,
    Fixed,
    Hindsight,
    Hong,
    Random,
    TwoPhase,
    Uniform,
    Unlimited,
)
from bgtplanner.planning.bgt import BGTPlanner
from bgtplanner.planning.patient import Patient
from bgtplanner.planning.policy import Policy

__all__ = ["POLICIES", "policy_named"]

POLICIES: dict[str, type[Policy]] = {
    "patient": Patient,
    "bgt": BGTPlanner,
    "uniform": Uniform,
    "adpml": Adpml,
    "adap": Adap,
    "unlimited": Unlimited,
    "hong": Hong,
    "two-phase": TwoPhase,
    "random": Random,
    "hindsight": Hindsight,
    "fixed": Fixed,
}
"""All that come with the package."""


def policy_named(name: str) -> type[Policy]:
    """A policy's class by its name, or by ``package.module:Class`` for one of your own.

    Raises:
        ConfigError: If there is none; lists those that come with the package.

    Example:
        >>> policy_named("uniform").__name__
        'Uniform'
        >>> policy_named("bgtplanner.planning.baselines:Hong").__name__
        'Hong'
    """
    if name in POLICIES:
        return POLICIES[name]
    expected = f"one of {', '.join(POLICIES)}, or package.module:Class for your own"
    module, colon, attribute = name.partition(":")
    ConfigError.unless(bool(colon and module and attribute), "policy", name, expected)
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"policy = {name!r}: cannot be imported ({error}); is it installed, or on PYTHONPATH?"
        ) from error
    fits = isinstance(found, type) and all(
        callable(getattr(found, part, None))
        for part in ("ask", "tell", "state_dict", "from_state")
    )
    ConfigError.unless(fits, "policy", name, "a class with ask, tell, state_dict and from_state")
    policy: type[Policy] = found
    return policy
