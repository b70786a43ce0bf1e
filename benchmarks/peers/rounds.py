"""One round of the task on every side, by turns, once all have been checked to be equal."""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from benchmarks.speed.child import available_cpus, quartiles, stay_on, stopwatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from benchmarks.peers.task import Task
    from bgtplanner.data.ratings import Ratings

TOLERANCE = 1e-4
"""Largest relative distance between two sums that rounding in float32 explains."""


class Side(Protocol):
    """Somebody who can do the task."""

    def sum(self) -> NDArray[Any]:
        """Return the sum of clipped uploads before noise."""

    def round(self, clients: int | None = None) -> None:
        """Do all of it, with noise; a slow one may do it for some of its clients."""


class Peer(NamedTuple):
    """Whom ours is compared with.

    Attributes:
        what: What it is, in words.
        package: The module that must be there.
        target: How many times faster ours should be at the size of ML-1M, if anything was asked.
        slow: Whether its time grows with the number of clients and is long, so that a part of them
            is measured.
    """

    what: str
    package: str
    target: float | None = None
    slow: bool = False


PEERS = {
    "flower": Peer("Flower's simulation engine (Ray)", "ray", 200.0, slow=True),
    "vmap": Peer("torch, `vmap` over padded clients", "torch", 5.0),
    "flat": Peer("torch, flat arrays, derived by hand", "torch"),
}
TARGET_SIZE = "ML-1M"


def missing() -> dict[str, str]:
    """Return the packages that are not installed, by the peer that needs them."""
    return {
        name: peer.package
        for name, peer in PEERS.items()
        if importlib.util.find_spec(peer.package) is None
    }


def side_of(name: str, task: Task) -> Side:
    """Return a peer that runs in this process."""
    from benchmarks.peers.torch_sides import Flat, Vmapped

    return Vmapped(task) if name == "vmap" else Flat(task)


def check_equal(name: str, found: NDArray[Any], expected: NDArray[Any]) -> float:
    """Return how far a side's sum is from what it should be.

    Raises:
        SystemExit: If it is further than rounding explains: then there is nothing to time.
    """
    from benchmarks.peers.task import apart

    distance = apart(found, expected)
    if not distance <= TOLERANCE:
        raise SystemExit(f"{name}: its sum is {distance:.1e} from the others': not the same task")
    return distance


def compare(
    ratings: Ratings, turns: int, rounds: int, part: int, folder: Path, peers: list[str]
) -> dict[str, Any]:
    """Check all sides, then time them by turns.

    Args:
        ratings: The ratings, whose users are the clients.
        turns: How often each side is timed.
        rounds: Rounds of ours in a turn; the others do one.
        part: How many of the clients slow peers have. What each further client takes, from a
            quarter of them to all of them, is what those take that they do not have.
        folder: Where files may be written.
        peers: Names of those to compare with.
    """
    import numpy as np

    from benchmarks.peers.ours import Ours
    from benchmarks.peers.task import Task

    task = Task.of(ratings)
    ours = Ours(task, ratings)
    number = min(part, task.clients)
    few = number // 4  # what a round takes anyway is not scaled up: see by_turns
    draw = np.random.default_rng(0)
    chosen = sorted(draw.choice(task.clients, number, replace=False).tolist())
    expected = {False: task.sum(), True: task.sum(chosen)}
    scale = {name: task.clients / number if PEERS[name].slow else 1.0 for name in peers}
    sides = {name: side_of(name, task) for name in peers if name != "flower"}
    distances = {"ours": check_equal("ours", ours.sum(), expected[False])}
    use_threads(1)
    for name, side in sides.items():
        distances[name] = check_equal(name, side.sum(), expected[PEERS[name].slow])
    threads = {name: faster_thread_count(side) for name, side in sides.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ("ours", "whole round", *peers)}

    def play(flower: Side | None = None) -> None:
        if flower is not None:
            distances["flower"] = check_equal("flower", flower.sum(), expected[True])
            flower.round()
        by_turns(ours, sides | ({} if flower is None else {"flower": flower}))

    def by_turns(ours: Ours, sides: dict[str, Side]) -> None:
        mine = {"ours": ours.round, "whole round": ours.whole_round}
        for play in (*mine.values(),) * 2:  # compile, and touch all memory once
            play()
        for _ in range(turns):
            for name, play in mine.items():
                with stopwatch() as taken:
                    for _ in range(rounds):
                        play()
                seconds[name].append(taken[0] / rounds)
            for name, side in sides.items():
                if name in threads:
                    use_threads(threads[name])
                with stopwatch() as taken:
                    side.round()
                seconds[name].append(taken[0])
                if scale[name] > 1:
                    with stopwatch() as of_few:
                        side.round(few)
                    taken_by_one = max(taken[0] - of_few[0], 0.0) / (number - few)
                    seconds[name][-1] += taken_by_one * (task.clients - number)

    if "flower" in peers:
        from benchmarks.peers.flower_side import with_flower

        with_flower(task, chosen, folder, play)
    else:
        play()
    found = {}
    for name in peers:
        ratios = [
            theirs / mine for theirs, mine in zip(seconds[name], seconds["ours"], strict=True)
        ]
        low, middle, high = quartiles(ratios)
        found[name] = {"ratio": middle, "ratio_quartiles": [low, high], "scaled": scale[name]}
    return {
        "clients": task.clients,
        "items": len(task.rows),
        "ratings": len(ratings),
        "apart": distances,
        "threads": threads,
        "seconds": seconds,
        "peers": found,
    }


def use_threads(number: int) -> None:
    """Let torch use as many threads, where it is installed."""
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch.set_num_threads(number)


def faster_thread_count(side: Side) -> int:
    """Return 1 or the number of CPUs, whichever suits a side in torch better."""
    best = dict.fromkeys(sorted({1, available_cpus()}), float("inf"))
    for count in best:
        use_threads(count)
        with stopwatch() as seconds:
            side.round()
        best[count] = seconds[0]
    return min(best, key=best.__getitem__)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", required=True)
    parser.add_argument("--turns", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--part", type=int, required=True)
    parser.add_argument("--peers", required=True, help="names with commas between")
    given = parser.parse_args()
    stay_on(min(2, available_cpus()))
    from benchmarks.peers.task import SIZES
    from bgtplanner.data.synthetic import synthetic_ratings

    logging.getLogger("flwr").setLevel(logging.ERROR)
    size = SIZES[given.size]
    ratings = synthetic_ratings(
        clients=size.clients, items=size.items, ratings_per_client=size.ratings_per_client
    )
    with tempfile.TemporaryDirectory() as folder:
        found = compare(
            ratings,
            given.turns,
            given.rounds,
            given.part,
            Path(folder),
            [name for name in given.peers.split(",") if name],
        )
    print(json.dumps({"size": given.size} | found))


if __name__ == "__main__":
    main()
