"""The sum of what clients send, added up in the open: the reference for every transport."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgtplanner.errors import ConfigError
from bgtplanner.privacy.randomness import NoiseSource
from bgtplanner.privacy.shares import Shares


def sum_of_shares(
    shares: Shares,
    uploads: ArrayLike,
    sources: Sequence[NoiseSource],
    *,
    clips: ArrayLike | None = None,
) -> NDArray[np.uint64]:
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
    shares.check_answers(len(rows))
    bounds = np.broadcast_to(shares.clip if clips is None else np.asarray(clips), len(rows))
    total = np.zeros(rows.shape[1], dtype=np.uint64)
    for row, source, bound in zip(rows, sources, bounds, strict=True):
        total += shares.encode(row, source, clip=float(bound))  # modulo 2^64, a multiple
    return np.asarray(total & shares.mask(rows.shape[1]))
