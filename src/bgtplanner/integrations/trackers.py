"""Ready trackers: a run in TensorBoard and in MLflow, since that is where people already look.

A tracker that breaks down in the middle of a run does not take the run along.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from bgtplanner.data.split import Split
from bgtplanner.errors import ConfigError, MissingExtraError, StorageError
from bgtplanner.runs.config import Config
from bgtplanner.runs.observers import Tracker, figures_of
from bgtplanner.runs.summary import Result

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

__all__ = ["TRACKERS", "MLflowTracker", "TensorBoardTracker", "tracker_named"]

_MARK = "bgtplanner.folder"  # a hash: paths have quotes, and tell more than they must
_EVERY = 1.0  # seconds between parcels to MLflow: a round may take a millisecond

Told = TypeVar("Told", bound=Callable[..., None])


def _never_fatal(method: Told) -> Told:
    """What goes wrong in a tracker is noted, and the run goes on without it."""

    @functools.wraps(method)
    def guarded(self: Any, *arguments: Any) -> None:
        if self.trouble is not None:
            return
        try:
            method(self, *arguments)
        except Exception as error:  # whatever it is: hours of training are worth more
            self.trouble = " ".join(f"{type(error).__name__}: {error}".split())[:200]

    return guarded  # type: ignore[return-value]


class TensorBoardTracker:
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
        self.trouble: str | None = None
        self._config: Config | None = None

    def searching(self, name: str, number: int, total: int) -> None:
        """Schedules that are tried are not rounds of the run."""

    @_never_fatal
    def started(self, config: Config, split: Split, first: int) -> None:
        del split, first  # what the split holds is nobody's business
        self._config = config

    @_never_fatal
    def round(self, record: Mapping[str, Any], total: int) -> None:
        del total
        if self._config is not None:
            for name, value in figures_of(record, self._config).items():
                self._writer.add_scalar(name, value, record["round"] + 1)

    @_never_fatal
    def finished(self, result: Result) -> None:
        del result  # its figures are those of the last round
        self._writer.flush()

    @_never_fatal
    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


class MLflowTracker:
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
            self._experiment = (
                self._client.create_experiment(experiment)
                if known is None
                else known.experiment_id
            )
        except Exception as error:  # of a dozen kinds
            said = " ".join(str(error).split())[:200]
            raise ConfigError(
                f"--track mlflow: {said}; set MLFLOW_TRACKING_URI to a store that answers, such "
                "as sqlite:///mlflow.db"
            ) from error
        self.where = f"{self._client.tracking_uri}, experiment {experiment}"
        self.trouble: str | None = None
        self._config: Config | None = None
        self._run: str | None = None
        self._waiting: list[Metric] = []
        self._sent = 0.0

    def searching(self, name: str, number: int, total: int) -> None:
        """Schedules that are tried are not rounds of the run."""

    @_never_fatal
    def started(self, config: Config, split: Split, first: int) -> None:
        del split  # what it holds is nobody's business
        self._config = config
        self._run = self._earlier() if first else None
        if self._run is not None:
            self._client.update_run(self._run, status="RUNNING")
            return
        made = self._client.create_run(
            self._experiment, run_name=self._folder.name, tags={_MARK: self._mark}
        )
        self._run = made.info.run_id
        settings = [("preset", config.preset)] + [
            (f"{section}.{key}", value)
            for section, values in config.model_dump(mode="json", exclude={"preset"}).items()
            for key, value in values.items()
            if value is not None
        ]
        params = [self._param(key, str(value)[:6000]) for key, value in settings]
        for first in range(0, len(params), 100):  # as many as it takes at once
            self._client.log_batch(self._run, params=params[first : first + 100])

    @_never_fatal
    def round(self, record: Mapping[str, Any], total: int) -> None:
        del total
        if self._config is None:
            return
        now, step = int(time.time() * 1000), record["round"] + 1
        self._waiting += [
            self._metric(name, value, now, step)
            for name, value in figures_of(record, self._config).items()
        ]
        if time.monotonic() - self._sent >= _EVERY:
            self._send()

    @_never_fatal
    def finished(self, result: Result) -> None:
        now = int(time.time() * 1000)
        self._waiting += [
            self._metric(f"summary/{name}", float(value), now, 0)
            for name, value in result.summary.items()
            if isinstance(value, int | float) and math.isfinite(value)
        ]
        self._send()
        if self._run is not None:
            self._client.set_terminated(self._run, "FINISHED")
            self._run = None

    @_never_fatal
    def close(self) -> None:
        """Say that the run was stopped, unless it is done."""
        if self._run is not None:
            self._send()
            self._client.set_terminated(self._run, "KILLED")
            self._run = None

    def _send(self) -> None:
        if self._run is not None:
            for first in range(0, len(self._waiting), 1000):  # as many as it takes at once
                self._client.log_batch(self._run, metrics=self._waiting[first : first + 1000])
        self._waiting, self._sent = [], time.monotonic()

    def _earlier(self) -> str | None:
        """The run under which this folder is known already."""
        found = self._client.search_runs(
            [self._experiment], filter_string=f"tags.`{_MARK}` = '{self._mark}'"
        )
        return found[0].info.run_id if found else None


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
