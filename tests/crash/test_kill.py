"""A run that is killed again and again ends as if nobody had touched it."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from finished import state_of
from processes import Processes, lines_in

COMMAND = str(Path(sys.executable).parent / "bgtplanner")
KILLS = 8
SETTINGS = {
    "data.dataset": "synthetic",
    "synthetic.clients": 20,
    "synthetic.items": 15,
    "synthetic.ratings_per_client": 8,
    "federation.rounds": 400,
    "federation.participation": 0.5,
    "run.checkpoint_every": 7,
    "run.device": "cpu",
}


def start(processes: Processes, folder: Path) -> subprocess.Popen[str]:
    """Go on with the run, or begin it if it never got as far as having a folder."""
    if (folder / "config.toml").exists():
        arguments = ["resume", str(folder)]
    else:
        assignments = [part for k, v in SETTINGS.items() for part in ("--set", f"{k}={v}")]
        arguments = ["run", "--out", str(folder), *assignments]
    return processes.start(
        [COMMAND, *arguments, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_killed_at_random_moments(tmp_path: Path, processes: Processes) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    out, err = start(processes, whole).communicate()
    assert json.loads(out)["rounds_run"] == SETTINGS["federation.rounds"], err

    generator = random.Random(20_250_101)
    rounds = folder / "rounds.jsonl"
    killed = 0
    for number in range(KILLS):
        wanted = lines_in(rounds) + generator.randint(1, 50)
        process = start(processes, folder)
        if number % 4 == 3:  # any time from the start on
            time.sleep(generator.uniform(0, 1.5))
        else:  # while it trains and writes, however long that takes
            while process.poll() is None and lines_in(rounds) < wanted:
                time.sleep(0.002)
            time.sleep(generator.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        _, err = process.communicate()
        assert err == ""
        killed += process.returncode == -signal.SIGKILL
        assert process.returncode in (0, -signal.SIGKILL)

    process = start(processes, folder)
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert json.loads(out)["rounds_run"] == SETTINGS["federation.rounds"]
    assert state_of(folder) == state_of(whole)
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        path.name for path in whole.iterdir()
    )
    assert killed, "every process was done before it could be killed"
