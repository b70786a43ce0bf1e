"""Play policies in training loops that they know nothing about, and compare them with uniform.

    python -m benchmarks.loops                       everything; some minutes on two cores
    python -m benchmarks.loops --loops logistic --epsilon 0.5 --seeds 5 --out ''

The loops are in `training.py`. Policies see no context. The planner is told how far the training
loss fell (`loss`), the same with some noise (`noisy`), or nothing (`none`); a real loop would
measure it on public data or pay for it. The noise is that of each plan, so that all spend at most
the same budget. Results are kept by cell: what is there is not played again.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.loops.play import CLIENTS, EPSILONS, POLICIES, ROUNDS, SEEDS, Results, cells_of
from benchmarks.loops.table import table
from benchmarks.loops.training import LOOPS, missing


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.loops",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--loops", default=",".join(LOOPS), help="default %(default)s")
    parser.add_argument("--epsilon", default=",".join(f"{value:g}" for value in EPSILONS))
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many")
    parser.add_argument("--policies", default=",".join(POLICIES), help="default %(default)s")
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    default = str(Path(__file__).with_name("results.json"))
    parser.add_argument("--out", default=default, help="where results are kept; '' for nowhere")
    given = parser.parse_args(arguments)
    loops, policies = given.loops.split(","), given.policies.split(",")
    for names, known, option in ((loops, LOOPS, "--loops"), (policies, POLICIES, "--policies")):
        if not set(names) <= set(known):
            parser.error(f"{option}: expected some of {', '.join(known)}")
    try:
        epsilons = [float(part) for part in given.epsilon.split(",")]
    except ValueError as error:
        parser.error(f"--epsilon: expected numbers with commas ({error})")
    for name in loops:
        if (why := missing(name)) is not None:
            print(f"{name} is left out: {why}", file=sys.stderr)
    loops = [name for name in loops if missing(name) is None]
    seeds = range(given.seeds)
    cells = cells_of(loops, epsilons, seeds, policies, given.clients, given.rounds)
    results = Results(Path(given.out) if given.out else None)
    for number, _ in enumerate(results.fill(cells, given.jobs), start=1):
        if number % 100 == 0:
            print(f"{number:,} runs played", file=sys.stderr, flush=True)
    print(table(results.of(cells)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
