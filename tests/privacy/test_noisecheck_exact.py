"""Checks of the noise by hand: every relation alone, with exact probabilities."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from numpy.typing import ArrayLike, NDArray

from bgtplanner.privacy.noisecheck import Check, NoiseWatch, at_least

Floats = NDArray[np.float64]
USED = "noise is used more than once (between {})"
CHANCE = 4e-6  # of one coordinate to come so close to another


def as_noise(differences: ArrayLike) -> Floats:
    """Noise whose trials differ by these, two by two: ``[rounds, pairs, columns]``."""
    given = np.asarray(differences, dtype=np.float64)
    rounds, pairs, columns = given.shape
    noise = np.zeros((rounds, 2 * pairs, columns))
    noise[:, ::2] = given
    return noise


def random_noise(shape: tuple[int, ...], seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(size=shape)


def fresh(*batches: tuple[Floats, Floats]) -> Check:
    watch = NoiseWatch("gaussian")
    for first, second in batches:
        watch.add(first, second)
    return watch.fresh_check()


def test_before_anything_was_seen() -> None:
    watch = NoiseWatch("laplace")
    size, none = watch.size_check(), watch.fresh_check()
    assert size == ("size of the noise", 1.0, 1.0, 1.0, "the noise is smaller than stated")
    assert none == ("fresh noise", 1.0, 0.5, 0.5, USED.format("clients"))
    single = np.zeros((1, 1, 2))  # a single trial has no deviation, and no other to differ from
    assert fresh((single, single)) == none


def test_one_trial_out_of_one() -> None:
    assert at_least("name", 1, 1, 0.25, "fault") == ("name", 0.25, 1.0, 0.25, "fault")


# ---- how large it is


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
@pytest.mark.parametrize("scales", [(1.0, 0.5, 1.0), (0.9, 0.93, 0.91), (1e-9, 3e-9, 2e-9)])
def test_all_columns_together_and_the_worst_alone(
    kind: str, scales: tuple[float, float, float]
) -> None:
    noise = random_noise((2, 2, 200, 3)) * scales
    watch = NoiseWatch("gaussian" if kind == "gaussian" else "laplace")
    watch.add(noise[0], noise[1])
    if kind == "gaussian":
        sums = ((noise - noise.mean(axis=2, keepdims=True)) ** 2).sum(axis=(0, 1, 2))
        alone, together = scipy.stats.chi2(4 * 199), scipy.stats.chi2(3 * 4 * 199)
        ratios = sums / (4 * 199)
    else:
        sums = np.abs(noise).sum(axis=(0, 1, 2))
        alone, together = scipy.stats.gamma(800), scipy.stats.gamma(2400)
        ratios = sums / 800
    single, whole = 3 * alone.cdf(sums).min(), together.cdf(sums.sum())
    ratio = ratios.min() if single < whole else ratios.mean()
    check = watch.size_check()
    assert check.p_value == pytest.approx(2 * min(single, whole), rel=1e-9)
    assert check.measured == pytest.approx(np.sqrt(ratio) if kind == "gaussian" else ratio)
    assert check.stated == 1.0


def test_a_probability_is_at_most_one() -> None:
    watch = NoiseWatch("gaussian")
    watch.add(*(2 * random_noise((2, 1, 50, 2))))
    assert watch.size_check().p_value == 1.0


# ---- whether it is fresh


@pytest.mark.parametrize("ways", [1, -1])
def test_signs_of_two_inputs(ways: int) -> None:
    # Two in four neighbours agree, so that only the inputs stand out.
    first = np.tile([0.5, 0.7, 0.6, -0.3], 10)
    second = ways * first * np.linspace(0.1, 0.9, 40)
    first[3], second[7] = 0.0, ways * -0.0
    check = fresh((as_noise(first[None, :, None]), as_noise(second[None, :, None])))
    agree = {1: 40, -1: 1}[ways]  # zero is on the side of what is below it
    # Three other things were looked at: signs and rows of clients, and rows of inputs.
    exact = scipy.stats.binomtest(agree, 40, 0.5).pvalue * 4
    assert check.p_value == pytest.approx(exact, rel=1e-9)
    assert (check.measured, check.stated) == (agree / 40, 0.5)
    assert check.fault == USED.format("inputs")


def test_signs_of_clients() -> None:
    # Of 41 differences the last has no partner. Those of one input say nothing about the other.
    generator = np.random.default_rng(3)
    first, second = generator.normal(size=(2, 41))
    for values in (first, second):
        values[1:41:2] = np.copysign(values[1:41:2], values[0:40:2])
    first[1] = np.copysign(first[1], -first[0])
    check = fresh((as_noise(first[None, :, None]), as_noise(second[None, :, None])))
    assert check.p_value == pytest.approx(scipy.stats.binomtest(39, 40, 0.5).pvalue * 4)
    assert (check.measured, check.stated) == (39 / 40, 0.5)
    assert check.fault == USED.format("clients")


def test_signs_of_rounds() -> None:
    noise = random_noise((2, 3, 60, 1))
    noise[:, 1] = -noise[:, 0] * 1.5
    noise[:, 2] = -noise[:, 1] * 1.5
    check = fresh((noise[0], noise[1]))
    assert check.p_value == pytest.approx(2 * 0.5**120 * 6)  # signs and rows of three relations
    assert (check.measured, check.stated, check.fault) == (0.0, 0.5, USED.format("rounds"))


def test_signs_of_coordinates() -> None:
    noise = random_noise((2, 1, 60, 3))
    noise[..., 1] = -noise[..., 0] * 1.5
    noise[..., 2] = -noise[..., 1] * 1.5
    check = fresh((noise[0], noise[1]))
    assert check.p_value == pytest.approx(2 * 0.5**120 * 5)  # rows of coordinates there are none
    assert (check.measured, check.stated, check.fault) == (0.0, 0.5, USED.format("coordinates"))


@pytest.mark.parametrize("sizes", [(100, 60), (60, 100)])
def test_signs_of_batches_of_unequal_size(sizes: tuple[int, int]) -> None:
    noise = random_noise((2, 1, 100, 1))
    batches = [
        (a * noise[0, :, :n], a * noise[1, :, :n]) for a, n in zip((1, 2), sizes, strict=True)
    ]
    check = fresh(*batches)
    assert check.p_value == pytest.approx(2 * 0.5**60 * 6)
    assert (check.measured, check.stated, check.fault) == (1.0, 0.5, USED.format("batches"))


def of_rows(hits: int, rows: int, columns: int, looked: int) -> float:
    test = scipy.stats.binomtest(hits, rows, CHANCE**columns, alternative="greater")
    return float(test.pvalue) * looked


@pytest.mark.parametrize("columns", [1, 2])
def test_two_clients_with_the_same_noise(columns: int) -> None:
    noise = random_noise((2, 1, 20, columns))
    noise[0, 0, 4] = noise[0, 0, 5]
    check = fresh((noise[0], noise[1]))
    # 10 differences of each input are looked at, and 5 pairs of them.
    looked = 4 if columns == 1 else 5
    assert check.p_value == pytest.approx(of_rows(1, 30, columns, looked))
    assert check.measured == pytest.approx(1 / 30)
    assert check.stated == pytest.approx(CHANCE**columns)
    assert check.fault == USED.format("clients")


@pytest.mark.parametrize("columns", [1, 2])
def test_two_clients_with_the_noise_of_two_others(columns: int) -> None:
    noise = random_noise((2, 1, 20, columns))
    noise[1, 0, 4:6] = noise[1, 0, 6:8]
    noise[1, 0, 8:10] = -noise[1, 0, 10:12]
    check = fresh((noise[0], noise[1]))
    assert check.p_value == pytest.approx(of_rows(2, 30, columns, 4 if columns == 1 else 5))
    assert check.fault == USED.format("clients")


@pytest.mark.parametrize(("apart", "equal"), [(1e-6, True), (1.5e-6, False)])
def test_how_close_is_the_same(apart: float, equal: bool) -> None:
    differences = random_noise((1, 10, 2))
    differences[0, 2] = (apart, -apart)  # as good as none
    alone = fresh((as_noise(differences), random_noise((1, 20, 2), seed=1)))
    differences = random_noise((1, 10, 2))
    differences[0, 2:4] = ((apart, 0.5), (2 * apart, 0.5))  # as good as the next
    two = fresh((as_noise(differences), random_noise((1, 20, 2), seed=1)))
    assert (alone.p_value < 0.01) == equal
    assert (two.p_value < 0.01) == equal


def test_one_coordinate_alone_may_be_the_same() -> None:
    noise = random_noise((2, 1, 20, 2))
    noise[:, 0, 4, 0] = noise[:, 0, 5, 0]
    noise[:, 0, 8:10, 1] = noise[:, 0, 10:12, 1]
    assert fresh((noise[0], noise[1])).p_value == 1.0  # nothing stands out
