"""A client that adds to a sum is killed with kill -9 at every write of every step.

After the restart it repeats its answer byte for byte, or it refuses: it never makes another upload
for the round, never pays for it twice, and what it keeps of its rounds is the old or the new one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from bgtplanner.federation.aggregation.messages import STEPS
from processes import PATIENCE

SCRIPT = Path(__file__).with_name("killed_sums.py")


@pytest.fixture(scope="module")
def kills() -> dict[str, list[dict[str, Any]]]:
    """What became of clients that were killed, for each write at which they were.

    In memory, if there is such a folder: a killed process leaves there what it has written.
    """
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        command = [sys.executable, str(SCRIPT), folder]
        done = subprocess.run(command, check=False, capture_output=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:].decode()
    found: dict[str, list[dict[str, Any]]] = json.loads(done.stdout.splitlines()[-1])
    return found


def check(found: list[dict[str, Any]]) -> None:
    for one in found:
        where = f"killed at write {one['at']} of {one['step']}"
        first, second = one["answers"]
        assert first == "refused" or bytes.fromhex(first), where
        assert first == second, f"{where}: two answers"
        assert one["paid"] <= 1, f"{where}: paid twice"
        if one["step"] in ("upload", "sign", "open"):
            paid = one["paid"] == 1
            assert paid or first == "refused", f"{where}: an upload was not paid for"
        assert one["other"] == "refused", f"{where}: another message was answered"
        assert one["after"] == "refused", f"{where}: the round goes on after that"
        assert one["local"] in (0, 1), f"{where}: the local state is not whole"
        assert one["next"] != "refused", f"{where}: it takes no part in the next round"


def test_a_client_killed_at_any_write_of_a_sum_says_one_thing_or_nothing(
    kills: dict[str, Any],
) -> None:
    found = kills["Client"]
    check(found)
    for step in STEPS:
        refused = {one["answers"][0] == "refused" for one in found if one["step"] == step}
        assert refused == {False, True}, step
    assert {one["local"] for one in found if one["step"] == "upload"} == {0, 1}


def test_a_client_that_pays_once_its_upload_is_stored_is_caught(kills: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match="was not paid for"):
        check(kills["PaysAfterwards"])
