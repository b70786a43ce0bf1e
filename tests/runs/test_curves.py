"""Means over seeds, round by round."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from bgtplanner.runs.execute import read_study
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.statistics import mean_curves
from bgtplanner.runs.study import Study
from made_runs import make_study

ASKED = Study(policies=("uniform", "unlimited"), seeds=(0, 1), settings={"federation.rounds": 6})


def test_means(tmp_path: Path) -> None:
    make_study(tmp_path, ASKED)
    found = mean_curves(tmp_path, read_study(ASKED, tmp_path))
    uniform, unlimited = found["demo", "gaussian", "uniform"], found["demo", "none", "unlimited"]
    assert (uniform.seeds, len(uniform.scores["rmse"]), len(unlimited.left)) == (2, 6, 0)
    seeds = [RunFolder(tmp_path / f"demo/gaussian/uniform/seed-{n}").rounds() for n in (0, 1)]
    mean = np.mean([[record["rmse"] for record in run] for run in seeds], axis=0)
    np.testing.assert_allclose(uniform.scores["rmse"], mean)
    np.testing.assert_allclose(uniform.left, 1 - np.arange(1, 7) / 6, atol=1e-9)


def test_only_rounds_that_all_have(tmp_path: Path) -> None:
    make_study(tmp_path, ASKED)
    rounds = tmp_path / "demo/gaussian/uniform/seed-1/rounds.jsonl"
    rounds.write_text("".join(rounds.read_text().splitlines(keepends=True)[:4]))
    found = mean_curves(tmp_path, read_study(ASKED, tmp_path))
    assert len(found["demo", "gaussian", "uniform"].scores["rmse"]) == 4


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    make_study(tmp_path, ASKED)
    for seed, text in ((0, "no json\n"), (1, '{"round": 0}\n')):
        (tmp_path / f"demo/gaussian/uniform/seed-{seed}/rounds.jsonl").write_text(text)
    assert list(mean_curves(tmp_path, read_study(ASKED, tmp_path))) == [
        ("demo", "none", "unlimited")
    ]


def test_cells_that_are_not_done(tmp_path: Path) -> None:
    make_study(tmp_path, ASKED, leave_out=3)
    assert len(read_study(ASKED, tmp_path)) == 1
    before = sorted(tmp_path.rglob("*"))
    read_study(ASKED, tmp_path)
    assert sorted(tmp_path.rglob("*")) == before
