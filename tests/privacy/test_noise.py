"""Noise: the right distribution from every source, fine in its tails, secret and repeatable."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Callable

import numpy as np
import pytest
import scipy.special
import scipy.stats
from numpy.typing import NDArray

from bgtplanner.errors import ConfigError
from bgtplanner.privacy.noise import KeyedNoise, NoiseSource, SeededNoise, SystemNoise

NUMBER = 100_000
LIMIT = 1e-3  # a right sample has a smaller p-value once in a thousand; the seeds are fixed
SOURCES = ["seeded", "keyed", "system"]


def fed(monkeypatch: pytest.MonkeyPatch, words: list[int]) -> list[int]:
    """Let the operating system's generator give these 64-bit words; returns those left."""
    left = list(words)

    def urandom(number: int) -> bytes:
        taken, left[: number // 8] = left[: number // 8], []
        assert len(taken) * 8 == number
        return b"".join(word.to_bytes(8, "little") for word in taken)

    monkeypatch.setattr(os, "urandom", urandom)
    return left


@pytest.fixture
def source(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> NoiseSource:
    if request.param == "seeded":
        return SeededNoise(5)
    if request.param == "keyed":
        return KeyedNoise(b"sixteen bytes or", b"goodness of fit")
    monkeypatch.setattr(os, "urandom", np.random.default_rng(5).bytes)
    return SystemNoise()


DRAWS: dict[str, tuple[Callable[[NoiseSource], NDArray[np.float64]], scipy.stats.rv_frozen]] = {
    "normal": (lambda source: source.normal((NUMBER,)), scipy.stats.norm()),
    "laplace": (lambda source: source.laplace((NUMBER,)), scipy.stats.laplace()),
    "gamma-0.3": (lambda source: source.gamma(0.3, (NUMBER,)), scipy.stats.gamma(0.3)),
    "gamma-5": (lambda source: source.gamma(5, (NUMBER,)), scipy.stats.gamma(5)),
}


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("source", SOURCES, indirect=True)
def test_draws_have_the_distribution_and_5_percent_off_would_show(
    source: NoiseSource, kind: str
) -> None:
    draw, law = DRAWS[kind]
    values = draw(source)
    assert values.dtype == np.float64
    assert scipy.stats.kstest(values, law.cdf).pvalue > LIMIT
    for wrong in (0.95, 1.05):
        assert scipy.stats.kstest(values * wrong, law.cdf).pvalue < LIMIT
    # Equal shares in 50 cells of equal probability, and independent of the draw before.
    edges = law.ppf(np.linspace(0, 1, 51))
    counts = np.histogram(values, edges)[0]
    assert scipy.stats.chisquare(counts).pvalue > LIMIT
    ranks = law.cdf(values)
    assert abs(np.corrcoef(ranks[1:], ranks[:-1])[0, 1]) < 4 / math.sqrt(NUMBER)


@pytest.mark.parametrize("source", SOURCES, indirect=True)
def test_shapes(source: NoiseSource) -> None:
    for shape in [(), (0,), (3,), (2, 3), (2, 0, 3), (2, 1, 4)]:
        assert np.shape(source.normal(shape)) == shape
        assert np.shape(source.laplace(shape)) == shape
        assert np.shape(source.gamma(0.5, shape)) == shape


@pytest.mark.parametrize("source", SOURCES, indirect=True)
def test_calls_after_one_another_differ(source: NoiseSource) -> None:
    first, second = source.normal((4,)), source.normal((4,))
    assert not np.isin(first, second).any()


def test_seeded_noise_is_that_of_the_seed() -> None:
    source, generator = SeededNoise([3, 4]), np.random.default_rng([3, 4])
    assert (source.normal((5,)) == generator.standard_normal(5)).all()
    assert (source.laplace((5,)) == generator.laplace(size=5)).all()
    assert (source.gamma(0.2, (5,)) == generator.standard_gamma(0.2, 5)).all()


def test_system_noise_cannot_be_repeated() -> None:
    first, second = SystemNoise().normal((20,)), SystemNoise().normal((20,))
    assert not np.isin(first, second).any()


def test_system_noise_is_what_the_operating_system_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    quarter = 2**62  # of 2^63: 1/4 of the probability lies further out
    upper, lower = quarter * 2 + 1, quarter * 2
    fed(monkeypatch, [upper, lower] * 3)
    source = SystemNoise()
    assert source.normal((2,)).tolist() == pytest.approx([0.67448975, -0.67448975])
    assert source.laplace((2,)).tolist() == pytest.approx([math.log(2), -math.log(2)])
    expected = scipy.stats.gamma(3).ppf([0.75, 0.25])
    assert source.gamma(3, (2,)).tolist() == pytest.approx(expected.tolist())


def test_the_first_and_the_last_word_give_finite_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    zero, ones = 0, 2**64 - 1
    for words, size in [
        ([zero, zero], 128 * math.log(2)),  # 2^-129 of the probability lies further out
        ([1, ones], 63 * math.log(2)),  # 2^-64 of it
        ([ones], 0.0),
        ([ones - 1], 0.0),
    ]:
        left = fed(monkeypatch, words)
        value = float(SystemNoise().laplace(()))
        assert left == []
        assert abs(value) == pytest.approx(size)
        assert value <= 0 if words[0] % 2 == 0 else value >= 0
    for words in ([zero, zero], [1, 0], [ones], [ones - 1]):
        fed(monkeypatch, words)
        assert math.isfinite(float(SystemNoise().normal(())))
        fed(monkeypatch, words)
        assert math.isfinite(float(SystemNoise().gamma(2, ())))


GRID = 2.0**-25  # that of what is released, at its finest, for noise of scale 1
STEP = 2**12  # words that a double can tell apart


@pytest.mark.parametrize("kind", ["normal", "laplace"])
@pytest.mark.parametrize("power", range(63))
def test_no_value_is_so_far_from_the_next_that_the_grid_would_show_it(
    monkeypatch: pytest.MonkeyPatch, kind: str, power: int
) -> None:
    # One in 2^(63 - power) draws lies further out. If there the possible values were sparser than
    # the grid, one of them could tell which upload it was added to.
    words = []
    if power >= 47:
        words = [2 ** (power + 1) + 1, 2 ** (power + 1) + 2 * STEP + 1]
    else:
        words = [2 ** (power + 1) + 1, 2 ** (power + 1) + 1, 2**63, 2**63 + STEP]
    left = fed(monkeypatch, words)
    values = getattr(SystemNoise(), kind)((2,))
    assert left == []
    assert abs(values[0] - values[1]) < GRID / 8
    beyond = 2.0 ** (power - 64) if power >= 47 else (2.0**power + 0.5) * 2.0**-64
    expected = -math.log(2 * beyond) if kind == "laplace" else -scipy.special.ndtri(beyond)
    assert values[0] == pytest.approx(expected, rel=1e-12)


def test_a_second_word_is_taken_only_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    rare, common = 2 * (2**47 - 1) + 1, 2 * 2**47 + 1
    left = fed(monkeypatch, [common, rare, common, rare, 7, 8])
    values = SystemNoise().laplace((4,))
    assert left == []
    assert values[0] == values[2]
    assert values[1] == pytest.approx(values[3], rel=1e-12)
    assert values[1] > values[0]
    left = fed(monkeypatch, [common, 9])
    SystemNoise().laplace((1,))
    assert left == [9]


KEY = bytes(range(32))


def test_the_same_key_and_label_give_the_same_noise() -> None:
    for kind in ("normal", "laplace"):
        one, two = KeyedNoise(KEY, b"run 1"), KeyedNoise(KEY, b"run 1")
        assert (getattr(one, kind)((6,)) == getattr(two, kind)((6,))).all()
        assert (getattr(one, kind)((3,)) == getattr(two, kind)((3,))).all()
    assert (KeyedNoise(KEY, b"x").gamma(0.4, (9,)) == KeyedNoise(KEY, b"x").gamma(0.4, (9,))).all()


def test_another_key_label_or_call_gives_other_noise() -> None:
    sources = [
        KeyedNoise(KEY, b"run 1"),
        KeyedNoise(KEY, b"run 2"),
        KeyedNoise(KEY, b"run 1\0"),
        KeyedNoise(KEY, b""),
        KeyedNoise(KEY[:16], b"run 1"),
        KeyedNoise(KEY[:16], KEY[16:] + b"run 1"),  # the same bytes, otherwise divided
    ]
    draws = [source.normal((8,)) for source in sources for _ in range(2)]
    assert len(np.unique(np.concatenate(draws))) == 8 * len(draws)


def test_keyed_noise_is_shake_256_of_key_label_and_call() -> None:
    source = KeyedNoise(KEY, b"a label")
    for call in (1, 2):
        text = (32).to_bytes(8, "little") + KEY + b"a label" + call.to_bytes(8, "little")
        word = int.from_bytes(hashlib.shake_256(text).digest(8), "little")
        beyond = ((word >> 1) + 0.5) * 2.0**-64
        sign = 1 if word & 1 else -1
        assert float(source.laplace(())) == pytest.approx(-sign * math.log(2 * beyond), rel=1e-12)


@pytest.mark.parametrize("length", [0, 1, 15])
def test_a_short_key_is_refused(length: int) -> None:
    message = f"key = '{length} bytes': expected at least 16 bytes"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        KeyedNoise(b"k" * length, b"label")
    assert KeyedNoise(b"k" * 16, b"label").normal((1,)).shape == (1,)
