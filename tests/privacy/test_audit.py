"""The audit's bounds: exact coverage, what is expected of them, and how much they can show."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import scipy.stats
from dp_accounting.pld import privacy_loss_distribution as pld
from numpy.typing import NDArray

from bgtplanner.errors import ConfigError
from bgtplanner.privacy.audit import (
    MOST,
    Finding,
    Guesses,
    Moments,
    bound_of_guesses,
    expected,
    interval,
    largest_epsilon,
    lower_bound,
    one_run_bound,
    one_run_p_value,
    releases_needed,
)
from bgtplanner.privacy.conversions import gdp_capacity, gdp_epsilon
from bgtplanner.privacy.privunit import cap_of

Floats = NDArray[np.float64]


def refused(message: str) -> Any:
    return pytest.raises(ConfigError, match=f"^{re.escape(message)}$")


def gaussian_scores(epsilon: float, delta: float, number: int, seed: int) -> tuple[Floats, Floats]:
    """Of a mechanism that is exactly (epsilon, delta)-private."""
    noise = np.random.default_rng(seed).normal(size=(2, number))
    return noise[0] + math.sqrt(float(gdp_capacity(epsilon, delta))), noise[1]


def laplace_scores(epsilon: float, number: int, seed: int) -> tuple[Floats, Floats]:
    noise = np.random.default_rng(seed).laplace(size=(2, number)) / epsilon
    noise = np.rint(noise * 2**20) / 2**20  # else the last bits of the sums below tell more
    ahead, back = noise[0] + 0.5, noise[1] - 0.5
    return tuple(np.abs(x + 0.5) - np.abs(x - 0.5) for x in (ahead, back))  # type: ignore[return-value]


# ---- right and wrong guesses


@pytest.mark.parametrize("risk", [0.005, 0.05, 0.25])
@pytest.mark.parametrize("number", [1, 7, 60])
def test_rates_are_bounded_as_clopper_and_pearson_do(number: int, risk: float) -> None:
    hits = np.arange(number + 1)
    low, high = interval(hits, number, risk)
    for found in hits:
        exact = scipy.stats.binomtest(int(found), number).proportion_ci(
            1 - 2 * risk, method="exact"
        )
        assert low[found] == pytest.approx(exact.low, abs=1e-12)
        assert high[found] == pytest.approx(exact.high, abs=1e-12)
    assert (low[0], high[-1]) == (0.0, 1.0)


def rates_of(epsilon: float, delta: float, wrong: float) -> tuple[float, float]:
    """Right and wrong guesses of a mechanism that gives away all that it may."""
    return math.exp(epsilon) * wrong + delta, wrong


@pytest.mark.parametrize("risk", [0.01, 0.1, 0.3])
@pytest.mark.parametrize(
    ("epsilon", "delta", "wrong"),
    [(0.0, 0.0, 0.5), (0.0, 0.1, 0.3), (0.5, 0.0, 0.2), (1.0, 0.05, 0.25), (1.0, 0.0, 0.01),
     (3.0, 1e-3, 0.02), (4.0, 0.0, 1 / (1 + math.exp(4)))],
)  # fmt: skip
def test_the_bound_exceeds_the_truth_as_rarely_as_stated(
    epsilon: float, delta: float, wrong: float, risk: float
) -> None:
    # Exactly, over all that 50 releases can lead to.
    number = 50
    right, missed = rates_of(epsilon, delta, wrong)
    correct, faulty = np.meshgrid(np.arange(number + 1), np.arange(number + 1), indexing="ij")
    inside = correct + faulty <= number
    counts = np.stack([correct, faulty, number - correct - faulty], axis=-1)[inside]
    chances = scipy.stats.multinomial(number, [right, missed, max(0.0, 1 - right - missed)])
    bounds = bound_of_guesses(counts[:, 0], counts[:, 1], number, delta=delta, risk=risk)
    assert chances.pmf(counts)[bounds > epsilon + 1e-9].sum() <= risk


@pytest.mark.parametrize("risk", [0.01, 0.1, 0.33])
def test_it_holds_with_half_the_releases_of_each_input(risk: float) -> None:
    # The two inputs are not equally hard: right with 0.6 and 0.2, wrong with 0.1 and 0.3.
    half, epsilon = 25, math.log((0.6 + 0.2) / (0.1 + 0.3))
    outcomes = np.array(
        [(a, b) for a in range(half + 1) for b in range(half + 1 - a)]
    )  # right, wrong
    first = scipy.stats.multinomial(half, [0.6, 0.1, 0.3]).pmf(_with_rest(outcomes, half))
    second = scipy.stats.multinomial(half, [0.2, 0.3, 0.5]).pmf(_with_rest(outcomes, half))
    total = outcomes[:, None] + outcomes[None]
    bounds = bound_of_guesses(total[..., 0], total[..., 1], 2 * half, delta=0.0, risk=risk)
    assert (first[:, None] * second)[bounds > epsilon + 1e-9].sum() <= risk


def _with_rest(outcomes: NDArray[np.int64], number: int) -> NDArray[np.int64]:
    return np.column_stack([outcomes, number - outcomes.sum(axis=1)])


def test_what_can_be_shown_at_most() -> None:
    for releases in (40, 1000, 180_000):
        largest = largest_epsilon(releases, delta=1e-5, confidence=0.99)
        # By hand: 0 of so many, with 0.9 of the risk; all of so many, with the rest.
        wrong = 1 - 0.009 ** (1 / releases)
        assert largest == pytest.approx(math.log((0.001 ** (1 / releases) - 1e-5) / wrong))
    assert largest_epsilon(200_000, delta=1e-5, confidence=0.99) > 10.5
    assert largest_epsilon(10_000_000, delta=1e-5, confidence=0.99) > 14.5


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 9.15, 14.0])
@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_how_many_releases_a_claim_needs(epsilon: float, delta: float) -> None:
    needed = releases_needed(epsilon, delta=delta, confidence=0.99)
    assert largest_epsilon(needed, delta=delta, confidence=0.99) > epsilon
    assert largest_epsilon(needed - 1, delta=delta, confidence=0.99) <= epsilon


def test_no_number_of_releases_is_searched_for_without_end() -> None:
    assert releases_needed(1000.0, delta=0.0, confidence=0.99) == 2**62


def test_guesses_are_counted_and_forgotten() -> None:
    guesses = Guesses([1.0, 2.0, 3.0] * 20, [-1.0, -2.0, -3.0] * 20, delta=0.0)
    assert guesses.lower < guesses.upper
    assert guesses.bound(0.01) == 0.0  # nothing was judged yet
    for _ in range(3):
        guesses.count(np.full(50, 9.0), np.full(50, -9.0))
    guesses.count([-9.0], [0.5 * (guesses.upper + guesses.lower)])
    assert (guesses.correct, guesses.wrong, guesses.releases) == (300, 1, 302)
    exact = bound_of_guesses(300, 1, 302, delta=0.0, risk=0.01)
    assert guesses.bound(0.01) == float(exact)


def test_a_rare_tell_in_one_direction_only_is_found() -> None:
    # One of 10 releases of one input gives it away; nothing gives the other one away.
    generator = np.random.default_rng(0)
    plain = generator.normal(size=20_000)
    telling = np.where(generator.random(20_000) < 0.1, -50.0, generator.normal(size=20_000))
    assert lower_bound(plain, telling, delta=0.0).epsilon > 4.5
    assert lower_bound(-telling, -plain, delta=0.0).epsilon > 4.5


def test_the_expected_test_is_taken_unless_another_shows_more() -> None:
    theory = expected("laplace", [1.0], releases=10_000, delta=0.0, risk=0.01)
    honest = Guesses(*laplace_scores(1.0, 2000, 0), delta=0.0, expected=theory)
    assert (honest.upper, honest.lower) == (theory.threshold, -theory.threshold)
    broken = Guesses(np.full(500, 0.1), np.full(500, -0.1), delta=0.0, expected=theory)
    assert broken.upper == 0.1
    assert broken.lower == -0.1


# ---- one release, many canaries


def authors_p_value(m: int, r: int, v: int, eps: float, delta: float) -> float:
    """Appendix D of Steinke, Nasr and Jagielski (2023), in other words: one sum after another."""
    accuracy = 1 / (1 + math.exp(-eps))
    guesses = scipy.stats.binom(r, accuracy)
    largest, total = 0.0, 0.0
    for i in range(1, v + 1):
        total += guesses.pmf(v - i)
        largest = max(largest, total / i)
    return float(min(1.0, guesses.sf(v - 1) + largest * 2 * m * delta))


@pytest.mark.parametrize("delta", [0.0, 1e-6, 1e-3])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("counts", [(50, 1, 1), (100, 50, 50), (1000, 400, 390), (900, 900, 600),
                                    (60, 10, 0), (60, 0, 0), (3000, 3000, 1400)])  # fmt: skip
def test_p_values_of_one_run_are_the_authors(
    counts: tuple[int, int, int], epsilon: float, delta: float
) -> None:
    found = one_run_p_value(*counts, epsilon=epsilon, delta=delta)
    assert found == pytest.approx(authors_p_value(*counts, epsilon, delta), rel=1e-9, abs=1e-15)


def test_the_bound_of_one_run_is_where_the_p_value_reaches_the_risk() -> None:
    for counts, delta in (((1000, 400, 390), 0.0), ((2000, 900, 880), 1e-6)):
        bound = one_run_bound(*counts, delta=delta, risk=0.01)
        assert one_run_p_value(*counts, epsilon=bound, delta=delta) == pytest.approx(0.01)
    assert one_run_bound(100, 50, 25, delta=0.0, risk=0.01) == 0.0
    assert one_run_bound(100, 0, 0, delta=0.0, risk=0.01) == 0.0
    perfect = one_run_bound(200_000, 200_000, 200_000, delta=0.0, risk=0.005)
    assert perfect == pytest.approx(-math.log(0.005 ** (-1 / 200_000) - 1), rel=1e-6)


@pytest.mark.parametrize("risk", [0.01, 0.1])
def test_the_bound_of_one_run_exceeds_the_truth_as_rarely_as_stated(risk: float) -> None:
    # Randomised response is right exactly as often as it may be; all numbers that there can be.
    number, epsilon = 80, 1.5
    chances = scipy.stats.binom(number, 1 / (1 + math.exp(-epsilon))).pmf(np.arange(number + 1))
    bounds = [one_run_bound(number, number, v, delta=0.0, risk=risk) for v in range(number + 1)]
    assert chances[np.array(bounds) > epsilon].sum() <= risk


def test_a_delta_limits_what_one_run_can_show() -> None:
    bounds = [
        one_run_bound(10**power, 10**power, 10**power, delta=1e-5, risk=0.005)
        for power in range(3, 8)
    ]
    assert max(bounds) < math.log(0.005 / 2e-5) + 0.4


def test_senseless_counts_of_one_run_are_refused() -> None:
    said = "correct = 3: expected at most the number of guesses, which is at most that of canaries"
    with refused(said):
        one_run_p_value(10, 2, 3, epsilon=1.0, delta=0.0)


# ---- Gaussian scores


def test_moments_in_parts_are_those_of_the_whole() -> None:
    generator = np.random.default_rng(0)
    first, second = generator.normal(3, 2, 1000), generator.normal(1, 2, 1000)
    parts, whole = Moments(), Moments()
    whole.count(first, second)
    for a, b in ((0, 1), (1, 400), (400, 400), (400, 1000)):
        parts.count(first[a:b], second[a:b])
    assert parts.mu_bound(0.01) == pytest.approx(whole.mu_bound(0.01), rel=1e-12)
    assert parts.bound(1e-5, 0.01) == pytest.approx(
        float(gdp_epsilon(whole.mu_bound(0.01) ** 2, 1e-5))
    )


def test_the_bound_on_mu_by_hand() -> None:
    first, second = np.array([2.0, 4.0, 6.0]), np.array([0.0, 1.0, 2.0])
    moments = Moments()
    moments.count(first, second)
    variance = (8 + 2) / 4
    t = scipy.stats.t(4).ppf(1 - 0.2 * 0.8)
    low = 3.0 - t * math.sqrt(variance * 2 / 3)
    most = math.sqrt(variance * 4 / scipy.stats.chi2(4).ppf(0.2 * 0.2))
    assert moments.mu_bound(0.2) == pytest.approx(low / most)


def test_the_bound_on_mu_rarely_exceeds_the_truth() -> None:
    # 2,000 experiments with 40 scores each; more may exceed it with a probability of 1e-9.
    trials, mu, risk = 2000, 0.7, 0.2
    noise = np.random.default_rng(1).normal(size=(trials, 2, 20))
    over = 0
    for first, second in noise:
        moments = Moments()
        moments.count(first + mu, second)
        over += moments.mu_bound(risk) > mu
    assert over <= scipy.stats.binom(trials, risk).isf(1e-9)


def test_scores_without_any_noise_show_everything_or_nothing() -> None:
    for first, second, bound in ((1.0, 0.0, MOST), (0.3, 0.3, 0.0), (0.0, 1.0, 0.0)):
        moments = Moments()
        moments.count(np.full(10, first), np.full(10, second))
        assert moments.bound(1e-5, 0.01) == bound
    assert Moments().bound(1e-5, 0.01) == 0.0


# ---- what theory expects


def exact_epsilon(mechanism: str, loss: float, rounds: int, delta: float) -> float:
    """Of many releases together, by another library."""
    if mechanism == "gaussian":
        one = pld.from_gaussian_mechanism(1 / loss, use_connect_dots=True)
    elif mechanism == "laplace":
        one = pld.from_laplace_mechanism(1 / loss, value_discretization_interval=1e-4)
    else:
        cap = cap_of(loss)
        x, p = float(cap.threshold), float(cap.chance)
        back = (1 - p) * scipy.stats.norm.cdf(-x) / scipy.stats.norm.cdf(x)
        ahead = {1: math.log(p), 0: math.log(1 - p - back), -1: math.log(back)}
        behind = {1: ahead[-1], 0: ahead[0], -1: ahead[1]}
        one = pld.from_two_probability_mass_functions(ahead, behind)
    return float(one.self_compose(rounds).get_epsilon_for_delta(delta))


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace", "privunit"])
@pytest.mark.parametrize(("loss", "rounds"), [(1.0, 1), (0.3, 10), (2.0, 1), (0.05, 60)])
def test_endlessly_many_releases_would_show_all_of_it(
    mechanism: str, loss: float, rounds: int
) -> None:
    found = expected(mechanism, [loss] * rounds, releases=10**10, delta=1e-2, risk=0.01)
    exact = exact_epsilon(mechanism, loss, rounds, 1e-2)
    assert found.epsilon == pytest.approx(exact, rel=0.01, abs=0.005)


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
def test_what_is_expected_is_about_what_is_found(mechanism: str) -> None:
    epsilon, number = 2.0, 40_000
    if mechanism == "gaussian":
        first, second = gaussian_scores(epsilon, 1e-5, number, 1)
        loss = math.sqrt(float(gdp_capacity(epsilon, 1e-5)))
    else:
        (first, second), loss = laplace_scores(epsilon, number, 1), epsilon
    theory = expected(
        mechanism, [loss], releases=int(1.8 * number), delta=1e-5, risk=0.01, risk_gaussian=0.01
    )
    found = lower_bound(first, second, delta=1e-5)
    assert found.epsilon == pytest.approx(theory.epsilon, abs=0.25)
    if mechanism == "gaussian":
        assert found.epsilon_gaussian == pytest.approx(theory.epsilon_gaussian, abs=0.1)
    else:
        assert theory.epsilon_gaussian == 0.0


# ---- scores that are at hand


@pytest.mark.parametrize("delta", [0.0, 0.01])
@pytest.mark.parametrize("confidence", [0.9, 0.99])
def test_a_perfect_test_by_hand(delta: float, confidence: float) -> None:
    found = lower_bound(np.ones(40), np.zeros(40), delta=delta, confidence=confidence)
    risk = 1 - confidence
    right = (0.1 * risk) ** (1 / 72)  # 72 of 72: four of either input chose the test
    wrong = 1 - (0.9 * risk) ** (1 / 72)
    assert found.epsilon == found.largest == pytest.approx(math.log((right - delta) / wrong))
    assert found.epsilon_gaussian == MOST
    assert found.releases == 80
    assert found.confidence == confidence


def test_the_default_confidence() -> None:
    default = lower_bound(np.ones(40), np.zeros(40), delta=0.1)
    assert default == lower_bound(np.ones(40), np.zeros(40), delta=0.1, confidence=0.99)
    assert isinstance(default, Finding)


def test_larger_scores_mean_the_first_input() -> None:
    ahead, back = np.full(40, 7.0), np.full(40, -3.0)
    assert lower_bound(ahead, back, delta=1e-3).epsilon > 1.1
    assert lower_bound(back, ahead, delta=1e-3).epsilon == 0.0


def test_those_who_choose_the_test_do_not_judge_it() -> None:
    first, second = np.zeros(400), np.zeros(400)
    first[0::10] = 1.0
    assert lower_bound(first, second, delta=0.0).epsilon == 0.0


def test_what_is_the_same_shows_nothing() -> None:
    noise = np.random.default_rng(1).normal(size=(2, 5000))
    found = lower_bound(noise[0], noise[1], delta=1e-5)
    assert 0 <= found.epsilon < 0.15
    assert 0 <= found.epsilon_gaussian < 0.3
    same = lower_bound(np.zeros(100), np.zeros(100), delta=0.0)
    assert (same.epsilon, same.epsilon_gaussian) == (0.0, 0.0)


def test_a_delta_larger_than_every_rate_shows_nothing() -> None:
    assert lower_bound(np.ones(40), np.zeros(40), delta=0.99).epsilon == 0.0


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_the_bounds_rarely_exceed_the_truth(kind: str) -> None:
    # At confidence 0.8 they may in 1 of 5 experiments; 100 of them, seeds fixed.
    trials, confidence, truth, delta = 100, 0.8, 1.0, 1e-2
    over, over_gaussian = 0, 0
    for seed in range(trials):
        if kind == "gaussian":
            pair = gaussian_scores(truth, delta, 600, seed)
        else:
            pair = laplace_scores(truth, 600, seed)
        found = lower_bound(
            *pair, delta=delta if kind == "gaussian" else 0.0, confidence=confidence
        )
        over += found.epsilon > truth
        over_gaussian += kind == "gaussian" and found.epsilon_gaussian > truth
    allowed = scipy.stats.binom(trials, 1 - confidence).ppf(0.999)
    assert over <= allowed
    assert over_gaussian <= allowed


def test_the_bounds_have_teeth() -> None:
    number = 50_000
    found = lower_bound(*gaussian_scores(1.0, 1e-5, number, 3), delta=1e-5)
    assert 0.85 < found.epsilon_gaussian <= 1.0
    assert 0.4 < found.epsilon <= 1.0
    laplace = lower_bound(*laplace_scores(1.0, number, 3), delta=0.0)
    assert 0.93 < laplace.epsilon <= 1.0


def test_noise_a_tenth_too_small_is_caught() -> None:
    ahead, back = gaussian_scores(1.0, 1e-5, 100_000, 4)
    shift = math.sqrt(float(gdp_capacity(1.0, 1e-5))) * (1 / 0.9 - 1)
    assert lower_bound(ahead + shift, back, delta=1e-5).epsilon_gaussian > 1.0
    assert lower_bound(*laplace_scores(1 / 0.9, 100_000, 4), delta=0.0).epsilon > 1.0


def test_senseless_arguments_are_refused() -> None:
    good = np.zeros(4)
    assert lower_bound(good, good, delta=0.0).releases == 8
    few = "expected at least 4 of each, and equally many of both"
    with refused(f"releases = (4, 3): {few}"):
        lower_bound(good, np.zeros(3), delta=0.0)
    with refused(f"releases = (4, 6): {few}"):
        lower_bound(good, np.zeros(6), delta=0.0)
    with refused(f"releases = (0, 0): {few}"):
        lower_bound([], [], delta=0.0)
    for confidence in (0.4, 1.0, -1.0, math.nan):
        with refused(f"confidence = {confidence!r}: expected from 0.5 to below 1"):
            lower_bound(good, good, delta=0.0, confidence=confidence)
    for delta in (-1e-9, 1.0, math.nan):
        with refused(f"delta = {delta!r}: expected from 0 to below 1"):
            lower_bound(good, good, delta=delta)
    for bad in (math.nan, math.inf):
        for pair in (([0, 0, 0, bad], good), (good, [0, 0, 0, bad])):
            with refused("scores = 'NaN or infinity': expected finite numbers"):
                lower_bound(*pair, delta=0.0)
