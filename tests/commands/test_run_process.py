"""`run` as a process of its own: what it loads, and what it leaves behind."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from processes import Processes, wait_until

SMALL = ["clients=20", "items=15", "ratings_per_client=8"]
RUN = ["run", "--dataset", "synthetic", "--seed", "3"]
RUN += [word for setting in SMALL for word in ("--set", f"synthetic.{setting}")]


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_leaves_a_run_to_resume_and_no_process(
    tmp_path: Path, processes: Processes
) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "bgtplanner", *RUN, "--rounds", 5000, "--out", folder]
    started = processes.start(command, stdout=-1, stderr=-1)
    rounds = folder / "rounds.jsonl"
    wait_until(lambda: rounds.exists() and rounds.stat().st_size, "the first round")
    os.killpg(started.pid, signal.SIGINT)
    _, errors = started.communicate()
    assert started.returncode == 1
    assert errors.startswith("stopped after round ")
    assert f"bgtplanner resume {folder}" in errors

    def empty() -> bool:
        try:
            os.killpg(started.pid, 0)
        except ProcessLookupError:
            return True
        return False

    wait_until(empty, "all processes of the run to end")
