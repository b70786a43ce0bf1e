"""The sum of what clients send, added up in the open: the reference for every transport."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgtplanner.errors import ConfigError
from bgtplanner.privacy.randomness import ExactNoise
from bgtplanner.privacy.shares import Shares


def sum_of_shares(
    shares: Shares, uploads: ArrayLike, sources: Sequence[ExactNoise], *,
    clips: ArrayLike | None = None,
) -> NDArray[np.uint64]:  # fmt: skip
    """Return the sum, modulo 2^bits, of what clients send: the reference for every transport.

    Args:
        shares: The shares of the round.
        uploads: The uploads of the clients that answer, ``[answered, size]``.
        sources: A source of noise for each of them.
        clips: Each client's own bound, if they differ.
    """
    rows = np.asarray(uploads, dtype=np.float64)
    fits = rows.ndim == 2 and len(rows) == len(sources)
    ConfigError.unless(fits, "uploads", rows.shape, f"{len(sources)} rows, one per source")
    bounds = np.broadcast_to(shares.clip if clips is None else np.asarray(clips), len(rows))
    total = np.zeros(rows.shape[1], dtype=np.uint64)
    for row, source, bound in zip(rows, sources, bounds, strict=True):
        total += shares.encode(row, source, clip=float(bound))  # modulo 2^64, a multiple
    found = np.asarray(total & shares.mask(rows.shape[1]))
    shares.decode(found, len(rows))  # refuses a sum of too few
    return found


def distance_from_gaussian(share: int | float, number: int, size: int = 1) -> float:
    """Return how far a sum of rounded shares may be from Gaussian noise, in `size` coordinates.

    It is a bound on the logarithm of the ratio of its probabilities to those of a function of
    Gaussian noise of variance number * share^2, whatever the upload (``docs/proofs/shares.md``).
    """
    total = 0.0
    if not _uneven(share, 1):  # then it is below what a float can tell from 0 for all of them
        return total
    for index in range(1, min(number, 64)):
        total -= math.log1p(-_uneven(share, index))
    # The larger the index, the smaller its term.
    total -= max(0, number - 64) * math.log1p(-_uneven(share, 64))
    return size * total


def _uneven(share: float, index: int) -> float:
    """Return by how much at most the density of a normal variate modulo 1 differs from 1."""
    ratio = math.exp(-2 * math.pi**2 * share**2 * index / (index + 1))
    # The powers 1, 4, 9, ... are no more than 1, 2, 3, ...; a share is never so small that this
    # reaches 1.
    return min(2 * ratio / (1 - ratio), 1 - 2**-53) if ratio < 1 else 1 - 2**-53
