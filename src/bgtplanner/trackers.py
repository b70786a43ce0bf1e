"""Ready-made trackers, which record a run in TensorBoard or MLflow."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bgtplanner.errors import ConfigError, MissingExtraError, StorageError
from bgtplanner.models.metrics import of_lists
from bgtplanner.runs.config import Config
from bgtplanner.runs.observers import Tracker

_MARK = "bgtplanner.folder"  # holds a hash: a path may have quotes, and reveals more than needed
_OF_ALL_ROUNDS = ("rmse_objective", "rmse_served", "ndcg_at_10_served", "rmse_arriving")
_EVERY = 1.0  # seconds between batches to MLflow: a round may take a millisecond


class TensorBoardTracker(Tracker):
    """Writes the figures of every round for TensorBoard.

    The logs are next to the run folder, in ``tensorboard/<its name>``, so that ``tensorboard
    --logdir`` shows all runs of a folder together.
    """

    def __init__(self, folder: Path | str) -> None:
        try:
            from tensorboard.summary import Writer
        except ModuleNotFoundError as error:
            raise MissingExtraError("tensorboard", "--track tensorboard") from error
        logs = Path(folder).parent / "tensorboard" / Path(folder).name
        try:
            logs.mkdir(parents=True, exist_ok=True)
            self._writer = Writer(str(logs))
        except OSError as error:
            place = f"--track tensorboard: {logs}"
            raise StorageError.of(place, error, "choose another --out") from error
        self.where = f"{logs} (tensorboard --logdir {logs.parent})"

    def note(self, figures: Mapping[str, float], step: int) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)

    def end(self, summary: Mapping[str, Any]) -> None:
        named = {name: summary.get(name) for name in of_lists()}
        named |= {f"summary/{name}": summary.get(name) for name in _OF_ALL_ROUNDS}
        known = {name: float(of) for name, of in named.items() if of is not None}
        self.note(known, summary["rounds_run"])

    def release(self) -> None:
        self._writer.close()


class MLflowTracker(Tracker):
    """Records the settings, the figures of every round and the result as a run of MLflow.

    ``MLFLOW_TRACKING_URI`` says where, as usual with MLflow. A run that is resumed in its folder
    continues its old entry.
    """

    def __init__(self, folder: Path | str, experiment: str = "bgtplanner") -> None:
        # No telemetry: a privacy tool must not report on its users.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        try:
            from mlflow import MlflowClient, entities
        except ModuleNotFoundError as error:
            raise MissingExtraError("mlflow", "--track mlflow") from error
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # the terminal is for the run
        self._entities, self._folder = entities, Path(folder).absolute()
        self._mark = hashlib.sha256(os.fsencode(self._folder)).hexdigest()
        try:
            self._client = MlflowClient()
            known = self._client.get_experiment_by_name(experiment)
            self._experiment = (
                known.experiment_id if known else self._client.create_experiment(experiment)
            )
        except Exception as error:  # of many kinds
            said = " ".join(str(error).split())[:200]
            raise ConfigError(
                f"--track mlflow: {said}; set MLFLOW_TRACKING_URI to a store that answers, such "
                "as sqlite:///mlflow.db"
            ) from error
        self.where = f"{self._client.tracking_uri}, experiment {experiment}"
        self._run: str | None = None
        self._waiting: list[Any] = []
        self._sent = 0.0

    def begin(self, config: Config, first: int) -> None:
        mark = f"tags.`{_MARK}` = '{self._mark}'"
        known = self._client.search_runs([self._experiment], mark) if first else []
        if known:
            self._run = known[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return
        made = self._client.create_run(
            self._experiment, run_name=self._folder.name, tags={_MARK: self._mark}
        )
        self._run, settings = made.info.run_id, {"preset": config.preset}
        for section, values in config.model_dump(mode="json", exclude={"preset"}).items():
            settings |= {f"{section}.{key}": of for key, of in values.items() if of is not None}
        params = [self._entities.Param(key, str(of)[:6000]) for key, of in settings.items()]
        for at in range(0, len(params), 100):  # the limit of one request
            self._client.log_batch(self._run, params=params[at : at + 100])

    def note(self, figures: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        self._waiting += [self._entities.Metric(*entry, now, step) for entry in figures.items()]
        if time.monotonic() - self._sent >= _EVERY:
            self._send()

    def end(self, summary: Mapping[str, Any]) -> None:
        numbers = {name: of for name, of in summary.items() if isinstance(of, int | float)}
        known = {f"summary/{name}": float(of) for name, of in numbers.items() if math.isfinite(of)}
        self.note(known, 0)
        self._ended("FINISHED")

    def release(self) -> None:
        self._ended("KILLED")  # has no effect on a finished run

    def _ended(self, status: str) -> None:
        if self._run is not None:
            self._send()
            self._client.set_terminated(self._run, status)
            self._run = None

    def _send(self) -> None:
        if self._run is not None:
            for first in range(0, len(self._waiting), 1000):  # the limit of one request
                self._client.log_batch(self._run, metrics=self._waiting[first : first + 1000])
        self._waiting, self._sent = [], time.monotonic()


TRACKERS: dict[str, Callable[[Path], Tracker]] = {
    "tensorboard": TensorBoardTracker,
    "mlflow": MLflowTracker,
}
"""Trackers by their names in ``--track``."""


def tracker_named(name: str, folder: Path) -> Tracker:
    """Make a tracker by its name."""
    ConfigError.unless(name in TRACKERS, "--track", name, f"one of {', '.join(TRACKERS)}")
    return TRACKERS[name](folder)
