"""Hostile clients: what the server rejects, and what honest clients risk."""

from __future__ import annotations

from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from bgtplanner.federation.parameters import RoundParameters
from bgtplanner.federation.protection import FALSE_ALARM, Protection
from bgtplanner.privacy.mechanisms import Limits, mechanism_named
from bgtplanner.privacy.privunit import cap_of, randomise
from bgtplanner.privacy.randomness import SeededNoise

Floats = NDArray[np.float64]
MECHANISMS = ["gaussian", "laplace", "privunit"]
SIZE, CLIP = 600, 0.1


def limits_of(
    mechanism: str, clip: float, scale: float, size: int, epsilon: float = 1.0
) -> Limits:
    caps = mechanism_named(mechanism).parameters(np.array([epsilon]))
    parameters = RoundParameters(
        granted=jnp.ones(1), clip=jnp.array([clip]), scale=jnp.array([scale]),
        class_of_client=jnp.zeros(1, int), parameters=caps,
    )  # fmt: skip
    found = Protection(mechanism=mechanism).limits(parameters, size)
    return Limits(*(float(part[0]) for part in found))


@cache
def terms(mechanism: str, size: int = SIZE, epsilon: float = 10.0) -> tuple[float, Limits]:
    """Scale and limits of a round; for additive noise the multiplier is 5 / epsilon."""
    scale = 10 * CLIP / epsilon
    if mechanism == "privunit":
        scale = CLIP / float(cap_of(epsilon).strength)
    return scale, limits_of(mechanism, CLIP, scale, size, epsilon)


def released(mechanism: str, clipped: Floats, epsilon: float = 10.0) -> Floats:
    """As a real client releases it."""
    source = SeededNoise(clipped.shape[1])
    if mechanism == "privunit":
        return randomise(clipped, source, bound=CLIP, epsilon=epsilon)
    scale, _ = terms(mechanism, clipped.shape[1], epsilon)
    return mechanism_named(mechanism).randomise(
        clipped, source, scale=scale, bound=CLIP, charge=epsilon
    )


def rejected(mechanism: str, rows: Floats, epsilon: float = 10.0) -> list[int]:
    scale, limits = terms(mechanism, rows.shape[1], epsilon)
    is_possible = Protection(mechanism=mechanism).is_possible
    return [n for n, row in enumerate(rows) if not is_possible(row, scale, limits)]


@pytest.mark.parametrize("epsilon", [0.5, 20.0])
@pytest.mark.parametrize("size", [1, 8, 2000])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_honest_uploads_are_accepted(mechanism: str, size: int, epsilon: float) -> None:
    """At full clip (in L1, which is no longer in L2): one coordinate, a few, all, or none."""
    rows = np.zeros((min(2000, 400_000 // size), size))
    rows[0::4, 0] = 1.0
    rows[1::4, : min(3, size)] = 1.0 / min(3, size)
    rows[2::4] = 1.0 / size
    assert rejected(mechanism, released(mechanism, 0.999 * CLIP * rows, epsilon), epsilon) == []


@pytest.mark.parametrize("reach", [0.0, 0.5, 50.0])
@pytest.mark.parametrize("size", [1, 10, 3364, 100_000])
def test_honest_uploads_are_rejected_no_more_often_than_stated(size: int, reach: float) -> None:
    own = limits_of("gaussian", reach, 1.0, size)
    low = stats.chi2.cdf(own.low**2, size)
    high = stats.ncx2.sf(own.high**2, size, reach**2) if reach else 0.0
    high = max(high, stats.chi2.sf(own.high**2, size))
    one = stats.norm.sf(own.coordinate - reach) + stats.norm.sf(own.coordinate + reach)
    each = one + (size - 1) * 2 * stats.norm.sf(own.coordinate)
    assert low + high + each <= FALSE_ALARM
    assert high + each >= 0.001 * FALSE_ALARM  # and it is not for nothing


@pytest.mark.parametrize("epsilon", [0.1, 10.0])
def test_privunit_is_at_most_so_many_times_as_likely_as_noise(epsilon: float) -> None:
    """The density of the part along an upload over the normal one, by counting draws."""
    cap = cap_of(epsilon)
    ratio = float(cap.chance) / stats.norm.sf(float(cap.threshold))
    rows = np.zeros((40_000, 2))
    rows[:, 0] = CLIP * (1 - 1e-9)
    along = randomise(rows, SeededNoise(1), bound=CLIP, epsilon=epsilon)[:, 0]
    along *= float(cap.strength) / CLIP
    for start in np.arange(-4.0, 6.0, 0.5):
        share = np.mean((along >= start) & (along < start + 0.5))
        likely = stats.norm.cdf(start + 0.5) - stats.norm.cdf(start)
        assert share <= ratio * likely + 6 * (share / 40_000) ** 0.5 + 1e-4
    loose, tight = terms("privunit", SIZE, epsilon)[1], limits_of("gaussian", 0.0, 1.0, SIZE)
    assert loose.coordinate**2 - tight.coordinate**2 == pytest.approx(
        2 * np.log(ratio), rel=1e-3, abs=1e-3
    )


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_what_clip_and_noise_cannot_produce_is_rejected(mechanism: str) -> None:
    """Uploads that are too short or too long, and one of the right length in one coordinate."""
    honest = released(mechanism, np.zeros((4, SIZE)))
    length = float(mechanism_named(mechanism).norm(honest).mean())
    one_item = np.zeros(SIZE)
    one_item[-1] = length
    false = np.stack([0.5 * honest[0], 2.0 * honest[1], np.zeros(SIZE), one_item])
    assert rejected(mechanism, np.concatenate([honest, false])) == [4, 5, 6, 7]
    scale, limits = terms(mechanism)
    loose = limits._replace(coordinate=1e9)
    assert Protection(mechanism=mechanism).is_possible(one_item, scale, loose)
