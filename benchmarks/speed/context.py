"""What the planner's context costs: singular values of the usage matrix, from round to round.

At the size of MovieLens 100K, with new pairs arriving every round, by the ways there are of asking
and beside ARPACK (`scipy.sparse.linalg.svds`); with a thousand pseudo items a client, drawn anew
every round; and at 100,000 clients by 50,000 items and 10 million pairs, by products only.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.linalg import svds

from bgtplanner.paper.usage import UsageContext

CLIENTS, ITEMS, PAIRS, ARRIVING = 943, 1682, 80_000, 800
PSEUDO_ITEMS, PSEUDO_ROUNDS = 1000, 5
MANY_CLIENTS, MANY_ITEMS, MANY_PAIRS = 100_000, 50_000, 10_000_000
ROUNDS = 50
TARGET_RATIO = 1.0  # a warm context against ARPACK on the same matrix


def pairs(clients: int, items: int, number: int, seed: int = 0) -> NDArray[np.int64]:
    """Distinct pairs in random order, `[2, about number]`; few busy clients and items."""
    generator = np.random.default_rng(seed)
    drawn = 2 * number
    client = (clients * generator.random(drawn) ** 1.7).astype(np.int64)
    item = (items * generator.random(drawn) ** 4).astype(np.int64)
    taste = (8 * generator.random(clients) ** 2).astype(np.int64)  # groups, large and small
    shift = np.where(generator.random(drawn) < 0.7, taste[client] * items // 8, 0)
    cells = np.unique(client * items + (item + shift) % items)
    cells = generator.permutation(cells)[:number]
    return np.stack(np.divmod(cells, items))


def seconds(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def arriving() -> dict[str, Any]:
    """Rounds in which new pairs arrive; the ways of asking by turns."""
    client, item = pairs(CLIENTS, ITEMS, PAIRS)
    rank = csr_array((np.arange(len(client)), (client, item)), shape=(CLIENTS, ITEMS))
    matrix = csr_array((np.zeros(rank.nnz), rank.indices, rank.indptr), shape=rank.shape)
    contexts = {
        "of_matrix": UsageContext(),
        "of_matrix, tolerance 1e-3": UsageContext(tolerance=1e-3),
        "of_pairs": UsageContext(),
    }
    spent: dict[str, list[float]] = {name: [] for name in (*contexts, "cold", "svds")}
    worst = 0.0
    first = len(client) - ROUNDS * ARRIVING
    for here in range(first, len(client) + 1, ARRIVING):
        matrix.data[:] = rank.data < here
        known = csr_array(matrix.toarray())
        found: list[NDArray[np.float64]] = []
        for name, context in contexts.items():
            if name == "of_pairs":
                near, far = client[:here], item[:here]
                took = seconds(lambda: context.of_pairs(near, far, clients=CLIENTS, items=ITEMS))  # noqa: B023
            else:
                took = seconds(lambda: found.append(context.of_matrix(matrix)))  # noqa: B023
            spent[name].append(took)
        spent["cold"].append(seconds(lambda: UsageContext().of_matrix(matrix)))
        exact = np.sort(svds(known, k=5, random_state=0, return_singular_vectors=False))[::-1]
        start = np.ones(CLIENTS)
        took = seconds(lambda: svds(known, k=5, tol=1e-5, v0=start))  # noqa: B023
        spent["svds"].append(took)
        worst = max(worst, float(np.abs(found[0] / exact - 1).max()))
    warm = {name: times[1:] for name, times in spent.items()}
    return {"seconds": warm, "largest_relative_error": worst}


def with_pseudo_items() -> dict[str, Any]:
    """Rounds in which every client adds a thousand items that it has not used."""
    client, item = pairs(CLIENTS, ITEMS, PAIRS)
    generator = np.random.default_rng(1)
    used = np.zeros((CLIENTS, ITEMS), dtype=bool)
    used[client, item] = True
    context, spent = UsageContext(), []
    for _ in range(PSEUDO_ROUNDS):
        order = np.argsort(generator.random(used.shape) + used, axis=1)[:, :PSEUDO_ITEMS]
        now = used.copy()
        np.put_along_axis(now, order, True, axis=1)
        matrix = csr_array(now.astype(np.float64))
        spent.append(seconds(lambda: context.of_matrix(matrix)))  # noqa: B023
    return {"pairs": int(matrix.nnz), "seconds": spent}


def by_products() -> dict[str, Any]:
    """A matrix that is known by its products only, cold and then with a thousandth more pairs."""
    client, item = pairs(MANY_CLIENTS, MANY_ITEMS, MANY_PAIRS)
    context, spent = UsageContext(), []
    for here in (len(client) - len(client) // 1000, len(client)):
        ones = np.ones(here, dtype=np.float64)
        shape = (MANY_CLIENTS, MANY_ITEMS)
        matrix = csr_array((ones, (client[:here], item[:here])), shape=shape)
        transposed = matrix.T
        spent.append(
            seconds(
                lambda: context.of_operator(matrix.__matmul__, transposed.__matmul__, *shape)  # noqa: B023
            )
        )
    return {"pairs": len(client), "cold_seconds": spent[0], "warm_seconds": spent[1]}


def run() -> dict[str, Any]:
    """All cases; the ratio is a warm context over ARPACK, by turns on the same matrices."""
    result = arriving()
    turns = zip(result["seconds"]["of_matrix"], result["seconds"]["svds"], strict=True)
    return {
        **result,
        "milliseconds": {name: 1e3 * median(all_) for name, all_ in result["seconds"].items()},
        "ratio": median(ours / theirs for ours, theirs in turns),
        "target_ratio": TARGET_RATIO,
        "pseudo": with_pseudo_items(),
        "by_products": by_products(),
    }


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(json.dumps(run()))
