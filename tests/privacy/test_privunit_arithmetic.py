"""PrivUnit number by number: formulas with 50 digits, whole numbers, and every boundary."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray

from bgtplanner.errors import ConfigError
from bgtplanner.privacy import privunit
from bgtplanner.privacy.noise import FINE_BITS, ExactNoise, NoiseSource, SeededNoise
from bgtplanner.privacy.privunit import (
    Cap,
    _along_exactly,
    _best_epsilon,
    _try_tail,
    _words,
    cap_of,
    epsilon_of,
    randomise,
)
from privacy.ledgers import exact

ONE = 1 << FINE_BITS


def cap_at(threshold: float, lead: float = 0.0) -> Cap:
    return Cap(*(np.array(value) for value in (threshold, lead, 1.0)))


# ---- epsilon


def best_epsilon(threshold: float) -> mpmath.mpf:
    """log((phi(x) + x Phi(x)) / (phi(x) - x Phi(-x)))."""
    with mpmath.workdps(50 + round(threshold**2)):
        x = mpmath.mpf(threshold)
        density, below, beyond = mpmath.npdf(x), mpmath.ncdf(x), mpmath.ncdf(-x)
        return mpmath.log((density + x * below) / (density - x * beyond))


@pytest.mark.parametrize("threshold", [1e-9, 0.01, 0.7, 1.0, 4.0, 20.0, 29.9, 30.0, 32.0, 45.0])
def test_the_epsilon_of_a_threshold_and_of_a_strength(threshold: float) -> None:
    wanted = best_epsilon(threshold)
    found = float(_best_epsilon(np.array(threshold)))
    # The series leaves 945 / x^8 and less out: 1.5e-9 at 30.
    assert abs(found - wanted) <= max(1e-12 * wanted, 1.6e-9 * (threshold >= 30))
    above = float(epsilon_of(threshold)) / wanted - 1
    assert 0.49e-9 < above < 0.51e-9  # half of what a cap is weaker by


def test_the_odds_of_a_coin_in_64_bits() -> None:
    leads = np.array([0.0, 2.0**-63, 0.5, 1 - 2.0**-53, 1.0, 1 + 1e-9])
    almost = 2**64 - 2**10  # never 2^64, which a word cannot hold
    assert _words(leads).tolist() == [2**63, 2**63 + 1, 3 * 2**62, almost, almost, almost]


# ---- which uploads


SOURCES: list[Callable[[], NoiseSource]] = [lambda: SeededNoise(1), lambda: exact(1)]


@pytest.mark.parametrize("source", SOURCES)
def test_an_upload_may_be_a_billionth_longer_than_the_bound(
    source: Callable[[], NoiseSource],
) -> None:
    longest = 1 + 1e-9
    for length in (1.0, longest):  # never turned round: so strong that the direction shows
        seen = randomise([[length, 0.0]] * 30, source(), bound=1.0, epsilon=1e6)
        assert (seen[:, 0] > 0.9).all()
    for length in (np.nextafter(longest, 2), 1 + 1.5e-9):
        with pytest.raises(ConfigError, match=r"^uploads = "):
            randomise([[0.5, 0.0], [length, 0.0]], source(), bound=1.0, epsilon=1e6)


@pytest.mark.parametrize("source", SOURCES)
def test_no_upload_at_all_is_any_direction_with_equal_probability(
    source: Callable[[], NoiseSource],
) -> None:
    seen = randomise(np.zeros((2_000, 2)), source(), bound=3.0, epsilon=1e7)
    assert np.linalg.norm(seen, axis=1) == pytest.approx(np.full(2_000, 3.0), rel=0.01)
    angles = np.arctan2(seen[:, 1], seen[:, 0])
    law = scipy.stats.uniform(-math.pi, 2 * math.pi)
    assert scipy.stats.kstest(angles, law.cdf).pvalue > 1e-9


# ---- choices at their boundary


class Scripted:
    """No noise, and these uniform numbers."""

    def __init__(self, *uniform: float) -> None:
        self._uniform = uniform

    def split(self, number: int) -> list[Scripted]:
        return [self] * number

    def normal(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        return np.full(shape, 1e-30)

    laplace = normal

    def uniform(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        return np.array(self._uniform).reshape(shape)


def test_simulated_choices_have_the_very_odds() -> None:
    # As many doubles lie below the odds as there should be; they are not among them themselves.
    cap = cap_of(4.0)
    chance = float(cap.chance)
    inside = float(scipy.stats.truncnorm.ppf(0.5, float(cap.threshold), math.inf))
    outside = float(scipy.stats.truncnorm.ppf(0.5, -math.inf, float(cap.threshold)))
    for turn, among, wanted in (
        (np.nextafter(0.75, 0), np.nextafter(chance, 0), inside),
        (0.75, np.nextafter(chance, 0), -inside),
        (np.nextafter(0.75, 0), chance, outside),
    ):
        seen = randomise([[0.5, 0.0]], Scripted(turn, among, 0.5), bound=1.0, epsilon=4.0)
        assert seen[0, 0] * float(cap.strength) == pytest.approx(wanted, rel=1e-9)


def test_the_threshold_itself_is_in_the_cap() -> None:
    threshold = ONE // 4

    class Told(ExactNoise):
        def fine_normal(self, shape: tuple[int, ...]) -> Any:
            about = np.array([threshold, threshold - 1, threshold + 1], dtype=object)
            return np.resize(about, shape)

        def coins(self, chances: Any) -> Any:
            return np.array([True, False])

    source = Told(np.random.default_rng(0).bytes)
    assert _along_exactly(cap_at(0.25), 2, source).tolist() == [threshold, threshold - 1]


def test_a_try_beyond_the_threshold_step_by_step() -> None:
    threshold = ONE * 3 // 5
    size = math.isqrt(2 * threshold**2)  # its square is the last below that number
    numbers = [size, size, size**2]
    asked: list[int] = []

    class Told(ExactNoise):
        def below_any(self, bound: int, number: int) -> Any:
            assert number == 1
            asked.append(bound)
            return np.array([numbers.pop(0)], dtype=object)

    # An equal number is not below: both coins are kept at once. A word of 1: no whole part.
    source = Told(lambda number: (1).to_bytes(number, "little"))
    assert _try_tail(threshold, 1, source).tolist() == [threshold + size * ONE // threshold]
    assert asked == [ONE, ONE, 2 * threshold**2]


# ---- whole numbers


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
