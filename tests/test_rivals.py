"""The comparison with rivals: which runs it has, and how the table is made of them."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.rivals.__main__ import main
from benchmarks.rivals.comparison import Cell, cells_of, chosen, measured, table


def row(model: str, task: str, seed: int, rmse: float, ndcg: float | None) -> dict[str, Any]:
    cell = Cell("demo", 3.0, seed, model, task)._asdict()
    return cell | {"rmse": rmse, "ndcg_at_10": ndcg, "seconds": 1.0}


def test_a_rival_has_a_run_for_each_task_on_the_same_seeds() -> None:
    cells = cells_of(["demo"], [1.0], [0, 1], ["ours", "als"])
    assert [(cell.model, cell.task, cell.seed) for cell in cells] == [
        ("ours", "both", 0),
        ("ours", "both", 1),
        ("als", "ratings", 0),
        ("als", "ratings", 1),
        ("als", "ranking", 0),
        ("als", "ranking", 1),
    ]


def test_the_table_takes_the_better_task_and_pairs_the_seeds() -> None:
    found = [row("ours", "both", seed, 0.18 + 0.01 * seed, 0.30) for seed in (0, 1)]
    found += [row("als", "ratings", seed, 0.19 + 0.01 * seed, 0.05) for seed in (0, 1)]
    found += [row("als", "ranking", seed, 0.21, 0.25) for seed in (0, 1)]
    lines = table(found).splitlines()
    assert lines[2] == "| demo | 3 | rmse | ours | 0.1850 |  |"
    assert lines[3] == "| demo | 3 | rmse | als | 0.1950 | +0.0100 (+0.0100 to +0.0100) |"
    assert lines[5].startswith("| demo | 3 | ndcg_at_10 | als | 0.25")
    assert lines[5].endswith("| +0.0500 (+0.0500 to +0.0500) |")


def test_figures_that_a_version_does_not_have_are_left_out() -> None:
    assert "ndcg" not in table([row("ours", "both", 0, 0.2, None)])


def test_settings_depend_on_clients_times_epsilon_only() -> None:
    assert chosen("als", "ranking", 900, 3.0) == chosen("als", "ranking", 2700, 1.0)
    assert chosen("als", "ranking", 6000, 10.0).learner.dim > 8
    assert chosen("cmf", "ratings", 900, 1.0).learner.dim == 0


def test_a_cell_is_run() -> None:
    found = measured(Cell("demo", 3.0, 0, "als", "ratings"))
    assert 0.1 < found["rmse"] < 0.25
    assert found["task"] == "ratings"


def test_bad_numbers_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--epsilon", "one"])
    assert "--epsilon, --seeds: expected numbers" in capsys.readouterr().err
