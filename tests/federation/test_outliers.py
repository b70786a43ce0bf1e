"""Hostile clients: what the server rejects, what honest clients risk, what one of them can do.

Every attack has a variant without the defence, in which it must succeed.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from bgtplanner.federation.outliers import FALSE_ALARM, OutlierTests, limits_of
from bgtplanner.privacy.mechanisms import Limits, mechanism_named
from bgtplanner.privacy.privunit import cap_of, randomise
from bgtplanner.privacy.randomness import SeededNoise

Floats = NDArray[np.float64]
MECHANISMS = ["gaussian", "laplace", "privunit"]
SIZE, CLIP, EPSILON = 600, 0.1, 10.0
ANYTHING = Limits(0.0, 1e9, 1e9, 1e9, 1e9)


@cache
def terms(mechanism: str, size: int = SIZE, epsilon: float = EPSILON) -> tuple[float, Limits]:
    """Scale and limits of a round; for additive noise the multiplier is 5 / epsilon."""
    if mechanism == "privunit":
        cap = cap_of(epsilon)
        scale = CLIP / float(cap.strength)
        found = limits_of(
            mechanism, CLIP, scale, size, jnp.array([float(cap.threshold), float(cap.chance)])
        )
    else:
        scale = 10 * CLIP / epsilon
        found = limits_of(mechanism, CLIP, scale, size)
    return scale, Limits(*(float(part) for part in found))


def released(mechanism: str, clipped: Floats, seed: int, epsilon: float = EPSILON) -> Floats:
    """As a real client releases it."""
    source, kind = SeededNoise(seed), mechanism_named(mechanism)
    if mechanism == "privunit":
        return randomise(clipped, source, bound=CLIP, epsilon=epsilon)
    scale, _ = terms(mechanism, clipped.shape[1], epsilon)
    return kind.add_noise(clipped, source, scale)


def directions(number: int, size: int) -> Floats:
    """Uploads at full clip (in L1, which is no longer in L2): one coordinate, a few, all, none."""
    rows = np.zeros((number, size))
    rows[0::4, 0] = 1.0
    rows[1::4, : min(3, size)] = 1.0 / min(3, size)
    rows[2::4] = 1.0 / size
    return 0.999 * CLIP * rows


def rejected(
    mechanism: str, rows: Floats, *, limits: Limits | None = None, epsilon: float = EPSILON
) -> dict[int, str]:
    scale, own = terms(mechanism, rows.shape[1], epsilon)
    uploads = dict(enumerate(rows))
    by_client = dict.fromkeys(uploads, own if limits is None else limits)
    return OutlierTests(mechanism).rejected(uploads, dict.fromkeys(uploads, scale), by_client)


class TestHonestClients:
    @pytest.mark.parametrize("epsilon", [0.5, 10.0, 1000.0])
    @pytest.mark.parametrize("size", [1, 8, 60, 2000])
    @pytest.mark.parametrize("mechanism", MECHANISMS)
    def test_are_accepted(self, mechanism: str, size: int, epsilon: float) -> None:
        number = min(2000, 400_000 // size)
        rows = released(mechanism, directions(number, size), size, epsilon)
        assert rejected(mechanism, rows, epsilon=epsilon) == {}

    @pytest.mark.parametrize("reach", [0.0, 0.5, 3.0, 50.0])
    @pytest.mark.parametrize("size", [1, 2, 10, 60, 3364, 100_000])
    def test_are_rejected_no_more_often_than_stated(self, size: int, reach: float) -> None:
        """The exact probabilities of norm, coordinates and agreement, and a bound on the shape."""
        own = Limits(*(float(part) for part in limits_of("gaussian", reach, 1.0, size)))
        low = stats.chi2.cdf(own.low**2, size)
        high = stats.ncx2.sf(own.high**2, size, reach**2) if reach else 0.0
        high = max(high, stats.chi2.sf(own.high**2, size))
        one = stats.norm.sf(own.coordinate - reach) + stats.norm.sf(own.coordinate + reach)
        each = one + (size - 1) * 2 * stats.norm.sf(own.coordinate)
        along = stats.norm.sf(own.agreement - reach) + stats.norm.sf(own.agreement + reach)
        shape = np.exp(-0.5 * (own.shape - reach - 2.5) ** 2)
        assert low + high + each + along + shape <= FALSE_ALARM
        assert high + each + along + shape >= 0.02 * FALSE_ALARM  # and it is not for nothing

    @pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0, 100.0])
    def test_privunit_is_at_most_so_many_times_as_likely_as_noise(self, epsilon: float) -> None:
        """The density of the part along an upload over the normal one, by counting draws."""
        cap = cap_of(epsilon)
        ratio = float(cap.chance) / stats.norm.sf(float(cap.threshold))
        rows = np.zeros((200_000, 2))
        rows[:, 0] = CLIP * (1 - 1e-9)
        along = randomise(rows, SeededNoise(1), bound=CLIP, epsilon=epsilon)[:, 0]
        along *= float(cap.strength) / CLIP
        for start in np.arange(-4.0, 6.0, 0.5):
            share = np.mean((along >= start) & (along < start + 0.5))
            likely = stats.norm.cdf(start + 0.5) - stats.norm.cdf(start)
            assert share <= ratio * likely + 6 * (share / 200_000) ** 0.5 + 1e-4
        loose, tight = terms("privunit", SIZE, epsilon)[1], limits_of("gaussian", 0.0, 1.0, SIZE)
        assert loose.coordinate**2 - float(tight.coordinate) ** 2 == pytest.approx(
            2 * np.log(ratio), rel=1e-3, abs=1e-3
        )


def old_band(mechanism: str, upload: Floats, clip: float, scale: float) -> bool:
    """The only check there was: the L2 norm, by a rule of thumb."""
    size = len(upload)
    middle, spread = scale * size**0.5, 5.0 * scale
    if mechanism == "laplace":
        middle, spread = scale * (2.0 * size) ** 0.5, 13.0 * scale
    norm = float(np.linalg.norm(upload))
    return middle - spread - clip <= norm <= middle + spread + clip


def typical_length(mechanism: str) -> float:
    scale, _ = terms(mechanism)
    return scale * ((2.0 if mechanism == "laplace" else 1.0) * SIZE) ** 0.5


def one_hot(mechanism: str) -> Floats:
    upload = np.zeros(SIZE)
    upload[7] = typical_length(mechanism)
    return upload


def constant(mechanism: str) -> Floats:
    return np.full(SIZE, typical_length(mechanism) / SIZE**0.5)


def signs(mechanism: str) -> Floats:
    return constant(mechanism) * np.where(np.arange(SIZE) % 2, 1.0, -1.0)


def few(mechanism: str) -> Floats:
    """One item in ten."""
    upload = np.zeros(SIZE)
    upload[::10] = typical_length(mechanism) / (SIZE / 10) ** 0.5
    return upload


@pytest.mark.parametrize("make", [one_hot, constant, signs, few])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_uploads_of_the_right_length_and_another_shape_are_rejected(
    mechanism: str, make: Any
) -> None:
    upload, (scale, _) = make(mechanism), terms(mechanism)
    honest = released(mechanism, directions(20, SIZE), 5)
    assert rejected(mechanism, np.concatenate([honest, upload[None]])) == {20: "outside"}
    assert old_band(mechanism, upload, CLIP, scale)
    assert rejected(mechanism, upload[None], limits=ANYTHING) == {}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_clients_that_push_the_same_way_are_rejected(mechanism: str) -> None:
    """Each of them looks like noise: normal numbers, in an order that they have agreed on."""
    honest = released(mechanism, directions(300, SIZE), 8)
    agreed = np.argsort(np.random.default_rng(9).standard_normal(SIZE))
    noise = released(mechanism, np.zeros((30, SIZE)), 10)
    pushing = np.empty_like(noise)
    pushing[:, agreed] = np.sort(noise, axis=1)
    found = rejected(mechanism, np.concatenate([honest, pushing]))
    assert found == dict.fromkeys(range(300, 330), "agreeing")
    assert rejected(mechanism, pushing[:1]) == {}  # one alone cannot be told from noise
    two = rejected(mechanism, np.concatenate([honest, pushing[:2]]))
    assert two == dict.fromkeys([300, 301], "agreeing")
    unaware = replace_limit(mechanism, agreement=1e9)
    assert rejected(mechanism, np.concatenate([honest, pushing]), limits=unaware) == {}


def test_every_pair_is_compared_however_many_there_are() -> None:
    """They are compared a few hundred at a time."""
    rows = released("gaussian", directions(1300, 60), 15)
    agreed = 3.0 * np.sign(rows[0]) * terms("gaussian")[0]
    for first, second in ((0, 1299), (600, 700), (1100, 1200)):
        both = rows.copy()
        both[[first, second]] = agreed + 0.1 * rows[[first, second]]
        only = replace_limit("gaussian", low=0.0, high=1e9, coordinate=1e9, shape=1e9)
        found = rejected("gaussian", both, limits=only)
        assert {first, second} <= set(found)


def replace_limit(mechanism: str, **limits: float) -> Limits:
    return terms(mechanism)[1]._replace(**limits)


class TestRepeats:
    def rounds(self, *rounds: Floats, screen: OutlierTests | None = None) -> list[dict[int, str]]:
        screen = OutlierTests("gaussian") if screen is None else screen
        scale, limits = terms("gaussian")
        return [
            screen.rejected(
                dict(enumerate(rows)),
                dict.fromkeys(range(len(rows)), scale),
                dict.fromkeys(range(len(rows)), limits),
            )
            for rows in rounds
        ]

    def test_of_another_client_and_of_an_earlier_round(self) -> None:
        rows = released("gaussian", directions(8, SIZE), 11)
        first = np.concatenate([rows[:4], rows[1:2]])
        later = np.concatenate([rows[4:8], rows[3:4]])
        assert self.rounds(first, later) == [{4: "repeated"}, {4: "repeated"}]

    def test_are_remembered_when_the_server_is_started_again(self) -> None:
        rows = released("gaussian", directions(4, SIZE), 13)
        screen = OutlierTests("gaussian")
        self.rounds(rows, screen=screen)
        again = OutlierTests("gaussian", screen.seen)
        assert self.rounds(rows, screen=again) == [dict.fromkeys(range(4), "repeated")]
        assert self.rounds(
            rows, screen=OutlierTests("gaussian", OutlierTests("gaussian").seen)
        ) == [{}]

    def test_only_so_many_are_remembered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("bgtplanner.federation.outliers._REMEMBERED", 3)
        rows = released("gaussian", directions(8, SIZE), 14)
        screen = OutlierTests("gaussian")
        self.rounds(rows, screen=screen)
        assert screen.seen.shape == (3, 16)
        assert self.rounds(rows[:5], screen=screen) == [{}]
