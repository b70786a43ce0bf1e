"""Policies decide as they did before: what makes them faster changes no plan."""

from __future__ import annotations

import json

import pytest

from planning.decisions import FILE, SETTINGS, decided, in_short

KNOWN = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", SETTINGS)
def test_the_same_is_decided_as_before(name: str) -> None:
    assert in_short(decided(SETTINGS[name])) == KNOWN[name]
