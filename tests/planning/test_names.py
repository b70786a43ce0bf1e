"""Policies by name."""

from __future__ import annotations

import pytest

from bgtplanner.errors import ConfigError
from bgtplanner.planning.registry import CONSTANTS, CONTEXTS


def test_the_paper_adds_its_own() -> None:
    assert list(CONSTANTS) == ["own", "repaired", "paper"]
    with pytest.raises(ConfigError, match="as_coded:AsCoded"):
        CONSTANTS["authors"]
    assert list(CONTEXTS) == ["none", "released", "usage"]
    for registry in (CONSTANTS, CONTEXTS):
        assert all(isinstance(registry[name], type) for name in registry)
