"""Ready-made trackers, which record a run in TensorBoard or MLflow."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bgtplanner.errors import ConfigError, MissingExtraError, StorageError
from bgtplanner.models.metrics import of_lists
from bgtplanner.runs.config import Config
from bgtplanner.runs.observers import Tracker

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

__all__ = ["TRACKERS", "MLflowTracker", "TensorBoardTracker", "tracker_named"]

_MARK = "bgtplanner.folder"  # holds a hash: a path may have quotes, and reveals more than needed
_OF_ALL_ROUNDS = ("rmse_objective", "rmse_served", "ndcg_at_10_served", "rmse_arriving")
_EVERY = 1.0  # seconds between batches to MLflow: a round may take a millisecond


class TensorBoardTracker(Tracker):
    """Writes the figures of every round for TensorBoard.

    Args:
        folder: Run folder; the logs are kept next to it, in ``tensorboard/<its name>``, so that
            ``tensorboard --logdir`` shows all runs of a folder together.

    Raises:
        MissingExtraError: If TensorBoard is not installed.
        StorageError: If the logs cannot be written.
    """

    def __init__(self, folder: Path | str) -> None:
        try:
            from tensorboard.summary import Writer
        except ModuleNotFoundError as error:
            raise MissingExtraError("tensorboard", "--track tensorboard") from error
        run = Path(folder)
        logs = run.parent / "tensorboard" / run.name
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
        # Its other figures are those of the last round.
        named = {name: summary.get(name) for name in of_lists()}
        named |= {f"summary/{name}": summary.get(name) for name in _OF_ALL_ROUNDS}
        known = {name: float(of) for name, of in named.items() if of is not None}
        self.note(known, summary["rounds_run"])
        self._writer.flush()

    def release(self) -> None:
        self._writer.close()


class MLflowTracker(Tracker):
    """Records the settings, the figures of every round and the result as a run of MLflow.

    ``MLFLOW_TRACKING_URI`` says where, as usual with MLflow; by default it is the file
    ``mlflow.db`` in the current folder. A resumed run continues its old entry.

    Args:
        folder: Run folder, which identifies the run.
        experiment: Name of the experiment.

    Raises:
        MissingExtraError: If MLflow is not installed.
        ConfigError: If the tracking store cannot be reached.
    """

    def __init__(self, folder: Path | str, experiment: str = "bgtplanner") -> None:
        # No telemetry: a privacy tool must not report on its users.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Metric, Param
        except ModuleNotFoundError as error:
            raise MissingExtraError("mlflow", "--track mlflow") from error
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # the terminal is for the run
        self._metric, self._param = Metric, Param
        self._folder = Path(folder).absolute()
        self._mark = hashlib.sha256(os.fsencode(self._folder)).hexdigest()
        try:
            self._client: MlflowClient = MlflowClient()
            known = self._client.get_experiment_by_name(experiment)
            self._experiment: str = (
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
        self._waiting: list[Metric] = []
        self._sent = 0.0

    def begin(self, config: Config, first: int) -> None:
        if first:  # look for the entry of this folder
            mark = f"tags.`{_MARK}` = '{self._mark}'"
            found = self._client.search_runs([self._experiment], filter_string=mark)
            self._run = found[0].info.run_id if found else None
        if self._run is not None:
            self._client.update_run(self._run, status="RUNNING")
            return
        made = self._client.create_run(
            self._experiment, run_name=self._folder.name, tags={_MARK: self._mark}
        )
        self._run = made.info.run_id
        settings = {"preset": config.preset}
        for section, values in config.model_dump(mode="json", exclude={"preset"}).items():
            settings |= {f"{section}.{key}": of for key, of in values.items() if of is not None}
        params = [self._param(key, str(value)[:6000]) for key, value in settings.items()]
        for at in range(0, len(params), 100):  # the limit of one request
            self._client.log_batch(self._run, params=params[at : at + 100])

    def note(self, figures: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        self._waiting += [self._metric(*entry, now, step) for entry in figures.items()]
        if time.monotonic() - self._sent >= _EVERY:
            self._send()

    def end(self, summary: Mapping[str, Any]) -> None:
        figures = {
            f"summary/{name}": float(value)
            for name, value in summary.items()
            if isinstance(value, int | float) and math.isfinite(value)
        }
        self.note(figures, 0)
        self._terminated("FINISHED")

    def release(self) -> None:
        self._terminated("KILLED")  # has no effect on a finished run

    def _terminated(self, status: str) -> None:
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
    """Make a tracker by its name.

    Raises:
        ConfigError: If there is no tracker of that name.
    """
    ConfigError.unless(name in TRACKERS, "--track", name, f"one of {', '.join(TRACKERS)}")
    return TRACKERS[name](folder)
