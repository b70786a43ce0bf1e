"""Question 1: one FedGNN round, all clients at once, against a loop over the clients in torch."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.speed.child import quartiles, stay_on, stopwatch

if TYPE_CHECKING:
    from benchmarks.speed.torch_loop import TorchLoop
    from bgtplanner.data.ratings import Ratings
    from bgtplanner.federation.rounds import State
    from bgtplanner.models.fedgnn import FedGNN


class Size(NamedTuple):
    """How large, how much faster it should be, and how long to measure.

    Attributes:
        clients: Number of clients, each one user.
        items: Number of items.
        ratings_per_client: Mean, before a fifth is held out.
        target: Smallest ratio of the times that will do.
        turns: How often the two are measured by turns.
        rounds: Rounds of ours in a turn; the loop runs one.
    """

    clients: int
    items: int
    ratings_per_client: int
    target: float
    turns: int
    rounds: int


SIZES = {
    "ML-100K": Size(943, 1682, 106, 20.0, turns=9, rounds=10),
    "ML-1M": Size(6040, 3706, 165, 15.0, turns=5, rounds=5),
}

TOLERANCE = 1e-4
"""Largest relative difference between the two sides that rounding in float32 explains."""

CHECKED_CLIENTS = 1000
"""Gradients are compared for at least half as many clients, or all if there are fewer."""


def compare(name: str, threads: int) -> dict[str, Any]:
    """Time both sides by turns, on as many CPUs as `threads`."""
    stay_on(threads)
    import jax
    import numpy as np
    import torch

    from benchmarks.speed.torch_loop import TorchLoop
    from bgtplanner.data.split import Split, split_ratings
    from bgtplanner.data.synthetic import synthetic_ratings
    from bgtplanner.federation.rounds import Federation
    from bgtplanner.federation.server import Server
    from bgtplanner.federation.simulation import Simulation
    from bgtplanner.models.fedgnn import FedGNN

    size = SIZES[name]
    ratings = synthetic_ratings(
        clients=size.clients, items=size.items, ratings_per_client=size.ratings_per_client
    )
    split = split_ratings(ratings, seed=0, rounds=1, initial_share=1.0)
    # Nothing is held out: the compiler then leaves the evaluation out of the round.
    train, nothing = split.train, split.test.take(np.arange(0))
    split = Split(train=train, test=nothing, arrival=split.arrival)
    model, server = FedGNN(), Server()
    ours = Simulation(Federation(model=model, server=server), split, seed=0, device="cpu")
    before = jax.tree.map(jax.numpy.array, ours.state)
    loop = TorchLoop(model, server, train, before)

    torch.set_num_threads(torch_threads := faster_thread_count(loop, threads))
    gradients_apart = gradient_difference(model, before, train, loop)
    ours.step()
    loop.round()
    rounds_apart = round_difference(before, ours.state, loop)
    for what, apart in (("gradients", gradients_apart), ("rounds", rounds_apart)):
        if not apart <= TOLERANCE:
            raise SystemExit(f"the two sides' {what} differ by {apart:.1e}: not the same model")

    our_seconds, loop_seconds = [], []
    for _ in range(size.turns if threads > 1 else (size.turns + 1) // 2):
        with stopwatch() as seconds:
            for _ in range(size.rounds):
                ours.step()
        our_seconds.append(seconds[0] / size.rounds)
        with stopwatch() as seconds:
            loop.round()
        loop_seconds.append(seconds[0])
    ratios = [theirs / mine for theirs, mine in zip(loop_seconds, our_seconds, strict=True)]
    low, middle, high = quartiles(ratios)
    return {
        "size": name,
        "threads": threads,
        "torch_threads": torch_threads,
        "clients": size.clients,
        "items": size.items,
        "ratings": len(train),
        "target": size.target,
        "gradients_apart": gradients_apart,
        "rounds_apart": rounds_apart,
        "our_seconds": our_seconds,
        "loop_seconds": loop_seconds,
        "ratio": middle,
        "ratio_quartiles": [low, high],
        "ratio_of_best": min(loop_seconds) / min(our_seconds),
        "versions": {"jax": jax.__version__, "torch": torch.__version__},
    }


def gradient_difference(model: FedGNN, state: State, train: Ratings, loop: TorchLoop) -> float:
    """Largest distance between a client's two gradients, relative to their length.

    Of its item rows, of the dense parameters and of its user embedding, each on its own.
    """
    import jax
    import numpy as np

    from bgtplanner.models.learner import Interactions, client_gradients

    gradients = jax.jit(client_gradients, static_argnums=0)(
        model, state.shared, state.local, Interactions.of(train)
    )
    ends = np.cumsum(np.bincount(train.user, minlength=train.n_users))
    rows = np.split(np.asarray(gradients.upload.rows), ends[:-1])
    dense = np.asarray(gradients.upload.dense)
    users = np.asarray(gradients.local.embedding)
    largest = 0.0
    for index in range(0, train.n_users, 1 + train.n_users // CHECKED_CLIENTS):
        theirs = loop.gradient(index)
        flat = np.concatenate([part.numpy().ravel() for part in theirs.dense])
        for ours, other in (
            (rows[index], theirs.rows.numpy()),
            (dense[index], flat),
            (users[index], theirs.user.numpy()),
        ):
            apart = np.linalg.norm(ours - other) / np.linalg.norm(other)
            largest = max(largest, float(apart))
    return largest


def round_difference(before: State, after: State, loop: TorchLoop) -> float:
    """Distance of the two sides' parameters after a round, relative to the way they went."""
    import numpy as np

    dense = np.concatenate([part.detach().numpy().ravel() for part in loop.dense])
    largest = 0.0
    for start, ours, theirs in (
        (before.shared.items, after.shared.items, loop.items.numpy()),
        (before.shared.dense, after.shared.dense, dense),
        (before.local.embedding, after.local.embedding, loop.users.numpy()),
    ):
        apart = np.linalg.norm(ours - theirs) / np.linalg.norm(ours - start)
        largest = max(largest, float(apart))
    return largest


def faster_thread_count(loop: TorchLoop, threads: int) -> int:
    """1 or `threads`, whatever suits the loop better: its operations may be too small to divide.

    And a second thread that has to wait for a busy CPU can make the loop many times slower.
    """
    import torch

    sample = range(min(200, len(loop.clients)))
    best = dict.fromkeys({1, threads}, float("inf"))
    for _ in range(5):
        for count in best:
            torch.set_num_threads(count)
            with stopwatch() as seconds:
                for index in sample:
                    loop.gradient(index)
            best[count] = min(best[count], seconds[0])
    return min(best, key=best.__getitem__)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=list(SIZES), required=True)
    parser.add_argument("--threads", type=int, required=True)
    given = parser.parse_args()
    print(json.dumps(compare(given.size, given.threads)))
