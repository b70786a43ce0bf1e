"""Carry out runs, one by one or side by side; what comes of each is written down at once."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import joblib

from benchmarks.results.plan import Run
from benchmarks.results.store import Store, fingerprint
from bgtplanner.data.ratings import Ratings
from bgtplanner.runs.assembly import ratings_of
from bgtplanner.runs.config import Config
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
    os.environ.setdefault("NPROC", "1")  # one core for each process; JAX reads it when it starts
    try:
        return play(run)
    except Exception as error:
        return Failure(run.key, f"{type(error).__name__}: {error}")


def estimate(runs: Sequence[Run], seconds: dict[str, float]) -> float:
    """Seconds that runs will take on one core."""
    known = {**SECONDS, **seconds}
    groups = {run.group for run in runs}
    return sum(known.get(run.place.dataset, 1.0) for run in runs) + COMPILING * len(groups)


def run_all(left: Sequence[Run], store: Store, jobs: int) -> bool:
    """Run what is missing, those that are compiled alike one after the other.

    Returns:
        Whether all went well; what fails does not keep the others from being run.
    """
    alike = sorted(left, key=lambda run: (*map(str, run.group), data_of(run.config)))
    begun, failed = time.monotonic(), 0
    parallel = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)
    for done, found in enumerate(parallel(joblib.delayed(play_or_fail)(of) for of in alike), 1):
        if isinstance(found, Failure):
            failed += 1
            print(f"failed: {found.key}: {found.error}", flush=True)
            continue
        store.add(found)
        rest = (time.monotonic() - begun) / done * (len(alike) - done) / 60
        print(f"{done:,} of {len(alike):,}: {found['key']}; {rest:.0f} min left", flush=True)
    return not failed
