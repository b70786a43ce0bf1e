"""The paper's context: singular values of the matrix of which client uses which item.

The matrix shows which client uses which item, so its singular values are not private. A run that
shows them to its policy says so under ``not_accounted``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array
from scipy.sparse.linalg import svds

from bgtplanner.planning.arguments import whole
from bgtplanner.planning.context import Context

_NOTHING = 1e-6  # singular values below this share of the largest count as 0
_WHOLE_SIDE = 64  # up to this size a direct solution is as cheap as a search


class UsageContext(Context):
    """Largest singular values of the binary client-item usage matrix (the paper's context).

    The values are in descending order, padded with zeros. They come from ARPACK
    (:func:`scipy.sparse.linalg.svds`), which in a very sparse matrix may find a value of high
    multiplicity too few times. Small matrices are solved directly.

    Args:
        values: The number of singular values, d in the paper.
        seed: Seeds the random vector that a computation starts from.

    Example:
        >>> context = UsageContext(values=3)
        >>> context.of_pairs([0, 0, 1, 1], [0, 1, 0, 0], clients=2, items=2).round(4).tolist()
        [1.618, 0.618, 0.0]
    """

    def __init__(self, values: int = 5, *, seed: int = 0) -> None:
        super().__init__(whole("values", values, 1, 100), seed=whole("seed", seed, 0))

    def of(self, coordinator: Any) -> NDArray[np.float64]:
        """Return the singular values of all that clients will name in the coming round."""
        engine = coordinator.engine
        client, item = engine.shown_pairs()
        return self.of_pairs(client, item, clients=engine.n_clients, items=engine.n_items)

    def of_pairs(
        self, client: ArrayLike, item: ArrayLike, *, clients: int, items: int
    ) -> NDArray[np.float64]:
        """Return the singular values of the pairs in use; repeated pairs count once."""
        rows, columns = np.asarray(client, dtype=np.int64), np.asarray(item, dtype=np.int64)
        used = csr_array((np.ones(len(rows)), (rows, columns)), (clients, items))
        used.sum_duplicates()
        used.data = np.ones(used.nnz)
        small = min(used.shape)
        if not used.nnz:
            return np.zeros(self.values)
        if small <= max(_WHOLE_SIDE, self.values + 1):
            found = np.linalg.svd(used.toarray(), compute_uv=False)
        else:
            start = np.random.default_rng(self.seed).standard_normal(small)
            found = svds(used, k=self.values, v0=start, return_singular_vectors=False)
        found = np.sort(found)[::-1][: self.values]
        found = np.where(found > _NOTHING * np.max(found, initial=0.0), found, 0.0)
        return np.pad(found, (0, self.values - len(found)))
