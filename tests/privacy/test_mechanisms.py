"""Clip, scale, noise: never longer than the bound, never less noise than claimed, on a grid."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from bgtplanner.errors import ConfigError
from bgtplanner.privacy.accountants import accountant_named, from_ticks, to_ticks
from bgtplanner.privacy.audit import lower_bound
from bgtplanner.privacy.mechanisms import MECHANISMS, Additive, _steps, clip_factor, grid_of
from bgtplanner.privacy.randomness import ExactNoise, SeededNoise
from privacy.ledgers import exact, refused

GAUSSIAN: Additive = MECHANISMS["gaussian"]  # type: ignore[assignment]
LAPLACE: Additive = MECHANISMS["laplace"]  # type: ignore[assignment]
BOTH = [GAUSSIAN, LAPLACE]
RANGE = "a number from 1e-100 to 1e100"
RARE, LIMIT = 1e-6, 1e-3  # chances of a p-value of what is right, and of what is wrong
quick = settings(deadline=None, derandomize=True, max_examples=80)

extremes = [0.0, -0.0, 5e-324, -5e-324, 1e-310, 2.2e-308, 1e-160, 1.0, 1e154, 1e200, 1.7e308]
entries = st.sampled_from([*extremes, -1.7e308]) | st.floats(allow_nan=False, allow_infinity=False)
uploads = arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 6)), elements=entries)
bounds = st.floats(-20, 20).map(lambda power: 10.0**power)


def exact_norm(upload: NDArray[np.float64], order: int) -> float:
    """Without overflow, by scaling with a power of two."""
    values = [float(value) for value in upload.ravel()]
    largest = max(map(abs, values), default=0.0)
    if largest == 0:
        return 0.0
    _, exponent = math.frexp(largest)
    parts = [math.ldexp(value, -exponent) for value in values]
    length = math.fsum(map(abs, parts)) if order == 1 else math.hypot(*parts)
    try:
        return math.ldexp(length, exponent)
    except OverflowError:
        return math.inf


# ---- names and scales


BAD = [0.0, -1.0, math.nan, math.inf, -math.inf, 5e-324, 9e-101, 1.1e100]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("mechanism", BOTH)
def test_senseless_scales_are_refused(mechanism: Additive, bad: float) -> None:
    source = SeededNoise(1)
    with refused(f"noise_multiplier = {bad!r}: expected {RANGE}"):
        mechanism.scale(bad, 1.0)
    for call in (
        lambda: mechanism.scale(1.0, bad),
        lambda: mechanism.clip([[1.0]], bad),
        lambda: mechanism.check_sums(3, bad, 1.0),
    ):
        with refused(f"clip = {bad!r}: expected {RANGE}"):
            call()
    for call in (
        lambda: mechanism.noise(source, bad, (1,)),
        lambda: mechanism.on_grid([1.0], bad),
        lambda: mechanism.check_sums(3, 1.0, bad),
    ):
        with refused(f"scale = {bad!r}: expected {RANGE}"):
            call()
    with refused(f"clip = [1.0, {bad!r}]: expected {RANGE}"):
        mechanism.clip([[1.0], [1.0]], [1.0, bad])


# ---- clip


@pytest.mark.parametrize("mechanism", BOTH)
@given(values=uploads, bound=bounds)
@quick
def test_nothing_is_longer_than_the_bound_and_directions_stay(
    mechanism: Additive, values: NDArray[np.float64], bound: float
) -> None:
    clipped = mechanism.clip(values, bound)
    assert clipped.shape == values.shape
    assert np.isfinite(clipped).all()
    for before, after in zip(values, clipped, strict=True):
        length, cut = exact_norm(before, mechanism.order), exact_norm(after, mechanism.order)
        assert cut <= bound * (1 - 0.99e-6)
        assert exact_norm(after.astype(np.float32), mechanism.order) <= bound
        if length <= bound * (1 - 1.01e-6):
            assert (before == after).all()
        elif length >= bound:
            assert cut >= bound * (1 - 1.01e-6)
        assert (np.sign(before) * np.sign(after) >= 0).all()
        if length > 0 and cut > 0:  # one factor for all of them, never above 1
            largest = int(np.argmax(np.abs(before)))
            scale = before / abs(before[largest])
            np.testing.assert_allclose(after / abs(after[largest]), scale, rtol=1e-9, atol=1e-12)
            assert (np.abs(after) <= np.abs(before)).all()


@pytest.mark.parametrize("mechanism", BOTH)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_upload_with_a_hole_in_it_becomes_zero(mechanism: Additive, bad: float) -> None:
    clipped = mechanism.clip([[1.0, bad, 2.0], [0.1, 0.2, 0.3]], 1.0)
    assert clipped.tolist() == [[0.0, 0.0, 0.0], [0.1, 0.2, 0.3]]
    assert not mechanism.norm([[1.0, bad]])[0] < math.inf
    assert math.isnan(mechanism.norm([[1.0, math.nan]])[0])


@given(
    values=arrays(np.float32, (50,), elements=st.floats(-1e6, 1e6, width=32)),
    bound=st.floats(-3, 3).map(lambda power: 10.0**power),
)
@settings(deadline=None, derandomize=True, max_examples=60)
def test_clip_factors_keep_single_precision_uploads_within_the_bound(
    values: NDArray[np.float32], bound: float
) -> None:
    norm = np.asarray(np.sqrt((values**2).sum(dtype=np.float32)), dtype=np.float32)
    cut = values * clip_factor(norm, np.float32(bound))
    assert cut.dtype == np.float32
    assert exact_norm(cut.astype(np.float64), 2) <= bound


# ---- noise on one upload


@pytest.mark.parametrize(("mechanism", "sd"), [(GAUSSIAN, 1.0), (LAPLACE, math.sqrt(2))])
def test_added_noise_has_the_claimed_variance_and_law(mechanism: Additive, sd: float) -> None:
    n, scale = 60_000, 7.0
    clipped = np.tile([0.6, -0.8], (n // 2, 1))
    released = mechanism.randomise(clipped, SeededNoise(11), scale=scale)
    noise = (released - clipped).ravel()
    assert noise.mean() == pytest.approx(0.0, abs=5 * scale * sd / math.sqrt(n))
    assert noise.std() == pytest.approx(scale * sd, rel=0.02)
    law = scipy.stats.norm if mechanism is GAUSSIAN else scipy.stats.laplace
    assert scipy.stats.kstest(noise, law(scale=scale).cdf).pvalue > RARE
    for wrong in (0.9, 1.1):  # 5% would be missed by one seed in five
        assert scipy.stats.kstest(noise * wrong, law(scale=scale).cdf).pvalue < LIMIT


@pytest.mark.parametrize("mechanism", BOTH)
@given(
    multiplier=st.floats(-15, 15).map(lambda power: 10.0**power),
    bound=st.floats(-15, 15).map(lambda power: 10.0**power),
)
@quick
def test_a_scale_in_steps_is_never_rounded_down(
    mechanism: Additive, multiplier: float, bound: float
) -> None:
    asked: list[int] = []

    class Recorder(ExactNoise):
        def normal_steps(self, scale: int, shape: tuple[int, ...]) -> Any:
            asked.append(scale)
            return np.zeros(shape, dtype=np.int64)

        laplace_steps = normal_steps

    scale = float(mechanism.scale(multiplier, bound))
    mechanism.noise(Recorder(bytes), scale, (1,))
    exactly = Fraction(multiplier) * 2 * Fraction(bound) / Fraction(grid_of(scale))
    assert exactly <= asked[0] <= exactly * (1 + Fraction(2) ** -23)
    assert 2**24 <= asked[0] <= 2**25


RULE_OF = {"gaussian": "gaussian/gdp", "laplace": "laplace/basic"}


@pytest.mark.parametrize("mechanism", BOTH)
@given(
    values=arrays(np.float64, (2, 5), elements=st.floats(-100, 100)),
    bound=st.floats(-6, 6).map(lambda power: 10.0**power),
    charge=st.floats(-9, 3).map(lambda power: 10.0**power),
)
@quick
def test_no_two_uploads_differ_by_more_than_is_paid_for(
    mechanism: Additive, values: NDArray[np.float64], bound: float, charge: float
) -> None:
    """The whole way from charge to steps in whole numbers: what the proofs rest on."""
    accountant = accountant_named(RULE_OF[mechanism.name])
    scale = float(mechanism.scale(accountant.noise_multiplier(charge), bound))
    uploads = np.concatenate([values, -values * 1e9])  # the longest possible differences, too
    grid = Fraction(grid_of(scale))
    cut = mechanism.on_grid(mechanism.clip(uploads, bound), scale)
    whole = [[Fraction(value) / grid for value in row] for row in cut.tolist()]
    assert all(value.denominator == 1 for row in whole for value in row)
    steps = _steps(scale)
    paid = Fraction(float(from_ticks(to_ticks(charge))))
    for one, two in itertools.combinations(whole, 2):
        differences = [abs(a - b) for a, b in zip(one, two, strict=True)]
        if mechanism is LAPLACE:  # log of the ratio of probabilities: sum of differences / steps
            assert sum(differences) <= paid * steps
        else:  # mu^2 of the continuous mechanism
            assert sum(d**2 for d in differences) <= paid * steps**2


@pytest.mark.parametrize("mechanism", BOTH)
def test_sums_that_doubles_could_not_hold_are_refused(mechanism: Additive) -> None:
    # A clip of 1 is 2^24 steps for noise of scale 1: 2^29 clients reach 2^53.
    mechanism.check_sums(2**29 - 1000, 1.0, 1.0)
    message = "clients = 536870912: expected below 5.37e+08, or more noise: sums of these would"
    with refused(f"{message} not be exact"):
        mechanism.check_sums(2**29, 1.0, 1.0)
    mechanism.check_sums(2**40, 2.0**-20, 1.0)
    # A trillionth is left for rounding, and what reaches it is refused.
    for bound, first in ((2.0**-11, 2**40 - 1), (2.0**-24, int(2.0**53 * (1 - 1e-12)))):
        mechanism.check_sums(first - 1, bound, 1.0)
        with pytest.raises(ConfigError, match=rf"^clients = {first}: "):
            mechanism.check_sums(first, bound, 1.0)
    largest = np.float64(2.0**53 - 2)
    assert largest + 1 == 2.0**53 - 1  # up to there every whole number is a double


@pytest.mark.parametrize("mechanism", BOTH)
def test_uploads_are_cut_to_the_grid_towards_zero(mechanism: Additive) -> None:
    grid = 2.0**-24
    values = np.array([0.0, 0.4, 0.9, 1.0, 1.9, -0.9, -1.0, -1.9]) * grid
    expected = np.array([0, 0, 0, 1, 1, 0, -1, -1]) * grid
    assert (mechanism.on_grid(values, 1.0) == expected).all()
    assert (mechanism.on_grid(values, 1.999) == expected).all()
    assert (mechanism.on_grid(values, 2.0) == np.array([0, 0, 0, 0, 0, 0, 0, 0])).all()


def scores(released: NDArray[np.float64]) -> NDArray[np.float64]:
    """The exact test between an upload of 1 and one of -1 under Laplace noise."""
    return np.asarray(np.abs(released + 1) - np.abs(released - 1))


def test_the_last_bits_of_a_plain_sum_tell_and_those_of_ours_do_not() -> None:
    # Laplace noise at epsilon 1. In plain doubles some sums are possible for one upload only.
    plain, ours = [], []
    for side, upload in enumerate((2.0, -2.0)):
        clipped = LAPLACE.clip(np.full((50_000, 1), upload), 1.0)
        scale = float(LAPLACE.scale(1.0, 1.0))
        plain.append(
            scores(clipped + scale * np.random.default_rng(side).laplace(size=(50_000, 1)))
        )
        ours.append(scores(LAPLACE.randomise(clipped, SeededNoise(side), scale=scale)))
    assert lower_bound(*plain, delta=1e-5).epsilon > 1.5
    assert 0.85 < lower_bound(*ours, delta=1e-5).epsilon < 1.0


@pytest.mark.parametrize("mechanism", BOTH)
def test_real_noise_is_drawn_in_whole_steps_of_the_grid(mechanism: Additive) -> None:
    source, steps = exact(2), 3 * 2**23 + 1  # 3.0 in steps of 2^-23, rounded up
    draw = source.normal_steps if mechanism is GAUSSIAN else source.laplace_steps
    noise = mechanism.noise(exact(2), 3.0, (4, 5))
    assert (noise * 2.0**23 == draw(steps, (4, 5))).all()
    assert len(np.unique(noise)) == 20
