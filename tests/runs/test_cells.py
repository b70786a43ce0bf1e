"""Studies that are carried out: what is run, what is not run again, what is left of failures."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import joblib
import pytest

from bgtplanner.errors import ConfigError, InterruptedRunError, TrainingDivergedError
from bgtplanner.runs import run as runner
from bgtplanner.runs.config import Config
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.study import Outcome, Study, run_study
from finished import timeless

TINY = {
    "synthetic.clients": 20,
    "synthetic.items": 15,
    "synthetic.ratings_per_client": 8,
    "federation.rounds": 4,
    "run.device": "cpu",
}
ASKED = Study(policies=("bgt", "uniform"), seeds=(0, 1))
SMALL = Study(datasets=("synthetic",), policies=("uniform", "bgt"), seeds=(0,), settings=TINY)


class Fake:
    """Stands for the runner: quick, and does as it is told."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, int]] = []
        self.fails: dict[str, BaseException] = {}

    def execute(self, config: Config, *, out: Path, **_: Any) -> None:
        policy = config.planning.policy
        self.ran.append((policy, config.run.seed))
        with RunFolder.create(out, config) as folder:
            if policy in self.fails:
                raise self.fails[policy]
            names = ("final", "best", "constant", "user_mean", "client_alone")
            scores = {f"{metric}_{name}": 0.3 for metric in ("rmse", "f1") for name in names}
            folder.write("summary.json", scores | {"seconds_total": 2000.0})

    def resume(self, path: Path, **_: Any) -> None:
        config = RunFolder(path).config()
        (path / "config.toml").unlink()
        self.execute(config, out=path)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake()
    monkeypatch.setattr(runner, "execute", made.execute)
    monkeypatch.setattr(runner, "resume", made.resume)
    return made


def times(out: Path) -> dict[Path, int]:
    return {of: of.stat().st_mtime_ns for of in out.rglob("seed-*/*") if of.is_file()}


def figures(found: list[Outcome]) -> list[dict[str, Any]]:
    return [timeless(outcome.summary or {}) for outcome in found]


class TestRunning:
    def test_finished_cells_are_left_alone(self, tmp_path: Path, fake: Fake) -> None:
        run_study(ASKED, tmp_path)
        for folder in tmp_path.rglob("seed-*"):
            (folder / "rounds.jsonl").write_text("never read")
        before, fake.ran = times(tmp_path), []
        found = run_study(Study(policies=("bgt", "uniform"), seeds=(0, 1, 2)), tmp_path)
        assert fake.ran == [("bgt", 2), ("uniform", 2)]
        assert len(found) == 6
        assert before.items() <= times(tmp_path).items()

    def test_other_settings_are_another_study(self, tmp_path: Path, fake: Fake) -> None:
        run_study(ASKED, tmp_path)
        before = times(tmp_path)
        for changes in ({"settings": {"privacy.epsilon": 2.0}}, {"preset": "paper"}):
            with pytest.raises(ConfigError, match=r"--out .*demo gaussian bgt seed 0 .*other set"):
                run_study(replace(ASKED, **changes), tmp_path)
        assert times(tmp_path) == before
        assert Study.read(tmp_path) == ASKED
        where = {"run.device": "cpu", "data.data_dir": str(tmp_path)}
        run_study(replace(ASKED, settings=where), tmp_path)
        assert len(fake.ran) == 4, "where it runs is no other setting"

    def test_failed_cells_do_not_stop_the_others(self, tmp_path: Path, fake: Fake) -> None:
        fake.fails = {
            "bgt": TrainingDivergedError("training diverged in round 3"),
            "adap": RuntimeError("out\nof " + "memory " * 99),
        }
        asked = Study(policies=("bgt", "adap", "uniform"), seeds=(0, 1))
        found = {(one.cell.policy, one.cell.seed): one for one in run_study(asked, tmp_path)}
        assert found["bgt", 0].error == "training diverged in round 3"
        assert str(found["adap", 1].error).startswith("RuntimeError: out of memory")
        assert len(str(found["adap", 1].error)) <= 300
        assert found["uniform", 1].error is None
        fake.fails, fake.ran = {}, []
        assert all(outcome.summary for outcome in run_study(asked, tmp_path))
        assert sorted(fake.ran) == [("adap", 0), ("adap", 1), ("bgt", 0), ("bgt", 1)]

    def test_a_process_that_dies(
        self, tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def breaks(_: joblib.Parallel, tasks: Any) -> Any:
            run, arguments, options = next(tasks)
            yield run(*arguments, **options)
            raise OSError("broken pool")

        with monkeypatch.context() as patch:
            patch.setattr(joblib.Parallel, "__call__", breaks)
            with pytest.raises(InterruptedRunError, match=r"process died \(OSError\)"):
                run_study(ASKED, tmp_path, jobs=2)
        assert len(run_study(ASKED, tmp_path)) == 4
        assert len(fake.ran) == 4, "what was finished is not run again"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    """What comes of the small study if nothing goes wrong."""
    return run_study(SMALL, tmp_path_factory.mktemp("whole"))


class TestRealRuns:
    """What an interruption loses is at most a cell's last rounds, and nothing differs."""

    @pytest.mark.parametrize("within", [False, True], ids=["between cells", "within a cell"])
    def test_interrupted(
        self, tmp_path: Path, whole: list[Outcome], within: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def stop(outcome: Outcome | None, *_: Any) -> None:
            if outcome is not None and not within:
                signal.raise_signal(signal.SIGTERM)

        append = RunFolder.append_round

        def appended(folder: RunFolder, record: Any) -> None:
            append(folder, record)
            if within and folder.path.parent.name == "bgt" and record["round"] == 1:
                signal.raise_signal(signal.SIGTERM)

        with monkeypatch.context() as patch:
            patch.setattr(RunFolder, "append_round", appended)
            with pytest.raises(InterruptedRunError) as caught:
                run_study(SMALL, tmp_path, progress=stop)
        assert "1 of 2 cells finished" in str(caught.value)
        assert f"bgtplanner compare --out {tmp_path}" in str(caught.value)
        before = times(tmp_path / "synthetic/gaussian/uniform")
        rounds = tmp_path / "synthetic/gaussian/bgt/seed-0/rounds.jsonl"
        assert rounds.exists() is within
        found = run_study(SMALL, tmp_path)
        assert times(tmp_path / "synthetic/gaussian/uniform") == before
        assert figures(found) == figures(whole)

    def test_in_other_processes(self, tmp_path: Path, whole: list[Outcome], no_data: Path) -> None:
        datasets = ("synthetic", f"csv:{tmp_path}/missing.csv")
        asked = Study(datasets=datasets, policies=SMALL.policies, seeds=(0,), settings=TINY)
        handlers = signal.getsignal(signal.SIGINT)
        found = run_study(asked, tmp_path / "grid", jobs=2)
        assert figures(found[:2]) == figures(whole)
        assert all("missing.csv" in str(outcome.error) for outcome in found[2:])
        assert signal.getsignal(signal.SIGINT) is handlers
