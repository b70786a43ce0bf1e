"""Trackers against the real TensorBoard and MLflow; and that none of them can stop a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

import pytest

from bgtplanner.errors import ConfigError, MissingExtraError, StorageError
from bgtplanner.runs.observers import Tracker
from bgtplanner.runs.result import Result
from bgtplanner.trackers import MLflowTracker, TensorBoardTracker, tracker_named
from followed import RECORDS, Done, follow


class TestTensorBoard:
    def test_read_back_by_tensorboard(self, tmp_path: Path) -> None:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        tracker = TensorBoardTracker(tmp_path / "run")
        follow(tracker)
        tracker.finished(cast(Result, Done()))
        tracker.close()
        assert tracker.trouble is None
        assert str(tmp_path / "tensorboard") in tracker.where
        assert not (tmp_path / "run").exists(), "the run folder is the run's own"
        read = EventAccumulator(str(tmp_path / "tensorboard" / "run"))
        read.Reload()
        rmse = [
            (event.step, pytest.approx(float(event.tensor_proto.float_val[0])))
            for event in read.Tensors("rmse")
        ]
        assert rmse == [(record["round"] + 1, record["rmse"]) for record in RECORDS]
        assert "epsilon_spent" in read.Tags()["tensors"]
        (lists,) = read.Tensors("ndcg_at_10")
        assert (lists.step, lists.tensor_proto.float_val[0]) == (len(RECORDS), 0.25)
        (arriving,) = read.Tensors("summary/rmse_arriving")
        assert (arriving.step, arriving.tensor_proto.float_val[0]) == (len(RECORDS), 0.5)
        assert "mrr" not in read.Tags()["tensors"], "there was nothing to find"

    def test_nowhere_to_write(self, tmp_path: Path) -> None:
        (tmp_path / "tensorboard").touch()
        with pytest.raises(StorageError, match=r"--track tensorboard: .*choose another --out"):
            TensorBoardTracker(tmp_path / "run")

    def test_without_its_extra(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "tensorboard.summary", None)
        with pytest.raises(MissingExtraError, match=r"pip install 'bgtplanner\[tensorboard\]'"):
            TensorBoardTracker(tmp_path)


@pytest.mark.filterwarnings("ignore")  # what MLflow's own packages think of each other
class TestMLflow:
    def test_read_back_by_mlflow(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """One run: begun, interrupted, gone on with, finished. Making the store takes seconds."""
        uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
        from mlflow import MlflowClient

        first = MLflowTracker(tmp_path / "it's")
        follow(first, last=3)
        first.close()
        first.close()
        client = MlflowClient(tracking_uri=uri)
        experiment = client.get_experiment_by_name("bgtplanner")
        assert experiment is not None
        (run,) = client.search_runs([experiment.experiment_id])
        assert (run.info.status, run.info.run_name) == ("KILLED", "it's")
        second = MLflowTracker(tmp_path / "it's")
        follow(second, first=3)
        second.finished(cast(Result, Done()))
        second.close()
        assert (first.trouble, second.trouble) == (None, None)
        (run,) = client.search_runs([experiment.experiment_id])
        assert run.info.status == "FINISHED"
        assert run.data.params["planning.policy"] == "bgt"
        assert run.data.params["preset"] == "recommended"
        assert run.data.metrics["summary/rmse_final"] == 0.19
        history = client.get_metric_history(run.info.run_id, "rmse")
        expected = [(record["round"] + 1, record["rmse"]) for record in RECORDS]
        assert [(entry.step, entry.value) for entry in history] == expected

        class Broken:
            tracking_uri = uri

            def __getattr__(self, name: str) -> Any:
                raise ConnectionError("the store went away")

        third = MLflowTracker(tmp_path / "other")
        third._client = cast(MlflowClient, Broken())
        follow(third)
        third.finished(cast(Result, Done()))
        assert third.trouble == "ConnectionError: the store went away"

    def test_a_place_that_does_not_answer(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://x")
        with pytest.raises(ConfigError, match=r"--track mlflow: .*set MLFLOW_TRACKING_URI"):
            MLflowTracker(tmp_path)

    def test_without_its_extra(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "mlflow", None)
        with pytest.raises(MissingExtraError, match=r"pip install 'bgtplanner\[mlflow\]'"):
            MLflowTracker(tmp_path)


class TestByName:
    def test_unknown(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"--track = 'wandb': expected one of tensorboard"):
            tracker_named("wandb", tmp_path)

    def test_known(self, tmp_path: Path) -> None:
        tracker: Tracker = tracker_named("tensorboard", tmp_path / "run")
        tracker.close()
        assert isinstance(tracker, TensorBoardTracker)
