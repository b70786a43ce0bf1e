"""Folders that 0.2.0 wrote are kept as they were, and read on.

None of them is ever written anew: a version that cannot read one brings a migration, or refuses
it in a sentence, as those of 0.1 are refused.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgtplanner.errors import ConfigError, RunFolderError
from bgtplanner.published.model import load_model
from bgtplanner.report.page import render
from bgtplanner.runs.run import load, resume
from bgtplanner.runs.statistics import load_study
from bgtplanner.runs.study import Study, run_study
from command_line import Call

pytestmark = pytest.mark.usefixtures("compiled_once")

ASSETS = Path(__file__).parent / "assets"
RUN, STUDY = ASSETS / "run-0.2", ASSETS / "study-0.2"


def test_a_run_is_loaded_and_shown(command_line: Call, tmp_path: Path) -> None:
    result = load(RUN)
    assert result.summary == json.loads((RUN / "summary.json").read_text())
    assert len(result.rounds) == result.summary["rounds_run"]
    assert "replace-special" in render(RUN)
    assert command_line("export", RUN, "--out", tmp_path / "old.model").code == 0
    made = load_model(tmp_path / "old.model")
    with np.load(RUN / "checkpoint.npz") as arrays:
        kept = arrays["shared/items"]
    assert made.items == result.ratings.item_labels.tolist()
    assert np.array_equal(made.released[:, :3], kept[:, :3])
    assert "Not private" in made.guarantee["sentences"][0]
    wider = np.pad(result.ratings.features, ((0, 0), (0, 1)))
    other = replace(result.ratings, catalogue=replace(result.ratings.catalogue, features=wider,
                    names=(*result.ratings.catalogue.names, "more")))  # fmt: skip
    with pytest.raises(RunFolderError, match="not those it had"):
        _ = load(RUN, ratings=other).model


def test_an_interrupted_run_is_not_resumed(tmp_path: Path) -> None:
    """The state of its planner has another form: no version makes up what is not there."""
    folder = Path(shutil.copytree(RUN, tmp_path / "run"))
    (folder / "summary.json").unlink()
    with pytest.raises(RunFolderError, match=r"earlier release|not those it was started with"):
        resume(folder)


def test_a_run_of_a_former_policy_is_read_and_not_resumed(tmp_path: Path) -> None:
    cell = STUDY / "synthetic/gaussian/hindsight/seed-0"
    folder = Path(shutil.copytree(cell, tmp_path / "run"))
    assert "hindsight" in render(folder)
    assert load(folder).summary["policy"] == "hindsight"
    (folder / "summary.json").unlink()
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    with pytest.raises(RunFolderError, match=r"cannot be resumed; start a new run .*hindsight"):
        resume(folder)
    after = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert {name: after.get(name) for name in before} == before
    assert "ledger.sqlite" not in after


def test_the_figures_of_a_study_are_those_that_were_written() -> None:
    found = load_study(STUDY)
    assert len(found.outcomes) == len(found.study.cells()) == 6
    tree = json.loads(json.dumps(found.as_json()))
    written = json.loads((STUDY / "comparison.json").read_text())
    for name in ("baseline", "cells", "failed", "objective", "reported"):
        assert tree[name] == written[name]
    for kind in ("rows", "differences"):
        for new, old in zip(tree[kind], written[kind], strict=True):
            assert new["policy"] == old["policy"]
            assert {key: new["figures"][key] for key in old["figures"]} == old["figures"]


def test_a_study_with_a_former_policy_is_not_gone_on_with(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(STUDY, tmp_path / "study"))
    study = Study.read(folder)
    assert study is not None
    (folder / "synthetic/gaussian/hindsight/seed-0/summary.json").unlink()
    with pytest.raises(ConfigError, match="hindsight"):
        run_study(study, folder)


@pytest.mark.parametrize(
    ("asset", "name", "reader"),
    [(RUN, "config.toml", load), (RUN, "config.toml", render), (STUDY, "study.json", load_study)],
)
def test_what_0_1_has_written_is_refused(
    asset: Path, name: str, reader: Callable[[Path], Any], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(asset, tmp_path / "old"))
    text = (folder / name).read_text()
    (folder / name).write_text(text.replace('"0.2.0"', '"0.1.0"'))
    with pytest.raises(RunFolderError, match=r"another version.*0\.1\.0"):
        reader(folder)
