"""Over Flower's simulation engine (Ray), the same again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bgtplanner.data.ratings import Ratings
from bgtplanner.runs.run import simulate
from flower.doubles import SETTINGS, write_federation
from flower.test_equal import same_ledgers, same_model
from processes import PATIENCE

pytestmark = [pytest.mark.deploy, pytest.mark.usefixtures("compiled_once")]


def test_same_model_and_ledgers_as_in_simulation(tmp_path: Path, few: Ratings) -> None:
    pytest.importorskip("ray", reason="Flower's simulation engine is not installed: test-deploy")
    folder = tmp_path / "federation"
    slow = {"deployment.round_seconds": 120.0, "deployment.wait_seconds": 120.0}
    chosen = {"run.seed": 7, "deployment.least_clients": 3, **slow}
    config, files = write_federation(folder, few, chosen)
    script = Path(__file__).with_name("on_engine.py")
    quiet = {
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "FLWR_HOME": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, *map(str, (script, config, tmp_path / "run", folder / "clients", 7))],
        env=os.environ | quiet, capture_output=True, text=True, check=False, timeout=PATIENCE,
    )  # fmt: skip
    assert (tmp_path / "run" / "summary.json").exists(), done.stdout[-2000:] + done.stderr[-4000:]

    settings = {key: value for key, value in SETTINGS.items() if key != "data.dataset"}
    simulated = simulate(few, seed=7, settings=settings, out=tmp_path / "simulated")
    same_model(tmp_path / "run", simulated)
    same_ledgers(tmp_path / "run", tmp_path / "simulated", files)
