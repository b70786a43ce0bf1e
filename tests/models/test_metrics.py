"""Scores against their textbook formulas."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bgtplanner.models.metrics import THRESHOLD, Metrics, metrics, tally

shares = st.floats(0, 1, width=32)
jitted = jax.jit(tally)
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


@given(rows=pairs)
def test_bounds_and_perfection(rows: list[tuple[float, float]]) -> None:
    predicted, actual = (np.array(column) for column in zip(*rows, strict=True))
    scores = metrics(predicted, actual)
    assert all(0 <= score <= 1 for score in scores.values())
    assert scores.mae <= scores.rmse + 1e-12
    perfect = metrics(actual, actual)
    assert perfect.rmse == perfect.mae == 0
    assert perfect.f1 == (1.0 if (actual >= 0.5).any() else 0.0)


@given(rows=pairs, cut=st.integers(0, 40))
def test_tallies_add_up(rows: list[tuple[float, float]], cut: int) -> None:
    """Sums of parts are the sums of the whole: scores can be put together over machines."""
    predicted, actual = (np.array(column) for column in zip(*rows, strict=True))
    parts = [tally(predicted[:cut], actual[:cut]), tally(predicted[cut:], actual[cut:])]
    added = jax.tree.map(lambda one, other: one + other, *parts)
    assert Metrics.of(added) == pytest.approx(metrics(predicted, actual), abs=1e-12)


def test_by_hand() -> None:
    scores = metrics([0.5, 0.4, 0.9, 0.1], [0.8, 0.6, 0.3, 0.1])
    assert scores.rmse == pytest.approx(math.sqrt((0.09 + 0.04 + 0.36) / 4))
    assert scores.mae == pytest.approx((0.3 + 0.2 + 0.6) / 4)
    assert (scores.precision, scores.recall, scores.f1) == (0.5, 0.5, 0.5)


def test_the_threshold_itself_is_positive() -> None:
    assert THRESHOLD == 0.5
    below = float(np.nextafter(np.float32(0.5), np.float32(0)))
    assert metrics([0.5], [0.5]).f1 == 1
    assert metrics([below], [0.5]).recall == 0
    assert metrics([0.5], [below]).precision == 0


def test_nothing_to_score_is_not_a_number() -> None:
    assert all(math.isnan(score) for score in metrics([], []).values())


@pytest.mark.parametrize(
    ("predicted", "actual"),
    [([0.1, 0.2], [0.3, 0.4]), ([0.6, 0.7], [0.3, 0.4]), ([0.1, 0.2], [0.6, 0.7])],
    ids=["no positives at all", "none that are real", "none that are called"],
)
def test_no_hit_is_zero_not_a_division(predicted: list[float], actual: list[float]) -> None:
    scores = metrics(predicted, actual)
    assert (scores.precision, scores.recall, scores.f1) == (0, 0, 0)
    assert scores.rmse > 0


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**16))
def test_traced(seed: int) -> None:
    generator = np.random.default_rng(seed)
    predicted = generator.random(32).astype(np.float32)
    actual = (generator.integers(1, 6, 32) / 5).astype(np.float32)
    scores = Metrics.of(jitted(jnp.asarray(predicted), jnp.asarray(actual)))
    assert scores == pytest.approx(metrics(predicted, actual), rel=1e-5)
    assert all(isinstance(score, float) for score in scores.values())
