"""`bgtplanner compare` and `bgtplanner sweep` as a user meets them."""

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
def compare(command_line: Call) -> Call:
    return functools.partial(command_line, "compare")


class Fake:
    """Stands for the runner: takes no time; runs of one policy fail."""

    def __init__(self) -> None:
        self.configs: list[Config] = []
        self.fails = ""

    def execute(self, config: Config, *, out: Path, **_: Any) -> None:
        self.configs.append(config)
        if config.planning.policy == self.fails:
            raise TrainingDivergedError("training diverged in round 3")
        value = 0.3 + 0.01 * config.run.seed
        names = ("final", "best", "served", "constant", "user_mean", "client_alone")
        summary = {f"{kind}_{name}": value for kind in ("rmse", "f1") for name in names}
        with RunFolder.create(out, config) as folder:
            folder.write("summary.json", summary)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake()
    monkeypatch.setattr(runner, "execute", made.execute)
    return made


def test_for_real(compare: Call) -> None:
    """Small, but with everything: training, planning, a data set that is not there."""
    done = compare(
        *("--dataset", "demo", "--dataset", "csv:missing.csv", "--policy", "uniform,unlimited"),
        *("--seeds", "0", "--rounds", 2, "--set", "run.device=cpu", "--out", "grid"),
    )
    assert done.code == 1, done.err
    assert "4 cells\n1/4  demo gaussian uniform seed 0: RMSE 0." in done.out
    assert "failed: csv:missing.csv gaussian uniform seed 0: " in done.out
    assert "Tables: grid/comparison.json" in done.out
    table = done.out.split("NDCG@10 and RMSE")[1].split("failed:")[0]
    assert max(map(len, table.splitlines())) <= 80
    assert done.err == ""
    summary = json.loads(Path("grid/demo/none/unlimited/seed-0/summary.json").read_text())
    assert (summary["mechanism"], summary["rounds_run"]) == ("none", 2)
    again = compare("--out", "grid", "--json")
    assert (again.code, again.err) == (1, "")
    tree = json.loads(again.out)
    assert tree == json.loads(Path("grid/comparison.json").read_text())
    assert [entry["dataset"] for entry in tree["failed"]] == ["csv:missing.csv"] * 2
    figure = tree["rows"][1]["figures"]["rmse_final"]
    assert (tree["rows"][1]["policy"], figure["mean"]) == ("unlimited", summary["rmse_final"])


def test_flags_reach_every_cell(compare: Call, fake: Fake) -> None:
    done = compare(
        *("--dataset", "demo, synthetic", "--dataset", "csv:a,b.csv"),
        *("--mechanism", "gaussian,laplace", "--policy", "bgt"),
        *("--seeds", "3-4", "--epsilon", 2, "--trust", "local", "--rounds", 7),
        *("--set", "server.learning_rate=0.5", "--preset", "paper", "--out", "g", "--quiet"),
    )
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("RMSE and F1")
    assert len(fake.configs) == 12
    datasets = {config.data.dataset for config in fake.configs}
    assert datasets == {"demo", "synthetic", "csv:a,b.csv"}
    for config in fake.configs:
        assert (config.preset, config.privacy.epsilon) == ("paper", 2.0)
        assert (config.privacy.trust, config.federation.rounds) == ("local", 7)
        assert config.server.learning_rate == 0.5


def test_a_sweep_goes_on_and_takes_more_values(command_line: Call, fake: Fake) -> None:
    sweep, fake.fails = functools.partial(command_line, "sweep"), "uniform"
    flags = ("--policy", "bgt,uniform", "--seeds", "0-1", "--out", "grid")
    failed = sweep("--vary", "privacy.epsilon=5", *flags, "--json")
    assert failed.code == 1
    errors = [entry["error"] for entry in json.loads(failed.out)["failed"]]
    assert errors == ["training diverged in round 3"] * 2
    assert Path("grid/privacy.epsilon=5/demo/gaussian/bgt/seed-0/summary.json").exists()
    assert len(fake.configs) == 4
    done = sweep("--vary", "privacy.epsilon=5,13", "--out", "grid")
    assert len(fake.configs) == 4 + 6, "what failed is tried again, what is finished is not"
    said = " ".join(done.out.split())
    assert "failed: demo gaussian uniform seed 0, privacy.epsilon=13: training" in said
    assert "Tables: grid/sweep.json" in said
    fake.fails = ""
    done = sweep("--out", "grid", "--json")
    rows = [row for row in json.loads(done.out)["rows"] if not row["reference"]]
    assert [(row["policy"], row["varied"]["privacy.epsilon"]) for row in rows] == [
        ("bgt", 5), ("uniform", 5), ("bgt", 13), ("uniform", 13),
    ]  # fmt: skip
