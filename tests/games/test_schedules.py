"""Machines that stop at any write, and a network that does what it likes: no schedule of them
makes a client send what it has not paid for, or send two things for one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from bgtplanner.flower.client import Client
from games.machines import (
    DEFENCELESS,
    Federation,
    ledger_files,
    played,
    simulated,
    write_template,
)

SCHEDULES = int(os.environ.get("BGTPLANNER_SCHEDULES", "200"))
PARTS = 10


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """Files in memory where there is such a folder: they are flushed all the time."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        write_template(Path(folder) / "template")
        yield Path(folder)


@pytest.mark.parametrize("part", range(PARTS))
def test_no_schedule_makes_a_client_send_what_it_has_not_paid_for(part: int, home: Path) -> None:
    for seed in range(part, SCHEDULES, PARTS):
        try:
            played(home / "template", home / str(seed), seed)
        except AssertionError as error:
            raise AssertionError(f"schedule {seed}: {error}") from error


@pytest.mark.parametrize("kind", DEFENCELESS)
def test_without_the_defence_some_schedule_shows_it(kind: type[Client], home: Path) -> None:
    def play() -> None:
        for seed in range(100):
            played(home / "template", home / "without", seed, kind)

    with pytest.raises(AssertionError):
        play()


@pytest.mark.parametrize("lost", range(1, 4))
def test_a_disk_that_loses_what_it_said_was_flushed_is_noticed(lost: int, home: Path) -> None:
    """The ledger forgets its newest rows; the head that lies beside it does not."""
    shutil.copytree(home / "template", home / "lying")
    try:
        federation = Federation(home / "lying", Client, 0)
        machine, request = federation.machines[0], federation.server.request()
        with simulated(federation):
            kept = []
            for index in range(3):
                kept.append(ledger_files(machine.ledger))
                assert machine.answer(replace(request, round=index), 1e9 + index) is not None
            for path in machine.ledger.parent.glob("ledger.sqlite*"):
                path.unlink()
            for path, content in kept[-lost].items():
                path.write_bytes(content)
            for index in range(6):
                assert machine.answer(replace(request, round=index), 2e9 + index) is None
    finally:
        shutil.rmtree(home / "lying")
