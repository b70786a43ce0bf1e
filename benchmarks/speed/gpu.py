"""Milliseconds of one private round at four sizes, on whatever device JAX finds.

    python -m benchmarks.speed.gpu
    JAX_PLATFORMS=cpu taskset -c 0,1 python -m benchmarks.speed.gpu --sizes 100k,1M,10M

Ratings are made up as plain arrays, with lengths and popularities as skewed as real ones. Nothing
is held out. Beside every round stands what its sums alone would cost: nine by user and two by
item, which no round can do without, and which are bound by the bandwidth of the memory.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.speed.child import peak_bytes
from bgtplanner.data.catalogue import Catalogue
from bgtplanner.data.ratings import Ratings
from bgtplanner.data.split import Split
from bgtplanner.federation.parameters import RoundParameters
from bgtplanner.federation.protection import Protection
from bgtplanner.federation.rounds import Federation
from bgtplanner.federation.simulation import Simulation
from bgtplanner.models.bias import Biases
from bgtplanner.models.factorization import Factorization
from bgtplanner.models.fedgnn import FedGNN
from bgtplanner.models.interactions import Interactions
from bgtplanner.models.learner import Learner
from bgtplanner.models.optimizers import Server
from bgtplanner.models.tastes import Tastes


class Size(NamedTuple):
    """How large a federation is."""

    ratings: int
    clients: int
    items: int


SIZES = {
    "100k": Size(100_000, 943, 1_682),
    "1M": Size(1_000_000, 6_040, 3_706),
    "10M": Size(10_000_000, 60_400, 10_000),
    "16M": Size(16_000_000, 138_000, 26_744),
    "100M": Size(100_000_000, 1_000_000, 20_000),
}
FEATURES = 18
NOISE = 0.5  # of the whole budget over the clip: about epsilon 10
TURNS = 3
_FINE = 1 << 20


def made_up(size: Size) -> Ratings:
    """Return made-up ratings; those of a user are spread over the items by their popularity."""
    generator = np.random.default_rng(0)
    lengths = generator.lognormal(0.0, 0.9, size.clients)
    lengths = np.maximum(lengths * (size.ratings / lengths.sum()), 1.0).astype(np.int64)
    lengths = np.minimum(lengths, size.items // 2)
    user = np.repeat(np.arange(size.clients, dtype=np.int32), lengths)
    number = np.arange(len(user), dtype=np.int32) - (np.cumsum(lengths) - lengths)[user]
    at = (number + generator.random(len(user), dtype=np.float32)) / lengths[user]
    popularity = 1.0 / (generator.permutation(size.items) + 0.02 * size.items)
    ends = np.cumsum(popularity / popularity.sum())
    table = np.searchsorted(ends, (np.arange(_FINE) + 0.5) / _FINE).astype(np.int32)
    place = np.minimum((at * _FINE).astype(np.int32), _FINE - 1)
    features = (generator.random((size.items, FEATURES)) < 0.15).astype(np.float32)
    labels = np.arange(size.items).astype(str)
    names = tuple(f"feature {number}" for number in range(FEATURES))
    return Ratings(
        user=user,
        item=np.minimum(table[place], size.items - 1),
        value=generator.integers(1, 6, len(user), dtype=np.int8).astype(np.float32) / 5,
        time=None,
        client_of_user=np.arange(size.clients, dtype=np.int32),
        n_items=size.items,
        low=0.0,
        high=5.0,
        user_labels=np.arange(size.clients),
        item_labels=labels,
        catalogue=Catalogue(labels=labels, titles=None, features=features, names=names),
    )


def learners(size: Size) -> dict[str, tuple[Learner, Server]]:
    """Return the learners with their servers, as a run of this size would have them."""
    posterior = Server(optimizer="posterior", aggregation="clients")
    return {
        "biases": (Biases(), posterior),
        "tastes": (Tastes().suited(size.clients, size.items, NOISE), posterior),
        "factorization": (Factorization(), Server()),
        "fedgnn": (FedGNN(), Server()),
    }


def parameters_for(clients: int) -> RoundParameters:
    """Return parameters under which every client answers."""
    return RoundParameters(
        granted=jnp.ones(clients),
        clip=jnp.ones(1),
        scale=jnp.full(1, 0.5),
        class_of_client=jnp.zeros(clients, jnp.int32),
        share=jnp.float32(0.5 / clients**0.5),
        step=jnp.float32(2.0**-20),
    )


def best_of(play: Callable[[], Any]) -> float:
    """Return the fewest milliseconds that it takes."""
    taken = []
    for _ in range(TURNS):
        begun = time.perf_counter()
        jax.block_until_ready(play())  # type: ignore[no-untyped-call]
        taken.append(time.perf_counter() - begun)
    return round(1e3 * min(taken), 3)


def round_of(name: str, size: Size, ratings: Ratings) -> dict[str, Any]:
    """Return how long a round takes, and how long the first one, which compiles."""
    model, server = learners(size)[name]
    federation = Federation(
        model=model, server=server, protection=Protection(mechanism="gaussian", trust="secagg")
    )
    nothing = ratings.take(np.arange(0))
    split = Split(train=ratings, test=nothing, arrival=np.zeros(len(ratings), np.int32))
    simulation = Simulation(federation, split, seed=0)
    simulation.divide({"tastes": 0.5})
    parameters = parameters_for(size.clients)

    def play() -> Any:
        simulation.step(parameters)
        return simulation.state

    begun = time.perf_counter()
    play()
    first = round(time.perf_counter() - begun, 2)
    play()
    taken, peak = best_of(play), round(peak_bytes() / 1e6)
    return {"milliseconds": taken, "first_seconds": first, "peak_megabytes": peak}


def bare_sums(ratings: Ratings) -> float:
    """Return the milliseconds of nine sums by user and two by item."""
    interactions = Interactions.of(ratings, None)

    @jax.jit
    def sums(interactions: Interactions) -> Any:
        value = interactions.value
        columns = jnp.stack([value * (1.0 + number) for number in range(9)], axis=1)
        items = jax.ops.segment_sum(columns[:, :2], interactions.item, interactions.n_items)
        return interactions.sum_by_user(columns), items

    sums(interactions)
    return best_of(lambda: sums(interactions))


def main() -> None:
    """Measure the sizes and models that were asked for, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="100k,1M,16M,100M")
    parser.add_argument("--models", default="biases,tastes,factorization,fedgnn")
    given = parser.parse_args()
    device = jax.devices()[0]
    print(json.dumps({"device": device.device_kind, "jax": jax.__version__}), flush=True)
    for label in given.sizes.split(","):
        ratings = made_up(SIZES[label])
        said = {"size": label, "ratings": len(ratings), "bare_sums": bare_sums(ratings)}
        print(json.dumps(said), flush=True)
        for name in given.models.split(","):
            try:
                found = round_of(name, SIZES[label], ratings)
            except Exception as error:  # out of memory: the other models still count
                found = {"failed": str(error).splitlines()[0][:200]}
            print(json.dumps({"size": label, "model": name, **found}), flush=True)


if __name__ == "__main__":
    main()
