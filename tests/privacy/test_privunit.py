"""PrivUnit: its epsilon, its strength and its mean, against integrals and other thresholds."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.stats
from scipy import stats
from scipy.special import log_ndtr

from bgtplanner.errors import ConfigError
from bgtplanner.privacy import privunit
from bgtplanner.privacy.privunit import _along_exactly, cap_of, randomise
from bgtplanner.privacy.randomness import FINE_BITS, ExactNoise, SeededNoise
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


@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_the_mean_is_the_upload_and_the_deviation_the_scale(epsilon: float) -> None:
    size, bound, number, source = 6, 0.3, 8_000, SeededNoise(1)
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
    epsilon, number = 2.0, 40_000
    uploads = {"there": [1.0, 0.0], "back": [-1.0, 0.0], "aside": [0.0, 1.0], "short": [0.3, 0.0]}
    threshold = float(cap_of(epsilon).threshold / cap_of(epsilon).strength)
    shares = {}
    for name, upload in uploads.items():
        seen = randomise(np.tile(upload, (number, 1)), SeededNoise(3), bound=1.0, epsilon=epsilon)
        shares[name] = float((seen[:, 0] >= threshold).mean())
    assert shares["there"] / shares["back"] == pytest.approx(math.exp(epsilon), rel=0.08)
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
    for size in (1.0, 1e-9, 1e-161, 5e-324):
        upload = np.array([[0.6, -0.8, 0.0]]) * size
        scale = 1.0 / float(cap_of(28.0).strength)
        seen = randomise(upload, SeededNoise(1), bound=1.0, epsilon=28.0)[0]
        wanted = upload[0] / np.abs(upload[0]).max()
        wanted = wanted / np.linalg.norm(wanted)
        assert abs(seen @ wanted) == pytest.approx(1.0, abs=4 * scale)  # the direction shows
        assert np.abs(seen - (seen @ wanted) * wanted).max() < 7 * scale
    with pytest.raises(ConfigError, match=r"^epsilon = 28.1: expected at most 28.01"):
        randomise(upload, exact(1), bound=1.0, epsilon=28.1)
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


ONE = 1 << FINE_BITS


def test_no_upload_at_all_is_any_direction_with_equal_probability() -> None:
    seen = randomise(np.zeros((2_000, 2)), SeededNoise(1), bound=3.0, epsilon=28.0)
    angles = np.arctan2(seen[:, 1], seen[:, 0])
    law = scipy.stats.uniform(-math.pi, 2 * math.pi)
    assert scipy.stats.kstest(angles, law.cdf).pvalue > 1e-9


def test_a_real_release_is_the_formula_rounded_to_24_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []

    def kept(result: Any) -> Any:
        drawn.append(result)
        return result

    class Kept(ExactNoise):
        def fine_normal(self, shape: tuple[int, ...]) -> Any:
            return (
                kept(super().fine_normal(shape)) if len(shape) == 2 else super().fine_normal(shape)
            )

        def coins(self, chances: Any) -> Any:
            result = super().coins(chances)
            return kept(result) if len(drawn) == 1 else result

    along_exactly = privunit._along_exactly
    monkeypatch.setattr(privunit, "_along_exactly", lambda *given: kept(along_exactly(*given)))
    uploads = np.random.default_rng(4).normal(size=(12, 5)) * 0.2
    uploads /= np.maximum(np.linalg.norm(uploads, axis=1, keepdims=True), 1)
    uploads[3] = 0.0
    epsilon = 3.0
    scale = 1 / float(cap_of(epsilon).strength)
    source = Kept(np.random.default_rng(5).bytes)
    released = randomise(uploads, source, bound=1.0, epsilon=epsilon) / scale
    anywhere, kept_as_it_is, normal, along = drawn
    assert 0 < kept_as_it_is.sum() < 12
    for row in range(12):
        numbers = uploads[row].tolist() if row != 3 else anywhere[row].tolist()
        largest = max(map(abs, numbers))
        vector = [
            Fraction(value) / Fraction(largest) * (1 if kept_as_it_is[row] else -1)
            for value in numbers
        ]
        z = [Fraction(value, ONE) for value in normal[row].tolist()]
        square = sum(value**2 for value in vector)
        length = Fraction(math.isqrt(int(square * 2**200)), 2**100)
        part = Fraction(along[row], ONE) * length - sum(
            a * b for a, b in zip(z, vector, strict=True)
        )
        for value, own, seen in zip(z, vector, released[row].tolist(), strict=True):
            wanted = (value + part * own / square) * 2**24
            assert abs(Fraction(seen) * 2**24 - wanted) <= Fraction(1, 2) + Fraction(1, 10**6)
