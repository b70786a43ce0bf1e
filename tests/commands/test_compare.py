"""`bgtplanner compare` as a user meets it."""

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
    return functools.partial(command_line, "compare")


class Fake:
    def __init__(self) -> None:
        self.configs: list[Config] = []
        self.fails = ""

    def execute(self, config: Config, *, out: Path, observer: Any, **_: Any) -> None:
        self.configs.append(config)
        if config.planning.policy == self.fails:
            raise TrainingDivergedError("training diverged in round 3")
        value = 0.3 + 0.01 * config.run.seed
        names = ("final", "best", "constant", "user_mean", "client_alone")
        summary = {f"{kind}_{name}": value for kind in ("rmse", "f1") for name in names}
        with RunFolder.create(out, config, fingerprint="x") as folder:
            folder.write("summary.json", summary)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake()
    monkeypatch.setattr(runner, "execute", made.execute)
    return made


def test_for_real(call: Call) -> None:
    """Small, but with everything: training, planning, a data set that is not there."""
    done = call(
        *("--dataset", "demo", "--dataset", "csv:missing.csv", "--policy", "uniform,unlimited"),
        *("--seeds", "0", "--rounds", 2, "--set", "run.device=cpu", "--out", "grid"),
    )
    assert done.code == 1, done.err
    assert "4 cells\n1/4  demo gaussian uniform seed 0: RMSE 0." in done.out
    assert "left" in done.out
    assert "failed: csv:missing.csv gaussian uniform seed 0: " in done.out
    assert "Tables: grid/comparison.md, .csv, .json" in done.out
    assert (
        max(map(len, done.out.split("NDCG@10 and RMSE")[1].split("failed:")[0].splitlines())) <= 80
    )
    assert done.err == ""
    summary = json.loads(Path("grid/demo/none/unlimited/seed-0/summary.json").read_text())
    assert (summary["mechanism"], summary["rounds_run"]) == ("none", 2)
    again = call("--out", "grid", "--json")
    assert again.code == 1
    assert again.err == ""
    tree = json.loads(again.out)
    assert tree == json.loads(Path("grid/comparison.json").read_text())
    assert [entry["dataset"] for entry in tree["failed"]] == ["csv:missing.csv"] * 2
    figure = tree["rows"][1]["figures"]["rmse_final"]
    assert (tree["rows"][1]["policy"], figure["mean"]) == ("unlimited", summary["rmse_final"])


def test_flags_reach_every_cell(call: Call, fake: Fake) -> None:
    done = call(
        *("--dataset", "demo, synthetic", "--mechanism", "gaussian,laplace", "--policy", "bgt"),
        *("--seeds", "3-4", "--epsilon", 2, "--trust", "local", "--rounds", 7),
        *("--set", "server.learning_rate=0.5", "--preset", "paper", "--out", "g", "--quiet"),
    )
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("RMSE and F1")
    assert len(fake.configs) == 8
    assert {config.data.dataset for config in fake.configs} == {"demo", "synthetic"}
    for config in fake.configs:
        assert (config.preset, config.privacy.epsilon) == ("paper", 2.0)
        assert (config.privacy.trust, config.federation.rounds) == ("local", 7)
        assert config.server.learning_rate == 0.5


def test_a_folder_knows_what_was_asked(call: Call, fake: Fake) -> None:
    first = call("--policy", "bgt,adap", "--seeds", "0,1", "--out", "g", "--epsilon", "3")
    assert first.code == 0
    assert len(fake.configs) == 4
    fake.configs = []
    assert call("--out", "g").out.startswith("4 cells, 4 of them finished before")
    assert not fake.configs
    more = call("--out", "g", "--seeds", "0-2", "--baseline", "bgt")
    assert more.code == 0
    assert "Difference from bgt" in more.out
    assert [config.run.seed for config in fake.configs] == [2, 2]
    assert all(config.privacy.epsilon == 3.0 for config in fake.configs)
    other = call("--out", "g", "--epsilon", "4")
    assert other.code == 2
    assert "other settings (privacy.epsilon)" in other.err
    fake.configs = []
    assert call("--out", "g").out.startswith("6 cells, 6 of them finished before")


def test_failed_cells(call: Call, fake: Fake) -> None:
    fake.fails = "uniform"
    done = call("--policy", "bgt,uniform", "--seeds", "0-1", "--out", "g", "--json")
    assert done.code == 1
    tree = json.loads(done.out)
    assert [entry["error"] for entry in tree["failed"]] == ["training diverged in round 3"] * 2
    fake.fails = ""
    done = call("--out", "g", "--json")
    assert done.code == 0
    assert json.loads(done.out)["failed"] == []


def test_commas_in_paths(call: Call, fake: Fake) -> None:
    done = call("--dataset", "csv:a,b.csv", "--policy", "bgt", "--seeds", "0", "--out", "g")
    assert done.code == 0
    assert [config.data.dataset for config in fake.configs] == ["csv:a,b.csv"]
