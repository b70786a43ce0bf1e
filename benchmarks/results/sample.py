"""How many core-hours all of it takes, from a sample: some runs of each kind, each twice.

    python -m benchmarks.results.sample --jobs 16
    python -m benchmarks.results.sample --jobs 6 --together 32    on a GPU

A kind is a data set, what protects it, the order of arrival, and whether lists are scored. The
second time nothing is compiled or loaded any more: that is what a run costs in a process that has
had others of its group. What the first time takes longer is counted once for each group, and once
for all seeds where every client is one user, since their arrays have the same shapes then. With
--together, the runs of a kind are stepped together, so many at a time, with the same data.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

OF_A_KIND = 4  # runs, unless more are stepped together
SEED = 19
SEVERAL_USERS = "ml-1m"  # the set whose clients have several users, dealt to them by the seed
LARGE = ("ml-1m", "ml-1m-users")


def twice(numbers: Sequence[int]) -> dict[str, Any]:
    """Seconds of one core for some runs of the plan, the first and the second time."""
    from benchmarks.results.plan import whole
    from benchmarks.results.play import Failure, play_wave

    every = whole().runs()
    runs = [every[number] for number in numbers]
    row: dict[str, Any] = {"kind": kind_of(runs[0]), "runs": len(runs)}
    for name in ("first", "second"):
        begun, at = time.process_time(), time.perf_counter()
        found = play_wave(runs)
        row[name] = time.process_time() - begun
        row[f"{name}_wall"] = time.perf_counter() - at
        for one in found:
            if isinstance(one, Failure):
                raise RuntimeError(f"{one.key}: {one.error}")
        row["rmse"] = [one["rmse_served"] for one in found]
    return row


def kind_of(run: Any) -> str:
    place = run.place
    lists = "lists" if run.lists else "no lists"
    return f"{place.dataset}, {place.mechanism}, {place.arrival}, {lists}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time, one core each")
    parser.add_argument("--together", type=int, default=1, help="runs that are stepped together")
    parser.add_argument("--only", default="", help="kinds that contain this")
    given = parser.parse_args()
    for name in ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    from benchmarks.results.plan import whole
    from bgtplanner.runs.cells import data_of

    runs, draw = whole().runs(), random.Random(SEED)
    kinds: dict[str, list[int]] = {}
    groups: dict[str, set[Any]] = {}
    for number, run in enumerate(runs):
        kinds.setdefault(kind_of(run), []).append(number)
        seed = run.seed if run.place.dataset == SEVERAL_USERS else None
        groups.setdefault(kind_of(run), set()).add((*run.group[:3], seed, run.group[4]))
    waves: list[list[int]] = []
    for kind, numbers in kinds.items():
        if given.only not in kind:
            continue
        if given.together == 1:
            waves += [[one] for one in draw.sample(numbers, min(OF_A_KIND, len(numbers)))]
            continue
        first = runs[draw.choice(numbers)]  # those that would be in its wave
        alike = (first.group, data_of(first.config))
        wave = [one for one in numbers if (runs[one].group, data_of(runs[one].config)) == alike]
        waves.append(draw.sample(wave, min(given.together, len(wave))))
    waves.sort(key=lambda wave: runs[wave[0]].place.dataset not in LARGE)  # the longest first
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        os.environ["BGTPLANNER_CACHE"] = cache  # no program is known at first
        with ProcessPoolExecutor(
            given.jobs, mp_context=get_context("spawn"), max_tasks_per_child=1
        ) as pool:
            for row in pool.map(twice, waves):
                rows.append(row)
                print(json.dumps(row), flush=True)
    steady_hours, more_hours = 0.0, 0.0
    for kind, every in kinds.items():
        here = [row for row in rows if row["kind"] == kind]
        if not here:
            continue
        steady = statistics.fmean(row["second"] / row["runs"] for row in here)
        more = statistics.fmean(max(0.0, row["first"] - row["second"]) for row in here)
        steady_hours += len(every) * steady / 3600
        more_hours += len(groups[kind]) * more / 3600
        print(
            f"{kind}: {len(every):,} runs of {steady:.2f} s, {len(groups[kind])} groups of "
            f"{more:.1f} s more, from {sum(row['runs'] for row in here)}"
        )
    print(f"all: {steady_hours:.2f} core-hours, and {more_hours:.2f} for compiling and loading")


if __name__ == "__main__":
    main()
