"""How many core-hours all of it takes, from a sample: each run twice in a process of its own.

    PYTHONPATH=src:. python benchmarks/results/sample.py --jobs 16

The second time nothing is compiled or loaded any more: that is what a run costs in a process that
has had others of its group. What the first time takes longer is counted once for each group, and
once for all seeds where every client is one user, since their arrays have the same shapes then.
With another PYTHONPATH it measures other code, down to 6bd9dd3, by the same runs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

SAMPLED = {"ml-100k": 16, "filmtrust": 10, "ml-1m": 10, "ml-1m-users": 4}
SEED = 19
SEVERAL_USERS = "ml-1m"  # the set whose clients have several users, dealt to them by the seed


def twice(number: int) -> dict[str, Any]:
    """Seconds of one core for a run of the plan, the first and the second time."""
    from benchmarks.results.plan import whole
    from benchmarks.results.play import play

    run = whole().runs()[number]
    row: dict[str, Any] = {"key": run.key, "dataset": run.place.dataset}
    for name in ("first", "second"):
        begun = time.process_time()
        found = play(run)
        row[name] = time.process_time() - begun
        row["rmse"] = found["rmse_final"], found["rmse_served"]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time, one core each")
    parser.add_argument("--share", type=float, default=1.0, help="of the 40 runs")
    given = parser.parse_args()
    for name in ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    from benchmarks.results.plan import whole

    runs, draw, chosen = whole().runs(), random.Random(SEED), []
    numbers: dict[str, list[int]] = {}
    groups: dict[str, set[Any]] = {}
    for number, run in enumerate(runs):
        numbers.setdefault(run.place.dataset, []).append(number)
        seed = run.seed if run.place.dataset == SEVERAL_USERS else None
        groups.setdefault(run.place.dataset, set()).add((*run.group[:3], seed, run.group[4]))
    for dataset, wanted in SAMPLED.items():
        chosen += draw.sample(numbers[dataset], max(1, round(given.share * wanted)))
    chosen.sort(key=lambda number: -list(SAMPLED).index(runs[number].place.dataset))
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        os.environ["BGTPLANNER_CACHE"] = cache  # no program is known at first
        with ProcessPoolExecutor(
            given.jobs, mp_context=get_context("spawn"), max_tasks_per_child=1
        ) as pool:
            for row in pool.map(twice, chosen):
                rows.append(row)
                print(json.dumps(row), flush=True)
    total = 0.0
    for dataset, every in numbers.items():
        here = [row for row in rows if row["dataset"] == dataset]
        steady = statistics.fmean(row["second"] for row in here)
        more = statistics.fmean(max(0.0, row["first"] - row["second"]) for row in here)
        hours = (len(every) * steady + len(groups[dataset]) * more) / 3600
        total += hours
        print(
            f"{dataset}: {len(every):,} runs of {steady:.2f} s, {len(groups[dataset])} groups of "
            f"{more:.1f} s more, from {len(here)}: {hours:.2f} core-hours"
        )
    print(f"all: {total:.2f} core-hours")


if __name__ == "__main__":
    main()
