"""Readers of foreign bytes survive all that has ever been tried on them, and some more."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus(name: str) -> None:
    files = sorted((CORPUS / name).iterdir())
    assert files
    for file in files:
        TARGETS[name](file.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(data=st.binary(max_size=512))
def test_made_up_bytes(name: str, data: bytes) -> None:
    TARGETS[name](data)
