"""A run from the first round to the summary, stopped anywhere and gone on with."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bgtplanner import Result, load, resume, simulate
from bgtplanner.errors import InterruptedRunError, RunFolderError, TrainingDivergedError
from bgtplanner.federation.simulation import Simulation
from bgtplanner.models.metrics import Metrics
from bgtplanner.runs import loop
from bgtplanner.runs.assembly import ratings_of, split_of
from bgtplanner.runs.config import load_config
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.run import execute
from finished import state_of

TINY = {
    "synthetic.clients": 20,
    "synthetic.items": 15,
    "synthetic.ratings_per_client": 8,
    "federation.participation": 0.5,  # so that every round draws at random
    "run.checkpoint_every": 4,
    "run.device": "cpu",
}
ROUNDS = 14
DEMANDED = {
    *("dataset", "policy", "mechanism", "trust", "unit", "accounting", "epsilon", "delta"),
    *("seed", "rounds_run", "rmse_final", "rmse_best", "f1_final", "f1_best", "mae_final"),
    *("rmse_constant", "rmse_user_mean", "rmse_client_alone", "f1_constant"),
    *("epsilon_spent_max", "epsilon_client_level", "epsilon_client_level_median"),
    *("not_accounted", "simulated_noise", "seconds_total", "seconds_per_round"),
}

pytestmark = pytest.mark.usefixtures("compiled_once")


def tiny(out: Path | None = None, **changes: Any) -> Result:
    own = {name: changes.pop(name) for name in ("observer", "preset") if name in changes}
    rounds = changes.pop("rounds", ROUNDS)
    settings = TINY | {key.replace("__", "."): value for key, value in changes.items()}
    return simulate("synthetic", rounds=rounds, settings=settings, out=out, **own)


class Watcher:
    """Sees every round, and may do something at the end of one."""

    def __init__(self, at: int = -1, do: Callable[[], None] = lambda: None) -> None:
        self.at, self.do, self.first = at, do, -1
        self.seen: list[int] = []

    def started(self, config: Any, split: Any, first: int) -> None:
        self.first = first

    def round(self, record: Mapping[str, Any], total: int) -> None:
        self.seen.append(record["round"])
        if record["round"] == self.at:
            self.do()

    def finished(self, result: Result) -> None:
        assert len(result.rounds) == self.first + len(self.seen)


@pytest.fixture(scope="module", autouse=True)
def whole_states() -> Iterator[None]:
    """What clients keep to themselves is compared, too: finished folders do not forget it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "forget", lambda _: None)
        yield


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, compiled_once: Path) -> Path:
    """The folder of a run that nobody interrupted."""
    folder = tmp_path_factory.mktemp("reference") / "run"
    tiny(folder)
    return folder


@pytest.fixture
def copy(reference: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(reference, tmp_path / "run"))


class TestFiles:
    def test_rounds_model_and_summary_agree(self, reference: Path) -> None:
        def never(constant: str) -> None:
            raise AssertionError(f"{constant} is not JSON")

        text = (reference / "summary.json").read_text()
        assert set(json.loads(text, parse_constant=never)) >= DEMANDED
        _, rounds, summary = state_of(reference)
        assert [r["round"] for r in rounds] == list(range(ROUNDS))
        assert summary["rmse_best"] == min(r["rmse"] for r in rounds)
        assert rounds[summary["rmse_best_round"]]["rmse"] == summary["rmse_best"]
        assert summary["f1_best"] == max(r["f1"] for r in rounds)
        config = load_config(file=reference / "config.toml")
        split = split_of(config, ratings_of(config))
        assert rounds[-1]["ratings"] == len(split.train)
        test = split.test
        found = load(reference)
        users, items = test.user_labels[test.user], test.item_labels[test.item]
        error = found.predict(users, items) / 5 - test.value
        assert summary["rmse_final"] == rounds[-1]["rmse"]
        assert summary["rmse_final"] == pytest.approx(np.sqrt((error**2).mean()), rel=1e-5)
        assert summary["mae_final"] == pytest.approx(np.abs(error).mean(), rel=1e-5)

    def test_the_folders_config_runs_again(self, reference: Path, tmp_path: Path) -> None:
        execute(load_config(file=reference / "config.toml"), out=tmp_path / "again")
        assert state_of(tmp_path / "again") == state_of(reference)


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """What a run looks at between rounds, in the hands of the test."""
    event = threading.Event()

    @contextlib.contextmanager
    def ours(*, active: bool) -> Iterator[threading.Event]:
        assert active
        event.clear()
        yield event

    monkeypatch.setattr(loop, "stop_requests", ours)
    return event


class TestResume:
    def test_stopped_at_several_rounds(
        self, tmp_path: Path, reference: Path, stop: threading.Event
    ) -> None:
        folder, seconds = tmp_path / "run", 0.0
        start: Callable[[Watcher], Result] = lambda w: tiny(folder, observer=w)  # noqa: E731
        for at in (0, 4, 10):
            with pytest.raises(InterruptedRunError) as caught:
                start(Watcher(at, stop.set))
            done = at + 2  # it was asked to after a round, so it ends with the next one
            assert f"after round {done} of {ROUNDS}" in str(caught.value)
            assert f"bgtplanner resume {folder}" in str(caught.value)
            with np.load(folder / "checkpoint.npz") as stored:
                assert stored["next_round"] == done
                assert stored["seconds"] > seconds, "they add up"
                seconds = float(stored["seconds"])
            assert len((folder / "rounds.jsonl").read_text().splitlines()) == done
            assert not (folder / "summary.json").exists()
            start = lambda w: resume(folder, observer=w)  # noqa: E731
        watcher = Watcher()
        start(watcher)
        assert watcher.seen == list(range(12, ROUNDS))
        assert state_of(folder) == state_of(reference)

    @pytest.mark.parametrize(
        "changes",
        [
            {"preset": "paper", "fedgnn__local_optimizer": "adam", "server__optimizer": "adam"},
            {"model__name": "factorization", "server__optimizer": "sgd", "data__clients": 7},
        ],
        ids=["paper", "sgd"],
    )
    def test_other_models(
        self, tmp_path: Path, stop: threading.Event, changes: dict[str, Any]
    ) -> None:
        whole, parts = tmp_path / "whole", tmp_path / "parts"
        summary = tiny(whole, rounds=8, **changes).summary
        assert ("pseudo-rows" in summary["not_accounted"]) == (summary["preset"] == "paper")
        with pytest.raises(InterruptedRunError):
            tiny(parts, rounds=8, observer=Watcher(2, stop.set), **changes)
        resume(parts)
        assert state_of(parts) == state_of(whole)

    @pytest.mark.usefixtures("ctrl_c")
    @pytest.mark.parametrize(
        ("number", "times", "error"),
        [
            (signal.SIGTERM, 1, InterruptedRunError),
            (signal.SIGINT, 1, InterruptedRunError),
            (signal.SIGINT, 2, KeyboardInterrupt),
        ],
    )
    def test_real_signals(
        self,
        tmp_path: Path,
        reference: Path,
        number: signal.Signals,
        times: int,
        error: type[BaseException],
    ) -> None:
        def ask() -> None:
            for _ in range(times):
                os.kill(os.getpid(), number)

        before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)]
        with pytest.raises(error):
            tiny(tmp_path / "run", observer=Watcher(5, ask))
        assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == before
        resume(tmp_path / "run")
        assert state_of(tmp_path / "run") == state_of(reference)

    def test_changed_data(self, tmp_path: Path) -> None:
        file = tmp_path / "mine.csv"
        rows = [(f"u{u}", f"i{i}", 1 + (u * i) % 5) for u in range(8) for i in range(10)]

        def write(rows: list[Any]) -> None:
            file.write_text("user,item,rating\n" + "".join(f"{u},{i},{r}\n" for u, i, r in rows))

        write(rows)
        simulate(f"csv:{file}", rounds=2, out=tmp_path / "run")
        before = state_of(tmp_path / "run")
        (tmp_path / "run" / "summary.json").unlink()
        for changed in ([("u0", "i0", 5), *rows[1:]], rows[1:]):
            write(changed)
            with pytest.raises(RunFolderError, match="not those it was started with"):
                resume(tmp_path / "run")
        file.unlink()
        with pytest.raises(RunFolderError, match="no such file"):
            resume(tmp_path / "run")
        write(list(reversed(rows)))  # another order is not another set
        resume(tmp_path / "run")
        assert state_of(tmp_path / "run") == before


class TestTampering:
    def test_other_settings(self, copy: Path) -> None:
        (copy / "summary.json").unlink()
        file = copy / "config.toml"
        text = file.read_text()
        file.write_text(text.replace("seed = 0", "seed = 1"))
        with pytest.raises(RunFolderError, match="not those it was started with"):
            resume(copy)
        other = text.replace('name = "tastes"', 'name = "factorization"')
        file.write_text(other.replace('optimizer = "posterior"', 'optimizer = "shrunk"'))
        with pytest.raises(RunFolderError, match="checkpoint entry"):
            resume(copy)


@pytest.fixture(scope="module")
def instants(tmp_path_factory: pytest.TempPathFactory, compiled_once: Path) -> list[Path]:
    """A copy of the folder around every write, sync and rename of a run."""
    folder = tmp_path_factory.mktemp("crash") / "run"
    copies: list[Path] = []

    def copy() -> None:
        if (folder / "config.toml").exists():
            copies.append(folder.with_name(f"at-{len(copies)}"))
            shutil.copytree(folder, copies[-1])

    def around(real: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any, **options: Any) -> Any:
            copy()
            result = real(*arguments, **options)
            copy()
            return result

        return watched

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", around(os.fsync))
        patch.setattr(Path, "replace", around(Path.replace))
        patch.setattr(RunFolder, "append_round", around(RunFolder.append_round))
        tiny(folder)
    return copies


@pytest.mark.parametrize("seed", range(3))
def test_what_the_disk_holds_at_any_instant_is_enough(
    instants: list[Path], reference: Path, tmp_path: Path, seed: int
) -> None:
    assert any(list(copy.glob(".tmp-*")) for copy in instants)
    assert len(instants) > 2 * ROUNDS
    generator, folder = random.Random(seed), tmp_path / "run"
    shutil.copytree(generator.choice(instants), folder)
    rounds = folder / "rounds.jsonl"
    if generator.random() < 0.7 and rounds.exists() and not (folder / "summary.json").exists():
        with rounds.open("a") as file:  # the line that was just being written
            file.write('{"round": 3, "rm')
    resume(folder)
    assert state_of(folder) == state_of(reference)


class TestFailures:
    def test_divergence(self, tmp_path: Path) -> None:
        diverging: dict[str, Any] = {"model__name": "factorization", "server__optimizer": "sgd"}
        diverging |= {"server__learning_rate": 10.0, "privacy__mechanism": "none"}
        with pytest.raises(TrainingDivergedError) as caught:
            tiny(tmp_path, rounds=30, run__checkpoint_every=1, **diverging)
        assert "server.learning_rate (now 10)" in str(caught.value)
        assert not (tmp_path / "summary.json").exists()
        lines = (tmp_path / "rounds.jsonl").read_text().splitlines()
        assert 1 <= len(lines) < 30
        assert f"in round {len(lines) + 1}:" in str(caught.value)
        with pytest.raises(TrainingDivergedError) as again:
            resume(tmp_path)
        assert str(again.value) == str(caught.value)

    def test_a_lost_test_error_steers_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whether a run goes on must not depend on ratings that nobody paid to look at."""
        real = Simulation.step

        def blind(self: Simulation, *of: Any, **options: Any) -> Any:
            played = real(self, *of, **options)
            lost = Metrics(dict.fromkeys(played.metrics, math.nan))
            return replace(played, metrics=lost) if played.round == 1 else played

        whole = tiny(rounds=4, privacy__mechanism="none", planning__policy="unlimited")
        monkeypatch.setattr(Simulation, "step", blind)
        found = tiny(rounds=4, privacy__mechanism="none", planning__policy="unlimited")
        assert [record["rmse"] == 1e15 for record in found.rounds] == [False, True, False, False]
        assert found.summary["rmse_final"] == whole.summary["rmse_final"]
