"""Milliseconds of one private round at four sizes, on whatever device JAX finds.

    python -m benchmarks.speed.gpu

needs NumPy, SciPy, JAX and Optax, and of this package the models and the federation only. Ratings
are made up as plain arrays. Beside every round stands what its sums alone would cost: the sums by
user and by item that no round can do without, bound by the bandwidth of the memory.
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
from bgtplanner.federation.chunks import Heldout
from bgtplanner.federation.parameters import RoundParameters
from bgtplanner.federation.protection import Protection
from bgtplanner.federation.rounds import Federation
from bgtplanner.models.bias import Biases
from bgtplanner.models.factorization import Factorization
from bgtplanner.models.fedgnn import FedGNN
from bgtplanner.models.interactions import Interactions, laid_out
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
    "1B": Size(1_000_000_000, 10_000_000, 50_000),
}
FEATURES = 18
NOISE = 0.5  # of the whole budget over the clip: about epsilon 10
TURNS = 3
_FINE = 1 << 20


def made_up(size: Size, seed: int = 0) -> Ratings:
    """Return ratings with lengths and popularities as skewed as real ones, quickly."""
    generator = np.random.default_rng(seed)
    lengths = generator.lognormal(0.0, 0.9, size.clients)
    lengths = np.maximum(lengths * (size.ratings / lengths.sum()), 1.0).astype(np.int64)
    lengths = np.minimum(lengths, size.items // 2)
    user = np.repeat(np.arange(size.clients, dtype=np.int32), lengths)
    starts = (np.cumsum(lengths) - lengths).astype(np.int32)
    number = np.arange(len(user), dtype=np.int32) - starts[user]
    at = generator.random(len(user), dtype=np.float32)
    at += number
    at /= lengths.astype(np.float32)[user]
    del number
    popularity = 1.0 / (generator.permutation(size.items) + 0.02 * size.items)
    ends = np.cumsum(popularity / popularity.sum())
    table = np.searchsorted(ends, (np.arange(_FINE) + 0.5) / _FINE).astype(np.int32)
    item = np.minimum(table[np.minimum((at * _FINE).astype(np.int32), _FINE - 1)], size.items - 1)
    value = generator.integers(1, 6, len(user), dtype=np.int8).astype(np.float32)
    value /= 5
    features = (generator.random((size.items, FEATURES)) < 0.15).astype(np.float32)
    labels = np.arange(size.items).astype(str)
    names = tuple(f"feature {number}" for number in range(FEATURES))
    return Ratings(
        user=user,
        item=item,
        value=value,
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


def terms_for(clients: int) -> RoundParameters:
    """Return terms under which every client answers."""
    return RoundParameters(
        granted=jnp.ones(clients),
        clip=jnp.ones(1),
        scale=jnp.full(1, 0.5),
        class_of_client=jnp.zeros(clients, jnp.int32),
        share=jnp.float32(0.5 / clients**0.5),
        step=jnp.float32(2.0**-20),
    )


def best_of(play: Callable[[], Any]) -> tuple[float, float]:
    """Return the fewest seconds that it takes, by the wall and of the processor."""
    wall, processor = [], []
    for _ in range(TURNS):
        begun, spent = time.perf_counter(), time.process_time()
        jax.block_until_ready(play())  # type: ignore[no-untyped-call]
        wall.append(time.perf_counter() - begun)
        processor.append(time.process_time() - spent)
    return min(wall), min(processor)


def round_of(name: str, size: Size, interactions: Interactions) -> dict[str, Any]:
    """Return how long a round takes, and how long the compiler."""
    model, server = learners(size)[name]
    federation = Federation(
        model=model, server=server, protection=Protection(mechanism="gaussian", trust="secagg")
    )
    nothing = jnp.zeros(0, jnp.int32)
    heldout = Heldout(nothing, nothing, jnp.zeros(0))
    if hasattr(interactions, "parts_of"):
        heldout = heldout._replace(parts=interactions.parts_of(np.zeros(0, np.int32)))
    state = jax.jit(federation.initial)(jax.random.key(0), interactions)
    state = jax.tree.map(lambda leaf: jnp.array(leaf, dtype=leaf.dtype), state)
    shared = model.asking(state.shared, {"tastes": 0.5})
    state = state._replace(shared=shared)
    terms, key = terms_for(interactions.n_clients), jax.random.key(1)
    cpu = {"xla_cpu_experimental_ynn_fusion_type": ""}
    on_cpu = jax.default_backend() == "cpu"
    play = jax.jit(
        Federation.round, static_argnums=(0, 8), compiler_options=cpu if on_cpu else None
    )
    index = jnp.int32(1)
    begun, spent = time.perf_counter(), time.process_time()
    lowered = play.lower(federation, state, interactions, heldout, index, key, terms)
    compiled = lowered.compile()
    compiling, on_processor = time.perf_counter() - begun, time.process_time() - spent

    def once() -> Any:
        return compiled(state, interactions, heldout, index, key, terms)

    for _ in range(2):
        state, _, _ = once()
    wall, processor = best_of(once)
    memory = compiled.memory_analysis()
    bytes_of = getattr(memory, "temp_size_in_bytes", 0)
    return {
        "milliseconds": round(1e3 * wall, 3),
        "cpu_milliseconds": round(1e3 * processor, 3),
        "compile_seconds": round(compiling, 2),
        "compile_cpu_seconds": round(on_processor, 2),
        "temporary_megabytes": round(bytes_of / 1e6, 1),
        "peak_megabytes": round(peak_bytes() / 1e6),
    }


def bare_sums(interactions: Interactions) -> dict[str, Any]:
    """Return how long nine sums by user and two by item take, and the bandwidth of a copy."""

    @jax.jit
    def sums(interactions: Interactions, value: Any) -> Any:
        columns = jnp.stack([value * (1.0 + number) for number in range(9)], axis=1)
        items = jax.ops.segment_sum(columns[:, :2], interactions.item, interactions.n_items)
        return interactions.sum_by_user(columns), items

    copied = jax.jit(lambda values: values + 1.0)
    wall, _ = best_of(lambda: sums(interactions, interactions.value))
    again, _ = best_of(lambda: copied(interactions.value))
    rate = 8 * interactions.value.shape[0] / again / 1e9
    return {"milliseconds": round(1e3 * wall, 3), "gigabytes_per_second": round(rate, 1)}


def main() -> None:
    """Measure the sizes and models that were asked for, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="100k,1M,16M,100M")
    parser.add_argument("--models", default="biases,tastes,factorization,fedgnn")
    parser.add_argument("--no-sums", action="store_true", help="for a memory of 8 GB")
    given = parser.parse_args()
    device = jax.devices()[0]
    print(json.dumps({"device": device.device_kind, "jax": jax.__version__}), flush=True)
    for label in given.sizes.split(","):
        size = SIZES[label]
        begun = time.perf_counter()
        interactions = laid_out(made_up(size))
        made = round(time.perf_counter() - begun, 1)
        edges, peak = interactions.user.shape[0], round(peak_bytes() / 1e6)
        said = {"size": label, "edges": edges, "made": made, "peak_megabytes": peak}
        print(json.dumps(said), flush=True)
        if not given.no_sums:
            print(json.dumps({"size": label, "sums": bare_sums(interactions)}), flush=True)
        for name in given.models.split(","):
            try:
                found = round_of(name, size, interactions)
            except Exception as error:  # out of memory: the other models still count
                found = {"failed": str(error).splitlines()[0][:200]}
            print(json.dumps({"size": label, "model": name, **found}), flush=True)
        del interactions


if __name__ == "__main__":
    main()
