"""Policies in training loops that they know nothing about: what is played, and who is better."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.loops import training
from benchmarks.loops.__main__ import main
from benchmarks.loops.play import POLICIES, Cell, Results, cells_of, play
from benchmarks.loops.table import table, verdict
from benchmarks.loops.training import LOOPS, missing


def row(policy: str, seed: int, loss: float, accuracy: float = 0.8) -> dict[str, Any]:
    reward = "loss" if policy == "bgt" else "none"
    figures = {"test_loss": loss, "mean_loss": loss, "accuracy": accuracy}
    return Cell("logistic", 0.5, seed, policy, reward)._asdict() | figures


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_learns_and_a_policy_spends_no_more_than_its_budget(name: str) -> None:
    if (why := missing(name)) is not None:
        pytest.skip(why)
    begins = LOOPS[name](60, 0, 8.0).test().loss
    for policy, reward in (("bgt", "loss"), ("bgt-last", "none"), ("uniform", "none")):
        found = play(Cell(name, 100.0, 0, policy, reward, clients=60, rounds=10))
        assert found["test_loss"] < begins
        assert 0.5 < found["spent"] <= 1 + 1e-6
        assert found["played"] == 10


@pytest.mark.parametrize("name", ["logistic", "federated"])
def test_uploads_lower_the_loss_and_no_one_moves_it_beyond_the_clip(name: str) -> None:
    loop = LOOPS[name](30, 1, 2.0)
    before, weights, generator = loop.train_loss(), loop.weights, np.random.default_rng(0)
    loop.train(1e-3, 0.0, generator)
    assert loop.train_loss() < before
    assert np.linalg.norm(loop.weights - weights) <= loop.rate * 1e-3 * (1 + 1e-9)


def test_gradients_of_the_logistic_loop_are_those_of_its_loss() -> None:
    loop = LOOPS["logistic"](40, 0, 2.0)
    loop.weights = np.linspace(-1, 1, len(loop.weights))
    mean, middle, step = loop.uploads().mean(axis=0), loop.weights, 1e-6
    for index in (0, 7):
        away = step * np.eye(len(middle))[index]
        losses = []
        for loop.weights in (middle + away, middle - away):
            losses.append(loop.train_loss())
        assert (losses[0] - losses[1]) / (2 * step) == pytest.approx(mean[index], rel=1e-4)


def test_the_same_cell_is_the_same_run() -> None:
    cell = Cell("logistic", 2.0, 3, "bgt", "noisy", clients=40, rounds=8)
    first, second = (play(cell) | {"seconds": 0} for _ in range(2))
    assert first == second


def test_only_the_planner_for_all_rounds_is_told_rewards() -> None:
    cells = cells_of(["logistic"], [1.0], [0], list(POLICIES))
    told = {(cell.policy, cell.reward) for cell in cells}
    rest = {("uniform", "none"), ("hong", "none"), ("adpml", "none"), ("bgt-last", "none")}
    assert told == {("bgt", "loss"), ("bgt", "noisy"), ("bgt", "none")} | rest


def test_a_verdict_needs_an_interval_without_0() -> None:
    even = [row("uniform", seed, 0.5 + 0.1 * seed) for seed in range(3)]
    above = [row("bgt", seed, 0.51 + 0.101 * seed, 0.7) for seed in range(3)]
    below = [row("bgt", seed, 0.49 + 0.101 * seed, 0.9 + 0.001 * seed) for seed in range(3)]
    mixed = [row("bgt", seed, 0.5 + 0.1 * seed + 0.01 * (seed - 1)) for seed in range(3)]
    for rows, said in ((above, "worse"), (below, "better"), (mixed, "same")):
        assert verdict(even + rows, "bgt", "loss", "test_loss") == said
    assert verdict(even + above, "bgt", "loss", "accuracy") == "worse"
    assert verdict(even + below, "bgt", "loss", "accuracy") == "better"
    assert "| logistic | 0.5 | uniform |  | 0.6000 |  |  |" in table(even + above)


def test_what_is_known_is_not_played_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "results.json"
    monkeypatch.setattr(training, "find_spec", lambda name: None)
    given = ["--seeds", "2", "--policies", "uniform,bgt", "--epsilon", "2"]
    given += ["--clients", "30", "--rounds", "4", "--out", str(out)]
    assert main(given) == 0
    said = capsys.readouterr()
    assert "network is left out: torch is not installed" in said.err
    assert "| federated | 2 | bgt | noisy |" in said.out
    cells = cells_of(["logistic", "federated"], [2.0], range(2), ["uniform", "bgt"], 30, 4)
    assert Results(out).missing(cells) == []
    before = out.read_bytes()
    assert main(given) == 0
    assert out.read_bytes() == before


def test_what_is_not_known_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for given, said in ((["--loops", "none"], "--loops"), (["--epsilon", "x"], "--epsilon")):
        with pytest.raises(SystemExit, match="2"):
            main(given)
        assert f"{said}: expected" in capsys.readouterr().err
