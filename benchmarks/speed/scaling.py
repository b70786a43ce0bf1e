"""Question 3: what a rating costs, in time and in memory, as the data grow a hundredfold."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.speed.child import peak_bytes, quartiles, stopwatch

if TYPE_CHECKING:
    from bgtplanner.federation.simulation import Simulation

SIZES = (100_000, 1_000_000, 10_000_000)
NEXT_TO_NOTHING = 2_000
"""The data of the process that the others' memory is compared with."""
RATINGS_PER_CLIENT = 100
TURNS = 5
RATINGS_IN_A_TURN = 3_000_000
"""So many rounds are timed together that a short one is timed as well as a long one."""
ROUNDS_FOR_MEMORY = 3
TARGET_RATIO = 1.3
MODELS = ("biases", "tastes", "factorization", "fedgnn")


def n_items(ratings: int) -> int:
    """Items grow with the square root: 1,000 at 100 thousand ratings, 10,000 at 10 million."""
    return max(RATINGS_PER_CLIENT, math.isqrt(10 * ratings))


def prepare(folder: Path) -> dict[str, Any]:
    """Make the ratings of all sizes once, and keep them as plain arrays."""
    import numpy as np

    from bgtplanner.data.synthetic import synthetic_ratings

    with stopwatch() as seconds:
        for size in (NEXT_TO_NOTHING, *SIZES):
            ratings = synthetic_ratings(
                clients=size // RATINGS_PER_CLIENT,
                items=n_items(size),
                ratings_per_client=RATINGS_PER_CLIENT,
            )
            np.savez(folder / f"{size}.npz", u=ratings.user, i=ratings.item, v=ratings.value)
    return {"seconds": seconds[0]}


def simulation(model: str, size: int, folder: Path) -> Simulation:
    """All ratings in training, known from the start, and no evaluation."""
    import numpy as np

    from bgtplanner.data.ratings import Ratings
    from bgtplanner.data.split import Split
    from bgtplanner.federation.rounds import Federation
    from bgtplanner.federation.server import Server
    from bgtplanner.federation.simulation import Simulation
    from bgtplanner.models.learner import MODELS as LEARNERS

    with np.load(folder / f"{size}.npz") as stored:
        user, item, value = stored["u"], stored["i"], stored["v"]
    clients, items = size // RATINGS_PER_CLIENT, n_items(size)
    ratings = Ratings(
        user=user,
        item=item,
        value=value,
        time=None,
        client_of_user=np.arange(clients, dtype=np.int32),
        n_items=items,
        low=0.0,
        high=5.0,
        user_labels=np.arange(clients),
        item_labels=np.arange(items),
    )
    split = Split(
        train=ratings, test=ratings.take(np.arange(0)), arrival=np.zeros(len(ratings), np.int32)
    )
    optimizer = "posterior" if model in ("biases", "tastes") else "adam"
    federation = Federation(model=LEARNERS[model](), server=Server(optimizer=optimizer))
    return Simulation(federation, split, seed=0, device="cpu")


def time_all(model: str, folder: Path) -> dict[str, Any]:
    """Nanoseconds for a rating and a round, the sizes by turns."""
    simulations = {size: simulation(model, size, folder) for size in SIZES}
    for each in simulations.values():  # compile, and touch all memory once
        each.step()
        each.step()
    costs: dict[int, list[float]] = {size: [] for size in SIZES}
    for _ in range(TURNS):
        for size, each in simulations.items():
            rounds = max(1, RATINGS_IN_A_TURN // size)
            with stopwatch() as seconds:
                for _ in range(rounds):
                    each.step()
            costs[size].append(1e9 * seconds[0] / (rounds * size))
    ratios = [
        large / small for large, small in zip(costs[SIZES[-1]], costs[SIZES[0]], strict=True)
    ]
    low, middle, high = quartiles(ratios)
    return {
        "model": model,
        "nanoseconds_per_rating": costs,
        "ratio": middle,
        "ratio_quartiles": [low, high],
        "target_ratio": TARGET_RATIO,
    }


def memory_of(model: str, size: int, folder: Path) -> dict[str, Any]:
    """Largest resident size of this process after a few rounds."""
    trained = simulation(model, size, folder)
    for _ in range(ROUNDS_FOR_MEMORY):
        trained.step()
    return {"model": model, "ratings": size, "peak_bytes": peak_bytes()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--model", choices=MODELS)
    parser.add_argument("--memory-of", type=int, metavar="RATINGS")
    given = parser.parse_args()
    if given.model is None:
        print(json.dumps(prepare(given.folder)))
    elif given.memory_of is None:
        print(json.dumps(time_all(given.model, given.folder)))
    else:
        print(json.dumps(memory_of(given.model, given.memory_of, given.folder)))
