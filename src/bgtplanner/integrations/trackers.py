"""Ready trackers: a run in TensorBoard and in MLflow, since that is where people already look."""

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
from bgtplanner.runs.config import Config
from bgtplanner.runs.observers import Tracker

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

__all__ = ["TRACKERS", "MLflowTracker", "TensorBoardTracker", "tracker_named"]

_MARK = "bgtplanner.folder"  # a hash: paths have quotes, and tell more than they must
_EVERY = 1.0  # seconds between parcels to MLflow: a round may take a millisecond


class TensorBoardTracker(Tracker):
    """Writes every round's figures where TensorBoard finds them.

    Args:
        folder: Run folder; the logs are kept beside it, in ``tensorboard/<its name>``, so that
            ``tensorboard --logdir`` shows all runs of one place together.

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
        del summary  # its figures are those of the last round
        self._writer.flush()

    def release(self) -> None:
        self._writer.close()


class MLflowTracker(Tracker):
    """Keeps settings, every round's figures and the result as one run of MLflow.

    ``MLFLOW_TRACKING_URI`` says where, as everywhere in MLflow; by default a file
    ``mlflow.db`` in the present folder. A run that is resumed goes on under its old name.

    Args:
        folder: Run folder, by which the run is known.
        experiment: Name of the experiment.

    Raises:
        MissingExtraError: If MLflow is not installed.
        ConfigError: If the place cannot be reached.
    """

    def __init__(self, folder: Path | str, experiment: str = "bgtplanner") -> None:
        # Who measures privacy tells nobody that he does.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Metric, Param
        except ModuleNotFoundError as error:
            raise MissingExtraError("mlflow", "--track mlflow") from error
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # our output is for the run
        self._metric, self._param = Metric, Param
        self._folder = Path(folder).absolute()
        self._mark = hashlib.sha256(os.fsencode(self._folder)).hexdigest()
        try:
            self._client: MlflowClient = MlflowClient()
            known = self._client.get_experiment_by_name(experiment)
            self._experiment: str = (
                known.experiment_id if known else self._client.create_experiment(experiment)
            )
        except Exception as error:  # of a dozen kinds
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
        if first:  # the run under which this folder is known already, if it is
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
        for at in range(0, len(params), 100):  # as many as it takes at once
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
        self._terminated("KILLED")  # unless it is done

    def _terminated(self, status: str) -> None:
        if self._run is not None:
            self._send()
            self._client.set_terminated(self._run, status)
            self._run = None

    def _send(self) -> None:
        if self._run is not None:
            for first in range(0, len(self._waiting), 1000):  # as many as it takes at once
                self._client.log_batch(self._run, metrics=self._waiting[first : first + 1000])
        self._waiting, self._sent = [], time.monotonic()


TRACKERS: dict[str, Callable[[Path], Tracker]] = {
    "tensorboard": TensorBoardTracker,
    "mlflow": MLflowTracker,
}
"""Trackers by the name that ``--track`` takes."""


def tracker_named(name: str, folder: Path) -> Tracker:
    """A tracker by its name.

    Raises:
        ConfigError: If there is none of that name.
    """
    ConfigError.unless(name in TRACKERS, "--track", name, f"one of {', '.join(TRACKERS)}")
    return TRACKERS[name](folder)
