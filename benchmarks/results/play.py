"""Carry out runs, one by one or side by side.

Each process takes runs that are compiled alike one after the other, and says at once what came of
each; so a kill loses only what is running.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context, parent_process
from typing import Any, NamedTuple, TypeVar

from benchmarks.results.plan import Run
from benchmarks.results.store import fingerprint
from bgtplanner.data.ratings import Ratings
from bgtplanner.runs.config import Config
from bgtplanner.runs.prepared import ratings_of
from bgtplanner.runs.run import execute

FIGURES = (
    "rmse_final",
    "rmse_served",
    "rmse_constant",
    "rmse_user_mean",
    "rmse_client_alone",
    "rmse_client_alone_served",
    "rmse_features_alone",
    "ndcg_at_10",
    "ndcg_at_10_served",
    "ndcg_at_10_popularity",
    "ndcg_at_10_popularity_released",
    "recall_at_10",
    "coverage",
    "overlap",
    "twins",
    "epsilon_spent_max",
    "epsilon_other_reading",
    "rounds_paid",
    "not_accounted",
)
"""What is kept of a summary, as far as it has it."""
SECONDS = {"filmtrust": 4.0, "ml-100k": 10.0, "ml-1m": 120.0, "ml-1m-users": 120.0}
"""Of one run on one core, to guess by until some have been seen."""
COMPILING = 8.0
_latest: dict[str, Ratings] = {}
T = TypeVar("T")


class Failure(NamedTuple):
    """A run that came to nothing."""

    key: str
    error: str


def data_of(config: Config) -> str:
    """All settings that decide what a run is trained and tested on."""
    settings = [config.data.model_dump(mode="json"), config.synthetic.model_dump(mode="json")]
    return json.dumps([*settings, config.run.seed, config.federation.rounds], sort_keys=True)


def _shared(config: Config) -> Ratings:
    """The ratings of a run: most often those of the one before."""
    key = data_of(config)
    if key not in _latest:
        _latest.clear()  # first of all: two large data sets may not fit
        _latest[key] = ratings_of(config)
    return _latest[key]


def play(run: Run) -> dict[str, Any]:
    """Carry out one run."""
    begun = time.perf_counter()
    summary = execute(run.config, ratings=_shared(run.config)).summary
    return {
        "key": run.key,
        "mark": run.mark,
        "code": fingerprint(),
        **{name: summary[name] for name in FIGURES if summary.get(name) is not None},
        "note": summary.get("note") or summary.get("planner_note"),
        "seconds": time.perf_counter() - begun,
    }


def play_or_fail(run: Run) -> dict[str, Any] | Failure:
    """Carry out one run; one that fails leaves the others alone."""
    try:
        return play(run)
    except Exception as error:
        return Failure(run.key, f"{type(error).__name__}: {error}")


def pieces_of(
    runs: Sequence[Run],
    jobs: int,
    seconds: Mapping[str, float] | None = None,
) -> list[list[Run]]:
    """Runs that are compiled alike, in pieces short enough to keep all processes busy."""
    known = {**SECONDS, **(seconds or {})}
    groups: dict[tuple[Any, ...], dict[str, list[Run]]] = {}
    for run in runs:
        groups.setdefault(run.group, {}).setdefault(data_of(run.config), []).append(run)
    most = max(120.0, sum(known.get(run.place.dataset, 1.0) for run in runs) / (4 * jobs))
    pieces = []
    for group, by_data in groups.items():
        each = known.get(group[0], 1.0)
        size = max(1, int(most / each))
        alike = [run for runs in by_data.values() for run in runs]
        pieces += [(each * len(piece), list(piece)) for piece in _cut(alike, size)]
    if jobs > 1:  # the longest first, so that none is left for the end
        pieces.sort(key=lambda piece: -piece[0])
    return [piece for _, piece in pieces]


def _cut(values: Sequence[T], size: int) -> list[Sequence[T]]:
    return [values[first : first + size] for first in range(0, len(values), size)]


def estimate(runs: Sequence[Run], seconds: Mapping[str, float]) -> float:
    """Seconds that runs will take on one core."""
    known = {**SECONDS, **seconds}
    groups = {run.group for run in runs}
    return sum(known.get(run.place.dataset, 1.0) for run in runs) + COMPILING * len(groups)


def play_all(
    pieces: Sequence[Sequence[Run]], jobs: int, stop: threading.Event
) -> Iterator[dict[str, Any] | Failure]:
    """What comes of runs, as it comes, until there are no more or a stop is asked for."""
    if jobs > 1:
        yield from _side_by_side(pieces, jobs, stop)
        return
    for run in itertools.chain(*pieces):
        if stop.is_set():
            return
        yield play_or_fail(run)


def _side_by_side(
    pieces: Sequence[Sequence[Run]], jobs: int, stop: threading.Event
) -> Iterator[dict[str, Any] | Failure]:
    for name in ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"  # one core for each process
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # they share an accelerator
    todo: queue.SimpleQueue[Sequence[Run]] = queue.SimpleQueue()
    done: queue.SimpleQueue[dict[str, Any] | Failure | None] = queue.SimpleQueue()
    for piece in pieces:
        todo.put(piece)

    def lane() -> None:
        """One process with all runs of a piece, so that it compiles once."""
        pool = _one_process()
        try:
            while not stop.is_set():
                for run in todo.get_nowait():
                    if stop.is_set():
                        return
                    try:
                        done.put(pool.submit(play_or_fail, run).result())
                    except BaseException as error:
                        done.put(Failure(run.key, f"{type(error).__name__}: {error}"))
                        if isinstance(error, BrokenProcessPool):
                            pool = _one_process()
        except queue.Empty:
            pass
        finally:
            pool.shutdown()
            done.put(None)

    lanes = [threading.Thread(target=lane, daemon=True) for _ in range(min(jobs, len(pieces)))]
    for thread in lanes:
        thread.start()
    left = len(lanes)
    try:
        while left:
            found = done.get()
            if found is None:
                left -= 1
            else:
                yield found
    finally:
        stop.set()
        with contextlib.suppress(KeyboardInterrupt):
            for thread in lanes:
                thread.join()


def _one_process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_end_with_parent)


def _end_with_parent() -> None:
    """Nothing is left behind if the parent is killed."""
    parent = parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
