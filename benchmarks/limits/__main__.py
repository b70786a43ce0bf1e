"""Measure from how many clients on the preset `recommended` is worth it, at which epsilon.

    python -m benchmarks.limits --plan                    say how much there is to run, and stop
    python -m benchmarks.limits --run --jobs 16           run what is missing
    python -m benchmarks.limits --run --real              the real sets; --real ml-100k for one
    python -m benchmarks.limits                           write the table and draw the picture

Finished runs are kept in `benchmarks/limits/runs.jsonl`, one on a line, and never run again unless
their settings change; so the same command goes on where it was stopped. It can be run in pieces,
by --clients, --epsilons and --seeds, or for so many --minutes, into several files (--results),
which can be put together with `cat`. Running needs numpy, scipy, jax, optax and pydantic, and
neither pyarrow nor rich nor matplotlib. On 16 cores and a graphics card, side by side, in about
five minutes (without the line with 100,000 clients in about two):

    python -m benchmarks.limits --run --jobs 11 --clients 30,100,300,1000,3000,10000 &
    python -m benchmarks.limits --run --jobs 5 --device gpu --clients 100000,30000 --results FILE
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.limits.plan import CLIENTS, EPSILONS, REAL, SEEDS, cells, pieces, seconds
from benchmarks.results.plan import Run
from benchmarks.results.play import Failure, play_all
from benchmarks.results.store import Store

_HERE = Path(__file__).parent
_PAGE = Path("docs/right-for-me.md")
_PICTURE = Path("docs/figures/limits.svg")
_PART = "limits"


def run_all(left: Sequence[Run], store: Store, jobs: int, minutes: float | None) -> bool:
    """Run what is missing, write each result down as it comes, and return whether all is done."""
    stop, begun, done = threading.Event(), time.monotonic(), 0
    if minutes is not None:
        timer = threading.Timer(60 * minutes, stop.set)
        timer.daemon = True
        timer.start()
    for found in play_all(pieces(left, jobs), jobs, stop):
        if isinstance(found, Failure):
            print(f"failed: {found.key}: {found.error}", flush=True)
            continue
        store.add(found)
        done += 1
        took = f"{found['seconds']:.0f} s, after {time.monotonic() - begun:.0f} s"
        print(f"{done} of {len(left)}: {found['key']}: {took}", flush=True)
    return done == len(left)


def write(results: Path, page: Path, picture: Path) -> None:
    """Write the table into the page, and draw the picture, from what has been run."""
    from benchmarks.limits.findings import as_markdown, stored, write_picture
    from benchmarks.paper.page import put
    from bgtplanner.runs.folder import write_whole

    rows = stored(results)
    write_picture(rows, picture)
    if page.exists():
        write_whole(page, put(page.read_text(encoding="utf-8"), _PART, as_markdown(rows)))
    print(f"{page}, {picture}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, or write what was run."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.limits",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--run", action="store_true", help="run what is missing")
    parser.add_argument("--plan", action="store_true", help="only say what would be run")
    parser.add_argument("--clients", default=",".join(map(str, CLIENTS)), help="default all")
    parser.add_argument("--real", nargs="?", const=",".join(REAL), help="real sets; default all")
    parser.add_argument("--epsilons", default=",".join(f"{one:g}" for one in EPSILONS))
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)), help="default %(default)s")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--device", default="cpu", choices=("cpu", "gpu"))
    parser.add_argument("--minutes", type=float, help="begin no more runs after so long")
    parser.add_argument("--results", type=Path, default=_HERE / "runs.jsonl")
    parser.add_argument("--page", type=Path, default=_PAGE)
    parser.add_argument("--picture", type=Path, default=_PICTURE)
    given = parser.parse_args(arguments)
    if not (given.run or given.plan):
        write(given.results, given.page, given.picture)
        return 0
    try:
        counts = [int(one) for one in given.clients.split(",")]
        epsilons = [float(one) for one in given.epsilons.split(",")]
        seeds = [int(one) for one in given.seeds.split(",")]
    except ValueError:
        parser.error("--clients, --epsilons and --seeds are numbers with commas, such as 30,100")
    if given.jobs < 1:
        parser.error(f"--jobs {given.jobs}: at least 1")
    services: list[int | str] = [*counts]
    if given.real is not None:
        services = given.real.split(",")
        if unknown := [name for name in services if name not in REAL]:
            parser.error(f"--real {unknown[0]}: expected some of {', '.join(REAL)}")
    runs = cells(services, epsilons, seeds, given.device)
    store = Store(given.results)
    left = store.missing(runs)
    guess = sum(map(seconds, pieces(left, given.jobs))) / given.jobs / 60
    print(
        f"{len(runs)} runs, {len(left)} to do, about {guess:.0f} minutes with --jobs {given.jobs}"
    )
    if given.plan or not left:
        return 0
    if given.device == "cpu":
        os.environ["JAX_PLATFORMS"] = "cpu"  # processes would take the graphics memory otherwise
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # several processes share it
    return 0 if run_all(left, store, given.jobs, given.minutes) else 1


if __name__ == "__main__":
    sys.exit(main())
