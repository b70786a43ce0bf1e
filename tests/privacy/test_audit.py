"""The audit's bounds: exact intervals, rarely above the truth, and not far below it."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray

from bgtplanner.errors import ConfigError
from bgtplanner.privacy import audit
from bgtplanner.privacy.audit import Finding, lower_bound
from bgtplanner.privacy.conversions import gdp_capacity

Floats = NDArray[np.float64]


def refused(message: str) -> Any:
    return pytest.raises(ConfigError, match=f"^{re.escape(message)}$")


def gaussian_scores(epsilon: float, delta: float, number: int, seed: int) -> tuple[Floats, Floats]:
    """Of a mechanism that is exactly (epsilon, delta)-private."""
    noise = np.random.default_rng(seed).normal(size=(2, number))
    return noise[0] + math.sqrt(float(gdp_capacity(epsilon, delta))), noise[1]


def laplace_scores(epsilon: float, number: int, seed: int) -> tuple[Floats, Floats]:
    noise = np.random.default_rng(seed).laplace(size=(2, number)) / epsilon
    noise = np.rint(noise * 2**20) / 2**20  # else the last bits of the sums below tell more
    ahead, back = noise[0] + 0.5, noise[1] - 0.5
    return tuple(np.abs(x + 0.5) - np.abs(x - 0.5) for x in (ahead, back))  # type: ignore[return-value]


@pytest.mark.parametrize("risk", [0.005, 0.05, 0.25])
@pytest.mark.parametrize("number", [1, 7, 60])
def test_rates_are_bounded_as_clopper_and_pearson_do(number: int, risk: float) -> None:
    values = np.arange(number, dtype=np.float64)
    thresholds = np.arange(number + 1) - 0.5  # everything is above the first, nothing the last
    low, high = audit._rates(values[::-1], thresholds, risk)
    for index in range(number + 1):
        hits = number - index
        interval = scipy.stats.binomtest(hits, number).proportion_ci(1 - 2 * risk, method="exact")
        assert low[index] == pytest.approx(interval.low, abs=1e-12)
        assert high[index] == pytest.approx(interval.high, abs=1e-12)
    assert low[-1] == 0.0
    assert high[0] == 1.0


def test_a_value_at_the_threshold_counts_as_above() -> None:
    low, high = audit._rates(np.array([1.0, 2.0, 3.0]), np.array([2.0]), 0.1)
    interval = scipy.stats.binomtest(2, 3).proportion_ci(0.8, method="exact")
    assert (low[0], high[0]) == (pytest.approx(interval.low), pytest.approx(interval.high))


@pytest.mark.parametrize("delta", [0.0, 0.01])
@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_a_perfect_test_by_hand(delta: float, confidence: float) -> None:
    found = lower_bound(np.ones(40), np.zeros(40), delta=delta, confidence=confidence)
    risk = (1 - confidence) / 2
    rate = risk ** (1 / 20)  # 20 of 20, the half that judges
    assert found.epsilon == pytest.approx(math.log((rate - delta) / (1 - rate)), rel=1e-9)
    mu = 2 * scipy.stats.norm.ppf(rate)
    if delta:
        assert gdp_capacity(found.epsilon_gaussian, delta) == pytest.approx(mu**2, rel=1e-9)
    else:
        assert found.epsilon_gaussian == math.inf  # Gaussian noise has no pure epsilon
    assert found.releases == 80
    assert found.confidence == confidence


def test_the_default_confidence() -> None:
    default = lower_bound(np.ones(40), np.zeros(40), delta=0.1)
    assert default == lower_bound(np.ones(40), np.zeros(40), delta=0.1, confidence=0.99)
    assert default.confidence == 0.99


def test_lists_of_different_lengths_and_shapes_are_taken() -> None:
    found = lower_bound([[1.0, 1.0], [1.0, 1.0]], [0.0] * 6, delta=0.0)
    assert isinstance(found, Finding)
    assert found.releases == 10
    shown = (0.005 ** (1 / 2), 1 - 0.005 ** (1 / 3))  # 2 and 3 judge
    assert found.epsilon == max(0.0, math.log(shown[0] / shown[1]))


def test_larger_scores_mean_the_first_input() -> None:
    ahead, back = np.full(40, 7.0), np.full(40, -3.0)
    assert lower_bound(ahead, back, delta=1e-3).epsilon > 1.1
    assert lower_bound(back, ahead, delta=1e-3).epsilon == 0.0


def test_a_rare_tell_in_one_direction_only_is_found() -> None:
    # One of 10 releases of one input gives it away; nothing gives the other one away.
    generator = np.random.default_rng(0)
    plain = generator.normal(size=20_000)
    telling = np.where(generator.random(20_000) < 0.1, -50.0, generator.normal(size=20_000))
    assert lower_bound(plain, telling, delta=0.0).epsilon > 4.5
    assert lower_bound(-telling, -plain, delta=0.0).epsilon > 4.5


def test_the_threshold_is_chosen_on_one_half_and_judged_on_the_other() -> None:
    # Where only the half that chooses differs, nothing is shown.
    first, second = np.zeros(400), np.zeros(400)
    first[0::2] = 1.0
    assert lower_bound(first, second, delta=0.0).epsilon == 0.0
    # Where only the half that judges differs, no test was chosen that could show it.
    first, second = np.zeros(400), np.zeros(400)
    first[1::2] = 1.0
    assert lower_bound(first, second, delta=0.0).epsilon == 0.0


def test_what_is_the_same_shows_nothing() -> None:
    noise = np.random.default_rng(1).normal(size=(2, 5000))
    found = lower_bound(noise[0], noise[1], delta=1e-5)
    assert 0 <= found.epsilon < 0.15
    assert 0 <= found.epsilon_gaussian < 0.3
    same = lower_bound(np.zeros(100), np.zeros(100), delta=0.0)
    assert (same.epsilon, same.epsilon_gaussian) == (0.0, 0.0)


def test_a_delta_larger_than_every_rate_shows_nothing() -> None:
    assert lower_bound(np.ones(40), np.zeros(40), delta=0.9).epsilon == 0.0


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_the_bounds_rarely_exceed_the_truth(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # At confidence 0.8 they may in 1 of 5 experiments; 200 of them, seeds fixed.
    monkeypatch.setattr(audit, "_CANDIDATES", 30)  # as good for so few, and faster
    trials, confidence, truth, delta = 200, 0.8, 1.0, 1e-2
    over, over_gaussian = 0, 0
    for seed in range(trials):
        if kind == "gaussian":
            pair = gaussian_scores(truth, delta, 600, seed)
        else:
            pair = laplace_scores(truth, 600, seed)
        found = lower_bound(
            *pair, delta=delta if kind == "gaussian" else 0.0, confidence=confidence
        )
        over += found.epsilon > truth
        over_gaussian += kind == "gaussian" and found.epsilon_gaussian > truth
    allowed = scipy.stats.binom(trials, 1 - confidence).ppf(0.999)
    assert over <= allowed
    assert over_gaussian <= allowed


def test_the_bounds_have_teeth() -> None:
    number = 50_000
    found = lower_bound(*gaussian_scores(1.0, 1e-5, number, 3), delta=1e-5)
    assert 0.5 < found.epsilon_gaussian <= 1.0
    assert 0.4 < found.epsilon <= 1.0
    laplace = lower_bound(*laplace_scores(1.0, number, 3), delta=0.0)
    assert 0.9 < laplace.epsilon <= 1.0


def test_noise_of_half_the_scale_is_caught() -> None:
    ahead, back = gaussian_scores(1.0, 1e-5, 50_000, 4)
    shift = math.sqrt(float(gdp_capacity(1.0, 1e-5)))
    caught = lower_bound(ahead + shift, back, delta=1e-5)
    assert caught.epsilon_gaussian > 1.5
    assert lower_bound(*laplace_scores(2.0, 50_000, 4), delta=0.0).epsilon > 1.5


def test_senseless_arguments_are_refused() -> None:
    good = np.zeros(4)
    assert lower_bound(good, good, delta=0.0).releases == 8
    with refused("releases = 3: expected at least 4 of each"):
        lower_bound(good, np.zeros(3), delta=0.0)
    with refused("releases = 0: expected at least 4 of each"):
        lower_bound([], good, delta=0.0)
    for confidence in (0.0, 1.0, -1.0, math.nan):
        with refused(f"confidence = {confidence!r}: expected between 0 and 1"):
            lower_bound(good, good, delta=0.0, confidence=confidence)
    for delta in (-1e-9, 1.0, math.nan):
        with refused(f"delta = {delta!r}: expected from 0 to below 1"):
            lower_bound(good, good, delta=delta)
    for bad in (math.nan, math.inf):
        for pair in (([0, 0, 0, bad], good), (good, [0, 0, 0, bad])):
            with refused("scores = 'NaN or infinity': expected finite numbers"):
                lower_bound(*pair, delta=0.0)
