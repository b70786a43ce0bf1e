"""Scores against their textbook formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bgtplanner.models.metrics import THRESHOLD, Metrics, metrics

shares = st.floats(0, 1, width=32)
pairs = st.lists(st.tuples(shares, shares), min_size=1, max_size=40)


def textbook(predicted: list[float], actual: list[float]) -> Metrics:
    """One pair at a time, from the confusion matrix."""
    true_positive = false_positive = false_negative = 0
    squares = absolute = 0.0
    for guess, truth in zip(predicted, actual, strict=True):
        squares += (guess - truth) ** 2
        absolute += abs(guess - truth)
        true_positive += guess >= 0.5 and truth >= 0.5
        false_positive += guess >= 0.5 and truth < 0.5
        false_negative += guess < 0.5 and truth >= 0.5
    called, real = true_positive + false_positive, true_positive + false_negative
    return Metrics(
        rmse=math.sqrt(squares / len(actual)),
        mae=absolute / len(actual),
        precision=true_positive / called if called else 0.0,
        recall=true_positive / real if real else 0.0,
        # The harmonic mean, written as Dice's coefficient: no precision or recall in it.
        f1=2 * true_positive / (called + real) if called + real else 0.0,
    )


@given(rows=pairs)
def test_textbook(rows: list[tuple[float, float]]) -> None:
    predicted, actual = (list(column) for column in zip(*rows, strict=True))
    assert metrics(predicted, actual) == pytest.approx(textbook(predicted, actual), abs=1e-12)


def test_the_threshold_itself_is_positive() -> None:
    assert THRESHOLD == 0.5
    below = float(np.nextafter(np.float32(0.5), np.float32(0)))
    assert metrics([0.5], [0.5]).f1 == 1
    assert metrics([below], [0.5]).recall == 0
    assert metrics([0.5], [below]).precision == 0


def test_nothing_to_score_is_not_a_number() -> None:
    assert all(math.isnan(score) for score in metrics([], []).values())
