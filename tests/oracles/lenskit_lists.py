"""Make ``tests/assets/lenskit-lists.json``: made-up lists, and what LensKit says of them.

LensKit needs torch, which is too large for the tests. Where it is installed (made with 2025.8.1)::

    python tests/oracles/lenskit_lists.py tests/assets/lenskit-lists.json

LensKit's own default weighs the first two places the same, as NDCG was first published. Ours is
the usual weight, the logarithm of the place plus 1, which LensKit has as well.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np


def made(users: int = 40, items: int = 60) -> list[dict[str, list[int]]]:
    """Lists of ten and of fewer items, with none to fifteen relevant ones."""
    rng = np.random.default_rng(1)
    found = []
    for user in range(users):
        length = 10 if user % 5 else int(rng.integers(1, 10))
        shown = rng.permutation(items)[:length]
        relevant = rng.permutation(items)[: rng.integers(0, 16)]
        if user % 3 == 0 and len(relevant):
            relevant[: length // 2] = shown[: len(relevant[: length // 2])]
        found.append({"shown": shown.tolist(), "relevant": np.unique(relevant).tolist()})
    return found


def main() -> None:
    """Write the file."""
    from lenskit.data import ItemList
    from lenskit.metrics import NDCG, Recall, RecipRank
    from lenskit.metrics.ranking import LogRankWeight

    metrics = {
        "ndcg_at_10": NDCG(10, weight=LogRankWeight(offset=1)),
        "recall_at_10": Recall(10),
        "mrr": RecipRank(10),
    }
    lists = made()
    for entry in lists:
        shown = ItemList(item_ids=entry["shown"], ordered=True)
        relevant = ItemList(item_ids=entry["relevant"])
        if entry["relevant"]:
            entry |= {of: float(it.measure_list(shown, relevant)) for of, it in metrics.items()}
    lines = ",\n".join(map(json.dumps, lists))
    Path(sys.argv[1]).write_text(f'{{"items": 60, "lists": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
