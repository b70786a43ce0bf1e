"""Small audits by hand: thresholds, ties and boundaries, where a bound is one number."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from bgtplanner.errors import ConfigError
from bgtplanner.privacy.audit import (
    MOST,
    Expected,
    Guesses,
    Moments,
    bound_of_guesses,
    expected,
    largest_epsilon,
    lower_bound,
    one_run_bound,
    one_run_p_value,
    releases_needed,
)
from bgtplanner.privacy.budget import Budget
from bgtplanner.privacy.privunit import cap_of


def test_the_most_that_is_reported_is_the_most_that_may_be_claimed() -> None:
    assert Budget(epsilon=MOST, delta=1e-5).epsilon == MOST
    with pytest.raises(ConfigError):
        Budget(epsilon=math.nextafter(MOST, math.inf), delta=1e-5)


def test_as_much_as_the_claim_is_not_more_than_it() -> None:
    for releases in (17, 1000):
        exactly = largest_epsilon(releases, delta=1e-5, confidence=0.99)
        below = math.nextafter(exactly, 0)
        assert releases_needed(exactly, delta=1e-5, confidence=0.99) == releases + 1
        assert releases_needed(below, delta=1e-5, confidence=0.99) == releases


# ---- which test is chosen


def chosen(first: list[float], second: list[float], theory: Expected | None = None) -> object:
    guesses = Guesses(first, second, delta=0.0, expected=theory)
    return guesses.upper, guesses.lower


def test_scores_that_are_apart_are_all_guessed() -> None:
    first = [float(score) for score in range(1, 21)]
    assert chosen(first, [-score for score in first]) == (1.0, -1.0)


def test_where_nothing_shows_only_the_outermost_scores_are_guessed() -> None:
    assert chosen([3.0, 1.0], [2.0, 0.0]) == (3.0, 0.0)
    assert chosen([7.0], [5.0]) == (7.0, 5.0)


def test_no_score_is_guessed_to_be_both() -> None:
    assert chosen([0.0] * 5, [0.0] * 5) == (0.0, -math.inf)


def test_what_is_expected_gives_way_only_to_more_than_it() -> None:
    assert chosen([0.0] * 5, [0.0] * 5, Expected(0.0, 0.0, 0.7)) == (0.7, -0.7)
    # 40 of 40 at a risk of 1e-3, of which a tenth is for the right guesses.
    shown = math.log(1e-4 ** (1 / 40) / (1 - 9e-4 ** (1 / 40)))
    for epsilon, threshold in ((shown + 1e-6, 0.7), (shown - 1e-6, 2.0)):
        theory = Expected(epsilon, 0.0, 0.7)
        assert chosen([2.0] * 20, [-2.0] * 20, theory) == (threshold, -threshold)


def test_one_in_ten_from_the_first_on_chooses_the_test() -> None:
    scores = np.where(np.arange(100) % 10 == 0, 1.0, 0.5)
    assert lower_bound(scores, -scores, delta=0.0).epsilon == 0.0
    assert lower_bound(1.5 - scores, scores - 1.5, delta=0.0).epsilon > 2


def test_a_confidence_of_one_half_is_taken() -> None:
    assert lower_bound(np.ones(40), np.zeros(40), delta=0.0, confidence=0.5).confidence == 0.5


# ---- one release, many canaries


def test_a_probability_is_at_most_one() -> None:
    assert one_run_p_value(3000, 3000, 1500, epsilon=0.0, delta=0.1) == 1.0


@pytest.mark.parametrize("correct", [1, 40, 350, 400])
def test_many_guesses_far_from_what_is_expected(correct: int) -> None:
    # All sums, one after another; most of them are far away.
    chances = scipy.stats.binom(40_000, 1 / (1 + math.exp(-1.0)))
    counts = np.arange(100 * correct)[::-1]
    worst = (np.cumsum(chances.pmf(counts)) / np.arange(1, 100 * correct + 1)).max()
    exact = chances.sf(100 * correct - 1) + worst * 2 * 1e-7 * 50_000
    found = one_run_p_value(50_000, 40_000, 100 * correct, epsilon=1.0, delta=1e-7)
    assert found == pytest.approx(min(1.0, exact), rel=1e-9)


def test_a_probability_of_just_the_risk_refutes() -> None:
    risk = one_run_p_value(1, 1, 1, epsilon=15.0, delta=0.0)
    assert 15.0 <= one_run_bound(1, 1, 1, delta=0.0, risk=risk) < 15.0 + 1e-6
    assert one_run_bound(1, 1, 1, delta=0.0, risk=0.4) == 0.0
    slight = one_run_bound(1, 1, 1, delta=0.0, risk=0.6)
    assert slight == pytest.approx(math.log(0.6 / 0.4), rel=1e-9)


# ---- Gaussian scores


def moments_of(first: list[float], second: list[float]) -> Moments:
    moments = Moments()
    moments.count(first, second)
    return moments


def test_one_input_at_a_time() -> None:
    moments = moments_of([], [0.0, 1.0, 2.0])
    assert moments.mu_bound(0.2) == 0.0  # there is nothing to compare with
    moments.count([2.0, 4.0, 6.0], [])
    whole = moments_of([2.0, 4.0, 6.0], [0.0, 1.0, 2.0])
    assert moments.mu_bound(0.2) == whole.mu_bound(0.2) > 0


def test_three_scores_are_enough_and_two_are_not() -> None:
    t, chi2 = scipy.stats.t(1), scipy.stats.chi2(1)
    low = 100.0 - t.ppf(1 - 0.2 * 0.8) * math.sqrt(2.0 * (1 + 1 / 2))
    most = math.sqrt(2.0 / chi2.ppf(0.2 * 0.2))
    for first, second in (([99.0, 101.0], [0.0]), ([100.0], [-1.0, 1.0])):
        assert moments_of(first, second).mu_bound(0.2) == pytest.approx(low / most, rel=1e-9)
    assert moments_of([100.0], [0.0]).mu_bound(0.2) == 0.0


def test_a_difference_within_rounding_is_none() -> None:
    for apart, bound in ((0.8e-12, 0.0), (1.5e-12, math.inf)):
        assert moments_of([1.0 + apart] * 4, [1.0] * 4).mu_bound(0.2) == bound


@pytest.mark.parametrize(("factor", "is_noise"), [(0.5, False), (1.5, True)])
def test_a_deviation_within_rounding_is_none(factor: float, is_noise: bool) -> None:
    # Four scores about 1,000 and four about 0: six degrees of freedom.
    most = math.sqrt(4 / scipy.stats.chi2(6).ppf(0.2 * 0.2))  # of deviations of one
    off = factor * 1e-12 * 1000 / most
    moments = moments_of([1000 - off, 1000 + off] * 2, [0.0] * 4)
    bound = moments.mu_bound(0.2)
    assert bound == (pytest.approx(1e12 / factor, rel=1e-3) if is_noise else math.inf)


# ---- what theory expects


def atoms_of(epsilon: float) -> dict[float, float]:
    """Privacy losses of PrivUnit's cap, and their chances."""
    cap = cap_of(epsilon)
    threshold, chance = float(cap.threshold), float(cap.chance)
    ratio = scipy.stats.norm.sf(threshold) / scipy.stats.norm.cdf(threshold)
    back = (1 - chance) * ratio
    return {epsilon: chance, 0.0: 1 - chance - back, -epsilon: back}


@pytest.mark.parametrize("releases", [100, 100_000])
@pytest.mark.parametrize("losses", [(3.0,), (1.0, 0.5), (2.0, 2.0), (1.0, 0.001), (4.0, 1.0, 1.0)])
def test_losses_of_privunit_by_enumeration(losses: tuple[float, ...], releases: int) -> None:
    chances: dict[float, float] = {}
    for outcome in itertools.product(*(atoms_of(loss).items() for loss in losses)):
        total = round(sum(loss for loss, _ in outcome), 9)
        chances[total] = chances.get(total, 0.0) + math.prod(chance for _, chance in outcome)
    places = sorted((loss for loss in chances if loss > 0), reverse=True)
    right = [sum(chances[loss] for loss in chances if loss >= place) for place in places]
    wrong = [sum(chances[loss] for loss in chances if loss <= -place) for place in places]
    bounds = bound_of_guesses(
        np.multiply(releases, right), np.multiply(releases, wrong), releases, delta=1e-5, risk=0.01
    )
    found = expected("privunit", losses, releases=releases, delta=1e-5, risk=0.01)
    assert found.epsilon == pytest.approx(bounds.max(), rel=1e-6)
    best = int(bounds.argmax())
    lower = [*places, 0.0][best + 1]  # every threshold between the two is as good
    half = max(losses) / 2000  # of a step
    assert lower + half - 1e-9 <= found.threshold <= places[best] - half + 1e-9
    assert found.epsilon_gaussian == 0.0


@pytest.mark.parametrize("releases", [30, 1000, 10**6])
@pytest.mark.parametrize("mu", [0.3, 1.0, 4.0, 7.0])
def test_the_best_gaussian_test_by_another_search(mu: float, releases: int) -> None:
    def shown(threshold: float) -> float:
        right = scipy.stats.norm.sf((threshold - mu**2 / 2) / mu)
        wrong = scipy.stats.norm.sf((threshold + mu**2 / 2) / mu)
        return float(
            bound_of_guesses(releases * right, releases * wrong, releases, delta=1e-5, risk=0.01)
        )

    found = expected("gaussian", [mu], releases=releases, delta=1e-5, risk=0.01)
    best = max(shown(threshold) for threshold in np.linspace(0, mu * (mu / 2 + 6), 500))
    assert found.epsilon == pytest.approx(best, rel=2e-4, abs=1e-9)
    assert shown(found.threshold) == pytest.approx(found.epsilon, rel=1e-9)
    assert found.epsilon_gaussian == 0.0  # was not asked for


def test_where_nothing_can_be_shown_the_largest_loss_is_looked_for() -> None:
    found = expected("laplace", [1.0], releases=2, delta=1e-5, risk=0.01)
    assert (found.epsilon, found.threshold) == (0.0, pytest.approx(1 - 1 / 2000))


@pytest.mark.parametrize("releases", [100, 1000, 10**6])
def test_losses_of_laplace_noise_by_hand(releases: int) -> None:
    # P[loss <= x] is exp(-(1 - x) / 2) / 2 below 1; thresholds are half a step off the grid.
    thresholds = (np.arange(1000) + 0.5) / 1000
    right = 1 - np.exp(-(1 - thresholds) / 2) / 2
    wrong = np.exp(-(1 + thresholds) / 2) / 2
    bounds = bound_of_guesses(releases * right, releases * wrong, releases, delta=1e-5, risk=0.01)
    found = expected("laplace", [1.0], releases=releases, delta=1e-5, risk=0.01)
    assert found.epsilon == pytest.approx(bounds.max(), rel=1e-9)
    assert found.threshold == pytest.approx(thresholds[int(bounds.argmax())], rel=1e-9)
