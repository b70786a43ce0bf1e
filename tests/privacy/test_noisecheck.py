"""Checks of the noise itself: exact where all is well, and sharp where it is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray

from bgtplanner.privacy.noisecheck import NoiseWatch, at_least

Floats = NDArray[np.float64]
Kind = Literal["gaussian", "laplace"]
KINDS: list[Kind] = ["gaussian", "laplace"]


def drawn(kind: Kind, generator: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return generator.normal(size=shape) if kind == "gaussian" else generator.laplace(size=shape)


def watched(
    kind: Kind,
    fault: Callable[[Floats], Floats] = lambda noise: noise,
    *,
    seed: int = 0,
    shape: tuple[int, int, int] = (2, 500, 4),
    batches: int = 2,
) -> NoiseWatch:
    generator, watch = np.random.default_rng(seed), NoiseWatch(kind)
    for _ in range(batches):
        watch.add(*(fault(drawn(kind, generator, shape)) for _ in range(2)))
    return watch


def test_the_size_of_gaussian_noise_is_tested_by_chi_square() -> None:
    noise = np.random.default_rng(0).normal(size=(2, 3, 50, 1)) * 0.95
    watch = NoiseWatch("gaussian")
    watch.add(noise[0], noise[1])
    squares = ((noise - noise.mean(axis=2, keepdims=True)) ** 2).sum()
    exact = scipy.stats.chi2(6 * 49).cdf(squares)
    assert watch.size_check().p_value == pytest.approx(min(1.0, 2 * exact))
    assert watch.size_check().measured == pytest.approx(np.sqrt(squares / (6 * 49)))


def test_the_size_of_laplace_noise_is_tested_by_gamma() -> None:
    noise = np.random.default_rng(0).laplace(size=(2, 3, 50, 1)) * 0.9
    watch = NoiseWatch("laplace")
    watch.add(noise[0], noise[1])
    exact = scipy.stats.gamma(300).cdf(np.abs(noise).sum())
    assert watch.size_check().p_value == pytest.approx(min(1.0, 2 * exact))
    assert watch.size_check().measured == pytest.approx(np.abs(noise).mean())


@pytest.mark.parametrize("kind", KINDS)
def test_honest_noise_is_refuted_as_rarely_as_stated(kind: Kind) -> None:
    # 600 audits; more would be refuted with a probability of 1e-9 if the p-values were too small.
    trials, risk = 600, 0.1
    found = [watched(kind, seed=seed, shape=(2, 20, 3)) for seed in range(trials)]
    allowed = scipy.stats.binom(trials, risk).isf(1e-9)
    assert sum(watch.size_check().p_value <= risk for watch in found) <= allowed
    assert sum(watch.fresh_check().p_value <= risk for watch in found) <= allowed


@pytest.mark.parametrize("kind", KINDS)
def test_noise_of_other_shapes_is_taken(kind: Kind) -> None:
    assert watched(kind, batches=0).size_check().p_value == 1.0
    assert watched(kind, batches=0).fresh_check().p_value == 1.0
    for shape in ((1, 2, 1), (1, 3, 1), (5, 3, 1), (1, 200, 1)):
        watch = watched(kind, shape=shape, batches=1)
        assert watch.size_check().p_value > 1e-3
        assert watch.fresh_check().p_value > 1e-3


def smaller(noise: Floats) -> Floats:
    return 0.9 * noise


def missing(noise: Floats) -> Floats:
    noise = noise.copy()
    noise[..., -1] = 0.0
    return noise


def half_missing(noise: Floats) -> Floats:
    noise = noise.copy()
    noise[..., 1] *= 0.7
    return noise


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", [smaller, missing, half_missing])
def test_too_little_noise_is_caught(kind: Kind, fault: Any) -> None:
    check = watched(kind, fault).size_check()
    assert check.p_value < 1e-6
    assert check.measured < 0.95
    assert check.fault == "the noise is smaller than stated"


@pytest.mark.parametrize("kind", KINDS)
def test_more_noise_does_no_harm(kind: Kind) -> None:
    assert watched(kind, lambda noise: 1.2 * noise).size_check().p_value > 0.5


def test_gaussian_noise_about_another_centre_is_as_large() -> None:
    plain, moved = watched("gaussian"), watched("gaussian", lambda noise: noise + 5.0)
    assert moved.size_check().p_value == pytest.approx(plain.size_check().p_value)
    assert moved.fresh_check().p_value == pytest.approx(plain.fresh_check().p_value)


def between_rounds(noise: Floats) -> Floats:
    return np.concatenate([noise[:1], noise[:1]])


def between_rounds_now_and_then(noise: Floats) -> Floats:
    noise = noise.copy()
    noise[1, :10] = noise[0, :10]
    return noise


def mirrored_between_rounds(noise: Floats) -> Floats:
    return np.concatenate([noise[:1], -noise[:1]])


def partly_between_rounds(noise: Floats) -> Floats:
    return np.concatenate([noise[:1], 0.6 * noise[:1] + 0.8 * noise[1:]])


def between_coordinates(noise: Floats) -> Floats:
    return np.repeat(noise[..., :1], noise.shape[2], axis=2)


def between_clients(noise: Floats) -> Floats:
    return np.repeat(noise[:, :1], noise.shape[1], axis=1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "fault",
    [between_rounds, between_rounds_now_and_then, mirrored_between_rounds, partly_between_rounds,
     between_coordinates, between_clients],
)  # fmt: skip
def test_noise_that_was_used_before_is_caught(kind: Kind, fault: Any) -> None:
    check = watched(kind, fault).fresh_check()
    assert check.p_value < 1e-9
    where = "clients" if fault is between_clients else "rounds"
    where = "coordinates" if fault is between_coordinates else where
    assert check.fault == f"noise is used more than once (between {where})"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["inputs", "batches"])
def test_noise_of_another_input_or_batch_is_caught(kind: Kind, where: str) -> None:
    generator, watch = np.random.default_rng(0), NoiseWatch(kind)
    if where == "inputs":
        for _ in range(2):
            noise = drawn(kind, generator, (1, 100, 3))
            watch.add(noise, noise + 1e-9)
    else:
        noises = drawn(kind, generator, (2, 1, 100, 3))
        for _ in range(2):
            watch.add(noises[0], noises[1])
    check = watch.fresh_check()
    assert check.p_value < 1e-9
    assert check.fault.endswith(f"(between {where})")


def test_counts_are_compared_with_a_chance() -> None:
    for hits in (0, 3, 10):
        check = at_least("name", hits, 10, 0.4, "fault")
        exact = scipy.stats.binomtest(hits, 10, 0.4, alternative="greater").pvalue
        assert check.p_value == pytest.approx(exact)
        assert (check.measured, check.stated) == (hits / 10, 0.4)
    assert at_least("name", 0, 0, 0.5, "fault").p_value == 1.0
