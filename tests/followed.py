"""A made-up run for those who watch one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from bgtplanner.data.split import Split
from bgtplanner.runs.config import load_config
from bgtplanner.runs.observers import Observer
from made_runs import records_of

ROUNDS = 5
CONFIG = load_config(
    settings={
        "federation.rounds": ROUNDS,
        "planning.policy": "bgt",
        "model.name": "factorization",
    }
)
RECORDS, _ = records_of(CONFIG)
SPLIT = cast(Split, None)  # trackers do not look into it


class Done:
    """As much of a result as trackers look at."""

    summary: Mapping[str, Any] = {
        "rmse_final": 0.19,
        "policy": "bgt",
        "epsilon": None,
        "rounds_run": ROUNDS,
        "ndcg_at_10": 0.25,
        "mrr": None,
        "rmse_arriving": 0.5,
    }


def follow(tracker: Observer, first: int = 0, last: int = ROUNDS) -> None:
    """Tell of some of its rounds."""
    tracker.started(CONFIG, SPLIT, first)
    for record in RECORDS[first:last]:
        tracker.round(record, ROUNDS)
