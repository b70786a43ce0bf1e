"""How good predictions are: RMSE, MAE, and precision, recall and F1 of "would like it".

A value of at least 0.5 on the [0, 1] scale counts as positive, for ratings and predictions alike
(the paper's threshold).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

__all__ = ["THRESHOLD", "Metrics", "metrics", "tally"]

THRESHOLD = 0.5


class Metrics(NamedTuple):
    """One model's scores on one set of ratings. Nothing to score: NaN."""

    rmse: float
    mae: float
    precision: float
    recall: float
    f1: float

    @classmethod
    def of(cls, counts: Any) -> Metrics:
        """Scores from the sums of :func:`tally`."""
        squares, absolute, hits, predicted, actual, n = (float(count) for count in counts)
        if n == 0:
            return cls(*[float("nan")] * 5)
        precision = hits / predicted if predicted else 0.0
        recall = hits / actual if actual else 0.0
        f1 = 2 * precision * recall / (precision + recall) if hits else 0.0
        return cls((squares / n) ** 0.5, absolute / n, precision, recall, f1)


def tally(predicted: Any, actual: Any) -> tuple[Any, ...]:
    """The six sums that every score is made of, of NumPy or JAX arrays, traced or not."""
    error = predicted - actual
    liked, likes = predicted >= THRESHOLD, actual >= THRESHOLD
    return (
        (error**2).sum(),
        abs(error).sum(),
        (liked & likes).sum(),
        liked.sum(),
        likes.sum(),
        error.size,
    )


def metrics(predicted: Any, actual: Any) -> Metrics:
    """Scores of predictions against ratings, both on the [0, 1] scale.

    Example:
        >>> metrics([0.6, 0.2, 0.9], [0.8, 0.6, 1.0]).f1
        0.8
    """
    return Metrics.of(
        tally(np.asarray(predicted, dtype=np.float64), np.asarray(actual, dtype=np.float64))
    )
