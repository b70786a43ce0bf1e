"""What a guarantee for single rows amounts to for the whole client.

With ``unit = row`` every tensor and every item row is clipped and noised on its own with the full
charge of the round, as the authors' code does. A client who is replaced changes *all* of its rows,
so at the level of the client the charges of its rows add up. (Even that takes the item ids, which
such an upload shows, as public.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bgtplanner.errors import ConfigError
from bgtplanner.privacy.conversions import filter_epsilon, gdp_epsilon, laplace_renyi_epsilon
from bgtplanner.privacy.privunit import epsilon_of

__all__ = ["Exposure", "client_level"]


class Exposure(NamedTuple):
    """Epsilon of one whole client.

    Attributes:
        epsilon: At the stated delta.
        pure: With delta = 0, where there is such a thing (not Gaussian); else None.
    """

    epsilon: float
    pure: float | None


def client_level(
    mechanism: str, noise_multipliers: ArrayLike, blocks: ArrayLike, delta: float
) -> Exposure:
    """Client-level epsilon of rounds in which a client released several blocks, each on its own.

    Args:
        mechanism: ``gaussian``, ``laplace`` or ``privunit``.
        noise_multipliers: Noise scale over 2 * clip, of each round.
        blocks: How many blocks (tensors and rows) the client released in each round.
        delta: Of the reading.

    Example:
        >>> client_level("gaussian", [10**0.5] * 100, [56] * 100, 1e-5).epsilon > 300
        True
    """
    multipliers, number = np.broadcast_arrays(
        np.asarray(noise_multipliers, dtype=np.float64), np.asarray(blocks, dtype=np.float64)
    )
    fits = bool(((multipliers >= 1e-100) & (multipliers <= 1e100)).all())
    ConfigError.unless(fits, "noise_multipliers", noise_multipliers, "from 1e-100 to 1e100")
    fits = bool(((number >= 0) & np.isfinite(number)).all())
    ConfigError.unless(fits, "blocks", blocks, "numbers of blocks")
    ConfigError.unless(0 <= delta < 1, "delta", delta, "from 0 to below 1")
    if mechanism == "gaussian":
        return Exposure(float(gdp_epsilon((number / multipliers**2).sum(), delta)), None)
    if mechanism == "privunit":
        epsilons = epsilon_of(0.5 / multipliers)
        pure = float((number * epsilons).sum())
        by_filter = float(filter_epsilon((number * epsilons**2).sum(), delta))
        return Exposure(min(pure, by_filter), pure)
    expected = "gaussian, laplace or privunit"
    ConfigError.unless(mechanism == "laplace", "mechanism", mechanism, expected)
    pure = float((number / multipliers).sum())
    by_filter = float(filter_epsilon((number / multipliers**2).sum(), delta))
    by_renyi = laplace_renyi_epsilon(1 / multipliers.ravel(), number.ravel(), delta)
    return Exposure(min(pure, by_filter, by_renyi), pure)
