"""Shares of noise: grid, scale and bits, encoding and decoding, who may drop out or collude."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.special import ndtr

from bgtplanner.errors import ConfigError
from bgtplanner.privacy.accountants import accountant_named
from bgtplanner.privacy.conversions import gaussian_delta
from bgtplanner.privacy.mechanisms import SENSITIVITY, Neighbours, mechanism_named
from bgtplanner.privacy.randomness import ExactNoise
from bgtplanner.privacy.shares import ROOM, Shares, Tolerance
from privacy.ledgers import exact
from privacy.sums import distance_from_gaussian, sum_of_shares

Floats = NDArray[np.float64]
GDP = accountant_named("gaussian/gdp")


class NoNoise(ExactNoise):
    """A source whose noise is zero, to see the uploads."""

    def __init__(self) -> None:
        super().__init__(bytes)

    def normal_steps(self, scale: int, shape: tuple[int, ...]) -> NDArray[np.int64]:
        assert scale >= 1
        return np.zeros(shape, dtype=np.int64)


def shares(invited: int = 20, dropouts: int = 3, colluders: int = 2, **more: float) -> Shares:
    given_ = {"scale": 0.7, "clip": 0.5} | more
    return Shares(
        **given_, invited=invited, most_dropouts=dropouts, most_colluders=colluders
    )  # fmt: skip


# ---- sizes

numbers = st.integers(1, 3000).flatmap(
    lambda invited: st.tuples(
        st.just(invited), st.integers(0, invited - 1), st.integers(0, invited - 1)
    )
)


@given(numbers, st.floats(1e-3, 1e5), st.floats(1e-4, 1e4), st.sampled_from(sorted(SENSITIVITY)))
def test_the_honest_shares_alone_are_the_full_noise(
    who: tuple[int, int, int], charge: float, clip: float, neighbours: Neighbours
) -> None:
    invited, dropouts, colluders = who
    scale = float(
        mechanism_named("gaussian").scale(GDP.noise_multiplier(charge), clip, neighbours)
    )
    made = Shares(scale=scale, clip=clip, invited=invited, most_dropouts=dropouts,
                  most_colluders=colluders)  # fmt: skip
    honest = max(1, invited - dropouts - colluders)
    variance = honest * (made.share * Fraction(made.step)) ** 2
    sensitivity = Fraction(SENSITIVITY[neighbours]) * Fraction(clip)
    room = 1 + Fraction(ROOM)
    # The noise multiplier at which the charge is enough, in rational numbers.
    assert variance >= sensitivity**2 / Fraction(charge) * room**2 * (1 - Fraction(1, 10**10))
    assert variance >= (Fraction(made.scale) * room) ** 2
    assert variance <= (Fraction(made.scale) * (room + Fraction(1, 500))) ** 2
    assert made.share >= 2**10
    assert math.frexp(made.step)[0] == 0.5


@given(numbers, st.integers(1, 100_000))
def test_no_sum_of_bounded_uploads_wraps(who: tuple[int, int, int], size: int) -> None:
    made = shares(*who, scale=3.0, clip=2.0)
    largest = made.invited * (made.clip / made.step)
    deviation = made.share * math.sqrt(made.invited)
    room = 2.0 ** (made.bits(size) - 1) - largest - made.invited / 2
    # P[|noise| > t] <= exp(-t^2 / 2), for each coordinate.
    assert math.log(size) - (room / deviation) ** 2 / 2 <= -40 * math.log(2)
    assert made.bits(size) <= 62


def test_too_many_clients_with_too_little_noise_are_refused() -> None:
    said = "invited = 1000000: expected at most 1, or more noise: sums are of at most 62 bits"
    with pytest.raises(ConfigError, match=f"^{said}$"):
        shares(10**6, 0, 0, scale=1e-9, clip=1.0)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"invited": 0}, "invited = 0"),
        ({"dropouts": 20}, "most_dropouts = 20: expected a whole number from 0 to 19"),
        ({"colluders": -1}, "most_colluders = -1"),
        ({"scale": math.nan}, "scale"),
        ({"clip": 0.0}, "clip"),
    ],
)
def test_what_is_refused(bad: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        shares(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given_", "invited", "wanted"),
    [
        ((0.05, 1), 943, (47, 1)),
        ((0.29, 0.1), 100, (29, 10)),
        ((0.05, 0), 19, (0, 0)),
        ((7, 3), 5, (4, 3)),
        ((0, 1), 1, (0, 0)),
        ((0.999, 0), 1, (0, 0)),
    ],
)
def test_shares_of_clients_and_numbers(
    given_: tuple[float, float], invited: int, wanted: tuple[int, int]
) -> None:
    assert Tolerance(*given_).of(invited) == wanted


# ---- encoding and decoding


@given(st.integers(0, 2**32), st.integers(1, 40), st.floats(1e-3, 1e3))
def test_a_sum_is_decoded_exactly(seed: int, invited: int, clip: float) -> None:
    made = shares(invited, 0, 0, clip=clip)
    random = np.random.default_rng(seed)
    uploads = random.normal(size=(invited, 6)) * clip * random.choice([0.01, 1.0, 30.0])
    total = sum_of_shares(made, uploads, [NoNoise()] * invited)
    norms = np.linalg.norm(uploads, axis=1, keepdims=True)
    bounded = uploads * np.minimum(1, clip * (1 - 1e-6) / norms)
    cut = np.trunc(bounded / made.step) * made.step
    assert np.abs(made.decode(total, invited) - cut.sum(axis=0)).max() <= invited * made.step
    alone = made.encode(uploads[0], NoNoise())
    only = (alone << np.uint64(64 - made.bits(6))).view(np.int64) >> np.int64(64 - made.bits(6))
    assert np.linalg.norm(only * made.step) <= clip
    assert (np.abs(only * made.step) <= np.abs(bounded[0]) + 1e-9 * clip).all()


def test_shares_of_clients_add_up_to_the_noise_of_the_sum() -> None:
    made, size = shares(8, 2, 1), 20_000
    total = sum_of_shares(made, np.zeros((7, size)), [exact(index) for index in range(7)])
    noise = made.decode(total, 7)
    assert np.std(noise) == pytest.approx(math.sqrt(7) * made.std_of_share, rel=0.02)
    assert np.array_equal(noise / made.step, np.rint(noise / made.step))
    each = sum(made.draw(exact(index), size) for index in range(7))
    assert np.array_equal(noise, each * made.step)  # bit for bit, from the same seeds
    assert total.max() <= made.mask(size)


@pytest.mark.parametrize("answered", range(1, 21))
def test_a_sum_of_too_few_clients_is_not_opened(answered: int) -> None:
    made = shares(18, 5, 2)
    total = np.zeros(3, dtype=np.uint64)
    if 13 <= answered <= 18:
        made.decode(total, answered)
        # With those who collude taken away, it is still the full noise.
        assert (answered - 2) * (made.share * made.step) ** 2 >= made.scale**2
        assert math.sqrt(answered) * made.std_of_share >= made.scale
    else:
        with pytest.raises(ConfigError, match=f"answered = {answered}: expected from 13 to 18"):
            made.decode(total, answered)
        with pytest.raises(ConfigError, match="answered"):
            sum_of_shares(made, np.zeros((answered, 3)), [NoNoise()] * answered)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_upload_that_is_not_finite_is_a_share_of_noise_and_nothing_else(bad: float) -> None:
    made = shares()
    sent = made.encode([bad, 1.0, -1.0], exact(3))
    assert np.array_equal(sent, made.encode([0.0, 0.0, 0.0], exact(3)))


# ---- what a sum of shares gives away, from its exact probabilities


def rounded_normal(share: float, reach: int) -> Floats:
    """Return the probabilities of a normal variate, rounded, from -reach to reach."""
    upper = (np.arange(-reach, reach + 1) + 0.5) / share
    lower = upper - 1 / share
    # From the nearer tail, so that small probabilities keep their digits.
    return np.asarray(np.where(upper > 0, ndtr(-lower) - ndtr(-upper), ndtr(upper) - ndtr(lower)))


def of_sum(share: float, number: int) -> Floats:
    """Return the probabilities of a sum of shares, by convolution."""
    one = rounded_normal(share, math.ceil(9 * share * math.sqrt(number)) + 2)
    found = one
    for _ in range(number - 1):
        found = np.convolve(found, one)
    return found


def exact_delta(here: Floats, there: Floats, epsilon: float) -> float:
    """Return the smallest delta between two distributions at epsilon."""
    return float(np.maximum(here - math.exp(epsilon) * there, 0).sum())


def moved(law: Floats, steps: int) -> tuple[Floats, Floats]:
    return np.pad(law, (0, steps)), np.pad(law, (steps, 0))


EPSILONS = np.concatenate([np.linspace(0, 3, 13), [4.0, 6.0, 8.0]])


@pytest.mark.parametrize("number", [2, 3, 5])
@pytest.mark.parametrize("share", [0.35, 0.5, 0.75, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_sum_of_shares_is_as_private_as_is_claimed(
    share: float, number: int, steps: int
) -> None:
    mu = steps / (share * math.sqrt(number))
    mu += 2 * math.sqrt(2 * math.pi) * distance_from_gaussian(share, number)
    one, other = moved(of_sum(share, number), steps)
    for epsilon in EPSILONS:
        claimed = float(gaussian_delta(epsilon, mu))
        assert exact_delta(one, other, float(epsilon)) <= claimed * (1 + 1e-9) + 1e-14
        assert exact_delta(other, one, float(epsilon)) <= claimed * (1 + 1e-9) + 1e-14


@pytest.mark.parametrize("number", [2, 3, 5])
def test_a_coarse_grid_gives_away_more_than_gaussian_noise(number: int) -> None:
    one, other = moved(of_sum(0.35, number), 1)
    mu = 1 / (0.35 * math.sqrt(number))
    excess = [
        exact_delta(one, other, epsilon) - float(gaussian_delta(epsilon, mu))
        for epsilon in EPSILONS
    ]
    assert max(excess) > 1e-4  # so the bound is needed


def test_two_coordinates_give_away_no_more_than_is_claimed() -> None:
    share, number, steps = 0.75, 3, (2, 1)
    law = of_sum(share, number)
    pairs = [moved(law, step) for step in steps]
    one, other = (np.outer(*of).ravel() for of in zip(*pairs, strict=True))
    mu = math.hypot(*steps) / (share * math.sqrt(number))
    mu += 2 * math.sqrt(2 * math.pi) * distance_from_gaussian(share, number, size=2)
    for epsilon in EPSILONS:
        claimed = float(gaussian_delta(epsilon, mu))
        assert exact_delta(one, other, float(epsilon)) <= claimed * (1 + 1e-9) + 1e-14


@pytest.mark.parametrize(("share", "number"), [(0.5, 2), (0.5, 4), (0.75, 3), (1.0, 4)])
def test_fractions_of_shares_say_as_little_about_the_sum_as_is_claimed(
    share: float, number: int
) -> None:
    """The density of the partial sums, modulo 1, given the whole: by summation over cosets."""
    bound = distance_from_gaussian(share, number)
    worst, random = 0.0, np.random.default_rng(0)
    spread = share**2 * (np.eye(number - 1) - np.full((number - 1,) * 2, 1 / number))
    inverse = np.linalg.inv(spread)
    normal = 1 / math.sqrt((2 * math.pi) ** (number - 1) * float(np.linalg.det(spread)))
    cosets = np.array(list(itertools.product(range(-8, 9), repeat=number - 1)))
    for _ in range(12):
        away = cosets + random.uniform(size=number - 1) - random.uniform(-1, 1) / number
        density = normal * np.exp(-0.5 * ((away @ inverse) * away).sum(axis=1)).sum()
        worst = max(worst, abs(math.log(density)))
    assert worst <= bound * (1 + 1e-9) + 1e-12


def test_all_that_sums_differ_by_is_in_the_room() -> None:
    for invited in (1, 2, 1000, 2**28):
        made = shares(invited, 0, 0, clip=1e-3)
        assert distance_from_gaussian(made.share, invited, size=2**62) < 2.0**-66
    assert distance_from_gaussian(4.0, 10**6, size=10**6) < 2.0**-180  # four steps would do
    assert distance_from_gaussian(0.1, 2) > 30  # a fraction of a step would not
    one = distance_from_gaussian(1.0, 5)
    assert one == distance_from_gaussian(1.0, 5, size=1) > 0
    assert distance_from_gaussian(1.0, 5, size=3) == pytest.approx(3 * one)
    growing = [distance_from_gaussian(1.0, number) for number in (1, 2, 64, 65, 66, 1000)]
    assert growing[0] == 0
    assert sorted(growing) == growing
