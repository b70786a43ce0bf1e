"""Studies that are carried out: what is run, what is not run again, what is left of failures."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import joblib
import pytest

from bgtplanner.errors import ConfigError, InterruptedRunError, StorageError, TrainingDivergedError
from bgtplanner.runs import run as runner
from bgtplanner.runs.compare import Objects, run_cells, run_study, shared_data
from bgtplanner.runs.config import Config, load_config
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.statistics import Outcome
from bgtplanner.runs.study import Cell, Study
from finished import timeless
from processes import wait_until

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

    def execute(self, config: Config, *, out: Path, observer: Any, **_: Any) -> None:
        policy = config.planning.policy
        self.ran.append((policy, config.run.seed))
        with RunFolder.create(out, config, fingerprint="x") as folder:
            if policy in self.fails:
                raise self.fails[policy]
            names = ("final", "best", "constant", "user_mean", "client_alone")
            scores = {f"{metric}_{name}": 0.3 for metric in ("rmse", "f1") for name in names}
            folder.write("summary.json", scores | {"seconds_total": 2000.0})
            if observer is not None:
                observer.round({"round": 0}, 1)

    def resume(self, path: Path, *, observer: Any, **_: Any) -> None:
        config = RunFolder(path).config()
        (path / "config.toml").unlink()
        self.execute(config, out=path, observer=observer)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake()
    monkeypatch.setattr(runner, "execute", made.execute)
    monkeypatch.setattr(runner, "resume", made.resume)
    return made


class Watcher:
    """An observer of a study, which asks to stop in one round of one cell."""

    def __init__(self, stop_in: tuple[int, int] | None = None) -> None:
        self.stop_in = stop_in
        self.started: tuple[int, int, float | None] | None = None
        self.finished: list[tuple[str, float | None]] = []

    def study_started(self, total: int, finished: int, left: float | None) -> None:
        self.started = (total, finished, left)

    def cell_round(self, cell: Cell, done: int, total: int) -> None:
        if self.stop_in == (len(self.finished), done):
            signal.raise_signal(signal.SIGTERM)

    def cell_finished(self, outcome: Outcome, left: float | None) -> None:
        self.finished.append((outcome.cell.policy, left))


def times(out: Path) -> dict[Path, int]:
    return {of: of.stat().st_mtime_ns for of in out.rglob("seed-*/*") if of.is_file()}


def figures(found: list[Outcome]) -> list[dict[str, Any]]:
    return [timeless(outcome.summary or {}) for outcome in found]


class TestRunning:
    def test_every_cell_is_a_run_folder(self, tmp_path: Path, fake: Fake) -> None:
        watcher = Watcher()
        found = run_study(ASKED, tmp_path / "grid", observer=watcher)
        assert [outcome.cell for outcome in found] == list(ASKED.cells())
        for outcome in found:
            assert outcome.summary is not None
            folder = RunFolder(tmp_path / "grid" / outcome.cell.place)
            assert folder.config() == ASKED.cells()[outcome.cell]
        assert watcher.started == (4, 0, None)
        assert [left for _, left in watcher.finished] == [6000.0, 4000.0, 2000.0, 0.0]

    def test_finished_cells_are_left_alone(self, tmp_path: Path, fake: Fake) -> None:
        run_study(ASKED, tmp_path)
        for folder in tmp_path.rglob("seed-*"):
            (folder / "rounds.jsonl").write_text("never read")
        before, fake.ran = times(tmp_path), []
        watcher = Watcher()
        found = run_study(
            Study(policies=("bgt", "uniform"), seeds=(0, 1, 2)), tmp_path, observer=watcher
        )
        assert fake.ran == [("bgt", 2), ("uniform", 2)]
        assert watcher.started == (6, 4, 4000.0)
        assert len(found) == 6
        assert before.items() <= times(tmp_path).items()

    @pytest.mark.parametrize(
        "changes", [{"settings": {"privacy.epsilon": 2.0}}, {"preset": "paper"}]
    )
    def test_other_settings_are_another_study(
        self, tmp_path: Path, fake: Fake, changes: dict[str, Any]
    ) -> None:
        run_study(ASKED, tmp_path)
        before = times(tmp_path)
        with pytest.raises(ConfigError, match=r"--out .*demo gaussian bgt seed 0 .*other set"):
            run_study(Study(policies=("bgt", "uniform"), seeds=(0, 1), **changes), tmp_path)
        assert times(tmp_path) == before
        assert Study.read(tmp_path) == ASKED

    def test_where_it_runs_is_no_other_setting(self, tmp_path: Path, fake: Fake) -> None:
        run_study(ASKED, tmp_path)
        fake.ran = []
        where = {"run.device": "cpu", "data.data_dir": str(tmp_path)}
        run_study(Study(policies=ASKED.policies, seeds=(0, 1), settings=where), tmp_path)
        assert not fake.ran

    def test_somebody_elses_folder(self, tmp_path: Path, fake: Fake) -> None:
        (tmp_path / "thesis.tex").touch()
        with pytest.raises(ConfigError, match=r"--out .*something other"):
            run_study(ASKED, tmp_path)
        with pytest.raises(ConfigError, match=r"--out .*cannot be used"):
            run_study(ASKED, tmp_path / "thesis.tex")
        with pytest.raises((ConfigError, StorageError)):
            run_study(ASKED, tmp_path / "thesis.tex" / "grid")
        assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]

    @pytest.mark.parametrize("jobs", [0, 1.5, None, "2"])
    def test_how_many_at_a_time(self, tmp_path: Path, jobs: Any) -> None:
        with pytest.raises(ConfigError, match="--jobs = "):
            run_study(ASKED, tmp_path / "grid", jobs=jobs)
        assert not (tmp_path / "grid").exists()

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

    @pytest.mark.parametrize("text", ["{", "[]", "{}", '{"rmse_final": null}'])
    def test_a_damaged_summary_is_a_failed_cell(
        self, tmp_path: Path, fake: Fake, text: str
    ) -> None:
        asked = Study(policies=("bgt", "uniform"), seeds=(0,))
        run_study(asked, tmp_path)
        (tmp_path / "demo/gaussian/bgt/seed-0/summary.json").write_text(text)
        first, second = run_study(asked, tmp_path)
        assert "summary.json" in str(first.error)
        assert second.error is None


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    """What comes of the small study if nothing goes wrong."""
    return run_study(SMALL, tmp_path_factory.mktemp("whole"))


class TestRealRuns:
    """What an interruption loses is at most a cell's last rounds, and nothing differs."""

    @pytest.mark.parametrize("at", [(0, 4), (1, 2)], ids=["between cells", "within a cell"])
    def test_interrupted(self, tmp_path: Path, whole: list[Outcome], at: tuple[int, int]) -> None:
        with pytest.raises(InterruptedRunError) as caught:
            run_study(SMALL, tmp_path, observer=Watcher(stop_in=at))
        assert "1 of 2 cells finished" in str(caught.value)
        assert f"bgtplanner compare --out {tmp_path}" in str(caught.value)
        before, watcher = times(tmp_path / "synthetic/gaussian/uniform"), Watcher()
        found = run_study(SMALL, tmp_path, observer=watcher)
        assert [policy for policy, _ in watcher.finished] == ["bgt"]
        assert times(tmp_path / "synthetic/gaussian/uniform") == before
        assert figures(found) == figures(whole)

    def test_in_other_processes(
        self, tmp_path: Path, whole: list[Outcome], no_data: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        datasets = ("synthetic", f"csv:{tmp_path}/missing.csv")
        asked = Study(datasets=datasets, policies=SMALL.policies, seeds=(0,), settings=TINY)
        handlers = signal.getsignal(signal.SIGINT)
        found = run_study(asked, tmp_path / "grid", jobs=2)
        assert figures(found[:2]) == figures(whole)
        assert all("missing.csv" in str(outcome.error) for outcome in found[2:])
        assert signal.getsignal(signal.SIGINT) is handlers
        assert not (tmp_path / "grid/.stop").exists()


class TestSideBySide:
    """With a backend that the caller chose, as a cluster is chosen."""

    @pytest.fixture(autouse=True)
    def _threads(self, monkeypatch: pytest.MonkeyPatch) -> Any:
        for name in ("NPROC", "TF_CPP_MIN_LOG_LEVEL", "XLA_PYTHON_CLIENT_PREALLOCATE"):
            monkeypatch.setenv(name, "3")  # put back afterwards
        with joblib.parallel_config("threading"):
            yield

    def test_all_cells_are_run(self, tmp_path: Path, fake: Fake) -> None:
        found = run_study(ASKED, tmp_path, jobs=2)
        assert all(outcome.summary for outcome in found)
        assert sorted(fake.ran) == [("bgt", 0), ("bgt", 1), ("uniform", 0), ("uniform", 1)]
        assert int(os.environ["NPROC"]) >= 1

    def test_a_process_that_dies_takes_only_the_cells_that_were_running(
        self, tmp_path: Path, fake: Fake
    ) -> None:
        def breaks(_: joblib.Parallel, tasks: Any) -> Any:
            patch.undo()
            next(tasks)
            yield from ()
            raise OSError("broken pool")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(joblib.Parallel, "__call__", breaks)
            found = run_study(ASKED, tmp_path, jobs=2)
        failed = [outcome for outcome in found if outcome.error is not None]
        assert [(one.cell.policy, one.cell.seed) for one in failed] == [("bgt", 0)]
        assert "its process died (OSError)" in str(failed[0].error)
        assert len(fake.ran) == 3

    def test_a_request_to_stop_reaches_every_cell(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[bool] = []

        def execute(config: Config, *, stop: Any, **_: Any) -> None:
            asked.append(stop())
            if len(asked) == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            wait_until(stop, "the request")
            raise InterruptedRunError("stopped")

        monkeypatch.setattr(runner, "execute", execute)
        with pytest.raises(InterruptedRunError, match="0 of 4 cells"):
            run_study(ASKED, tmp_path, jobs=2)
        assert asked[0] is False
        assert not (tmp_path / ".stop").exists()


class TestData:
    """Cells with the same data share them."""

    def of(self, **settings: Any) -> Config:
        return load_config(settings={"data.dataset": "synthetic", **TINY, **settings})

    def test_they_are_loaded_once_in_a_study(self) -> None:
        first = shared_data("a", self.of())
        others = {"planning.policy": "uniform", "model.name": "biases", "privacy.epsilon": 1.0}
        assert shared_data("a", self.of(**others)) is first
        for settings in ({"run.seed": 1}, {"federation.rounds": 5}, {"data.train_share": 0.5}):
            before = shared_data("a", self.of())
            assert shared_data("a", self.of(**settings)) is not before
        last = shared_data("a", self.of())
        assert shared_data("b", self.of()) is not last

    def test_nothing_is_kept_after_a_study(self, tmp_path: Path, fake: Fake) -> None:
        first = shared_data("a", self.of())
        list(run_cells(ASKED.cells(), tmp_path, objects=Objects()))
        assert shared_data("a", self.of()) is not first

    def test_it_comes_to_the_same(self) -> None:
        config = self.of(**{"planning.policy": "late"})
        shared_data("a", self.of())
        alone = runner.execute(config).summary
        shared = runner.execute(config, data=lambda config: shared_data("a", config)).summary
        assert timeless(shared) == timeless(alone)
