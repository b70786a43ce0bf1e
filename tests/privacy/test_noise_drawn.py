"""Noise: exactly the stated distributions, from words of the operating system or from a seed."""

from __future__ import annotations

import heapq
import math
import os
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats
from numpy.typing import ArrayLike, NDArray

from bgtplanner.errors import ConfigError
from bgtplanner.privacy import randomness as noise
from bgtplanner.privacy.randomness import ExactNoise, SystemNoise

NUMBER = 100_000
RARE = 1e-9  # a right sample has a smaller p-value once in a billion; the seeds are fixed, too


def seeded(seed: int = 5, bits: int = 64, kind: type[ExactNoise] = ExactNoise) -> ExactNoise:
    """Exact noise from bytes that a seed gives, so that a test is the same every time."""
    return kind(np.random.default_rng(seed).bytes, bits=bits)


def fed(words: list[int]) -> tuple[ExactNoise, list[int]]:
    """Exact noise from these 64-bit words; and those that are left."""
    left = list(words)

    def randomness(number: int) -> bytes:
        taken, left[: number // 8] = left[: number // 8], []
        assert len(taken) * 8 == number
        return b"".join(word.to_bytes(8, "little") for word in taken)

    return ExactNoise(randomness), left


# ---- the exact distributions


def laplace_pmf(scale: int, z: int) -> float:
    q = math.exp(-1 / scale)
    return (1 - q) / (1 + q) * q ** abs(z)


def normal_pmf(scale: int, z: int) -> float:
    """Of a normal variate that was rounded to the nearest whole number."""
    low, high = (abs(z) - 0.5) / scale, (abs(z) + 0.5) / scale
    if z == 0:
        return math.erf(high / math.sqrt(2))
    return (math.erfc(low / math.sqrt(2)) - math.erfc(high / math.sqrt(2))) / 2


PMF = {"laplace_steps": laplace_pmf, "normal_steps": normal_pmf}


def p_value(kind: str, scale: int, values: NDArray[np.int64]) -> float:
    """Of the chi-square test against the exact distribution, tails put together."""
    reach = 0
    while len(values) * PMF[kind](scale, reach + 1) >= 20:
        reach += 1
    cells = range(-reach, reach + 1)
    shares = [PMF[kind](scale, z) for z in cells]
    shares = [(1 - sum(shares)) / 2, *shares, (1 - sum(shares)) / 2]
    counts = [(values < -reach).sum(), *((values == z).sum() for z in cells)]
    counts.append((values > reach).sum())
    return float(scipy.stats.chisquare(counts, np.array(shares) * len(values)).pvalue)


@pytest.mark.parametrize("bits", [64, 5, 4])
@pytest.mark.parametrize("scale", [1, 2, 3, 7])
@pytest.mark.parametrize("kind", PMF)
def test_draws_have_exactly_the_distribution(kind: str, scale: int, bits: int) -> None:
    # With words of few bits, numbers are drawn again and digits tie all the time.
    values = getattr(seeded(scale, bits), kind)(scale, (NUMBER,))
    assert values.dtype == np.int64
    assert p_value(kind, scale, values) > RARE
    assert abs(np.corrcoef(values[1:], values[:-1])[0, 1]) < 6.2 / math.sqrt(NUMBER)


# ---- every way a draw can go


class Biased(ExactNoise):
    """Whose coin comes up heads in 52 of 100 cases."""

    def _heads(self, number: int) -> Any:
        return self.below(100, number) < 52


class Modulo(ExactNoise):
    """Which takes the remainder of a word without drawing again."""

    def below(self, bound: ArrayLike, number: int) -> Any:
        return self.words(number) % np.asarray(bound, dtype=np.uint64)


class Hasty(ExactNoise):
    """Which throws its last coin once too seldom."""

    def all_heads(self, times: Any, coin: Any) -> Any:
        return super().all_heads(np.maximum(times - 1, 0), coin)


class Odd(ExactNoise):
    """Whose exponential coins forget to divide by how often they were thrown."""

    def exp_coins(self, coin: Any, number: int) -> Any:
        return np.asarray(self.words(number) < np.uint64(2**self._bits * 0.62))


class Slow(noise._Part):
    """Whose ties of digits are never looked at more closely."""

    def above_fresh(self, at: Any) -> Any:
        return self._source.below(self._scale, len(at)) < self.digit[at]


@pytest.mark.parametrize(
    ("kind", "wrong", "bits"),
    [
        ("laplace_steps", Biased, 64),
        ("normal_steps", Biased, 64),
        ("laplace_steps", Modulo, 3),
        ("normal_steps", Modulo, 3),
        ("normal_steps", Hasty, 64),
        ("laplace_steps", Odd, 64),
        ("normal_steps", Odd, 64),
    ],
)
def test_a_wrong_coin_shows(kind: str, wrong: type[ExactNoise], bits: int) -> None:
    values = getattr(seeded(3, bits, wrong), kind)(3, (NUMBER,))
    assert p_value(kind, 3, values) < RARE


def test_ties_that_are_not_resolved_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "_Part", Slow)
    assert p_value("normal_steps", 3, seeded(3).normal_steps(3, (NUMBER,))) < RARE


class Scripted(ExactNoise):
    """Follows a script of choices; asks for more when it is at its end.

    Coins of probability exp(-1/2) are one choice, for they are looked at on their own.
    """

    class Ended(Exception):
        pass

    def __init__(self, script: tuple[int, ...]) -> None:
        super().__init__(lambda _: b"", bits=1)
        self._script = list(script)
        self.chance = 1.0
        self.options: list[float] = []

    def _choose(self, options: list[float]) -> int:
        if len(options) == 1:
            return 0
        self.options = options
        if not self._script:
            raise Scripted.Ended
        self.chance *= options[self._script[0]]
        return self._script.pop(0)

    def below(self, bound: ArrayLike, number: int) -> Any:
        bounds = np.broadcast_to(np.asarray(bound), number).tolist()
        return np.array([self._choose([1 / each] * each) for each in bounds], dtype=np.uint64)

    def words(self, number: int) -> Any:
        return self.below(2**self._bits, number)

    def exp_coins(self, coin: Any, number: int) -> Any:
        if coin != self._half:
            return super().exp_coins(coin, number)
        heads = math.exp(-0.5)
        drawn = [self._choose([1 - heads, heads]) == 1 for _ in range(number)]
        return np.array(drawn, dtype=np.bool_)


def enumerated(
    attempt: Callable[[Any], NDArray[Any]], kind: type[Scripted] = Scripted, few: float = 0.02
) -> tuple[dict[int, float], float]:
    """Probability of each result of one attempt over the likeliest scripts; and of the others."""
    found: dict[int, float] = defaultdict(float)
    open_: list[tuple[float, tuple[int, ...]]] = [(-1.0, ())]
    left = 1.0
    while left > few:
        chance, script = heapq.heappop(open_)
        source = kind(script)
        try:
            result = attempt(source)
        except Scripted.Ended:
            for choice, share in enumerate(source.options):
                heapq.heappush(open_, (chance * share, (*script, choice)))
        else:
            assert source.chance == pytest.approx(-chance)
            left -= source.chance
            for value in result:
                found[int(value)] += source.chance
            found[10**6] += source.chance * (len(result) == 0)
    return found, left


@pytest.mark.parametrize("scale", [1, 2])
def test_all_that_a_laplace_draw_can_come_to(scale: int) -> None:
    found, left = enumerated(lambda source: source._try_laplace(scale, 1), few=0.03)
    for z in range(-4, 5):  # by how the algorithm works: (1 - 1/e) exp(-abs(z)/scale) / (2 scale)
        exact = (1 - math.exp(-1)) * math.exp(-abs(z) / scale) / (2 * scale)
        assert found[z] <= exact <= found[z] + left
    assert len([z for z in found if abs(z) < 9]) > 6


def test_all_that_the_whole_part_of_a_normal_draw_can_come_to() -> None:
    found, left = enumerated(lambda source: source._try_whole(1), few=1e-3)
    for k in range(4):
        exact = (1 - math.exp(-0.5)) * math.exp(-k * k / 2)
        assert found[k] <= exact + 1e-12
        assert exact <= found[k] + left


@pytest.mark.parametrize("x", [0.25, 0.5, 0.9])
@pytest.mark.parametrize("k", [0, 1, 2])
def test_all_that_the_rest_of_a_normal_draw_can_come_to(k: int, x: float) -> None:
    class Once(Scripted):
        """Throws one coin of those that must all come up heads."""

        def all_heads(self, times: Any, coin: Any) -> Any:
            assert times.tolist() == [k + 1]
            return coin(np.array([0]))

    def attempt(source: Scripted) -> NDArray[Any]:
        def part(at: Any) -> Any:
            drawn = [source._choose([1 - x, x]) == 1 for _ in at]
            return np.array(drawn, dtype=np.bool_)

        return source._gaussian_heads(np.array([k]), part)

    found, left = enumerated(attempt, Once)
    exact = math.exp(-x * (2 * k + x) / (2 * k + 2))
    assert found[1] <= exact + 1e-12
    assert exact <= found[1] + left + 1e-12


def test_all_that_a_comparison_with_a_fresh_number_can_come_to() -> None:
    # Of the scale 3, words of one bit: digit, then bit after bit.
    for digit in range(3):
        for bit in range(2):

            def attempt(source: ExactNoise, digit: int = digit, bit: int = bit) -> Any:
                part = noise._Part(source, 3, 1)
                part.digit[:], part.fraction[:] = digit, bit
                return part.above_fresh(np.array([0]))

            found, left = enumerated(attempt)
            exact = (digit + (bit + 0.5) / 2) / 3  # the mean over the bits not known yet
            assert found[1] <= exact + 1e-12
            assert exact <= found[1] + left + 1e-12


def test_exponential_coins_by_every_way_they_can_fall() -> None:
    for numerator, denominator in [(0, 1), (1, 1), (1, 2), (1, 3), (2, 3)]:  # 1/2 is _half, too

        def attempt(source: ExactNoise, a: int = numerator, b: int = denominator) -> Any:
            return source.exp_coins(lambda at: source.below(b, len(at)) < a, 1)

        found, left = enumerated(attempt, few=0.003)
        exact = math.exp(-numerator / denominator)
        assert found[1] <= exact + 1e-12
        assert exact <= found[1] + left + 1e-12


# ---- uniform numbers


def test_words_that_would_favour_small_numbers_are_drawn_again() -> None:
    last = 2**64 - 2**64 % 3 - 1  # the last that leaves every remainder equally often
    source, left = fed([last + 1, 5, last, 7, 8])
    assert source.below(3, 3).tolist() == [7 % 3, 5 % 3, last % 3]
    assert left == [8]
    source, left = fed([2**64 - 1, 2**64 - 2])  # a power of two leaves none over
    assert source.below(4, 2).tolist() == [3, 2]
    source, left = fed([3, 3, 9])
    assert source.below([2, 3, 5], 3).tolist() == [1, 0, 4]


def test_a_tie_takes_further_words_and_remembers_them() -> None:
    # Digit 0 of scale 1; the fraction's word is 9. A fresh 9 ties: then further words decide, of
    # which the number's own are kept.
    source, left = fed([0, 9, 0, 9, 4, 4, 7, 6, 0, 9, 5, 0, 9, 3])
    part = noise._Part(source, 1, 1)
    at = np.array([0])
    assert part.above_fresh(at).tolist() == [True]  # 9 = 9, own 4 = fresh 4, own 7 > fresh 6
    assert part.above_fresh(at).tolist() == [False]  # 9 = 9, own 4 < fresh 5
    assert part.above_fresh(at).tolist() == [True]  # 9 = 9, own 4 > fresh 3
    assert left == []


# ---- at the scale of real releases

SCALE = 2**24 + 3_141_593


def test_fine_normal_variates() -> None:
    values = seeded().fine_normal((20_000,))
    assert all(isinstance(value, int) for value in values)
    floats = np.array([value / 2**noise.FINE_BITS for value in values])
    assert scipy.stats.kstest(floats, scipy.stats.norm().cdf).pvalue > RARE
    low = np.array([abs(value) % 2**64 // 2**58 for value in values])
    assert scipy.stats.chisquare(np.bincount(low, minlength=64)).pvalue > RARE


# ---- sources


def test_system_noise_is_made_of_nothing_but_the_operating_system(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = []
    for _ in range(2):
        monkeypatch.setattr(os, "urandom", np.random.default_rng(8).bytes)
        source = SystemNoise()
        drawn.append([source.normal_steps(SCALE, (9,)), source.laplace_steps(SCALE, (9,))])
    assert (np.array(drawn[0]) == np.array(drawn[1])).all()
    monkeypatch.setattr(os, "urandom", np.random.default_rng(9).bytes)
    assert not np.isin(SystemNoise().normal_steps(SCALE, (9,)), drawn[0][0]).any()


@pytest.mark.parametrize("scale", [0, -1, 1.5, 2**50 + 1, math.nan])
@pytest.mark.parametrize("kind", PMF)
def test_a_senseless_scale_is_refused(kind: str, scale: Any) -> None:
    message = f"scale = {scale!r}: expected a whole number from 1 to {2**50}"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        getattr(seeded(), kind)(scale, (1,))
