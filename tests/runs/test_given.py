"""Models and policies that are given in Python, by object, class or address."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgtplanner.errors import RunFolderError
from bgtplanner.models.factorization import Factorization
from bgtplanner.planning.schedules import Uniform
from bgtplanner.privacy.budget import Budget
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.loop import Observer
from bgtplanner.runs.run import load, resume, simulate

TINY = {"synthetic.clients": 12, "synthetic.items": 15, "synthetic.ratings_per_client": 8}
SHORT: dict[str, Any] = {"ratings": "synthetic", "rounds": 4, "seed": 1}


@dataclass(frozen=True)
class Level(Factorization):
    """A model of somebody's own."""

    shrinkage: float = 5.0


class Plain(Factorization):
    """The same, with something that no file can say."""

    def __init__(self, table: object) -> None:
        super().__init__()
        object.__setattr__(self, "table", table)


def test_by_address_with_options(tmp_path: Path) -> None:
    options = {"model.options.shrinkage": 2.0}
    address = f"{__name__}:Level"
    named = simulate(**SHORT, model=address, settings=TINY | options)
    held = simulate(**SHORT, model=Level(shrinkage=2.0), settings=TINY, out=tmp_path / "run")
    assert held.summary["rmse_final"] == named.summary["rmse_final"]
    config = RunFolder(tmp_path / "run").config()
    assert (config.model.name, config.model.options["shrinkage"]) == (address, 2.0)
    assert not RunFolder(tmp_path / "run").given  # the settings say it all
    again = load(tmp_path / "run")
    np.testing.assert_array_equal(again.predict([0, 1], [1, 2]), held.predict([0, 1], [1, 2]))


class Stopper(Observer):
    """Interrupts, as a second Ctrl-C does, after two rounds."""

    def round(self, record: Any, total: int) -> None:
        if record["round"] == 1:
            raise KeyboardInterrupt


def test_what_no_file_can_say_must_be_given_again(tmp_path: Path) -> None:
    learner, settings = Plain(object()), TINY | {"run.checkpoint_every": 1}
    whole = simulate(**SHORT, model=learner, settings=settings)
    given: dict[str, Any] = SHORT | {"model": learner, "settings": settings}
    with pytest.raises(KeyboardInterrupt):
        simulate(**given, out=tmp_path / "run", observer=Stopper())
    folder = RunFolder(tmp_path / "run")
    assert folder.given == ("model",)
    assert "model=..." in folder.resume_command
    with pytest.raises(RunFolderError, match=r"given in Python.*resume\(path, model=\.\.\.\)"):
        resume(tmp_path / "run")
    with pytest.raises(RunFolderError, match="another model"):
        resume(tmp_path / "run", model=Factorization())
    ended = resume(tmp_path / "run", model=learner)
    assert ended.summary["rmse_final"] == whole.summary["rmse_final"]
    assert load(tmp_path / "run").predict(0, 1) == ended.predict(0, 1)


def test_policies_by_name_class_and_object() -> None:
    made = Uniform(Budget(10.0, 1e-5), 12, rounds=4, clip=0.1, seed=1)
    found = [
        simulate(**SHORT, policy=policy, epsilon=10.0, settings=TINY).summary
        for policy in ("uniform", Uniform, made)
    ]
    assert len({summary["rmse_final"] for summary in found}) == 1
    assert {summary["policy"] for summary in found} == {"uniform"}
