"""Machines that stop at any write, and a network that does what it likes: no schedule of them
makes a client send what it has not paid for, send two things for one, open a mask or use it twice,
or makes a wrong sum."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from bgtplanner.federation.aggregation.client import Client as Member
from bgtplanner.flower.client import Client
from games.machines import (
    BeginsStepsAgain,
    DoesStepsAgain,
    KeepsNothing,
    MakesLostAnswersAgain,
    PaysAfterwards,
    PaysOnceAddsTwice,
    Schedule,
    disks_that_stop,
    played,
)
from games.summing import write_summing

SCHEDULES = int(os.environ.get("BGTPLANNER_SCHEDULES", "100"))
ALONE = {"secagg": None, "neighbours": "replace-one", "epsilon": 9.0, "answers_kept": 2}


@pytest.fixture(scope="module")
def alone(memory: Path) -> Path:
    """Clients that noise their own uploads."""
    return write_summing(memory / "alone", policy=ALONE)


@pytest.mark.parametrize("part", range(5))
def test_no_schedule_makes_a_client_send_what_it_has_not_paid_for(part: int, alone: Path) -> None:
    for seed in range(part, SCHEDULES, 5):
        played(alone, seed)


@pytest.mark.parametrize("part", range(5))
def test_no_schedule_makes_a_wrong_sum_or_opens_a_mask_twice(part: int, memory: Path) -> None:
    outcomes = [
        outcome for seed in range(part, SCHEDULES // 4, 5)
        for outcome in played(memory / "template", seed)
    ]  # fmt: skip
    assert set(outcomes) == {"sum", "failed"}
    assert outcomes.count("sum") > len(outcomes) // 4  # the last of four has no faults


@pytest.mark.parametrize(
    ("kind", "member"),
    [
        (PaysAfterwards, Member),
        (MakesLostAnswersAgain, Member),
        (KeepsNothing, Member),
        (PaysOnceAddsTwice, DoesStepsAgain),
        (PaysOnceAddsTwice, BeginsStepsAgain),
    ],
)
def test_without_the_defence_some_schedule_shows_it(
    kind: type[Client], member: type[Member], alone: Path, memory: Path
) -> None:
    template = memory / "template" if kind is PaysOnceAddsTwice else alone

    def play() -> None:
        for seed in range(100):
            played(template, seed, kind, member)

    with pytest.raises(AssertionError, match=r"paid for|two ways|wrong sum|revealed|two sets"):
        play()


@pytest.mark.parametrize("lost", range(1, 4))
def test_a_disk_that_loses_what_it_said_was_flushed_is_noticed(
    lost: int, alone: Path, memory: Path
) -> None:
    """The ledger forgets its newest rows; the head that lies beside it does not."""
    home, kept = Path(shutil.copytree(alone, memory / "lying")), []
    schedule = Schedule(home, 0)
    state = home / "0" / "state"
    with disks_that_stop(schedule):
        for index in range(3):
            kept.append({of: of.read_bytes() for of in state.glob("ledger.sqlite*")})
            assert schedule.answer(schedule.asked(index), "answer", 0, b"", 1e9) is not None
        for path in state.glob("ledger.sqlite*"):
            path.unlink()
        for path, content in kept[-lost].items():
            path.write_bytes(content)
        for index in range(6):
            assert schedule.answer(schedule.asked(index), "answer", 0, b"", 2e9) is None
    shutil.rmtree(home)
