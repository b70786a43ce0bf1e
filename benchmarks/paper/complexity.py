"""How planning one round grows with rounds t, context length d, levels A and clients U.

    python -m benchmarks.paper.complexity

The paper says O(A (t^2 d + U)). Seconds are those of the processor for one pass of Alg. 3, lines 6
to 9 and 15, of :mod:`bgtplanner.paper.algorithms`; a slope is that of log seconds over log size,
between the two largest sizes. A history of t rounds is solved anew in every round, which takes
t^3 / 3 steps where an update of the last solution would take t^2.
"""

from __future__ import annotations

import math
import time
from statistics import median

import numpy as np

from bgtplanner.paper import algorithms
from bgtplanner.paper.algorithms import Given

USUAL = {"t": 300, "d": 5, "levels": 5, "clients": 1000}
SIZES = {
    "t": (250, 500, 1000, 2000),
    "d": (50, 500, 5000, 50_000),
    "levels": (5, 50, 500, 5000),
    "clients": (10_000, 100_000, 1_000_000, 4_000_000),
}
TURNS = 5


def seconds(t: int, d: int, levels: int, clients: int) -> float:
    """Return the median seconds of planning a round; every client is a class of its own."""
    draw = np.random.default_rng(0)
    totals = np.full(clients, 10.0)
    costs = algorithms.budget_levels(totals, 4000, 2800, levels)
    gamma = algorithms.gamma(levels, 4000, clients)
    given = Given(totals, np.ones(clients), costs, 4000, 5, gamma)
    history = [(at, at % levels, draw.normal(size=d), draw.normal()) for at in range(t)]
    context, multipliers = draw.normal(size=d), np.full(clients, 1.0 / clients)
    taken = []
    for _ in range(TURNS):
        begun = time.process_time()
        mean = algorithms.predicted(given, history, context, t)
        beta = algorithms.scores(mean, totals / 4000, costs, multipliers)
        level = int(draw.choice(levels, p=algorithms.probabilities(beta, gamma)))
        algorithms.dual_step(multipliers, costs[:, level] - totals / 4000, 0.1, 1.0)
        taken.append(time.process_time() - begun)
    return median(taken)


def main() -> None:
    """Print a line for every size that is varied, with its slope."""
    print("varied   sizes: milliseconds; slope between the last two")
    for name, sizes in SIZES.items():
        found = [seconds(**(USUAL | {name: size})) for size in sizes]
        slope = math.log(found[-1] / found[-2]) / math.log(sizes[-1] / sizes[-2])
        cells = ", ".join(f"{n:,}: {1e3 * s:.1f}" for n, s in zip(sizes, found, strict=True))
        print(f"{name:8} {cells}; {slope:.2f}")


if __name__ == "__main__":
    main()
