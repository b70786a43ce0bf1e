"""Bounds on epsilon claim no more than is true and show nearly all of it; checks see faults."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binomtest

from bgtplanner.errors import ConfigError
from bgtplanner.privacy.audit import (
    Check,
    bound_of_guesses,
    bound_of_means,
    fresh_noise,
    largest_epsilon,
    lower_bound,
    releases_needed,
    size_of_noise,
)
from bgtplanner.privacy.conversions import gdp_epsilon

Floats = NDArray[np.float64]


@pytest.mark.parametrize(
    ("right", "wrong", "number"), [(3, 0, 10), (10, 7, 10), (700, 300, 1000), (0, 10, 10)]
)
def test_a_bound_of_guesses_is_made_of_exact_intervals(
    right: int, wrong: int, number: int
) -> None:
    low = binomtest(right, number).proportion_ci(1 - 2 * 0.01, method="exact").low
    high = binomtest(wrong, number).proportion_ci(1 - 2 * 0.09, method="exact").high
    expected = max(0.0, math.log(low / high)) if low else 0.0
    found = bound_of_guesses(right, wrong, number, delta=0.0, risk=0.1)
    assert float(found) == pytest.approx(expected)


def test_what_can_be_shown_and_what_that_takes() -> None:
    assert largest_epsilon(200_000, delta=1e-5, confidence=0.99) == pytest.approx(10.7, abs=0.1)
    needed = releases_needed(4.0, delta=1e-5, confidence=0.99)
    perfect = lower_bound(np.ones(needed // 2 + 1), np.zeros(needed // 2 + 1), delta=1e-5)
    assert perfect.epsilon == perfect.largest > 4.0
    short = lower_bound(np.ones(needed // 2 - 20), np.zeros(needed // 2 - 20), delta=1e-5)
    assert short.epsilon < 4.0


def laplace_scores(epsilon: float, number: int, seed: int) -> tuple[Floats, Floats]:
    noise = np.random.default_rng(seed).laplace(size=(2, number))
    return noise[0] + epsilon, noise[1]


def test_a_bound_is_too_large_no_more_often_than_it_says() -> None:
    # With 400 tries at 0.9, more than 66 mistakes have a chance below 1e-4 if 10 % are right.
    scores = (laplace_scores(0.5, 1000, seed) for seed in range(400))
    found = [lower_bound(*one, delta=0.0, confidence=0.9).epsilon for one in scores]
    assert sum(epsilon > 0.5 for epsilon in found) <= 66


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_laplace_noise_shows_nearly_all(epsilon: float) -> None:
    found = lower_bound(*laplace_scores(epsilon, 100_000, 1), delta=0.0)
    assert 0.85 * epsilon < found.epsilon <= epsilon


def test_gaussian_scores_show_nearly_all_by_their_means() -> None:
    mu = 1.0
    noise = np.random.default_rng(5).normal(size=(2, 100_000))
    true = float(gdp_epsilon(mu**2, 1e-5))
    assert 0.95 * true < bound_of_means(noise[0] + mu, noise[1], delta=1e-5, risk=0.01) < true
    smaller = bound_of_means(0.9 * noise[0] + mu, 0.9 * noise[1], delta=1e-5, risk=0.01)
    assert smaller > true  # noise a tenth too small is more than was promised
    assert bound_of_means(noise[1], noise[0] + mu, delta=1e-5, risk=0.01) == 0.0


@pytest.mark.parametrize("first", [np.ones(3), np.ones(8), np.full(9, np.nan)])
def test_what_cannot_be_judged(first: Any) -> None:
    with pytest.raises(ConfigError, match="4 finite ones, equally many"):
        lower_bound(first, np.ones(3 if len(first) == 3 else 9), delta=0.0)


# ---- checks


def noises(kind: str, seed: int, number: int = 400, columns: int = 6) -> list[Floats]:
    draw = np.random.default_rng(seed)
    make = draw.laplace if kind == "laplace" else draw.normal
    return [make(size=(number, columns)) for _ in range(2)]


def size(noise: list[Floats], kind: str) -> Check:
    return size_of_noise(*noise, laplace=kind == "laplace")


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_honest_noise_is_suspected_as_often_as_stated(kind: Any) -> None:
    # Of 300 p-values, more than 30 below 0.05 have a chance below 1e-4.
    sizes = [size(noises(kind, seed), kind).p_value for seed in range(300)]
    fresh = [fresh_noise(*noises(kind, seed)).p_value for seed in range(300)]
    assert sum(p < 0.05 for p in sizes) <= 30
    assert sum(p < 0.05 for p in fresh) <= 30


@pytest.mark.parametrize(("kind", "seed"), [("gaussian", 1), ("laplace", 3)])
@pytest.mark.parametrize(
    ("all_of_it", "one_column", "fault"), [(0.85, 0.5, "smaller"), (1.15, 1.5, "larger")]
)
def test_noise_of_another_size_is_seen(
    kind: str, seed: int, all_of_it: float, one_column: float, fault: str
) -> None:
    found = size([all_of_it * noise for noise in noises(kind, seed, 4000)], kind)
    assert (found.p_value < 1e-6, found.fault) == (True, f"the noise is {fault} than stated")
    assert found.measured == pytest.approx(all_of_it, abs=0.06)  # 3.6 standard errors or more
    one = noises(kind, seed + 1)
    for noise in one:
        noise[:, 3] *= one_column
    assert size(one, kind).p_value < 1e-6


def test_a_constant_is_no_noise() -> None:
    shifted = [noise + 3.0 for noise in noises("gaussian", 4, 4000)]
    assert size(shifted, "gaussian").measured == pytest.approx(1.0, abs=0.05)
    assert size([noise * 0 + 3.0 for noise in shifted], "gaussian").p_value < 1e-9


@pytest.mark.parametrize("columns", [6, 60])
def test_noise_that_is_used_twice_is_seen(columns: int) -> None:
    first, second = noises("gaussian", 6, columns=columns)
    assert fresh_noise(first, second).p_value > 1e-3
    assert fresh_noise(first, first.copy()).p_value < 1e-9
    far = first.copy()
    far[:, -1] = far[:, 0]  # not next to each other
    found = fresh_noise(far, second)
    assert found.p_value < 1e-9
    assert "between coordinates" in found.fault
    now_and_then = first.copy()
    now_and_then[300] = second[17]
    found = fresh_noise(now_and_then, second)
    assert found.p_value < 1e-6
    assert "between releases" in found.fault
    opposite = fresh_noise(first, -first)
    assert opposite.p_value < 1e-9
