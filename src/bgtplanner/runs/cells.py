"""Run the cells of a study, one by one or in parallel.

An error in a cell is the outcome of that cell, and does not affect the others.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.util
import itertools
import json
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from bgtplanner.cores import cores
from bgtplanner.data.ratings import Ratings
from bgtplanner.errors import (
    BGTPlannerError,
    ConfigError,
    InterruptedRunError,
    MissingExtraError,
    RunFolderError,
)
from bgtplanner.models.metrics import METRICS
from bgtplanner.planning.policy import Policy
from bgtplanner.planning.registry import POLICIES
from bgtplanner.runs import run as runner
from bgtplanner.runs.config import Config
from bgtplanner.runs.folder import RunFolder
from bgtplanner.runs.interrupts import stop_requests
from bgtplanner.runs.observers import Observer
from bgtplanner.runs.record import OF_EVERY_RUN

__all__ = [
    "BACKENDS",
    "Cell",
    "LatestData",
    "Objects",
    "Outcome",
    "Tell",
    "check_backend",
    "compared",
    "data_of",
    "folder_name",
    "metric_of",
    "one_by_one",
    "outcome_of",
    "side_by_side",
]

BACKENDS = ("loky", "ray", "dask")
"""Where cells may run: processes on this machine, or a Ray or Dask cluster."""

Tell = Callable[["Cell", int, int], None]
"""Called with a cell, its number of finished rounds, and the number of all its rounds."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of a study. In a sweep, `variant` names the varied settings and their values."""

    dataset: str
    mechanism: str
    policy: str
    seed: int
    variant: str = ""

    @property
    def name(self) -> str:
        """The name of the cell in messages."""
        name = f"{self.dataset} {self.mechanism} {self.policy} seed {self.seed}"
        return f"{name}, {self.variant}" if self.variant else name

    @property
    def place(self) -> Path:
        """Its run folder, relative to that of the study."""
        names = (self.dataset, self.mechanism, self.policy)
        above = [folder_name(self.variant, "-_=.,")] if self.variant else []
        return Path(*above, *map(folder_name, names), f"seed-{self.seed}")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a cell.

    Attributes:
        cell: The cell.
        summary: The figures of its ``summary.json``, if it is finished.
        error: Why it failed, if it did.
        interrupted: Whether it was stopped from outside; it can be resumed.
        seconds: How long it took just now; 0 if it was finished before.
    """

    cell: Cell
    summary: Mapping[str, Any] | None = None
    error: str | None = None
    interrupted: bool = False
    seconds: float = 0.0


class Objects(NamedTuple):
    """Objects that were given in Python in place of names, for all cells of a study.

    Attributes:
        ratings: By the name under which the study has them.
        given: The model.
        policies: Classes, which other processes may not be able to import.
    """

    ratings: Mapping[str, Ratings] = MappingProxyType({})
    given: runner.Given = runner.Given()
    policies: tuple[type[Policy], ...] = ()


def data_of(config: Config) -> str:
    """All settings that decide what a run is trained and tested on."""
    settings = [config.data.model_dump(mode="json"), config.synthetic.model_dump(mode="json")]
    return json.dumps([*settings, config.run.seed, config.federation.rounds], sort_keys=True)


class LatestData:
    """The data of the latest cell, which most often are those of the next one, too.

    Reading and splitting them, and scoring what needs no training, takes as long as the rounds of
    a small cell. Files are not read again, so it must not outlive a study.
    """

    def __init__(self) -> None:
        self._said: str | None = None
        self._data: runner.Prepared | None = None
        self._lock = threading.Lock()

    def of(self, config: Config, ratings: Ratings | None = None) -> runner.Prepared:
        """The ratings that a config names, or those given in their place, split as it says."""
        said = data_of(config)
        with self._lock:
            if self._data is None or said != self._said:
                self._data = None  # first of all: two large data sets may not fit
                found = runner.ratings_of(config) if ratings is None else ratings
                self._data, self._said = runner.Prepared(config, found), said
            return self._data


_data_of_studies: dict[str, LatestData] = {}  # in a process that runs cells of others


def one_by_one(
    todo: Sequence[Cell],
    cells: Mapping[Cell, Config],
    out: Path,
    tell: Tell | None,
    objects: Objects,
) -> Generator[Outcome, None, None]:
    """Run cells in this process, one after the other, until one is interrupted."""
    data = LatestData()
    for cell in todo:
        view = _CellView(cell, tell)
        outcome = _run_cell(cell, cells[cell], out / cell.place, view, data, objects)
        yield outcome
        if outcome.interrupted:
            return


def side_by_side(
    todo: Sequence[Cell],
    cells: Mapping[Cell, Config],
    out: Path,
    backend: str,
    jobs: int,
    objects: Objects,
) -> Generator[Outcome, None, None]:
    """Run cells in other processes, which learn of a request to stop through a file.

    When a process dies, all cells that were running have failed; the others are still run.
    """
    flag = out.absolute() / ".stop"
    flag.unlink(missing_ok=True)

    def pass_on() -> None:
        stop.wait()
        flag.touch()

    with stop_requests(active=True) as stop, _cluster(backend, jobs):
        watcher = threading.Thread(target=pass_on, daemon=True)
        watcher.start()
        try:
            left = list(todo)
            while left and not stop.is_set():
                yield from _in_a_pool(left, cells, out, flag, backend, jobs, stop, objects)
        finally:
            stop.set()
            watcher.join()
            flag.unlink(missing_ok=True)


def _in_a_pool(
    left: list[Cell],
    cells: Mapping[Cell, Config],
    out: Path,
    flag: Path,
    backend: str,
    jobs: int,
    stop: threading.Event,
    objects: Objects,
) -> Iterator[Outcome]:
    """Run cells from `left` until there are none, or until the pool breaks."""
    import joblib

    threads, study = max(1, cores() // jobs), secrets.token_hex(8)
    running: dict[Cell, None] = {}

    def tasks() -> Iterator[Any]:
        while left and not stop.is_set():
            cell = left.pop(0)
            running[cell] = None
            of_cell = {of: it for of, it in objects.ratings.items() if of == cell.dataset}
            mine = objects._replace(ratings=of_cell)
            where = out.absolute(), flag
            yield joblib.delayed(_run_elsewhere)(cell, cells[cell], *where, threads, study, mine)

    own = {"inner_max_num_threads": threads} if backend == "loky" else {}
    with joblib.parallel_config(backend, n_jobs=jobs, **own):
        try:
            for outcome in _results(tasks(), jobs):
                del running[outcome.cell]
                yield outcome
        except Exception as error:
            if stop.is_set():  # a process that was told to stop breaks the whole pool
                return
            if not running:
                raise
            lost = f"its process died ({type(error).__name__}); was there enough memory?"
            yield from [Outcome(cell=cell, error=lost) for cell in running]


def _results(tasks: Iterator[Any], jobs: int) -> Iterator[Outcome]:
    """Yield outcomes as they come, or batch by batch if the backend cannot do that."""
    import joblib

    try:
        parallel = joblib.Parallel(
            return_as="generator_unordered", pre_dispatch="n_jobs", batch_size=1
        )
    except ValueError:
        with joblib.Parallel(batch_size=1) as parallel:
            while batch := list(itertools.islice(tasks, jobs)):
                yield from parallel(batch)
    else:
        with contextlib.closing(parallel(tasks)) as results:
            yield from results


def check_backend(backend: str) -> None:
    """Check that cells can be run in parallel.

    Raises:
        ConfigError: If the backend is not installed; names its package.
        MissingExtraError: If joblib itself is not installed.
    """
    if importlib.util.find_spec("joblib") is None:
        raise MissingExtraError("sim", "--jobs")
    module, package = {
        "loky": ("joblib", "joblib"),
        "ray": ("ray", "ray"),
        "dask": ("distributed", "'dask[distributed]'"),
    }[backend]
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"--backend = {backend!r}: not installed; pip install {package}")


@contextlib.contextmanager
def _cluster(backend: str, jobs: int) -> Iterator[None]:
    """Connect to Ray or Dask as their environment variables say, or start them here."""
    if backend == "ray":
        register_ray = importlib.import_module("ray.util.joblib").register_ray
        register_ray()
    if backend != "dask":
        yield
        return
    known = importlib.import_module("dask").config.get("scheduler-address", None)
    client = importlib.import_module("distributed").Client
    with client() if known else client(n_workers=jobs, threads_per_worker=1):
        yield


def _run_elsewhere(
    cell: Cell,
    config: Config,
    out: Path,
    flag: Path,
    threads: int,
    study: str,
    objects: Objects,
) -> Outcome:
    """Run a cell in another process, with its share of the cores.

    The process lives on for the next cells, and for those of other studies.
    """
    for name in ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)  # JAX reads the first one when it starts
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    # Processes that share an accelerator must not take all of its memory at once.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    for policy in objects.policies:
        POLICIES.named(policy)  # here, too
    if study not in _data_of_studies:
        _data_of_studies.clear()
    data = _data_of_studies.setdefault(study, LatestData())
    view = _CellView(cell, flag=flag)
    return _run_cell(cell, config, out / cell.place, view, data, objects)


def _run_cell(
    cell: Cell,
    config: Config,
    place: Path,
    view: _CellView,
    data: LatestData,
    objects: Objects,
) -> Outcome:
    begun = time.perf_counter()
    ratings, given = objects.ratings.get(cell.dataset), objects.given
    try:
        if (place / "config.toml").exists():
            runner.resume(place, ratings=ratings, model=given.model, observer=view)
        else:
            share = functools.partial(data.of, ratings=ratings)
            runner.execute(config, data=share, given=given, out=place, observer=view)
        outcome = outcome_of(cell, place)
    except (InterruptedRunError, KeyboardInterrupt):
        return Outcome(cell=cell, interrupted=True)
    except _ObserverError as error:
        raise error.cause from None
    except Exception as error:  # of any kind: the other cells do not depend on this one
        outcome = Outcome(cell=cell, error=_in_words(error))
    return replace(outcome, seconds=time.perf_counter() - begun)


class _ObserverError(Exception):
    """Wraps what an observer raised, which ends the study instead of failing the cell."""

    def __init__(self, cause: BaseException) -> None:
        self.cause = cause


class _CellView(Observer):
    """Observes one cell: reports its rounds to the study, and passes on a request to stop."""

    def __init__(self, cell: Cell, tell: Tell | None = None, flag: Path | None = None) -> None:
        self.cell, self.tell, self.flag = cell, tell, flag

    def round(self, record: Mapping[str, Any], total: int) -> None:
        if self.tell is not None:
            try:
                self.tell(self.cell, record["round"] + 1, total)
            except Exception as error:
                raise _ObserverError(error) from error
        if self.flag is not None and self.flag.exists():
            if threading.current_thread() is not threading.main_thread():
                raise InterruptedRunError("stopped")
            self.flag = None  # once: a second signal would interrupt the round
            signal.raise_signal(signal.SIGTERM)  # the run saves its state after its next round


def compared() -> list[str]:
    """The keys of ``summary.json`` that are compared: as served, of the last and the best round.

    They include what is only shown with some other preset.
    """
    found = []
    for name in METRICS:
        metric = METRICS[name]
        if not metric.shown:
            continue
        found += [f"{name}_final", f"{name}_best"] if metric.sums else [name]
        if metric.unit == "ratings" or name == "ndcg_at_10":
            found.append(f"{name}_served")
    return found


def metric_of(key: str) -> str:
    """The metric of such a key."""
    if key in METRICS:
        return key
    return key.removesuffix("_final").removesuffix("_best").removesuffix("_served")


def outcome_of(cell: Cell, place: Path) -> Outcome:
    """The outcome of a finished cell, from its summary."""
    try:
        summary = RunFolder(place).summary(needed=OF_EVERY_RUN)
    except RunFolderError as error:
        return Outcome(cell=cell, error=_in_words(error))
    if summary is None:
        return Outcome(cell=cell, error=f"{place}: has no summary.json; run it again")
    return Outcome(cell=cell, summary=summary)


def folder_name(name: str, signs: str = "-_") -> str:
    """A valid folder name; a hash keeps it unique if characters had to be replaced."""
    plain = "".join(letter if letter.isalnum() or letter in signs else "-" for letter in name)
    if plain == name and len(name) <= 60:
        return name
    return f"{plain[-40:].strip('-')}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _in_words(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, BGTPlannerError):
        return text
    return f"{type(error).__name__}: {text}"[:300]
