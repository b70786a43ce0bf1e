"""`bgtplanner sweep` as a user meets it."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from bgtplanner.errors import TrainingDivergedError
from bgtplanner.runs import run as runner
from bgtplanner.runs.config import Config
from bgtplanner.runs.folder import RunFolder
from command_line import Call


@pytest.fixture
def call(command_line: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Call:
    """Run the command in this process."""
    monkeypatch.chdir(tmp_path)
    return functools.partial(command_line, "sweep")


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """Runs that take no time; those with a budget of 13 fail."""
    configs: list[Config] = []

    def execute(config: Config, *, out: Path, **_: Any) -> None:
        configs.append(config)
        if config.privacy.epsilon == 13:
            raise TrainingDivergedError("training diverged in round 3")
        names = ("final", "best", "constant", "user_mean", "client_alone")
        summary = {f"{kind}_{name}": 0.3 for kind in ("rmse", "f1") for name in names}
        with RunFolder.create(out, config, fingerprint="x") as folder:
            folder.write("summary.json", summary)

    monkeypatch.setattr(runner, "execute", execute)
    return configs


def test_for_real(call: Call) -> None:
    done = call(
        *("--vary", "privacy.epsilon=5,20", "--seeds", "0", "--out", "grid"),
        *("--set", "federation.rounds=2", "--set", "run.device=cpu"),
    )
    assert done.code == 0, done.err
    assert "2 cells\n1/2  demo gaussian bgt seed 0, privacy.epsilon=5: RMSE 0." in done.out
    assert "Tables: grid/sweep.md, .csv, .json\n" in done.out
    assert max(map(len, done.out.splitlines())) <= 80
    assert Path("grid/privacy.epsilon=20/demo/gaussian/bgt/seed-0/summary.json").exists()
    again = call("--out", "grid", "--json")
    assert again.code == 0
    rows = json.loads(again.out)["rows"]
    assert [row["policy"] for row in rows if not row["reference"]] == ["bgt", "bgt"]


def test_goes_on_and_takes_more_values(call: Call, ran: list[Config]) -> None:
    flags = ("--policy", "bgt,uniform", "--seeds", "0-1", "--out", "grid", "--quiet")
    assert call("--vary", "privacy.epsilon=5", *flags).code == 0
    assert len(ran) == 4
    assert call("--vary", "privacy.epsilon=5,13", "--out", "grid").code == 1
    assert len(ran) == 8
    done = call("--out", "grid")
    assert "failed: demo gaussian bgt seed 0, privacy.epsilon=13: training" in " ".join(
        done.out.split()
    )
    assert len(ran) == 12  # what failed is tried again, what is finished is not


def test_ready_made(call: Call, ran: list[Config]) -> None:
    done = call("--figure", "budget", "--seeds", "0", "--out", "grid", "--json")
    assert done.code == 0, done.err
    tree = json.loads(done.out)
    assert tree["cells"] == len(ran) == 32
    assert tree["reported"] == ["rmse_best", "f1_best"]
    assert {config.privacy.mechanism for config in ran} == {"gaussian", "laplace"}
    assert call("--out", "grid").code == 0
    assert len(ran) == 32
