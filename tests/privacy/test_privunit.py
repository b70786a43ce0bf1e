"""PrivUnit: its epsilon, its strength and its mean, against integrals and other thresholds."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats
from scipy.special import log_ndtr

from bgtplanner.errors import ConfigError
from bgtplanner.paper.accounting import client_level
from bgtplanner.privacy.accountants import accountant_named
from bgtplanner.privacy.noise import FINE_BITS, SeededNoise
from bgtplanner.privacy.privunit import _along_exactly, cap_of, epsilon_of, randomise
from privacy.ledgers import exact

EPSILONS = [1e-6, 0.01, 0.6, 1.0, 5.0, 10.0, 12.5, 20.0, 300.0]


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_densities_differ_by_the_epsilon_and_no_more(epsilon: float) -> None:
    cap = cap_of(epsilon)
    inside = math.log(cap.chance) - float(log_ndtr(-cap.threshold))
    outside = math.log1p(-float(cap.chance)) - float(log_ndtr(cap.threshold))
    assert inside - outside == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize("epsilon", [*(10.0**power for power in range(-14, 8)), 3.3, 27.0])
def test_the_coin_of_a_real_client_costs_the_epsilon_and_no_more(epsilon: float) -> None:
    """With 60 digits, for the very threshold and the very 64 bits that are used."""
    cap = cap_of(epsilon)
    with mpmath.workdps(60):
        root = mpmath.mpf(float(cap.threshold)) / mpmath.sqrt(2)
        chance = mpmath.mpf(int(cap.chance_words)) / 2**64
        odds = mpmath.log(chance) - mpmath.log(1 - chance)
        cost = odds - mpmath.log(mpmath.erfc(root)) + mpmath.log(mpmath.erfc(-root))
        assert cost <= mpmath.mpf(epsilon)
        assert cost >= mpmath.mpf(epsilon) * (1 - max(2e-9, 1e-18 / epsilon))


@pytest.mark.parametrize("epsilon", [0.01, 0.6, 1.0, 5.0, 10.0, 20.0])
def test_the_strength_is_the_mean_along_the_upload(epsilon: float) -> None:
    cap = cap_of(epsilon)
    threshold, chance, strength = float(cap.threshold), float(cap.chance), float(cap.strength)
    above = stats.truncnorm.mean(threshold, math.inf)
    below = stats.truncnorm.mean(-math.inf, threshold)
    assert chance * above + (1 - chance) * below == pytest.approx(strength, rel=1e-6)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 10.0, 30.0])
def test_no_other_threshold_is_stronger(epsilon: float) -> None:
    def strength(threshold: float) -> float:
        odds = epsilon + float(log_ndtr(-threshold) - log_ndtr(threshold))
        chance = 1 / (1 + math.exp(-odds))
        density = stats.norm.pdf(threshold)
        return float(
            density
            * (chance / stats.norm.sf(threshold) - (1 - chance) / stats.norm.cdf(threshold))
        )

    best = optimize.minimize_scalar(
        lambda at: -strength(at), bounds=(0, 10), method="bounded", options={"xatol": 1e-9}
    )
    assert float(cap_of(epsilon).strength) == pytest.approx(-best.fun, rel=1e-7)


@given(st.floats(-9, 5).map(lambda power: 10.0**power))
@settings(deadline=None, derandomize=True, max_examples=50)
def test_strength_and_epsilon_are_two_names_of_one_thing(epsilon: float) -> None:
    assert float(epsilon_of(cap_of(epsilon).strength)) == pytest.approx(epsilon, rel=1e-8)


@pytest.mark.parametrize(("source", "number"), [(SeededNoise(1), 40_000), (exact(1), 8_000)])
@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_the_mean_is_the_upload_and_the_deviation_the_scale(
    source: Any, number: int, epsilon: float
) -> None:
    size, bound = 6, 0.3
    direction = np.arange(1.0, size + 1) / np.linalg.norm(np.arange(1.0, size + 1))
    scale = bound / float(cap_of(epsilon).strength)
    for length in (bound, 0.4 * bound, 0.0):
        uploads = np.tile(length * direction, (number, 1))
        seen = randomise(uploads, source, bound=bound, epsilon=epsilon)
        tolerance = 6.5 * seen.std(axis=0) / number**0.5
        assert (np.abs(seen.mean(axis=0) - uploads[0]) < tolerance).all()
        across = seen - (seen @ direction)[:, None] * direction
        if length:
            assert across.std() * (size / (size - 1)) ** 0.5 == pytest.approx(scale, rel=0.03)


def test_every_upload_is_as_likely_as_its_epsilon_allows() -> None:
    """Counting releases in caps: no cap is e^epsilon more likely for one upload than another."""
    epsilon, number = 2.0, 200_000
    uploads = {"there": [1.0, 0.0], "back": [-1.0, 0.0], "aside": [0.0, 1.0], "short": [0.3, 0.0]}
    threshold = float(cap_of(epsilon).threshold / cap_of(epsilon).strength)
    shares = {}
    for name, upload in uploads.items():
        seen = randomise(np.tile(upload, (number, 1)), SeededNoise(3), bound=1.0, epsilon=epsilon)
        shares[name] = float((seen[:, 0] >= threshold).mean())
    assert shares["there"] / shares["back"] == pytest.approx(math.exp(epsilon), rel=0.03)
    for name in ("aside", "short"):
        assert shares["back"] < shares[name] < shares["there"]


@pytest.mark.parametrize("epsilon", [0.02, 1.0, 6.0, 40.0])
def test_the_part_along_the_upload_is_exactly_distributed(epsilon: float) -> None:
    cap, number = cap_of(epsilon), 6_000
    along = _along_exactly(cap, number, exact(4))
    values = np.array([value / 2**FINE_BITS for value in along])
    threshold, chance = float(cap.threshold), float(cap.chance)
    above, below = values[values >= threshold], values[values < threshold]
    spread = 6.2 * math.sqrt(chance * (1 - chance) / number)
    assert len(above) / number == pytest.approx(chance, abs=spread)
    for part, law in (
        (above, stats.truncnorm(threshold, math.inf)),
        (below, stats.truncnorm(-math.inf, threshold)),
    ):
        assert stats.kstest(part, law.cdf).pvalue > 1e-9
        assert len(part) < 500 or stats.kstest(part + 0.5 * part.std(), law.cdf).pvalue < 1e-9


def test_a_real_release_is_on_its_grid_and_of_any_length_of_upload() -> None:
    epsilon = 1e6  # so strong that the direction shows
    scale = 1.0 / float(cap_of(epsilon).strength)
    for size in (1.0, 1e-9, 1e-161, 5e-324):
        upload = np.array([[0.6, -0.8, 0.0]]) * size
        for source in (exact(1), SeededNoise(1)):
            seen = randomise(upload, source, bound=1.0, epsilon=epsilon)[0]
            wanted = upload[0] / np.abs(upload[0]).max()
            wanted = wanted / np.linalg.norm(wanted)
            assert abs(seen @ wanted) == pytest.approx(1.0, abs=0.02)
            assert np.abs(seen - (seen @ wanted) * wanted).max() < 7 * scale
    seen = randomise(np.zeros((5, 3)), exact(2), bound=1.0, epsilon=1.0)
    steps = seen / (1.0 / float(cap_of(1.0).strength)) * 2**24
    assert np.abs(steps - np.rint(steps)).max() < 1e-6
    assert len(np.unique(seen)) == 15


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, 1e9])
def test_senseless_epsilons(epsilon: float) -> None:
    with pytest.raises(ConfigError, match=r"^epsilon = .*: expected from 1e-14 to 1e\+07$"):
        cap_of(epsilon)


@pytest.mark.parametrize("upload", [[2.0, 0.0], [math.nan, 0.0], [math.inf, 0.0]])
def test_an_upload_that_was_not_clipped_is_refused(upload: list[float]) -> None:
    with pytest.raises(ConfigError, match=r"^uploads = "):
        randomise([upload], SeededNoise(0), bound=1.0, epsilon=1.0)


def test_what_a_client_has_spent_in_all() -> None:
    accountant = accountant_named("privunit/either")
    multipliers = [float(accountant.noise_multiplier(charge)) for charge in (0.6, 9.4)]
    found = client_level("privunit", multipliers, [1, 1], 1e-5)
    assert found.pure == pytest.approx(10.0, rel=1e-6)
    assert found.epsilon == pytest.approx(10.0, rel=1e-6)
    many = client_level(
        "privunit", [float(accountant.noise_multiplier(0.01))] * 900, [1] * 900, 1e-5
    )
    assert many.pure == pytest.approx(9.0, rel=1e-6)
    assert many.epsilon < 2
