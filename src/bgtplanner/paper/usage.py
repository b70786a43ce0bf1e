"""The paper's context: singular values of the matrix of which client uses which item.

The matrix shows which client uses which item, so its singular values are not private. A run that
shows them to its policy says so under ``not_accounted``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, issparse

from bgtplanner.errors import ConfigError
from bgtplanner.planning.context import Context
from bgtplanner.planning.given import floats, number, whole
from bgtplanner.planning.plan import Floats

__all__ = ["UsageContext"]

Integers = NDArray[np.integer[Any]]
Product = Callable[[Floats], Any]

NOTHING = 1e-13  # squared singular values below this share of the largest count as 0
TRACKED = 1  # vectors kept beyond those asked for
PROBES = 2  # fresh random vectors per computation: they find what the kept ones cannot
BLOCKS = 4  # the search space is reduced to its best block when it holds this many blocks
MARGIN = 3.0  # residuals between the last value asked for and those that follow
FEWEST_STEPS, MOST_STEPS = 2, 400
DENSE_SHARE, DENSE_SIDE = 0.1, 4096  # if denser and no larger: compute the Gram matrix
WHOLE_SIDE = 112  # up to this size a direct solution is as cheap as a search
DIRECTORY_CELLS = 2**24  # up to this many cells, repeated pairs are found by a table of all


class UsageContext(Context):
    """Largest singular values of the binary client-item usage matrix (the paper's context).

    The values are in descending order, padded with zeros. They are computed by block Krylov
    iteration with Rayleigh-Ritz and a check of the residuals. Each computation starts from the
    last round's vectors: where little has changed, a few products are enough. In a very sparse
    matrix a value of high multiplicity may be found too few times. Small matrices are solved
    directly.

    Args:
        values: The number of singular values, d in the paper.
        seed: Seeds the random vectors that a computation starts from.
        tolerance: Relative error of each value, estimated from residuals. For a planner that
            smooths over contexts 1e-3 is enough, and takes fewer products.

    Example:
        >>> context = UsageContext(values=3)
        >>> context.of_pairs([0, 0, 1, 1], [0, 1, 0, 0], clients=2, items=2).round(4).tolist()
        [1.618, 0.618, 0.0]
    """

    def __init__(self, values: int = 5, *, seed: int = 0, tolerance: float = 1e-6) -> None:
        super().__init__(whole("values", values, 1, 100), seed=whole("seed", seed, 0))
        self.tolerance = number("tolerance", tolerance, 1e-12, 0.1)
        self._calls = 0
        self._vectors: Floats | None = None

    def of(self, coordinator: Any) -> Floats:
        """Return the singular values of all that clients will name in the coming round."""
        engine = coordinator.engine
        client, item = engine.shown_pairs()
        return self.of_pairs(client, item, clients=engine.n_clients, items=engine.n_items)

    def of_pairs(self, client: ArrayLike, item: ArrayLike, *, clients: int, items: int) -> Floats:
        """Return the singular values of the pairs in use; repeated pairs count once.

        Building the matrix can cost as much as its singular values: if all possible pairs are
        known in advance, :meth:`of_matrix` is faster.

        Args:
            client: Client of each pair, from 0.
            item: Item of each pair, from 0.
            clients: Number of clients.
            items: Number of items.
        """
        shape = whole("clients", clients, 0), whole("items", items, 0)
        rows, columns = _indices("client", client, clients), _indices("item", item, items)
        same, expected = len(rows) == len(columns), f"{len(rows)}, as clients"
        ConfigError.unless(same, "item", f"{len(columns)} of them", expected)
        return self._of_canonical(_binary(rows, columns, shape))

    def of_matrix(self, matrix: Any) -> Floats:
        """Return the singular values of a sparse matrix of clients by items, as zeros and ones.

        This is the fast way for many rounds: build one CSR array of all pairs that may ever be in
        use, and set its ``data`` to 1 or 0 before each round.

        Args:
            matrix: A SciPy sparse array or matrix, best a CSR array of float64.
        """
        ConfigError.unless(
            issparse(matrix) and matrix.ndim == 2, "matrix", type(matrix), "a SciPy sparse matrix"
        )
        rows = csr_array(matrix)
        if not rows.has_canonical_format:
            rows = rows.copy()
            rows.sum_duplicates()
        used = rows.data != 0
        ones = csr_array((used.astype(np.float64), rows.indices, rows.indptr), shape=rows.shape)
        if np.count_nonzero(used) < 0.75 * rows.nnz:  # multiplying by zeros takes time, too
            ones = ones.copy()
            ones.eliminate_zeros()
        return self._of_canonical(ones)

    def of_operator(
        self, times: Product, transposed_times: Product, clients: int, items: int
    ) -> Floats:
        """Return the singular values of a matrix X that is given by its products only.

        Args:
            times: X @ v for an array v with `items` rows and any number of columns.
            transposed_times: X.T @ u for an array u with `clients` rows.
            clients: Rows of X.
            items: Columns of X.
        """
        clients, items = whole("clients", clients, 0), whole("items", items, 0)
        inner, outer = (transposed_times, times) if clients <= items else (times, transposed_times)
        names = ("times", "transposed_times")
        inner_name, outer_name = names[::-1] if clients <= items else names
        small, large = min(clients, items), max(clients, items)

        def gram_times(vectors: Floats) -> Floats:
            image = _product(inner_name, inner(vectors), large, vectors)
            return _product(outer_name, outer(image), small, vectors)

        return self._largest(gram_times, small)

    def state_dict(self) -> dict[str, Any]:
        """Return what has to be kept to continue exactly from here, as plain data."""
        vectors = None if self._vectors is None else self._vectors.tolist()
        return {"calls": self._calls, "vectors": vectors}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned."""
        calls = whole("calls", state["calls"], 0)
        vectors = None if state["vectors"] is None else floats("vectors", state["vectors"])
        if vectors is not None:
            width = self.values + TRACKED
            ConfigError.unless(
                vectors.ndim == 2 and vectors.shape[1] == width,
                "vectors",
                f"of shape {vectors.shape}",
                f"columns for {self.values} values, {width} of them",
            )
        self._calls, self._vectors = calls, vectors

    def _of_canonical(self, matrix: csr_array) -> Floats:
        """Return the singular values of zeros and ones in which no pair is stored twice."""
        clients, items = matrix.shape
        small = min(clients, items)
        if small <= DENSE_SIDE and matrix.nnz > DENSE_SHARE * clients * items:
            # Counts of common items are whole numbers below 2**24: single precision is exact.
            dense = matrix.astype(np.float32).toarray()
            counts = dense @ dense.T if clients <= items else dense.T @ dense
            gram = counts.astype(np.float64)
            return self._largest(lambda vectors: gram @ vectors, small)
        transposed = matrix.T
        first, second = (transposed, matrix) if clients <= items else (matrix, transposed)
        return self._largest(lambda vectors: second @ (first @ vectors), small)

    def _largest(self, gram_times: Product, size: int) -> Floats:
        """Return the square roots of the largest eigenvalues of the smaller Gram matrix."""
        block = self.values + TRACKED + PROBES
        generator = np.random.default_rng([self.seed, self._calls])
        self._calls += 1
        if size <= max(BLOCKS * block, WHOLE_SIDE):  # small enough for a direct solution
            eye = np.eye(size)
            parts = [gram_times(eye[:, at : at + block]) for at in range(0, size, block)]
            gram = np.hstack([np.zeros((size, 0)), *parts])
            found = np.linalg.eigvalsh((gram + gram.T) / 2)[::-1]
        else:
            known = self._vectors
            carried = known if known is not None and len(known) == size else np.zeros((size, 0))
            carried = _orthonormal(carried, carried[:, :0])
            fresh = generator.standard_normal((size, block - carried.shape[1]))
            found, vectors = _iterate(gram_times, carried, fresh, self.values, self.tolerance)
            self._vectors = vectors[:, : self.values + TRACKED]
        found = found[: self.values]
        kept = np.where(found > NOTHING * np.max(found, initial=0.0), found, 0.0)
        values: Floats = np.pad(np.sqrt(kept), (0, self.values - len(kept)))
        return values


def _iterate(
    gram_times: Product, carried: Floats, fresh: Floats, values: int, tolerance: float
) -> tuple[Floats, Floats]:
    """Return a block of the largest eigenvalues and -vectors of a positive semidefinite matrix.

    The search space grows by the residuals of its best block (a block Krylov space), and is
    reduced to that block when it is full.
    """
    block = carried.shape[1] + fresh.shape[1]
    basis = np.hstack([carried, _orthonormal(fresh, carried)])
    images = gram_times(basis)
    small = basis.T @ images
    for step in range(MOST_STEPS):
        found, turn = np.linalg.eigh(small)
        found, turn = found[::-1], turn[:, ::-1][:, :block]
        best, best_images = basis @ turn, images @ turn
        residual = best_images - best * found[:block]
        sizes = np.sqrt(np.einsum("ij,ij->j", residual, residual))
        if step >= FEWEST_STEPS and _settled(found[:block], sizes, values, tolerance):
            break
        if basis.shape[1] + block > BLOCKS * block:
            basis, images, small = best, best_images, np.diag(found[:block])
        open_ones = sizes > NOTHING * max(found[0], 0.0)
        more = _orthonormal(residual[:, open_ones] / sizes[open_ones], basis)
        if not more.shape[1]:
            break
        more_images = gram_times(more)
        basis, images = np.hstack([basis, more]), np.hstack([images, more_images])
        beside = basis.T @ more_images
        small = np.vstack([np.hstack([small, beside[: len(small)]]), beside.T])
    return found[:block], best


def _settled(found: Floats, sizes: Floats, values: int, tolerance: float) -> bool:
    """Whether the first values are accurate enough, judged by the sizes of their residuals.

    A Ritz value is off by at most its residual, and by at most the residual's square over the
    distance to the part of the spectrum that the block does not cover.
    """
    wanted, residual = found[:values], sizes[:values]
    distance = np.maximum(wanted - found[-1], np.finfo(np.float64).tiny)
    off = np.minimum(residual, residual * (residual / distance))
    allowed = np.maximum(2 * tolerance * wanted, NOTHING * found[0])
    # The rest must be clearly smaller: otherwise a large value may be hidden in a mixture.
    above = found[values:] + MARGIN * sizes[values:]
    return bool(np.all(off <= allowed) and np.all(above <= wanted[-1] + allowed[-1]))


def _orthonormal(columns: Floats, basis: Floats) -> Floats:
    """Return orthonormal columns that span what the given ones add to a basis.

    There is a second pass if the first removed so much that rounding errors would matter.
    """
    for _ in range(2):
        columns = columns - basis @ (basis.T @ columns)
        spread, turn = np.linalg.eigh(columns.T @ columns)
        kept = spread > 1e-12 * np.max(spread, initial=1e-12)
        columns = columns @ (turn[:, kept] / np.sqrt(spread[kept]))
        if np.min(spread, initial=1.0) > 1e-3:
            break
    return columns


def _binary(rows: Integers, columns: Integers, shape: tuple[int, int]) -> csr_array:
    """Return a matrix of ones at the given pairs; repeated pairs are stored once, or as 0."""
    clients, items = shape
    number = len(rows)
    if clients * items > DIRECTORY_CELLS or number >= 2**31:
        matrix = csr_array((np.ones(number), (rows, columns)), shape=shape)
        matrix.sum_duplicates()
        matrix.data[:] = 1.0
        return matrix
    # Far cheaper than sorting the pairs: each cell keeps the last pair that named it.
    cell = rows.astype(np.int64) * items + columns
    order = np.arange(number, dtype=np.int32)
    last = np.empty(clients * items, dtype=np.int32)
    last[cell] = order
    used = (last[cell] == order).astype(np.float64)
    if np.any(rows[1:] < rows[:-1]):
        by_row = np.argsort(rows.astype(np.min_scalar_type(clients)), kind="stable")
        used, columns = used[by_row], columns[by_row]
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=clients))])
    return csr_array(
        (used, columns.astype(np.int32, copy=False), starts.astype(np.int32)), shape=shape
    )


def _product(name: str, made: Any, rows: int, vectors: Floats) -> Floats:
    """Return a product, if it has the right shape and only finite numbers."""
    array = np.asarray(made, dtype=np.float64)
    expected = (rows, vectors.shape[1])
    ConfigError.unless(array.shape == expected, name, array.shape, f"products of shape {expected}")
    ConfigError.unless(bool(np.isfinite(array).all()), name, "NaN or infinite", "finite products")
    return array


def _indices(name: str, given: ArrayLike, limit: int) -> Integers:
    """Return integers from 0 to below the limit; a refusal does not show them."""
    array = np.asarray(given)
    if array.size == 0 and array.ndim == 1:
        return np.zeros(0, dtype=np.int64)
    expected = f"one dimension of whole numbers from 0 to below {limit}"
    ConfigError.unless(array.ndim == 1, name, f"{array.ndim} dimensions", expected)
    ConfigError.unless(np.issubdtype(array.dtype, np.integer), name, str(array.dtype), expected)
    fits = bool(array.min() >= 0 and array.max() < limit)
    ConfigError.unless(fits, name, "out of range", expected)
    return array.astype(np.int64, copy=False)
