"""Studies that are carried out: what is run, what is not run again, what is left of failures."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

import compiled
from bgtplanner.errors import (
    ConfigError,
    InterruptedRunError,
    MissingExtraError,
    StorageError,
    TrainingDivergedError,
)
from bgtplanner.paper.table2 import NAMES, published
from bgtplanner.runs import cells as cells_module
from bgtplanner.runs import run as runner
from bgtplanner.runs.cells import Cell, Outcome, _CellView, check_backend
from bgtplanner.runs.config import Config, load_config
from bgtplanner.runs.execute import _Clock, run_study
from bgtplanner.runs.folder import RunFolder, write_whole
from bgtplanner.runs.statistics import estimate, summed_up
from bgtplanner.runs.study import Study
from processes import wait_until

TINY = {
    "synthetic.clients": 20,
    "synthetic.items": 15,
    "synthetic.ratings_per_client": 8,
    "federation.rounds": 4,
    "run.device": "cpu",
}


def request_of(**changes: Any) -> Study:
    given: dict[str, Any] = {"policies": ("bgt", "uniform"), "seeds": (0, 1)} | changes
    return Study(**given)


def summary_of(cell: Cell, shift: float = 0.0) -> dict[str, Any]:
    value = 0.3 + 0.01 * cell.seed + 0.001 * len(cell.policy) + shift
    names = ("constant", "user_mean", "client_alone")
    return {
        "rmse_final": value + 0.01,
        "rmse_best": value,
        "f1_final": 0.6,
        "f1_best": 0.6 + 0.001 * cell.seed**2,
        **{f"rmse_{name}": 0.5 + 0.01 * cell.seed for name in names},
        **{f"f1_{name}": 0.5 for name in names},
        "seconds_total": 2000.0,  # longer than any of these takes
    }


class Fake:
    """Stands for the runner: quick, and does as it is told."""

    def __init__(self) -> None:
        self.ran: list[tuple[str, int]] = []
        self.fails: dict[str, Exception] = {}

    def execute(self, config: Config, *, out: Path, observer: Any, **_: Any) -> None:
        policy = config.planning.policy
        self.ran.append((policy, config.run.seed))
        with RunFolder.create(out, config, fingerprint="x") as folder:
            if policy in self.fails:
                raise self.fails[policy]
            cell = Cell(
                dataset=config.data.dataset,
                mechanism=config.privacy.mechanism,
                policy=policy,
                seed=config.run.seed,
            )
            folder.write_summary(summary_of(cell))
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
    """An observer that raises when its time has come."""

    def __init__(self, after_cells: int | None = None, in_round: tuple[int, int] | None = None):
        self.after_cells, self.in_round = after_cells, in_round
        self.started: list[tuple[int, int, float | None]] = []
        self.finished: list[tuple[Outcome, float | None]] = []
        self.interrupt = False

    def study_started(self, total: int, finished: int, left: float | None) -> None:
        self.started.append((total, finished, left))

    def cell_round(self, cell: Cell, done: int, total: int) -> None:
        if self.in_round == (len(self.finished), done):
            if self.interrupt:
                signal.raise_signal(signal.SIGINT)
            else:
                raise RuntimeError("the power went out")

    def cell_finished(self, outcome: Outcome, left: float | None) -> None:
        self.finished.append((outcome, left))
        if len(self.finished) == self.after_cells:
            raise RuntimeError("the power went out")


def times(out: Path) -> dict[str, int]:
    return {
        str(path.relative_to(out)): path.stat().st_mtime_ns
        for path in out.rglob("*")
        if path.is_file() and "seed-" in str(path)
    }


class TestNames:
    def test_places(self) -> None:
        cell = Cell(dataset="ml-100k", mechanism="gaussian", policy="two-phase", seed=3)
        assert cell.place == Path("ml-100k/gaussian/two-phase/seed-3")
        names = ["csv:a/b.csv", "csv:a-b.csv", "csv:../../etc", "csv:" + "x" * 300, ".."]
        places = {
            Cell(dataset=name, mechanism="none", policy="unlimited", seed=0).place
            for name in names
        }
        assert len(places) == len(names)
        for place in places:
            assert len(place.parts) == 4
            assert ".." not in place.parts
            assert max(map(len, place.parts)) < 60


class TestRunning:
    def test_every_cell_is_a_run_folder(self, tmp_path: Path, fake: Fake) -> None:
        watcher = Watcher()
        found = run_study(request_of(), tmp_path / "grid", observer=watcher)
        assert [outcome.cell for outcome in found] == list(request_of().cells())
        assert all(outcome.summary and outcome.error is None for outcome in found)
        for outcome in found:
            folder = RunFolder(tmp_path / "grid" / outcome.cell.place)
            assert folder.config() == request_of().cells()[outcome.cell]
        assert watcher.started == [(4, 0, None)]
        lefts = [left for _, left in watcher.finished]
        assert lefts == [6000.0, 4000.0, 2000.0, 0.0]

    def test_finished_cells_are_left_alone(self, tmp_path: Path, fake: Fake) -> None:
        run_study(request_of(), tmp_path)
        for name in ("rounds.jsonl", "checkpoint.npz", "ledger.sqlite"):
            for folder in tmp_path.rglob("seed-*"):
                (folder / name).write_text("never read")
        before, fake.ran = times(tmp_path), []
        watcher = Watcher()
        found = run_study(request_of(seeds=(0, 1, 2)), tmp_path, observer=watcher)
        assert fake.ran == [("bgt", 2), ("uniform", 2)]
        assert watcher.started == [(6, 4, 4000.0)]
        assert len(found) == 6
        after = times(tmp_path)
        assert {name: after[name] for name in before} == before

    def test_other_settings_are_another_grid(self, tmp_path: Path, fake: Fake) -> None:
        run_study(request_of(), tmp_path)
        before, fake.ran = times(tmp_path), []
        for changes in ({"settings": {"privacy.epsilon": 2.0}}, {"preset": "paper"}):
            with pytest.raises(ConfigError, match=r"--out .*demo gaussian bgt seed 0 .*other set"):
                run_study(request_of(**changes), tmp_path)
        assert not fake.ran
        assert times(tmp_path) == before
        assert Study.read(tmp_path) == request_of()

    def test_where_it_runs_is_no_other_setting(self, tmp_path: Path, fake: Fake) -> None:
        run_study(request_of(), tmp_path)
        fake.ran = []
        run_study(
            request_of(settings={"run.device": "cpu", "data.data_dir": str(tmp_path)}), tmp_path
        )
        assert not fake.ran

    def test_somebody_elses_folder(self, tmp_path: Path, fake: Fake) -> None:
        (tmp_path / "thesis.tex").touch()
        with pytest.raises(ConfigError, match=r"--out .*something other"):
            run_study(request_of(), tmp_path)
        with pytest.raises(ConfigError, match=r"--out .*cannot be used"):
            run_study(request_of(), tmp_path / "thesis.tex")
        with pytest.raises((ConfigError, StorageError)):
            run_study(request_of(), tmp_path / "thesis.tex" / "grid")
        assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]

    def test_a_folder_that_was_barely_begun(self, tmp_path: Path, fake: Fake) -> None:
        run_study(request_of(seeds=(0,)), tmp_path)
        begun = tmp_path / "demo/gaussian/bgt/seed-1"
        begun.mkdir()
        (begun / ".lock").touch()
        assert all(outcome.summary for outcome in run_study(request_of(), tmp_path))

    def test_failed_cells_do_not_stop_the_others(self, tmp_path: Path, fake: Fake) -> None:
        fake.fails = {
            "bgt": TrainingDivergedError("training diverged in round 3"),
            "adap": RuntimeError("out\nof " + "memory " * 99),
        }
        request = request_of(policies=("bgt", "adap", "uniform"))
        found = {(o.cell.policy, o.cell.seed): o for o in run_study(request, tmp_path)}
        assert len(found) == 6
        assert found["bgt", 0].error == "training diverged in round 3"
        assert str(found["adap", 1].error).startswith("RuntimeError: out of memory")
        assert len(str(found["adap", 1].error)) <= 300
        assert found["uniform", 1].error is None
        fake.fails, fake.ran = {}, []
        assert all(outcome.summary for outcome in run_study(request, tmp_path))
        assert sorted(fake.ran) == [("adap", 0), ("adap", 1), ("bgt", 0), ("bgt", 1)]

    @pytest.mark.parametrize("text", ["{", "[]", "{}", '{"rmse_final": null}', '{"f1_best": 1}'])
    def test_damaged_summary_is_a_failed_cell(self, tmp_path: Path, fake: Fake, text: str) -> None:
        run_study(request_of(seeds=(0,)), tmp_path)
        (tmp_path / "demo/gaussian/bgt/seed-0/summary.json").write_text(text)
        first, second = run_study(request_of(seeds=(0,)), tmp_path)
        assert "summary.json" in str(first.error)
        assert second.error is None

    @pytest.mark.parametrize(
        ("changes", "message"),
        [({"jobs": 0}, "--jobs = 0"), ({"backend": "mpi"}, "--backend = 'mpi'")],
    )
    def test_how_to_run(self, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            run_study(request_of(), tmp_path / "grid", **changes)
        assert not (tmp_path / "grid").exists()

    def test_disk_errors(self, tmp_path: Path) -> None:
        (tmp_path / "folder.json").mkdir()
        with pytest.raises(StorageError, match=r"folder\.json"):
            write_whole(tmp_path / "folder.json", "x")
        assert [path.name for path in tmp_path.iterdir()] == ["folder.json"]


SMALL = Study(datasets=("synthetic",), policies=("uniform", "bgt"), seeds=(0,), settings=TINY)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    """What comes of the small grid when nothing goes wrong."""
    return run_study(SMALL, tmp_path_factory.mktemp("whole"))


class TestInterruption:
    """With real runs: what is lost is at most a cell's last rounds, and nothing differs."""

    @staticmethod
    def figures(found: list[Outcome]) -> list[dict[str, Any]]:
        own = ("seconds", "ledger_head")  # of this very run
        return [
            {k: v for k, v in (outcome.summary or {}).items() if not k.startswith(own)}
            for outcome in found
        ]

    def test_between_cells(self, tmp_path: Path, whole: list[Outcome]) -> None:
        with pytest.raises(RuntimeError, match="the power went out"):
            run_study(SMALL, tmp_path, observer=Watcher(after_cells=1))
        before = times(tmp_path)
        assert sum(name.endswith("summary.json") for name in before) == 1
        watcher = Watcher()
        found = run_study(SMALL, tmp_path, observer=watcher)
        after = times(tmp_path)
        assert {name: after[name] for name in before} == before
        assert [outcome.cell.policy for outcome, _ in watcher.finished] == ["bgt"]
        assert self.figures(found) == self.figures(whole)

    @pytest.mark.usefixtures("ctrl_c")
    @pytest.mark.parametrize("interrupt", [False, True], ids=["crash", "ctrl-c"])
    def test_within_a_cell(
        self,
        tmp_path: Path,
        whole: list[Outcome],
        interrupt: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        watcher = Watcher(in_round=(1, 2))
        watcher.interrupt = interrupt
        kind: type[Exception] = InterruptedRunError if interrupt else RuntimeError
        with pytest.raises(kind) as caught:
            run_study(SMALL, tmp_path, observer=watcher)
        if interrupt:
            assert "1 of 2 cells finished" in str(caught.value)
            assert f"bgtplanner compare --out {tmp_path}" in str(caught.value)
        assert len(watcher.finished) == 1
        before = times(tmp_path / "synthetic/gaussian/uniform")
        resumed: list[Path] = []
        real = runner.resume

        def spy(path: Path, **options: Any) -> Any:
            resumed.append(path)
            return real(path, **options)

        monkeypatch.setattr(runner, "resume", spy)
        monkeypatch.delattr(runner, "execute")
        found = run_study(SMALL, tmp_path)
        assert resumed == [tmp_path / "synthetic/gaussian/bgt/seed-0"]
        assert times(tmp_path / "synthetic/gaussian/uniform") == before
        assert self.figures(found) == self.figures(whole)

    def test_in_other_processes(
        self,
        tmp_path: Path,
        whole: list[Outcome],
        no_data: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        for name, value in compiled.quick_environment().items():  # to the bit: the same programs
            monkeypatch.setenv(name, value)
        request = Study(
            datasets=("synthetic", f"csv:{tmp_path}/missing.csv"),
            policies=("uniform", "bgt"),
            seeds=(0,),
            settings=TINY,
        )
        handlers = signal.getsignal(signal.SIGINT)
        found = run_study(request, tmp_path / "grid", jobs=2)
        assert self.figures(found[:2]) == self.figures(whole)
        assert all("missing.csv" in str(outcome.error) for outcome in found[2:])
        assert signal.getsignal(signal.SIGINT) is handlers
        assert not (tmp_path / "grid/.stop").exists()


class TestSideBySide:
    def results(self, monkeypatch: pytest.MonkeyPatch, *steps: int) -> list[list[Any]]:
        """A pool that takes so many cells at a time, and breaks when the first of them is done."""
        taken: list[list[Any]] = []

        def results(tasks: Iterator[Any], jobs: int) -> Iterator[list[Outcome]]:
            number = steps[len(taken)] if len(taken) < len(steps) else jobs
            batch = [next(tasks) for _ in range(number)]
            taken.append([cell for task in batch for cell in task[1][0]])
            yield [Outcome(cell=taken[-1][0], summary=summary_of(taken[-1][0]))]
            raise MemoryError

        monkeypatch.setattr(cells_module, "_results", results)
        return taken

    def test_a_dying_process_takes_only_its_pool(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        taken = self.results(monkeypatch, 2, 2)
        found = run_study(request_of(), tmp_path, jobs=2)
        assert [len(batch) for batch in taken] == [2, 2]
        assert [outcome.error is None for outcome in found] == [True, False, True, False]
        assert "its process died (MemoryError)" in str(found[1].error)

    def test_a_pool_that_does_not_start(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def results(tasks: Iterator[Any], jobs: int) -> Iterator[list[Outcome]]:
            raise OSError("no more processes")
            yield

        monkeypatch.setattr(cells_module, "_results", results)
        with pytest.raises(OSError, match="no more processes"):
            run_study(request_of(), tmp_path, jobs=2)
        assert not (tmp_path / ".stop").exists()

    def test_stop_is_passed_on(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def results(tasks: Iterator[Any], jobs: int) -> Iterator[list[Outcome]]:
            [cell] = next(tasks)[1][0]
            signal.raise_signal(signal.SIGTERM)
            wait_until((tmp_path / ".stop").exists, "the flag")
            yield [Outcome(cell=cell, interrupted=True)]
            assert next(tasks, None) is None
            raise OSError("broken pool")

        monkeypatch.setattr(cells_module, "_results", results)
        with pytest.raises(InterruptedRunError, match="0 of 4 cells"):
            run_study(request_of(), tmp_path, jobs=2)
        assert not (tmp_path / ".stop").exists()

    def test_one_cell_of_a_wave_stops_all_of_it(self, tmp_path: Path) -> None:
        cell = Cell(dataset="demo", mechanism="none", policy="unlimited", seed=0)
        view, flag = _CellView(cell, flag=tmp_path / ".stop"), threading.Event()
        view.stop = flag
        view.round({"round": 0}, 3)
        assert not flag.is_set()
        (tmp_path / ".stop").touch()
        view.round({"round": 1}, 3)
        assert flag.is_set()

    def test_a_cell_sees_the_stop_once(self, tmp_path: Path) -> None:
        cell = Cell(dataset="demo", mechanism="none", policy="unlimited", seed=0)
        view = _CellView(cell, flag=tmp_path / ".stop")
        seen: list[int] = []
        old = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
        try:
            view.round({"round": 0}, 3)
            (tmp_path / ".stop").touch()
            view.round({"round": 1}, 3)
            view.round({"round": 2}, 3)
        finally:
            signal.signal(signal.SIGTERM, old)
        assert seen == [signal.SIGTERM]

    def test_in_a_thread_it_raises(self, tmp_path: Path) -> None:
        cell = Cell(dataset="demo", mechanism="none", policy="unlimited", seed=0)
        view = _CellView(cell, flag=tmp_path)
        caught: list[BaseException] = []

        def work() -> None:
            try:
                view.round({"round": 0}, 3)
            except InterruptedRunError as error:
                caught.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert len(caught) == 1

    def test_batches_where_a_backend_knows_no_generator(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import joblib

        real = joblib.Parallel

        def parallel(**options: Any) -> Any:
            if "return_as" in options:
                raise ValueError("does not support return_as")
            return real(**options, backend="threading", n_jobs=2)

        monkeypatch.setattr(joblib, "Parallel", parallel)
        tasks = (joblib.delayed(math.sqrt)(number) for number in range(5))
        assert list(cells_module._results(tasks, 2)) == [math.sqrt(n) for n in range(5)]

    @pytest.mark.parametrize(
        ("backend", "message"),
        [("ray", "--backend = 'ray': .*pip install ray"), ("dask", r"'dask\[distributed\]'")],
    )
    def test_backends_that_are_not_installed(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, backend: str, message: str
    ) -> None:
        real = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: real(name) if name == "joblib" else None
        )
        with pytest.raises(ConfigError, match=message):
            run_study(request_of(), tmp_path / "grid", backend=backend)
        assert not (tmp_path / "grid").exists()

    def test_without_joblib(self, monkeypatch: pytest.MonkeyPatch) -> None:
        check_backend("loky")
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(MissingExtraError, match=r"--jobs needs .*bgtplanner\[sim\]"):
            check_backend("loky")

    @pytest.mark.parametrize("address", [None, "tcp://somewhere"])
    def test_clusters(self, monkeypatch: pytest.MonkeyPatch, address: str | None) -> None:
        seen: list[Any] = []

        class Module:
            config: Mapping[str, Any] = {"scheduler-address": address}

            def register_ray(self) -> None:
                seen.append("ray")

            def Client(self, **options: Any) -> Any:
                seen.append(options)
                return threading.Lock()

        monkeypatch.setattr(cells_module.importlib, "import_module", lambda name: Module())
        for backend in ("ray", "dask", "loky"):
            with cells_module._cluster(backend, 3):
                pass
        local = {} if address else {"n_workers": 3, "threads_per_worker": 1}
        assert seen == ["ray", local]


class TestData:
    """Cells with the same data share them; no other process is asked twice either."""

    def of(self, **settings: Any) -> Config:
        return load_config(settings={"data.dataset": "synthetic", **TINY, **settings})

    def test_they_are_loaded_once(self) -> None:
        latest = cells_module.LatestData()
        first = latest.of(self.of())
        others = {"planning.policy": "uniform", "model.name": "biases", "privacy.epsilon": 1.0}
        assert latest.of(self.of(**others)) is first
        for settings in ({"run.seed": 1}, {"federation.rounds": 5}, {"data.train_share": 0.5}):
            before = latest.of(self.of())
            assert latest.of(self.of(**settings)) is not before

    def test_it_comes_to_the_same(self) -> None:
        latest, own = (
            cells_module.LatestData(),
            ("seconds_total", "seconds_per_round", "ledger_head"),
        )
        for policy in ("uniform", "late"):
            config = self.of(**{"planning.policy": policy})
            found = [runner.execute(config, data=data).summary for data in (None, latest.of)]
            alone, shared = ({**summary, **dict.fromkeys(own)} for summary in found)
            assert shared == alone

    def test_a_later_study_reads_them_again(self, tmp_path: Path) -> None:
        study, seen = request_of(settings=TINY, datasets=("synthetic",)), []
        cell, config = next(iter(study.cells().items()))
        for number, token in enumerate("aab"):
            place = tmp_path / str(number)
            stop, none = tmp_path / ".stop", cells_module.Objects()
            cells_module._run_elsewhere({cell: config}, place, stop, 1, token, none)
            seen.append(cells_module._data_of_studies[token].of(config))
        assert seen[0] is seen[1]
        assert seen[1] is not seen[2]
        assert list(cells_module._data_of_studies) == ["b"]

    def test_lists_can_be_left_out(self) -> None:
        found = runner.execute(self.of(), lists=False)
        assert "ndcg_at_10" not in found.summary
        assert not any("ndcg_at_10" in record for record in found.rounds)
        assert found.summary["rmse_final"] == runner.execute(self.of()).summary["rmse_final"]


def test_workers_take_their_share_of_the_cores(
    tmp_path: Path, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "7")  # put back afterwards
    cell, config = next(iter(request_of().cells().items()))
    place, stop, none = tmp_path / "x", tmp_path / ".stop", cells_module.Objects()
    [outcome] = cells_module._run_elsewhere({cell: config}, place, stop, 3, "a", none)
    assert outcome.summary
    assert (os.environ["NPROC"], os.environ["OMP_NUM_THREADS"]) == ("3", "3")


class TestClock:
    def test_by_data_set_and_side_by_side(self) -> None:
        cells = [
            Cell(dataset=name, mechanism="none", policy="unlimited", seed=seed)
            for seed in (0, 1)
            for name in ("a", "b")
        ]
        clock = _Clock(cells, 1, [])
        assert clock.left() is None
        clock.finished(Outcome(cell=cells[0], summary={}, seconds=10.0))
        assert clock.left() == 30.0
        clock.finished(Outcome(cell=cells[1], summary={"seconds_total": 50.0}, seconds=1.0))
        assert clock.left() == 60.0
        clock.finished(Outcome(cell=cells[2], error="x", seconds=1.0))
        assert clock.left() == 50.0
        two = _Clock(cells[:2], 8, [Outcome(cell=cells[2], summary={"seconds_total": 5})])
        assert two.left() == 5.0


class TestStatistics:
    @pytest.mark.parametrize("number", [2, 3, 5, 30])
    def test_estimate_agrees_with_scipy(self, number: int) -> None:
        values = np.random.default_rng(number).normal(0.3, 0.02, number)
        found = estimate(values.tolist())
        assert found is not None
        interval = scipy.stats.ttest_1samp(values, 0).confidence_interval(0.95)
        assert found.mean == pytest.approx(values.mean(), rel=1e-12)
        assert found.std == pytest.approx(values.std(ddof=1), rel=1e-12)
        assert (found.low, found.high) == pytest.approx(tuple(interval), rel=1e-12)
        assert found.half == pytest.approx((interval.high - interval.low) / 2)

    def test_few_values(self) -> None:
        assert estimate([]) is None
        one = estimate([0.5])
        assert one is not None
        assert (one.seeds, one.mean, one.std, one.low, one.half) == (1, 0.5, None, None, None)
        same = estimate([0.5, 0.5])
        assert same is not None
        assert (same.std, same.low, same.high) == (0, 0.5, 0.5)

    def outcomes(self, request: Study) -> tuple[list[Outcome], dict[Any, float]]:
        rng = np.random.default_rng(7)
        drawn = {cell: float(rng.normal(0, 0.02)) for cell in request.cells()}
        found = [
            Outcome(cell=cell, summary=summary_of(cell, shift)) for cell, shift in drawn.items()
        ]
        values = {
            (cell.mechanism, cell.policy, cell.seed): summary_of(cell, shift)["rmse_best"]
            for cell, shift in drawn.items()
        }
        return found, values

    def test_paired_differences_agree_with_scipy(self) -> None:
        request = request_of(
            policies=("bgt", "uniform", "unlimited"),
            mechanisms=("gaussian", "laplace"),
            seeds=(0, 1, 2, 3, 4),
        )
        outcomes, values = self.outcomes(request)
        # One seed of the baseline failed: its pair is left out, the means keep what they have.
        lost = next(
            i for i, o in enumerate(outcomes) if o.cell.policy == "uniform" and o.cell.seed == 3
        )
        outcomes[lost] = Outcome(cell=outcomes[lost].cell, error="lost")
        found = summed_up(request, outcomes)
        assert [(d.mechanism, d.policy) for d in found.differences] == [
            ("gaussian", "bgt"),
            ("gaussian", "unlimited"),
            ("laplace", "bgt"),
            ("laplace", "unlimited"),
        ]
        for entry in found.differences:
            seeds = (0, 1, 2, 4) if entry.mechanism == "gaussian" else (0, 1, 2, 3, 4)
            kind = "none" if entry.policy == "unlimited" else entry.mechanism
            ours = [values[kind, entry.policy, seed] for seed in seeds]
            theirs = [values[entry.mechanism, "uniform", seed] for seed in seeds]
            test = scipy.stats.ttest_rel(ours, theirs)
            low, high = test.confidence_interval(0.95)
            figure = entry.figures["rmse_best"]
            assert figure is not None
            assert figure.seeds == len(seeds)
            assert figure.mean == pytest.approx(np.mean(np.subtract(ours, theirs)))
            assert (figure.low, figure.high) == pytest.approx((low, high))
        row = found.rows[0]
        assert (row.policy, row.asked) == ("bgt", 5)
        assert [outcome.error for outcome in found.failed] == ["lost"]

    def test_references_once_a_data_set(self) -> None:
        request = request_of(datasets=("demo", "synthetic"), seeds=(0, 1, 2))
        found = summed_up(request, self.outcomes(request)[0])
        rows = [row for row in found.rows if row.reference]
        assert [(row.dataset, row.policy) for row in rows[:3]] == [
            ("demo", "constant"),
            ("demo", "user_mean"),
            ("demo", "client_alone"),
        ]
        assert len(rows) == 6
        figure = rows[0].figures["rmse_final"]
        assert figure is not None
        assert (figure.mean, figure.std) == pytest.approx((0.51, 0.01))
        assert figure == rows[0].figures["rmse_best"]

    def test_unlimited_as_baseline_and_no_baseline(self) -> None:
        request = request_of(policies=("bgt", "unlimited"))
        found = summed_up(request, self.outcomes(request)[0])
        assert [(d.policy, d.baseline) for d in found.differences] == [("bgt", "unlimited")]
        request = request_of(policies=("bgt",))
        assert not summed_up(request, self.outcomes(request)[0]).differences

    def test_nothing_done(self) -> None:
        request = request_of()
        found = summed_up(request, [Outcome(cell=cell, error="x") for cell in request.cells()])
        assert all(figure is None for row in found.rows for figure in row.figures.values())
        assert len(found.failed) == 4
        json.dumps(found.as_json(), allow_nan=False)


class TestTable2:
    def test_as_printed(self) -> None:
        """Against the paper's source, where it lies beside the checkout."""
        paper = Path(__file__).parents[3] / "shared/paper/bgtplanner.tex"
        if not paper.is_file():
            pytest.skip(f"no paper: {paper} is not there")
        rows = {}
        for line in paper.read_text(encoding="utf-8").splitlines():
            name = line.partition("&")[0].strip()
            if name in NAMES.values():
                plain = line.replace(r"\diagbox[]{}{}", "").replace(r"\\", "").split("&")[1:]
                wide = 2 if "multicolumn" in line else 1
                rows[name] = [_number(cell) for cell in plain for _ in range(wide)]
        assert list(rows) == list(NAMES.values())
        for policy, name in NAMES.items():
            assert len(rows[name]) == 12
            for place, dataset in enumerate(("filmtrust", "ml-100k", "ml-1m")):
                for side, mechanism in enumerate(("gaussian", "laplace")):
                    ours = published(
                        dataset, "none" if policy == "unlimited" else mechanism, policy
                    )
                    theirs = [rows[name][2 * place + side + shift] for shift in (0, 6)]
                    assert list(ours or (None, None)) == theirs

    def test_only_where_it_can_be_compared(self) -> None:
        def papers(**changes: Any) -> list[Any]:
            request = request_of(datasets=("ml-100k",), policies=("bgt",), **changes)
            return [row.paper for row in summed_up(request, []).rows if not row.reference]

        assert papers(preset="paper") == [published("ml-100k", "gaussian", "bgt")]
        assert papers() == [None]
        assert papers(preset="paper", settings={"privacy.epsilon": 5.0}) == [None]
        assert papers(preset="paper", settings={"privacy.budgets": "1:1"}) == [None]
        assert papers(preset="paper", settings={"privacy.epsilon": 10}) != [None]


def _number(cell: str) -> float | None:
    digits = cell.replace(r"\multicolumn{2}{c|}", "").replace(r"\textbf", "").strip(" {}")
    return float(digits) if digits else None
