"""How often a client lets itself be asked: by the clock and earlier requests, whatever they do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bgtplanner.flower.state import RateLimit

A_THIRD = 1200.0
"""Seconds, of an hour in which three requests may come."""


class Clock:
    """A clock that shows what it is told to."""

    now = 1e9

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pacing(tmp_path: Path, clock: Clock) -> RateLimit:
    """Three requests an hour, and none saved up."""
    pacing = RateLimit(tmp_path / "pace.json", 3, clock)
    note(pacing, saved=0, time=clock.now)
    return pacing


def note(pacing: RateLimit, **noted: Any) -> None:
    pacing.path.write_text(json.dumps(noted))


def taken(pacing: RateLimit) -> int:
    """How many requests may come at once."""
    return sum(pacing.take() for _ in range(20))


def test_one_request_may_come_when_its_time_has_passed_and_not_before(
    pacing: RateLimit, clock: Clock
) -> None:
    clock.now += A_THIRD - 1e-3
    assert not pacing.take()
    clock.now += 1e-3
    assert pacing.take()
    assert not pacing.take()


def test_no_more_is_saved_up_than_an_hours_worth(pacing: RateLimit, clock: Clock) -> None:
    clock.now += 1e7
    assert taken(pacing) == 3


def test_a_clock_that_is_set_back_gives_nothing_and_takes_nothing(
    pacing: RateLimit, clock: Clock
) -> None:
    note(pacing, saved=2, time=clock.now)
    clock.now -= 1e6
    assert taken(pacing) == 2


def test_it_is_remembered_over_a_restart(pacing: RateLimit, clock: Clock) -> None:
    pacing.start()
    assert pacing.take()
    assert json.loads(pacing.path.read_text()) == {"saved": 2.0, "time": clock.now}
    assert taken(RateLimit(pacing.path, 3, clock)) == 2


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "content",
    [
        "",
        "\xff",
        "[]",
        "{}",
        DEEP,
        '{"saved": 3}',
        '{"saved": "many", "time": 0}',
        '{"saved": [3], "time": 0}',
        '{"saved": -0.001, "time": 0}',
        '{"saved": 3.001, "time": 0}',
        '{"saved": NaN, "time": 0}',
        '{"saved": 1, "time": NaN}',
        '{"saved": 1, "time": -Infinity}',
    ],
    ids=lambda content: content[:30],
)
def test_a_damaged_note_starts_from_nothing_saved_up(
    pacing: RateLimit, clock: Clock, content: str
) -> None:
    pacing.path.write_text(content, encoding="latin-1")
    assert not pacing.take()
    clock.now += A_THIRD
    assert taken(pacing) == 1
