"""Folders that earlier versions wrote are kept as they were, and read on.

``assets/run-of-0.1`` is older; ``assets/run-2026-11`` and ``assets/study-2026-11`` were written
when metrics had become a registry. None of them is ever written anew: a version that cannot read
one brings a migration, or refuses it in a sentence.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from bgtplanner.errors import ConfigError, RunFolderError
from bgtplanner.report.page import render
from bgtplanner.runs.compare import run_study
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.prepared import split_of
from bgtplanner.runs.run import load, resume
from bgtplanner.runs.statistics import load_study
from bgtplanner.runs.study import Study
from command_line import Call

pytestmark = pytest.mark.usefixtures("compiled_once")

ASSETS = Path(__file__).parent / "assets"
RUN, STUDY = ASSETS / "run-2026-11", ASSETS / "study-2026-11"


class TestRun:
    def test_it_is_loaded(self, tmp_path: Path) -> None:
        """What a server remembers has grown since, but only training needs it."""
        result = load(RUN)
        written = json.loads((RUN / "summary.json").read_text())
        assert {name: result.summary[name] for name in written} == written
        assert result.summary["neighbours"] == "replace-one"  # the only one there was
        user = result.ratings.user_labels[0]
        split = split_of(RunFolder(RUN).config(), result.ratings)
        predicted = result.simulation.predict(split.test.user, split.test.item)
        error = np.sqrt(np.mean((np.asarray(predicted) - split.test.value) ** 2))
        assert error == pytest.approx(written["rmse_final"], rel=1e-4)
        assert len(result.recommend(user, top=3)) <= 3
        with np.load(result.export(tmp_path / "model.npz")) as stored:
            assert stored["items"].shape[0] == result.ratings.n_items

    def test_it_is_not_resumed(self, tmp_path: Path) -> None:
        """No version makes up what is not there."""
        folder = Path(shutil.copytree(RUN, tmp_path / "run"))
        (folder / "summary.json").unlink()
        with pytest.raises(RunFolderError, match=r"'memory/clients' is missing .*version"):
            resume(folder)

    def test_one_of_a_former_policy_is_read_and_not_resumed(
        self, tmp_path: Path, command_line: Call
    ) -> None:
        folder = Path(shutil.copytree(ASSETS / "run-of-0.1", tmp_path / "run"))
        assert "patient" in render(folder)
        assert load(folder).summary["policy"] == "patient"
        (folder / "summary.json").unlink()
        before = {file.name: file.read_bytes() for file in folder.iterdir()}
        done = command_line("resume", str(folder))
        assert done.code == 2
        assert f"{folder}: cannot be resumed; start a new run" in " ".join(done.err.split())
        assert "bgt with --objective last, or the schedule late" in " ".join(done.err.split())
        after = {file.name: file.read_bytes() for file in folder.iterdir()}
        assert {name: after.get(name) for name in before} == before
        assert "ledger.sqlite" not in after


class TestStudy:
    def test_its_figures_are_those_that_were_written(self) -> None:
        found = load_study(STUDY)
        assert len(found.outcomes) == len(found.study.cells()) == 6
        tree = json.loads(json.dumps(found.as_json()))
        written = json.loads((STUDY / "comparison.json").read_text())
        assert tree["objective"] == "last", "what was planned for then"
        assert tree["reported"] == ["rmse_final"], "F1 is for the paper"
        for name in ("baseline", "cells", "failed"):
            assert tree[name] == written[name]
        for kind in ("rows", "differences"):  # later versions say more of each
            for new, old in zip(tree[kind], written[kind], strict=True):
                figures = old.pop("figures")
                old.pop("paper", None)
                assert {key: new["figures"][key] for key in figures} == figures
                assert {key: new[key] for key in old} == old

    def test_it_is_not_gone_on_with(self, tmp_path: Path) -> None:
        """Its cells would be trained by another model."""
        folder = Path(shutil.copytree(STUDY, tmp_path / "study"))
        study = Study.read(folder)
        assert study is not None
        assert study.settings["privacy.neighbours"] == "replace-one"  # the only one there was
        with pytest.raises(ConfigError, match=r"other settings \(model.name\)"):
            run_study(study, folder)
