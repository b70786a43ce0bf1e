"""From scores to a level: inverse gap weighting, as in the paper (eqs. 18 and 19)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bgtplanner.errors import ConfigError

__all__ = ["gamma_growing", "probabilities"]


def probabilities(scores: ArrayLike, gamma: float) -> NDArray[np.float64]:
    """Probability of each level: the best one most likely, the others by how far they lag.

        p(a) = 1 / (A + gamma (best - score(a)))   for all but the best, which gets the rest

    The best level never gets less than 1/A.

    Example:
        >>> probabilities([1.0, 0.0], gamma=8.0).tolist()
        [0.9, 0.1]
    """
    values = np.asarray(scores, dtype=np.float64)
    fits = values.ndim == 1 and len(values) >= 1 and bool(np.isfinite(values).all())
    ConfigError.unless(fits, "scores", scores, "finite numbers, one a level")
    ConfigError.unless(bool(0 <= gamma < np.inf), "gamma", gamma, "0 or a positive number")
    best = int(values.argmax())
    with np.errstate(over="ignore"):
        gaps = np.minimum(values[best] - values, 1e308)  # a number, also times a gamma of 0
        share = 1.0 / (len(values) + gamma * gaps)
    share[best] = 0.0
    share[best] = 1.0 - share.sum()
    return np.asarray(share)


def gamma_growing(levels: int, round: int, rate: float = 64.0) -> float:  # noqa: A002
    """The planner's default, rate * A * sqrt(t).

    Trying other levels costs about (A - 1) / gamma a round, whatever the gaps are. The theory's
    constant covers an adversary; a smooth process seen at t points is known far better than that.
    What trying costs still adds up to the order of sqrt(T).
    """
    return float(rate * levels * np.sqrt(round + 1.0))
